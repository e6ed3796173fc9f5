// Laws: scales, zero points and integers of weights equal those of PyTorch's per-channel and per-tensor min-max observers
// (tests/golden/quant); unpacking inverts packing; observers that clip lose less than those that do not.

#include "libcore/quant/weights.h"

#include <gtest/gtest.h>

#include <cmath>

#include "libcore/base/error.h"
#include "libcore/quant/sqnr.h"
#include "tests/quant/golden.h"
#include "tests/quant/values.h"

namespace galley::quant_test {
namespace {

const std::map<std::string, WeightScheme> kWeightSchemes{
    {"int8_symmetric", {}},
    {"int8_reduced", {.reduce_range = true}},
    {"int8_affine", {.symmetric = false}},
    {"int4_symmetric", {.dtype = QuantDType::kInt4}},
    {"int4_affine", {.dtype = QuantDType::kInt4, .symmetric = false}},
};

double lost(const Tensor& weight, const WeightScheme& scheme) {
  const Tensor back = dequantize_weight(quantize_weight(weight, scheme, "w"));
  const auto count = static_cast<size_t>(weight.elements());
  return mse({weight.data_as<float>(), count}, {back.data_as<float>(), count});
}

TEST(Weights, MinMaxIsThatOfPyTorch) {
  const Tensor weight = Tensor::of({8, 512}, weights());
  for (const auto& [name, scheme] : kWeightSchemes) {
    for (const bool per_channel : {true, false}) {
      WeightScheme own = scheme;
      own.per_channel = per_channel;
      const QuantizedWeight quantized = quantize_weight(weight, own, "w");
      const Golden& wanted = golden().at(std::string("weights ") + (per_channel ? "per_channel " : "per_tensor ") + name);
      for (int64_t c = 0; c < 8; ++c) {
        const size_t at = per_channel ? static_cast<size_t>(c) : 0;
        EXPECT_EQ(static_cast<double>(quantized.scale.data_as<float>()[c]), wanted.scale(at)) << name << " channel " << c;
        EXPECT_EQ(quantized.zero_point.data_as<int8_t>()[c], wanted.zero_point(at)) << name << " channel " << c;
      }
      if (!per_channel) continue;
      const Tensor values = quantized.bits == 4 ? unpack_int4(quantized.values, weight.shape()) : quantized.values;
      const Golden& sums = golden().at("weights sums " + name);
      for (int64_t c = 0; c < 8; ++c) {
        int64_t sum = 0;
        for (int64_t i = 0; i < 512; ++i) sum += (i + 1) * values.data_as<int8_t>()[c * 512 + i];
        EXPECT_EQ(sum, static_cast<int64_t>(sums.numbers.at(static_cast<size_t>(c)))) << name << " channel " << c;
      }
    }
  }
}

// Each channel uses the whole range, and values are rounded to a sixteenth of themselves or half the smallest step.
TEST(Weights, F8KeepsThreeBitsOfEachValue) {
  const Tensor weight = Tensor::of({8, 16, 8, 4}, weights());
  for (const bool per_channel : {true, false}) {
    const QuantizedWeight quantized = quantize_weight(weight, {.dtype = QuantDType::kF8E4M3, .per_channel = per_channel}, "w");
    EXPECT_EQ(quantized.values.dtype(), DType::kF8E4M3);
    EXPECT_FALSE(quantized.zero_point.defined());
    const std::vector<double> codes = quantized.values.to_doubles(), back = dequantize_weight(quantized).to_doubles(),
                              scales = quantized.scale.to_doubles(), real = weight.to_doubles();
    const size_t each = real.size() / scales.size();
    double largest = 0;
    for (size_t i = 0; i < real.size(); ++i) {
      EXPECT_NEAR(back[i], codes[i] * scales[i / each], 1e-7 * std::abs(back[i]));
      EXPECT_LE(std::abs(back[i] - real[i]), std::max(std::abs(real[i]) / 16, scales[i / each] * 0x1p-10) * (1 + 1e-6)) << i;
      largest = std::max(largest, std::abs(codes[i]));
      if (!per_channel || (i + 1) % each != 0) continue;
      EXPECT_EQ(largest, 448) << "channel " << i / each;
      largest = 0;
    }
    if (!per_channel) {
      EXPECT_EQ(largest, 448);
    }
  }
  EXPECT_THROW(quantize_weight(weight, {.dtype = QuantDType::kF8E4M3, .symmetric = false}, "w"), Error);
  EXPECT_THROW(quantize_weight(weight, {.dtype = QuantDType::kF8E4M3, .observer = {.type = ObserverType::kMse}}, "w"), Error);
}

TEST(Weights, ErrorIsAtMostHalfAStep) {
  const Tensor weight = Tensor::of({8, 16, 8, 4}, weights());
  for (const auto& [name, scheme] : kWeightSchemes) {
    const QuantizedWeight quantized = quantize_weight(weight, scheme, "w");
    const Tensor back = dequantize_weight(quantized);
    ASSERT_EQ(back.shape(), weight.shape());
    for (int64_t i = 0; i < weight.elements(); ++i) {
      const float scale = quantized.scale.data_as<float>()[i / 512];
      // Symmetric int4 has 7.5 steps to its largest value and clips it to 7; an affine range moves by up to half a step with its zero
      // point: one step in total.
      const float bound = name == "int8_symmetric" || name == "int8_reduced" ? 0.5f : 1.0f;
      ASSERT_TRUE(std::abs(weight.data_as<float>()[i] - back.data_as<float>()[i]) <= bound * scale * 1.0001f) << name << " element " << i;
    }
  }
}

TEST(Weights, GroupsHaveScalesOfTheirOwn) {
  const Tensor weight = Tensor::of({8, 512}, weights());
  WeightScheme scheme{.dtype = QuantDType::kInt4, .group_size = 96};  // the last group of a channel has 32 values
  const QuantizedWeight quantized = quantize_weight(weight, scheme, "w");
  ASSERT_EQ(quantized.scale.shape(), Shape({8, 6}));
  for (int64_t c = 0; c < 8; ++c) {
    for (int64_t g = 0; g < 6; ++g) {
      float largest = 0;
      for (int64_t i = g * 96; i < std::min<int64_t>(512, (g + 1) * 96); ++i)
        largest = std::max(largest, std::abs(weight.data_as<float>()[c * 512 + i]));
      EXPECT_EQ(quantized.scale.data_as<float>()[c * 6 + g], largest / 7.5f);
    }
  }
  EXPECT_LT(lost(weight, scheme), lost(weight, {.dtype = QuantDType::kInt4}));
  scheme.group_size = 1000;  // more values than a channel has: one group
  EXPECT_EQ(lost(weight, scheme), lost(weight, {.dtype = QuantDType::kInt4}));
}

TEST(Weights, MseLosesLessAndPercentileCutsOutliers) {
  std::vector<float> values = weights();
  for (size_t c = 0; c < 8; ++c) values[c * 512] = 40;  // an outlier in each channel
  const Tensor weight = Tensor::of({8, 512}, values);
  for (const QuantDType dtype : {QuantDType::kInt8, QuantDType::kInt4}) {
    for (const bool symmetric : {true, false}) {
      const WeightScheme plain{.dtype = dtype, .symmetric = symmetric};
      WeightScheme searched = plain;
      searched.observer.type = ObserverType::kMse;
      EXPECT_LE(lost(weight, searched), lost(weight, plain));
    }
  }
  // A bell-shaped distribution without outliers, four bits: clipping a little is better than none.
  const Tensor smooth = Tensor::of({8, 512}, weights());
  EXPECT_LT(lost(smooth, {.dtype = QuantDType::kInt4, .observer = {.type = ObserverType::kMse}}),
            0.95 * lost(smooth, {.dtype = QuantDType::kInt4}));
  WeightScheme cut;
  cut.observer = {.type = ObserverType::kPercentile, .percentile = 99};
  const QuantizedWeight quantized = quantize_weight(weight, cut, "w");
  EXPECT_LT(quantized.scale.data_as<float>()[0] * 127, 2.0f);
  EXPECT_EQ(quantized.values.data_as<int8_t>()[0], 127);
}

TEST(Weights, TrainedBoundsAreKept) {
  const Tensor weight = Tensor::of({2, 3}, {0.5f, -0.3f, 0.1f, 2, 1, -4});
  const Tensor each = Tensor::of({2}, {0.25f, 8});
  const QuantizedWeight by_channel = quantize_weight(weight, {}, "w", &each);
  const std::vector<int> cut{127, -127, 51, 32, 16, -64};  // 0.1 / 0.25 * 127 = 50.8, 2 / 8 * 127 = 31.75
  for (size_t i = 0; i < cut.size(); ++i) EXPECT_EQ(by_channel.values.data_as<int8_t>()[i], cut[i]) << i;
  EXPECT_FLOAT_EQ(by_channel.scale.data_as<float>()[0], 0.25f / 127);
  EXPECT_FLOAT_EQ(by_channel.scale.data_as<float>()[1], 8.0f / 127);
  // A single scale uses the largest bound; a single bound applies to all channels.
  EXPECT_FLOAT_EQ(quantize_weight(weight, {.per_channel = false}, "w", &each).scale.data_as<float>()[0], 8.0f / 127);
  const Tensor one = Tensor::of({}, {2});
  for (const bool per_channel : {true, false}) {
    const QuantizedWeight common = quantize_weight(weight, {.per_channel = per_channel}, "w", &one);
    for (int c = 0; c < 2; ++c) EXPECT_FLOAT_EQ(common.scale.data_as<float>()[c], 2.0f / 127);
  }
  EXPECT_FLOAT_EQ(quantize_weight(weight, {.reduce_range = true}, "w", &one).scale.data_as<float>()[0], 2.0f / 64);
  EXPECT_THROW(quantize_weight(weight, {.symmetric = false}, "w", &one), Error);
  const Tensor three = Tensor::of({3}, {1, 1, 1});
  EXPECT_THROW(quantize_weight(weight, {}, "w", &three), Error);
}

TEST(Weights, PackingIsUndone) {
  for (const int64_t last : {1, 2, 3, 8}) {
    const Shape shape{2, 3, last};
    Tensor values(DType::kI8, shape);
    for (int64_t i = 0; i < values.elements(); ++i) values.data_as<int8_t>()[i] = static_cast<int8_t>(i * 5 % 16 - 8);
    const Tensor packed = pack_int4(values);
    EXPECT_EQ(packed.shape(), Shape({2, 3, (last + 1) / 2}));
    EXPECT_TRUE(bit_equal(unpack_int4(packed, shape), values));
  }
  // Low nibble first, two's complement: -1 and 7 make 0x7f.
  Tensor pair(DType::kI8, {2});
  pair.data_as<int8_t>()[0] = -1;
  pair.data_as<int8_t>()[1] = 7;
  EXPECT_EQ(pack_int4(pair).data_as<uint8_t>()[0], 0x7f);
  EXPECT_THROW(unpack_int4(pack_int4(pair), {5}), Error);
}

TEST(Weights, WhatCannotBeIsAnError) {
  const auto code_of = [](const Tensor& weight, const WeightScheme& scheme) {
    try {
      quantize_weight(weight, scheme, "fc.weight");
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() != ErrorCode::kNumeric || error.message().find("fc.weight") != std::string::npos);
      return error.code();
    }
    return ErrorCode::kInternal;
  };
  const Tensor weight = Tensor::of({2, 2}, {1, 2, 3, 4});
  EXPECT_EQ(code_of(Tensor::of({2, 2}, {1, std::nanf(""), 3, 4}), {}), ErrorCode::kNumeric);
  EXPECT_EQ(code_of(weight, {.dtype = QuantDType::kUint8}), ErrorCode::kRecipe);
  EXPECT_EQ(code_of(weight, {.observer = {.type = ObserverType::kEntropy}}), ErrorCode::kRecipe);
  EXPECT_EQ(code_of(weight, {.per_channel = false, .group_size = 2}), ErrorCode::kRecipe);
}

}  // namespace
}  // namespace galley::quant_test
