// PowerSGD between ranks against the algorithm of the paper (Vogels et al. 2019, algorithms 1 and 2) in f64, for ranks as threads.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <thread>

#include "libcore/base/parallel.h"
#include "libcore/base/philox.h"
#include "libcore/comm/local.h"
#include "libcore/comm/rank_scope.h"
#include "libcore/ops/registry.h"
#include "libcore/ops/unary.h"
#include "libcore/passes/shard.h"
#include "libcore/runtime/compile.h"
#include "libcore/runtime/execution.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

constexpr int kSteps = 5;
using Matrix = std::vector<std::vector<double>>;  // by rows

struct Parameter {
  std::string name;
  Shape shape;
  int64_t rows() const { return shape[0]; }
  int64_t columns() const { return shape.elements() / shape[0]; }
};
/// A matrix, a convolution's weight, a vector, and a matrix that is smaller than factors of rank 2.
const std::vector<Parameter> kParameters{{"a", {40, 30}}, {"b", {24, 3, 3, 3}}, {"c", {17}}, {"d", {3, 4}}};

double gradient(const Parameter& parameter, int rank, int step, int64_t i) {
  RandomStream random(7, cat(parameter.name, rank, " ", i), static_cast<uint64_t>(step));
  return random.normal() + 0.3 * static_cast<double>(rank);
}

/// The first factor, as both sides begin.
double first_factor(const Parameter& parameter, int64_t i) { return RandomStream(11, cat(parameter.name, " ", i)).normal(); }

struct Setting {
  int ranks = 3;
  PowerSgd power;
  bool sharded = false, constant = false;  // constant: the gradients of step 1 in all steps
};

using Sums = std::map<std::string, std::vector<double>>;  // by parameter

Graph hook_graph(const Setting& setting, int rank, std::vector<HookState>& states) {
  Graph graph;
  TensorType step;
  step.dtype = DType::kI64;
  graph.add_input("step", step, ValueRole::kInput);
  std::vector<UpdatePiece> pieces;
  for (const Parameter& parameter : kParameters) {
    TensorType type;
    type.dtype = DType::kF32;
    type.shape = parameter.shape;
    const Value value = graph.add_input(parameter.name, type, ValueRole::kParameter);
    const Value given = graph.add_input("given." + parameter.name, type, ValueRole::kInput);
    pieces.push_back({.name = parameter.name, .parameter = value, .gradient = affine(given, 1)});
  }
  BucketChoice choice{.bytes = 4096};
  choice.power_sgd = setting.power;
  choice.power_sgd->ranks = setting.ranks;
  const auto updates = setting.sharded ? sharded_updates(choice, rank, setting.ranks) : replicated_updates(choice);
  const std::vector<UpdatePiece> sums = updates->reduce(graph, pieces);
  states = updates->hook_states();
  graph.set_phase(Phase::kUpdate);
  for (const UpdatePiece& sum : sums) graph.add_output("sum." + sum.name, affine(sum.gradient, 1));
  return graph;
}

/// The sums of one rank after each step.
std::vector<Sums> run_rank(const Setting& setting, Communicator& ranks) {
  const RankScope scope(&ranks);
  const auto backend = open_backend("cpu", {.threads = 1});
  std::vector<HookState> states;
  const auto program = compile(hook_graph(setting, ranks.rank(), states), {.backend = backend});
  ParameterStore store(backend->device());
  Execution execution(program, store);
  for (const HookState& state : states) {
    if (state.own) continue;
    const auto of = std::find_if(kParameters.begin(), kParameters.end(), [&](const Parameter& each) { return each.name == state.of; });
    Tensor values(DType::kF32, state.type.shape);
    for (int64_t i = 0; i < values.elements(); ++i) values.data_as<float>()[i] = static_cast<float>(first_factor(*of, i));
    store.set(state.name, values);
  }
  std::vector<Sums> all;
  for (int step = 1; step <= kSteps; ++step) {
    execution.set("step", step);
    for (const Parameter& parameter : kParameters) {
      Tensor values(DType::kF32, parameter.shape);
      for (int64_t i = 0; i < values.elements(); ++i)
        values.data_as<float>()[i] = static_cast<float>(gradient(parameter, ranks.rank(), setting.constant ? 1 : step, i));
      execution.feed("given." + parameter.name, values);
    }
    execution.run();
    Sums& sums = all.emplace_back();
    for (const auto& [output, id] : program->graph().outputs()) sums[output] = execution.output(output).to_doubles();
  }
  return all;
}

