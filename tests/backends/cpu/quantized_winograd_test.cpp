// Quantized Winograd convolutions against the plain reference: equal integers for all values.

#include "libcore/backends/cpu/rewrite/quantized_winograd.h"

#include "libcore/backends/cpu/quantized_gemm.h"
#include "libcore/backends/cpu/winograd.h"
#include "tests/backends/cpu/quantized_support.h"
#include "tests/support/targets.h"

namespace galley::test {
namespace {

struct Convolution {
  Shape x;
  int64_t outputs;
  std::vector<int64_t> padding{1};
};

/// Compares the CPU kernels, with each vector width and number of threads, with the reference of quantized_conv2d.
void expect_plain(const Convolution& c, DType dtype, int64_t zero_point, const Range& values, const Range& weights) {
  QuantizedConv2dAttrs a;
  a.padding = c.padding;
  a.input_zero_point = zero_point;
  const Shape w{c.outputs, c.x[1], 3, 3};
  Graph plain, transform, own;
  const auto image = [&](Graph& graph) { return quantized_input(graph, dtype, c.x, MemoryFormat::channels_last()); };
  const auto scale = [&](Graph& graph) { return quantized_input(graph, DType::kF32, {c.outputs}); };
  const Value x = image(plain), weight = quantized_input(plain, DType::kI8, w);
  quantized_conv2d(x, weight, scale(plain), {}, a);
  std::vector<Tensor> inputs = random_inputs(plain, 1, {values, weights, {1, 1}});
  const Tensor want = run_node(plain, inputs, true);

  quantized_winograd_weights(quantized_input(transform, DType::kI8, w));
  const Value own_x = image(own),
              transformed = quantized_input(own, DType::kI16, {c.outputs, winograd::kPositions, c.x[1]}, winograd::whole_format());
  quantized_winograd_conv2d(own_x, transformed, scale(own), {}, a);
  inputs[1] = run_node(transform, {inputs[1]}, false);
  with_each_width([&] {
    for (const int threads : {1, 2, 3})
      expect_same(run_node(own, inputs, false, threads), want, cat(c.x, " to ", c.outputs, ", ", threads, " threads"));
  });
}

class QuantizedWinograd : public testing::Test {
 protected:
  void SetUp() override {
    ensure_ops_registered();
    if (!winograd::has_wide_vectors()) GTEST_SKIP() << "no vectors of 256 bits";
    static const quantized::Path kExact = quantized::Path::kExact;
    quantized::force_path(&kExact);  // other machines use plain products
  }
  void TearDown() override { quantized::force_path(nullptr); }
};

TEST_F(QuantizedWinograd, GivesTheSameIntegers) {
  for (const Convolution& c : std::vector<Convolution>{{{2, 16, 8, 8}, 16},
                                                       {{1, 37, 9, 6}, 21},
                                                       {{3, 5, 4, 7}, 9},
                                                       {{1, 1, 3, 3}, 1, {0}},
                                                       {{1, 37, 6, 10}, 8, {0}},
                                                       {{2, 64, 14, 14}, 48},
                                                       {{7, 24, 26, 29}, 40},
                                                       {{1, 250, 6, 5}, 70, {2, 0}}}) {
    expect_plain(c, DType::kU8, 131, {}, {-128, 127});
    expect_plain(c, DType::kU8, 0, {}, {-128, 127});
    expect_plain(c, DType::kI8, -7, {}, {-128, 127});
  }
}

// Sums at both limits of the 26 bits that remain after the division, and with more channels than fit in them.
TEST_F(QuantizedWinograd, HoldsTheLargestSums) {
  for (const int64_t channels :
       {winograd::kMostChannels - 1, winograd::kMostChannels, winograd::kMostChannels + 1, 2 * winograd::kMostChannels, int64_t{700}}) {
    const Convolution c{{1, channels, 6, 5}, 17};
    for (const double weight : {-128.0, 127.0}) {
      for (const int64_t zero_point : {0, 255}) {
        expect_plain(c, DType::kU8, zero_point, {255, 255}, {weight, weight});
        expect_plain(c, DType::kU8, zero_point, {0, -0.5}, {weight, weight});  // all 0: a whole number from 0 to less than 0.5
      }
    }
  }
}

}  // namespace
}  // namespace galley::test
