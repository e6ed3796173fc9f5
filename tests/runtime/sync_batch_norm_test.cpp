// Batch norm with the statistics of all ranks: outputs and gradients of ranks with parts of a batch, of different sizes, are those of one
// rank with the whole batch, in every memory format, with activations and a residual; without `sync` they are not.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <thread>

#include "libcore/base/parallel.h"
#include "libcore/comm/local.h"
#include "libcore/comm/rank_scope.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/reduce.h"
#include "libcore/passes/differentiate.h"
#include "libcore/passes/replicate.h"
#include "libcore/runtime/compile.h"
#include "libcore/runtime/execution.h"
#include "tests/support/graphs.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

constexpr int64_t kRows = 9, kChannels = 5;

struct Case {
  const char* name;
  std::vector<int64_t> image;  // after [N,C]
  Activation activation;
  bool residual;
  LayoutMode layout;
};

/// loss = sum(w y), so that the gradient of y is w.
Graph norm_graph(const Case& c, int64_t rows, bool sync) {
  Graph graph;
  Shape shape{rows, kChannels};
  for (const int64_t size : c.image) shape.push_back(size);
  const Value x = graph.add_input("x", f32(shape), ValueRole::kParameter);
  const Value gamma = graph.add_input("gamma", f32({kChannels}), ValueRole::kParameter);
  const Value beta = graph.add_input("beta", f32({kChannels}), ValueRole::kParameter);
  const Value residual = c.residual ? graph.add_input("residual", f32(shape), ValueRole::kParameter) : Value();
  BatchNormAttrs attrs;
  attrs.activation = c.activation;
  const BatchNorm norm = batch_norm(x, gamma, beta, attrs, residual);
  if (sync) sync_batch_norms(graph, 1);
  graph.add_output("loss", sum(mul(norm.y, graph.add_input("w", f32(shape), ValueRole::kParameter))));
  graph.add_output("y", norm.y);
  graph.add_output("mean", norm.mean);
  graph.add_output("var", norm.var);
  graph.set_phase(Phase::kBackward);
  std::vector<ValueId> wanted{x.id(), gamma.id(), beta.id()};
  if (residual) wanted.push_back(residual.id());
  const auto gradients = differentiate(graph, graph.find_output("loss"), wanted);
  for (const ValueId id : wanted) graph.add_output("d" + graph.value(id).name, gradients.at(id));
  return graph;
}

using Values = std::map<std::string, std::vector<double>>;

/// Runs rows [first, first + rows) of the batch.
Values run_rows(const Case& c, int64_t first, int64_t rows, bool sync, Communicator* ranks) {
  const RankScope scope(ranks);
  const ThreadShare share(1);
  const auto program = compile(norm_graph(c, rows, sync), {.backend = open_backend("cpu", {.threads = 1, .memory_format = c.layout})});
  ParameterStore store;
  Execution execution(program, store);
  for (const std::string& name : store.names()) {
    const Shape shape = store.get(name).shape();
    if (shape.rank() == 1) {
      store.set(name, to_tensor(f32(shape), random_array(f32(shape), name == "gamma" ? 1 : 2, 0.5, 1.5)));
      continue;
    }
    Shape whole = shape;
    whole[0] = kRows;
    const RefArray all = random_array(f32(whole), name == "x" ? 3 : name == "w" ? 4 : 5, 2, 4);  // a mean that is larger than the deviation
    RefArray part{shape, {}};
    const int64_t row = whole.elements() / kRows;
    part.v.assign(all.v.begin() + first * row, all.v.begin() + (first + rows) * row);
    for (double& v : part.v) v = name == "x" ? v : v - 3;
    store.set(name, to_tensor(f32(shape), part));
  }
  execution.run();
  Values values;
  for (const auto& [name, id] : program->graph().outputs()) {
    if (name != "loss") values[name] = execution.output(name).to_doubles();
  }
  return values;
}

