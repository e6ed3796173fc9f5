// galley-weights ls: lists the models of the zoo and their published weights.

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/glob.h"
#include "libcore/base/units.h"
#include "libcore/infer/components.h"
#include "libcore/infer/model_cost.h"
#include "libcore/nn/zoo.h"
#include "tools/common/provenance.h"
#include "tools/weights/weights.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string metric(const PublishedWeights& entry, const std::string& name) {
  for (const auto& [key, value] : entry.metrics) {
    if (key == name) return fixed(std::strtod(value.c_str(), nullptr), 2);
  }
  return "-";
}

}  // namespace

int WeightsTool::list() const {
  check_word_count(0, 1, "at most one pattern");
  const WeightRegistry registry = weight_registry();
  std::set<std::string> names;
  for (const std::string& model : registry.models()) names.insert(model);
  for (const ComponentKind& kind : recipe_components().models) {
    if (is_zoo_model(kind.type)) names.insert(std::string(kind.type));
  }
  const std::string pattern = words_.empty() ? "*" : words_[0];
  const bool glob = pattern.find_first_of("*?") != std::string::npos;
  Table table{{"model", "weights", "top1", "top5", "parameters", "GFLOPs", "activations M", "input", "MiB", "here"}, {}};
  Json rows = Json::array();
  for (const std::string& model : names) {
    if (glob ? !glob_matches(pattern, model) : model.find(pattern) == std::string::npos) continue;
    const std::vector<PublishedWeights> entries = registry.has(model) ? registry.of(model) : std::vector<PublishedWeights>{};
    std::optional<ModelCost> cost;
    int64_t cost_size = -1;
    const auto add = [&](const PublishedWeights* entry) {
      const int64_t size = entry == nullptr ? 0 : entry->input_size;
      if (size != cost_size) cost = model_cost(model, size);
      cost_size = size;
      // Published weights may belong to a variant (e.g. another image size) with other parameters; then use the published figures.
      const bool fits = cost && (entry == nullptr || entry->num_params == 0 || entry->num_params == cost->parameters);
      const int64_t parameters = fits ? cost->parameters : entry != nullptr ? entry->num_params : 0;
      const double gflops = fits ? cost->flops / 1e9 : entry != nullptr ? 2 * entry->gmacs : 0;
      const bool here = entry != nullptr && file_exists(entry->file);
      table.rows.push_back({model, entry == nullptr ? "-" : entry->name + (entry->is_default ? " *" : ""),
                            entry == nullptr ? "-" : metric(*entry, "top1"), entry == nullptr ? "-" : metric(*entry, "top5"),
                            std::to_string(parameters), fixed(gflops, 3), fits ? fixed(cost->activations / 1e6, 3) : "-",
                            size > 0 ? std::to_string(size) : "-", entry == nullptr ? "-" : fixed(entry->megabytes, 1),
                            here ? "yes" : "-"});
      Json row{{"model", model},           {"in_zoo", cost.has_value()}, {"weights", nullptr},
               {"parameters", parameters}, {"gflops", gflops},           {"activations", fits ? Json(cost->activations) : Json()}};
      if (entry != nullptr) {
        row["weights"] = entry->name;
        row.update({{"default", entry->is_default},
                    {"url", entry->url},
                    {"file", entry->file},
                    {"here", here},
                    {"megabytes", entry->megabytes},
                    {"input_size", entry->input_size},
                    {"metrics", Json::object()}});
        for (const auto& [key, value] : entry->metrics) row["metrics"][key] = std::strtod(value.c_str(), nullptr);
      }
      rows.push_back(std::move(row));
    };
    for (const PublishedWeights& entry : entries) add(&entry);
    if (entries.empty()) add(nullptr);
  }
  if (rows.empty()) {
    const std::string near = nearest(pattern, {names.begin(), names.end()});
    throw Error(ErrorCode::kUsage, cat("no model matches '", pattern, "'"))
        .suggest(near.empty() ? "galley-weights ls lists all" : cat("did you mean '", near, "'?"));
  }
  if (common.format == Format::kJson) {
    print(Json{{"models", rows}, {"provenance", provenance_json(Provenance{.tool = "galley-weights"})}}.dump() + "\n");
  } else {
    print(table);
  }
  return kExitDone;
}

}  // namespace galley::tools
