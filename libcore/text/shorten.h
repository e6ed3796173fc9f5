#pragma once
// Shortens a sequence of tokens to what a model takes.

#include <cstddef>
#include <vector>

#include "libcore/text/tokenizer.h"

namespace galley::text {

/// Removes tokens of texts until `longest` are left: from the end of the longer text, of the second where they are equal. What a template
/// puts around the texts stays. `first_count`: tokens of the first text, as Tokenizer::encode gives them without special tokens.
void shorten(std::vector<Token>& tokens, size_t first_count, size_t longest);

}  // namespace galley::text
