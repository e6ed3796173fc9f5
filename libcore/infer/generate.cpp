#include "libcore/infer/generate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "libcore/data/tokenizer.h"
#include "libcore/infer/inference.h"
#include "libcore/infer/text_stream.h"

namespace galley {
namespace {

constexpr int64_t kShortest = 16;  // tokens of the shortest program

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// The length of the program for sequences of `tokens`: a power of two, at most the context.
int64_t program_length(int64_t tokens, int64_t context) {
  int64_t length = kShortest;
  while (length < tokens) length *= 2;
  return std::min(length, context);
}

void check_prompts(const LanguageModel& model, const std::vector<std::vector<int64_t>>& prompts) {
  for (const std::vector<int64_t>& prompt : prompts) {
    if (prompt.empty()) throw Error(ErrorCode::kUsage, "the prompt is empty").suggest("write a text of at least one token");
    if (static_cast<int64_t>(prompt.size()) > model.context())
      throw Error(ErrorCode::kUsage, cat("the prompt has ", prompt.size(), " tokens, but the model reads at most ", model.context()))
          .suggest("shorten the prompt");
  }
}

std::string text_of(const LanguageModel& model, int64_t token) { return model.tokenizer().decode(std::span(&token, 1)); }

/// A sequence during generation.
struct Sequence {
  Sequence(std::vector<int64_t> prompt, const std::vector<std::string>& stops)
      : tokens(std::move(prompt)), prompt_tokens(tokens.size()), stream(stops) {}
  std::vector<int64_t> tokens;  // of the prompt and generated
  size_t prompt_tokens;
  TextStream stream;
  Generation result;
  double last_token_s = 0;
  bool done = false;
};

void finish(Sequence& sequence, StopReason reason) {
  sequence.done = true;
  sequence.result.stopped = reason;
  sequence.result.tokens.assign(sequence.tokens.begin() + static_cast<std::ptrdiff_t>(sequence.prompt_tokens), sequence.tokens.end());
  const double decode_s = sequence.last_token_s - sequence.result.prefill_ms / 1e3;
  const size_t more = sequence.result.tokens.size();
  if (more > 1 && decode_s > 0) sequence.result.tokens_per_s = static_cast<double>(more - 1) / decode_s;
}

/// log softmax of logits.
std::vector<double> log_probabilities(std::span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - top);
  if (!std::isfinite(sum)) fail(ErrorCode::kNumeric, "beam search: a logit is not finite");
  std::vector<double> result(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) result[i] = logits[i] - top - std::log(sum);
  return result;
}

struct Beam {
  std::vector<int64_t> tokens;
  double log_probability = 0;
  bool done = false;
  double score(size_t prompt_tokens) const {
    return log_probability / static_cast<double>(std::max<size_t>(1, tokens.size() - prompt_tokens));
  }
};

/// Whether the text of the generated tokens contains a stop string.
bool holds_stop(const LanguageModel& model, const Beam& beam, size_t prompt_tokens, const std::vector<std::string>& stops) {
  if (stops.empty()) return false;
  TextStream stream(stops);
  for (size_t i = prompt_tokens; i < beam.tokens.size(); ++i) stream.push(text_of(model, beam.tokens[i]));
  return stream.stopped();
}

/// One step of beam search: the best continuations of all beams, and the finished ones.
std::vector<Beam> extend(LanguageModel& model, const std::vector<Beam>& beams, size_t prompt_tokens, const GenerateOptions& options) {
  std::vector<std::vector<int64_t>> rows(static_cast<size_t>(options.beams), beams.front().tokens);
  for (size_t i = 0; i < beams.size(); ++i) rows[i] = beams[i].tokens;
  const Tensor logits = model.next_logits(rows);
  const auto vocabulary = static_cast<size_t>(model.vocabulary());
  std::vector<Beam> next;
  for (size_t i = 0; i < beams.size(); ++i) {
    if (beams[i].done) {
      next.push_back(beams[i]);
      continue;
    }
    const std::vector<double> scores = log_probabilities({logits.data_as<float>() + i * vocabulary, vocabulary});
    std::vector<int64_t> order(vocabulary);
    for (size_t token = 0; token < vocabulary; ++token) order[token] = static_cast<int64_t>(token);
    const auto count = std::min<std::ptrdiff_t>(options.beams, static_cast<std::ptrdiff_t>(vocabulary));
    std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int64_t a, int64_t b) {
      const double x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
      return x != y ? x > y : a < b;
    });
    for (std::ptrdiff_t k = 0; k < count; ++k) {
      Beam beam = beams[i];
      const int64_t token = order[static_cast<size_t>(k)];
      beam.tokens.push_back(token);
      beam.log_probability += scores[static_cast<size_t>(token)];
      next.push_back(std::move(beam));
    }
  }
  std::stable_sort(next.begin(), next.end(), [&](const Beam& a, const Beam& b) { return a.score(prompt_tokens) > b.score(prompt_tokens); });
  next.resize(std::min(next.size(), static_cast<size_t>(options.beams)));
  for (Beam& beam : next) beam.done = beam.done || holds_stop(model, beam, prompt_tokens, options.stop);
  return next;
}

