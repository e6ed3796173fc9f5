#pragma once
// Text generation: a language model continues prompts token by token. Used by galley-predict and by samples during training.

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/infer/decoder.h"
#include "libcore/infer/sampling.h"
#include "libcore/infer/session.h"
#include "libcore/passes/quantize.h"
#include "libcore/runtime/engine.h"

namespace galley {

/// Throws Error (kRecipe) if the recipe has no tokenizer, or its model is not a language model.
void check_language_model(const Session& session);

/// A language model compiled for generation. A model that supports it keeps keys and values in a cache (Decoder). For other models,
/// sequences are padded on the right to one of a few lengths; the program of a length and a number of rows is compiled when it is first
/// needed.
class LanguageModel {
 public:
  /// Compiles the first program and loads the recipe's weights. Throws Error (kRecipe) if the model's result is not logits [N,T,vocabulary]
  /// of tokens, or the recipe has no tokenizer. `cache`: false computes whole sequences even if the model supports a cache.
  explicit LanguageModel(Session& session, bool cache = true);
  /// The same with the parameters that a training holds in its engine, as they are now. Computes whole sequences in the memory of the
  /// training's steps, so that it needs no memory of its own. The engine must outlive the model.
  LanguageModel(Session& session, Engine& engine);
  ~LanguageModel();

  /// The longest sequence, in tokens.
  int64_t context() const { return context_; }
  int64_t vocabulary() const { return vocabulary_; }
  const text::Tokenizer& tokenizer() const;
  const Engine& engine() const { return *engine_; }
  /// Logits [rows, vocabulary] of the token after each row, f32. Rows hold at least one token; of a row longer than the context only its
  /// last tokens are read. Rows do not influence each other. Ids for which the tokenizer has no token are -infinity.
  Tensor next_logits(const std::vector<std::vector<int64_t>>& rows);
  /// The same of an encoder-decoder model: `sources` are what its encoder reads, for each row.
  Tensor next_logits(const std::vector<std::vector<int64_t>>& rows, const std::vector<std::vector<int64_t>>& sources);
  /// Whether it is an encoder-decoder model: prompts are its sources, and sequences begin with the token begin().
  bool reads_source() const { return reads_source_; }
  int64_t begin() const { return begin_; }
  /// The token with which the targets of an encoder-decoder model end.
  int64_t end() const { return end_; }
  /// The memory for `rows` sequences of up to `tokens` tokens, whose prompts have up to `prompt`; nullopt for a model without a cache.
  std::optional<DecoderMemory> memory(int64_t rows, int64_t prompt, int64_t tokens);
  /// Makes room in the cache for rows of this many tokens.
  void reserve(int64_t tokens);
  /// Decoder::encoder_runs.
  int64_t encoder_runs() const;
  /// Writes the second file of the weights (Decoder::keep_packed_weights), after the programs have run.
  void keep_packed_weights();

 private:
  void find_missing_tokens();
  Execution& execution(int64_t rows, int64_t length);
  Tensor logits_of_each(const std::vector<std::vector<int64_t>>& rows);
  Tensor logits_without_cache(const std::vector<std::vector<int64_t>>& rows, const std::vector<std::vector<int64_t>>& sources);
  void find_target_tokens();

  Session& session_;
  int64_t context_ = 0, vocabulary_ = 0;
  std::shared_ptr<const QuantizationPlan> plan_;
  std::string input_, output_;  // names in the graph
  bool reads_source_ = false;
  int64_t begin_ = 0, end_ = 0;         // of its targets
  std::vector<int64_t> without_token_;  // rows of the vocabulary that no token has: its size may be rounded up
  std::unique_ptr<Engine> own_engine_;
  Engine* engine_ = nullptr;                                                      // own_engine_ or that of a training
  std::unique_ptr<Decoder> decoder_;                                              // of a model with a key-value cache; else null
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Execution>> executions_;  // of others, by rows and length
};

/// Options of generate.
struct GenerateOptions {
  SamplingOptions sampling;
  int64_t max_new_tokens = 128;
  /// Sequences that beam search keeps; 1: no beam search. The result is the sequence with the largest mean log-probability.
  int64_t beams = 1;
  std::vector<std::string> stop;    ///< The text ends before one of these.
  std::vector<int64_t> end_tokens;  ///< Each of these ends the text; it is the last token and has no text.
  uint64_t seed = 0;
};
/// The recipe's predict.generate and seed.
GenerateOptions generate_options(const Recipe& recipe);

/// Throws Error (kUsage) if a prompt is empty, or longer than the model's context.
void check_prompts(const LanguageModel& model, const std::vector<std::vector<int64_t>>& prompts);

/// Why a generation ended.
enum class StopReason : uint8_t { kLength, kStop, kEnd, kInterrupted };
inline constexpr std::array<std::string_view, 4> kStopReasonNames{"length", "stop", "end", "interrupted"};

/// The continuation of one prompt.
struct Generation {
  std::string text;             ///< Without the prompt and the stop string.
  std::vector<int64_t> tokens;  ///< The generated tokens.
  StopReason stopped = StopReason::kLength;
  double prefill_ms = 0;    ///< Time of the whole batch until the first new token, including compilation.
  double tokens_per_s = 0;  ///< New tokens of this sequence after the first one; 0 if there are none.
};

/// Callbacks of a running generation.
struct GenerateCallbacks {
  /// Called with text as soon as it is final: (index of the prompt, text). May be null. Beam search delivers all text at the end.
  std::function<void(size_t prompt, std::string_view text)> text;
  /// Called after each token; returns true to end the generation. May be null.
  std::function<bool()> stop;
};

/// Continues each prompt (tokens, at least one), or writes the target of each where the model reads sources. Equal seeds give equal text; a
/// prompt's result does not depend on the others up to the rounding of logits. `first`: index of the first prompt, for the random draws.
/// Throws Error (kUsage) if a prompt is empty or longer than the context, (kNumeric) for logits that are not finite.
std::vector<Generation> generate(LanguageModel& model, const std::vector<std::vector<int64_t>>& prompts, const GenerateOptions& options,
                                 const GenerateCallbacks& callbacks = {}, int64_t first = 0);

}  // namespace galley
