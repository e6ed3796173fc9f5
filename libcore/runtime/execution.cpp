#include "libcore/runtime/execution.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "libcore/base/denormals.h"
#include "libcore/base/parallel.h"
#include "libcore/device/kept_memory.h"

namespace galley {
namespace {

constexpr unsigned char kGuardByte = 0xA5;

/// Converts images between planes [N,C,S] and pixels [N,S,C]; S is the number of positions.
template <class Word>
void move_channels(const Shape& shape, bool to_pixels, const void* from, void* to) {
  const int64_t channels = shape[1], row = shape.rank() == 4 ? shape[3] : shape[3] * shape[4], area = shape[2] * row;
  const auto* source = static_cast<const Word*>(from);
  auto* target = static_cast<Word*>(to);
  parallel_for(shape[0] * shape[2], 8, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t image = r / shape[2] * channels * area, first = r % shape[2] * row;
      for (int64_t c = 0; c < channels; ++c) {
        const int64_t plane = image + c * area + first, pixels = image + first * channels + c;
        if (to_pixels) {
          for (int64_t i = 0; i < row; ++i) target[pixels + i * channels] = source[plane + i];
        } else {
          for (int64_t i = 0; i < row; ++i) target[plane + i] = source[pixels + i * channels];
        }
      }
    }
  });
}

/// Converts a fed array to the program's format. Conversions between image formats allocate nothing, because every batch may need one.
void convert(const Tensor& values, Tensor& result) {
  const bool to_pixels = values.format().is_contiguous() && result.format().is_channels_last();
  if (!to_pixels && !(values.format().is_channels_last() && result.format().is_contiguous())) {
    const Tensor converted = values.to(result.format());
    std::memcpy(result.data(), converted.data(), static_cast<size_t>(result.bytes()));
    return;
  }
  switch (dtype_size(values.dtype())) {
    case 1: return move_channels<uint8_t>(values.shape(), to_pixels, values.data(), result.data());
    case 2: return move_channels<uint16_t>(values.shape(), to_pixels, values.data(), result.data());
    case 4: return move_channels<uint32_t>(values.shape(), to_pixels, values.data(), result.data());
    default: return move_channels<uint64_t>(values.shape(), to_pixels, values.data(), result.data());
  }
}

}  // namespace

Execution::Execution(std::shared_ptr<const Program> program, ParameterStore& store, std::shared_ptr<Arena> arena,
                     std::map<std::string, std::string> binding, std::shared_ptr<Carried> carried)
    : program_(std::move(program)),
      store_(store),
      arena_(arena ? std::move(arena) : std::make_shared<Arena>()),
      device_(program_->device()),
      stream_(device_.stream()),
      binding_(std::move(binding)),
      limits_(*program_),
      scalars_(program_->graph(), device_) {
  arena_->use(device_);
  declare_inputs();
  carry(carried ? std::move(carried) : std::make_shared<Carried>(device_));
  GALLEY_ASSERT(&store_.device() == &device_, "the program is on device ", device_.name(), ", but the parameters are on ",
                store_.device().name());
  find_prepare_reads();
  find_results();
  const MemoryPlan& memory = program_->memory();
  if (memory.prepared_bytes > 0) prepared_ = Storage::allocate(memory.prepared_bytes, device_of_kept_arrays(device_));
  arena_->reserve(std::max<int64_t>(memory.arena_bytes, 1), memory.common_bytes);
}

void Execution::declare_inputs() {
  const Graph& graph = program_->graph();
  if (binding_.empty()) store_.declare(*program_);
  for (ValueId id : graph.inputs()) {
    const ValueInfo& info = graph.value(id);
    if (info.role == ValueRole::kInput) {
      if (!scalars_.has(id)) feeds_[id];
      continue;
    }
    if (info.role == ValueRole::kCarried) continue;
    const auto bound = binding_.find(info.name);
    const std::string& name = bound == binding_.end() ? info.name : bound->second;
    store_.declare(name, info.type, info.role, program_->stays_on_host(id));
    store_names_[id] = name;
  }
}

void Execution::carry(std::shared_ptr<Carried> carried) {
  carried->declare(*program_);
  carried_ = std::move(carried);
  bound_generation_.reset();  // addresses change
}

