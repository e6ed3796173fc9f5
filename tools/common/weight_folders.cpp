#include "tools/common/weight_folders.h"

#include <cstdlib>

#include "tools/common/recipe_tool.h"

namespace galley::tools {
namespace {

/// A base folder of the XDG Base Directory Specification 0.8: if the variable is unset, empty or relative, its default below HOME.
std::string base_folder(const char* variable, const char* below_home) {
  if (const char* folder = std::getenv(variable); folder != nullptr && *folder == '/') return folder;
  const char* home = std::getenv("HOME");
  return std::string(home != nullptr ? home : "") + "/" + below_home;
}

}  // namespace

std::string weights_cache_folder() { return base_folder("XDG_CACHE_HOME", ".cache") + "/galley/weights"; }

std::string user_weights_folder() { return base_folder("XDG_CONFIG_HOME", ".config") + "/galley/weights"; }

WeightRegistry weight_registry() { return WeightRegistry({recipes_folder() + "/weights", user_weights_folder()}, weights_cache_folder()); }

}  // namespace galley::tools
