#pragma once
// Two or more files of weights side by side: what differs, and their mean.

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libcore/weights/safetensors.h"
#include "libcore/weights/weights_file.h"

namespace galley {

/// A tensor that both files have.
struct TensorDifference {
  std::string name;  ///< Of the first file; the second's may be another, by the renames.
  OfferedTensor first, second;
  bool comparable = false;  ///< The shapes agree, and Galley computes with both dtypes.
  int64_t different = 0;    ///< Elements whose values differ (NaN equals NaN).
  double max_abs = 0;       ///< Of the differences, in float64; NaN where one side alone is NaN.
  /// 10 log10(sum a^2 / sum (a-b)^2); infinite where all are equal.
  double sqnr_db = 0;
};

struct WeightsDifference {
  std::vector<TensorDifference> both;  ///< In the first file's order.
  std::vector<OfferedTensor> only_first, only_second;
  /// Renames (as weights.rename) under which tensors of the second file would become tensors of the first.
  std::vector<std::pair<std::string, std::string>> proposed;
  /// Same names, types and values.
  bool equal() const;
};

/// Compares tensor by tensor; names of the second file go through `rename` first (LoadRule::rename).
WeightsDifference compare_weights(const WeightsFile& first, const WeightsFile& second,
                                  const std::vector<std::pair<std::string, std::string>>& rename = {});

/// The mean of files with the same tensors, as sources for write_safetensors: floats are summed in float64 in the order of the files and
/// rounded once, integers (counters) are the last file's. Throws (kInput) naming the tensor where files differ in names, shapes or dtypes,
/// or hold values that are not finite. The files must outlive the sources.
std::vector<TensorSource> average_weights(std::span<const WeightsFile> files);

}  // namespace galley
