#include "libcore/infer/generate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "libcore/data/sources.h"
#include "libcore/data/special_tokens.h"
#include "libcore/infer/inference.h"
#include "libcore/infer/program_length.h"
#include "libcore/infer/text_stream.h"
#include "libcore/nn/zoo_transformer.h"
#include "libcore/text/tokenizer.h"

namespace galley {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// A prompt and its continuation so far.
struct Sequence {
  Sequence(const text::Tokenizer& tokenizer, std::vector<int64_t> prompt, const GenerateOptions& options)
      : tokens(std::move(prompt)), prompt_tokens(tokens.size()), stream(tokenizer, options.stop), ends(&options.end_tokens) {
    stream.follow(tokens);
  }

  size_t new_tokens() const { return tokens.size() - prompt_tokens; }
  /// What the model reads of it. A sequence that has ended remains a row, of one token, since each number of rows needs its own program.
  std::vector<int64_t> row() const { return ended ? std::vector<int64_t>{tokens.front()} : tokens; }
  /// Appends a token that was chosen at the time `now_s`. Returns the text that became final.
  std::string append(int64_t token, double now_s) {
    tokens.push_back(token);
    if (new_tokens() == 1) first_s = now_s;
    last_s = now_s;
    if (std::find(ends->begin(), ends->end(), token) != ends->end()) {
      ended = StopReason::kEnd;
      return "";
    }
    std::string ready = stream.push(token);
    text += ready;
    if (stream.stopped()) ended = StopReason::kStop;
    return ready;
  }
  /// Ends the sequence, if nothing else did, because it has its length. Returns the text held back until now.
  std::string finish() {
    if (!ended) ended = StopReason::kLength;
    std::string rest = stream.finish();
    text += rest;
    return rest;
  }
  Generation result() const {
    Generation result;
    result.text = text;
    result.tokens.assign(tokens.begin() + static_cast<std::ptrdiff_t>(prompt_tokens), tokens.end());
    result.stopped = *ended;
    result.prefill_ms = first_s * 1e3;
    if (last_s > first_s) result.tokens_per_s = static_cast<double>(new_tokens() - 1) / (last_s - first_s);
    return result;
  }

  std::vector<int64_t> tokens;  // of the prompt and new ones
  size_t prompt_tokens;
  TextStream stream;
  const std::vector<int64_t>* ends;
  std::string text;  // without the prompt
  std::optional<StopReason> ended;
  double first_s = 0, last_s = 0;  // times of the first and the last new token, from the start of the generation
};

bool all_ended(const auto& sequences) {
  return std::all_of(sequences.begin(), sequences.end(), [](const Sequence& sequence) { return sequence.ended.has_value(); });
}

/// The logits of row n of next_logits.
std::span<const float> logits_of(const Tensor& logits, size_t n) {
  const auto vocabulary = static_cast<size_t>(logits.shape()[1]);
  return {logits.data_as<float>() + n * vocabulary, vocabulary};
}

/// log softmax of logits, of which none is NaN or infinity.
std::vector<double> log_probabilities(std::span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - top);
  std::vector<double> result(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) result[i] = logits[i] - top - std::log(sum);
  return result;
}

