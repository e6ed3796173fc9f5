#pragma once
// What each rank of a job does: what ranks divide, and this rank's place among them.

#include "libcore/dist/strategy.h"
#include "libcore/passes/shard.h"
#include "libcore/train/pipeline_runner.h"

namespace galley {

class Communicator;
struct MeshSection;
struct Recipe;

/// The mesh of the job: as galley-plan, tensor parallelism stays inside a machine where the recipe names no mesh.
MeshSection mesh_of(const Recipe& recipe, const Communicator& ranks);
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

}  // namespace galley
