#pragma once
// Answers of a model with start and end logits: the best spans of a context over its windows, and how they compare with the right answers
// by SQuAD's rules (Rajpurkar et al. 2016, 2018).

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace galley {

/// What SQuAD compares: lower case (of each character alone), without ASCII punctuation and the words a, an and the, one space between
/// words.
std::string normalized_answer(std::string_view answer);
/// Whether a prediction equals one of the answers after normalization. Without answers, the right prediction is empty.
bool exact_match(std::string_view prediction, std::span<const std::string> answers);
/// The largest F1 of the words of a prediction and those of one of the answers, 0 .. 1.
double answer_f1(std::string_view prediction, std::span<const std::string> answers);

/// A span of a context.
struct AnswerSpan {
  uint32_t begin = 0, end = 0;  ///< Bytes of the context; equal: no answer.
  double score = 0;             ///< The sum of both logits.
  double probability = 0;       ///< Softmax of the scores of the best spans.
  friend bool operator==(const AnswerSpan&, const AnswerSpan&) = default;
};

/// The best spans of one context over all its windows.
class BestSpans {
 public:
  static constexpr size_t kKept = 20;  ///< Spans that count in probabilities, as in transformers' example.

  /// `longest`: tokens of an answer. `no_answer`: that there is none is a possible result; its score is the least over the windows of the
  /// sum of the logits of token 0.
  BestSpans(int64_t longest, bool no_answer) : longest_(longest), no_answer_(no_answer) {}
  /// Adds a window. start, end: logits of all its tokens. The context's tokens begin at `first`; `bytes`: the place of each in the context.
  void add(const float* start, const float* end, int64_t first, std::span<const std::pair<uint32_t, uint32_t>> bytes);
  /// The best spans, best first; among equal scores the earlier one.
  std::vector<AnswerSpan> result() const;

 private:
  int64_t longest_;
  bool no_answer_;
  bool any_ = false;
  double none_ = 0;
  std::vector<AnswerSpan> spans_;  // at most kKept, best first
};

}  // namespace galley
