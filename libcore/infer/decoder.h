#pragma once
// Decoder: the next tokens of sequences by a model with a key-value cache, which reads only the tokens that are new since the last call.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "libcore/infer/session.h"
#include "libcore/passes/quantize.h"
#include "libcore/runtime/engine.h"

namespace galley {

class PackedWeights;

/// Memory of a decoder in bytes.
struct DecoderMemory {
  int64_t weights = 0;
  int64_t cache = 0;      ///< Keys and values of all sequences.
  int64_t positions = 0;  ///< Tokens of a sequence for which the cache has room; layers with a window keep fewer.
  int64_t work = 0;       ///< Activations, inputs and packed weights.
};

/// Runs programs of 1, 16, 32 ... 512 further tokens of each sequence, which are compiled when they are first needed: one token in
/// decoding, more for prompts, long prompts in several runs. The cache has room for the longest row so far; where one needs more, it
/// becomes larger and all rows are read again. An encoder-decoder model reads the source of each row by a program of its encoder, once.
class Decoder {
 public:
  /// Compiles the program of one token for one sequence and loads the recipe's weights. All must outlive the decoder.
  Decoder(const Session& session, Engine& engine, std::shared_ptr<const QuantizationPlan> plan);
  ~Decoder();

  int64_t vocabulary() const { return vocabulary_; }
  /// Makes room for rows of this many tokens, so that none is read again when it grows to them. At most the context.
  void reserve(int64_t tokens);
  /// The memory for sequences of up to `tokens` tokens, whose prompts have up to `prompt`.
  DecoderMemory memory(int64_t rows, int64_t prompt, int64_t tokens);
  /// Logits [rows, vocabulary] of the token after each row, f32. Rows hold 1 to `context` tokens. A row continues the sequence of the last
  /// call with which it shares most of its beginning, wherever that was; the rest of it is read. Another number of rows discards the cache.
  /// `sources`: of an encoder-decoder model, the source of each row, 1 to `context` tokens; else none.
  Tensor next_logits(const std::vector<std::vector<int64_t>>& rows, const std::vector<std::vector<int64_t>>& sources = {});
  /// How often the encoder of an encoder-decoder model has run: once for new sources.
  int64_t encoder_runs() const { return encoder_runs_; }
  /// With weights.packed set to write or auto, writes the file of packed weights (packed_weights.h) again if it is out of date or
  /// incomplete; write also creates a missing one.
  void keep_packed_weights();
  /// The program that reads this many further tokens of each row of the last call, or a part of them if they are many.
  const Program& program(int64_t tokens);

 private:
  /// A row during a call: the place of its sequence, and how many of its tokens the cache holds.
  struct Place {
    size_t slot = 0;
    int64_t done = 0;
  };
  Execution& execution(int64_t rows, int64_t tokens);
  Execution& encoder(int64_t rows);
  /// The program of these inputs.
  std::unique_ptr<Execution> compile(const BatchTypes& types, const std::string& purpose);
  /// Makes room for the sources.
  void reserve_memory(const std::vector<std::vector<int64_t>>& sources);
  /// Reads the sources of rows that are in slots with other ones.
  void encode(const std::vector<std::vector<int64_t>>& sources, const std::vector<Place>& places);
  void feed_sources(Execution& run) const;
  /// Discards what the cache holds.
  void clear(int64_t rows);
  /// Whether a row is so long that the model's rotary frequencies are other ones (ModelInfo::cache_switch).
  bool is_long(const std::vector<int64_t>& row) const;
  /// How many tokens of a row a slot of the cache holds.
  int64_t shared(const std::vector<int64_t>& row, const std::vector<int64_t>& slot) const;
  std::vector<Place> place(const std::vector<std::vector<int64_t>>& rows, const std::vector<std::vector<int64_t>>& sources);
  /// Reads up to `tokens` tokens of each row that has some left; puts the logits of rows that end into `logits`.
  void advance(const std::vector<std::vector<int64_t>>& rows, int64_t tokens, std::vector<Place>& places, Tensor& logits);

  const Session& session_;
  Engine& engine_;
  std::shared_ptr<const QuantizationPlan> plan_;
  int64_t context_ = 0, capacity_ = 0, vocabulary_ = 0;  // capacity_: positions of the cache
  int64_t memory_ = 0;                                   // positions of an encoder's result; 0: the model has no encoder
  int64_t encoder_runs_ = 0;
  int64_t ring_ = 0;                                          // rows of the smallest cache: that of a layer with a window
  std::string input_, output_;                                // names in the graph
  std::shared_ptr<Carried> carried_;                          // of the present number of rows
  std::vector<std::vector<int64_t>> slots_;                   // the tokens that each row of the cache holds
  std::vector<std::vector<int64_t>> slot_sources_;            // the source of each
  std::map<int64_t, std::unique_ptr<Execution>> executions_;  // by tokens, for the present number of rows; 0: the encoder
  std::unique_ptr<PackedWeights> packed_;
};

}  // namespace galley
