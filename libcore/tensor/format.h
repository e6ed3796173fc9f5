#pragma once
// Memory formats: the arrangement of an array's elements in memory. A format is always an explicit tag and never derived from strides,
// because the strides of N1HW and NC11 arrays are ambiguous.

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libcore/base/shape.h"

namespace galley {

/// contiguous (row-major), channels_last (rank 4: N,H,W,C), channels_last_3d (rank 5: N,D,H,W,C), or blocked: an order of the dimensions
/// plus inner blocks, for weights only. Tags of blocked formats are those of oneDNN: "Acdb64a" means memory order a,c,d,b (upper case: a
/// dimension that is split into blocks), followed by one inner block of 64 along a.
class MemoryFormat {
 public:
  enum class Kind : uint8_t { kContiguous, kChannelsLast, kChannelsLast3d, kBlocked };

  MemoryFormat() = default;
  static MemoryFormat contiguous() { return {}; }
  static MemoryFormat channels_last() { return MemoryFormat(Kind::kChannelsLast); }
  static MemoryFormat channels_last_3d() { return MemoryFormat(Kind::kChannelsLast3d); }
  /// channels_last for rank 4, channels_last_3d for rank 5, else contiguous.
  static MemoryFormat channels_last_for_rank(int rank);
  /// Parses a tag such as "Acdb64a". Throws Error if it is malformed.
  static MemoryFormat blocked(std::string_view tag);
  /// Parses "contiguous", "channels_last", "channels_last_3d" or "blocked(TAG)".
  static MemoryFormat parse(std::string_view text);

  Kind kind() const { return kind_; }
  bool is_contiguous() const { return kind_ == Kind::kContiguous; }
  bool is_channels_last() const { return kind_ == Kind::kChannelsLast || kind_ == Kind::kChannelsLast3d; }
  bool is_blocked() const { return kind_ == Kind::kBlocked; }
  std::string str() const;

  /// Dimensions from outermost to innermost in memory for an array of that rank; for blocked formats, of the outer part.
  std::vector<int> order(int rank) const;
  /// Inner blocks, outermost first: (dimension, size). Empty unless blocked.
  const std::vector<std::pair<int, int64_t>>& blocks() const { return blocks_; }
  /// Number of elements in memory for `shape`, including the padding of blocks.
  int64_t padded_elements(const Shape& shape) const;
  /// Strides of each logical dimension in elements. Not for blocked formats.
  Shape strides(const Shape& shape) const;
  /// Offset of a logical index in elements.
  int64_t offset(const Shape& shape, const Shape& index) const;

  friend bool operator==(const MemoryFormat&, const MemoryFormat&) = default;
  friend std::ostream& operator<<(std::ostream& out, const MemoryFormat& format) { return out << format.str(); }

 private:
  explicit MemoryFormat(Kind kind) : kind_(kind) {}
  Kind kind_ = Kind::kContiguous;
  std::vector<int> order_;
  std::vector<std::pair<int, int64_t>> blocks_;
};

}  // namespace galley
