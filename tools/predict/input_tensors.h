#pragma once
// The tensors of galley-predict --tensors.

#include <map>
#include <string>

#include "libcore/infer/session.h"

namespace galley::tools {

/// The model's inputs of a safetensors file, by the model's names. Throws Error (kInput) with the tensor, and the position in it, for a
/// missing tensor, for tokens that are not integers [N,T] of the vocabulary, and for lengths that are not 1 to T. Where a model reads
/// tokens, tensors that it does not read are errors too; else they are a warning.
std::map<std::string, Tensor> input_tensors(const Session& session, const std::string& path);

}  // namespace galley::tools
