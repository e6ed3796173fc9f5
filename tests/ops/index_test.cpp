// Errors of operators with indices: wrong shapes are rejected at capture, wrong indices at run time.

#include "libcore/ops/index.h"

#include "libcore/backends/ref/ref.h"
#include "libcore/ops/random.h"
#include "libcore/ops/update.h"
#include "tests/ops/mistakes.h"

namespace galley {
namespace {

class IndexTest : public MistakeTest {
 protected:
  /// Runs the graph on the reference; each input is filled with one number of `values`.
  void expect_bad_index(std::initializer_list<double> values, const std::vector<std::string>& parts) {
    std::map<std::string, RefArray> feeds;
    auto value = values.begin();
    for (ValueId id : graph_.inputs()) {
      const Shape& shape = graph_.type(id).shape;
      feeds[graph_.value(id).name] = {shape, std::vector<double>(static_cast<size_t>(shape.elements()), *value++)};
    }
    try {
      interpret(graph_, feeds);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      for (const std::string& part : parts) EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
    }
  }
};

TEST_F(IndexTest, Shapes) {
  const Value x = input({2, 3}), index = input({2, 3}, DType::kI64);
  expect_error([&] { gather(x, input({2, 3}), 1); }, {"[gather]", "index must be i64 or i32"});
  expect_error([&] { gather(x, input({3, 3}, DType::kI64), 1); }, {"[gather]", "in all dimensions except 1", "[2,3]", "[3,3]"});
  expect_error([&] { gather(x, index, 2); }, {"[gather]", "axis 2"});
  expect_error([&] { scatter_add(x, input({2, 2}, DType::kI64), 1, 4); }, {"[scatter_add]", "the shape of x"});
  expect_error([&] { scatter_add(x, index, 1, -1); }, {"[scatter_add]", "size"});
  expect_error([&] { one_hot(x, 3); }, {"[one_hot]", "index must be i64 or i32"});
  expect_error([&] { one_hot(index, 0); }, {"[one_hot]", "classes must be at least 1"});
  expect_error([&] { iota(graph_, DType::kBool, {3}, 0); }, {"[iota]", "bool"});
  expect_error([&] { iota(graph_, DType::kI64, {3}, 1); }, {"[iota]", "axis 1"});
  expect_error([&] { assign(x, index); }, {"[assign]", "value must have the dtype and shape of state"});
  expect_error([&] { random_bits(index, {}); }, {"[random_bits]", "rng must be i64 [3]"});
}

TEST_F(IndexTest, AnIndexBeyondTheAxis) {
  const Value x = input({2, 3});
  gather(x, input({2, 1}, DType::kI64), 1);
  expect_bad_index({1, 3}, {"[gather]", "index 3", "0..2"});
}

TEST_F(IndexTest, NegativeIndicesDoNotCountFromTheEnd) {
  const Value x = input({2, 3});
  scatter_add(x, input({2, 3}, DType::kI64), 1, 5);
  expect_bad_index({1, -1}, {"[scatter_add]", "index -1", "0..4"});
}

TEST_F(IndexTest, AClassThatIsNone) {
  one_hot(input({2}, DType::kI64), 4);
  expect_bad_index({4}, {"[one_hot]", "index 4", "0..3"});
}

}  // namespace
}  // namespace galley