Generation beam_search(LanguageModel& model, const std::vector<int64_t>& prompt, const GenerateOptions& options,
                       const GenerateCallbacks& callbacks, size_t index) {
  const auto start = Clock::now();
  std::vector<Beam> beams{{prompt, 0, false}};
  Generation result;
  for (int64_t step = 0; step < options.max_new_tokens; ++step) {
    beams = extend(model, beams, prompt.size(), options);
    if (step == 0) result.prefill_ms = seconds_since(start) * 1e3;
    if (callbacks.stop && callbacks.stop()) {
      result.stopped = StopReason::kInterrupted;
      break;
    }
    if (std::all_of(beams.begin(), beams.end(), [](const Beam& beam) { return beam.done; })) break;
  }
  const Beam& best = beams.front();
  TextStream stream(options.stop);
  for (size_t i = prompt.size(); i < best.tokens.size(); ++i) result.text += stream.push(text_of(model, best.tokens[i]));
  result.text += stream.finish();
  if (best.done) result.stopped = StopReason::kStop;
  result.tokens.assign(best.tokens.begin() + static_cast<std::ptrdiff_t>(prompt.size()), best.tokens.end());
  const double decode_s = seconds_since(start) - result.prefill_ms / 1e3;
  if (result.tokens.size() > 1 && decode_s > 0) result.tokens_per_s = static_cast<double>(result.tokens.size() - 1) / decode_s;
  if (callbacks.text) callbacks.text(index, result.text);
  return result;
}

}  // namespace

LanguageModel::LanguageModel(Session& session, bool cache) : session_(session) {
  if (session.tokenizer() == nullptr)
    throw Error(ErrorCode::kRecipe, "the recipe has no tokenizer, so its model cannot read text").key("data.tokenizer");
  if (session.info().output != ModelOutput::kTokens)
    throw Error(ErrorCode::kRecipe, "the model is not a language model: it has no logits of the next token").key("model");
  context_ = session.info().input_shape.front();
  plan_ = loaded_plan(session.recipe());
  engine_ = std::make_unique<Engine>(session.backend());
  if (cache && session.info().cache) {
    decoder_ = std::make_unique<Decoder>(session, *engine_, plan_);
    vocabulary_ = decoder_->vocabulary();
  } else {
    execution(1, program_length(1, context_));
  }
}

LanguageModel::~LanguageModel() = default;

const Tokenizer& LanguageModel::tokenizer() const { return *session_.tokenizer(); }

