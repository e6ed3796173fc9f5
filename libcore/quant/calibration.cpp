#include "libcore/quant/calibration.h"

#include <algorithm>

#include "libcore/base/digest.h"
#include "libcore/base/error.h"
#include "libcore/quant/names.h"

namespace galley {
namespace {

/// "", or in words how two sets of weights differ.
std::string difference(const std::map<std::string, std::string>& a, const std::map<std::string, std::string>& b) {
  std::string first;
  int64_t different = 0, missing = 0;
  for (const auto& [name, digest] : a) {
    const auto there = b.find(name);
    if (there == b.end()) {
      ++missing;
    } else if (there->second != digest) {
      ++different;
    } else {
      continue;
    }
    if (first.empty()) first = name;
  }
  const int64_t surplus = missing + static_cast<int64_t>(b.size()) - static_cast<int64_t>(a.size());
  for (auto it = b.begin(); first.empty() && it != b.end(); ++it) {
    if (!a.contains(it->first)) first = it->first;
  }
  if (different == 0 && missing == 0 && surplus == 0) return "";
  std::string text = cat(different, " of ", a.size(), " tensors differ");
  if (missing + surplus > 0) text += cat(", ", missing + surplus, " are in one of them alone");
  return cat(text, " (first ", first, ")");
}

}  // namespace

int64_t Calibration::samples() const {
  int64_t sum = 0;
  for (const CalibrationPart& part : parts) sum += part.samples;
  return sum;
}

int64_t Calibration::batches() const {
  int64_t sum = 0;
  for (const CalibrationPart& part : parts) sum += part.batches;
  return sum;
}

const RangeStatistics& Calibration::at(const std::string& name) const {
  const auto found = values.find(name);
  if (found != values.end()) return found->second;
  Error error(ErrorCode::kInput, cat("the calibration has no statistics of ", name));
  const std::string near = nearest(name, order);
  throw error.suggest(near.empty() ? "calibrate this model again" : cat("the nearest is '", near, "'; calibrate this model again"));
}

const Tensor* Calibration::bounds_of(const std::string& weight) const {
  const auto found = weight_bounds.find(weight);
  return found == weight_bounds.end() ? nullptr : &found->second;
}

void Calibration::check(const std::string& other_model, const std::map<std::string, std::string>& other_weights,
                        const std::string& name) const {
  if (model != other_model) {
    throw Error(ErrorCode::kInput, cat(name, ": the statistics are of another model (its digest is ", model.substr(0, 8), ", this one's ",
                                       other_model.substr(0, 8), ")"))
        .suggest("calibrate this model, or give the recipe that the file was made with");
  }
  if (const std::string text = difference(weights, other_weights); !text.empty()) {
    throw Error(ErrorCode::kInput, cat(name, ": the statistics are of other weights: ", text))
        .suggest("calibrate again with these weights");
  }
}

void Calibration::merge(const Calibration& other, const std::string& other_name) {
  other.check(model, weights, other_name);
  if (!weight_bounds.empty() || !other.weight_bounds.empty()) {
    throw Error(ErrorCode::kInput, cat(other_name, ": scales of weights that a training learned are no statistics, and do not merge"))
        .suggest("convert with the training's own file, or calibrate its weights by galley-calibrate");
  }
  GALLEY_CHECK_INPUT(order == other.order, other_name, ": has statistics of ", other.order.size(), " values, the others of ", order.size());
  for (auto& [name, statistics] : values) statistics.merge(other.at(name), name);
  parts.insert(parts.end(), other.parts.begin(), other.parts.end());
}

std::string model_digest(const Graph& fused) {
  Digest digest;
  const std::vector<std::string> names = quant_names(fused);
  const std::map<ValueId, std::string> values = quant_values(fused);
  for (size_t i = 0; i < names.size(); ++i) {
    const Node& node = fused.nodes()[i];
    if (node.outputs.empty() || !values.contains(node.outputs[0])) continue;  // folding of weights
    digest.update(cat(names[i], " ", node.op->name, "\n"));
    for (ValueId id : node.inputs) {
      if (id == kNoValue) continue;
      const auto found = values.find(id);
      digest.update(cat(" ", found == values.end() ? std::string("-") : found->second, "\n"));
    }
  }
  return digest.hex();
}

}  // namespace galley
