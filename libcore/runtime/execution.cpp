#include "libcore/runtime/execution.h"

#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <set>

#include "libcore/base/parallel.h"
#include "libcore/device/stream.h"

namespace galley {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kPage = 4096;
constexpr unsigned char kGuardByte = 0xA5;

Tensor copy_out(const TensorType& type, const void* data) {
  Tensor tensor(type.dtype, type.shape, type.format);
  std::memcpy(tensor.data(), data, static_cast<size_t>(type.bytes()));
  return tensor.to(MemoryFormat::contiguous());
}

/// Batches come as the data pipeline makes them: the usual conversion, [N,C,H,W] floats to channels_last, quickly.
Tensor to_program_format(const Tensor& values, const MemoryFormat& format) {
  if (values.dtype() != DType::kF32 || !values.format().is_contiguous() || format != MemoryFormat::channels_last()) return values.to(format);
  const Shape& shape = values.shape();
  Tensor result(DType::kF32, shape, format);
  const int64_t channels = shape[1], area = shape[2] * shape[3];
  const auto* from = values.data_as<float>();
  auto* to = result.data_as<float>();
  parallel_for(shape[0] * shape[2], 8, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t n = row / shape[2], first = row % shape[2] * shape[3];
      for (int64_t c = 0; c < channels; ++c) {
        const float* source = from + (n * channels + c) * area + first;
        float* target = to + (n * area + first) * channels + c;
        for (int64_t w = 0; w < shape[3]; ++w) target[w * channels] = source[w];
      }
    }
  });
  return result;
}

}  // namespace

Arena::~Arena() {
  if (mapping_ != nullptr) munmap(mapping_, static_cast<size_t>(mapped_));
}