/// The `count` tokens of the largest scores, best first; all if there are fewer. Of equal scores the smaller token is better.
std::vector<int64_t> best_tokens(std::span<const double> scores, int64_t count) {
  std::vector<int64_t> tokens(scores.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto end = tokens.begin() + std::min<std::ptrdiff_t>(count, std::ssize(tokens));
  std::partial_sort(tokens.begin(), end, tokens.end(), [&](int64_t a, int64_t b) {
    const double x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  tokens.erase(end, tokens.end());
  return tokens;
}

/// What a sequence begins with: the prompt, or where the prompt is a source, the begin token.
std::vector<int64_t> first_tokens(const LanguageModel& model, const std::vector<int64_t>& prompt) {
  return model.reads_source() ? std::vector<int64_t>{model.begin()} : prompt;
}

struct Beam : Sequence {
  using Sequence::Sequence;
  double log_probability = 0;  // of the new tokens
};

/// A beam that has ended, or a token that would continue a beam.
struct BeamStep {
  size_t beam = 0;
  std::optional<int64_t> token;
  double log_probability = 0;
  double score = 0;  // mean log-probability of the new tokens
};

/// One step of beam search: the best among the beams that have ended and the continuations of all others. `prompt`: its index.
std::vector<Beam> extend(LanguageModel& model, const std::vector<Beam>& beams, const std::vector<std::vector<int64_t>>& sources,
                         const GenerateOptions& options, Clock::time_point start, int64_t prompt) {
  std::vector<std::vector<int64_t>> rows(static_cast<size_t>(options.beams), {beams.front().tokens.front()});
  for (size_t i = 0; i < beams.size(); ++i) rows[i] = beams[i].row();
  const Tensor logits = model.next_logits(rows, sources);
  std::vector<BeamStep> candidates;
  for (size_t i = 0; i < beams.size(); ++i) {
    const auto count = static_cast<double>(beams[i].new_tokens());
    const double sum = beams[i].log_probability;
    if (beams[i].ended) {
      candidates.push_back({.beam = i, .token = std::nullopt, .log_probability = sum, .score = sum / count});
      continue;
    }
    const std::span<const float> row = logits_of(logits, i);
    check_logits(row, {options.seed, prompt, static_cast<int64_t>(beams[i].tokens.size())});
    const std::vector<double> scores = log_probabilities(row);
    for (const int64_t token : best_tokens(scores, options.beams)) {
      const double more = sum + scores[static_cast<size_t>(token)];
      candidates.push_back({.beam = i, .token = token, .log_probability = more, .score = more / (count + 1)});
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const BeamStep& a, const BeamStep& b) { return a.score > b.score; });
  candidates.resize(std::min(candidates.size(), static_cast<size_t>(options.beams)));
  std::vector<Beam> next;
  for (const BeamStep& candidate : candidates) {
    Beam& beam = next.emplace_back(beams[candidate.beam]);
    beam.log_probability = candidate.log_probability;
    if (candidate.token) beam.append(*candidate.token, seconds_since(start));
  }
  return next;
}

Generation beam_search(LanguageModel& model, const std::vector<int64_t>& prompt, const GenerateOptions& options,
                       const GenerateCallbacks& callbacks, size_t index, int64_t first) {
  const auto start = Clock::now();
  std::vector<Beam> beams{Beam(model.tokenizer(), first_tokens(model, prompt), options)};
  const std::vector<std::vector<int64_t>> sources(model.reads_source() ? static_cast<size_t>(options.beams) : 0, prompt);
  for (int64_t step = 0; step < options.max_new_tokens && !all_ended(beams); ++step) {
    beams = extend(model, beams, sources, options, start, first + static_cast<int64_t>(index));
    if (callbacks.stop && callbacks.stop()) {
      for (Beam& beam : beams)
        if (!beam.ended) beam.ended = StopReason::kInterrupted;
    }
  }
  Beam& best = beams.front();
  best.finish();
  if (callbacks.text) callbacks.text(index, best.text);
  return best.result();
}

/// Draws tokens for all prompts until each sequence has ended.
std::vector<Generation> sample(LanguageModel& model, const std::vector<std::vector<int64_t>>& prompts, const GenerateOptions& options,
                               const GenerateCallbacks& callbacks, int64_t first) {
  const auto start = Clock::now();
  std::vector<Sequence> sequences;
  for (const std::vector<int64_t>& prompt : prompts) sequences.emplace_back(model.tokenizer(), first_tokens(model, prompt), options);
  const std::vector<std::vector<int64_t>> sources = model.reads_source() ? prompts : std::vector<std::vector<int64_t>>();
  const auto emit_text = [&](size_t i, const std::string& text) {
    if (callbacks.text && !text.empty()) callbacks.text(i, text);
  };
  for (int64_t step = 0; step < options.max_new_tokens && !all_ended(sequences); ++step) {
    std::vector<std::vector<int64_t>> rows;
    for (const Sequence& sequence : sequences) rows.push_back(sequence.row());
    const Tensor logits = model.next_logits(rows, sources);
    const bool interrupted = callbacks.stop && callbacks.stop();
    for (size_t i = 0; i < sequences.size(); ++i) {
      Sequence& sequence = sequences[i];
      if (sequence.ended) continue;
      const TokenKey key{options.seed, first + static_cast<int64_t>(i), static_cast<int64_t>(sequence.tokens.size())};
      const int64_t token = sample_token(logits_of(logits, i), sequence.tokens, options.sampling, key);
      emit_text(i, sequence.append(token, seconds_since(start)));
      if (interrupted && !sequence.ended) sequence.ended = StopReason::kInterrupted;
    }
  }
  std::vector<Generation> results;
  for (size_t i = 0; i < sequences.size(); ++i) {
    emit_text(i, sequences[i].finish());
    results.push_back(sequences[i].result());
  }
  return results;
}

}  // namespace

void check_language_model(const Session& session) {
  session.need_tokenizer();
  if (session.info().output != ModelOutput::kTokens)
    throw Error(ErrorCode::kRecipe, "the model is not a language model: it has no logits of the next token")
        .key("model")
        .suggest(session.info().max_length > 0 ? "--text TEXT predicts a whole text" : "a language model: gpt, llama ...");
}

LanguageModel::LanguageModel(Session& session, bool cache) : session_(session) {
  check_language_model(session);
  if (const CacheStorage stored = session.recipe().predict.generate.cache; !session.info().cache && stored != CacheStorage::kF32)
    throw Error(ErrorCode::kRecipe, cat("predict.generate.cache is ", kCacheStorageNames[static_cast<size_t>(stored)], ", but the model ",
                                        session.info().family, " keeps no keys and values of past tokens"))
        .key("predict.generate.cache")
        .suggest("leave the key out");
  context_ = session.info().input_shape.front();
  reads_source_ = galley::reads_source(session.info());
  if (reads_source()) find_target_tokens();
  plan_ = loaded_plan(session.recipe());
  own_engine_ = std::make_unique<Engine>(session.backend());
  engine_ = own_engine_.get();
  if (cache && session.info().cache) {
    decoder_ = std::make_unique<Decoder>(session, *engine_, plan_);
    vocabulary_ = decoder_->vocabulary();
  } else {
    execution(1, program_length(1, context_));
  }
  find_missing_tokens();
}

LanguageModel::LanguageModel(Session& session, Engine& engine) : session_(session), engine_(&engine) {
  check_language_model(session);
  context_ = session.info().input_shape.front();
  execution(1, program_length(1, context_));
  find_missing_tokens();
}

void LanguageModel::find_missing_tokens() {
  for (int64_t id = 0; id < vocabulary_; ++id) {
    if (!tokenizer().has(id)) without_token_.push_back(id);
  }
}

LanguageModel::~LanguageModel() = default;

const text::Tokenizer& LanguageModel::tokenizer() const { return *session_.tokenizer(); }

Execution& LanguageModel::execution(int64_t rows, int64_t length) {
  std::unique_ptr<Execution>& slot = executions_[{rows, length}];
  if (slot != nullptr) return *slot;
  const bool first = !engine_->has_formats();
  BatchTypes types = session_.usual_types(rows, false);
  types.input().shape = {rows, length};
  if (reads_source()) {
    types.inputs.emplace_back(kSourceLength);
    types.fields[kSourceLength] = {.dtype = DType::kI64, .shape = {rows}};
  }
  InferenceModel model = inference_model(session_, types, plan_);
  input_ = types.inputs.front();
  const auto& [name, id] = model.graph.outputs().front();
  output_ = name;
  vocabulary_ = model.graph.type(id).shape[-1];
  const auto program = engine_->program(
      {.mode = "generate", .variant = "", .fields = types.fields}, cat(rows, " sequences of ", length, " tokens"),
      [&] { return std::move(model.graph); }, first ? ParameterFormats::kLead : ParameterFormats::kFollow);
  engine_->declare(*program);
  if (first) session_.initialize(model.parameters, engine_->store());
  slot = engine_->bind(program);
  return *slot;
}

void LanguageModel::find_target_tokens() {
  const auto* source = session_.recipe().data.train.source.as<TextRowOptions>();
  const bool given = source != nullptr && source->columns.target;
  begin_ = begin_token(session_.tokenizer().get(), given ? source->begin : "auto", "data.train.source");
  end_ = end_token(session_.tokenizer().get(), given ? source->end : "auto", "data.train.source");
}

Tensor LanguageModel::next_logits(const std::vector<std::vector<int64_t>>& rows) { return next_logits(rows, {}); }

Tensor LanguageModel::next_logits(const std::vector<std::vector<int64_t>>& rows, const std::vector<std::vector<int64_t>>& sources) {
  Tensor logits;
  if (decoder_ != nullptr) {
    std::vector<std::vector<int64_t>> read = rows;
    for (std::vector<int64_t>& row : read) row.erase(row.begin(), row.end() - std::min(context_, std::ssize(row)));
    logits = decoder_->next_logits(read, sources);
  } else {
    logits = logits_without_cache(rows, sources);
  }
  for (int64_t n = 0; n < std::ssize(rows); ++n) {
    for (const int64_t id : without_token_) logits.data_as<float>()[n * vocabulary_ + id] = -std::numeric_limits<float>::infinity();
  }
  return logits;
}

std::optional<DecoderMemory> LanguageModel::memory(int64_t rows, int64_t prompt, int64_t tokens) {
  if (decoder_ == nullptr) return std::nullopt;
  return decoder_->memory(rows, prompt, tokens);
}

int64_t LanguageModel::encoder_runs() const { return decoder_ == nullptr ? 0 : decoder_->encoder_runs(); }

void LanguageModel::keep_packed_weights() {
  if (decoder_ != nullptr) decoder_->keep_packed_weights();
}

void LanguageModel::reserve(int64_t tokens) {
  if (decoder_ != nullptr) decoder_->reserve(tokens);
}

/// Of rows that are read one after the other, without sources.
Tensor LanguageModel::logits_of_each(const std::vector<std::vector<int64_t>>& rows) {
  Tensor logits(DType::kF32, {std::ssize(rows), vocabulary_});
  for (size_t i = 0; i < rows.size(); ++i)
    std::copy_n(logits_without_cache({rows[i]}, {}).data_as<float>(), vocabulary_,
                logits.data_as<float>() + static_cast<int64_t>(i) * vocabulary_);
  return logits;
}

Tensor LanguageModel::logits_without_cache(const std::vector<std::vector<int64_t>>& rows,
                                           const std::vector<std::vector<int64_t>>& sources) {
  int64_t longest = 0;
  for (const std::vector<int64_t>& row : rows) longest = std::max(longest, std::min(context_, static_cast<int64_t>(row.size())));
  const auto count = static_cast<int64_t>(rows.size());
  int64_t length = program_length(longest, context_);
  if (const int64_t limit = session_.info().cache_switch; limit > 0 && length > limit) {
    // Rotary frequencies are those of the program's length, which is then that of the row.
    if (count > 1) return logits_of_each(rows);
    length = longest;
  }
  Execution& run = execution(count, length);
  Tensor input(DType::kI64, {count, length});
  std::fill_n(input.data_as<int64_t>(), count * length, int64_t{0});
  std::vector<int64_t> last;
  for (int64_t n = 0; n < count; ++n) {
    const std::vector<int64_t>& row = rows[static_cast<size_t>(n)];
    const int64_t used = std::min(context_, static_cast<int64_t>(row.size()));
    std::copy(row.end() - used, row.end(), input.data_as<int64_t>() + n * length);
    last.push_back(used - 1);
  }
  run.feed(input_, input);
  if (reads_source()) {
    Tensor source(DType::kI64, {count, context_}), lengths(DType::kI64, {count});
    std::fill_n(source.data_as<int64_t>(), source.elements(), int64_t{0});
    for (int64_t n = 0; n < count; ++n) {
      const std::vector<int64_t>& read = sources[static_cast<size_t>(n)];
      std::copy(read.begin(), read.end(), source.data_as<int64_t>() + n * context_);
      lengths.data_as<int64_t>()[n] = std::ssize(read);
    }
    run.feed(kSource, source);
    run.feed(kSourceLength, lengths);
  }
  run.run();
  const Tensor all = run.output(output_);
  Tensor logits(DType::kF32, {count, vocabulary_});
  for (int64_t n = 0; n < count; ++n) {
    std::copy_n(all.data_as<float>() + (n * length + last[static_cast<size_t>(n)]) * vocabulary_, vocabulary_,
                logits.data_as<float>() + n * vocabulary_);
  }
  return logits;
}

GenerateOptions generate_options(const Recipe& recipe) {
  const GenerateSection& section = recipe.predict.generate;
  GenerateOptions options;
  options.sampling = {.temperature = section.temperature,
                      .top_k = section.top_k,
                      .top_p = section.top_p,
                      .min_p = section.min_p,
                      .repetition_penalty = section.repetition_penalty};
  options.max_new_tokens = section.max_new_tokens;
  options.beams = section.beams;
  options.stop = section.stop;
  options.end_tokens = section.end_tokens;
  options.seed = static_cast<uint64_t>(recipe.seed);
  const bool penalty = options.sampling.repetition_penalty != 1;
  if (options.beams > 1 && (!options.sampling.greedy() || penalty))
    throw Error(ErrorCode::kRecipe, penalty ? "beam search has no repetition penalty" : "beam search does not sample")
        .key("predict.generate.beams")
        .suggest(cat("set beams=1, or ", options.sampling.greedy() ? "" : "generate.temperature=0",
                     penalty && !options.sampling.greedy() ? " and " : "", penalty ? "generate.repetition_penalty=1" : ""));
  for (const std::string& stop : options.stop)
    if (stop.empty()) throw Error(ErrorCode::kRecipe, "a stop string is empty").key("predict.generate.stop");
  return options;
}

void check_prompts(const LanguageModel& model, const std::vector<std::vector<int64_t>>& prompts) {
  for (const std::vector<int64_t>& prompt : prompts) {
    if (prompt.empty()) throw Error(ErrorCode::kUsage, "the prompt is empty").suggest("write a text of at least one token");
    if (static_cast<int64_t>(prompt.size()) > model.context())
      throw Error(ErrorCode::kUsage, cat("the prompt has ", prompt.size(), " tokens, but the model reads at most ", model.context()))
          .suggest("shorten the prompt");
  }
}

std::vector<Generation> generate(LanguageModel& model, const std::vector<std::vector<int64_t>>& prompts, const GenerateOptions& given,
                                 const GenerateCallbacks& callbacks, int64_t first) {
  check_prompts(model, prompts);
  GenerateOptions options = given;
  size_t longest = model.reads_source() ? 1 : 0;
  if (model.reads_source()) {
    options.end_tokens.push_back(model.end());
    options.max_new_tokens = std::min(options.max_new_tokens, model.context() - 1);  // a target without its beginning is another one
  }
  for (const std::vector<int64_t>& prompt : prompts) longest = std::max(longest, model.reads_source() ? 1 : prompt.size());
  model.reserve(static_cast<int64_t>(longest) + options.max_new_tokens);
  for (const int64_t id : options.end_tokens)
    GALLEY_CHECK(id >= 0 && id < model.vocabulary(), "predict.generate.end_tokens has ", id, ", but the model has ", model.vocabulary(),
                 " tokens");
  if (options.beams <= 1) return sample(model, prompts, options, callbacks, first);
  std::vector<Generation> results;
  for (size_t i = 0; i < prompts.size(); ++i) results.push_back(beam_search(model, prompts[i], options, callbacks, i, first));
  return results;
}

}  // namespace galley
