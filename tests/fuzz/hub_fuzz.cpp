// config.json of hub folders: any text gives an Error, or a recipe that the recipe language reads. adapter_config.json: an Error, or a
// configuration that is read back as it is written.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "libcore/base/error.h"
#include "libcore/recipe/yaml_tree.h"
#include "libcore/weights/adapter.h"
#include "libcore/weights/hub.h"

namespace {

void check_adapter(std::string_view text) {
  std::string first;
  try {
    first = galley::adapter_config_text(galley::parse_adapter_config(text, "adapter_config.json"));
  } catch (const galley::Error&) {
    return;
  }
  if (galley::adapter_config_text(galley::parse_adapter_config(first, "written")) != first) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  check_adapter(std::string_view(reinterpret_cast<const char*>(data), size));
  std::string recipe;
  try {
    const galley::HubFolder folder("no such folder", std::string_view(reinterpret_cast<const char*>(data), size));
    folder.categories();
    recipe = folder.recipe();
  } catch (const galley::Error&) {
    return 0;
  }
  const galley::YamlNode tree = galley::parse_yaml(std::make_shared<galley::TextSource>(galley::TextSource{"recipe", recipe}));
  if (!tree.is_map() || tree.find("model") == nullptr) std::abort();
  return 0;
}
