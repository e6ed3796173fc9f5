#include "libcore/recipe/sharding_section.h"

#include <algorithm>
#include <cmath>

#include "libcore/base/error.h"
#include "libcore/recipe/unused_sharding.h"

namespace galley {
namespace {

constexpr std::array<HookKind, 3> kHooks{{{"bf16", DType::kBF16}, {"f16", DType::kF16}, {"power_sgd", std::nullopt}}};
constexpr double kMaxRanks = 1 << 20;

Error wrong(const std::string& key, const std::string& message, const std::string& remedy) {
  Error error(ErrorCode::kRecipe, message);
  error.key(key);
  if (!remedy.empty()) error.suggest(remedy);
  return error;
}

/// The axis of the mesh that must stay 1 with this strategy, or "".
std::string_view excess_axis(ShardingStrategy strategy, const MeshSection& mesh) {
  const bool shards = divides_state(strategy);
  if (strategy == ShardingStrategy::kNone && mesh.ranks() > 1) {
    return mesh.data > 1 ? "data" : mesh.shard > 1 ? "shard" : mesh.tensor > 1 ? "tensor" : "pipe";
  }
  return mesh.shard > 1 && !shards && strategy != ShardingStrategy::kAuto ? "shard" : "";
}

}  // namespace

void MeshSection::options(OptionVisitor& v) {
  v.option({.name = "data", .doc = "ranks that hold the same parameters and read different samples", .min = 1, .max = kMaxRanks}, data);
  v.option({.name = "shard",
            .doc = "ranks that divide parameters, gradients or optimizer state, and read different samples",
            .min = 1,
            .max = kMaxRanks},
           shard);
  v.option({.name = "tensor", .doc = "ranks that divide matrices, and read the same samples", .min = 1, .max = kMaxRanks}, tensor);
  v.option({.name = "pipe", .doc = "ranks that hold consecutive parts of the model: stages of a pipeline", .min = 1, .max = kMaxRanks},
           pipe);
}

void ParameterCount::parse(std::string_view text) {
  if (text == "auto") return count.reset();
  const int64_t value = parse_bytes(text);  // k, M and G as in sizes
  GALLEY_CHECK(text.find('B') == std::string_view::npos && value >= 1, "'", text,
               "' is not a number of parameters; write auto, 100M or 25_000_000");
  count = value;
}

std::string ParameterCount::str() const {
  if (!count) return "auto";
  if (*count % 1'000'000 == 0) return cat(*count / 1'000'000, "M");
  return std::to_string(*count);
}

void WrapSection::options(OptionVisitor& v) {
  v.text(
      {.name = "parameters",
       .doc = "a module with at least this many parameters, not counting modules below it that qualify themselves, is a unit; auto: 100M",
       .main = true},
      parameters);
  v.option({.name = "match", .doc = "selectors of modules that are units, instead of the rule by count: names or type:NAME"}, match);
}

void AutoBytes::parse(std::string_view text) {
  if (text == "auto") return size.reset();
  size.emplace().parse(text);
}

std::span<const HookKind> hook_kinds() { return kHooks; }

void HookSection::options(OptionVisitor& v) {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const HookKind& kind : hook_kinds()) all.push_back(kind.name);
    return all;
  }();
  v.choice({.name = "type",
            .doc = "bf16, f16: sum gradients in 16 bits; power_sgd: sum low-rank factors of matrices (Vogels et al. 2019)",
            .required = true,
            .main = true},
           type, names);
  v.option({.name = "rank", .doc = "power_sgd: rank of the factors", .min = 1, .max = 1024}, rank);
  v.option({.name = "warm_start", .doc = "power_sgd: start from the factors of the previous step"}, warm_start);
  v.option({.name = "error_feedback", .doc = "power_sgd: add what the factors leave out to the next gradient"}, error_feedback);
}

void OffloadPlace::parse(std::string_view text) {
  GALLEY_CHECK(text == "disk" || text == "host", "'", text, "' is not a place; write disk, host or null");
  host = text == "host";
}

