#pragma once
// Calibration: statistics of every value of a model over samples of data, and the model and weights they belong to. File format:
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
  int64_t first = 0;   ///< Position of the first sample in the sampling order.
  std::string source;  ///< Digest of the recipe's data, pipeline and seed.
  std::string data;    ///< Digest of the fed values, in order.
  std::string recipe;  ///< Digest of the resolved recipe.
  friend bool operator==(const CalibrationPart&, const CalibrationPart&) = default;
};

struct Calibration {
  std::map<std::string, RangeStatistics> values;  ///< By quant_name.
  std::vector<std::string> order;                 ///< Names in the model's order.
  std::vector<CalibrationPart> parts;
  std::string model;                           ///< model_digest of the fused graph.
  std::vector<int64_t> input;                  ///< Shape of one sample; empty if unknown.
  std::vector<std::string> inputs;             ///< Optional inputs of the model that the data have: lengths of texts, types of tokens.
  std::map<std::string, std::string> weights;  ///< Digest of each parameter's values, by name.
  std::string recipe;                          ///< Text of the resolved recipe of the first part.
  /// For scales learned in training: the largest representable magnitude, f32 [O] or [], by the name of the weight in the converted file
  /// ("conv1.weight").
  std::map<std::string, Tensor> weight_bounds;

  int64_t samples() const;
  int64_t batches() const;
  /// Statistics of a value; throws Error (kInput) with a similar name if there are none.
  const RangeStatistics& at(const std::string& name) const;
  /// Learned bounds of a weight, or nullptr.
  const Tensor* bounds_of(const std::string& weight) const;
  /// Appends the other's samples. Throws Error (kInput) with the difference if the model or the weights differ, or if scales were learned
  /// in training.
  void merge(const Calibration& other, const std::string& other_name);
  /// Makes statistics of a past version those of the graph, under its names and with its digest (quant/names.h: former_names). Returns
  /// whether they correspond; if not, nothing changes.
  bool follow(const Graph& fused);
  /// Throws Error (kInput) with the difference unless the statistics belong to this model and these weights. `name`: name of the file, for
  /// messages.
  void check(const std::string& model_digest, const std::map<std::string, std::string>& weights, const std::string& name) const;
};

/// Identifies a folded and fused graph independently of the batch size: digest of the names, operators and inputs of its nodes, in order.
/// (Attributes are not included because some contain the batch size.)
std::string model_digest(const Graph& fused);

}  // namespace galley
