#pragma once
// Questions whose answers are parts of a context. Samples are windows over contexts; metrics and predictions are about questions.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "libcore/data/source.h"

namespace galley {

/// A question with its context and the answers that are right; without any, the context has no answer.
struct Question {
  std::string question;
  std::shared_ptr<const std::string> context;
  std::vector<std::string> answers;
  size_t begin = 0, end = 0;  ///< Bytes of the first answer in the context.
  std::string name;           ///< For messages: file and line, or file and place.
};

/// The part of a context that a sample has.
struct AnswerWindow {
  int64_t question = 0;                              ///< Its number.
  int64_t first = 0;                                 ///< The position of the first token of the context among the sample's tokens.
  std::vector<std::pair<uint32_t, uint32_t>> bytes;  ///< Of each token of the context: its place in the context.
};

/// A source of such samples.
class AnswerSource : public Source {
 public:
  virtual const Question& question(int64_t number) const = 0;
  virtual AnswerWindow window(int64_t index) const = 0;
};

}  // namespace galley
