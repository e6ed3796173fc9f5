#include "libcore/weights/old_names.h"

#include <regex>

namespace galley {

std::string present_name(std::string_view name) {
  struct Rule {
    std::regex before;
    std::string_view head, tail;  // around the number, or instead of it
    int divide, less;             // the number becomes (n - less) / divide
  };
  static const Rule kRules[] = {
      {std::regex(R"((.*fpn\.(?:inner|layer)_blocks\.)(\d+)\.(weight|bias))"), "", ".0.", 1, 0},
      {std::regex(R"((.*_head\.conv\.)([0246])\.(weight|bias))"), "", ".0.", 2, 0},
      {std::regex(R"((.*mask_head\.)mask_fcn(\d)\.(weight|bias))"), "", ".0.", 1, 1},
      {std::regex(R"((.*rpn\.head\.conv\.)()(weight|bias))"), "0", ".0.", 1, 0},
  };
  for (const Rule& rule : kRules) {
    std::cmatch found;
    if (!std::regex_match(name.data(), name.data() + name.size(), found, rule.before)) continue;
    std::string result = found[1].str() + std::string(rule.head);
    if (found[2].length() > 0) result += std::to_string((std::stoi(found[2].str()) - rule.less) / rule.divide);
    return result + std::string(rule.tail) + found[3].str();
  }
  return std::string(name);
}

}  // namespace galley