std::vector<std::vector<Sums>> run_ranks(const Setting& setting) {
  ensure_ops_registered();
  auto communicators = local_communicators(setting.ranks, {.timeout_s = 60});
  std::vector<std::vector<Sums>> results(static_cast<size_t>(setting.ranks));
  std::vector<std::string> errors(results.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < results.size(); ++r) {
    threads.emplace_back([&, r] {
      const ThreadShare share(1);
      try {
        results[r] = run_rank(setting, *communicators[r]);
      } catch (const std::exception& error) {
        errors[r] = error.what();
        communicators[r]->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return results;
}

/// Gram-Schmidt by columns.
void orthonormalize(Matrix& p) {
  for (size_t c = 0; c < p[0].size(); ++c) {
    for (size_t earlier = 0; earlier <= c; ++earlier) {
      double product = 0;
      for (const auto& row : p) product += row[earlier] * row[c];
      for (auto& row : p) row[c] = earlier == c ? row[c] / std::sqrt(product) : row[c] - product * row[earlier];
    }
  }
}

/// The paper's algorithm for one matrix: mean over workers of what they send, errors of each worker. The ranks' gradients are summed, so
/// its gradients are those times the number of ranks, and its result is the sum.
class Paper {
 public:
  Paper(const Parameter& parameter, const Setting& setting)
      : parameter_(parameter),
        setting_(setting),
        rows_(static_cast<size_t>(parameter.rows())),
        columns_(static_cast<size_t>(parameter.columns())) {
    q_.resize(columns_);
    for (size_t i = 0; i < columns_ * static_cast<size_t>(setting.power.rank); ++i)
      q_[i / static_cast<size_t>(setting.power.rank)].push_back(first_factor(parameter, static_cast<int64_t>(i)));
    errors_.assign(static_cast<size_t>(setting.ranks), Matrix(rows_, std::vector<double>(columns_)));
  }

  std::vector<double> step(int number) {
    const auto rank = static_cast<size_t>(setting_.power.rank), workers = errors_.size();
    std::vector<Matrix> deltas = errors_;
    for (size_t w = 0; w < workers; ++w) {
      for (size_t i = 0; i < rows_ * columns_; ++i)
        deltas[w][i / columns_][i % columns_] +=
            static_cast<double>(workers) * gradient(parameter_, static_cast<int>(w), number, static_cast<int64_t>(i));
    }
    Matrix p(rows_, std::vector<double>(rank)), q(columns_, std::vector<double>(rank));
    for (const Matrix& delta : deltas) {
      for (size_t i = 0; i < rows_; ++i)
        for (size_t k = 0; k < rank; ++k)
          for (size_t j = 0; j < columns_; ++j) p[i][k] += delta[i][j] * q_[j][k] / static_cast<double>(workers);
    }
    orthonormalize(p);
    for (const Matrix& delta : deltas) {
      for (size_t i = 0; i < rows_; ++i)
        for (size_t k = 0; k < rank; ++k)
          for (size_t j = 0; j < columns_; ++j) q[j][k] += delta[i][j] * p[i][k] / static_cast<double>(workers);
    }
    q_ = q;
    std::vector<double> mean;
    for (size_t i = 0; i < rows_; ++i) {
      for (size_t j = 0; j < columns_; ++j) {
        double product = 0;
        for (size_t k = 0; k < rank; ++k) product += p[i][k] * q[j][k];
        mean.push_back(product);
        for (size_t w = 0; w < workers && setting_.power.error_feedback; ++w) errors_[w][i][j] = deltas[w][i][j] - product;
      }
    }
    return mean;
  }

 private:
  Parameter parameter_;
  Setting setting_;
  size_t rows_, columns_;
  Matrix q_;
  std::vector<Matrix> errors_;
};

double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 2e-4 * largest(expected)) << what << " " << i;
}

TEST(PowerSgd, ComputesWhatThePaperComputes) {
  if (!has_cpu()) GTEST_SKIP() << "no CPU back end";
  for (const int64_t rank : {1, 2, 4}) {
    for (const bool feedback : {true, false}) {
      const Setting setting{.ranks = 3, .power = {.rank = rank, .error_feedback = feedback}};
      const auto results = run_ranks(setting);
      EXPECT_EQ(results[1], results[0]);  // the same bits on every rank
      EXPECT_EQ(results[2], results[0]);
      for (const Parameter& parameter : kParameters) {
        const int64_t rows = parameter.rows(), columns = parameter.columns();
        const bool compressed = columns > 1 && rank * (rows + columns) < rows * columns;
        Paper paper(parameter, setting);
        for (int step = 1; step <= kSteps; ++step) {
          std::vector<double> expected;
          if (compressed) {
            expected = paper.step(step);
          } else {
            for (int64_t i = 0; i < parameter.shape.elements(); ++i)
              expected.push_back(gradient(parameter, 0, step, i) + gradient(parameter, 1, step, i) + gradient(parameter, 2, step, i));
          }
          expect_near(results[0][static_cast<size_t>(step - 1)].at("sum." + parameter.name), expected,
                      cat(parameter.name, ", rank ", rank, ", step ", step));
        }
      }
    }
  }
}

TEST(PowerSgd, ErrorFeedbackSendsInTheLongRunWhatItLeftOut) {
  if (!has_cpu()) GTEST_SKIP() << "no CPU back end";
  const auto missing = [](bool feedback) {
    const auto results = run_ranks({.ranks = 2, .power = {.rank = 2, .error_feedback = feedback}, .constant = true});
    double all = 0;  // of the sum of all steps, against that of the gradients
    for (int64_t i = 0; i < kParameters[0].shape.elements(); ++i) {
      double sent = 0;
      for (const Sums& sums : results[0]) sent += sums.at("sum.a")[static_cast<size_t>(i)];
      const double whole = kSteps * (gradient(kParameters[0], 0, 1, i) + gradient(kParameters[0], 1, 1, i));
      all += (sent - whole) * (sent - whole);
    }
    return all;
  };
  EXPECT_LT(missing(true), 0.85 * missing(false));
}

TEST(PowerSgd, WithoutWarmStartEachStepDrawsAFactor) {
  if (!has_cpu()) GTEST_SKIP() << "no CPU back end";
  const Setting setting{.ranks = 2, .power = {.rank = 2, .warm_start = false, .error_feedback = false}, .constant = true};
  const auto results = run_ranks(setting);
  EXPECT_EQ(results[1], results[0]);
  EXPECT_NE(results[0][0].at("sum.a"), results[0][1].at("sum.a"));
  // The part of a matrix that random factors leave out is at most all of it, and not none.
  const std::vector<double>& sum = results[0][0].at("sum.a");
  double left = 0, whole = 0;
  for (size_t i = 0; i < sum.size(); ++i) {
    const double exact = gradient(kParameters[0], 0, 1, static_cast<int64_t>(i)) + gradient(kParameters[0], 1, 1, static_cast<int64_t>(i));
    left += (sum[i] - exact) * (sum[i] - exact);
    whole += exact * exact;
  }
  EXPECT_LT(left, whole);
  EXPECT_GT(left, 0.1 * whole);
}

TEST(PowerSgd, RanksThatDivideUpdatesReceiveRangesOfTheSameSums) {
  if (!has_cpu()) GTEST_SKIP() << "no CPU back end";
  Setting setting{.ranks = 2, .power = {.rank = 2}};
  const auto whole = run_ranks(setting);
  setting.sharded = true;
  const auto parts = run_ranks(setting);
  for (int step = 0; step < kSteps; ++step) {
    std::multiset<double> expected, got;
    for (const auto& [name, values] : whole[0][static_cast<size_t>(step)]) expected.insert(values.begin(), values.end());
    for (const auto& rank : parts) {
      for (const auto& [name, values] : rank[static_cast<size_t>(step)]) {
        for (const double value : values) {
          if (value != 0) got.insert(value);  // padding
        }
      }
    }
    EXPECT_EQ(got, expected);
  }
}

}  // namespace
}  // namespace galley::test
