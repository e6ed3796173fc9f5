#include "libcore/train/rank_roles.h"

#include <algorithm>

#include "libcore/comm/communicator.h"
#include "libcore/recipe/sections.h"

namespace galley {

ShardGroups shard_groups(const Recipe& recipe, const Communicator* ranks) {
  if (ranks == nullptr) return {};
  switch (resolve_strategy(recipe.sharding, ranks->size())) {
    case ShardingStrategy::kZero1:
    case ShardingStrategy::kZero2:
    case ShardingStrategy::kFsdp: return {.rank = ranks->rank(), .ranks = ranks->size()};
    case ShardingStrategy::kHybrid: {
      // `ranks` may be those of a mesh that read different samples.
      const auto& mesh = recipe.sharding.mesh;
      const auto shard =
          static_cast<int>(mesh ? mesh->shard : resolve_mesh(recipe.sharding, ranks->size(), std::max(1, ranks->per_machine())).shard);
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

MeshSection mesh_of(const Recipe& recipe, const Communicator& ranks) {
  return resolve_mesh(recipe.sharding, ranks.size(), ranks.per_machine() > 0 ? ranks.per_machine() : ranks.size());
}

bool divides_state(const Recipe& recipe, const Communicator* ranks) { return shard_groups(recipe, ranks).ranks > 1; }

bool divides_parameters(const Recipe& recipe, const Communicator* ranks) {
  if (!divides_state(recipe, ranks)) return false;
  return divides_parameters(resolve_strategy(recipe.sharding, ranks->size()));
}

int matrix_ranks(const Recipe& recipe, const Communicator* ranks) {
  return ranks == nullptr || ranks->size() == 1 ? 1 : static_cast<int>(mesh_of(recipe, *ranks).tensor);
}

}  // namespace galley
