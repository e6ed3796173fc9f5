// State that a request carries from run to run: it accumulates, requests do not mix, programs of other shapes continue with it, and
// mismatches are errors.

#include "libcore/runtime/carried.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>

#include "libcore/backends/backend.h"
#include "libcore/base/error.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/update.h"
#include "libcore/runtime/engine.h"
#include "tests/support/graphs.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

/// y = total + w * (sum of the rows of x), and total becomes y; carried: total [3].
Graph running_sum(int64_t rows, const TensorType& carried = f32({3})) {
  Graph g;
  const Value x = g.add_input("x", f32({rows, 3}), ValueRole::kInput), w = g.add_input("w", f32({3}), ValueRole::kParameter);
  const Value total = g.add_input("total", carried, ValueRole::kCarried);
  if (carried != f32({3})) {  // a program that carries the same name with another type
    g.add_output("y", assign(total, total));
    return g;
  }
  const Value y = add(total, mul(w, sum(x, {0})));
  g.add_output("y", y);
  assign(total, y);
  return g;
}

using Numbers = std::vector<double>;

class CarriedState : public testing::TestWithParam<std::string> {
 protected:
  CarriedState() : engine_(open_backend(GetParam())) {
    engine_.declare(*program(1));
    engine_.store().set("w", Tensor::of({3}, {1, 2, 4}));
  }
  std::shared_ptr<const Program> program(int64_t rows) {
    return engine_.program(
        {.mode = "sum", .fields = {{"x", f32({rows, 3})}}}, "test", [rows] { return running_sum(rows); },
        engine_.has_formats() ? ParameterFormats::kFollow : ParameterFormats::kLead);
  }
  static Numbers run(Execution& execution, const Tensor& x) {
    execution.feed("x", x);
    execution.run();
    return execution.output("y").to_doubles();
  }
  const Tensor one_ = Tensor::of({1, 3}, {1, 1, 1}), two_ = Tensor::of({2, 3}, {1, 2, 3, 10, 20, 30});
  Engine engine_;
};
INSTANTIATE_TEST_SUITE_P(Devices, CarriedState, testing::ValuesIn(device_names()), [](const auto& info) { return info.param; });

TEST_P(CarriedState, AccumulatesFromZeros) {
  const auto execution = engine_.bind(program(1));
  EXPECT_EQ(run(*execution, one_), (Numbers{1, 2, 4}));
  EXPECT_EQ(run(*execution, one_), (Numbers{2, 4, 8}));
  EXPECT_EQ(execution->carried()->get("total").to_doubles(), (Numbers{2, 4, 8}));
  execution->carried()->reset();
  EXPECT_EQ(run(*execution, one_), (Numbers{1, 2, 4}));
  execution->carried()->set("total", Tensor::of({3}, {100, 200, 300}));
  EXPECT_EQ(run(*execution, one_), (Numbers{101, 202, 304}));
}

TEST_P(CarriedState, RowsAreCopied) {
  const auto execution = engine_.bind(program(1));
  run(*execution, one_);
  execution->carried()->copy_row(2, 0);
  EXPECT_EQ(execution->carried()->get("total").to_doubles(), (Numbers{4, 2, 4}));
  EXPECT_EQ(run(*execution, one_), (Numbers{5, 4, 8}));
}

TEST_P(CarriedState, IsNoParameterAndNotInTheArena) {
  const auto execution = engine_.bind(program(1));
  EXPECT_FALSE(engine_.store().has("total"));
  EXPECT_EQ(execution->carried()->names(), std::vector<std::string>{"total"});
  EXPECT_EQ(execution->program().carried_bytes(), 12);
  EXPECT_EQ(execution->program().persistent_bytes(), 12) << "w";
  EXPECT_EQ(execution->program().feed_bytes(), 12) << "x";
  EXPECT_EQ(execution->carried()->bytes(), 12);
  // Another program that uses the arena leaves it alone.
  run(*execution, one_);
  run(*engine_.bind(program(2)), two_);
  EXPECT_EQ(run(*execution, one_), (Numbers{2, 4, 8}));
}

TEST_P(CarriedState, RequestsOfOneProgramDoNotMix) {
  const auto a = engine_.bind(program(1)), b = engine_.bind(program(1));
  run(*a, one_);
  run(*a, one_);
  EXPECT_EQ(run(*b, one_), (Numbers{1, 2, 4}));
  EXPECT_EQ(run(*a, one_), (Numbers{3, 6, 12}));
  // One execution that serves the requests in turns.
  const auto first = engine_.carried(), second = engine_.carried();
  a->carry(first);
  EXPECT_EQ(run(*a, one_), (Numbers{1, 2, 4}));
  a->carry(second);
  EXPECT_EQ(run(*a, one_), (Numbers{1, 2, 4}));
  a->carry(first);
  EXPECT_EQ(run(*a, one_), (Numbers{2, 4, 8}));
  EXPECT_EQ(second->get("total").to_doubles(), (Numbers{1, 2, 4}));
}

TEST_P(CarriedState, ProgramsOfOtherShapesGoOnWithARequest) {
  const auto request = engine_.carried();
  const auto prefill = engine_.bind(program(2), {.carried = request}), decode = engine_.bind(program(1), {.carried = request});
  EXPECT_EQ(run(*prefill, two_), (Numbers{11, 44, 132}));
  EXPECT_EQ(run(*decode, one_), (Numbers{12, 46, 136}));
  EXPECT_EQ(run(*decode, one_), (Numbers{13, 48, 140}));
  EXPECT_EQ(run(*prefill, two_), (Numbers{24, 92, 272}));
}

TEST_P(CarriedState, OtherShapesAndTypesAreRefused) {
  const auto request = engine_.carried();
  const auto execution = engine_.bind(program(1), {.carried = request});
  run(*execution, one_);
  for (const TensorType& type : {f32({4}), TensorType{DType::kF64, {3}}}) {
    const auto other = engine_.program({.mode = "other", .fields = {{"total", type}}}, "test", [&] { return running_sum(1, type); });
    try {
      engine_.bind(other, {.carried = request});
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kRecipe);
      EXPECT_NE(error.message().find(cat("the program carries 'total' as ", type, ", but the request holds it as f32 [3]")),
                std::string::npos)
          << error.message();
    }
    EXPECT_THROW(engine_.bind(other)->carry(request), Error);
  }
  EXPECT_EQ(run(*execution, one_), (Numbers{2, 4, 8})) << "the request is as it was";
}

TEST_P(CarriedState, ANonFiniteValueIsNamed) {
  const auto execution = engine_.bind(program(1));
  run(*execution, one_);
  execution->carried()->set("total", Tensor::of({3}, {0, INFINITY, 0}));
  const auto bad = find_non_finite(*execution);
  ASSERT_TRUE(bad.has_value());
  EXPECT_EQ(bad->text(), "carried total has 0 NaN and 1 infinite of 3 values (first at [1])");
}

}  // namespace
}  // namespace galley::test
