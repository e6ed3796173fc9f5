#include "libcore/comm/square_sum.h"

#include <bit>
#include <cmath>
#include <limits>
#include <mutex>

#include "libcore/base/parallel.h"

namespace galley {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements per thread
constexpr int kDigitBits = 32;
constexpr int64_t kDigitMask = 0xFFFFFFFF;

/// The squares of one group, always added in the same order. The square of an f32 value is exact in double.
double group_sum(const float* values) {
  constexpr int kLanes = SquareSum::kGroup / 2;
  double lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    const auto a = static_cast<double>(values[i]), b = static_cast<double>(values[i + kLanes]);
    lanes[i] = a * a + b * b;
  }
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

}  // namespace

void SquareSum::add_group_sum(double sum) {
  if (!std::isfinite(sum)) {
    ++digits_[std::isnan(sum) ? kNan : kInfinite];
    return;
  }
  const auto bits = std::bit_cast<uint64_t>(sum);
  const uint64_t exponent = bits >> 52, fraction = bits & ((uint64_t{1} << 52) - 1);
  const uint64_t mantissa = exponent == 0 ? fraction : fraction | uint64_t{1} << 52;
  const uint64_t place = exponent == 0 ? 1 : exponent;  // the value is mantissa * 2^(place - 1075)
  const size_t digit = place / kDigitBits;
  const unsigned shift = place % kDigitBits;
  const uint64_t low = mantissa << shift, high = shift == 0 ? 0 : mantissa >> (64 - shift);
  digits_[digit] += static_cast<int64_t>(low & kDigitMask);
  digits_[digit + 1] += static_cast<int64_t>(low >> kDigitBits);
  digits_[digit + 2] += static_cast<int64_t>(high);
}

void SquareSum::add(std::span<const float> values) {
  const auto count = static_cast<int64_t>(values.size());
  const int64_t groups = (count + kGroup - 1) / kGroup;
  std::mutex mutex;
  parallel_for(groups, kGrain / kGroup, [&](int64_t begin, int64_t end) {
    SquareSum own;
    for (int64_t g = begin; g < end; ++g) {
      const int64_t at = g * kGroup;
      if (at + kGroup <= count) {
        own.add_group_sum(group_sum(values.data() + at));
        continue;
      }
      float last[kGroup] = {};
      for (int64_t i = at; i < count; ++i) last[i - at] = values[static_cast<size_t>(i)];
      own.add_group_sum(group_sum(last));
    }
    const std::lock_guard lock(mutex);
    add(own);
  });
}

void SquareSum::add(const SquareSum& other) {
  for (size_t i = 0; i < digits_.size(); ++i) digits_[i] += other.digits_[i];
}

void SquareSum::add_others(Communicator& ranks, RankGroup group) {
  ranks.run({.kind = CollectiveKind::kAllReduce,
             .dtype = DType::kI64,
             .name = "grad_norm",
             .input = digits_.data(),
             .output = digits_.data(),
             .count = std::ssize(digits_),
             .group = group});
}

double SquareSum::value() const {
  if (digits_[kNan] > 0) return std::numeric_limits<double>::quiet_NaN();
  if (digits_[kInfinite] > 0) return std::numeric_limits<double>::infinity();
  std::array<int64_t, kDigits + 1> normal{};
  int64_t carry = 0;
  for (size_t i = 0; i < kDigits; ++i) {
    const int64_t sum = digits_[i] + carry;
    normal[i] = sum & kDigitMask;
    carry = sum >> kDigitBits;
  }
  normal[kDigits] = carry;
  double value = 0;
  for (size_t i = kDigits + 1; i-- > 0;) value += std::ldexp(static_cast<double>(normal[i]), static_cast<int>(i) * kDigitBits - 1075);
  return value;
}

}  // namespace galley
