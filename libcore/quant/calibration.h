#pragma once
// Calibration: statistics of every value of a model over samples of its data, and what they belong to. Its file:
// weights/calibration_file.h.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "libcore/graph/graph.h"
#include "libcore/quant/observers.h"
#include "libcore/tensor/tensor.h"

namespace galley {

/// One run of galley-calibrate; a merged file has several, in order.
struct CalibrationPart {
  int64_t samples = 0, batches = 0, batch = 0;
  int64_t first = 0;   ///< Position of the first sample in the drawn order.
  std::string source;  ///< Digest of what was read: data, pipeline and seed, as the recipe says them.
  std::string data;    ///< Digest of the values that were fed, in order.
  std::string recipe;  ///< Digest of the resolved recipe.
  friend bool operator==(const CalibrationPart&, const CalibrationPart&) = default;
};

struct Calibration {
  std::map<std::string, RangeStatistics> values;  ///< By quant_name.
  std::vector<std::string> order;                 ///< The names in the model's order.
  std::vector<CalibrationPart> parts;
  std::string model;                           ///< model_digest of the fused graph.
  std::vector<int64_t> input;                  ///< Shape of one sample; empty where it is not known.
  std::map<std::string, std::string> weights;  ///< Digest of each parameter's values, by name.
  std::string recipe;                          ///< The resolved recipe's text, of the first part.
  /// Of trained scales: the largest magnitudes that integers stand for, f32 [O] or [], by the weight's name in the converted file
  /// ("conv1.weight").
  std::map<std::string, Tensor> weight_bounds;

  int64_t samples() const;
  int64_t batches() const;
  /// Statistics of a value; throws Error (kInput) with near names where there are none.
  const RangeStatistics& at(const std::string& name) const;
  /// nullptr where the weight's scale did not learn.
  const Tensor* bounds_of(const std::string& weight) const;
  /// As if the other's samples had come after these. Throws Error (kInput), saying what differs, for another model or other weights,
  /// or trained scales.
  void merge(const Calibration& other, const std::string& other_name);
  /// Throws Error (kInput), saying what differs, unless the statistics are of this model with these weights. `name`: of the file.
  void check(const std::string& model_digest, const std::map<std::string, std::string>& weights, const std::string& name) const;
};

/// Identifies a folded and fused graph whatever its batch size: names, operators and inputs of its nodes, in order. (Attributes are left
/// out: some hold the batch size.)
std::string model_digest(const Graph& fused);

}  // namespace galley