void OffloadSection::options(OptionVisitor& v) {
  v.option({.name = "parameters",
            .doc = "where parameters (fsdp, hybrid: shards of them) are kept between uses, unit by unit; null: in memory of the device"},
           parameters);
  v.option({.name = "gradients", .doc = "where shards of gradients are kept until the update"}, gradients);
  v.option({.name = "optimizer", .doc = "where optimizer state is kept; with host, a GPU reads and writes it there in the update"},
           optimizer);
}

void TableOverride::options(OptionVisitor& v) {
  v.option({.name = "match", .doc = "selectors of embedding tables", .required = true, .main = true}, match);
  v.option({.name = "except", .doc = "selectors of tables to exclude"}, except);
  v.choice({.name = "sharding", .doc = "as sharding.tables.sharding"}, sharding, kTableShardings);
}

void TablesSection::options(OptionVisitor& v) {
  v.choice(
      {.name = "sharding",
       .doc = "data_parallel: each rank holds the table; table_wise: one rank holds it; row_wise, column_wise: ranks hold ranges of rows "
              "or columns; table_row_wise: the ranks of one node hold ranges of rows; auto: the fastest that fits, for each table of a "
              "model most of whose parameters are in tables, with ddp, zero1 or zero2; other tables as other parameters",
       .main = true},
      sharding, kTableShardings);
  v.list({.name = "overrides", .doc = "sharding of some tables; the first matching item counts"}, overrides.items,
         make_options<TableOverride>);
}

void ShardingSection::options(OptionVisitor& v) {
  v.choice({.name = "strategy",
            .doc = "auto: none on one rank, ddp on more; ddp: ranks hold the model and sum gradients; zero1: they divide optimizer state; "
                   "zero2: and gradients; fsdp: and parameters; hybrid: fsdp in a node, or in the groups of `mesh`, replicated between "
                   "them; pipeline: stages; tensor: "
                   "they divide matrices",
            .main = true},
           strategy, kShardingStrategies);
  v.option({.name = "mesh", .doc = "ranks along each axis; null: by strategy"}, mesh);
  v.section({.name = "wrap", .doc = "fsdp, hybrid: units, whose parameters are gathered together"}, wrap);
  v.option({.name = "reshard_after_forward",
            .doc = "fsdp, hybrid: free gathered parameters after the forward pass and gather them again; false: more memory, less traffic"},
           reshard_after_forward);
  v.text({.name = "gather_limit", .doc = "fsdp, hybrid: bound on gathered parameters, including prefetch; auto: the two largest units"},
         gather_limit);
  v.text({.name = "bucket", .doc = "gradients are summed over ranks in parts of this size"}, bucket);
  v.option({.name = "hook", .doc = "compression of gradients before they are summed; null: none"}, hook);
  v.option({.name = "offload", .doc = "what is kept outside the memory of the device; null: nothing"}, offload);
  v.option({.name = "sequence_parallel",
            .doc = "tensor: norms, dropout and residual sums of a rank's samples instead of all, where the ranks divide the micro-batch: "
                   "less memory for activations"},
           sequence_parallel);
  v.option({.name = "stages", .doc = "pipeline: number of stages; null: mesh.pipe, or all ranks", .min = 1, .max = kMaxRanks}, stages);
  v.choice({.name = "schedule",
            .doc = "pipeline: order of micro-batches; interleaved: a rank holds two parts of the model, for a shorter start and end"},
           schedule, kPipelineSchedules);
  v.option({.name = "split",
            .doc = "pipeline: modules at which stages 2, 3, ... begin; auto: stages of about equal time by the planner's costs"},
           split);
  v.section({.name = "tables", .doc = "how embedding tables are divided"}, tables);
}

