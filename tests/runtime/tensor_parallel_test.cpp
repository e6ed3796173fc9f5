// Programs of ranks that divide matrices: what no rule covers reads gathered values, whatever the blocks and sizes of parts.

#include "libcore/passes/tensor_parallel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "libcore/base/parallel.h"
#include "libcore/comm/local.h"
#include "libcore/comm/rank_scope.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/registry.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/softmax.h"
#include "libcore/ops/unary.h"
#include "libcore/passes/differentiate.h"
#include "libcore/runtime/compile.h"
#include "libcore/runtime/execution.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

constexpr int64_t kSequences = 6, kWidth = 5;

double number(int64_t seed, int64_t i) { return std::sin(static_cast<double>(seed * 1009 + i * 7) * 0.37); }

Tensor numbers(int64_t seed, const Shape& shape) {
  Tensor values(DType::kF32, shape);
  for (int64_t i = 0; i < values.elements(); ++i) values.data_as<float>()[i] = static_cast<float>(number(seed, i));
  return values;
}

struct Result {
  std::vector<double> output, gradient;  // gradient: of this rank's part of the weight
};

/// softmax reads all features, which the ranks divide; so does the permuted view of tanh.
Result run(const TensorDivision& division, int rank, int ranks, bool divides) {
  const int64_t features = division.size();
  Graph graph;
  const Value x = graph.add_input("x", {.shape = {2, kSequences / 2, kWidth}}, ValueRole::kInput);
  const Value w = graph.add_input("w", {.shape = {features, kWidth}}, ValueRole::kParameter);
  const Value y = tanh(linear(x, w));
  const Value mixed = permute(y, {2, 0, 1});
  graph.add_output("y", softmax(y));
  graph.add_output("loss",
                   mean(square(matmul(reshape(mixed, {features, kSequences}), reshape(mixed, {features, kSequences}), {true, false}))));
  if (divides) tensor_parallel(graph, {{"w", division}}, {.rank = rank, .ranks = ranks});
  const ValueId weight = graph.find_input("w");
  const auto gradients = differentiate(graph, graph.find_output("loss"), std::vector<ValueId>{weight});
  graph.add_output("dw", gradients.at(weight));
  const auto backend = open_backend("cpu", {.threads = 1});
  const auto program = compile(std::move(graph), {.backend = backend});
  ParameterStore store(backend->device());
  Execution execution(program, store);
  const Tensor values = numbers(1, {features, kWidth});
  store.set("w", divides ? part_of(values, division, rank, ranks) : values);
  execution.feed("x", numbers(2, {2, kSequences / 2, kWidth}));
  execution.run();
  return {execution.output("y").to_doubles(), execution.output("dw").to_doubles()};
}

TEST(TensorParallel, WhatNoRuleCoversReadsGatheredValues) {
  if (!has_cpu()) GTEST_SKIP() << "no CPU back end";
  const std::vector<TensorDivision> divisions{{0, {{12, 1}}},                  // equal parts
                                              {0, {{7, 1}}},                   // the last ranks have less
                                              {0, {{8, 2}, {4, 1}, {4, 1}}}};  // queries, keys and values
  for (const TensorDivision& division : divisions) {
    const Result one = run(division, 0, 1, false);
    for (const int ranks : {2, 4}) {
      auto communicators = local_communicators(ranks, {.timeout_s = 60});
      std::vector<Result> results(static_cast<size_t>(ranks));
      std::vector<std::thread> threads;
      for (int r = 0; r < ranks; ++r) {
        threads.emplace_back([&, r] {
          const ThreadShare share(1);
          const RankScope scope(nullptr, communicators[static_cast<size_t>(r)].get());
          results[static_cast<size_t>(r)] = run(division, r, ranks, true);
        });
      }
      for (std::thread& thread : threads) thread.join();
      Tensor gradient(DType::kF32, {division.size(), kWidth});
      for (int r = 0; r < ranks; ++r) {
        const Result& own = results[static_cast<size_t>(r)];
        ASSERT_EQ(own.output.size(), one.output.size());
        // The products have other sizes, so that kernels may add in another order.
        for (size_t i = 0; i < one.output.size(); ++i) EXPECT_NEAR(own.output[i], one.output[i], 1e-6) << ranks << " " << i;
        Tensor part(DType::kF32, division.shape({division.size(), kWidth}, r, ranks));
        part.from_doubles(own.gradient);
        place_part(gradient, part, division, r, ranks);
      }
      const std::vector<double> whole = gradient.to_doubles();
      for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(whole[i], one.gradient[i], 1e-6) << ranks << " " << i;
    }
  }
}

}  // namespace
}  // namespace galley::test
