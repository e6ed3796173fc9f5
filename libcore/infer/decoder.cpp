#include "libcore/infer/decoder.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <set>

#include "libcore/infer/inference.h"
#include "libcore/infer/packed_weights.h"
#include "libcore/infer/program_length.h"
#include "libcore/nn/attention.h"
#include "libcore/nn/zoo_transformer.h"

namespace galley {
namespace {

constexpr int64_t kLongestPrompt = 512;   // tokens of the longest program for prompts
constexpr int64_t kLeastCapacity = 1024;  // positions of the smallest cache, unless the context is shorter

/// The tokens of the program that reads `tokens` of them, or the first of them.
int64_t program_tokens(int64_t tokens, int64_t context) {
  return tokens == 1 ? 1 : program_length(std::min(tokens, kLongestPrompt), context);
}

/// Rows of the smallest cache of a layer.
int64_t smallest_cache(const Graph& graph) {
  int64_t rows = std::numeric_limits<int64_t>::max();
  for (const ValueId id : graph.inputs()) {
    if (graph.value(id).role == ValueRole::kCarried) rows = std::min(rows, graph.type(id).shape[1]);
  }
  return rows;
}

int64_t common(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  const auto end = a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
  return std::mismatch(a.begin(), end, b.begin()).first - a.begin();
}

}  // namespace

Decoder::Decoder(const Session& session, Engine& engine, std::shared_ptr<const QuantizationPlan> plan)
    : session_(session),
      engine_(engine),
      plan_(std::move(plan)),
      context_(session.info().input_shape.front()),
      capacity_(std::min(context_, kLeastCapacity)),
      memory_(reads_source(session.info()) ? program_length(1, context_) : 0),
      packed_(engine.has_formats() ? nullptr : PackedWeights::open(session, engine)) {
  execution(1, 1);
}

Decoder::~Decoder() = default;

void Decoder::keep_packed_weights() {
  if (packed_ == nullptr) return;
  for (const auto& [tokens, execution] : executions_) packed_->keep_prepared(*execution);
  packed_->write(engine_.store());
}

void Decoder::clear(int64_t rows) {
  executions_.clear();
  slots_.assign(static_cast<size_t>(rows), {});
  slot_sources_.assign(static_cast<size_t>(rows), {});
  carried_ = engine_.carried();
}

void Decoder::reserve(int64_t tokens) {
  const int64_t needed = std::min(tokens, context_);
  if (needed <= capacity_) return;
  capacity_ = std::min(context_, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(needed))));
  clear(std::ssize(slots_));
}

bool Decoder::is_long(const std::vector<int64_t>& row) const {
  const int64_t limit = session_.info().cache_switch;
  return limit > 0 && std::ssize(row) > limit;
}

int64_t Decoder::shared(const std::vector<int64_t>& row, const std::vector<int64_t>& slot) const {
  const int64_t held = common(row, slot), read = std::min(held, std::ssize(row) - 1), length = std::ssize(slot);
  if (session_.info().cache_stretch) {
    // As in transformers, a new token has the frequencies of its length, and tokens before it keep theirs. What other texts left has
    // others.
    const bool is_next = held == length && std::ssize(row) == length + 1;
    if ((is_long(row) || is_long(slot)) && !is_next && row != slot) return 0;
  } else if (is_long(row) != is_long(slot)) {
    return 0;
  }
  // A ring holds the last tokens of its sequence only: it can take back one token, but not more.
  return length <= ring_ || length <= read + 1 ? held : 0;
}

Execution& Decoder::execution(int64_t rows, int64_t tokens) {
  if (std::ssize(slots_) != rows) clear(rows);
  std::unique_ptr<Execution>& slot = executions_[tokens];
  if (slot != nullptr) return *slot;
  BatchTypes types = session_.usual_types(rows, false);
  types.input().shape = {rows, tokens};
  input_ = types.inputs.front();
  if (memory_ > 0) {
    types.fields.at(kSource).shape = {rows, memory_};
    types.fields[kSourceLength] = {.dtype = DType::kI64, .shape = {rows}};
  }
  slot = compile(types, cat(tokens, tokens == 1 ? " token" : " tokens", " of ", rows, rows == 1 ? " sequence" : " sequences"));
  const auto& [name, id] = slot->program().graph().outputs().front();
  output_ = name;
  vocabulary_ = slot->program().graph().type(id).shape[-1];
  ring_ = smallest_cache(slot->program().graph());
  return *slot;
}

