#pragma once
// Loads weights for a model: opens the files named in the recipe, checks digests, matches names, casts if requested, and rejects values
// that are not finite.

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "libcore/tensor/tensor.h"
#include "libcore/weights/match.h"
#include "libcore/weights/safetensors.h"

namespace galley {

/// The result of load_weights.
struct LoadedWeights {
  /// By the model's names; contiguous, with the model's dtype and shape. Values may be in a mapped file and must not be modified.
  std::map<std::string, Tensor, std::less<>> tensors;
  /// Tensors of the model that keep their initial values (ignored, or missing with a rule that is not strict), in the model's order.
  std::vector<std::string> kept;
};

/// The files for LoadRule::from: the file itself, weights.safetensors of a RUN folder, the manifest of a checkpoint (whose weights are its
/// parameters and buffers), or the files of a hub folder (hub.h). Throws Error (exit code 4) for a folder with none of them.
std::vector<std::string> weights_files(const std::string& from);

/// Loads weights by the rules; if several rules fill a tensor, the last one wins. Throws Error (exit code 4) with a table if files and
/// model do not match, or with tensor, index and count for NaN, infinity, or values that overflow in a cast. Logs warnings for casts and
/// for tensors that rules without `strict` skipped.
LoadedWeights load_weights(std::span<const ExpectedTensor> model, std::span<const LoadRule> rules);

/// The same, with one array at a time in memory: calls `take` with each, in the order of rules and files. Values are valid during the call.
/// A tensor that several rules fill comes several times. Returns LoadedWeights::kept.
std::vector<std::string> load_each_weight(std::span<const ExpectedTensor> model, std::span<const LoadRule> rules,
                                          const std::function<void(const ExpectedTensor& tensor, const Tensor& values)>& take);

/// Metadata (recipe, pipeline, categories...) of the files for `from`; empty for files of other programs.
Metadata read_weights_metadata(const std::string& from);

/// The files for `from` with the XXH3-128 digest of their bytes: the parents of models trained from them.
struct WeightsParent {
  std::string file;
  std::string digest;
};
std::vector<WeightsParent> weights_parents(const std::string& from);

/// Number of elements that are NaN or infinite, and the first one's index in logical order (-1: none). 0 for integers.
struct NonFiniteCount {
  int64_t count = 0;
  int64_t first = -1;
};
NonFiniteCount count_non_finite(const Tensor& tensor);

}  // namespace galley
