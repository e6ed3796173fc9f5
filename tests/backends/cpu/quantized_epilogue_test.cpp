// Requantization of arrays (quantized_epilogue.h): every compiled instruction set against formulas in double, for whole vectors and
// remainders.

#include "libcore/backends/cpu/quantized_epilogue.h"

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "libcore/ops/registry.h"
#include "tests/support/target.h"
#include "tests/support/targets.h"

namespace galley::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

/// Calls body(name) with each instruction set of this machine as the only one; returns the number of calls.
template <class Body>
int with_each_target(const Body& body) {
  int tried = 0;
  for (int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1, ++tried) {
    const int64_t target = left & -left;
    const Targets only(target);
    body(hwy::TargetName(target));
  }
  return tried;
}

std::vector<float> random_values(size_t count, float low, float high) {
  std::mt19937 random(7);
  std::vector<float> values(count);
  for (float& v : values) v = low + (high - low) * static_cast<float>(random()) / 4294967296.0f;
  return values;
}

TEST(QuantizedEpilogue, QuantizesLikeTheDefinition) {
  for (const QuantParams& params : {QuantParams{0.0625, 37, DType::kU8, 0, 255}, QuantParams{0.0625, -5, DType::kI8, -127, 127},
                                    QuantParams{0.0173f, 120, DType::kU8, 0, 127}}) {
    std::vector<float> x = random_values(301, -4, 12);
    for (int i = -600; i < 600; ++i) x.push_back(static_cast<float>(i) / 32);  // with a scale of 0.0625 every other one is a tie
    for (const float special : {kInfinity, -kInfinity, kNan, 1e30f, -1e30f, -0.0f}) x.push_back(special);
    const int tried = with_each_target([&](const char* target) {
      for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{16}, size_t{33}, x.size()}) {
        const float* from = x.data() + x.size() - count;
        std::vector<uint8_t> got(count + 1, 0xA5);
        quantized::quantize_values(from, params, got.data(), static_cast<int64_t>(count));
        for (size_t i = 0; i < count; ++i)
          EXPECT_EQ(got[i], static_cast<uint8_t>(quantize_value(from[i], params))) << target << ", " << count << " values, " << from[i];
        EXPECT_EQ(got[count], 0xA5) << target << ", after " << count << " values";
      }
    });
    EXPECT_GE(tried, 1);
  }
}

/// The activation's definition in double (ops/elementwise_functions.h has the formulas of all of them).
double activated(Activation activation, double v) {
  switch (activation) {
    case Activation::kRelu: return std::max(v, 0.0);
    case Activation::kRelu6: return std::min(std::max(v, 0.0), 6.0);
    case Activation::kHardsigmoid: return std::min(std::max(v + 3, 0.0), 6.0) / 6;
    case Activation::kHardswish: return v * std::min(std::max(v + 3, 0.0), 6.0) / 6;
    case Activation::kSigmoid: return 1 / (1 + std::exp(-v));
    case Activation::kTanh: return std::tanh(v);
    default: return v;
  }
}

TEST(QuantizedEpilogue, FinishesValuesLikeTheDefinition) {
  ensure_ops_registered();
  const std::vector<float> values = random_values(1003, -9, 9);
  for (const Activation activation : {Activation::kNone, Activation::kRelu, Activation::kRelu6, Activation::kHardsigmoid,
                                      Activation::kHardswish, Activation::kSigmoid, Activation::kTanh}) {
    for (const DType dtype : {DType::kU8, DType::kI8, DType::kF32}) {
      QuantizedOutput output;
      output.output_dtype = dtype;
      if (dtype == DType::kU8) output.set_output({0.03125f, 19, DType::kU8, 0, 255});
      if (dtype == DType::kI8) output.set_output({0.0625f, -9, DType::kI8, -127, 127});
      quantized::Epilogue e;
      quantized::set_results(e, output, activation);
      const double scale = dtype == DType::kF32 ? 1 : output.output_scale;
      const int tried = with_each_target([&](const char* target) {
        for (const size_t count : {size_t{1}, size_t{15}, size_t{48}, values.size()}) {
          std::vector<float> in(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count)), reals(count + 1, 77);
          if (quantized::in_levels(output, activation)) {
            for (float& v : in) v /= static_cast<float>(scale);
          }
          std::vector<uint8_t> bytes(count + 1, 0xA5);
          quantized::finish_values(e, in.data(), static_cast<int64_t>(count),
                                   dtype == DType::kF32 ? static_cast<void*>(reals.data()) : bytes.data());
          int64_t ties = 0;
          for (size_t i = 0; i < count; ++i) {
            const double want = activated(activation, static_cast<double>(values[i]));
            if (dtype == DType::kF32) {
              // A product of two rounded factors below 10, or a polynomial with an error of 2 units in the last place.
              EXPECT_TRUE(std::fabs(static_cast<double>(reals[i]) - want) <= 4e-6)
                  << target << ", " << static_cast<int>(activation) << ", " << values[i];
              continue;
            }
            const auto level = static_cast<uint8_t>(quantize_real(want, output.output()));
            ties += bytes[i] != level;
            EXPECT_LE(std::abs(static_cast<int>(bytes[i] ^ e.flip) - static_cast<int>(level ^ e.flip)), 1)
                << target << ", " << static_cast<int>(activation) << ", " << values[i];
          }
          // Values are rounded to 2^-24 of 300 levels, so about one in 30,000 may round the other way.
          EXPECT_LE(ties, 1) << target << ", " << static_cast<int>(activation);
          EXPECT_TRUE(bytes[count] == 0xA5 && reals[count] == 77) << target << ", after " << count << " values";
        }
      });
      EXPECT_GE(tried, 1);
    }
  }
}

TEST(QuantizedEpilogue, FindsTheRangeOfAnArray) {
  const int tried = with_each_target([](const char* target) {
    for (const size_t count : {size_t{1}, size_t{5}, size_t{31}, size_t{64}, size_t{200}}) {
      for (size_t at = 0; at < count; ++at) {
        std::vector<float> x = random_values(count, -1, 1);
        x[at] = at % 2 == 0 ? 3.0f : -2.0f;
        const quantized::ValueRange range = quantized::range_of(x.data(), static_cast<int64_t>(count));
        float low = 0, high = 0;
        for (const float v : x) low = std::min(low, v), high = std::max(high, v);
        EXPECT_EQ(range.min, low) << target << ", " << count << " values, " << at;
        EXPECT_EQ(range.max, high) << target << ", " << count << " values, " << at;
        EXPECT_TRUE(range.finite) << target;
        for (const float special : {kInfinity, -kInfinity, kNan}) {
          x[at] = special;
          EXPECT_FALSE(quantized::range_of(x.data(), static_cast<int64_t>(count)).finite)
              << target << ", " << count << " values, " << special << " at " << at;
        }
      }
    }
    const float positive[] = {0.5f, 0.25f};
    EXPECT_EQ(quantized::range_of(positive, 2).min, 0) << target << ": zero belongs to each range";
  });
  EXPECT_GE(tried, 1);
}

}  // namespace
}  // namespace galley::test
