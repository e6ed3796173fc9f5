#include <charconv>
#include <map>

#include "libcore/graph/graph.h"

namespace galley {
namespace {

std::string number(double value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
}

std::string quote(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out + "\"";
}

/// Converts each option to text, in order.
class FieldPrinter : public OptionVisitor {
 public:
  using OptionVisitor::option;
  std::vector<std::pair<std::string, std::string>> options;

  void option(const OptionInfo& info, bool& value) override { add(info, value ? "true" : "false"); }
  void option(const OptionInfo& info, int64_t& value) override { add(info, cat(value)); }
  void option(const OptionInfo& info, double& value) override { add(info, number(value)); }
  void option(const OptionInfo& info, std::string& value) override { add(info, quote(value)); }
  void option(const OptionInfo& info, std::vector<int64_t>& value) override {
    items(info, value, [](int64_t item) { return cat(item); });
  }
  void option(const OptionInfo& info, std::vector<double>& value) override { items(info, value, number); }
  void option(const OptionInfo& info, std::vector<std::string>& value) override { items(info, value, quote); }
  void choice(const OptionInfo& info, int& value, std::span<const std::string_view> names) override {
    add(info, std::string(names[static_cast<size_t>(value)]));
  }
  using OptionVisitor::choice;

 private:
  void add(const OptionInfo& info, std::string text) { options.emplace_back(std::string(info.name), std::move(text)); }
  template <class T, class Print>
  void items(const OptionInfo& info, const std::vector<T>& values, Print print_item) {
    std::string text = "[";
    for (size_t i = 0; i < values.size(); ++i) text += (i ? "," : "") + print_item(values[i]);
    add(info, text + "]");
  }
};

std::vector<std::pair<std::string, std::string>> printed_options(const Options& options) {
  FieldPrinter printer;
  options.clone()->options(printer);
  return std::move(printer.options);
}

/// The type, and where it is not replicated the placement.
std::string type_text(const TensorType& type) {
  return type.placement.replicated() ? type.str() : cat(type.str(), " held(", type.placement.str(), ")");
}

std::string_view phase_name(Phase phase) {
  return phase == Phase::kForward ? "forward" : phase == Phase::kBackward ? "backward" : "update";
}

}  // namespace

std::string print_attributes(const OpDef& op, const Options* attributes) {
  if (attributes == nullptr || op.make_attrs == nullptr) return "";
  const auto given = printed_options(*attributes), defaults = printed_options(*op.make_attrs());
  std::string text;
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i].second != defaults[i].second) text += (text.empty() ? "" : " ") + given[i].first + "=" + given[i].second;
  }
  return text;
}

std::string print(const Graph& graph) {
  // Values are numbered in order of appearance, so that the text does not depend on values that passes removed.
  std::map<ValueId, size_t> numbers;
  const auto name = [&](ValueId id) {
    return id == kNoValue ? std::string("-") : cat("%", numbers.try_emplace(id, numbers.size()).first->second);
  };
  std::string text = "galley graph 1\n";
  for (ValueId id : graph.inputs()) {
    const ValueInfo& info = graph.value(id);
    text += cat(name(id), " = ", role_name(info.role), " ", quote(info.name), " : ", type_text(info.type), "\n");
  }
  for (const Node& node : graph.nodes()) {
    std::string inputs, outputs, types;
    for (ValueId id : node.inputs) inputs += (inputs.empty() ? "" : ", ") + name(id);
    for (ValueId id : node.outputs) {
      outputs += (outputs.empty() ? "" : ", ") + name(id);
      types += (types.empty() ? "" : "; ") + type_text(graph.type(id));
    }
    const std::string attributes = print_attributes(*node.op, node.attributes.get());
    text += cat(outputs, " = ", node.op->name, "(", inputs, ")", attributes.empty() ? "" : " ", attributes, " : ", types);
    if (!node.path.empty()) text += " @" + quote(node.path);
    if (node.phase != Phase::kForward) text += cat(" #", phase_name(node.phase));
    text += "\n";
  }
  for (const auto& [output, id] : graph.outputs()) text += cat("output ", quote(output), " = ", name(id), "\n");
  return text;
}

}  // namespace galley
