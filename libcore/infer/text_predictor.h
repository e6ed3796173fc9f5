#pragma once
// TextPredictor: runs a model on whole texts and returns its results in order. Texts are divided into batches by their number of tokens.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "libcore/infer/session.h"
#include "libcore/runtime/engine.h"
#include "libcore/text/tokenizer.h"

namespace galley {

/// One sequence that the model reads: a text, a pair of texts, or a window of a long one.
struct TextRow {
  std::vector<int32_t> ids, types;
  bool shortened = false;
};

/// The tokens of a text, and the model's results [1,...] by name. Results with a value per token have as many as the text has tokens.
struct TextResult {
  std::vector<int32_t> tokens;
  bool shortened = false;  ///< The text has more tokens than the model takes; the last ones were left out.
  std::map<std::string, Tensor> outputs;
};

struct QuantizationPlan;

class TextPredictor {
 public:
  /// Compiles the model for its shortest sequences and reads its weights; longer ones are compiled when a text needs them. Throws (kRecipe)
  /// if the recipe has no tokenizer, or its model does not read texts with padding.
  TextPredictor(Session& session, int64_t batch);
  ~TextPredictor();
  TextPredictor(const TextPredictor&) = delete;
  TextPredictor& operator=(const TextPredictor&) = delete;

  /// Names of the model's results.
  const std::vector<std::string>& outputs() const { return outputs_; }
  /// Tokens of the longest sequence.
  int64_t longest() const { return longest_; }
  /// The sequence of a text or, with `pair`, of two texts by the tokenizer's template, shortened to what the model takes. `name`: what the
  /// text is called in messages. Throws (kInput) if a text is not valid or has no tokens, or an id is outside the model's vocabulary.
  TextRow row(const std::string& text, const std::string* pair, const std::string& name) const;
  /// The sequence of these tokens, at most `longest()`. Throws (kInput) if an id is outside the model's vocabulary.
  TextRow row(const std::vector<text::Token>& tokens, const std::string& name) const;
  /// Passes the result of each of `count` sequences to `take`, in their order.
  void run(size_t count, const std::function<TextRow(size_t index)>& row, const std::function<void(size_t index, TextResult result)>& take);

 private:
  Execution& execution(int64_t rows, int64_t length);
  /// The results of at most `batch_` rows, whose tokens fit `length`.
  std::vector<TextResult> run_batch(const std::vector<const TextRow*>& rows, int64_t length);

  Session& session_;
  int64_t batch_, longest_;
  bool takes_types_ = false;
  int64_t result_bytes_ = 0;  // of the longest text
  std::shared_ptr<const QuantizationPlan> plan_;
  std::unique_ptr<Engine> engine_;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Execution>> executions_;
  std::vector<std::string> outputs_;
};

}  // namespace galley
