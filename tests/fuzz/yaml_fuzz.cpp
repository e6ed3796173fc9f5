// Parser of recipes: any bytes give an Error or a tree, and each tree is written as YAML that reads back to the same tree.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "libcore/base/error.h"
#include "libcore/recipe/yaml_tree.h"

namespace {

std::shared_ptr<const galley::TextSource> source_of(std::string text) {
  auto source = std::make_shared<galley::TextSource>();
  source->name = "fuzz.yaml";
  source->text = std::move(text);
  return source;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  galley::YamlNode tree;
  try {
    tree = galley::parse_yaml(source_of(std::string(reinterpret_cast<const char*>(data), size)));
  } catch (const galley::Error&) {
    return 0;
  }
  const std::string text = galley::emit_yaml(tree, {.escape_dollars = false});
  // Expanded aliases may exceed the limit of the text length; all other trees must read back.
  if (text.size() > (1u << 19)) return 0;
  if (!(galley::parse_yaml(source_of(text)) == tree)) std::abort();
  return 0;
}