void Execution::find_prepare_reads() {
  const Graph& graph = program_->graph();
  const MemoryPlan& memory = program_->memory();
  std::set<std::string> reads, updated;
  for (size_t s = 0; s < program_->steps().size(); ++s) {
    const Node& node = graph.nodes()[static_cast<size_t>(program_->steps()[s].node)];
    for (ValueId id : node.inputs) {
      const MemorySlot* place = id == kNoValue ? nullptr : &memory.values[static_cast<size_t>(id)];
      if (s < program_->prepare_steps() && place && place->region == MemorySlot::Region::kNamed)
        reads.insert(store_names_.at(place->named));
    }
    for (ValueId id : node.outputs) {
      const MemorySlot& place = memory.values[static_cast<size_t>(id)];
      const auto stored = place.region == MemorySlot::Region::kNamed ? store_names_.find(place.named) : store_names_.end();
      if (stored != store_names_.end()) updated.insert(stored->second);  // otherwise it is carried
    }
  }
  prepare_reads_.assign(reads.begin(), reads.end());
  updated_.assign(updated.begin(), updated.end());
}

void Execution::find_results() {
  const Graph& graph = program_->graph();
  const MemoryPlan& memory = program_->memory();
  int64_t bytes = memory.result_bytes;
  for (const auto& [name, id] : graph.outputs()) {
    const TensorType& type = graph.type(id);
    const MemorySlot& place = memory.values[static_cast<size_t>(id)];
    if (type.elements() != 1) continue;
    if (place.region == MemorySlot::Region::kResult) {
      result_of_[id] = {type.dtype, place.offset};
    } else {  // a view of an array, or state: fetched on its own
      result_of_[id] = {type.dtype, bytes};
      bytes += dtype_size(type.dtype);
    }
  }
  if (memory.result_bytes > 0) results_ = Storage::allocate(memory.result_bytes, device_);
  result_bytes_ = bytes;
  keep_results(1);
}

void Execution::keep_results(int64_t runs) {
  GALLEY_ASSERT(runs >= 1);
  kept_runs_ = runs;
  fetched_runs_ = 0;
  if (result_bytes_ > 0) host_results_ = Storage::allocate_host(runs * result_bytes_, device_);
}

bool Execution::takes(std::string_view name) const {
  const ValueId id = program_->graph().find_input(name);
  return id != kNoValue && program_->graph().value(id).role == ValueRole::kInput;
}

bool Execution::keeps_outputs() const {
  for (const auto& [name, id] : program_->graph().outputs()) {
    const MemorySlot& place = program_->memory().values[static_cast<size_t>(id)];
    if (place.region == MemorySlot::Region::kNamed && program_->graph().value(place.named).role == ValueRole::kInput) return false;
  }
  return true;
}

const Tensor& Execution::in_program_format(Feed& feed, const TensorType& type, const Tensor& values) {
  if (same_bytes(type.shape, values.format(), type.format)) return values;
  if (!feed.converted.defined())
    feed.converted = Tensor(type.dtype, type.shape, type.format, Storage::allocate_host(type.bytes(), device_));
  const ThreadShare share(program_->threads());  // as in runs, because another team size would create and end threads
  convert(values, feed.converted);
  return feed.converted;
}

/// To a device with memory of its own.
void Execution::send(Feed& feed, const TensorType& type, const Tensor& values) {
  if (!feed.values.defined()) feed.values = Tensor(type.dtype, type.shape, type.format, device_);
  if (type.bytes() == 0) return;
  if (feed.slots == nullptr) {
    if (copies_ == nullptr) copies_ = device_.make_stream();
    feed.slots = std::make_unique<InputSlots>(device_, *copies_, type);
  }
  Tensor& slot = feed.slots->next();
  const ThreadShare share(program_->threads());
  if (same_bytes(type.shape, values.format(), type.format)) {
    constexpr int64_t kGrain = int64_t{1} << 20;  // bytes that a thread copies
    const auto* from = static_cast<const std::byte*>(values.data());
    auto* to = static_cast<std::byte*>(slot.data());
    parallel_for(type.bytes(), kGrain,
                 [&](int64_t begin, int64_t end) { std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin)); });
  } else {
    convert(values, slot);
  }
  feed.slots->send(stream_, feed.values.address());
}