void Arena::reserve(int64_t bytes) {
  const auto up = [](int64_t size, int64_t unit) { return (size + unit - 1) / unit * unit; };
  const bool huge = bytes >= kHugePage;
  bytes = up(bytes, huge ? kHugePage : kPage);
  if (bytes <= bytes_) return;
  if (mapping_ != nullptr) munmap(mapping_, static_cast<size_t>(mapped_));
  mapping_ = nullptr;
  data_ = nullptr;
  bytes_ = mapped_ = 0;
  ++generation_;
  // Kernels place a mapping anywhere: only what lies on whole huge pages gets them, so one more than wanted is mapped (and never touched).
  const int64_t mapped = bytes + (huge ? kHugePage : 0);
  void* memory = mmap(nullptr, static_cast<size_t>(mapped), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail(ErrorCode::kResource, "no memory for ", bytes / (1 << 20), " MiB of scratch; use a smaller batch or train.recompute");
  mapping_ = memory;
  mapped_ = mapped;
  const auto address = reinterpret_cast<int64_t>(memory);
  data_ = static_cast<std::byte*>(memory) + (huge ? up(address, kHugePage) - address : 0);
  bytes_ = bytes;
  if (huge) madvise(data_, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // advice: a refusal costs speed only
  parallel_for((bytes + kHugePage - 1) / kHugePage, 4, [&](int64_t begin, int64_t end) {
    for (int64_t offset = begin * kHugePage; offset < std::min(end * kHugePage, bytes); offset += kPage) data_[offset] = std::byte{0};
  });
}

Execution::Execution(std::shared_ptr<const Program> program, ParameterStore& store, std::shared_ptr<Arena> arena, std::map<std::string, std::string> binding)
    : program_(std::move(program)), store_(store), arena_(arena ? std::move(arena) : std::make_shared<Arena>()), binding_(std::move(binding)) {
  const Graph& graph = program_->graph();
  const MemoryPlan& memory = program_->memory();
  for (ValueId id : graph.inputs()) {
    const ValueInfo& info = graph.value(id);
    if (info.role == ValueRole::kInput) continue;
    const auto bound = binding_.find(info.name);
    const std::string& name = bound == binding_.end() ? info.name : bound->second;
    store_.declare(name, info.type, info.role);
    store_names_[id] = name;
  }
  std::set<std::string> reads, updated;
  for (size_t s = 0; s < program_->steps().size(); ++s) {
    const Node& node = graph.nodes()[static_cast<size_t>(program_->steps()[s].node)];
    for (ValueId id : node.inputs) {
      const Placement* place = id == kNoValue ? nullptr : &memory.values[static_cast<size_t>(id)];
      if (s < program_->prepare_steps() && place && place->region == Placement::Region::kNamed) reads.insert(store_names_.at(place->named));
    }
    for (ValueId id : node.outputs) {
      const Placement& place = memory.values[static_cast<size_t>(id)];
      if (place.region == Placement::Region::kNamed) updated.insert(store_names_.at(place.named));
    }
  }
  prepare_reads_.assign(reads.begin(), reads.end());
  updated_.assign(updated.begin(), updated.end());
  if (memory.prepared_bytes > 0) prepared_ = Storage::allocate(memory.prepared_bytes);
  arena_->reserve(std::max<int64_t>(memory.arena_bytes, 1));
}

bool Execution::takes(std::string_view name) const {
  const ValueId id = program_->graph().find_input(name);
  return id != kNoValue && program_->graph().value(id).role == ValueRole::kInput;
}

void Execution::feed(std::string_view name, const Tensor& values) {
  GALLEY_ASSERT(takes(name), "the program has no input '", name, "'");
  const ValueId id = program_->graph().find_input(name);
  const TensorType& type = program_->graph().type(id);
  GALLEY_ASSERT(values.dtype() == type.dtype && values.shape() == type.shape, "input '", name, "' is ", type, ", fed with ", values.str());
  if (same_bytes(type.shape, values.format(), type.format)) {
    feeds_[id] = Tensor(values);
  } else {
    feeds_[id] = to_program_format(values, type.format);
  }
  feeds_changed_ = true;
}

void Execution::feed(std::string_view name, double value) {
  const ValueId id = program_->graph().find_input(name);
  GALLEY_ASSERT(takes(name), "the program has no input '", name, "'");
  Tensor scalar(program_->graph().type(id).dtype, Shape{});
  scalar.set(Shape{}, value);
  feed(name, scalar);
}

void* Execution::address(ValueId id) {
  if (id == kNoValue) return nullptr;
  const Placement& place = program_->memory().values[static_cast<size_t>(id)];
  switch (place.region) {
    case Placement::Region::kArena: return arena_->data() + place.offset;
    case Placement::Region::kPrepared: return prepared_->data() + place.offset;
    case Placement::Region::kNamed: {
      if (program_->graph().value(place.named).role != ValueRole::kInput) return store_.tensor(store_names_.at(place.named)).data();
      const auto fed = feeds_.find(place.named);
      return fed == feeds_.end() ? nullptr : fed->second.data();
    }
    case Placement::Region::kNone: break;
  }
  return nullptr;
}

void Execution::bind() {
  const std::vector<Step>& steps = program_->steps();
  calls_.resize(steps.size());
  for (size_t s = 0; s < steps.size(); ++s) {
    const Node& node = program_->graph().nodes()[static_cast<size_t>(steps[s].node)];
    Call& call = calls_[s];
    call.inputs.clear();
    call.outputs.clear();
    for (ValueId id : node.inputs) call.inputs.push_back(address(id));
    for (ValueId id : node.outputs) call.outputs.push_back(address(id));
    const int64_t scratch = program_->memory().scratch_offsets[static_cast<size_t>(steps[s].node)];
    call.scratch = scratch < 0 ? nullptr : arena_->data() + scratch;
  }
  bound_generation_ = arena_->generation();
  feeds_changed_ = false;
}

uint64_t Execution::prepared_versions() const {
  uint64_t sum = 0;
  for (const std::string& name : prepare_reads_) sum += store_.version(name);
  return sum;
}

void Execution::execute(size_t s, NodeObserver* observer) {
  const Step& step = program_->steps()[s];
  const Call& call = calls_[s];
  if (observer != nullptr) observer->before(*program_, step);
  step.kernel->run(host_stream(), {call.inputs, call.outputs, call.scratch});
  if (observer != nullptr) observer->after(*program_, step, call.outputs);
}

void Execution::execute_guarded(size_t s, NodeObserver* observer) {
  const Node& node = program_->graph().nodes()[static_cast<size_t>(program_->steps()[s].node)];
  const auto guard = static_cast<size_t>(program_->memory().guard);
  // Guards stand behind values of the arena: written with the value, checked after every step that touches it.
  const auto guard_of = [&](ValueId id) -> unsigned char* {
    if (id == kNoValue || program_->memory().values[static_cast<size_t>(id)].region != Placement::Region::kArena) return nullptr;
    return static_cast<unsigned char*>(address(id)) + program_->memory().values[static_cast<size_t>(id)].bytes;
  };
  for (ValueId id : node.outputs) {
    if (unsigned char* bytes = guard_of(id)) std::memset(bytes, kGuardByte, guard);
  }
  execute(s, observer);
  const auto check = [&](ValueId id) {
    const unsigned char* bytes = guard_of(id);
    for (size_t i = 0; bytes != nullptr && i < guard; ++i) {
      GALLEY_ASSERT(bytes[i] == kGuardByte, node.op->name, " (", program_->steps()[s].backend, ") at ", node.path, " wrote behind value %", id);
    }
  };
  for (ValueId id : node.inputs) check(id);
  for (ValueId id : node.outputs) check(id);
}

bool Execution::run(const RunOptions& options) {
  const ThreadShare share(program_->threads());
  if (bound_generation_ != arena_->generation() || feeds_changed_ || calls_.empty()) {
    for (ValueId id : program_->graph().inputs()) {
      const ValueInfo& info = program_->graph().value(id);
      GALLEY_ASSERT(info.role != ValueRole::kInput || feeds_.count(id) > 0, "input '", info.name, "' was never fed");
    }
    bind();
  }
  const bool guarded = program_->memory().guard > 0;
  const auto step = [&](size_t s) { guarded ? execute_guarded(s, options.observer) : execute(s, options.observer); };
  const uint64_t versions = prepared_versions();
  if (!prepared_at_ || *prepared_at_ != versions) {
    for (size_t s = 0; s < program_->prepare_steps(); ++s) step(s);
    prepared_at_ = versions;
  }
  bool asked = !options.before_updates;
  for (size_t s = program_->prepare_steps(); s < program_->steps().size(); ++s) {
    if (program_->steps()[s].updates) {
      if (options.skip_updates) continue;
      if (!asked && !options.before_updates()) return false;
      asked = true;
    }
    step(s);
  }
  if (!options.skip_updates) {
    for (const std::string& name : updated_) store_.touch(name);
  }
  return true;
}

Tensor Execution::output(std::string_view name) const {
  const ValueId id = program_->graph().find_output(name);
  GALLEY_ASSERT(id != kNoValue, "the program has no output '", name, "'");
  return copy_out(program_->graph().type(id), const_cast<Execution*>(this)->address(id));
}

double Execution::scalar(std::string_view name) const {
  const ValueId id = program_->graph().find_output(name);
  GALLEY_ASSERT(id != kNoValue && program_->graph().type(id).elements() == 1, "the program has no output '", name, "' of one element");
  return load_element(program_->graph().type(id).dtype, const_cast<Execution*>(this)->address(id));
}

std::optional<NonFinite> Execution::check_arrays(
    const std::function<std::optional<NonFinite>(const std::string&, std::string_view, const Tensor&)>& check) const {
  for (const auto& [id, tensor] : feeds_) {
    if (std::optional<NonFinite> bad = check(program_->graph().value(id).name, "input", tensor)) return bad;
  }
  for (const auto& [id, name] : store_names_) {
    if (std::optional<NonFinite> bad = check(name, role_name(program_->graph().value(id).role), store_.tensor(name))) return bad;
  }
  return std::nullopt;
}

}  // namespace galley
