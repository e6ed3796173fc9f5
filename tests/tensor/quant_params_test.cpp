// The affine map: exact zero, rounding to even, ranges by the formulas of the observers, errors that name the wrong value.

#include "libcore/tensor/quant_params.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "libcore/base/error.h"
#include "libcore/base/philox.h"

namespace galley {
namespace {

TEST(QuantParams, RangesOfTypes) {
  EXPECT_EQ(quant_range(QuantDType::kInt8).min, -128);
  EXPECT_EQ(quant_range(QuantDType::kInt8).max, 127);
  EXPECT_EQ(quant_range(QuantDType::kInt8, true).max, 64);
  EXPECT_EQ(quant_range(QuantDType::kUint8).dtype, DType::kU8);
  EXPECT_EQ(quant_range(QuantDType::kUint8, true).max, 127);
  EXPECT_EQ(quant_range(QuantDType::kInt4).min, -8);
  EXPECT_EQ(quant_range(QuantDType::kInt4).max, 7);
  EXPECT_EQ(quant_range(QuantDType::kInt4).dtype, DType::kI8);
}

TEST(QuantParams, WorkedExamples) {
  // [-1, 4.1] over 0..255: scale 5.1 / 255 = 0.02, zero point 0 - round(-1 / 0.02) = 50.
  const QuantParams a = affine_params(-1, 4.1, quant_range(QuantDType::kUint8));
  EXPECT_EQ(a.scale, static_cast<double>((4.1f + 1.0f) / 255.0f));
  EXPECT_EQ(a.zero_point, 50);
  // A range above 0 is extended to 0; then the smallest integer represents 0.
  const QuantParams b = affine_params(2, 5.1, quant_range(QuantDType::kUint8));
  EXPECT_EQ(b.scale, static_cast<double>(5.1f / 255.0f));
  EXPECT_EQ(b.zero_point, 0);
  const QuantParams c = affine_params(-5.1, -2, quant_range(QuantDType::kUint8));
  EXPECT_EQ(c.zero_point, 255);
  const QuantParams d = affine_params(-1, 4.1, quant_range(QuantDType::kInt8));
  EXPECT_EQ(d.zero_point, -78);
  EXPECT_EQ(symmetric_params(254, {-127, 127, DType::kI8}).scale, 2);
  EXPECT_EQ(symmetric_params(255, quant_range(QuantDType::kInt8)).scale, 2);  // divided by 127.5
  EXPECT_EQ(symmetric_params(255, quant_range(QuantDType::kUint8)).zero_point, 128);
  EXPECT_EQ(symmetric_params(15, quant_range(QuantDType::kInt4)).scale, 2);
  // Only zeros: the smallest scale of PyTorch's observers.
  EXPECT_EQ(affine_params(0, 0, quant_range(QuantDType::kUint8)).scale, 0x1p-23);
  EXPECT_EQ(symmetric_params(0, quant_range(QuantDType::kInt8)).scale, 0x1p-23);
}

/// For random ranges: 0 is exact, the scale is a float32 value, and every value of the range is restored within half a step, except for
/// the half step by which rounding of the zero point may shift the limits of the range.
TEST(QuantParams, RangesAreCoveredAndZeroIsExact) {
  RandomStream random(7, "ranges");
  for (int trial = 0; trial < 400; ++trial) {
    const double size = std::exp(random.uniform(-12, 12)), low = size * random.uniform(-1, 0.5),
                 high = low + size * random.uniform(0.01, 1);
    for (const QuantRange& range : {quant_range(QuantDType::kUint8), quant_range(QuantDType::kUint8, true), quant_range(QuantDType::kInt8),
                                    quant_range(QuantDType::kInt4)}) {
      const QuantParams p = affine_params(low, high, range);
      check_quant_params(p);
      EXPECT_EQ(dequantize_value(quantize_value(0.0f, p), p), 0);
      for (int i = 0; i <= 20; ++i) {
        const double x = low + (high - low) * i / 20;
        const double back = dequantize_value(quantize_value(static_cast<float>(x), p), p);
        if (!(std::abs(back - x) <= p.scale * 1.001)) ADD_FAILURE() << x << " comes back as " << back << ", " << p;
      }
      for (int64_t q = range.min; q <= range.max; ++q) EXPECT_EQ(quantize_value(static_cast<float>(dequantize_value(q, p)), p), q) << p;
    }
  }
}

TEST(QuantParams, RoundsHalvesToEvenAndClamps) {
  const QuantParams p{0.5, 3, DType::kI8, -64, 64};
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(quantize_value(0.25f, p), 3);
  EXPECT_EQ(quantize_value(0.75f, p), 5);
  EXPECT_EQ(quantize_value(-0.25f, p), 3);
  EXPECT_EQ(quantize_value(-0.75f, p), 1);
  EXPECT_EQ(quantize_value(infinity, p), 64);
  EXPECT_EQ(quantize_value(-infinity, p), -64);
  EXPECT_EQ(quantize_value(3e38f, p), 64);
  EXPECT_EQ(quantize_value(std::numeric_limits<float>::quiet_NaN(), p), -64);
  EXPECT_EQ(quantize_real(1.25, p), 5);
  EXPECT_EQ(quantize_real(1.75, p), 7);
  EXPECT_EQ(dequantize_value(-64, p), -33.5);
}

template <class Run>
void expect_error(ErrorCode code, const std::string& part, Run run) {
  try {
    run();
    ADD_FAILURE() << "no error; wanted one with " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.message();
    EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
  }
}

TEST(QuantParams, Mistakes) {
  const QuantRange range = quant_range(QuantDType::kUint8);
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  expect_error(ErrorCode::kNumeric, "not finite", [&] { affine_params(nan, 1, range); });
  expect_error(ErrorCode::kNumeric, "not finite", [&] { affine_params(0, infinity, range); });
  expect_error(ErrorCode::kNumeric, "no values were observed", [&] { affine_params(1, -1, range); });
  expect_error(ErrorCode::kNumeric, "no values were observed", [&] { symmetric_params(-1, range); });
  expect_error(ErrorCode::kRecipe, "is not within the range of u8, 0..255", [&] { affine_params(0, 1, {-1, 255, DType::kU8}); });
  expect_error(ErrorCode::kRecipe, "u8 or i8", [&] { affine_params(0, 1, {0, 255, DType::kI32}); });
  expect_error(ErrorCode::kRecipe, "float32 value", [] { check_quant_params({0.1, 0, DType::kU8, 0, 255}); });
  expect_error(ErrorCode::kRecipe, "positive", [] { check_quant_params({0, 0, DType::kU8, 0, 255}); });
  expect_error(ErrorCode::kRecipe, "zero point 128", [] { check_quant_params({1, 128, DType::kU8, 0, 127}); });
  // The widest range of float32 still has a scale.
  const double most = static_cast<double>(std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isfinite(affine_params(-most, most, range).scale));
}

/// The values of codes 0x00 to 0x7e, by PyTorch 2: torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float().
constexpr std::array<double, 127> kF8Values{
    // clang-format off
    0, 0.001953125, 0.00390625, 0.005859375, 0.0078125, 0.009765625, 0.01171875, 0.013671875,
    0.015625, 0.017578125, 0.01953125, 0.021484375, 0.0234375, 0.025390625, 0.02734375, 0.029296875,
    0.03125, 0.03515625, 0.0390625, 0.04296875, 0.046875, 0.05078125, 0.0546875, 0.05859375,
    0.0625, 0.0703125, 0.078125, 0.0859375, 0.09375, 0.1015625, 0.109375, 0.1171875,
    0.125, 0.140625, 0.15625, 0.171875, 0.1875, 0.203125, 0.21875, 0.234375,
    0.25, 0.28125, 0.3125, 0.34375, 0.375, 0.40625, 0.4375, 0.46875,
    0.5, 0.5625, 0.625, 0.6875, 0.75, 0.8125, 0.875, 0.9375,
    1, 1.125, 1.25, 1.375, 1.5, 1.625, 1.75, 1.875,
    2, 2.25, 2.5, 2.75, 3, 3.25, 3.5, 3.75,
    4, 4.5, 5, 5.5, 6, 6.5, 7, 7.5,
    8, 9, 10, 11, 12, 13, 14, 15,
    16, 18, 20, 22, 24, 26, 28, 30,
    32, 36, 40, 44, 48, 52, 56, 60,
    64, 72, 80, 88, 96, 104, 112, 120,
    128, 144, 160, 176, 192, 208, 224, 240,
    256, 288, 320, 352, 384, 416, 448};
// clang-format on

TEST(F8, CodesHaveTheValuesOfPyTorchAndOfTheFormat) {
  for (int code = 0; code < 256; ++code) {
    const float value = float_from_f8(static_cast<uint8_t>(code));
    const int exponent = code >> 3 & 15, fraction = code & 7;
    if ((code & 127) == 127) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_EQ(f8_from_float(value) & 127, 127) << code;
      continue;
    }
    const double size = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
    EXPECT_EQ(std::abs(static_cast<double>(value)), size) << code;
    EXPECT_EQ(size, kF8Values[static_cast<size_t>(code & 127)]) << code;
    EXPECT_EQ(std::signbit(value), code > 127) << code;
    EXPECT_EQ(f8_from_float(value), code) << "codes survive a round trip";
  }
}

TEST(F8, RoundsToTheNearestValueHalvesToEven) {
  for (size_t code = 0; code + 1 < kF8Values.size(); ++code) {
    const double low = kF8Values[code], high = kF8Values[code + 1];
    const auto middle = static_cast<float>((low + high) / 2);
    for (const float sign : {1.0f, -1.0f}) {
      const auto rounded = [&](float size) { return std::abs(static_cast<double>(rounded_to_f8(sign * size))); };
      EXPECT_EQ(rounded(middle), code % 2 == 0 ? low : high) << low;
      EXPECT_EQ(rounded(std::nextafter(middle, 0.0f)), low) << low;
      EXPECT_EQ(rounded(std::nextafter(middle, 500.0f)), high) << low;
    }
  }
  // Beyond the largest value it saturates, where a cast of PyTorch makes NaN.
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float large : {448.0f, 449.0f, 463.0f, 464.0f, 465.0f, 480.0f, 1e30f, kInfinity}) {
    EXPECT_EQ(rounded_to_f8(large), 448) << large;
    EXPECT_EQ(f8_from_float(-large), 0xfe) << large;
  }
  EXPECT_EQ(f8_from_float(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(f8_from_float(-0.0f), 0x80);
  RandomStream random(5, "f8");
  for (int i = 0; i < 5000; ++i) {
    const auto x = static_cast<float>((random.uniform() - 0.5) * std::exp2(static_cast<double>(random.below(24)) - 12));
    const auto nearest = std::min_element(kF8Values.begin(), kF8Values.end(), [&](double a, double b) {
      return std::abs(a - std::abs(static_cast<double>(x))) < std::abs(b - std::abs(static_cast<double>(x)));
    });
    EXPECT_EQ(std::abs(static_cast<double>(rounded_to_f8(x))), *nearest) << x;
    EXPECT_EQ(float_from_f8(f8_from_float(x)), rounded_to_f8(x)) << x;
  }
}

TEST(F8, ScalesCoverTheLargestValue) {
  EXPECT_EQ(f8_scale(896), 2);
  EXPECT_EQ(f8_scale(0), 1);
  EXPECT_EQ(f8_scale(1e-44), std::numeric_limits<float>::min()) << "not a subnormal scale";
  EXPECT_THROW(f8_scale(std::numeric_limits<double>::infinity()), Error);
  EXPECT_THROW(f8_scale(-1), Error);
  EXPECT_THROW(check_f8_scale(0.1), Error) << "not a float32 value";
  EXPECT_THROW(check_f8_scale(0), Error);
  EXPECT_NO_THROW(check_f8_scale(0.25));
}

}  // namespace
}  // namespace galley
