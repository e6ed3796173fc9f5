#pragma once
// A question with a context that is longer than a model takes: several sequences, each with a part of the context (Devlin et al. 2018).

#include <cstddef>
#include <string_view>
#include <vector>

#include "libcore/text/tokenizer.h"

namespace galley::text {

/// A sequence of the tokenizer's template for pairs: the question, and a part of the context.
struct ContextWindow {
  std::vector<Token> tokens;
  size_t first = 0, count = 0;  ///< The tokens of the context among them.
};

/// Windows of at most `longest` tokens over a context. Each begins `shared` tokens before the end of the one before, but at most half of a
/// window's part of the context. Throws (kInput), naming `name`, if the question leaves no room for a token of the context.
std::vector<ContextWindow> context_windows(const Tokenizer& tokenizer, std::string_view question, std::string_view context, size_t longest,
                                           size_t shared, std::string_view name);

}  // namespace galley::text
