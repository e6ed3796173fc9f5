#include "libcore/quant/calibration.h"

#include <algorithm>

#include "libcore/base/digest.h"
#include "libcore/base/error.h"
#include "libcore/quant/names.h"

namespace galley {
namespace {

/// A description of how two sets of weights differ, or "".
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
  if (missing + surplus > 0) text += cat(", ", missing + surplus, " exist only in one of them");
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
  Error error(ErrorCode::kInput, cat("the calibration has no statistics for ", name));
  const std::string near = nearest(name, order);
  throw error.suggest(near.empty() ? "calibrate this model again" : cat("the nearest is '", near, "'; calibrate this model again"));
}

const Tensor* Calibration::bounds_of(const std::string& weight) const {
  const auto found = weight_bounds.find(weight);
  return found == weight_bounds.end() ? nullptr : &found->second;
}

bool Calibration::follow(const Graph& fused) {
  const std::map<std::string, std::string> former = former_names(fused, order);
  if (former.empty()) return false;
  std::map<std::string, RangeStatistics> renamed;
  for (const auto& [now, before] : former) {
    if (const auto found = values.find(before); found != values.end()) renamed.emplace(now, found->second);
  }
  values = std::move(renamed);
  order = watched_names(fused);
  std::erase_if(order, [&](const std::string& name) { return !values.contains(name); });
  model = model_digest(fused);
  return true;
}

void Calibration::check(const std::string& other_model, const std::map<std::string, std::string>& other_weights,
                        const std::string& name) const {
  const std::string text = difference(weights, other_weights);
  if (model != other_model) {
    const std::string digests = cat(" (digest ", model.substr(0, 8), ", this model has ", other_model.substr(0, 8), ")");
    if (text.empty()) {
      throw Error(ErrorCode::kInput, cat(name, ": the statistics belong to the same weights, but to other operators", digests,
                                         ": another version of Galley or another recipe made the file"))
          .suggest("calibrate again: galley-calibrate RECIPE weights=FILE -o stats.calib");
    }
    throw Error(ErrorCode::kInput, cat(name, ": the statistics belong to another model", digests))
        .suggest("calibrate this model, or use the recipe with which the file was made");
  }
  if (!text.empty()) {
    throw Error(ErrorCode::kInput, cat(name, ": the statistics belong to other weights: ", text))
        .suggest("calibrate again with these weights");
  }
}

void Calibration::merge(const Calibration& other, const std::string& other_name) {
  other.check(model, weights, other_name);
  if (!weight_bounds.empty() || !other.weight_bounds.empty()) {
    throw Error(ErrorCode::kInput, cat(other_name, ": weight scales learned in training cannot be merged"))
        .suggest("convert with the file written by the training, or calibrate the weights with galley-calibrate");
  }
  GALLEY_CHECK_INPUT(order == other.order, other_name, " has statistics for ", other.order.size(), " values, but the other files for ",
                     order.size());
  for (auto& [name, statistics] : values) statistics.merge(other.at(name), name);
  parts.insert(parts.end(), other.parts.begin(), other.parts.end());
}

std::string model_digest(const Graph& fused) {
  Digest digest;
  const std::vector<std::string> names = quant_names(fused);
  const std::map<ValueId, std::string> values = quant_values(fused);
  for (size_t i = 0; i < names.size(); ++i) {
    const Node& node = fused.nodes()[i];
    if (node.outputs.empty() || !values.contains(node.outputs[0])) continue;  // nodes that fold weights
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
