#pragma once
// SquareSum: a sum of squares whose bits depend on nothing but the numbers: neither on their order nor on how threads and ranks divide
// them.

#include <array>
#include <cstdint>
#include <span>

#include "libcore/comm/communicator.h"

namespace galley {

/// Squares of f32 values are added in double in groups of kGroup neighbors; the sums of groups are added exactly, as integers. Arrays that
/// are divided at multiples of kGroup have the same sum as the whole array; zeros after the end of one change nothing.
class SquareSum {
 public:
  static constexpr int64_t kGroup = 16;
  /// Adds the squares of an array, with the compute threads of the caller. Fewer than 2^34 elements in all.
  void add(std::span<const float> values);
  void add(const SquareSum& other);
  /// Adds the sums of the other ranks of the group.
  void add_others(Communicator& ranks, RankGroup group = {});
  /// The sum; infinite or NaN if a square is.
  double value() const;

 private:
  // Digit i counts 2^(32 i - 1075): the mantissas of doubles, shifted to their places. A digit has room for 2^31 of them.
  static constexpr size_t kDigits = 67;
  static constexpr size_t kInfinite = kDigits, kNan = kDigits + 1;
  void add_group_sum(double sum);
  std::array<int64_t, kDigits + 2> digits_{};
};

}  // namespace galley
