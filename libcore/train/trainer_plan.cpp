// What a Trainer decides before the first step: batches, programs, what ranks divide, and the memory that all of it takes.

#include <algorithm>
#include <cmath>
#include <tuple>

#include "libcore/base/resident_memory.h"
#include "libcore/dist/simulate.h"
#include "libcore/ops/collective.h"
#include "libcore/train/mesh_state.h"
#include "libcore/train/offload.h"
#include "libcore/train/planned_model.h"
#include "libcore/train/rank_refusals.h"
#include "libcore/train/rank_roles.h"
#include "libcore/train/sharded_state.h"
#include "libcore/train/tensor_state.h"
#include "libcore/train/trainer_state.h"
#include "libcore/weights/adapter.h"

namespace galley {
namespace {

/// Bytes of a program's scratch memory that collectives reach.
int64_t reached_bytes(const Program& program) {
  std::vector<std::pair<int64_t, int64_t>> arrays;  // [begin, end)
  for (const Node& node : program.graph().nodes()) {
    if (!starts_collective(node)) continue;
    const MemorySlot& slot = program.memory().values[static_cast<size_t>(node.outputs[0])];
    if (slot.region == MemorySlot::Region::kArena) arrays.emplace_back(slot.offset, slot.offset + slot.bytes);
  }
  std::sort(arrays.begin(), arrays.end());
  int64_t bytes = 0, end = 0;
  for (const auto& [first, last] : arrays) {
    bytes += std::max<int64_t>(0, last - std::max(first, end));
    end = std::max(end, last);
  }
  return bytes;
}

}  // namespace

void Trainer::State::divide_batch() {
  replicas = logical_replicas(recipe, rank_count());
  if (pipelines()) {  // micro-batches as galley-plan chooses them
    const BatchPlan planned = planned_batch(recipe, planned_job(recipe, rank_count(), cluster_of_cuts()));
    if (replicas == 0) replicas = planned.accumulation * reading_ranks();
  }
  batch = replicas > 0 ? plan_replicas(*recipe.train.batch, replicas, reading_ranks()) : plan_batch(*recipe.train.batch, reading_ranks());
  check_offload(recipe, batch);
}

void Trainer::State::make_engine() {
  engine = std::make_unique<Engine>(session.backend(logical_replicas(recipe, rank_count()) > 0 ? 1 : 0));
  if (rank_count() == 1) return;
  const Backend& backend = engine->backend();
  devices = backend.connect(*options.ranks, nullptr);
  options.ranks->use_devices(devices.get());
  for (Communicator* group : {static_cast<Communicator*>(tensor_members.get()), static_cast<Communicator*>(sample_members.get())}) {
    if (group == nullptr || devices == nullptr) continue;
    group_devices.push_back(backend.connect(*group, devices.get()));
    group->use_devices(group_devices.back().get());
  }
}

void Trainer::State::make_plan() {
  if (planned) return;
  const auto started = Clock::now();
  const LongTask compilation(options.ranks != nullptr ? options.ranks->position() : nullptr);
  check_facts();
  if (options.ranks != nullptr) check_ranks(recipe, *options.ranks);
  make_groups();
  divide_batch();
  open_loaders(0);
  check_data();
  const int64_t samples = loader->epoch_samples();
  if (recipe.data.train.last_batch == LastBatch::kDrop && samples == 0) {
    throw Error(ErrorCode::kRecipe,
                cat("train.batch is ", batch.micro, ", data.train has fewer samples, and last_batch is drop, so there are no batches"))
        .key("train.batch")
        .suggest("use a smaller batch, or data.train.last_batch: wrap");
  }
  std::vector<BatchTypes> shorter;
  if (replicas > 0) {
    shorter = replica_types();
  } else {
    shorter = session.all_batch_types(*loader);
  }
  const BatchTypes types = shorter.front();
  shorter.erase(shorter.begin());
  // Steps per epoch: a whole number with drop and keep; wrapped batches extend into the next epoch, so there it may be fractional.
  const double per_epoch = static_cast<double>(samples) / static_cast<double>(batch.global);
  length.samples_per_step = static_cast<double>(batch.global);
  length.tokens_per_step = static_cast<double>(batch.global * session.tokens_of(types));
  length.steps_per_epoch = recipe.data.train.last_batch == LastBatch::kWrap ? per_epoch : std::ceil(per_epoch);
  const Duration& duration = *recipe.train.duration;
  if (duration.unit == DurationUnit::kSeconds) {
    time_limit_s = duration.value;
  } else {
    length.total_steps = static_cast<int64_t>(std::ceil(steps_of(duration, length) - 1e-9));
    if (length.total_steps < 1)
      throw Error(ErrorCode::kRecipe, cat("train.duration: ", duration.str(), " is less than one step")).key("train.duration");
  }
  make_engine();
  const ReplicaChoice choice{.count = static_cast<int>(replicas), .threads = replica_threads()};
  if (offloads_to_disk(recipe.sharding)) disk = std::make_unique<DiskDevice>(options.run);
  update = std::make_unique<TrainStep>(session, *engine, types, batch, length, shorter, sample_ranks(), choice, disk.get(), tensor_ranks());
  static_cast<void>(prompt_tokens());  // its errors
  make_divided_state();
  if (recipe.data.val) {
    int64_t samples_at_once = recipe.data.val->batch.value_or(batch.micro * std::max<int64_t>(1, replicas));
    if (logical_replicas(recipe, rank_count()) > 0) samples_at_once = (samples_at_once + replicas - 1) / replicas;
    const auto make = [&](const QuantizationAware* aware) {
      return std::make_unique<Evaluator>(
          session, *engine, nullptr, "val", samples_at_once, recipe.train.validate ? recipe.train.validate->samples.value_or(0) : 0,
          aware != nullptr ? aware->fake_quantize() : update->gather_pass(), std::nullopt, update->captured_pass());
    };
    evaluator = make(update->quantization());
    if (update->quantization() != nullptr && !update->quantized_at(1)) float_evaluator = make(nullptr);
  }
  const Shape& fed = evaluator ? evaluator->program().graph().type(evaluator->program().graph().find_input(types.inputs.front())).shape
                               : types.input().shape;
  for (int d = 1; d < fed.rank(); ++d) sample_shape.push_back(fed[d]);
  if (const int64_t tokens = session.tokens_of(types); tokens > 0) {
    plan.rate = "tok/s";
    plan.rate_per_sample = tokens;
  } else if (types.input().shape.rank() == 4) {
    plan.rate = "img/s";
  } else if (types.input().shape.rank() == 5) {
    plan.rate = "clip/s";
  }
  plan_facts();
  plan_peak();
  plan.compilations = static_cast<int>(engine->compilations().size());
  plan.compile_s = seconds_since(started);
  planned = true;
}

/// What checkpoints and files of weights need of arrays that ranks divide.
void Trainer::State::make_divided_state() {
  std::unique_ptr<ShardedState> ranges;
  Communicator *const samples = sample_ranks(), *const matrices = tensor_ranks();
  if (const auto* buckets = update->shards())
    ranges = std::make_unique<ShardedState>(*samples, shard_groups(recipe, samples), update->store(), *buckets, update->states(),
                                            divides_parameters(recipe, samples));
  if (matrices != nullptr && ranges) {
    sharded = std::make_unique<MeshState>(*options.ranks, *matrices, std::move(ranges), update->store(), update->divisions(),
                                          update->parameters(), update->states());
  } else if (matrices != nullptr) {
    sharded = std::make_unique<TensorState>(*matrices, update->store(), update->divisions(), update->parameters(), update->states(),
                                            reading_rank() == 0);
  } else {
    sharded = std::move(ranges);
  }
  if (is_pipeline(recipe, options.ranks)) make_stage_state();
}

/// The tensors of files of weights, which stages hold.
void Trainer::State::make_stage_state() {
  std::vector<StageState::Entry> entries;
  for (const ParameterSpec& spec : update->parameters()) {
    const int root = update->giver_of(spec.name);
    entries.push_back({spec.name, spec.type, root});
    const bool averaged = recipe.train.ema && (spec.trainable || spec.role == ValueRole::kBuffer);
    if (averaged) entries.push_back({spec.name + ".ema", spec.type, root});
  }
  stages = std::make_unique<StageState>(*options.ranks, update->store(), std::move(entries));
}

/// What the compiled step does.
void Trainer::State::plan_facts() {
  plan.global = batch.global;
  plan.micro = batch.micro;
  plan.accumulation = batch.accumulation;
  plan.replicas = replicas;
  plan.micro_batches = pipelines() && logical_replicas(recipe, rank_count()) == 0;
  plan.total_steps = length.total_steps;
  plan.steps_per_epoch = length.steps_per_epoch;
  int64_t adapter_tensors = 0;  // two of each adapter
  for (const ParameterSpec& spec : update->parameters()) {
    if (spec.role != ValueRole::kParameter) continue;
    plan.parameters += spec.type.elements();
    if (spec.trainable) plan.trainable += spec.type.elements();
    adapter_tensors += spec.module_type == kAdapterType && is_adapter_tensor(spec.name);
  }
  plan.adapters = adapter_tensors / 2;
  for (const StateSpec& state : update->states()) plan.state_bytes += state.type.bytes();
  std::tie(plan.flops_per_step, plan.executed_per_step) = update->flops();
  plan.on_host = engine->backend().device().is_host();
  for (const LayoutReport::Reorder& reorder : update->program().report().layout.reorders) plan.reorders += !reorder.weight && !reorder.free;
  plan.widened = update->program().report().rewrites.widened;
  plan.attention = update->attention();
  if (!loader->pixels().empty()) {
    plan.images = "in bytes, normalized on the device";
  } else if (!loader->float_reason().empty()) {
    plan.images = cat("in f32: ", loader->float_reason());
  }
  plan.warnings = update->program().report().warnings;
  const bool several = update->quantization() != nullptr || replicas > 0;  // programs with arrays of their own
  plan.persistent_bytes = several ? update->store().bytes() : update->program().persistent_bytes();
  if (offloads_to_host(recipe.sharding) && recipe.device.is_gpu()) {
    for (const std::string& name : update->store().names()) {
      const Tensor& array = update->store().tensor(name);
      if (array.storage()->host_access()) plan.persistent_bytes -= array.bytes();
    }
  }
  plan.scratch_bytes = update->scratch_bytes();
  for (const Evaluator* each : {evaluator.get(), float_evaluator.get()}) {
    if (each != nullptr) plan.scratch_bytes = std::max(plan.scratch_bytes, each->program().scratch_bytes());
  }
  plan.scratch_bytes += update->replica_bytes();
}

/// The most memory that a phase of the run takes: training, an evaluation, writing parameters and state, or loading weights, which comes
/// before the arena is allocated.
void Trainer::State::plan_peak() {
  plan.base_bytes = resident_bytes() - update->store().bytes();
  int64_t prepared = 0, evaluation = 0;
  for (const Evaluator* each : {evaluator.get(), float_evaluator.get()}) {
    if (each == nullptr) continue;
    prepared += each->program().prepared_bytes() * (recipe.train.ema ? 2 : 1);
    evaluation = std::max(evaluation, each->data_bytes());
  }
  int64_t loading = 0;  // one array of a file at a time, and its conversion
  for (const ParameterSpec& spec : update->parameters()) {
    if (!recipe.weights.load.empty()) loading = std::max(loading, 2 * spec.type.bytes());
  }
  if (disk != nullptr) {
    plan.disk_bytes = disk->bytes();
    plan.persistent_bytes += std::min(plan.disk_bytes, 2 * kOffloadWindow) - plan.disk_bytes;
  }
  int64_t writing = update->store().largest_view_copy();
  for (const ParameterSpec& spec : update->parameters()) {
    if (stages) writing = std::max(writing, 2 * spec.type.bytes());  // of another stage, and the copy that is sent
  }
  if (const Communicator* matrices = tensor_ranks()) {  // the whole of one, the own part, and that of another rank
    for (const ParameterSpec& spec : update->parameters()) {
      if (update->divisions().count(spec.name) == 0) continue;
      writing = std::max(writing, spec.type.bytes() + 2 * spec.type.bytes() / matrices->size());
    }
  }
  if (gathers_parameters()) {  // one unit at a time is whole on each rank, and one of its parameters on rank 0
    for (const GradientBucket& unit : *update->shards()) {
      int64_t largest = 0;
      for (const Shape& shape : unit.shapes) largest = std::max(largest, shape.elements());
      const int64_t elements = unit.layout.padded(shard_groups(recipe, sample_ranks()).ranks) + (writes() ? largest : 0);
      writing = std::max(writing, elements * dtype_size(unit.dtype));
    }
  }
  plan.base_bytes += std::max(evaluation, writing);
  // Of the scratch memory of other processes on this machine, a rank maps its segments.
  if (shares_scratch()) {
    const int sharing = options.ranks->sharing_memory();
    plan.base_bytes += reached_bytes(update->program()) / sharing * (sharing - 1);
  }
  if (rank_count() > 1 && engine->backend().device().is_host()) plan.base_bytes += options.ranks->buffer_bytes(update->largest_sum());
  if (!plan.on_host) {  // of the device's memory: inputs, and the two slots through which each arrives
    plan.base_bytes = 3 * update->program().feed_bytes();
    if (evaluator != nullptr) plan.base_bytes += 3 * evaluator->program().feed_bytes();
  }
  plan.planned_peak_bytes = plan.base_bytes + plan.persistent_bytes + std::max(plan.scratch_bytes + prepared, loading);
}

/// What the engine's arena needs, and of memory that ranks have in common.
std::pair<int64_t, int64_t> Trainer::State::arena_bytes() const {
  std::vector<const Program*> programs = update->programs();
  for (const Evaluator* each : {evaluator.get(), float_evaluator.get()}) {
    if (each != nullptr) programs.push_back(&each->program());
  }
  std::pair<int64_t, int64_t> most;
  for (const Program* program : programs)
    most = {std::max(most.first, program->memory().arena_bytes), std::max(most.second, program->memory().common_bytes)};
  return most;
}

/// Threads reach all memory anyway; replicas have sums that are shared.
bool Trainer::State::shares_scratch() const {
  return rank_count() > 1 && replicas == 0 && engine->backend().device().is_host() && options.ranks->sharing_memory() > 1;
}

}  // namespace galley
