// Programs of several ranks, as threads: data parallel steps compute what one rank computes with the whole batch.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <thread>

#include "libcore/base/parallel.h"
#include "libcore/comm/delayed.h"
#include "libcore/comm/local.h"
#include "libcore/comm/rank_scope.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/collective.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/registry.h"
#include "libcore/ops/unary.h"
#include "libcore/ops/update.h"
#include "libcore/passes/differentiate.h"
#include "libcore/passes/gate_updates.h"
#include "libcore/passes/shard.h"
#include "libcore/runtime/compile.h"
#include "libcore/runtime/execution.h"
#include "tests/support/as_ranks.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

constexpr int64_t kBatch = 12, kWidth = 19, kSteps = 4;  // 361 elements: gaps in buckets

TensorType type_of(const Shape& shape, DType dtype = DType::kF32) {
  TensorType type;
  type.dtype = dtype;
  type.shape = shape;
  return type;
}

/// How the ranks of a test divide the work.
struct Division {
  int64_t bucket_bytes = 1 << 20;
  bool sharded = false;
  int layers = 3;
};

/// A training step of some layers on `rows` rows, by SGD with momentum.
Graph training_step(int64_t rows, Communicator* ranks, const Division& division) {
  const bool many_ranks = ranks != nullptr;
  Graph graph;
  Value x = graph.add_input("x", type_of({rows, kWidth}), ValueRole::kInput);
  std::vector<std::string> names;
  std::vector<ValueId> weights;
  for (int i = 0; i < division.layers; ++i) {
    names.push_back(cat("w", i));
    const Value w = graph.add_input(names.back(), type_of({kWidth, kWidth}), ValueRole::kParameter);
    weights.push_back(w.id());
    x = tanh(matmul(x, w));
  }
  graph.add_output("loss", mean(mul(x, x)));
  if (many_ranks) weigh_losses(graph);
  const auto found = differentiate(graph, graph.find_output("loss"), weights);
  std::vector<UpdatePiece> pieces;
  for (size_t i = 0; i < weights.size(); ++i)
    pieces.push_back({.name = names[i], .parameter = graph.at(weights[i]), .gradient = graph.at(found.at(weights[i]))});
  const auto updates = !many_ranks        ? nullptr
                       : division.sharded ? sharded_updates({.bytes = division.bucket_bytes}, ranks->rank(), ranks->size())
                                          : replicated_updates({.bytes = division.bucket_bytes});
  if (many_ranks) {
    reduce_losses(graph);
    pieces = updates->reduce(graph, pieces);
  }
  graph.set_phase(Phase::kUpdate);
  const Value lr = graph.add_input("lr", type_of({}), ValueRole::kInput);
  const Value step = graph.add_input("step", type_of({}, DType::kI64), ValueRole::kInput);
  SgdUpdateAttrs attrs;
  attrs.momentum = 0.5;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Value momentum = graph.add_input(pieces[i].name + ".momentum", pieces[i].parameter.type(), ValueRole::kState);
    const Value updated = sgd_update(pieces[i].parameter, pieces[i].gradient, lr, step, momentum, {}, attrs).front();
    if (!pieces[i].in_parameter) updates->finish(graph, i, updated);
  }
  gate_updates(graph, graph.find_output("loss"), "stopped");
  return graph;
}

double number(int64_t seed, int64_t i) { return std::sin(static_cast<double>(seed * 1009 + i * 7) * 0.37); }

struct RankResult {
  std::vector<double> losses;
  std::map<std::string, std::vector<double>> weights;
  int64_t state_bytes = 0;
  Traffic gradients, parameters;  // after the run: of scattered or reduced sums, of gathers
};

/// Trains on rows [first, first + rows) of the batch of each step.
RankResult train(int64_t first, int64_t rows, Communicator* ranks, const Division& division, double bad = 0) {
  const RankScope scope(ranks);
  const auto backend = open_backend("cpu", {.threads = 1});
  const auto program = compile(training_step(rows, ranks, division), {.backend = backend});
  ParameterStore store(backend->device());
  Execution execution(program, store);
  for (int64_t w = 0; w < 3; ++w) {
    Tensor values(DType::kF32, Shape{kWidth, kWidth});
    for (int64_t i = 0; i < values.elements(); ++i) values.data_as<float>()[i] = static_cast<float>(0.4 * number(w + 100, i));
    store.set(cat("w", w), values);
  }
  RankResult result;
  for (int64_t step = 1; step <= kSteps; ++step) {
    Tensor x(DType::kF32, Shape{rows, kWidth});
    for (int64_t i = 0; i < x.elements(); ++i) x.data_as<float>()[i] = static_cast<float>(number(step, first * kWidth + i));
    if (step == 3 && bad != 0) x.data_as<float>()[0] = static_cast<float>(bad);
    execution.feed("x", x);
    execution.set("lr", 4);
    execution.set("step", static_cast<double>(step));
    if (execution.takes(kRankWeight)) execution.set(kRankWeight, static_cast<double>(rows) / kBatch);
    execution.run();
    result.losses.push_back(execution.scalar("loss"));
  }
  for (const std::string& name : store.names(ValueRole::kParameter)) result.weights[name] = store.get(name).to_doubles();
  for (const std::string& name : store.names(ValueRole::kState)) {
    if (name.ends_with(".momentum")) result.state_bytes += store.get(name).bytes();
  }
  if (ranks != nullptr) {
    result.gradients = ranks->traffic(division.sharded ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce);
    result.parameters = ranks->traffic(CollectiveKind::kAllGather);
  }
  return result;
}

