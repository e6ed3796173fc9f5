// Tokenizers: any file gives an Error or a tokenizer, and that encodes any text. The input is a file, a zero byte and a text. A file that
// begins with {"type": is one that weights carry (text/definition.h), any other is a tokenizer.json.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/text/readers.h"
#include "libcore/text/unicode.h"

namespace {

using galley::text::Token;
using galley::text::Tokenizer;

void require(bool condition) {
  if (!condition) std::abort();
}

/// Null where the file is none.
std::unique_ptr<const Tokenizer> tokenizer_of(std::string_view file) {
  // SentencePiece's models are read by its own library.
  if (file.find("sentencepiece") != std::string_view::npos) return nullptr;
  try {
    return file.starts_with("{\"type\":") ? galley::text::load_tokenizer(file, "fuzz")
                                          : galley::text::parse_tokenizer_json(file, "fuzz.json");
  } catch (const galley::Error&) {
    return nullptr;
  }
}

bool is_utf8(const std::string& text) { return galley::text::replace_invalid_utf8(text) == text; }

void check(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<int32_t> ids = tokenizer.encode(text);
  const std::vector<Token> tokens = tokenizer.tokens(text);
  require(ids.size() == tokens.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    require(ids[i] == tokens[i].id && tokenizer.has(ids[i]));
    require(tokens[i].begin <= tokens[i].end && tokens[i].end <= text.size());
  }
  require(is_utf8(tokenizer.decode(ids)));
  const auto stream = tokenizer.stream();
  for (const int32_t id : ids) require(is_utf8(stream->push(id)));
  require(is_utf8(stream->finish()));
  const std::string saved = tokenizer.saved();
  const auto again = galley::text::load_tokenizer(saved, "fuzz");
  require(again->saved() == saved && again->encode(text) == ids);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = std::min(input.find('\0'), size);
  const auto tokenizer = tokenizer_of(input.substr(0, zero));
  if (tokenizer == nullptr) return 0;
  try {
    check(*tokenizer, input.substr(std::min(zero + 1, size)));
  } catch (const galley::Error&) {  // The text is not UTF-8, or has what the vocabulary has not.
  }
  return 0;
}
