// Mistakes in a model are errors that show both operands: shapes, names of dimensions, dtypes. Results keep names of dimensions.

#include "tests/ops/mistakes.h"

#include <gtest/gtest.h>

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/random.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/shuffle.h"
#include "libcore/ops/unary.h"
#include "libcore/ops/update.h"

namespace galley {
namespace {

using Names = std::vector<std::string>;

class Mistakes : public MistakeTest {
 protected:
  Value input(const Shape& shape, Names names = {}, DType dtype = DType::kF32) {
    return MistakeTest::input(shape, dtype, {}, std::move(names));
  }
};

TEST_F(Mistakes, ShapesAndDtypesAreShown) {
  const Value x = input({2, 3}), y = input({4}), half = input({2, 3}, {}, DType::kBF16), count = input({2}, {}, DType::kI64);
  graph_.set_path("layer1.0");
  expect_error([&] { add(x, y); }, {"[add]", "[2,3]", "[4]", "at layer1.0"});
  expect_error([&] { mul(x, half); }, {"f32 [2,3]", "bf16 [2,3]", "cast"});
  expect_error([&] { exp(count); }, {"[exp]", "i64 [2]"});
  expect_error([&] { where(x, x, x); }, {"condition", "bool"});
  expect_error([&] { sum(x, {2}); }, {"axis 2", "rank 2"});
  expect_error([&] { sum(x, {0, -2}); }, {"axis 0", "twice"});
  expect_error([&] { concat({x, y}, 0); }, {"[2,3]", "[4]"});
  expect_error([&] { reshape(x, {4, -1}); }, {"6 elements", "4"});
  expect_error([&] { reshape(x, {5}); }, {"[2,3]", "[5]"});
  expect_error([&] { permute(x, {0, 0}); }, {"[0,0]", "permutation"});
  expect_error([&] { channel_shuffle(x, 2); }, {"groups=2 does not divide the 3 channels", "[2,3]"});
  expect_error([&] { channel_shuffle(y, 2); }, {"[N,C,...]", "[4]"});
  expect_error([&] { split(x, {1, 1}, 1); }, {"add up to 2", "3"});
  expect_error([&] { squeeze(x, 0); }, {"size 1", "[2,3]"});
  expect_error([&] { pad(x, {1, 1}); }, {"two numbers", "[2,3]"});
  expect_error([&] { embedding(x, y); }, {"index", "i64"});
  expect_error([&] { dropout(x, count); }, {"rng", "i64 [3]", "i64 [2]"});
  expect_error([&] { broadcast_to(x, Shape{3, 3}); }, {"[2,3]", "[3,3]"});
  expect_error([&] { sum_to(x, Shape{2}); }, {"[2]", "[2,3]"});
  TopkAttrs five;
  five.k = 5;
  expect_error([&] { topk(x, five); }, {"k = 5", "3"});
  const Value lr = input({}), step = input({}, {}, DType::kI64);
  SgdUpdateAttrs momentum;
  momentum.momentum = 0.9;
  expect_error([&] { sgd_update(x, x, lr, step, {}, {}, momentum); }, {"momentum_buffer is missing", "0.9"});
  momentum.momentum = 0;
  momentum.nesterov = true;
  expect_error([&] { sgd_update(x, x, lr, step, {}, {}, momentum); }, {"nesterov"});
}

TEST_F(Mistakes, TwoNamesThatMeetAreShown) {
  const Value x = input({2, 3}, {"N", "C"}), y = input({2, 3}, {"N", "T"}), plain = input({3}), c = input({3}, {"C"});
  expect_error([&] { add(x, y); }, {"'C'", "'T'", "dimension 1"});
  expect_error([&] { concat({x, y}, 0); }, {"'C'", "'T'"});
  EXPECT_EQ(add(x, plain).type().names, (Names{"N", "C"}));
  EXPECT_EQ(add(plain, x).type().names, (Names{"N", "C"}));
  EXPECT_EQ(mul(x, c).type().names, (Names{"N", "C"}));
  EXPECT_EQ(relu(x).type().names, (Names{"N", "C"}));
  EXPECT_EQ(transpose(x, 0, 1).type().names, (Names{"C", "N"}));
  EXPECT_EQ(sum(x, {1}).type().names, (Names{"N"}));
  EXPECT_EQ(sum(x, {1}, true).type().names, (Names{"N", "C"}));
  EXPECT_EQ(slice(x, 1, 0, 2).type().names, (Names{"N", "C"}));
  EXPECT_EQ(unsqueeze(x, 2).type().names, (Names{"N", "C", ""}));
  EXPECT_EQ(flatten(input({2, 3, 4, 5}, {"N", "C", "H", "W"})).type().names, (Names{"N", ""}));
  EXPECT_EQ(sum_to(x, Shape{3}).type().names, (Names{"C"}));
}

TEST_F(Mistakes, ChannelsLastGoesThroughElementWiseOps) {
  TensorType type;
  type.shape = Shape{2, 3, 4, 5};
  type.format = MemoryFormat::channels_last();
  const Value x = graph_.add_input("x", type, ValueRole::kInput);
  const Value vector = input({3, 1, 1}), gate = input({2, 3, 1, 1});
  const std::vector<Value> results{relu(x),           add(x, vector),        mul(gate, x),         concat({x, x}, 1),
                                   slice(x, 1, 0, 2), cast(x, DType::kBF16), mean(x, {2, 3}, true)};
  for (const Value& y : results) {
    EXPECT_TRUE(y.type().format.is_channels_last()) << y.type();
  }
  EXPECT_TRUE(mean(x, {2, 3}).type().format.is_contiguous());
  EXPECT_TRUE(reorder(x, MemoryFormat::contiguous()).type().format.is_contiguous());
}

}  // namespace
}  // namespace galley
