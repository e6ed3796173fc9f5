#include <algorithm>

#include "libcore/base/error.h"
#include "libcore/text/pre_tokenizer.h"
#include "libcore/text/unicode.h"

namespace galley::text {
namespace {

struct Part {
  Range range;
  bool match = false;
};

/// Joins a part to its neighbor, or takes it out, as `behavior` says.
void join(std::vector<Part>& parts, Split behavior, std::vector<Range>& words) {
  const size_t before = words.size();
  if (behavior == Split::kMergedWithNext) std::reverse(parts.begin(), parts.end());
  bool previous = false;
  for (const Part& part : parts) {
    const bool joins = words.size() > before && (behavior == Split::kContiguous           ? part.match == previous
                                                 : behavior == Split::kMergedWithPrevious ? part.match && !previous
                                                 : behavior == Split::kMergedWithNext     ? part.match && !previous
                                                                                          : false);
    if (joins && behavior == Split::kMergedWithNext) {
      words.back().begin = part.range.begin;
    } else if (joins) {
      words.back().end = part.range.end;
    } else if (behavior != Split::kRemoved || !part.match) {
      words.push_back(part.range);
    }
    previous = part.match;
  }
  if (behavior == Split::kMergedWithNext) std::reverse(words.begin() + static_cast<std::ptrdiff_t>(before), words.end());
}

/// Divides each word by `parts_of`, and drops empty ones.
template <class PartsOf>
void divide(Words& words, Split behavior, const PartsOf& parts_of) {
  std::vector<Range> divided;
  std::vector<Part> parts;
  for (const Range& word : words.words) {
    parts.clear();
    parts_of(std::string_view(words.buffer.text()), word, parts);
    join(parts, behavior, divided);
  }
  std::erase_if(divided, [](const Range& range) { return range.begin == range.end; });
  words.words = std::move(divided);
}

/// Rewrites the text word by word.
void rewrite_words(Words& words, const std::function<void(Range, Buffer::Writer&)>& rewrite) {
  std::vector<Range> rewritten;
  words.buffer.rewrite([&](Buffer::Writer& writer) {
    for (const Range& word : words.words) {
      const auto begin = static_cast<uint32_t>(writer.size());
      rewrite(word, writer);
      rewritten.push_back({begin, static_cast<uint32_t>(writer.size())});
    }
  });
  words.words = std::move(rewritten);
}

std::string_view text_of(const Words& words, Range range) {
  return std::string_view(words.buffer.text()).substr(range.begin, range.end - range.begin);
}

bool is_bert_punctuation(uint32_t c) {
  const bool ascii = (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
  return ascii || (ClassTable::get()[c] & kPunctuation);
}

}  // namespace

PreTokenizer split(std::shared_ptr<const Matcher> pattern, Split behavior, bool invert) {
  return [pattern, behavior, invert](Words& words) {
    divide(words, behavior, [&](std::string_view text, Range word, std::vector<Part>& parts) {
      const std::string_view inside = text.substr(word.begin, word.end - word.begin);
      uint32_t at = 0;
      const auto put = [&](uint32_t begin, uint32_t end, bool match) {
        if (begin < end) parts.push_back({{word.begin + begin, word.begin + end}, match != invert});
      };
      for (Range match; pattern->find(inside, at, inside.size(), match); at = match.end) {
        put(at, match.begin, false);
        put(match.begin, match.end, true);
      }
      put(at, static_cast<uint32_t>(inside.size()), false);
    });
  };
}

PreTokenizer split_at(std::function<bool(uint32_t)> is_match, Split behavior) {
  return [is_match, behavior](Words& words) {
    divide(words, behavior, [&](std::string_view text, Range word, std::vector<Part>& parts) {
      uint32_t rest = word.begin;
      for (uint32_t at = word.begin; at < word.end;) {
        const char* p = text.data() + at;
        const bool match = is_match(next_char(p));
        const auto end = static_cast<uint32_t>(p - text.data());
        if (match) {
          if (rest < at) parts.push_back({{rest, at}, false});
          parts.push_back({{at, end}, true});
          rest = end;
        }
        at = end;
      }
      if (rest < word.end) parts.push_back({{rest, word.end}, false});
    });
  };
}

PreTokenizer punctuation(Split behavior) { return split_at(is_bert_punctuation, behavior); }
PreTokenizer digits(bool individual) {
  return split_at([](uint32_t c) { return (ClassTable::get()[c] & kNumber) != 0; }, individual ? Split::kIsolated : Split::kContiguous);
}
PreTokenizer whitespace_split() { return split_at(is_white_space, Split::kRemoved); }
PreTokenizer character_delimiter(uint32_t delimiter) {
  return split_at([delimiter](uint32_t c) { return c == delimiter; }, Split::kRemoved);
}
PreTokenizer bert_pre_tokenizer() {
  return [spaces = whitespace_split(), marks = punctuation(Split::kIsolated)](Words& words) {
    spaces(words);
    marks(words);
  };
}

PreTokenizer whitespace() {
  return [](Words& words) {
    const auto kind_of = [](uint32_t c) {
      const uint8_t bits = ClassTable::get()[c];
      return bits & kWord ? 1 : bits & kSpace ? 0 : 2;
    };
    std::vector<Range> divided;
    for (const Range& word : words.words) {
      const char* text = words.buffer.text().data();
      int kind = 0;
      for (uint32_t at = word.begin; at < word.end;) {
        const char* p = text + at;
        const int next = kind_of(next_char(p));
        const auto end = static_cast<uint32_t>(p - text);
        if (next != 0 && next == kind) {
          divided.back().end = end;
        } else if (next != 0) {
          divided.push_back({at, end});
        }
        kind = next;
        at = end;
      }
    }
    words.words = std::move(divided);
  };
}

PreTokenizer fixed_length(int64_t length) {
  return [length](Words& words) {
    std::vector<Range> divided;
    for (const Range& word : words.words) {
      for (uint32_t at = word.begin; at < word.end;) {
        uint32_t end = at;
        for (int64_t i = 0; i < length && end < word.end; ++i) end += static_cast<uint32_t>(char_length(words.buffer.text().data() + end));
        divided.push_back({at, end});
        at = end;
      }
    }
    words.words = std::move(divided);
  };
}

PreTokenizer metaspace(const std::string& replacement, Prepend prepend, bool divides) {
  return [replacement, prepend,
          at_marks = divides ? split(string_matcher(replacement), Split::kMergedWithNext, false) : PreTokenizer()](Words& words) {
    bool first = words.at_start;
    rewrite_words(words, [&](Range word, Buffer::Writer& writer) {
      const std::string_view text = text_of(words, word);
      const bool wanted = prepend == Prepend::kAlways || (prepend == Prepend::kFirst && first);
      if (wanted && !text.empty() && !text.starts_with(' ') && !text.starts_with(replacement))
        writer.emit(replacement, word.begin, word.begin);
      for (size_t at = 0; at < text.size(); ++at) {
        const size_t place = word.begin + at;
        writer.emit(text[at] == ' ' ? std::string_view(replacement) : text.substr(at, 1), place, place + 1);
      }
      first = false;
    });
    if (at_marks) at_marks(words);
  };
}

PreTokenizer byte_level(bool add_prefix_space, std::shared_ptr<const Matcher> pattern) {
  return [add_prefix_space, divide_by = pattern ? split(pattern, Split::kIsolated, false) : PreTokenizer()](Words& words) {
    if (add_prefix_space) {
      rewrite_words(words, [&](Range word, Buffer::Writer& writer) {
        const std::string_view text = text_of(words, word);
        if (!text.starts_with(' ')) writer.emit(" ", word.begin, word.begin);
        writer.emit(text, word.begin, word.end);
      });
    }
    if (divide_by) divide_by(words);
    rewrite_words(words, [&](Range word, Buffer::Writer& writer) {
      std::string character;
      for (uint32_t at = word.begin; at < word.end; ++at) {
        character.clear();
        append_utf8(character, byte_character(static_cast<uint8_t>(words.buffer.text()[at])));
        writer.emit(character, at, at + 1);
      }
    });
  };
}

}  // namespace galley::text
