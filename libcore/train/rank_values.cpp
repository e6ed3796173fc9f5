#include "libcore/train/rank_values.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "libcore/base/digest.h"
#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/comm/communicator.h"
#include "libcore/comm/local.h"
#include "libcore/comm/rank_scope.h"
#include "libcore/comm/texts.h"
#include "libcore/infer/stored_weights.h"
#include "libcore/recipe/differences.h"
#include "libcore/recipe/sections.h"
#include "libcore/train/capture_training.h"
#include "libcore/train/host_array.h"
#include "libcore/train/offload.h"
#include "libcore/train/trainer_state.h"

namespace galley {
namespace {

constexpr char kSeparator = '\x1e';  // of texts that ranks exchange; not in recipes

/// The first key whose values differ in two recipes; their texts differ.
KeyDifference first_difference(const std::string& before, const std::string& after) {
  const auto tree = [](const std::string& text) { return parse_yaml(std::make_shared<TextSource>(TextSource{"recipe", text})); };
  const std::vector<KeyDifference> found = differences(tree(before), tree(after));
  return found.empty() ? KeyDifference{"recipe", digest_of(before), digest_of(after)} : found.front();
}

}  // namespace

ShardGroups shard_groups(const Recipe& recipe, const Communicator* ranks) {
  if (ranks == nullptr) return {};
  switch (resolve_strategy(recipe.sharding, ranks->size())) {
    case ShardingStrategy::kZero1:
    case ShardingStrategy::kZero2:
    case ShardingStrategy::kFsdp: return {.rank = ranks->rank(), .ranks = ranks->size()};
    case ShardingStrategy::kHybrid: {
      const auto shard = static_cast<int>(resolve_mesh(recipe.sharding, ranks->size(), std::max(1, ranks->per_machine())).shard);
      return {.rank = ranks->rank() % shard, .ranks = shard, .copies = ranks->size() / shard};
    }
    default: return {.copies = ranks->size()};
  }
}

bool is_pipeline(const Recipe& recipe, const Communicator* ranks) {
  return ranks != nullptr && ranks->size() > 1 && recipe.sharding.strategy == ShardingStrategy::kPipeline;
}

PipelineRanks pipeline_ranks_of(const Recipe& recipe, const Communicator& ranks) {
  const MeshSection mesh = resolve_mesh(recipe.sharding, ranks.size(), ranks.size());
  PipelineRanks place{.stages = static_cast<int>(mesh.pipe), .copies = static_cast<int>(mesh.data)};
  place.stage = ranks.rank() / place.copies;
  place.copy = ranks.rank() % place.copies;
  return place;
}

/// The mesh of the job: as galley-plan, tensor parallelism stays inside a machine where the recipe names no mesh.
MeshSection mesh_of(const Recipe& recipe, const Communicator& ranks) {
  return resolve_mesh(recipe.sharding, ranks.size(), ranks.per_machine() > 0 ? ranks.per_machine() : ranks.size());
}

bool divides_state(const Recipe& recipe, const Communicator* ranks) { return shard_groups(recipe, ranks).ranks > 1; }

bool divides_parameters(const Recipe& recipe, const Communicator* ranks) {
  if (!divides_state(recipe, ranks)) return false;
  const ShardingStrategy strategy = resolve_strategy(recipe.sharding, ranks->size());
  return strategy == ShardingStrategy::kFsdp || strategy == ShardingStrategy::kHybrid;
}

int matrix_ranks(const Recipe& recipe, const Communicator* ranks) {
  return ranks == nullptr || ranks->size() == 1 ? 1 : static_cast<int>(mesh_of(recipe, *ranks).tensor);
}

namespace {

/// Throws Error (kRecipe) for what does not go together with tensor parallelism.
void check_matrix_ranks(const Recipe& recipe, const Communicator& communicator) {
  const auto refuse = [](const char* key, const std::string& message, const char* suggestion) {
    throw Error(ErrorCode::kRecipe, message).key(key).suggest(suggestion);
  };
  const ShardingSection& sharding = recipe.sharding;
  const MeshSection mesh = mesh_of(recipe, communicator);
  const ShardingStrategy strategy = resolve_strategy(sharding, communicator.size());
  const bool replicates = strategy == ShardingStrategy::kTensor || strategy == ShardingStrategy::kDdp;
  if (strategy == ShardingStrategy::kHybrid || strategy == ShardingStrategy::kPipeline || mesh.pipe > 1)
    refuse("sharding.strategy",
           cat("sharding: ", mesh.pipe > 1 ? "pipeline" : name_of(strategy),
               " with a mesh that divides matrices can be planned by galley-plan, but not trained yet"),
           "write strategy: tensor or ddp with mesh: {data: N, tensor: N}, or zero1, zero2 or fsdp with mesh: {shard: N, tensor: N}");
  if ((replicates ? mesh.shard : mesh.data) > 1)
    refuse("sharding.mesh", cat("besides the ranks that divide matrices, those of ", name_of(strategy), " are on one axis of the mesh"),
           replicates ? "write mesh: {data: N, tensor: N}" : "write mesh: {shard: N, tensor: N}");
  if (recipe.train.sync_batch_norm && recipe.deterministic.replicas > 0)
    refuse("train.sync_batch_norm", "replicas whose matrices ranks divide are computed one after the other, and cannot normalize together",
           "write train.sync_batch_norm: false, or sharding: fsdp");
  if (stored_plan(recipe) != nullptr)
    refuse("lora", "the weights under the adapters are stored as integers, which ranks do not divide", "write sharding: ddp or fsdp");
  if (sharding.hook && sharding.hook->type == HookType::kPowerSgd)
    refuse("sharding.hook", "the hook power_sgd does not sum gradients of divided matrices", "write hook: bf16, or hook: null");
  if (recipe.train.validate && !recipe.train.validate->prompts.empty())
    refuse("train.validate.prompts", "sharding: tensor continues no prompts in validation", "write sharding: zero2, or use galley-predict");
}

/// Throws Error (kRecipe) for devices, and for what GPUs do not do, on several ranks.
void check_device(const Recipe& recipe, const Communicator& communicator) {
  const int ranks = communicator.size();
  const auto refuse = [](const char* key, const std::string& message, const char* suggestion) {
    throw Error(ErrorCode::kRecipe, message).key(key).suggest(suggestion);
  };
  if (!recipe.device.is_gpu())
    refuse("device", cat("device: ", recipe.device.str(), " trains on one rank, but there are ", ranks), "write device: cpu");
  if (communicator.transport() == kThreads)
    refuse("device", cat("device: ", recipe.device.str(), " has a GPU for each process, but the ranks are threads of one process"),
           "start them by mpirun -np N, or write device: cpu");
  const ShardingStrategy strategy = resolve_strategy(recipe.sharding, ranks);
  const MeshSection mesh = resolve_mesh(recipe.sharding, ranks, ranks);
  if (mesh.pipe > 1)
    refuse("sharding.strategy", cat("sharding: ", name_of(strategy), " does not train on device: ", recipe.device.str(), " yet"),
           "write sharding: ddp, zero1, zero2, fsdp, hybrid or tensor, or device: cpu");
}

}  // namespace

void check_ranks(const Recipe& recipe, const Communicator& communicator) {
  const int ranks = communicator.size();
  if (ranks == 1) return;
  const ShardingSection& sharding = recipe.sharding;
  const ShardingStrategy strategy = resolve_strategy(sharding, ranks);
  const auto refuse = [](const char* key, const std::string& message, const char* suggestion) {
    throw Error(ErrorCode::kRecipe, message).key(key).suggest(suggestion);
  };
  if (strategy == ShardingStrategy::kNone)
    refuse("sharding.strategy", cat("sharding: none trains on one rank, but there are ", ranks),
           "write sharding: ddp, or start one process");
  const auto divides_tables = [](TableSharding table) { return table != TableSharding::kAuto && table != TableSharding::kDataParallel; };
  bool tables = divides_tables(sharding.tables.sharding);
  for (size_t i = 0; i < sharding.tables.overrides.size(); ++i)
    tables |= divides_tables(sharding.tables.overrides.at<TableOverride>(i).sharding);
  if (tables)
    refuse("sharding.tables", "galley-plan plans divided embedding tables, but galley-train does not train them yet",
           "write sharding.tables.sharding: data_parallel, or sharding: fsdp");
  const bool hybrid = strategy == ShardingStrategy::kHybrid;
  if (hybrid && !sharding.mesh && communicator.per_machine() == 0)
    refuse("sharding.mesh", "the machines of the job have different numbers of ranks, or ranks that are not consecutive",
           "write mesh: {data: M, shard: N}, or start as many ranks on each machine, in order (mpirun --map-by slot)");
  if (recipe.device.str() != "cpu") check_device(recipe, communicator);
  if (matrix_ranks(recipe, &communicator) > 1) return check_matrix_ranks(recipe, communicator);
  const bool pipeline = strategy == ShardingStrategy::kPipeline;
  if (pipeline) {
    const MeshSection mesh = resolve_mesh(sharding, ranks, ranks);
    if (mesh.pipe < 2 || mesh.pipe * mesh.data != ranks)
      refuse("sharding.mesh", "sharding: pipeline has the axes pipe, with at least two stages, and data", "write mesh: {data: M, pipe: N}");
    if (recipe.train.sync_batch_norm)
      refuse("train.sync_batch_norm",
             "stages compute micro-batches one after the other, so that batch norms cannot normalize by the whole batch",
             "write train.sync_batch_norm: false, or sharding: ddp");
    if (recipe.train.validate && !recipe.train.validate->prompts.empty())
      refuse("train.validate.prompts", "sharding: pipeline continues no prompts in validation",
             "write sharding: ddp, or use galley-predict");
  }
  const bool divides = divides_state(recipe, &communicator);
  if (strategy != ShardingStrategy::kDdp && !hybrid && !pipeline && !divides)
    refuse("sharding.strategy",
           cat("sharding: ", name_of(strategy), " can be planned by galley-plan, but galley-train does not train with it yet"),
           "write sharding: ddp, zero1, zero2, fsdp, hybrid or tensor");
  const MeshSection mesh = resolve_mesh(sharding, ranks, std::max(1, communicator.per_machine()));
  if (hybrid && mesh.data * mesh.shard != ranks)
    refuse("sharding.mesh", "sharding: hybrid has the axes data and shard", "write mesh: {data: M, shard: N}");
  if (!pipeline && !hybrid && (divides ? mesh.shard : mesh.data) != ranks)
    refuse("sharding.mesh", cat("galley-train puts all ", ranks, " ranks on one axis of the mesh"),
           divides ? "write mesh: null, mesh: {shard: N}, or sharding: hybrid" : "write mesh: null, or mesh: {data: N}");
  if (sharding.hook && sharding.hook->type == HookType::kPowerSgd && recipe.precision.reduce != PrecisionName::kF32)
    refuse("precision.reduce", "the hook power_sgd sums factors in f32", "write reduce: f32, or hook: null");
  if (sharding.hook && sharding.hook->type == HookType::kPowerSgd && loss_scaling(recipe))
    refuse("sharding.hook", "the hook power_sgd keeps errors of gradients, which a step that is skipped would spoil (precision.loss_scale)",
           "write hook: bf16, hook: null, or precision: bf16");
  if (divides_parameters(recipe, &communicator) && recipe.train.validate && !recipe.train.validate->prompts.empty())
    refuse("train.validate.prompts", cat("sharding: ", name_of(strategy), " continues no prompts in validation"),
           "write sharding: zero2, or use galley-predict");
}

void check_offload(const Recipe& recipe, const BatchPlan& batch) {
  if (!recipe.sharding.offload) return;
  const OffloadSection& offload = *recipe.sharding.offload;
  if (offloads_to_host(recipe.sharding) && !recipe.device.is_gpu())
    log(LogLevel::kInfo, "sharding.offload: host changes nothing on device: cpu, whose memory is the host's");
  if (recipe.device.is_gpu() && offload.parameters && recipe.sharding.strategy != ShardingStrategy::kFsdp) {
    throw Error(ErrorCode::kRecipe, cat("device: ", recipe.device.str(), " keeps parameters in its memory, unless ranks divide them"))
        .key("sharding.offload.parameters")
        .suggest("remove the key, or write strategy: fsdp");
  }
  if (!offloads_to_disk(recipe.sharding)) return;
  if (recipe.device.str() != "cpu") {
    throw Error(ErrorCode::kRecipe, cat("device: ", recipe.device.str(), " keeps all arrays in its memory"))
        .key("sharding.offload")
        .suggest("write offload: null, or device: cpu");
  }
  if (recipe.sharding.strategy == ShardingStrategy::kPipeline) {
    throw Error(ErrorCode::kRecipe, "galley-train does not offload the states of pipelines yet")
        .key("sharding.offload")
        .suggest("write offload: null, or sharding: fsdp");
  }
  if (recipe.deterministic.replicas > 0 && offload.gradients && !offload.gradients->host) {
    throw Error(ErrorCode::kRecipe, "deterministic adds the gradients of replicas in memory, so that none are kept on the disk")
        .key("sharding.offload.gradients")
        .suggest("remove the key, or write deterministic: false");
  }
  if (offload.gradients && !offload.gradients->host && batch.accumulation == 1) {
    throw Error(ErrorCode::kRecipe, "gradients of batches that are not divided exist only within a step, so that none are kept on the disk")
        .key("sharding.offload.gradients")
        .suggest("remove the key, or set a smaller train.batch.micro");
  }
}

void check_equal_facts(Communicator& ranks, const RankFacts& own) {
  RankFacts first;
  first.recipe_text = broadcast_text(ranks, "recipe", own.recipe_text, 0);
  first.build = broadcast_text(ranks, "build", own.build, 0);
  first.data = broadcast_text(ranks, "data", own.data, 0);
  first.run = broadcast_text(ranks, "run", own.run, 0);
  std::string found;  // key, message and suggestion of the first difference
  const auto differs = [&](const std::string& key, const std::string& what, const std::string& was, const std::string& is,
                           const char* suggestion) {
    found = cat(key, kSeparator, what, was, " on rank 0, but ", is, " on rank ", ranks.rank(), kSeparator, suggestion);
  };
  if (first.build != own.build) {
    differs("", "the program is ", first.build, own.build, "start the same build on every machine");
  } else if (first.recipe_text != own.recipe_text) {
    const KeyDifference key = first_difference(first.recipe_text, own.recipe_text);
    differs(key.key, cat("the recipes of the ranks differ: ", key.key, " is "), key.before, key.after,
            "give all ranks the same recipe, overrides and environment");
  } else if (first.data != own.data) {
    differs("data", "the data of the ranks differ: ", first.data, own.data, "give all ranks the same files");
  } else if (first.run != own.run) {
    differs("", "the folder RUN is ", first.run, own.run, "write it with -o to a file system that all machines share");
  }
  const std::string message = first_text(ranks, found);
  if (message.empty()) return;
  const size_t key_end = message.find(kSeparator), message_end = message.rfind(kSeparator);
  const std::string key = message.substr(0, key_end);
  Error error(key.empty() ? ErrorCode::kWorker : ErrorCode::kRecipe, message.substr(key_end + 1, message_end - key_end - 1));
  if (!key.empty()) error.key(key);
  throw error.suggest(message.substr(message_end + 1));
}

void share_metrics(Communicator& ranks, std::optional<MetricValues>& metrics) {
  std::string names;
  std::vector<double> values;
  if (metrics) {
    for (const auto& [name, value] : *metrics) {
      names += name + "\n";
      values.push_back(value);
    }
  }
  int32_t given = metrics.has_value();
  ranks.broadcast("metrics", &given, 1, DType::kI32, 0);
  if (given == 0) {
    metrics.reset();
    return;
  }
  names = broadcast_text(ranks, "metrics", names, 0);
  std::vector<std::string> list;
  for (size_t at = 0; at < names.size();) {
    const size_t end = names.find('\n', at);
    list.push_back(names.substr(at, end - at));
    at = end + 1;
  }
  values.resize(list.size());
  if (!values.empty()) ranks.broadcast("metrics", values.data(), static_cast<int64_t>(values.size()), DType::kF64, 0);
  metrics.emplace();
  for (size_t i = 0; i < list.size(); ++i) metrics->emplace_back(list[i], values[i]);
}

int64_t Trainer::State::agreed(const char* name, int64_t value) const {
  if (options.ranks != nullptr) options.ranks->all_reduce(name, &value, &value, 1, DType::kI64, ReduceOp::kMax);
  return value;
}

double Trainer::State::of_rank_0(const char* name, double value) const {
  if (options.ranks != nullptr) options.ranks->broadcast(name, &value, 1, DType::kF64, 0);
  return value;
}

/// The signal that one of the ranks received; SIGTERM's number for a file RUN/stop, which is removed.
int Trainer::State::asked_to_stop(TrainEvents& events) {
  int64_t signal = events.stop_signal();
  const std::string file = options.run + "/stop";
  if (signal == 0 && writes() && file_exists(file)) {
    remove_tree(file);
    stop_file = true;
  }
  constexpr int kTerminate = 15;
  if (stop_file) signal = kTerminate;
  return static_cast<int>(agreed("signals", signal));
}

void Trainer::State::check_equal_digests(const std::string& digest) const {
  if (options.ranks == nullptr || divides_weights() || stages) return;
  const std::string first = broadcast_text(*options.ranks, "digest", digest, 0);
  const std::string differs =
      first == digest ? "" : cat("rank ", own_rank(), " has other parameters than rank 0: ", digest, ", not ", first);
  const std::string message = first_text(*options.ranks, differs);
  GALLEY_ASSERT(message.empty(), message);
}

/// Throws on all ranks if they do not train the same.
void Trainer::State::check_facts() {
  if (rank_count() == 1) return;
  RankFacts facts;
  facts.recipe_text = recipe_text;
  const auto provenance = nlohmann::json::parse(options.provenance);
  for (const char* key : {"version", "commit", "isa"}) {
    const std::string value = provenance.value(key, std::string());
    if (!value.empty()) facts.build += (facts.build.empty() ? "" : ", ") + value;
  }
  for (const char* split : {"train", "val"}) {
    if (recipe.data.find(split) == nullptr) continue;
    const std::shared_ptr<const Source> source = session.source(split);
    facts.data += cat(facts.data.empty() ? "" : "; ", "data.", split, " has ", source->size(), " samples");
    if (source->size() > 0) facts.data += cat(" from ", source->sample_name(0), " to ", source->sample_name(source->size() - 1));
  }
  facts.run = file_exists(options.run) ? "there" : "not there";
  check_equal_facts(*options.ranks, facts);
}

void Trainer::State::on_rank_0(const std::function<void()>& write) {
  const auto finish = [this] {
    if (sharded) sharded->finish();
    if (stages) stages->finish();
  };
  if (!writes()) {
    if (sharded) sharded->serve();
    if (stages) stages->serve();
    return;
  }
  try {
    write();
  } catch (const Error&) {
    finish();
    throw;
  }
  finish();
}

/// The digest of the current parameters. It excludes buffers (running statistics), which depend on the division of the batch.
std::string Trainer::State::digest() {
  std::string digest;
  const auto compute = [&] {
    std::vector<TensorSource> tensors;
    for (const ParameterSpec& spec : update->parameters()) {
      if (spec.role == ValueRole::kParameter) tensors.push_back(source_of(spec.name, spec));
    }
    digest = digest_of_tensors(tensors);
  };
  if (!divides_weights() && !stages) {
    compute();
    return digest;
  }
  on_rank_0(compute);
  return broadcast_text(*options.ranks, "digest", digest, 0);
}

TensorSource Trainer::State::source_of(const std::string& name, const ParameterSpec& spec) {
  TensorSource source{spec.name, spec.type.dtype, spec.type.shape, [&store = update->store(), name] { return store.view(name); }};
  if (sharded && sharded->has(name)) source = sharded->source(name);
  if (stages && stages->has(name)) source = stages->source(name);
  source.name = spec.name;
  const DType dtype = dtype_in_files(spec);
  if (dtype == source.dtype) return source;
  source.values = [values = std::move(source.values), dtype] { return values().to(dtype); };
  source.dtype = dtype;
  return source;
}

void Trainer::State::count_samples() {
  if (rank_count() == 1) return;
  const std::array<int64_t, 2> own{own_skipped(), own_irregular()};
  // Ranks that divide matrices, and the stages of a pipeline, read the same samples.
  const bool counts = pipelines() ? own_rank() < reading_ranks() : own_rank() % (rank_count() / reading_ranks()) == 0;
  std::array<int64_t, 2> all = counts ? own : std::array<int64_t, 2>{};
  options.ranks->all_reduce("samples", all.data(), all.data(), 2, DType::kI64);
  skipped_elsewhere = all[0] - own[0];
  irregular_elsewhere = all[1] - own[1];
}

void Trainer::State::share_buffers() {
  if (stages) return;  // one stage has each of them
  ParameterStore& store = update->store();
  for (const ParameterSpec& spec : update->parameters()) {
    if (spec.role != ValueRole::kBuffer) continue;
    for (const std::string& name : {spec.name, spec.name + ".ema"}) {
      if (!store.has(name)) continue;
      HostArray values(store, name);
      options.ranks->broadcast("buffers", values.array().data(), values.array().bytes(), DType::kI8, 0);
      values.changed();
    }
  }
}

std::optional<MetricValues> Trainer::State::evaluate(Evaluator& evaluates, TrainEvents& events) {
  const auto stop = [&] {
    if (options.ranks != nullptr && options.ranks->position() != nullptr) ++options.ranks->position()->polls;  // it gets on
    return recipe.checkpoint.has_value() && events.stop_signal() != 0;
  };
  const Evaluator::Replicas parts{.count = static_cast<int>(recipe.logical_replicas()),
                                  .threads = static_cast<int>(session.threads()),
                                  .collectives = gathers_parameters() || stages};
  const bool by_replicas = parts.count > 0 && evaluates.divides();
  if (rank_count() == 1) return by_replicas ? evaluates.run(stop, nullptr, parts) : evaluates.run(stop);
  const LongTask evaluation(options.ranks->position());
  share_buffers();
  const auto agreed_stop = [&] { return agreed("signals", stop()) != 0; };
  const bool gathers = divides_weights() || stages;
  const RankScope scope(gathers_parameters() ? sample_ranks() : stages ? options.ranks : nullptr, tensor_ranks());
  if (tensor_ranks() != nullptr && by_replicas)
    return evaluates.run(agreed_stop, sample_ranks(), {.count = parts.count, .threads = 1, .collectives = true});
  if (tensor_ranks() != nullptr) return evaluates.run(agreed_stop, evaluates.divides() ? sample_ranks() : nullptr);
  if (by_replicas) return evaluates.run(agreed_stop, options.ranks, parts);
  if (evaluates.divides()) return evaluates.run(agreed_stop, options.ranks);
  if (gathers) return evaluates.run(agreed_stop);  // all ranks evaluate all samples
  std::optional<MetricValues> metrics;
  if (writes()) metrics = evaluates.run(stop);
  share_metrics(*options.ranks, metrics);
  return metrics;
}

bool Trainer::State::pipelines() const { return is_pipeline(recipe, options.ranks); }

int Trainer::State::reading_ranks() const {
  return pipelines() ? pipeline_ranks_of(recipe, *options.ranks).copies : rank_count() / matrix_ranks(recipe, options.ranks);
}

int Trainer::State::reading_rank() const {
  return pipelines() ? pipeline_ranks_of(recipe, *options.ranks).copy : own_rank() / (rank_count() / reading_ranks());
}

Communicator* Trainer::State::tensor_ranks() const {
  if (tensor_members != nullptr) return tensor_members.get();
  return matrix_ranks(recipe, options.ranks) > 1 ? options.ranks : nullptr;
}
Communicator* Trainer::State::sample_ranks() const {
  if (sample_members != nullptr) return sample_members.get();
  return matrix_ranks(recipe, options.ranks) > 1 ? nullptr : options.ranks;
}

void Trainer::State::make_groups() {
  const int tensor = matrix_ranks(recipe, options.ranks);
  if (tensor == 1 || tensor == rank_count()) return;
  tensor_members = std::make_unique<GroupCommunicator>(*options.ranks, tensor_group(own_rank(), tensor));
  sample_members = std::make_unique<GroupCommunicator>(*options.ranks, data_group(own_rank(), rank_count(), tensor));
}

bool Trainer::State::gathers_parameters() const { return divides_parameters(recipe, sample_ranks()); }
bool Trainer::State::divides_weights() const { return gathers_parameters() || matrix_ranks(recipe, options.ranks) > 1; }

LeafRange Trainer::State::own_replicas() const { return ReductionTree(static_cast<int>(replicas), reading_ranks()).owned(reading_rank()); }

std::unique_ptr<DataLoader> Trainer::State::open_loader(int64_t start, int64_t replica) {
  if (replicas == 0) return session.training_loader(batch.micro, start, {.rank = reading_rank(), .ranks = reading_ranks()});
  if (replica < 0) replica = own_replicas().begin;
  return session.training_loader(batch.global, start, {.rank = replica, .ranks = replicas, .of_all = true});
}

void Trainer::State::open_loaders(int64_t start) {
  replica_loaders.clear();
  delivered_by = nullptr;
  loader = open_loader(start);
  if (replicas == 0) return;
  for (int replica = own_replicas().begin + 1; replica < own_replicas().end; ++replica)
    replica_loaders.push_back(open_loader(start, replica));
}

std::vector<BatchTypes> Trainer::State::replica_types() {
  std::vector<BatchTypes> types;
  const auto add = [&](int64_t replica) {
    const std::unique_ptr<DataLoader> other = open_loader(0, replica);
    const std::vector<BatchTypes> all = session.all_batch_types(*other);
    types.insert(types.end(), all.begin(), all.end());
  };
  add(replicas - 1);
  if (batch.global % replicas != 0) add(0);
  return types;
}

int64_t Trainer::State::own_skipped() const {
  int64_t count = loader->skips().skipped;
  for (const auto& other : replica_loaders) count += other->skips().skipped;
  return count;
}

int64_t Trainer::State::own_irregular() const {
  int64_t count = loader->irregular().samples;
  for (const auto& other : replica_loaders) count += other->irregular().samples;
  return count;
}

}  // namespace galley
