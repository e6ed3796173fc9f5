#pragma once
// Where the registry of published weights and fetched files are on this machine.

#include <string>

#include "libcore/recipe/weight_registry.h"

namespace galley::tools {

/// $XDG_CACHE_HOME/galley/weights, else ~/.cache/galley/weights: fetched files.
std::string weights_cache_folder();
/// $XDG_CONFIG_HOME/galley/weights, else ~/.config/galley/weights: the user's own registry files.
std::string user_weights_folder();
/// The built-in registry and the user's.
WeightRegistry weight_registry();

}  // namespace galley::tools
