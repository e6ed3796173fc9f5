#pragma once
// Weights for a model, from files: opens what the recipe names, checks digests, matches names, casts where asked, and refuses
// values that are not finite.

#include <map>
#include <span>
#include <string>
#include <vector>

#include "libcore/tensor/tensor.h"
#include "libcore/weights/match.h"
#include "libcore/weights/safetensors.h"

namespace galley {

struct LoadedWeights {
  /// By the model's names; contiguous, of the wanted dtype and shape. Values may lie in a mapped file: they are not to be written.
  std::map<std::string, Tensor, std::less<>> tensors;
  /// Tensors of the model that keep their initial values (ignored, or missing where a rule is not strict), in the model's order.
  std::vector<std::string> kept;
};

/// The files that LoadRule::from stands for: itself, weights.safetensors of a RUN folder, or the parameters and buffers of a
/// checkpoint. Throws Error (exit code 4) for a folder without.
std::vector<std::string> weights_files(const std::string& from);

/// Loads what the rules name; a tensor that several rules fill has the last one's values. Throws one Error (exit code 4)
/// with a table where files and model do not fit, and one (4) that names tensor, place and count for NaN or infinity, or for
/// values that a cast would make infinite; warns (log) of what a rule that is not strict left out, and of casts.
LoadedWeights load_weights(std::span<const ExpectedTensor> model, std::span<const LoadRule> rules);

/// Metadata (the recipe, the pipeline, the categories...) of what `from` names; empty for files of other programs.
Metadata read_weights_metadata(const std::string& from);

/// The files that `from` stands for, with a digest (XXH3-128) of all their bytes: the parents of what is trained from them.
struct WeightsParent {
  std::string file;
  std::string digest;
};
std::vector<WeightsParent> weights_parents(const std::string& from);

/// Elements that are NaN or infinite, and the first one's index in logical order (-1: none). 0 for integers.
struct NonFiniteCount {
  int64_t count = 0;
  int64_t first = -1;
};
NonFiniteCount count_non_finite(const Tensor& tensor);

}  // namespace galley
