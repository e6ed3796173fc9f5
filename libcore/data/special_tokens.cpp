#include "libcore/data/special_tokens.h"

#include <initializer_list>

#include "libcore/base/error.h"

namespace galley {
namespace {

int32_t special_token(const text::Tokenizer* tokenizer, const std::string& choice, std::initializer_list<const char*> usual,
                      std::string_view key, std::string_view item, std::string_view otherwise) {
  if (tokenizer != nullptr && choice != "auto") {
    if (const auto id = tokenizer->id(choice)) return *id;
  }
  for (const char* piece : usual) {
    if (tokenizer == nullptr || choice != "auto") break;
    if (const auto id = tokenizer->id(piece)) return *id;
  }
  fail(
      ErrorCode::kRecipe, "[", item, "] ",
      tokenizer == nullptr ? std::string("the recipe has no tokenizer, and bytes have") : cat("the tokenizer (", tokenizer->str(), ") has"),
      " no ", choice == "auto" ? cat("token that ", key, "s a text") : "piece '" + choice + "'", "; set `", key, "` to one of its pieces",
      otherwise);
}

}  // namespace

int32_t end_token(const text::Tokenizer* tokenizer, const std::string& choice, std::string_view item, std::string_view otherwise) {
  return special_token(tokenizer, choice, {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]"}, "end", item, otherwise);
}

int32_t begin_token(const text::Tokenizer* tokenizer, const std::string& choice, std::string_view item) {
  return special_token(tokenizer, choice, {"<|begin_of_text|>", "<s>", "<bos>", "[CLS]", "<|endoftext|>"}, "begin", item, "");
}

}  // namespace galley
