#pragma once
// Steps of pre-tokenization, as tokenizer.json names them: they divide text into words, within which the model works.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "libcore/text/buffer.h"
#include "libcore/text/regex.h"

namespace galley::text {

/// A text and its words, in order; the text between words is dropped.
struct Words {
  Buffer buffer;
  std::vector<Range> words;
  bool at_start = true;  ///< The text begins where the input does.
};
using PreTokenizer = std::function<void(Words&)>;

/// What becomes of the matches of a pattern.
enum class Split { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

/// `invert`: the text between matches is used instead of the matches.
PreTokenizer split(std::shared_ptr<const Matcher> pattern, Split behavior, bool invert);
PreTokenizer split_at(std::function<bool(uint32_t)> is_match, Split behavior);
PreTokenizer punctuation(Split behavior);
PreTokenizer digits(bool individual);
PreTokenizer whitespace();        ///< Runs of \w, and of what is neither that nor white space.
PreTokenizer whitespace_split();  ///< What white space separates.
PreTokenizer bert_pre_tokenizer();
PreTokenizer character_delimiter(uint32_t delimiter);
PreTokenizer fixed_length(int64_t length);

enum class Prepend { kNever, kFirst, kAlways };
/// Spaces become `replacement`, one more is put before the text, and each begins a word.
PreTokenizer metaspace(const std::string& replacement, Prepend prepend, bool split);
/// Bytes as GPT-2's characters, after `pattern` divided the text (null: not divided).
PreTokenizer byte_level(bool add_prefix_space, std::shared_ptr<const Matcher> pattern);

}  // namespace galley::text
