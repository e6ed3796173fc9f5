#pragma once
// Steps of normalization, as tokenizer.json names them.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/text/buffer.h"
#include "libcore/text/regex.h"
#include "libcore/text/unicode.h"

namespace galley::text {

using Normalizer = std::function<void(Buffer&)>;

/// BERT: without control characters and with plain spaces (clean_text), spaces around Chinese characters, without accents, in lower case.
struct BertNormalizer {
  bool clean_text = true;
  bool chinese = true;
  bool strip_accents = true;
  bool lowercase = true;
};
Normalizer bert_normalizer(const BertNormalizer& options);
Normalizer normal_form(NormalForm form);
Normalizer lowercase();
/// Removes marks.
Normalizer strip_accents();
/// Removes white space at the ends.
Normalizer strip(bool left, bool right);
Normalizer replace(std::shared_ptr<const Matcher> pattern, const std::string& content);
/// Puts text before a text that is not empty.
Normalizer prepend(const std::string& text);
/// SentencePiece's nmt rules: control characters go, unusual spaces become spaces.
Normalizer nmt();
/// Bytes as GPT-2's characters.
Normalizer byte_level_normalizer();
/// SentencePiece's compiled map of characters (precompiled_charsmap). Throws (kInput) if it is damaged.
Normalizer precompiled(std::string charsmap);

}  // namespace galley::text