std::vector<RankResult> train_ranks(int ranks, const Division& division, double bad_in_rank_1 = 0) {
  auto communicators = local_communicators(ranks, {.timeout_s = 60});
  std::vector<RankResult> results(static_cast<size_t>(ranks));
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      const ThreadShare share(1);
      const int64_t first = kBatch * r / ranks, end = kBatch * (r + 1) / ranks;
      try {
        results[static_cast<size_t>(r)] =
            train(first, end - first, communicators[static_cast<size_t>(r)].get(), division, r == 1 ? bad_in_rank_1 : 0);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(r)] = error.what();
        communicators[static_cast<size_t>(r)]->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return results;
}

class DataParallelSteps : public testing::TestWithParam<std::tuple<int, int64_t, bool>> {};

TEST_P(DataParallelSteps, EqualThoseOfOneRank) {
  if (!has_cpu()) GTEST_SKIP() << "no CPU back end";
  ensure_ops_registered();
  const auto [ranks, bucket_bytes, sharded] = GetParam();
  const RankResult alone = train(0, kBatch, nullptr, {});
  const std::vector<RankResult> together = train_ranks(ranks, {.bucket_bytes = bucket_bytes, .sharded = sharded});
  for (const RankResult& rank : together) {
    EXPECT_EQ(rank.weights, together.front().weights);  // the same bits on every rank
    EXPECT_EQ(rank.losses, together.front().losses);
  }
  for (size_t s = 0; s < alone.losses.size(); ++s) EXPECT_NEAR(together.front().losses[s], alone.losses[s], 1e-6);
  ASSERT_EQ(together.front().weights.size(), 3u);
  double moved = 0;
  for (const auto& [name, values] : alone.weights) {
    for (size_t i = 0; i < values.size(); ++i) {
      // Sums of products in another order: rounding of f32 values below 1.
      EXPECT_NEAR(together.front().weights.at(name)[i], values[i], 2e-6) << name << " " << i;
      moved = std::max(moved, std::abs(values[i] - static_cast<float>(0.4 * number(name.back() - '0' + 100, static_cast<int64_t>(i)))));
    }
  }
  EXPECT_GT(moved, 0.01);  // far more than the tolerance
}

INSTANTIATE_TEST_SUITE_P(All, DataParallelSteps,
                         testing::Combine(testing::Values(2, 3, 4, 5), testing::Values(int64_t{1}, int64_t{1} << 20), testing::Bool()));

TEST(CollectivePrograms, RanksHoldTheirRangeOfTheStateAndSendTheBytesOfTheFormula) {
  if (!has_cpu()) GTEST_SKIP() << "no CPU back end";
  ensure_ops_registered();
  for (const int ranks : {2, 3, 5}) {
    // One bucket: three arrays of 361 elements, each at a multiple of 16, then padding to a multiple of 16 for each rank.
    const int64_t shard = (2 * 368 + 361 + 16 * ranks - 1) / (16 * ranks) * 16;
    const int64_t dense = 4 * (2 * 368 + 361);
    for (const RankResult& rank : train_ranks(ranks, {.sharded = true})) {
      EXPECT_EQ(rank.state_bytes, 4 * shard);
      EXPECT_EQ(rank.gradients.bytes, kSteps * 4 * shard * (ranks - 1));
      EXPECT_EQ(rank.parameters.bytes, kSteps * 4 * shard * (ranks - 1));
      EXPECT_EQ(rank.gradients.calls, kSteps);
    }
    int64_t sent = 0;
    for (const RankResult& rank : train_ranks(ranks, {})) {
      EXPECT_EQ(rank.state_bytes, 3 * 361 * 4);
      EXPECT_EQ(rank.parameters.bytes, 0);
      sent += rank.gradients.bytes;
    }
    EXPECT_EQ(sent, kSteps * 2 * (ranks - 1) * (dense + 4));  // and the loss
  }
}

TEST(CollectivePrograms, ALossThatIsNotFiniteOnOneRankStopsTheUpdateOfAll) {
  if (!has_cpu()) GTEST_SKIP() << "no CPU back end";
  ensure_ops_registered();
  for (const bool sharded : {false, true}) {
    const std::vector<RankResult> good = train_ranks(2, {.sharded = sharded});
    const std::vector<RankResult> bad = train_ranks(2, {.sharded = sharded}, NAN);
    for (const RankResult& rank : bad) {
      EXPECT_TRUE(std::isnan(rank.losses[2]));
      for (const auto& [name, values] : rank.weights) {
        EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); })) << name;
      }
      EXPECT_EQ(rank.weights, bad.front().weights);
      EXPECT_NE(rank.weights, good.front().weights);
    }
  }
}

