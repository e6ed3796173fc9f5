#pragma once
// Pre-tokenization: cuts text into the pieces within which BPE merges. Each pattern that published tokenizers use has a scanner written by
// hand, some ten times as fast as a regular expression; it is chosen by the text of the pattern.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace galley::text {

/// The end of the piece that begins at `p` < `end`. The text is valid UTF-8 up to `end`, where look-ahead sees the end of the text.
using Scan = const char* (*)(const char* p, const char* end);

struct KnownPattern {
  std::string_view name;  ///< "gpt2", "llama3", "qwen2", "cl100k", "o200k", "tekken"
  std::string_view text;  ///< The regular expression as files spell it.
  Scan scan;
};

/// All spellings; several have one name.
std::span<const KnownPattern> known_patterns();
/// The pattern with this text, or nullptr.
const KnownPattern* find_pattern(std::string_view text);
/// The first pattern of this name. Throws (kInput) with the names if there is none.
const KnownPattern& pattern_named(std::string_view name);
std::vector<std::string> pattern_names();

}  // namespace galley::text