void Execution::feed(std::string_view name, const Tensor& values) {
  GALLEY_ASSERT(takes(name), "the program has no input '", name, "'");
  const ValueId id = program_->graph().find_input(name);
  const TensorType& type = program_->graph().type(id);
  GALLEY_ASSERT(values.dtype() == type.dtype && values.shape() == type.shape, "input '", name, "' must be ", type, ", not ", values.str());
  if (!device_.is_host()) {
    const ThreadShare share(program_->threads());
    limits_.check(id, values);
  }
  if (scalars_.has(id)) {
    scalars_.set(id, {static_cast<const std::byte*>(values.data()), static_cast<size_t>(values.bytes())});
    return;
  }
  Feed& feed = feeds_.at(id);
  const void* before = feed.values.defined() ? feed.values.address() : nullptr;
  if (device_.is_host()) {
    feed.values = in_program_format(feed, type, values);
  } else {
    send(feed, type, values);
  }
  void* address = feed.values.address();
  if (address == before) return;
  for (const auto& [step, input] : feed.readers) operands_[step].inputs[input] = address;
}

void Execution::feed_from(std::string_view name, const Execution& from, std::string_view output) {
  if (device_.is_host()) return feed(name, from.view(output));
  const ValueId id = program_->graph().find_input(name), made = from.program_->graph().find_output(output);
  GALLEY_ASSERT(takes(name) && made != kNoValue, "the program has no input '", name, "', or the other program has no output '", output,
                "'");
  const TensorType &type = program_->graph().type(id), &given = from.program_->graph().type(made);
  GALLEY_ASSERT(given.dtype == type.dtype && given.shape == type.shape, "input '", name, "' must be ", type, ", not ", given);
  if (scalars_.has(id) || !same_bytes(type.shape, given.format, type.format)) return feed(name, from.output(output));
  Feed& feed = feeds_.at(id);
  if (!feed.values.defined()) {
    feed.values = Tensor(type.dtype, type.shape, type.format, device_);
    for (const auto& [step, input] : feed.readers) operands_[step].inputs[input] = feed.values.address();
  }
  if (type.bytes() > 0) stream_.copy(feed.values.address(), from.address(made), type.bytes());
}

void Execution::set(std::string_view name, double value) {
  GALLEY_ASSERT(takes(name), "the program has no input '", name, "'");
  const ValueId id = program_->graph().find_input(name);
  const TensorType& type = program_->graph().type(id);
  GALLEY_ASSERT(scalars_.has(id) && type.elements() == 1, "input '", name, "' is ", type, ", but set() needs one element");
  std::byte element[8];
  store_element(type.dtype, element, value);
  scalars_.set(id, {element, static_cast<size_t>(dtype_size(type.dtype))});
}

void Execution::set(std::string_view name, std::span<const int64_t> values) {
  GALLEY_ASSERT(takes(name), "the program has no input '", name, "'");
  const ValueId id = program_->graph().find_input(name);
  const TensorType& type = program_->graph().type(id);
  GALLEY_ASSERT(scalars_.has(id) && type.dtype == DType::kI64 && type.elements() == static_cast<int64_t>(values.size()), "input '", name,
                "' is ", type, ", but got ", values.size(), " integers");
  scalars_.set(id, std::as_bytes(values));
}

void* Execution::address(ValueId id) const {
  if (id == kNoValue) return nullptr;
  const MemorySlot& place = program_->memory().values[static_cast<size_t>(id)];
  switch (place.region) {
    case MemorySlot::Region::kArena: return arena_->address() + place.offset;
    case MemorySlot::Region::kCommon: return arena_->common() + place.offset;
    case MemorySlot::Region::kPrepared: return prepared_->address() + place.offset;
    case MemorySlot::Region::kResult: return results_->address() + place.offset;
    case MemorySlot::Region::kNamed: {
      const ValueInfo& input = program_->graph().value(place.named);
      if (input.role == ValueRole::kCarried) return carried_->tensor(input.name).address();
      if (input.role != ValueRole::kInput) return store_.tensor(store_names_.at(place.named)).address();
      if (scalars_.has(place.named)) return scalars_.address(place.named);
      const Tensor& fed = feeds_.at(place.named).values;
      return fed.defined() ? const_cast<void*>(fed.address()) : nullptr;
    }
    case MemorySlot::Region::kNone: break;
  }
  return nullptr;
}