Execution& Decoder::encoder(int64_t rows) {
  constexpr int64_t kEncoder = 0;
  std::unique_ptr<Execution>& slot = executions_[kEncoder];
  if (slot != nullptr) return *slot;
  BatchTypes types = session_.usual_types(rows, false);
  types.inputs = {kSource, kSourceLength};
  types.fields = {{kSource, {.dtype = DType::kI64, .shape = {rows, memory_}}}, {kSourceLength, {.dtype = DType::kI64, .shape = {rows}}}};
  slot = compile(types, cat("sources of ", memory_, " tokens"));
  return *slot;
}

std::unique_ptr<Execution> Decoder::compile(const BatchTypes& types, const std::string& purpose) {
  const bool first = !engine_.has_formats();
  std::vector<ParameterSpec> parameters;
  const auto capture = [&] {
    InferenceModel model = make_inference(session_.capture_cached(types, capacity_), plan_, {}, {});
    parameters = std::move(model.parameters);
    return std::move(model.graph);
  };
  const std::string variant =
      cat(capacity_ == context_ ? "" : cat("cache of ", capacity_), memory_ > 0 ? cat(" sources of ", memory_) : "");
  const auto program = engine_.program({.mode = "decode", .variant = variant, .fields = types.fields}, purpose, capture,
                                       first ? ParameterFormats::kLead : ParameterFormats::kFollow);
  const bool packed = first && packed_ != nullptr && packed_->adopt(*program, engine_.store());
  engine_.declare(*program);
  if (first && !packed) session_.initialize(parameters, engine_.store());
  std::unique_ptr<Execution> execution = engine_.bind(program, {.carried = carried_});
  if (packed_ != nullptr) packed_->adopt_prepared(*execution);
  return execution;
}

void Decoder::reserve_memory(const std::vector<std::vector<int64_t>>& sources) {
  int64_t longest = 0;
  for (const std::vector<int64_t>& source : sources) longest = std::max(longest, std::ssize(source));
  if (longest <= memory_) return;
  GALLEY_ASSERT(longest <= context_, "a source has ", longest, " tokens, the context ", context_);
  memory_ = std::min(context_, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(longest))));
  clear(std::ssize(slots_));
}

void Decoder::feed_sources(Execution& run) const {
  const auto rows = std::ssize(slot_sources_);
  Tensor tokens(DType::kI64, {rows, memory_}), lengths(DType::kI64, {rows});
  std::fill_n(tokens.data_as<int64_t>(), tokens.elements(), int64_t{0});
  for (size_t s = 0; s < slot_sources_.size(); ++s) {
    std::copy(slot_sources_[s].begin(), slot_sources_[s].end(), tokens.data_as<int64_t>() + static_cast<int64_t>(s) * memory_);
    lengths.data_as<int64_t>()[s] = std::ssize(slot_sources_[s]);
  }
  if (run.takes(kSource)) run.feed(kSource, tokens);  // programs of the decoder do not read them
  run.feed(kSourceLength, lengths);
}

void Decoder::encode(const std::vector<std::vector<int64_t>>& sources, const std::vector<Place>& places) {
  bool known = true;
  for (size_t i = 0; i < sources.size(); ++i) {
    std::vector<int64_t>& held = slot_sources_[places[i].slot];
    known = known && held == sources[i];
    held = sources[i];
  }
  if (known) return;
  const auto rows = std::ssize(slot_sources_);
  Execution& run = encoder(rows);
  feed_sources(run);
  run.run();
  ++encoder_runs_;
}

DecoderMemory Decoder::memory(int64_t rows, int64_t prompt, int64_t tokens) {
  reserve(std::max(prompt, tokens));
  DecoderMemory memory{.positions = capacity_};
  int64_t scratch = 0;
  const std::set<int64_t> lengths{1, program_tokens(std::max<int64_t>(1, prompt), capacity_)};
  for (const int64_t length : lengths) {
    const Program& program = execution(rows, length).program();
    memory.weights = std::max(memory.weights, program.persistent_bytes());
    memory.cache = program.carried_bytes();
    memory.work += program.prepared_bytes() + program.feed_bytes();
    scratch = std::max(scratch, program.scratch_bytes());
  }
  memory.work += scratch;
  return memory;
}

