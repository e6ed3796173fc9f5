#pragma once
// Keys of the recipe's `sharding` that its strategy does not use.

#include <vector>

#include "libcore/base/error.h"

namespace galley {

struct ShardingSection;

/// Keys that have a value but no effect with the strategy or the hook, for warnings: errors (kRecipe) with key, message and suggestion.
std::vector<Error> unused_sharding_keys(const ShardingSection& sharding);

}  // namespace galley
