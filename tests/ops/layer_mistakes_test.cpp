// Mistakes in the arguments of convolution to losses are errors that show both sides; names and formats go on to results.

#include <gtest/gtest.h>

#include "libcore/ops/conv.h"
#include "libcore/ops/loss.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/pool.h"
#include "libcore/ops/softmax.h"
#include "tests/ops/mistakes.h"

namespace galley {
namespace {

class LayerMistakes : public MistakeTest {};

TEST_F(LayerMistakes, ConvolutionShowsChannelsAndShapes) {
  Conv2dAttrs a;
  a.groups = 2;
  graph_.set_path("layer1.0.conv2");
  expect_error([&] { conv2d(input({8, 48, 56, 56}), input({128, 32, 3, 3}), {}, a); },
               {"[conv2d]", "weight needs 64 input channels (32 x 2 groups), but the input has 48", "[8,48,56,56]", "[128,32,3,3]",
                "at layer1.0.conv2"});
  expect_error([&] { conv2d(input({1, 2, 5, 5}), input({3, 1, 3, 3}), {}, a); }, {"3 output channels", "2 groups"});
  expect_error([&] { conv2d(input({1, 3, 2, 9}), input({4, 3, 3, 3}), {}, {}); }, {"covers 3 rows", "has 2"});
  expect_error([&] { conv2d(input({1, 3, 9, 9}), input({4, 3, 3, 3}), input({5}), {}); }, {"bias must be [4]", "[5]"});
  expect_error([&] { conv2d(input({1, 3, 9, 9}), input({4, 3, 3, 3}, DType::kBF16), {}, {}); }, {"bf16", "f32"});
  expect_error([&] { conv2d(input({3, 9, 9}), input({4, 3, 3, 3}), {}, {}); }, {"[N,C,H,W]", "[3,9,9]"});
  Conv2dAttrs zero;
  zero.stride = {0};
  expect_error([&] { conv2d(input({1, 3, 9, 9}), input({4, 3, 3, 3}), {}, zero); }, {"stride must be at least 1"});
}

TEST_F(LayerMistakes, OthersShowWhatMeetsWhat) {
  expect_error([&] { linear(input({4, 7}), input({5, 8})); }, {"weight needs 8 input features, but the input has 7", "[4,7]", "[5,8]"});
  expect_error([&] { matmul(input({2, 3}), input({4, 5})); }, {"inner sizes 3 and 4 differ"});
  expect_error([&] { matmul(input({2, 3, 4}), input({5, 4, 3})); }, {"leading dimensions differ"});
  expect_error([&] { batch_norm(input({2, 5, 3, 3}), input({4}), {}); }, {"gamma must be [5]", "[4]"});
  GroupNormAttrs groups;
  groups.groups = 4;
  expect_error([&] { group_norm(input({2, 6, 3, 3}), {}, {}, groups); }, {"6 channels are not a multiple of 4 groups"});
  LayerNormAttrs dims;
  dims.dims = 3;
  expect_error([&] { layer_norm(input({2, 5}), {}, {}, dims); }, {"dims is 3", "rank 2"});
  MaxPool2dAttrs wide;
  wide.padding = {2};
  expect_error([&] { max_pool2d(input({1, 1, 5, 5}), wide); }, {"padding must be at most half the kernel", "padding 2"});
  wide.padding = {0};
  wide.kernel_size = {16};
  expect_error([&] { max_pool2d(input({1, 1, 32, 32}), wide); }, {"16 x 16", "255"});
  SoftmaxAttrs axis;
  axis.axis = 2;
  expect_error([&] { softmax(input({2, 5}), axis); }, {"axis 2", "rank 2"});
  expect_error([&] { cross_entropy(input({4, 10}), input({5}, DType::kI64)); }, {"class indices must be [4]", "[4,10]", "[5]"});
  expect_error([&] { cross_entropy(input({4, 10}), input({4, 9})); }, {"class probabilities", "[4,10]", "[4,9]"});
  expect_error([&] { mse_loss(input({4}), input({5})); }, {"[4]", "[5]"});
}

TEST_F(LayerMistakes, DimensionNamesGoOnAndMustAgree) {
  const std::vector<std::string> names{"N", "C", "H", "W"};
  Conv2dAttrs a;
  a.padding = {1};
  const Value y = conv2d(input({1, 3, 8, 8}, DType::kF32, {}, names), input({3, 3, 3, 3}), {}, a);
  EXPECT_EQ(y.type().names, names);
  EXPECT_EQ(batch_norm(y, {}, {}).y.type().names, names);
  EXPECT_EQ(max_pool2d(y, {}).y.type().names, names);
  expect_error([&] { conv2d(y, input({3, 3, 3, 3}), {}, a, input({1, 3, 8, 8}, DType::kF32, {}, {"N", "C", "W", "H"})); }, {"'H'", "'W'"});
  const Value x = input({2, 3, 4}, DType::kF32, {}, {"N", "T", "C"});
  EXPECT_EQ(linear(x, input({5, 4})).type().names, (std::vector<std::string>{"N", "T", ""}));
}

TEST_F(LayerMistakes, FormatsGoOnButNotToWeights) {
  const MemoryFormat last = MemoryFormat::channels_last();
  const Value x = input({2, 3, 8, 8}, DType::kF32, last), grad = input({2, 4, 6, 6}, DType::kF32, last), weight = input({4, 3, 3, 3});
  EXPECT_EQ(conv2d(x, weight, {}, {}).type().format, last);
  Conv2dBackwardDataAttrs data;
  data.input_size = {8, 8};
  EXPECT_EQ(conv2d_backward_data(grad, weight, data).type().format, last);
  Conv2dBackwardWeightsAttrs weights;
  weights.kernel_size = {3};
  EXPECT_TRUE(conv2d_backward_weights(x, grad, weights).type().format.is_contiguous());
  EXPECT_EQ(max_pool2d(x, {}).index.type().format, last);
}

TEST_F(LayerMistakes, CostsCountTwoFlopsAMultiplyAdd) {
  conv2d(input({2, 3, 8, 8}), input({4, 3, 3, 3}), {}, {});
  const Node& node = graph_.nodes().back();
  EXPECT_EQ(cost_of(*node.op, context_of(graph_, node)).flops, 2.0 * (2 * 4 * 6 * 6) * (3 * 3 * 3));
  linear(input({5, 7}), input({11, 7}));
  const Node& layer = graph_.nodes().back();
  EXPECT_EQ(cost_of(*layer.op, context_of(graph_, layer)).flops, 2.0 * 5 * 7 * 11);
}

TEST_F(LayerMistakes, StatisticsOfShortTypesAreF32) {
  const BatchNorm norm = batch_norm(input({2, 5, 3, 3}, DType::kBF16), input({5}), input({5}));
  EXPECT_EQ(norm.y.dtype(), DType::kBF16);
  EXPECT_EQ(norm.mean.dtype(), DType::kF32);
  EXPECT_EQ(norm.var.dtype(), DType::kF32);
}

}  // namespace
}  // namespace galley