void check_sharding(const ShardingSection& sharding, std::vector<Error>& errors) {
  const auto complain = [&](const std::string& key, const std::string& message, const std::string& remedy) {
    errors.push_back(wrong(key, message, remedy));
  };
  const ShardingStrategy strategy = sharding.strategy;
  const std::string name(name_of(strategy));
  const bool pipeline = strategy == ShardingStrategy::kPipeline || (sharding.mesh && sharding.mesh->pipe > 1);
  if (sharding.mesh) {
    if (const std::string_view axis = excess_axis(strategy, *sharding.mesh); !axis.empty())
      complain(cat("sharding.mesh.", axis),
               cat("'sharding.mesh.", axis, "' is above 1, but the strategy ", name, " does not use that axis"),
               strategy == ShardingStrategy::kNone ? "remove the mesh, or change the strategy" : "write data: N, or strategy: fsdp");
    if (sharding.stages && sharding.mesh->pipe != 1 && sharding.mesh->pipe != *sharding.stages)
      complain("sharding.stages", cat("'sharding.stages' is ", *sharding.stages, ", but 'sharding.mesh.pipe' is ", sharding.mesh->pipe),
               "remove one of them");
  }
  if (sharding.stages && *sharding.stages > 1 && !pipeline)
    complain("sharding.stages", cat("'sharding.stages' applies to pipelines, but the strategy is ", name), "write strategy: pipeline");
  const bool automatic = sharding.split == std::vector<std::string>{"auto"};
  if (!automatic && !pipeline)
    complain("sharding.split", cat("'sharding.split' applies to pipelines, but the strategy is ", name), "write strategy: pipeline");
  const int64_t chunks = sharding.schedule == PipelineSchedule::kInterleaved ? 2 : 1;
  const std::optional<int64_t> stages = sharding.stages                            ? sharding.stages
                                        : sharding.mesh && sharding.mesh->pipe > 1 ? std::optional(sharding.mesh->pipe)
                                                                                   : std::nullopt;
  if (!automatic && pipeline && stages && static_cast<int64_t>(sharding.split.size()) != *stages * chunks - 1) {
    complain("sharding.split",
             cat("'sharding.split' names ", sharding.split.size(), " modules, but ", *stages * chunks,
                 chunks > 1 ? " parts (two for each stage) begin at " : " stages begin at ", *stages * chunks - 1),
             "write one module for each stage after the first, or auto");
  }
  if (sharding.bucket.bytes < 1024)
    complain("sharding.bucket", cat("'sharding.bucket' is ", sharding.bucket.bytes, " bytes; it must be at least 1KiB"),
             "write e.g. 25MiB");
  if (sharding.gather_limit.size && sharding.gather_limit.size->bytes < 1)
    complain("sharding.gather_limit", "'sharding.gather_limit' is 0", "write auto, or bytes such as 2GiB");
  if (sharding.wrap.parameters.count && !sharding.wrap.match.empty())
    complain("sharding.wrap", "'sharding.wrap' has both a number of parameters and selectors", "remove one of them");
  if (pipeline && sharding.offload) {
    for (const auto& [key, place] :
         {std::pair("parameters", sharding.offload->parameters), std::pair("gradients", sharding.offload->gradients)}) {
      if (place)
        complain(cat("sharding.offload.", key),
                 cat("'sharding.offload.", key, "' does not apply to pipelines, whose stages run passes of several micro-batches in turn"),
                 "offload the optimizer only, or use fsdp");
    }
  }
  const bool divides_tables = sharding.tables.sharding != TableSharding::kAuto || !sharding.tables.overrides.empty();
  const bool divides_matrices = strategy == ShardingStrategy::kTensor || (sharding.mesh && sharding.mesh->tensor > 1);
  if (divides_tables && (pipeline || divides_matrices))
    complain("sharding.tables", cat("'sharding.tables' does not apply to ", pipeline ? "pipelines" : "tensor parallelism"),
             "use auto, or strategy: ddp, zero1, zero2, fsdp or hybrid");
  if (sharding.hook && pipeline) complain("sharding.hook", "pipelines do not round gradients", "write sharding.hook: null");
  if (sharding.hook && sharding.hook->kind().factors() && (divides_parameters(strategy) || strategy == ShardingStrategy::kZero2)) {
    complain("sharding.hook",
             cat("'sharding.hook' is power_sgd, which needs whole gradients, but with ", name, " a rank sums ranges of them"),
             "use bf16, or strategy: ddp or zero1");
  }
}

