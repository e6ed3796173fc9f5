#include "libcore/tasks/answers.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "libcore/text/unicode.h"

namespace galley {
namespace {

bool is_ascii_punctuation(uint32_t c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

/// Letters, digits and _: what a word consists of in Python's regular expressions. Punctuation is gone, so _ does not occur.
bool in_word(uint32_t c) { return (text::ClassTable::get()[c] & (text::kLetter | text::kNumber)) != 0; }
bool is_space(uint32_t c) {
  // str.split() also divides at the separators U+001C .. U+001F.
  return (text::ClassTable::get()[c] & text::kSpace) != 0 || (c >= 0x1C && c <= 0x1F);
}

std::vector<std::string> words_of(std::string_view answer) {
  const std::string normalized = normalized_answer(answer);
  std::vector<std::string> words;
  for (size_t begin = 0; begin < normalized.size();) {
    const size_t end = std::min(normalized.find(' ', begin), normalized.size());
    words.push_back(normalized.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

double f1_of(const std::vector<std::string>& prediction, const std::vector<std::string>& answer) {
  if (prediction.empty() || answer.empty()) return prediction.empty() && answer.empty() ? 1 : 0;
  std::map<std::string_view, int64_t> counts;
  for (const std::string& word : answer) ++counts[word];
  int64_t common = 0;
  for (const std::string& word : prediction) common += counts[word]-- > 0;
  if (common == 0) return 0;
  const double shared = static_cast<double>(common);
  const double precision = shared / static_cast<double>(prediction.size()), recall = shared / static_cast<double>(answer.size());
  return 2 * precision * recall / (precision + recall);
}

bool better(const AnswerSpan& a, const AnswerSpan& b) {
  if (a.score != b.score) return a.score > b.score;
  return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
}

}  // namespace

std::string normalized_answer(std::string_view answer) {
  const std::string valid = text::replace_invalid_utf8(answer);
  std::string lower, plain;
  for (const char *at = valid.data(), *end = at + valid.size(); at < end;) text::append_lowercase(lower, text::next_char(at));
  for (const char *at = lower.data(), *end = at + lower.size(); at < end;) {
    const uint32_t c = text::next_char(at);
    if (!is_ascii_punctuation(c)) text::append_utf8(plain, c);
  }
  // Words between other characters; articles become a space.
  std::string result;
  const auto space = [&] {
    if (!result.empty() && result.back() != ' ') result += ' ';
  };
  for (const char *at = plain.data(), *end = at + plain.size(); at < end;) {
    const char* const begin = at;
    const uint32_t c = text::next_char(at);
    if (!in_word(c)) {
      is_space(c) ? space() : static_cast<void>(result.append(begin, at));
      continue;
    }
    const char* after = at;
    while (at < end && in_word(text::next_char(after))) at = after;
    const std::string_view word(begin, static_cast<size_t>(at - begin));
    word == "a" || word == "an" || word == "the" ? space() : static_cast<void>(result.append(word));
  }
  if (!result.empty() && result.back() == ' ') result.pop_back();
  return result;
}

bool exact_match(std::string_view prediction, std::span<const std::string> answers) {
  const std::string normalized = normalized_answer(prediction);
  if (answers.empty()) return normalized.empty();
  return std::any_of(answers.begin(), answers.end(), [&](const std::string& answer) { return normalized_answer(answer) == normalized; });
}

double answer_f1(std::string_view prediction, std::span<const std::string> answers) {
  const std::vector<std::string> words = words_of(prediction);
  if (answers.empty()) return words.empty() ? 1 : 0;
  double best = 0;
  for (const std::string& answer : answers) best = std::max(best, f1_of(words, words_of(answer)));
  return best;
}

void BestSpans::add(const float* start, const float* end, int64_t first, std::span<const std::pair<uint32_t, uint32_t>> bytes) {
  const double none = static_cast<double>(start[0]) + static_cast<double>(end[0]);
  none_ = any_ ? std::min(none_, none) : none;
  any_ = true;
  std::vector<AnswerSpan> spans = spans_;
  const int64_t count = std::ssize(bytes);
  for (int64_t a = 0; a < count; ++a) {
    for (int64_t b = a; b < std::min(count, a + longest_); ++b) {
      AnswerSpan& span = spans.emplace_back();
      span.begin = bytes[static_cast<size_t>(a)].first;
      span.end = bytes[static_cast<size_t>(b)].second;
      span.score = static_cast<double>(start[first + a]) + static_cast<double>(end[first + b]);
    }
  }
  // Twice as many as are kept: windows share tokens, and so a span may come twice.
  const auto considered = spans.begin() + static_cast<std::ptrdiff_t>(std::min(spans.size(), 2 * kKept));
  std::partial_sort(spans.begin(), considered, spans.end(), better);
  spans.erase(considered, spans.end());
  spans_.clear();
  for (const AnswerSpan& span : spans) {
    const bool known =
        std::any_of(spans_.begin(), spans_.end(), [&](const AnswerSpan& s) { return s.begin == span.begin && s.end == span.end; });
    if (!known && spans_.size() < kKept) spans_.push_back(span);
  }
}

std::vector<AnswerSpan> BestSpans::result() const {
  std::vector<AnswerSpan> spans = spans_;
  if (no_answer_) {
    spans.push_back({.begin = 0, .end = 0, .score = none_});
    std::stable_sort(spans.begin(), spans.end(), [](const AnswerSpan& a, const AnswerSpan& b) { return a.score > b.score; });
  }
  double sum = 0;
  for (AnswerSpan& span : spans) sum += span.probability = std::exp(span.score - spans.front().score);
  for (AnswerSpan& span : spans) span.probability /= sum;
  return spans;
}

}  // namespace galley
