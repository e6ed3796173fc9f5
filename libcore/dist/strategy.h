#pragma once
// Names of the ways in which ranks divide a model, as recipes, plans and reports write them.

#include <array>
#include <cstdint>
#include <string_view>

namespace galley {

/// How ranks divide parameters, gradients and optimizer state. kAuto: none on one rank, ddp on more.
enum class ShardingStrategy : uint8_t { kAuto, kNone, kDdp, kZero1, kZero2, kFsdp, kHybrid, kPipeline, kTensor };
inline constexpr std::array<std::string_view, 9> kShardingStrategies{"auto", "none",   "ddp",      "zero1", "zero2",
                                                                     "fsdp", "hybrid", "pipeline", "tensor"};

/// The order of micro-batches in a pipeline.
enum class PipelineSchedule : uint8_t { kOneForwardOneBackward, kGpipe, kInterleaved };
inline constexpr std::array<std::string_view, 3> kPipelineSchedules{"1f1b", "gpipe", "interleaved"};

/// How ranks divide the rows and columns of an embedding table. kAuto: the planner's choice.
enum class TableSharding : uint8_t { kAuto, kDataParallel, kTableWise, kRowWise, kColumnWise, kTableRowWise };
inline constexpr std::array<std::string_view, 6> kTableShardings{"auto",     "data_parallel", "table_wise",
                                                                 "row_wise", "column_wise",   "table_row_wise"};

constexpr std::string_view name_of(ShardingStrategy strategy) { return kShardingStrategies[static_cast<size_t>(strategy)]; }
constexpr std::string_view name_of(PipelineSchedule schedule) { return kPipelineSchedules[static_cast<size_t>(schedule)]; }
constexpr std::string_view name_of(TableSharding sharding) { return kTableShardings[static_cast<size_t>(sharding)]; }

/// Whether ranks divide the parameters, so that they gather units of them before their use.
constexpr bool divides_parameters(ShardingStrategy strategy) {
  return strategy == ShardingStrategy::kFsdp || strategy == ShardingStrategy::kHybrid;
}
/// Whether ranks divide the optimizer's state.
constexpr bool divides_state(ShardingStrategy strategy) {
  return divides_parameters(strategy) || strategy == ShardingStrategy::kZero1 || strategy == ShardingStrategy::kZero2;
}

}  // namespace galley