std::vector<Decoder::Place> Decoder::place(const std::vector<std::vector<int64_t>>& rows,
                                           const std::vector<std::vector<int64_t>>& sources) {
  const auto held_of = [&](size_t row, size_t slot) {
    if (!sources.empty() && sources[row] != slot_sources_[slot]) return int64_t{0};
    return shared(rows[row], slots_[slot]);
  };
  const size_t count = rows.size();
  std::vector<Place> places(count);
  std::vector<bool> taken(count), placed(count);
  for (size_t i = 0; i < count; ++i) {
    Place& best = places[i];
    best = {i, held_of(i, i)};
    for (size_t s = 0; s < count; ++s) {
      const int64_t held = held_of(i, s);
      if (held > best.done) best = {s, held};
    }
    placed[i] = !taken[best.slot];
    taken[best.slot] = true;
  }
  // Rows that share a beginning with the same slot: all but one go on in a copy of it, at a place that no row has asked for.
  size_t next = 0;
  for (size_t i = 0; i < count; ++i) {
    if (placed[i]) continue;
    while (taken[next]) ++next;
    taken[next] = true;
    const size_t source = places[i].slot;
    if (places[i].done > 0) {
      carried_->copy_row(static_cast<int64_t>(source), static_cast<int64_t>(next));
      slot_sources_[next] = slot_sources_[source];
    }
    places[i].slot = next;
  }
  return places;
}

Tensor Decoder::next_logits(const std::vector<std::vector<int64_t>>& rows, const std::vector<std::vector<int64_t>>& sources) {
  const auto count = static_cast<int64_t>(rows.size());
  GALLEY_ASSERT(sources.size() == (memory_ > 0 ? rows.size() : 0), "a source for each row of an encoder-decoder model");
  for (const std::vector<int64_t>& row : rows) reserve(std::ssize(row));
  reserve_memory(sources);
  execution(count, 1);
  std::vector<Place> places = place(rows, sources);
  if (memory_ > 0) encode(sources, places);
  for (size_t i = 0; i < rows.size(); ++i) {
    GALLEY_ASSERT(!rows[i].empty() && std::ssize(rows[i]) <= context_, "a row has ", rows[i].size(), " tokens, the context ", context_);
    places[i].done = std::min(places[i].done, std::ssize(rows[i]) - 1);  // the logits of the last token are asked for
    slots_[places[i].slot] = rows[i];
  }
  Tensor logits(DType::kF32, {count, vocabulary_});
  for (;;) {
    int64_t most = 0;
    for (size_t i = 0; i < rows.size(); ++i) most = std::max(most, std::ssize(rows[i]) - places[i].done);
    if (most == 0) return logits;
    advance(rows, program_tokens(most, capacity_), places, logits);
  }
}

const Program& Decoder::program(int64_t tokens) { return execution(std::ssize(slots_), program_tokens(tokens, capacity_)).program(); }

void Decoder::advance(const std::vector<std::vector<int64_t>>& rows, int64_t tokens, std::vector<Place>& places, Tensor& logits) {
  const auto count = static_cast<int64_t>(rows.size());
  Execution& run = execution(count, tokens);
  Tensor input(DType::kI64, {count, tokens}), positions(DType::kI64, {count, tokens}), start(DType::kI64, {count}),
      last(DType::kI64, {count}), lengths(DType::kI64, {count});
  for (Tensor* tensor : {&input, &positions, &last, &lengths}) std::fill_n(tensor->data_as<int64_t>(), tensor->elements(), int64_t{0});
  std::fill_n(start.data_as<int64_t>(), count, int64_t{-1});  // of rows that have no tokens left
  std::vector<size_t> ended;
  for (size_t i = 0; i < rows.size(); ++i) {
    Place& place = places[i];
    const int64_t taken = std::min(tokens, std::ssize(rows[i]) - place.done), slot = static_cast<int64_t>(place.slot);
    if (taken == 0) continue;
    std::copy_n(rows[i].begin() + place.done, taken, input.data_as<int64_t>() + slot * tokens);
    for (int64_t t = 0; t < tokens; ++t) positions.data_as<int64_t>()[slot * tokens + t] = std::min(place.done + t, capacity_ - 1);
    start.data_as<int64_t>()[slot] = place.done;
    last.data_as<int64_t>()[slot] = taken - 1;
    lengths.data_as<int64_t>()[slot] = std::ssize(rows[i]);
    place.done += taken;
    if (place.done == std::ssize(rows[i])) ended.push_back(i);
  }
  run.feed(input_, input);
  run.feed(cache_input::kStart, start);
  if (run.takes(cache_input::kPositions)) run.feed(cache_input::kPositions, positions);
  if (memory_ > 0) feed_sources(run);
  if (run.takes(cache_input::kLast)) run.feed(cache_input::kLast, last);
  if (run.takes(cache_input::kLength)) run.feed(cache_input::kLength, lengths);
  run.run();
  const Tensor all = run.output(output_);
  for (const size_t i : ended) {
    std::copy_n(all.data_as<float>() + static_cast<int64_t>(places[i].slot) * vocabulary_, vocabulary_,
                logits.data_as<float>() + static_cast<int64_t>(i) * vocabulary_);
  }
}

}  // namespace galley
