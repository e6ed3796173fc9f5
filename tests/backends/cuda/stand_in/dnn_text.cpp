// Plans as text.

#include <algorithm>
#include <deque>
#include <mutex>
#include <sstream>

#include "tests/backends/cuda/stand_in/dnn_node.h"

namespace galley::stand_in {
namespace {

constexpr const char* kHead = "stand-in plan";

/// A node after all nodes to which it refers: its number is its place.
class Writer {
 public:
  size_t add(const Node& node) {
    if (const auto found = numbers_.find(&node); found != numbers_.end()) return found->second;
    std::ostringstream line;
    const size_t graph = node.graph == nullptr ? 0 : add(*node.graph) + 1;
    for (const auto& [name, bytes] : node.attributes) {
      const dnn::Type type = node.types.at(name);
      if (type == dnn::kTypeHandle) continue;
      std::vector<int64_t> values(bytes.begin() == bytes.end() ? 0 : bytes.size());
      std::transform(bytes.begin(), bytes.end(), values.begin(), [](std::byte byte) { return std::to_integer<int64_t>(byte); });
      if (type == dnn::kTypeDescriptor) {
        values = node.numbers(name);
        for (int64_t& value : values) value = static_cast<int64_t>(add(*reinterpret_cast<const Node*>(value)));
      }
      line << " " << name << " " << type << " " << values.size();
      for (const int64_t value : values) line << " " << value;
    }
    text_ << node.kind << " " << node.engine << " " << graph << " " << line.str() << " -1\n";
    const size_t number = numbers_.size();
    numbers_[&node] = number;
    return number;
  }
  std::string text() const { return text_.str(); }

 private:
  std::map<const Node*, size_t> numbers_;
  std::ostringstream text_;
};

}  // namespace

std::string text_of(const Node& configuration) {
  Writer writer;
  writer.add(configuration);
  return std::string(kHead) + "\n" + writer.text();
}

Node* node_of(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line) || line != kHead) return nullptr;
  static auto& kept = *new std::deque<Node>();  // of all texts
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::vector<Node*> nodes;
  while (std::getline(lines, line)) {
    std::istringstream in(line);
    int kind = 0, name = 0, type = 0;
    int64_t engine = 0;
    size_t graph = 0, count = 0;
    in >> kind >> engine >> graph;
    if (graph > nodes.size()) return nullptr;
    Node* node = &kept.emplace_back(
        Node{.kind = static_cast<dnn::Kind>(kind), .attributes = {}, .engine = engine, .graph = graph == 0 ? nullptr : nodes[graph - 1]});
    while (in >> name && name >= 0 && in >> type >> count) {
      std::vector<std::byte> bytes;
      for (size_t i = 0; i < count; ++i) {
        int64_t value = 0;
        in >> value;
        if (type == dnn::kTypeDescriptor) value = reinterpret_cast<int64_t>(nodes.at(static_cast<size_t>(value)));
        const auto* from = reinterpret_cast<const std::byte*>(&value);
        bytes.insert(bytes.end(), from, from + (type == dnn::kTypeDescriptor ? sizeof value : 1));
      }
      node->attributes[name] = bytes;
      node->types[name] = static_cast<dnn::Type>(type);
    }
    if (name != -1) return nullptr;
    nodes.push_back(node);
  }
  return nodes.empty() || nodes.back()->kind != dnn::kEngineConfiguration ? nullptr : nodes.back();
}

}  // namespace galley::stand_in
