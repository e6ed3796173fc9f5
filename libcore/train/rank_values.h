#pragma once
// What ranks tell each other besides gradients: texts, metrics, decisions.

#include <optional>
#include <string>

#include "libcore/comm/texts.h"
#include "libcore/passes/shard.h"
#include "libcore/tasks/metrics.h"
#include "libcore/train/pipeline_runner.h"

namespace galley {

class Communicator;
struct BatchPlan;
struct Recipe;

/// Throws Error (kRecipe) if the recipe cannot be trained on these ranks.
void check_ranks(const Recipe& recipe, const Communicator& ranks);
/// Throws Error (kRecipe) if sharding.offload asks for what training does not have; says where it changes nothing.
void check_offload(const Recipe& recipe, const BatchPlan& batch);
/// The ranks among which arrays are divided: all (zero1, zero2, fsdp), those of a group (hybrid), or none. nullptr: one rank.
ShardGroups shard_groups(const Recipe& recipe, const Communicator* ranks);
/// Whether the ranks are stages of a pipeline, and this rank's place among them.
bool is_pipeline(const Recipe& recipe, const Communicator* ranks);
PipelineRanks pipeline_ranks_of(const Recipe& recipe, const Communicator& ranks);
/// Whether ranks divide the optimizer's state: zero1, zero2, fsdp, hybrid; and the parameters: fsdp, hybrid.
bool divides_state(const Recipe& recipe, const Communicator* ranks);
bool divides_parameters(const Recipe& recipe, const Communicator* ranks);
/// How many ranks divide matrices (tensor parallelism); 1: none.
int matrix_ranks(const Recipe& recipe, const Communicator* ranks);
/// Gives every rank the metrics of rank 0; absent: the evaluation was stopped.
void share_metrics(Communicator& ranks, std::optional<MetricValues>& metrics);

}  // namespace galley
