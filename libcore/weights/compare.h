#pragma once
// Comparison and averaging of weights files.

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libcore/weights/safetensors.h"
#include "libcore/weights/weights_file.h"

namespace galley {

/// A tensor that both files have.
struct TensorDifference {
  std::string name;  ///< Name in the first file; with renames, the second file's name may differ.
  OfferedTensor first, second;
  bool comparable = false;  ///< The shapes are equal, and Galley supports both dtypes.
  int64_t different = 0;    ///< Number of elements that differ (NaN equals NaN).
  double max_abs = 0;       ///< Largest absolute difference, in float64; NaN if only one side is NaN.
  /// 10 log10(sum a^2 / sum (a-b)^2); infinite if all elements are equal.
  double sqnr_db = 0;
};

/// The differences of two files.
struct WeightsDifference {
  std::vector<TensorDifference> both;  ///< In the first file's order.
  std::vector<OfferedTensor> only_first, only_second;
  /// Renames (like weights.rename) that would map tensors of the second file to tensors of the first.
  std::vector<std::pair<std::string, std::string>> proposed;
  /// Whether names, types and values are all equal.
  bool equal() const;
};

/// Compares tensor by tensor; `rename` (see LoadRule::rename) is applied to names of the second file first.
WeightsDifference compare_weights(const WeightsFile& first, const WeightsFile& second,
                                  const std::vector<std::pair<std::string, std::string>>& rename = {});

/// The mean of files with equal tensors, as sources for write_safetensors. Floats are summed in float64 in the order of the files and
/// rounded once; integers (counters) come from the last file. Throws Error (kInput) with the tensor's name if files differ in names, shapes
/// or dtypes, or contain values that are not finite. The files must outlive the sources.
std::vector<TensorSource> average_weights(std::span<const WeightsFile> files);

}  // namespace galley
