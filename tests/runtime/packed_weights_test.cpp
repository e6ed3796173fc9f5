// Weights of recurrent layers are stored in the format that their kernel needs if only inference reads them; for other programs they are
// packed once, not in each run.

#include <gtest/gtest.h>

#include <cmath>

#include "libcore/ops/recurrent.h"
#include "libcore/ops/registry.h"
#include "libcore/runtime/compile.h"
#include "libcore/runtime/execution.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

Graph make_layer(bool gru_layer, bool save) {
  ensure_ops_registered();
  Graph graph;
  const auto input = [&](const char* name, const Shape& shape, ValueRole role) {
    TensorType type;
    type.shape = shape;
    return graph.add_input(name, type, role);
  };
  constexpr int64_t kHidden = 24;  // panels of 16 are padded, and the gate n of a GRU starts a panel
  const int64_t rows = (gru_layer ? 3 : 4) * kHidden;
  const Value x = input("x", {3, 5, 7}, ValueRole::kInput);
  RecurrentWeights weights{input("ih", {rows, 7}, ValueRole::kParameter), input("hh", {rows, kHidden}, ValueRole::kParameter), {}, {}};
  RecurrentAttrs attrs;
  attrs.save = save;
  graph.add_output("y", gru_layer ? gru(x, weights, {}, attrs).y : lstm(x, weights, {}, {}, attrs).y);
  return graph;
}

Tensor waves(const Shape& shape, double step) {
  Tensor tensor(DType::kF32, shape);
  for (int64_t i = 0; i < shape.elements(); ++i)
    tensor.data_as<float>()[i] = static_cast<float>(0.4 * std::sin(step * static_cast<double>(i * i % 1009)));
  return tensor;
}

/// The results of two runs of the layer, with other weights in the second.
std::vector<Tensor> results(const std::shared_ptr<const Program>& program, ParameterStore& store) {
  Execution execution(program, store);
  execution.feed("x", waves({3, 5, 7}, 0.7));
  std::vector<Tensor> made;
  for (const double step : {1.1, 2.3}) {
    for (const std::string& name : store.names(ValueRole::kParameter)) store.set(name, waves(store.tensor(name).shape(), step));
    execution.run();
    made.push_back(execution.output("y"));
  }
  EXPECT_FALSE(bit_equal(made[0], made[1]));
  return made;
}

TEST(PackedWeights, RecurrentLayersWithAndWithoutAnotherProgramsChoice) {
  if (!has_cpu()) GTEST_SKIP();
  for (const bool gru_layer : {false, true}) {
    const std::string what = gru_layer ? "gru" : "lstm";
    const auto packed = compile(make_layer(gru_layer, false));
    EXPECT_EQ(packed->report().layout.blocked_parameters, 2) << what;
    EXPECT_TRUE(packed->report().layout.reorders.empty()) << what;
    ParameterStore own;
    own.declare(*packed);
    const std::vector<Tensor> first = results(packed, own);

    // Training does not pack its weights, since the backward pass reads them.
    const auto training = compile(make_layer(gru_layer, true));
    EXPECT_EQ(training->report().layout.blocked_parameters, 0) << what;
    ParameterStore shared;
    shared.declare(*training);
    CompileOptions options;
    options.parameter_formats = shared.formats();
    const auto validation = compile(make_layer(gru_layer, false), options);
    EXPECT_EQ(validation->report().layout.blocked_parameters, 0) << what;
    EXPECT_EQ(validation->report().layout.reorders.size(), 2u) << what;
    EXPECT_EQ(validation->prepare_steps(), 2u) << what << ": packed when the weights change, not at each run";
    shared.declare(*validation);
    const std::vector<Tensor> second = results(validation, shared), third = results(training, shared);
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_TRUE(bit_equal(first[i], second[i])) << what;
      EXPECT_TRUE(bit_equal(first[i], third[i])) << what;
    }
  }
}

// An execution uses adopted results instead of running `prepare`, until the weights change.
TEST(PackedWeights, AdoptedResultsOfPrepareAreUsed) {
  if (!has_cpu()) GTEST_SKIP();
  const auto training = compile(make_layer(false, true));
  ParameterStore store;
  store.declare(*training);
  CompileOptions options;
  options.parameter_formats = store.formats();
  const auto program = compile(make_layer(false, false), options);
  ASSERT_GT(program->prepared_bytes(), 0);
  store.declare(*program);
  const auto set_weights = [&](double step) {
    for (const std::string& name : store.names(ValueRole::kParameter)) store.set(name, waves(store.tensor(name).shape(), step));
  };
  const auto output = [](Execution& execution) {
    execution.feed("x", waves({3, 5, 7}, 0.7));
    execution.run();
    return execution.output("y");
  };
  set_weights(2.3);
  Execution other(program, store);
  const Tensor of_others = output(other);
  EXPECT_EQ(std::ssize(other.prepared()), program->prepared_bytes());
  const auto kept = Storage::allocate(program->prepared_bytes());
  std::copy(other.prepared().begin(), other.prepared().end(), kept->data());

  set_weights(1.1);
  Execution execution(program, store);
  EXPECT_TRUE(execution.prepared().empty());
  execution.adopt_prepared(kept);
  EXPECT_TRUE(bit_equal(output(execution), of_others)) << "the adopted results are those of other weights";
  Execution plain(program, store);
  EXPECT_FALSE(bit_equal(output(plain), of_others));
}

}  // namespace
}  // namespace galley::test
