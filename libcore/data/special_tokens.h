#pragma once
// The tokens that begin and end a text, by their pieces.

#include <cstdint>
#include <string>
#include <string_view>

#include "libcore/text/tokenizer.h"

namespace galley {

/// The token that ends a text. `choice`: auto (the first that the tokenizer has of <|endoftext|>, <|end_of_text|>, </s>, <eos>, [SEP]), or
/// a piece. Throws Error (kRecipe) "[ITEM] ..." if the tokenizer, null for bytes, has none; `otherwise` is what the message suggests
/// besides.
int32_t end_token(const text::Tokenizer* tokenizer, const std::string& choice, std::string_view item, std::string_view otherwise = "");
/// The token that begins a text: of <|begin_of_text|>, <s>, <bos>, [CLS], <|endoftext|>.
int32_t begin_token(const text::Tokenizer* tokenizer, const std::string& choice, std::string_view item);

}  // namespace galley
