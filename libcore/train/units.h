#pragma once
// The units of a recipe's model, whose parameters ranks divide and gather together (fsdp).

#include <functional>
#include <string>
#include <vector>

#include "libcore/nn/parameter.h"
#include "libcore/optim/optimizer.h"
#include "libcore/passes/shard.h"
#include "libcore/recipe/sections.h"

namespace galley {

/// By sharding.wrap. Parameters of one unit with different dtypes, groups of the optimizer, or of which some are not trained, are in
/// arrays of their own. So are those that ranks divide (`divided`, absent: none): `parameters` has the types of this rank's parts.
std::vector<GradientBucket> units_of(const Recipe& recipe, const std::vector<ParameterSpec>& parameters, const ParameterGroups& groups,
                                     const std::function<bool(const std::string&)>& divided = {});

}  // namespace galley