Execution& LanguageModel::execution(int64_t rows, int64_t length) {
  std::unique_ptr<Execution>& slot = executions_[{rows, length}];
  if (slot != nullptr) return *slot;
  const bool first = !engine_->has_formats();
  BatchTypes types = session_.usual_types(rows, false);
  types.input().shape = {rows, length};
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

Tensor LanguageModel::next_logits(const std::vector<std::vector<int64_t>>& rows) {
  if (decoder_ != nullptr) {
    std::vector<std::vector<int64_t>> read = rows;
    for (std::vector<int64_t>& row : read) row.erase(row.begin(), row.end() - std::min(context_, std::ssize(row)));
    return decoder_->next_logits(read);
  }
  int64_t longest = 0;
  for (const std::vector<int64_t>& row : rows) longest = std::max(longest, std::min(context_, static_cast<int64_t>(row.size())));
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t length = program_length(longest, context_);
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
  options.seed = static_cast<uint64_t>(recipe.seed);
  if (options.beams > 1 && (!options.sampling.greedy() || options.sampling.repetition_penalty != 1))
    throw Error(ErrorCode::kRecipe, "beam search does not sample")
        .key("predict.generate.beams")
        .suggest("beams=1, or leave out temperature, top_k, top_p, min_p and repetition_penalty");
  for (const std::string& stop : options.stop)
    if (stop.empty()) throw Error(ErrorCode::kRecipe, "a stop string is empty").key("predict.generate.stop");
  return options;
}

std::vector<Generation> generate(LanguageModel& model, const std::vector<std::vector<int64_t>>& prompts, const GenerateOptions& options,
                                 const GenerateCallbacks& callbacks, int64_t first) {
  check_prompts(model, prompts);
  std::vector<Generation> results;
  if (options.beams > 1) {
    for (size_t i = 0; i < prompts.size(); ++i) results.push_back(beam_search(model, prompts[i], options, callbacks, i));
    return results;
  }
  const auto start = Clock::now();
  std::vector<Sequence> sequences;
  for (const std::vector<int64_t>& prompt : prompts) sequences.emplace_back(prompt, options.stop);
  const auto emit_text = [&](size_t i, const std::string& text) {
    sequences[i].result.text += text;
    if (callbacks.text && !text.empty()) callbacks.text(i, text);
  };
  for (int64_t step = 0; step < options.max_new_tokens; ++step) {
    std::vector<size_t> active;
    std::vector<std::vector<int64_t>> rows;
    for (size_t i = 0; i < sequences.size(); ++i) {
      if (sequences[i].done) continue;
      active.push_back(i);
      rows.push_back(sequences[i].tokens);
    }
    if (active.empty()) break;
    const Tensor logits = model.next_logits(rows);
    const bool interrupted = callbacks.stop && callbacks.stop();
    for (size_t n = 0; n < active.size(); ++n) {
      const size_t i = active[n];
      Sequence& sequence = sequences[i];
      const auto vocabulary = static_cast<size_t>(model.vocabulary());
      const TokenKey key{options.seed, first + static_cast<int64_t>(i), static_cast<int64_t>(sequence.tokens.size())};
      const int64_t token = sample_token({logits.data_as<float>() + n * vocabulary, vocabulary}, sequence.tokens, options.sampling, key);
      sequence.tokens.push_back(token);
      sequence.last_token_s = seconds_since(start);
      if (step == 0) sequence.result.prefill_ms = sequence.last_token_s * 1e3;
      emit_text(i, sequence.stream.push(text_of(model, token)));
      if (sequence.stream.stopped()) {
        finish(sequence, StopReason::kStop);
      } else if (interrupted) {
        finish(sequence, StopReason::kInterrupted);
      }
    }
  }
  for (size_t i = 0; i < sequences.size(); ++i) {
    emit_text(i, sequences[i].stream.finish());
    if (!sequences[i].done) finish(sequences[i], StopReason::kLength);
    results.push_back(std::move(sequences[i].result));
  }
  return results;
}

}  // namespace galley