/// What `ranks` ranks compute: rows one after the other, sums of dgamma and dbeta.
Values run_ranks(const Case& c, int ranks, bool sync) {
  auto communicators = local_communicators(ranks, {.timeout_s = 60});
  std::vector<Values> parts(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      const int64_t first = kRows * r * r / (ranks * ranks), end = kRows * (r + 1) * (r + 1) / (ranks * ranks);
      parts[static_cast<size_t>(r)] = run_rows(c, first, end - first, sync, communicators[static_cast<size_t>(r)].get());
    });
  }
  for (std::thread& thread : threads) thread.join();
  Values values = parts.front();
  for (size_t r = 1; r < parts.size(); ++r) {
    for (auto& [name, all] : values) {
      const std::vector<double>& part = parts[r].at(name);
      if (name == "dgamma" || name == "dbeta") {
        for (size_t i = 0; i < all.size(); ++i) all[i] += part[i];
      } else if (name == "mean" || name == "var") {
        EXPECT_EQ(part, all) << name;  // the same on all ranks
      } else {
        all.insert(all.end(), part.begin(), part.end());
      }
    }
  }
  return values;
}

double largest_difference(const Values& a, const Values& b) {
  double most = 0;
  for (const auto& [name, values] : a) {
    EXPECT_EQ(values.size(), b.at(name).size()) << name;
    for (size_t i = 0; i < values.size(); ++i) most = std::max(most, std::abs(values[i] - b.at(name)[i]));
  }
  return most;
}

class SyncBatchNorm : public testing::TestWithParam<Case> {};

TEST_P(SyncBatchNorm, IsThatOfTheWholeBatch) {
  if (!has_cpu()) GTEST_SKIP() << "the kernels are the CPU's";
  const Values whole = run_rows(GetParam(), 0, kRows, false, nullptr);
  EXPECT_LT(largest_difference(whole, run_rows(GetParam(), 0, kRows, true, nullptr)), 1e-5);  // alone
  for (const int ranks : {2, 3}) {
    EXPECT_LT(largest_difference(whole, run_ranks(GetParam(), ranks, true)), 2e-5) << ranks << " ranks";
  }
}

INSTANTIATE_TEST_SUITE_P(All, SyncBatchNorm,
                         testing::Values(Case{"rows", {}, Activation::kNone, false, LayoutMode::kAuto},
                                         Case{"vectors_relu", {}, Activation::kRelu, false, LayoutMode::kAuto},
                                         Case{"pixels", {3, 4}, Activation::kHardswish, false, LayoutMode::kChannelsLast},
                                         Case{"residual", {3, 4}, Activation::kRelu, true, LayoutMode::kChannelsLast},
                                         Case{"planes", {3, 4}, Activation::kRelu, false, LayoutMode::kContiguous},
                                         Case{"planes_residual", {3, 4}, Activation::kRelu, true, LayoutMode::kContiguous}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(SyncBatchNorm, WithoutItRanksHaveStatisticsOfTheirOwn) {
  if (!has_cpu()) GTEST_SKIP() << "the kernels are the CPU's";
  const Case c{"rows", {3, 4}, Activation::kNone, false, LayoutMode::kChannelsLast};
  const Values whole = run_rows(c, 0, kRows, false, nullptr), part = run_rows(c, 0, 4, false, nullptr);
  EXPECT_NE(whole.at("mean"), part.at("mean"));
}

TEST(SyncBatchNorm, TheVarianceIsThatOfAllSamples) {
  Graph graph;
  const TensorType vector = f32({kChannels});
  const Value mean = graph.add_input("running_mean", vector, ValueRole::kBuffer),
              var = graph.add_input("running_var", vector, ValueRole::kBuffer);
  BatchNormUpdateAttrs attrs;
  attrs.count = 12;
  const BatchNorm norm = batch_norm(graph.add_input("x", f32({4, kChannels, 3}), ValueRole::kInput), {}, {});
  batch_norm_update(mean, var, norm.mean, norm.var, {}, attrs);
  sync_batch_norms(graph, 2.5);
  EXPECT_EQ(graph.nodes().back().attrs<BatchNormUpdateAttrs>().count, 30);
}

}  // namespace
}  // namespace galley::test
