#pragma once
// The recipe's key `sharding`: how ranks divide a model.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/base/options.h"
#include "libcore/base/units.h"
#include "libcore/dist/strategy.h"
#include "libcore/tensor/dtype.h"

namespace galley {

class Error;

/// sharding.mesh: the number of ranks along each axis. The product is the number of ranks; the last axis changes fastest.
struct MeshSection : OptionsOf<MeshSection> {
  void options(OptionVisitor& v) override;
  int64_t ranks() const { return data * shard * tensor * pipe; }
  int64_t data = 1, shard = 1, tensor = 1, pipe = 1;
};

/// "auto", or a number of parameters: 100M, 25_000_000.
struct ParameterCount : TextValue {
  void parse(std::string_view text) override;
  std::string str() const override;
  std::string_view grammar() const override { return "auto, or a number of parameters: 100M, 25_000_000"; }
  int64_t value_or(int64_t fallback) const { return count.value_or(fallback); }
  std::optional<int64_t> count;  ///< Empty: auto.
};

/// sharding.wrap: the modules whose parameters are gathered together.
struct WrapSection : OptionsOf<WrapSection> {
  void options(OptionVisitor& v) override;
  ParameterCount parameters;
  std::vector<std::string> match;  ///< Selectors of modules. Not empty: these modules instead of the rule by count.
};

/// "auto", or bytes.
struct AutoBytes : TextValue {
  void parse(std::string_view text) override;
  std::string str() const override { return size ? size->str() : "auto"; }
  std::string_view grammar() const override { return "auto, or bytes: 2GiB"; }
  std::optional<ByteSize> size;  ///< Empty: auto.
};

/// A communication hook, by its name in recipes.
struct HookKind {
  std::string_view name;
  std::optional<DType> sum_dtype;  ///< Gradients are summed in it; empty: low-rank factors of matrices are summed (PowerSGD).
  bool factors() const { return !sum_dtype; }
};
/// All hooks. What a hook does is a property of its entry.
std::span<const HookKind> hook_kinds();

/// sharding.hook: compression of gradients before they are summed over ranks.
struct HookSection : OptionsOf<HookSection> {
  void options(OptionVisitor& v) override;
  const HookKind& kind() const { return hook_kinds()[static_cast<size_t>(type)]; }
  int type = 0;  ///< Its place in hook_kinds().
  int64_t rank = 1;
  bool warm_start = true, error_feedback = true;
};

/// disk | host.
struct OffloadPlace : TextValue {
  void parse(std::string_view text) override;
  std::string str() const override { return host ? "host" : "disk"; }
  std::string_view grammar() const override { return "disk (memory-mapped files), or host (memory of the host, for GPUs)"; }
  bool host = false;
};

/// sharding.offload.
struct OffloadSection : OptionsOf<OffloadSection> {
  void options(OptionVisitor& v) override;
  std::optional<OffloadPlace> parameters, gradients, optimizer;
};

/// An item of sharding.tables.overrides.
struct TableOverride : OptionsOf<TableOverride> {
  void options(OptionVisitor& v) override;
  std::vector<std::string> match, except;
  TableSharding sharding = TableSharding::kAuto;
};

/// sharding.tables: how embedding tables are divided.
struct TablesSection : OptionsOf<TablesSection> {
  void options(OptionVisitor& v) override;
  TableSharding sharding = TableSharding::kAuto;
  OptionList overrides;  ///< TableOverride
};

/// sharding.
struct ShardingSection : OptionsOf<ShardingSection> {
  void options(OptionVisitor& v) override;
  ShardingStrategy strategy = ShardingStrategy::kAuto;
  std::optional<MeshSection> mesh;
  WrapSection wrap;
  bool reshard_after_forward = true;
  AutoBytes gather_limit;
  ByteSize bucket{int64_t{25} << 20};
  std::optional<HookSection> hook;
  std::optional<OffloadSection> offload;
  bool sequence_parallel = false;
  std::optional<int64_t> stages;
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  std::vector<std::string> split{"auto"};
  TablesSection tables;
};

/// Checks keys of `sharding` that depend on each other and adds the errors to `errors`. Called by check_recipe.
void check_sharding(const ShardingSection& sharding, std::vector<Error>& errors);

/// The mesh of a job of so many ranks. Axes that the recipe does not give are chosen by the strategy: all ranks on `data` (ddp), `shard`
/// (zero1, zero2, fsdp), `pipe` (pipeline, with `stages` of them and the others on `data`) or `tensor`; hybrid shards over `per_node` ranks
/// and replicates between nodes. Throws an Error (kRecipe) with the key if the ranks do not divide.
MeshSection resolve_mesh(const ShardingSection& sharding, int64_t ranks, int64_t per_node);

/// The strategy with auto resolved: none on one rank, ddp on more.
ShardingStrategy resolve_strategy(const ShardingSection& sharding, int64_t ranks);

}  // namespace galley
