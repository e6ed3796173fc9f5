#include "libcore/infer/decoder.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <set>

#include "libcore/infer/inference.h"
#include "libcore/nn/attention.h"

namespace galley {
namespace {

constexpr int64_t kShortest = 16, kLongest = 512;  // tokens of the programs for prompts
constexpr int64_t kLeastCapacity = 1024;           // positions of the smallest cache, unless the context is shorter

/// The tokens of the program that reads `tokens` of them, or the first of them.
int64_t program_tokens(int64_t tokens, int64_t context) {
  if (tokens == 1) return 1;
  int64_t length = kShortest;
  while (length < tokens && length < kLongest) length *= 2;
  return std::min(length, context);
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

Decoder::Decoder(Session& session, Engine& engine, std::shared_ptr<const QuantizationPlan> plan)
    : session_(session),
      engine_(engine),
      plan_(std::move(plan)),
      context_(session.info().input_shape.front()),
      capacity_(std::min(context_, kLeastCapacity)) {
  execution(1, 1);
}

void Decoder::clear(int64_t rows) {
  executions_.clear();
  slots_.assign(static_cast<size_t>(rows), {});
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
  if (is_long(row) != is_long(slot)) return 0;
  const int64_t held = common(row, slot), read = std::min(held, std::ssize(row) - 1), length = std::ssize(slot);
  // A ring holds the last tokens of its sequence only: it can take back one token, but not more.
  return length <= ring_ || length <= read + 1 ? held : 0;
}

Execution& Decoder::execution(int64_t rows, int64_t tokens) {
  if (std::ssize(slots_) != rows) clear(rows);
  std::unique_ptr<Execution>& slot = executions_[tokens];
  if (slot != nullptr) return *slot;
  const bool first = !engine_.has_formats();
  BatchTypes types = session_.usual_types(rows, false);
  types.input().shape = {rows, tokens};
  std::vector<ParameterSpec> parameters;
  const auto capture = [&] {
    InferenceModel model = make_inference(session_.capture_cached(types, capacity_), plan_, {}, {});
    input_ = types.inputs.front();
    const auto& [name, id] = model.graph.outputs().front();
    output_ = name;
    vocabulary_ = model.graph.type(id).shape[-1];
    ring_ = smallest_cache(model.graph);
    parameters = std::move(model.parameters);
    return std::move(model.graph);
  };
  const auto program =
      engine_.program({.mode = "decode", .variant = capacity_ == context_ ? "" : cat("cache of ", capacity_), .fields = types.fields},
                      cat(tokens, tokens == 1 ? " token" : " tokens", " of ", rows, rows == 1 ? " sequence" : " sequences"), capture,
                      first ? ParameterFormats::kLead : ParameterFormats::kFollow);
  engine_.declare(*program);
  if (first) session_.initialize(parameters, engine_.store());
  slot = engine_.bind(program, {.carried = carried_});
  return *slot;
}

DecoderMemory Decoder::memory(int64_t rows, int64_t prompt, int64_t tokens) {
  reserve(std::max(prompt, tokens));
  DecoderMemory memory{.positions = capacity_};
  int64_t scratch = 0;
  const std::set<int64_t> lengths{1, program_tokens(std::max<int64_t>(1, prompt), capacity_)};
  for (const int64_t length : lengths) {
    const Program& program = execution(rows, length).program();
    memory.weights = program.persistent_bytes();
    memory.cache = program.carried_bytes();
    memory.work += program.prepared_bytes() + program.feed_bytes();
    scratch = std::max(scratch, program.scratch_bytes());
  }
  memory.work += scratch;
  return memory;
}

std::vector<Decoder::Place> Decoder::place(const std::vector<std::vector<int64_t>>& rows) {
  const size_t count = rows.size();
  std::vector<Place> places(count);
  std::vector<bool> taken(count), placed(count);
  for (size_t i = 0; i < count; ++i) {
    Place& best = places[i];
    best = {i, shared(rows[i], slots_[i])};
    for (size_t s = 0; s < count; ++s) {
      const int64_t held = shared(rows[i], slots_[s]);
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
    if (places[i].done > 0) carried_->copy_row(static_cast<int64_t>(source), static_cast<int64_t>(next));
    places[i].slot = next;
  }
  return places;
}

Tensor Decoder::next_logits(const std::vector<std::vector<int64_t>>& rows) {
  const auto count = static_cast<int64_t>(rows.size());
  for (const std::vector<int64_t>& row : rows) reserve(std::ssize(row));
  execution(count, 1);
  std::vector<Place> places = place(rows);
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

void Decoder::advance(const std::vector<std::vector<int64_t>>& rows, int64_t tokens, std::vector<Place>& places, Tensor& logits) {
  const auto count = static_cast<int64_t>(rows.size());
  Execution& run = execution(count, tokens);
  Tensor input(DType::kI64, {count, tokens}), positions(DType::kI64, {count, tokens}), start(DType::kI64, {count}),
      last(DType::kI64, {count}), long_rows(DType::kI64, {count});
  for (Tensor* tensor : {&input, &positions, &last, &long_rows}) std::fill_n(tensor->data_as<int64_t>(), tensor->elements(), int64_t{0});
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
    long_rows.data_as<int64_t>()[slot] = is_long(rows[i]) ? 1 : 0;
    place.done += taken;
    if (place.done == std::ssize(rows[i])) ended.push_back(i);
  }
  run.feed(input_, input);
  run.feed(cache_input::kStart, start);
  if (run.takes(cache_input::kPositions)) run.feed(cache_input::kPositions, positions);
  if (run.takes(cache_input::kLast)) run.feed(cache_input::kLast, last);
  if (run.takes(cache_input::kLong)) run.feed(cache_input::kLong, long_rows);
  run.run();
  const Tensor all = run.output(output_);
  for (const size_t i : ended) {
    std::copy_n(all.data_as<float>() + static_cast<int64_t>(places[i].slot) * vocabulary_, vocabulary_,
                logits.data_as<float>() + static_cast<int64_t>(i) * vocabulary_);
  }
}

}  // namespace galley
