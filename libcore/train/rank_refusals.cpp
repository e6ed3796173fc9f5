#include "libcore/train/rank_refusals.h"

#include <algorithm>

#include "libcore/base/log.h"
#include "libcore/comm/communicator.h"
#include "libcore/comm/local.h"
#include "libcore/infer/stored_weights.h"
#include "libcore/recipe/sections.h"
#include "libcore/train/capture_training.h"
#include "libcore/train/offload.h"
#include "libcore/train/rank_roles.h"

namespace galley {
namespace {

[[noreturn]] void refuse(const char* key, const std::string& message, const char* suggestion) {
  throw Error(ErrorCode::kRecipe, message).key(key).suggest(suggestion);
}

/// Throws Error (kRecipe) for what does not go together with tensor parallelism.
void check_matrix_ranks(const Recipe& recipe, const MeshSection& mesh, ShardingStrategy strategy) {
  const ShardingSection& sharding = recipe.sharding;
  const bool replicates = strategy == ShardingStrategy::kTensor || strategy == ShardingStrategy::kDdp;
  if (strategy == ShardingStrategy::kPipeline || mesh.pipe > 1)
    refuse(
        "sharding.strategy", "sharding: pipeline with a mesh that divides matrices can be planned by galley-plan, but not trained yet",
        "write strategy: tensor or ddp with mesh: {data: N, tensor: N}, zero1, zero2 or fsdp with mesh: {shard: N, tensor: N}, or hybrid "
        "with mesh: {data: N, shard: N, tensor: N}");
  if (strategy != ShardingStrategy::kHybrid && (replicates ? mesh.shard : mesh.data) > 1)
    refuse("sharding.mesh", cat("besides the ranks that divide matrices, those of ", name_of(strategy), " are on one axis of the mesh"),
           replicates ? "write mesh: {data: N, tensor: N}" : "write mesh: {shard: N, tensor: N}");
  if (recipe.train.sync_batch_norm && recipe.deterministic.replicas > 0)
    refuse("train.sync_batch_norm", "replicas whose matrices ranks divide are computed one after the other, and cannot normalize together",
           "write train.sync_batch_norm: false, or sharding: fsdp");
  if (stored_plan(recipe) != nullptr)
    refuse("lora", "the weights under the adapters are stored as integers, which ranks do not divide", "write sharding: ddp or fsdp");
  if (sharding.hook && sharding.hook->kind().factors())
    refuse("sharding.hook", "the hook power_sgd does not sum gradients of divided matrices", "write hook: bf16, or hook: null");
  if (recipe.train.validate && !recipe.train.validate->prompts.empty())
    refuse("train.validate.prompts", "sharding: tensor continues no prompts in validation", "write sharding: zero2, or use galley-predict");
}

/// Throws Error (kRecipe) for devices, and for what GPUs do not do, on several ranks.
void check_device(const Recipe& recipe, const JobRanks& job) {
  const int ranks = job.ranks;
  if (!recipe.device.is_gpu())
    refuse("device", cat("device: ", recipe.device.str(), " trains on one rank, but there are ", ranks), "write device: cpu");
  if (job.threads)
    refuse("device", cat("device: ", recipe.device.str(), " has a GPU for each process, but the ranks are threads of one process"),
           "start them by mpirun -np N, or write device: cpu");
}

/// Throws Error (kRecipe) for what does not go together with a pipeline.
void check_pipeline(const Recipe& recipe, int ranks) {
  const MeshSection mesh = resolve_mesh(recipe.sharding, ranks, ranks);
  if (mesh.pipe < 2 || mesh.pipe * mesh.data != ranks)
    refuse("sharding.mesh", "sharding: pipeline has the axes pipe, with at least two stages, and data", "write mesh: {data: M, pipe: N}");
  if (recipe.train.sync_batch_norm)
    refuse("train.sync_batch_norm",
           "stages compute micro-batches one after the other, so that batch norms cannot normalize by the whole batch",
           "write train.sync_batch_norm: false, or sharding: ddp");
  if (recipe.train.validate && !recipe.train.validate->prompts.empty())
    refuse("train.validate.prompts", "sharding: pipeline continues no prompts in validation", "write sharding: ddp, or use galley-predict");
}

/// Throws Error (kRecipe) if ranks are to divide embedding tables.
void check_tables(const TablesSection& tables) {
  const auto divides = [](TableSharding table) { return table != TableSharding::kAuto && table != TableSharding::kDataParallel; };
  bool any = divides(tables.sharding);
  for (size_t i = 0; i < tables.overrides.size(); ++i) any |= divides(tables.overrides.at<TableOverride>(i).sharding);
  if (any)
    refuse("sharding.tables", "galley-plan plans divided embedding tables, but galley-train does not train them yet",
           "write sharding.tables.sharding: data_parallel, or sharding: fsdp");
}

}  // namespace

void check_ranks(const Recipe& recipe, const Communicator& ranks) {
  check_ranks(recipe, {.ranks = ranks.size(), .per_machine = ranks.per_machine(), .threads = ranks.transport() == kThreads});
}

void check_ranks(const Recipe& recipe, const JobRanks& job) {
  const int ranks = job.ranks;
  if (ranks == 1) return;
  const ShardingSection& sharding = recipe.sharding;
  const ShardingStrategy strategy = resolve_strategy(sharding, ranks);
  if (strategy == ShardingStrategy::kNone)
    refuse("sharding.strategy", cat("sharding: none trains on one rank, but there are ", ranks),
           "write sharding: ddp, or start one process");
  check_tables(sharding.tables);
  const bool hybrid = strategy == ShardingStrategy::kHybrid;
  if (hybrid && !sharding.mesh && job.per_machine == 0)
    refuse("sharding.mesh", "the machines of the job have different numbers of ranks, or ranks that are not consecutive",
           "write mesh: {data: M, shard: N}, or start as many ranks on each machine, in order (mpirun --map-by slot)");
  if (recipe.device.str() != "cpu") check_device(recipe, job);
  const MeshSection mesh = resolve_mesh(sharding, ranks, job.per_machine > 0 ? job.per_machine : ranks);
  if (mesh.tensor > 1) return check_matrix_ranks(recipe, mesh, strategy);
  const bool pipeline = strategy == ShardingStrategy::kPipeline;
  if (pipeline) check_pipeline(recipe, ranks);
  if (strategy == ShardingStrategy::kTensor)
    refuse("sharding.mesh", "sharding: tensor divides matrices, but mesh.tensor is 1",
           "write mesh: {data: M, tensor: N}, or sharding: ddp");
  const bool divides = hybrid ? mesh.shard > 1 : !pipeline && strategy != ShardingStrategy::kDdp;
  if (hybrid && mesh.data * mesh.shard != ranks)
    refuse("sharding.mesh", "sharding: hybrid has the axes data and shard", "write mesh: {data: M, shard: N}");
  if (!pipeline && !hybrid && (divides ? mesh.shard : mesh.data) != ranks)
    refuse("sharding.mesh", cat("galley-train puts all ", ranks, " ranks on one axis of the mesh"),
           divides ? "write mesh: null, mesh: {shard: N}, or sharding: hybrid" : "write mesh: null, or mesh: {data: N}");
  if (sharding.hook && sharding.hook->kind().factors() && recipe.precision.reduce != PrecisionName::kF32)
    refuse("precision.reduce", "the hook power_sgd sums factors in f32", "write reduce: f32, or hook: null");
  if (sharding.hook && sharding.hook->kind().factors() && loss_scaling(recipe))
    refuse("sharding.hook", "the hook power_sgd keeps errors of gradients, which a step that is skipped would spoil (precision.loss_scale)",
           "write hook: bf16, hook: null, or precision: bf16");
  if (divides && (hybrid || strategy == ShardingStrategy::kFsdp) && recipe.train.validate && !recipe.train.validate->prompts.empty())
    refuse("train.validate.prompts", cat("sharding: ", name_of(strategy), " continues no prompts in validation"),
           "write sharding: zero2, or use galley-predict");
}

void check_offload(const Recipe& recipe, const BatchPlan& batch) {
  if (!recipe.sharding.offload) return;
  const OffloadSection& offload = *recipe.sharding.offload;
  if (offloads_to_host(recipe.sharding) && !recipe.device.is_gpu())
    log(LogLevel::kInfo, "sharding.offload: host changes nothing on device: cpu, whose memory is the host's");
  if (recipe.device.is_gpu() && offload.parameters && recipe.sharding.strategy != ShardingStrategy::kFsdp)
    refuse("sharding.offload.parameters", cat("device: ", recipe.device.str(), " keeps parameters in its memory, unless ranks divide them"),
           "remove the key, or write strategy: fsdp");
  if (!offloads_to_disk(recipe.sharding)) return;
  if (recipe.device.str() != "cpu")
    refuse("sharding.offload", cat("device: ", recipe.device.str(), " keeps all arrays in its memory"),
           "write offload: null, or device: cpu");
  if (recipe.deterministic.replicas > 0 && offload.gradients && !offload.gradients->host)
    refuse("sharding.offload.gradients", "deterministic adds the gradients of replicas in memory, so that none are kept on the disk",
           "remove the key, or write deterministic: false");
  if (offload.gradients && !offload.gradients->host && batch.accumulation == 1)
    refuse("sharding.offload.gradients",
           "gradients of batches that are not divided exist only within a step, so that none are kept on the disk",
           "remove the key, or set a smaller train.batch.micro");
}

}  // namespace galley
