#include "libcore/optim/layer_decay.h"

#include <algorithm>
#include <map>

namespace galley {
namespace {

bool is_numbered(std::string_view name) {
  const size_t digits = name.find_last_not_of("0123456789") + 1;  // npos + 1 is 0
  return digits < name.size() && (digits == 0 || name[digits - 1] == '_');
}

/// The block of a module; empty if it is in none.
std::string block_of(const std::string& module) {
  for (size_t begin = 0; begin < module.size();) {
    const size_t end = std::min(module.find('.', begin), module.size());
    if (is_numbered(std::string_view(module).substr(begin, end - begin))) return module.substr(0, end);
    begin = end + 1;
  }
  return "";
}

}  // namespace

std::vector<int> layers_above(const std::vector<std::string>& modules) {
  std::map<std::string, int> blocks;  // numbers from 1, in the order of the model
  std::vector<int> layers;
  size_t last_of_block = 0;
  for (size_t i = 0; i < modules.size(); ++i) {
    const std::string block = block_of(modules[i]);
    if (!block.empty()) last_of_block = i;
    layers.push_back(block.empty() ? static_cast<int>(blocks.size())
                                   : blocks.emplace(block, static_cast<int>(blocks.size()) + 1).first->second);
  }
  if (!blocks.empty()) {
    for (size_t i = last_of_block + 1; i < layers.size(); ++i) layers[i] = static_cast<int>(blocks.size()) + 1;
  }
  const int top = layers.empty() ? 0 : *std::max_element(layers.begin(), layers.end());
  for (int& layer : layers) layer = top - layer;
  return layers;
}

}  // namespace galley
