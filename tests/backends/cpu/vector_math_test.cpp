// Vector functions against the standard library in double, in vectorized loops as in kernels, for each instruction set of this machine and
// for the baseline: error in units in the last place.

#include "libcore/backends/cpu/vector_math.h"

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/backends/cpu/vector_math_test.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <bit>
#include <cstdint>

#include "libcore/backends/cpu/bfloat16.h"

HWY_BEFORE_NAMESPACE();
namespace galley::vector_math_test {
namespace HWY_NAMESPACE {

void exp_all(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = exp_of(x[i]);
}
void log_all(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = log_of(x[i]);
}
void log1p_all(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = log1p_of(x[i]);
}
void expm1_all(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = expm1_of(x[i]);
}
void erf_all(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = erf_of(x[i]);
}

void round_all(const uint32_t* x, BFloat16* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = std::bit_cast<float>(x[i]);
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::vector_math_test
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "libcore/tensor/dtype.h"
#include "tests/support/targets.h"

namespace galley::vector_math_test {

HWY_EXPORT(exp_all);
HWY_EXPORT(log_all);
HWY_EXPORT(log1p_all);
HWY_EXPORT(expm1_all);
HWY_EXPORT(erf_all);
HWY_EXPORT(round_all);

namespace {

void exp_values(const float* x, float* y, int64_t count) { HWY_DYNAMIC_DISPATCH(exp_all)(x, y, count); }
void log_values(const float* x, float* y, int64_t count) { HWY_DYNAMIC_DISPATCH(log_all)(x, y, count); }
void log1p_values(const float* x, float* y, int64_t count) { HWY_DYNAMIC_DISPATCH(log1p_all)(x, y, count); }
void expm1_values(const float* x, float* y, int64_t count) { HWY_DYNAMIC_DISPATCH(expm1_all)(x, y, count); }
void erf_values(const float* x, float* y, int64_t count) { HWY_DYNAMIC_DISPATCH(erf_all)(x, y, count); }

using Loop = void (*)(const float*, float*, int64_t);

/// The distance of adjacent floats at a value; near 0 that of subnormal numbers.
double last_place(double value) {
  const auto rounded = static_cast<float>(std::fabs(value));
  return static_cast<double>(std::nextafterf(rounded, std::numeric_limits<float>::infinity()) - rounded);
}

/// Largest error in units of `unit(exact)` over the floats from `low` to `high`, of which every `step`-th is tested; infinite if only one
/// of result and exact value is finite.
template <class Exact, class Unit>
double worst_error(Loop loop, float low, float high, int64_t step, Exact exact, Unit unit) {
  std::vector<float> x, y;
  const auto ordered = [](float v) {
    int32_t bits = 0;
    std::memcpy(&bits, &v, 4);
    return bits < 0 ? int64_t{std::numeric_limits<int32_t>::min()} - bits : int64_t{bits};
  };
  for (int64_t i = ordered(low); i <= ordered(high); i += step) {
    const auto bits = static_cast<int32_t>(i < 0 ? std::numeric_limits<int32_t>::min() - i : i);
    float v = 0;
    std::memcpy(&v, &bits, 4);
    x.push_back(v);
  }
  y.resize(x.size());
  loop(x.data(), y.data(), static_cast<int64_t>(x.size()));
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = exact(static_cast<double>(x[i])), error = std::fabs(static_cast<double>(y[i]) - want) / unit(x[i], want);
    if (!(error <= worst)) worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
  }
  return worst;
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// On each instruction set that the loops are compiled for and the machine has.
class VectorMath : public testing::TestWithParam<int64_t> {
 private:
  test::Targets only_{GetParam()};
};
std::vector<int64_t> targets() {
  std::vector<int64_t> all;
  for (const int64_t target : {HWY_AVX3, HWY_AVX2, HWY_STATIC_TARGET}) {
    if ((hwy::SupportedTargets() & HWY_TARGETS & target) != 0) all.push_back(target);
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Targets, VectorMath, testing::ValuesIn(targets()),
                         [](const auto& target) { return std::string(hwy::TargetName(target.param)); });

TEST_P(VectorMath, ExpIsGoodToTwoUnits) {
  // Up to ln of the largest float, and down to where the result rounds to 0.
  const auto unit = [](float, double want) { return last_place(want); };
  const double worst = worst_error(exp_values, -105.0f, 88.7228f, 1009, [](double x) { return std::exp(x); }, unit);
  EXPECT_TRUE(worst <= 2) << worst;
  EXPECT_TRUE(worst >= 0.5) << "float cannot be better than half a unit: " << worst;
}

TEST_P(VectorMath, LogIsGoodToTwoUnits) {
  const auto unit = [](float x, double want) { return std::max(last_place(want), 0.5 * last_place(static_cast<double>(x) - 1)); };
  const double worst = worst_error(log_values, 1e-45f, std::numeric_limits<float>::max(), 1009, [](double x) { return std::log(x); }, unit);
  EXPECT_TRUE(worst <= 2) << worst;
  EXPECT_TRUE(worst >= 0.4) << worst;
}

TEST_P(VectorMath, Log1pIsGoodToFourUnits) {
  const double worst = worst_error(
      log1p_values, 0.0f, 1.0f, 1009, [](double x) { return std::log1p(x); }, [](float, double want) { return last_place(want); });
  EXPECT_TRUE(worst <= 4) << worst;
  EXPECT_TRUE(worst >= 0.5) << worst;
}

TEST_P(VectorMath, Expm1IsGoodToTwoUnits) {
  const double worst = worst_error(
      expm1_values, -105.0f, 88.0f, 1009, [](double x) { return std::expm1(x); }, [](float, double want) { return last_place(want); });
  EXPECT_TRUE(worst <= 2) << worst;
  EXPECT_TRUE(worst >= 0.5) << worst;
}

TEST_P(VectorMath, ErfIsGoodToFourUnits) {
  const double worst = worst_error(
      erf_values, -12.0f, 12.0f, 1009, [](double x) { return std::erf(x); }, [](float, double want) { return last_place(want); });
  // Clang does not fuse a * b + c here, which makes the largest error 3.03; without any fused multiply-add it is above that.
  EXPECT_TRUE(worst <= 4) << worst;
  EXPECT_TRUE(worst >= 0.4) << worst;
}

TEST_P(VectorMath, SpecialValues) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  // 16 and one more, so that both the vector loop and its remainder process each value.
  for (const float x : {nan, kInfinity, -kInfinity, 0.0f, -0.0f, 1.0f, -1.0f, 1e-45f, -1e-45f, 89.0f, 3e38f, -3e38f, -103.0f, -150.0f}) {
    const std::vector<float> in(17, x);
    std::vector<float> e(17), l(17);
    exp_values(in.data(), e.data(), 17);
    log_values(in.data(), l.data(), 17);
    for (const size_t i : {size_t{0}, size_t{16}}) {
      const float exact_e = std::exp(x), exact_l = std::log(x);
      if (std::isnan(exact_e)) {
        EXPECT_TRUE(std::isnan(e[i])) << x;
      }
      if (std::isinf(exact_e) || exact_e == 0 || exact_e == 1) {
        EXPECT_EQ(e[i], exact_e) << x;
      }
      if (std::isnan(exact_l)) {
        EXPECT_TRUE(std::isnan(l[i])) << x << " gives " << l[i];
      }
      if (std::isinf(exact_l) || exact_l == 0) {
        EXPECT_EQ(l[i], exact_l) << x;
      }
    }
  }
}

// Every sign and exponent, with the limits of both halves of the mantissa: ties round to even, the largest numbers become infinity, and NaN
// with any payload remains NaN.
TEST_P(VectorMath, BFloat16RoundsAsTheReferenceAndKeepsNaN) {
  std::vector<uint32_t> bits;
  for (uint32_t exponent = 0; exponent < 512; ++exponent) {
    for (const uint32_t upper : {0x00u, 0x01u, 0x3eu, 0x40u, 0x7eu, 0x7fu}) {
      for (const uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) bits.push_back(exponent << 23 | upper << 16 | lower);
    }
  }
  std::vector<BFloat16> rounded(bits.size());
  HWY_DYNAMIC_DISPATCH(round_all)(bits.data(), rounded.data(), static_cast<int64_t>(bits.size()));
  for (size_t i = 0; i < bits.size(); ++i) {
    const auto value = std::bit_cast<float>(bits[i]);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(rounded[i]))) << std::hex << bits[i];
    } else {
      EXPECT_EQ(rounded[i].bits, bf16_from_float(value)) << std::hex << bits[i];
    }
  }
}

}  // namespace
}  // namespace galley::vector_math_test

#endif  // HWY_ONCE