void Execution::bind() {
  const std::vector<Step>& steps = program_->steps();
  const MemoryPlan& memory = program_->memory();
  operands_.resize(steps.size());
  calls_.resize(steps.size());
  for (auto& [id, feed] : feeds_) feed.readers.clear();
  for (size_t s = 0; s < steps.size(); ++s) {
    const Node& node = program_->graph().nodes()[static_cast<size_t>(steps[s].node)];
    Operands& operands = operands_[s];
    operands.inputs.clear();
    operands.outputs.clear();
    for (ValueId id : node.inputs) {
      const ValueId named = id == kNoValue ? kNoValue : memory.values[static_cast<size_t>(id)].named;
      const auto fed = feeds_.find(named);
      if (fed != feeds_.end()) fed->second.readers.emplace_back(s, operands.inputs.size());
      operands.inputs.push_back(address(id));
    }
    for (ValueId id : node.outputs) operands.outputs.push_back(address(id));
    const int64_t scratch = memory.scratch_offsets[static_cast<size_t>(steps[s].node)];
    calls_[s] = {steps[s].kernel.get(), {operands.inputs, operands.outputs, scratch < 0 ? nullptr : arena_->address() + scratch}, &node};
  }
  runner_ = program_->backend().runner({.calls = std::span(calls_).subspan(program_->prepare_steps())});
  bound_generation_ = arena_->generation();
  bound_moves_ = store_.moves();
}

uint64_t Execution::prepared_versions() const {
  uint64_t sum = 0;
  for (const std::string& name : prepare_reads_) sum += store_.version(name);
  return sum;
}

void Execution::execute(size_t s, NodeObserver* observer) {
  const Step& step = program_->steps()[s];
  const BoundCall& call = calls_[s];
  if (observer != nullptr) observer->before(*program_, step, stream_);
  call.run(stream_);
  if (observer != nullptr) observer->after(*program_, step, NodeOutputs(*program_, step, call.args.outputs, stream_));
}

void Execution::execute_guarded(size_t s, NodeObserver* observer) {
  const Node& node = program_->graph().nodes()[static_cast<size_t>(program_->steps()[s].node)];
  const int64_t guard = program_->memory().guard;
  // Guards follow values in the arena. They are filled when the value is written, and checked after every step that uses it.
  const auto guard_of = [&](ValueId id) -> unsigned char* {
    if (id == kNoValue || program_->memory().values[static_cast<size_t>(id)].region != MemorySlot::Region::kArena) return nullptr;
    return static_cast<unsigned char*>(address(id)) + program_->memory().values[static_cast<size_t>(id)].bytes;
  };
  for (ValueId id : node.outputs) {
    if (unsigned char* bytes = guard_of(id)) stream_.fill(bytes, kGuardByte, guard);
  }
  execute(s, observer);
  std::vector<unsigned char> found(static_cast<size_t>(guard));
  const auto check = [&](ValueId id) {
    const unsigned char* bytes = guard_of(id);
    if (bytes == nullptr) return;
    stream_.copy(found.data(), bytes, guard);
    stream_.synchronize();
    for (const unsigned char byte : found) {
      GALLEY_ASSERT(byte == kGuardByte, node.op->name, " (", program_->steps()[s].backend, ") at ", node.path,
                    " wrote past the end of value %", id);
    }
  };
  for (ValueId id : node.inputs) check(id);
  for (ValueId id : node.outputs) check(id);
}

void Execution::check_fed() const {
  ValueId missing = scalars_.missing();
  for (const auto& [id, feed] : feeds_) {
    if (!feed.values.defined()) missing = id;
  }
  if (missing != kNoValue) GALLEY_ASSERT(false, "input '", program_->graph().value(missing).name, "' was not fed");
}

void Execution::fetch_results() {
  if (result_of_.empty()) return;
  const MemoryPlan& memory = program_->memory();
  std::byte* to = host_results_->data() + fetched_runs_++ % kept_runs_ * result_bytes_;
  if (results_ != nullptr) stream_.copy(to, results_->address(), memory.result_bytes);
  for (const auto& [id, result] : result_of_) {
    if (result.offset >= memory.result_bytes) stream_.copy(to + result.offset, address(id), dtype_size(result.dtype));
  }
}

