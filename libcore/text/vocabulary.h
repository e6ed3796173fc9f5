#pragma once
// The two directions between pieces and ids.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace galley::text {

/// Lets maps of strings be searched by string_view.
struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
template <class Value>
using StringMap = std::unordered_map<std::string, Value, StringHash, std::equal_to<>>;

class Vocabulary {
 public:
  /// Ids above it are taken for damage rather than for a reason to allocate.
  static constexpr int64_t kLargestId = (int64_t{1} << 24) - 1;

  Vocabulary() = default;
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  /// Adds a piece. Throws (kInput) if the piece or the id is taken, or the id is negative or above kLargestId.
  void add(std::string_view piece, int64_t id);
  int64_t size() const { return static_cast<int64_t>(by_id_.size()); }
  /// Number of pieces.
  size_t pieces() const { return ids_.size(); }
  bool has(int64_t id) const { return id >= 0 && id < size() && by_id_[static_cast<size_t>(id)] != nullptr; }
  /// Throws (kInput) if the id has no piece.
  const std::string& piece(int64_t id) const;
  std::optional<int32_t> find(std::string_view piece) const;

 private:
  StringMap<int32_t> ids_;
  std::vector<const std::string*> by_id_;  // Keys of ids_, which stay where they are.
};

}  // namespace galley::text
