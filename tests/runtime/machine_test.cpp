// Laws of the machine's limits: rates on a disturbed machine, and operations counted by type.

#include "libcore/runtime/machine.h"

#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <thread>

#include "libcore/ops/conv.h"
#include "libcore/ops/quantized.h"
#include "libcore/ops/registry.h"
#include "libcore/ops/unary.h"
#include "libcore/runtime/bursts.h"

namespace galley::test {
namespace {

// The time of a call is not controlled; the claimed amount of work differs by a factor of a million.
TEST(ReachedRate, IsThatOfTheBestTenth) {
  int64_t calls = 0;
  const auto rate = [&](int64_t every) {
    calls = 0;
    return reached_rate(0.05, [&] {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      return calls++ % every == 0 ? 1e6 : 1.0;
    });
  };
  EXPECT_GT(rate(4), 1e7) << "a quarter of the calls was fast";
  EXPECT_GE(calls, 6) << "one to warm up and five that count";
  // The first call, which is fast, is a warm-up.
  EXPECT_LT(rate(int64_t{1} << 40), 1e6);
}

Cost cost_of_last(const Graph& graph) {
  const Node& node = graph.nodes().back();
  return cost_of(*node.op, context_of(graph, node));
}

TensorType typed(DType dtype, const Shape& shape) {
  TensorType type;
  type.dtype = dtype;
  type.shape = shape;
  return type;
}

TEST(Arithmetic, CountsByType) {
  ensure_ops_registered();
  Arithmetic work;
  const double products = 2.0 * 1 * 16 * 6 * 6 * 8 * 3 * 3;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Graph graph;
    const Value x = graph.add_input("x", typed(dtype, {1, 8, 8, 8}), ValueRole::kInput),
                w = graph.add_input("w", typed(dtype, {16, 8, 3, 3}), ValueRole::kParameter);
    conv2d(x, w, Value(), {});
    EXPECT_EQ(cost_of_last(graph).dtype, dtype);
    work.add(cost_of_last(graph));
    relu(x);
    EXPECT_EQ(cost_of_last(graph).dtype, DType::kF32) << "only products have instructions of their own";
  }
  Graph graph;
  const Value x = graph.add_input("x", typed(DType::kU8, {1, 8, 8, 8}), ValueRole::kInput),
              w = graph.add_input("w", typed(DType::kI8, {16, 8, 3, 3}), ValueRole::kParameter);
  quantized_conv2d(x, w, graph.add_input("s", typed(DType::kF32, {16}), ValueRole::kParameter), Value(), {});
  work.add(cost_of_last(graph), 3);
  EXPECT_EQ(work.f32, products);
  EXPECT_EQ(work.bf16, products);
  EXPECT_EQ(work.int8, 3 * products);
  EXPECT_EQ(work.total(), 5 * products);
}

TEST(Arithmetic, NeedsTheTimeOfEachType) {
  MachineLimits limits;
  const Arithmetic work{3e9, 8e9, 8e9};
  EXPECT_EQ(work.seconds_at(limits), 0);
  limits.set_peak(DType::kF32, 1e9, "any");
  EXPECT_DOUBLE_EQ(work.seconds_at(limits), 19);  // types without a rate use that of f32
  limits.set_peak(DType::kBF16, 4e9, "any");
  limits.set_peak(DType::kI8, 8e9, "any");
  EXPECT_DOUBLE_EQ(work.seconds_at(limits), 3 + 2 + 1);
  EXPECT_DOUBLE_EQ((work * 2).seconds_at(limits), 12);
}

TEST(Bursts, RunHere) {
  std::set<DType> seen;
  for (const Burst& burst : bursts()) {
    burst.run(3);
    EXPECT_GT(burst.per_round, 0) << burst.instruction_set;
    seen.insert(burst.dtype);
  }
  EXPECT_TRUE(seen.contains(DType::kF32));
}

}  // namespace
}  // namespace galley::test
