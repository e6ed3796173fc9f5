#include "libcore/tasks/capture.h"

#include <algorithm>

#include "libcore/nn/attention.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/pixels.h"
#include "libcore/ops/unary.h"
#include "libcore/passes/apply_extents.h"
#include "libcore/tensor/field_names.h"

namespace galley {

TaskCapture::TaskCapture(Graph& graph, const Component& model, const ModelInfo& info, std::map<std::string, TensorType> fields,
                         BuilderOptions options, PixelConversions pixels)
    : graph_(graph),
      model_(model),
      info_(info),
      fields_(std::move(fields)),
      pixels_(std::move(pixels)),
      builder_(graph, std::move(options)) {}

/// What the model reads of a field: its numbers, where the batch holds bytes.
Value TaskCapture::numbers_of(const std::string& name, Value bytes) {
  const auto pixels = pixels_.find(name);
  if (pixels == pixels_.end()) return bytes;
  const auto scope = builder_.scope(name);
  NormalizePixelsAttrs attrs;
  attrs.mean = pixels->second.mean;
  attrs.std = pixels->second.std;
  attrs.scale = pixels->second.scale;
  return normalize_pixels(bytes, attrs);
}

Value TaskCapture::field(const std::string& name) {
  const auto declared = declared_.find(name);
  if (declared != declared_.end()) return declared->second;
  const auto type = fields_.find(name);
  if (type == fields_.end()) {
    std::string names;
    for (const auto& [known, unused] : fields_) names += (names.empty() ? "" : ", ") + known;
    throw Error(ErrorCode::kRecipe, cat("the model or its task needs a field `", name, "`, which the data do not have; they have ",
                                        names.empty() ? "none" : names))
        .key("data")
        .suggest("add a pipeline item {type: rename, from: NAME, to: " + name + "}");
  }
  return declared_.emplace(name, numbers_of(name, builder_.input(name, type->second))).first->second;
}

const NamedValues& TaskCapture::model() {
  if (!results_.empty()) return results_;
  NamedValues inputs;
  for (const ModelInput& input : info_.all_inputs()) {
    // A program with a cache is of the encoder or of the decoder: its fields say of which.
    const bool needed = !input.optional && builder_.cache() == 0;
    if (needed || fields_.contains(input.name)) inputs.emplace_back(input.name, field(input.name));
  }
  if (info_.output == ModelOutput::kTokens && info_.cache && info_.inputs.empty() && fields_.contains(kPositionIds))
    inputs.emplace_back(kPositionIds, field(kPositionIds));
  try {
    results_ = build_model(builder_, model_, inputs);
  } catch (Error& error) {
    if (error.code() == ErrorCode::kRecipe && !error.key().starts_with("model") && !error.key().starts_with("data"))
      error.key(error.key().empty() ? "model" : cat("model.", error.key()));
    throw;
  }
  const auto input = [&](std::string_view name) {
    const auto found = std::find_if(inputs.begin(), inputs.end(), [&](const auto& item) { return item.first == name; });
    return found == inputs.end() ? Value() : found->second;
  };
  if (const Value extents = input(kImageExtents)) {
    apply_extents(graph_, inputs.front().second, extents, builder_.training());
  }
  return results_;
}

void TaskCapture::loss(const std::string& name, Value mean, double weight) {
  parts_.emplace_back(name, mean);
  if (!objective_) {
    objective_ = weight == 1 ? mean : affine(mean, weight);
    return;
  }
  const auto scope = builder_.scope("loss");
  objective_ = add(objective_, affine(mean, weight));
}

void TaskCapture::sum(std::string_view metric, Value values) {
  captured_.sums.emplace_back(metric, cat("sum.", metric));
  graph_.add_output(captured_.sums.back().second, values);
}

void TaskCapture::result(const std::string& name, Value value) {
  captured_.results.push_back(name);
  graph_.add_output(name, value);
}

CapturedResults TaskCapture::finish() {
  if (objective_) graph_.add_output("loss", objective_);
  for (const auto& [name, part] : parts_) {
    if (parts_.size() == 1) break;  // a single part is the objective itself
    captured_.losses.push_back(name);
    graph_.add_output("loss." + name, part);
  }
  return std::move(captured_);
}

void capture_results(TaskCapture& capture) {
  const NamedValues& results = capture.model();
  for (size_t i = 0; i < results.size(); ++i)
    capture.result(i == 0 && !capture.info().named_outputs ? "output" : results[i].first, results[i].second);
}

}  // namespace galley
