#pragma once
// The encoder-decoder model of the zoo, and what programs of such models read.

#include <algorithm>

#include "libcore/nn/zoo.h"

namespace galley {

/// Inputs of the encoder: tokens [N,S], and their number [N].
inline constexpr const char* kSource = "src";
inline constexpr const char* kSourceLength = "src.length";

/// Whether it is an encoder-decoder model. With a cache (nn/attention.h) it has two programs, which a request runs by turns: that of
/// kSource alone stores the keys and values that the decoder reads of it, and that of the target reads them. The latter has kSource as
/// well, of which only the shape counts.
inline bool reads_source(const ModelInfo& info) {
  return std::any_of(info.inputs.begin(), info.inputs.end(), [](const ModelInput& input) { return input.name == kSource; });
}

/// Its rows of the table of models.
ModelTable transformer_models();

}  // namespace galley