void Execution::run(const RunOptions& options) {
  const Arena::Use use(*arena_);
  const ThreadShare share(program_->threads());
  const FlushDenormals flush;
  if (!all_fed_) check_fed();
  all_fed_ = true;
  const uint64_t versions = prepared_versions();
  const bool prepares = !prepared_at_ || *prepared_at_ != versions;
  // Arrays that have moved since are read by `prepare` only.
  if (bound_generation_ != arena_->generation() || (prepares && bound_moves_ != store_.moves())) bind();
  scalars_.enqueue(stream_);
  const bool guarded = program_->memory().guard > 0;
  const auto step = [&](size_t s) { guarded ? execute_guarded(s, options.observer) : execute(s, options.observer); };
  if (prepares) {
    for (size_t s = 0; s < program_->prepare_steps(); ++s) step(s);
    prepared_at_ = versions;
  }
  if (options.observer == nullptr && !options.skip_updates && !guarded) {
    runner_->run(stream_);
  } else {
    for (size_t s = program_->prepare_steps(); s < program_->steps().size(); ++s) {
      if (!options.skip_updates || !program_->steps()[s].updates) step(s);
    }
  }
  fetch_results();
  if (options.observer != nullptr) options.observer->after_run(*program_);
  if (options.skip_updates) return;
  for (const std::string& name : updated_) store_.touch(name);
}

std::span<const std::byte> Execution::prepared() const {
  if (prepared_ == nullptr || !prepared_at_) return {};
  return {prepared_->data(), static_cast<size_t>(program_->memory().prepared_bytes)};
}

void Execution::adopt_prepared(std::shared_ptr<Storage> values) {
  GALLEY_ASSERT(prepared_ != nullptr && values->bytes() == program_->memory().prepared_bytes && values->host_access());
  prepared_ = std::move(values);
  prepared_at_ = prepared_versions();
  bound_generation_.reset();  // addresses change
}

Tensor Execution::output(std::string_view name) const {
  const ValueId id = program_->graph().find_output(name);
  GALLEY_ASSERT(id != kNoValue, "the program has no output '", name, "'");
  const TensorType& type = program_->graph().type(id);
  Tensor tensor(type.dtype, type.shape, type.format);
  stream_.copy(tensor.data(), address(id), type.bytes());
  stream_.synchronize();
  return tensor.to(MemoryFormat::contiguous());
}

Tensor Execution::view(std::string_view name) const {
  const ValueId id = program_->graph().find_output(name);
  GALLEY_ASSERT(id != kNoValue && device_.is_host(), "the program has no output '", name, "' on the host");
  const TensorType& type = program_->graph().type(id);
  return {type.dtype, type.shape, type.format, Storage::borrow(address(id), type.bytes(), arena_)};
}

Tensor Execution::host_output(std::string_view name) const { return device_.is_host() ? view(name) : output(name); }

double Execution::scalar(std::string_view name, int64_t before_last) const {
  const ValueId id = program_->graph().find_output(name);
  const auto result = result_of_.find(id);
  GALLEY_ASSERT(result != result_of_.end(), "the program has no output '", name, "' of one element");
  GALLEY_ASSERT(before_last >= 0 && before_last < std::min(kept_runs_, fetched_runs_), "the output '", name, "' of ", before_last,
                " runs before the last is not kept; see keep_results");
  stream_.synchronize();
  const int64_t place = (fetched_runs_ - 1 - before_last) % kept_runs_ * result_bytes_;
  return load_element(result->second.dtype, host_results_->data() + place + result->second.offset);
}

std::optional<NonFinite> Execution::check_arrays(
    const std::function<std::optional<NonFinite>(const std::string&, std::string_view, const Tensor&)>& check) const {
  const Graph& graph = program_->graph();
  for (ValueId id : graph.inputs()) {
    const ValueInfo& info = graph.value(id);
    if (info.role == ValueRole::kCarried) {
      if (std::optional<NonFinite> bad = check(info.name, role_name(info.role), carried_->get(info.name))) return bad;
    }
    if (info.role != ValueRole::kInput) continue;
    const Tensor values = scalars_.has(id) ? scalars_.values(id) : on_host(feeds_.at(id).values, stream_);
    if (std::optional<NonFinite> bad = check(info.name, "input", values)) return bad;
  }
  for (const auto& [id, name] : store_names_) {
    if (std::optional<NonFinite> bad = check(name, role_name(graph.value(id).role), on_host(store_.tensor(name), stream_))) return bad;
  }
  return std::nullopt;
}

}  // namespace galley