TEST(CollectivePrograms, SumsStartBeforeTheRestOfTheBackwardPassAndUseTheMemoryOfTheirOperand) {
  if (!has_cpu()) GTEST_SKIP() << "no CPU back end";
  ensure_ops_registered();
  const auto two = local_communicators(2);
  const auto program =
      compile(training_step(kBatch, two.front().get(), {.bucket_bytes = 1}), {.backend = open_backend("cpu", {.threads = 1})});
  const Graph& graph = program->graph();
  std::vector<int> starts, waits;
  int last_product = -1, index = 0;
  for (const Node& node : graph.nodes()) {
    const auto slot = [&](ValueId id) { return program->memory().values[static_cast<size_t>(id)]; };
    if (node.op == &all_reduce_start_op()) starts.push_back(index);
    if (node.op == &all_reduce_wait_op()) {
      waits.push_back(index);
      EXPECT_EQ(slot(node.inputs[0]).offset, slot(node.outputs[0]).offset);  // nothing is copied
    }
    if (node.phase == Phase::kBackward && node.op->work == WorkClass::kProduct) last_product = index;
    ++index;
  }
  ASSERT_EQ(starts.size(), 4u);  // the loss and three gradients
  ASSERT_EQ(waits.size(), 4u);
  EXPECT_LT(starts[2], last_product);
  for (const int wait : waits) EXPECT_GT(wait, last_product);
}

using std::chrono::milliseconds;
constexpr milliseconds kProductTime{5}, kSumTime{15};

/// Each product takes at least a time, without using the processor.
class SlowProducts : public NodeObserver {
 public:
  void before(const Program& program, const Step& step, Stream&) override {
    const bool product = program.graph().nodes()[static_cast<size_t>(step.node)].op->work == WorkClass::kProduct;
    if (product) std::this_thread::sleep_for(kProductTime);
    products += product;
  }
  void after(const Program&, const Step&, const NodeOutputs&) override {}
  int products = 0;
};

/// Starts collectives where they are waited for: the negative control.
class LateStarts : public Communicator {
 public:
  explicit LateStarts(std::unique_ptr<Communicator> inner) : Communicator(inner->rank(), inner->size()), inner_(std::move(inner)) {}
  std::string transport() const override { return inner_->transport(); }
  void abort(const std::string& message) override { inner_->abort(message); }

 protected:
  void begin(const Collective& call, Ticket ticket) override { calls_[ticket] = call; }
  void finish(Ticket ticket) override { inner_->run(calls_.at(ticket)); }

 private:
  std::unique_ptr<Communicator> inner_;
  std::map<Ticket, Collective> calls_;
};

/// Seconds of the fastest of three steps with sums that take long, and the number of products.
std::pair<double, int> seconds_of_step(bool late) {
  auto inner = local_communicators(2, {.timeout_s = 60});
  std::vector<std::unique_ptr<Communicator>> all;
  for (auto& each : inner) {
    all.push_back(std::make_unique<DelayedCommunicator>(std::move(each), [](const Collective&) { return kSumTime; }));
    if (late) all.back() = std::make_unique<LateStarts>(std::move(all.back()));
  }
  double fastest = 1e9;
  int products = 0;
  const auto errors = as_ranks(all, [&](Communicator& comm) {
    const RankScope scope(&comm);
    const auto backend = open_backend("cpu", {.threads = 1});
    const auto program = compile(training_step(kBatch, &comm, {.bucket_bytes = 1, .layers = 6}), {.backend = backend});
    ParameterStore store(backend->device());
    Execution execution(program, store);
    execution.feed("x", Tensor(DType::kF32, Shape{kBatch, kWidth}));
    execution.set("lr", 1);
    execution.set("step", 1.0);
    if (execution.takes(kRankWeight)) execution.set(kRankWeight, 0.5);
    for (int run = 0; run < 3; ++run) {
      SlowProducts slow;
      const auto began = std::chrono::steady_clock::now();
      execution.run({.observer = &slow});
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
      if (comm.rank() != 0) continue;
      fastest = std::min(fastest, seconds);
      products = slow.products;
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return {fastest, products};
}

/// A step with the sums of six gradients and the loss takes the longer of computing and summing; with starts at the waits it takes both.
TEST(CollectivePrograms, SumsRunBesideTheBackwardPass) {
  if (!has_cpu()) GTEST_SKIP() << "no CPU back end";
  ensure_ops_registered();
  const auto [scheduled, products] = seconds_of_step(false);
  const double late = seconds_of_step(true).first;
  const double computing = products * std::chrono::duration<double>(kProductTime).count();
  const double summing = 7 * std::chrono::duration<double>(kSumTime).count();
  EXPECT_EQ(products, 6 + 11);
  EXPECT_GE(late, computing + summing);
  EXPECT_LT(scheduled, 0.75 * late) << "at best " << std::max(computing, summing) / (computing + summing);
}

}  // namespace
}  // namespace galley::test
