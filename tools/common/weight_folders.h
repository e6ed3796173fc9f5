#pragma once
// Locations of the registry of published weights and of fetched files on this machine.

#include <string>

#include "libcore/recipe/weight_registry.h"

namespace galley::tools {

/// Folder of fetched files: $XDG_CACHE_HOME/galley/weights, otherwise ~/.cache/galley/weights.
std::string weights_cache_folder();
/// Folder of the user's registry files: $XDG_CONFIG_HOME/galley/weights, otherwise ~/.config/galley/weights.
std::string user_weights_folder();
/// The built-in registry combined with the user's.
WeightRegistry weight_registry();

}  // namespace galley::tools
