#pragma once
// ByteTrie: a set of strings, each with a number, that is searched byte by byte.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace galley::text {

class ByteTrie {
 public:
  static constexpr int32_t kNone = -1;

  /// The number of a string, for writing; kNone until it is set. Valid until the next call.
  int32_t& at(std::string_view key) {
    uint32_t node = 0;
    for (const char c : key) {
      const auto byte = static_cast<uint8_t>(c);
      auto& children = nodes_[node].children;
      const auto place = std::lower_bound(children.begin(), children.end(), std::pair<uint8_t, uint32_t>(byte, 0));
      if (place != children.end() && place->first == byte) {
        node = place->second;
        continue;
      }
      const auto next = static_cast<uint32_t>(nodes_.size());
      children.insert(place, {byte, next});
      nodes_.emplace_back();
      node = next;
    }
    return nodes_[node].number;
  }

  /// Calls visit(end, number) for each string of the set that is text[begin, end), the shortest first; not for the empty one.
  template <class Visit>
  void visit_at(std::string_view text, size_t begin, const Visit& visit) const {
    uint32_t node = 0;
    for (size_t at = begin; at < text.size(); ++at) {
      const auto byte = static_cast<uint8_t>(text[at]);
      const auto& children = nodes_[node].children;
      const auto place = std::lower_bound(children.begin(), children.end(), std::pair<uint8_t, uint32_t>(byte, 0));
      if (place == children.end() || place->first != byte) return;
      node = place->second;
      if (nodes_[node].number != kNone) visit(at + 1, nodes_[node].number);
    }
  }

 private:
  struct Node {
    int32_t number = kNone;
    std::vector<std::pair<uint8_t, uint32_t>> children;  // Sorted by byte.
  };
  std::vector<Node> nodes_ = std::vector<Node>(1);
};

}  // namespace galley::text