std::vector<Error> unused_sharding_keys(const ShardingSection& sharding) {
  std::vector<Error> unused;
  const ShardingStrategy strategy = sharding.strategy;
  const bool automatic = strategy == ShardingStrategy::kAuto;
  const MeshSection mesh = sharding.mesh.value_or(MeshSection());
  const auto only = [&](bool given, bool used, const char* key, const char* where) {
    if (!given || used) return;
    unused.push_back(wrong(cat("sharding.", key),
                           cat("'sharding.", key, "' applies to ", where, ", but the strategy is ", name_of(strategy)), "it is ignored"));
  };
  const bool gathers = divides_parameters(strategy) || (automatic && mesh.shard > 1) || (sharding.offload && sharding.offload->parameters);
  only(sharding.wrap.parameters.count || !sharding.wrap.match.empty(), gathers, "wrap", "fsdp, hybrid and offload.parameters");
  only(sharding.gather_limit.size.has_value(), gathers, "gather_limit", "fsdp, hybrid and offload.parameters");
  only(!sharding.reshard_after_forward, gathers, "reshard_after_forward", "fsdp, hybrid and offload.parameters");
  only(sharding.sequence_parallel, strategy == ShardingStrategy::kTensor || mesh.tensor > 1, "sequence_parallel", "tensor");
  only(sharding.schedule != ShardingSection().schedule, strategy == ShardingStrategy::kPipeline || mesh.pipe > 1, "schedule", "pipeline");
  only(sharding.hook.has_value(), strategy != ShardingStrategy::kNone, "hook", "strategies that sum gradients over ranks");
  if (sharding.hook && !sharding.hook->kind().factors()) {
    const HookSection& hook = *sharding.hook;
    const HookSection usual;
    for (const auto& [key, given] :
         {std::pair("rank", hook.rank != usual.rank), std::pair("warm_start", hook.warm_start != usual.warm_start),
          std::pair("error_feedback", hook.error_feedback != usual.error_feedback)}) {
      if (given)
        unused.push_back(wrong(cat("sharding.hook.", key),
                               cat("'sharding.hook.", key, "' applies to power_sgd, but the hook is ", hook.kind().name), "it is ignored"));
    }
  }
  return unused;
}

ShardingStrategy resolve_strategy(const ShardingSection& sharding, int64_t ranks) {
  if (sharding.strategy != ShardingStrategy::kAuto) return sharding.strategy;
  return ranks == 1 ? ShardingStrategy::kNone : ShardingStrategy::kDdp;
}

MeshSection resolve_mesh(const ShardingSection& sharding, int64_t ranks, int64_t per_node) {
  GALLEY_ASSERT(ranks >= 1 && per_node >= 1);
  if (sharding.mesh) {
    MeshSection mesh = *sharding.mesh;
    if (sharding.stages && mesh.pipe == 1) mesh.pipe = *sharding.stages;
    if (mesh.ranks() != ranks) {
      throw wrong("sharding.mesh",
                  cat("'sharding.mesh' is data ", mesh.data, " x shard ", mesh.shard, " x tensor ", mesh.tensor, " x pipe ", mesh.pipe,
                      " = ", mesh.ranks(), " ranks, but the job has ", ranks),
                  cat("write sizes whose product is ", ranks));
    }
    return mesh;
  }
  MeshSection mesh;
  const auto divided = [&](const char* key, int64_t part, const char* what) {
    if (ranks % part == 0) return ranks / part;
    throw wrong(key, cat(ranks, " ranks are not a multiple of ", part, " ", what), cat("use a multiple of ", part, " ranks"));
  };
  switch (resolve_strategy(sharding, ranks)) {
    case ShardingStrategy::kAuto:
    case ShardingStrategy::kNone:
      if (ranks > 1)
        throw wrong("sharding.strategy", cat("the strategy none is for one rank, but the job has ", ranks), "write ddp or fsdp");
      break;
    case ShardingStrategy::kDdp: mesh.data = ranks; break;
    case ShardingStrategy::kZero1:
    case ShardingStrategy::kZero2:
    case ShardingStrategy::kFsdp: mesh.shard = ranks; break;
    case ShardingStrategy::kHybrid:
      mesh.shard = std::min(per_node, ranks);
      mesh.data = divided("sharding.strategy", mesh.shard, "ranks of a node");
      break;
    case ShardingStrategy::kPipeline:
      mesh.pipe = sharding.stages.value_or(ranks);
      mesh.data = divided("sharding.stages", mesh.pipe, "stages");
      break;
    case ShardingStrategy::kTensor:
      mesh.tensor = std::min(per_node, ranks);
      mesh.data = divided("sharding.strategy", mesh.tensor, "ranks of a node");
      break;
  }
  return mesh;
}

}  // namespace galley
