// The affine map: zero meets zero, rounding to even, ranges by the observers' formulas, errors that name what is wrong.

#include "libcore/tensor/quant_params.h"

#include <gtest/gtest.h>

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
  // A range above 0 is widened to it; then 0 is the smallest integer.
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
  // Nothing but zeros: the least scale of PyTorch's observers.
  EXPECT_EQ(affine_params(0, 0, quant_range(QuantDType::kUint8)).scale, 0x1p-23);
  EXPECT_EQ(symmetric_params(0, quant_range(QuantDType::kInt8)).scale, 0x1p-23);
}

/// For random ranges: 0 is met exactly, the scale is a float32 value, and every value of the range comes back within half a step,
/// but for the half step by which rounding the zero point may shift the range's ends.
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

}  // namespace
}  // namespace galley
