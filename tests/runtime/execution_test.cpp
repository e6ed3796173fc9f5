// Programs against the reference interpreter (an independent implementation in double): outputs, in-place updates, repeats, guards.

#include "libcore/runtime/execution.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "libcore/ops/convert.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/loss.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/shape.h"
#include "libcore/passes/fuse.h"
#include "libcore/passes/gate_updates.h"
#include "libcore/runtime/compile.h"
#include "tests/support/graphs.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

struct Trained {
  TinyNet net;
  std::map<std::string, RefArray> feeds;
  std::map<ValueId, RefArray> expected;      // of one step, in double
  std::map<std::string, ValueId> new_value;  // named state -> its value after the step
};

void make_trained(Trained& t, bool depthwise = false) {
  build_tiny_net(t.net, true, 3, depthwise);
  add_training(t.net);
  t.feeds = feeds_for(t.net.graph);
  t.expected = interpret(t.net.graph, t.feeds);
  for (const Node& node : t.net.graph.nodes()) {
    for (const InPlace& update : node.op->updates) {
      const ValueId old = node.input(static_cast<size_t>(update.input));
      if (old != kNoValue) t.new_value[t.net.graph.value(old).name] = node.outputs[static_cast<size_t>(update.output)];
    }
  }
}

void give(const Graph& graph, const std::map<std::string, RefArray>& feeds, ParameterStore& store, Execution& execution) {
  for (ValueId id : graph.inputs()) {
    const ValueInfo& info = graph.value(id);
    const Tensor values = to_tensor(info.type, feeds.at(info.name));
    if (info.role == ValueRole::kInput) {
      if (execution.takes(info.name)) execution.feed(info.name, values);
    } else if (store.has(info.name)) {
      store.set(info.name, values);
    }
  }
}

/// f32 sums of at most 1000 terms of magnitude 1: a relative error of 1e-4 leaves two decimal digits of room.
void expect_near(const Tensor& got, const RefArray& want, const std::string& what) {
  const std::vector<double> values = got.to_doubles();
  ASSERT_EQ(values.size(), want.v.size()) << what;
  double scale = 1e-3;
  for (double v : want.v) scale = std::max(scale, std::abs(v));
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_TRUE(std::abs(values[i] - want.v[i]) <= 1e-4 * scale) << what << "[" << i << "]: " << values[i] << " != " << want.v[i];
}

class Step : public testing::TestWithParam<std::pair<const char*, LayoutMode>> {};

TEST_P(Step, TrainingStepEqualsTheInterpreter) {
  if (GetParam().first == std::string("cpu") && !has_cpu()) GTEST_SKIP();
  Trained t;
  make_trained(t);
  CompileOptions options;
  options.backend = open_backend(GetParam().first, {.memory_format = GetParam().second});
  options.guard_bytes = 64;
  const auto program = compile(t.net.graph, options);
  EXPECT_EQ(find_overlap(program->graph(), program->memory(), std::vector<int64_t>(program->graph().nodes().size())), "");
  ParameterStore store;
  Execution execution(program, store);
  give(t.net.graph, t.feeds, store, execution);
  execution.run();
  expect_near(execution.output("loss"), t.expected.at(t.net.graph.find_output("loss")), "loss");
  expect_near(execution.output("scores"), t.expected.at(t.net.graph.find_output("scores")), "scores");
  ASSERT_EQ(t.new_value.size(), 2 * t.net.parameters.size() + 8) << "each parameter, its momentum, and four pairs of statistics";
  for (const auto& [name, id] : t.new_value) expect_near(store.get(name), t.expected.at(id), name);
}
INSTANTIATE_TEST_SUITE_P(Forms, Step,
                         testing::Values(std::pair{"ref", LayoutMode::kAuto}, std::pair{"ref", LayoutMode::kContiguous},
                                         std::pair{"cpu", LayoutMode::kAuto}, std::pair{"cpu", LayoutMode::kContiguous}));

/// Parameters are updated in place between operators that compilation fuses.
TEST(Execution, FusedTrainingStepEqualsTheInterpreter) {
  Trained t;
  make_trained(t, true);
  CompileOptions options;
  options.guard_bytes = 64;
  TinyNet fused;
  build_tiny_net(fused, true, 3, true);
  PassReport report = fuse_training(fused.graph);
  options.backend = open_backend();
  options.backend->rewrite(fused.graph, Stage::kForward, report);
  const auto count_in = [](const Graph& graph, const char* op) {
    return std::count_if(graph.nodes().begin(), graph.nodes().end(), [&](const Node& node) { return node.is(op); });
  };
  const auto joined = count_in(fused.graph, "batch_norm_depthwise");  // 1 where the back end has the operator
  add_training(fused);
  const auto program = compile(fused.graph, options);
  for (const char* op : {"pointwise_batch_norm_depthwise", "pointwise_batch_norm_depthwise_backward"}) {
    EXPECT_EQ(count_in(program->graph(), op), joined) << op;
  }
  ParameterStore store;
  Execution execution(program, store);
  give(fused.graph, t.feeds, store, execution);
  execution.run();
  expect_near(execution.output("loss"), t.expected.at(t.net.graph.find_output("loss")), "loss");
  ASSERT_EQ(t.new_value.size(), 2 * t.net.parameters.size() + 14) << "each parameter, its momentum, and seven pairs of statistics";
  for (const auto& [name, id] : t.new_value) expect_near(store.get(name), t.expected.at(id), name);
}

TEST(Execution, TwoRunsGiveTheSameBits) {
  Trained t;
  make_trained(t);
  const auto program = compile(t.net.graph);
  std::vector<std::map<std::string, Tensor>> results(2);
  for (auto& result : results) {
    ParameterStore store;
    Execution execution(program, store);
    give(t.net.graph, t.feeds, store, execution);
    for (int step = 1; step <= 3; ++step) {
      execution.set("step", step);
      execution.run();
    }
    for (const std::string& name : store.names()) result[name] = store.get(name);
  }
  for (const auto& [name, tensor] : results[0]) EXPECT_TRUE(bit_equal(tensor, results[1].at(name))) << name;
}

class Gate : public testing::TestWithParam<std::string> {};

TEST_P(Gate, ClosesAtALossThatIsNotFiniteAndStaysClosed) {
  Trained t;
  make_trained(t);
  gate_updates(t.net.graph, t.net.loss.id(), "stopped");
  verify(t.net.graph);
  CompileOptions options;
  options.backend = open_backend(GetParam());
  const auto program = compile(t.net.graph, options);
  ParameterStore store;
  Execution execution(program, store);
  t.feeds.emplace("stopped", RefArray{{}, {0}});
  give(t.net.graph, t.feeds, store, execution);
  std::map<std::string, Tensor> before;
  for (const std::string& name : store.names()) before[name] = store.get(name);
  const auto expect_unchanged = [&] {
    EXPECT_EQ(store.get("stopped").at(Shape{}), 1);
    for (const auto& [name, tensor] : before) {
      EXPECT_TRUE(name == "stopped" || bit_equal(tensor, store.get(name))) << name;
    }
  };
  const TensorType type = t.net.graph.type(t.net.graph.find_input("input"));
  const Tensor good = to_tensor(type, t.feeds.at("input"));
  Tensor bad = good.clone();
  bad.set({0, 0, 0, 0}, NAN);
  execution.feed("input", bad);
  execution.run();
  EXPECT_TRUE(std::isnan(execution.scalar("loss")));
  expect_unchanged();
  execution.feed("input", good);
  execution.run();
  EXPECT_TRUE(std::abs(execution.scalar("loss") - t.expected.at(t.net.graph.find_output("loss"))[0]) <= 1e-4);
  expect_unchanged();
  store.set("stopped", before.at("stopped"));
  execution.run();
  EXPECT_EQ(store.get("stopped").at(Shape{}), 0);
  for (const auto& [name, id] : t.new_value) expect_near(store.get(name), t.expected.at(id), name);
}
INSTANTIATE_TEST_SUITE_P(Kernels, Gate, testing::ValuesIn(device_names()), [](const auto& info) { return info.param; });

// Equal numbers with and without a gate, and equal positions of updates.
TEST(Execution, AnOpenGateChangesNoBits) {
  std::vector<std::map<std::string, Tensor>> results(2);
  std::vector<int64_t> arena;
  for (const bool gates : {false, true}) {
    Trained t;
    make_trained(t);
    if (gates) gate_updates(t.net.graph, t.net.loss.id(), "stopped");
    const auto program = compile(t.net.graph);
    arena.push_back(program->memory().arena_bytes);
    ParameterStore store;
    Execution execution(program, store);
    t.feeds.emplace("stopped", RefArray{{}, {0}});
    give(t.net.graph, t.feeds, store, execution);
    for (int step = 1; step <= 3; ++step) {
      execution.set("step", step);
      execution.run();
    }
    for (const auto& [name, id] : t.new_value) results[gates][name] = store.get(name);
  }
  for (const auto& [name, tensor] : results[0]) EXPECT_TRUE(bit_equal(tensor, results[1].at(name))) << name;
  EXPECT_LE(arena[1], arena[0] + 64) << "the gate alone";
}

TEST(Execution, NamesTheFirstBadTensor) {
  Trained t;
  make_trained(t);
  ParameterStore store;
  Execution execution(compile(t.net.graph), store);
  give(t.net.graph, t.feeds, store, execution);
  EXPECT_FALSE(find_non_finite(execution).has_value());
  // A parameter that is not finite is named.
  Tensor weight = store.get("conv2.weight");
  weight.set({1, 2, 0, 0}, INFINITY);
  store.set("conv2.weight", weight);
  const auto bad = find_non_finite(execution);
  ASSERT_TRUE(bad.has_value());
  EXPECT_EQ(bad->tensor, "conv2.weight");
  EXPECT_EQ(bad->first_at, Shape({1, 2, 0, 0}));
  EXPECT_EQ(bad->inf_count, 1);
  // Finite parameters whose products overflow: the first node is named.
  weight.set({1, 2, 0, 0}, 3e38);
  store.set("conv2.weight", weight);
  const auto overflow = find_non_finite(execution);
  ASSERT_TRUE(overflow.has_value());
  EXPECT_EQ(overflow->path, "conv2") << overflow->text();
}

/// The reference with a separate runner.
class RunningBackend : public Backend {
 public:
  RunningBackend() : Backend({}), reference_(open_backend("ref")) {}
  std::string_view name() const override { return "running"; }
  bool reference() const override { return true; }
  std::span<const Kernel* const> kernels(const OpDef& op) const override { return reference_->kernels(op); }
  std::unique_ptr<Runner> runner(const BoundProgram& program) const override {
    ++made;
    class Counting : public Runner {
     public:
      Counting(std::unique_ptr<Runner> loop, int& runs) : loop_(std::move(loop)), runs_(runs) {}
      void run(Stream& stream) override { ++runs_, loop_->run(stream); }

     private:
      std::unique_ptr<Runner> loop_;
      int& runs_;
    };
    calls = program.calls.size();
    return std::make_unique<Counting>(Backend::runner(program), runs);
  }
  mutable int made = 0, runs = 0;
  mutable size_t calls = 0;

 private:
  std::shared_ptr<const Backend> reference_;
};

// A back end may enqueue bound programs in its own way: it receives them when they are bound and when their memory moves, and runs them
// unless they are observed.
TEST(Execution, RunsByTheRunnerOfTheBackEnd) {
  Trained t;
  make_trained(t);
  const auto backend = std::make_shared<RunningBackend>();
  const auto program = compile(t.net.graph, {.backend = backend});
  const auto arena = std::make_shared<Arena>();
  ParameterStore store;
  Execution execution(program, store, arena);
  give(t.net.graph, t.feeds, store, execution);
  execution.run();
  execution.run();
  EXPECT_EQ(backend->made, 1);
  EXPECT_EQ(backend->runs, 2);
  EXPECT_EQ(backend->calls, program->steps().size() - program->prepare_steps());
  arena->reserve(2 * arena->bytes());
  execution.run();
  EXPECT_EQ(backend->made, 2);
  EXPECT_EQ(backend->runs, 3);
  NodeTimer timer;
  execution.run({.observer = &timer});
  execution.run({.skip_updates = true});
  EXPECT_EQ(backend->runs, 3);
}

TEST(Execution, KeepsResultsOfEarlierRuns) {
  for (const std::string& device : device_names()) {
    Graph g;
    g.add_output("y", sum(g.add_input("x", f32({3}), ValueRole::kInput)));
    ParameterStore store(open_backend(device)->device());
    Execution execution(compile(g, {.backend = open_backend(device)}), store);
    execution.keep_results(3);
    EXPECT_THROW(execution.scalar("y"), InternalError) << "no run yet";
    for (const float x : {1.f, 2.f, 3.f, 4.f}) {
      execution.feed("x", Tensor::of({3}, {x, x, x}));
      execution.run();
    }
    EXPECT_EQ(execution.scalar("y"), 12);
    EXPECT_EQ(execution.scalar("y", 1), 9);
    EXPECT_EQ(execution.scalar("y", 2), 6);
    EXPECT_THROW(execution.scalar("y", 3), InternalError);
  }
}

TEST(Execution, ProgramsShareParametersAndArena) {
  Trained t;
  make_trained(t);
  TinyNet eval;
  build_tiny_net(eval, false, 2);
  ParameterStore store;
  const auto arena = std::make_shared<Arena>();
  Execution train(compile(t.net.graph), store, arena);
  CompileOptions options;
  options.parameter_formats = store.formats();
  Execution evaluate(compile(eval.graph, options), store, arena);
  give(t.net.graph, t.feeds, store, train);
  std::map<std::string, RefArray> feeds = feeds_for(eval.graph);
  for (const char* name : {"input", "label"}) evaluate.feed(name, to_tensor(eval.graph.type(eval.graph.find_input(name)), feeds.at(name)));
  for (int round = 0; round < 2; ++round) {
    train.set("step", round + 1);
    train.run();
    evaluate.run();
    for (const std::string& name : store.names()) {
      if (feeds.count(name) > 0) feeds[name] = to_ref(store.get(name));
    }
    expect_near(evaluate.output("scores"), interpret(eval.graph, feeds).at(eval.graph.find_output("scores")),
                cat("scores of round ", round));
  }
}

TEST(Execution, PreparesAgainWhenParametersChange) {
  Graph g;
  const Value x = g.add_input("x", f32({2, 3}), ValueRole::kInput), w = g.add_input("w", f32({4, 3}), ValueRole::kParameter);
  g.add_output("y", linear(x, affine(w, 2)));
  const auto program = compile(g);
  EXPECT_EQ(program->prepare_steps(), 1u);
  ParameterStore store;
  Execution execution(program, store);
  Tensor ones(DType::kF32, {4, 3}), input(DType::kF32, {2, 3});
  ones.from_doubles(std::vector<double>(12, 1.0));
  input.from_doubles({1, 2, 3, 4, 5, 6});
  execution.feed("x", input);
  store.set("w", ones);
  execution.run();
  EXPECT_EQ(execution.output("y").at({1, 0}), 30.0);
  store.tensor("w").set({0, 0}, 2.0);
  store.touch("w");
  execution.run();
  EXPECT_EQ(execution.output("y").at({1, 0}), 38.0);
}

TEST(Execution, FeedsInAnyFormatAreTheSameValues) {
  Graph g;
  const Value x = g.add_input("x", f32({2, 3, 5, 7}), ValueRole::kInput);
  g.add_output("y", batch_norm(x, Value(), Value()).mean);
  g.add_output("z", relu(x));
  const auto program = compile(g);
  ASSERT_TRUE(program->graph().type(program->graph().find_input("x")).format.is_channels_last());
  ParameterStore store;
  Execution execution(program, store);
  const Tensor values = to_tensor(f32({2, 3, 5, 7}), random_array(f32({2, 3, 5, 7}), 3));
  execution.feed("x", values);
  execution.run();
  const Tensor first = execution.output("z");
  for (int64_t i = 0; i < 7; ++i) EXPECT_EQ(first.at({1, 2, 4, i}), std::max(0.0, values.at({1, 2, 4, i})));
  execution.feed("x", values.to(MemoryFormat::channels_last()));
  execution.run();
  EXPECT_TRUE(bit_equal(first, execution.output("z")));
}

/// loss = sum((x w)^2); the gradient with respect to w is 2 w sum over rows of x^2.
Graph accumulation_graph(bool last) {
  Graph g;
  const Value x = g.add_input("x", f32({4, 3}), ValueRole::kInput), w = g.add_input("w", f32({3}), ValueRole::kParameter);
  const Value loss = sum(square(mul(x, w)));
  g.add_output("loss", loss);
  const ValueId wanted[] = {w.id()};
  const ValueId gradient = differentiate(g, loss.id(), wanted).at(w.id());
  g.set_phase(Phase::kUpdate);
  const Value total = accumulate(g.add_input("grad.w", f32({3}), ValueRole::kState), g.at(gradient));
  if (!last) return g;
  const Value lr = g.add_input("lr", f32(Shape{}), ValueRole::kInput), step = g.add_input("step", i64(Shape{}), ValueRole::kInput);
  sgd_update(w, total, lr, step, Value(), Value(), {});
  clear(total);
  return g;
}

/// Runs the graph of the parameter `table` [6, 4] and the fed `given`, whose last element is `index`: an error of input that says `message`
/// and `place`, or none if `message` is empty.
void expect_index(const std::string& backend, const Graph& graph, DType table, int64_t index, const std::string& message,
                  const std::string& place) {
  SCOPED_TRACE(cat(backend, ", ", index));
  CompileOptions options;
  options.backend = open_backend(backend);
  ParameterStore store(options.backend->device());
  Execution execution(compile(graph, options), store);
  Tensor zeros(table, {6, 4});
  zeros.from_doubles(std::vector<double>(24));
  store.set("table", zeros);
  Tensor values(DType::kI64, graph.type(graph.find_input("given")).shape);
  std::fill_n(values.data_as<int64_t>(), values.shape().elements(), 0);
  values.data_as<int64_t>()[values.shape().elements() - 1] = index;
  try {
    execution.feed("given", values);
    execution.run();
    execution.wait();
    EXPECT_EQ(message, "");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    ASSERT_NE(message, "") << error.message();
    EXPECT_NE(error.message().find(message), std::string::npos) << error.message();
    EXPECT_NE(error.message().find(place), std::string::npos) << error.message();
  }
}

// A device's kernels throw no errors: what is fed to it is checked, as it is or through a view.
TEST(Execution, IndicesOutsideTheirTableAreErrorsOnDevicesToo) {
  for (const Shape& shape : {Shape{3, 4}, Shape{12}, Shape{3}}) {  // the last one is fed as a scalar is
    Graph graph;
    const Value table = graph.add_input("table", f32({6, 4}), ValueRole::kParameter);
    const Value given = graph.add_input("given", {.dtype = DType::kI64, .shape = shape}, ValueRole::kInput);
    {
      const PathScope path(graph, "tokens");
      graph.add_output("y", embedding(table, shape.rank() == 2 ? reshape(given, {12}) : given));
    }
    for (const std::string& name : device_names()) {
      for (const int64_t index : {-1, 6})
        expect_index(name, graph, DType::kF32, index, cat("index ", index, " is outside"), "tokens (embedding)");
      expect_index(name, graph, DType::kF32, 5, "", "");
    }
  }
}
TEST(Execution, TargetsOutsideTheClassesAreErrorsOnDevicesToo) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {  // some back ends read bf16 without a cast: by an operator of their own
    Graph graph;
    const Value logits = graph.add_input("table", {.dtype = dtype, .shape = {6, 4}}, ValueRole::kParameter);
    const Value given = graph.add_input("given", {.dtype = DType::kI64, .shape = {2, 3}}, ValueRole::kInput);
    {
      const PathScope path(graph, "loss");
      CrossEntropyAttrs attrs;
      attrs.ignore_index = -7;
      graph.add_output("y", cross_entropy(cast(logits, DType::kF32), reshape(given, {6}), Value(), attrs));
    }
    for (const std::string& name : device_names()) {
      const bool host = open_backend(name)->device().is_host();  // its kernels throw errors of their own
      for (const int64_t index : {-1, -100, 4}) {
        const std::string message = host ? cat(index) : cat("target ", index, " is outside the 4 classes");
        expect_index(name, graph, dtype, index, message, "loss (cross_entropy)");
      }
      for (const int64_t index : {3, -7}) expect_index(name, graph, dtype, index, "", "");
    }
  }
}

// An array that is read once for all runs takes no memory of a device, until another program reads it in each run.
TEST(Execution, WeightsThatOnlyPrepareReadsStayOnTheHost) {
  for (const std::string& name : device_names()) {
    SCOPED_TRACE(name);
    CompileOptions options;
    options.backend = open_backend(name);
    Device& device = options.backend->device();
    const auto program_of = [&](bool squared) {
      Graph g;
      const Value x = g.add_input("x", f32({3}), ValueRole::kInput), w = g.add_input("w", f32({3}), ValueRole::kParameter);
      g.add_output("y", mul(x, squared ? mul(w, w) : w));
      return compile(g, options);
    };
    ParameterStore store(device);
    Execution squares(program_of(true), store);
    EXPECT_EQ(squares.program().persistent_bytes(), device.is_host() ? 12 : 0);
    const auto on_host = [&] { return store.tensor("w").storage()->host_access(); };
    EXPECT_TRUE(on_host());
    const auto expect_run = [](Execution& execution, const std::vector<float>& expected) {
      execution.feed("x", Tensor::of({3}, {1, 1, 2}));
      execution.run();
      const Tensor y = execution.output("y");
      for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(y.data_as<float>()[i], expected[static_cast<size_t>(i)]) << i;
    };
    store.set("w", Tensor::of({3}, {1, 2, 3}));
    expect_run(squares, {1, 4, 18});
    store.set("w", Tensor::of({3}, {2, 3, 4}));
    expect_run(squares, {4, 9, 32});
    Execution products(program_of(false), store);
    EXPECT_EQ(on_host(), device.is_host());
    expect_run(products, {2, 3, 8});
    expect_run(squares, {4, 9, 32});
    store.set("w", Tensor::of({3}, {5, 6, 7}));
    expect_run(squares, {25, 36, 98});
    expect_run(products, {5, 6, 14});
    EXPECT_EQ(store.get("w").data_as<float>()[2], 7);
    Trained t;
    make_trained(t);
    const auto training = compile(t.net.graph, options);
    for (const ValueId id : training->graph().inputs()) EXPECT_FALSE(training->stays_on_host(id));
  }
}

TEST(Execution, AccumulateAndLastShareTheGradient) {
  ParameterStore store;
  const auto arena = std::make_shared<Arena>();
  Execution accumulate_run(compile(accumulation_graph(false)), store, arena), last_run(compile(accumulation_graph(true)), store, arena);
  Tensor w = Tensor::of({3}, {1, 2, 3}), x1(DType::kF32, {4, 3}), x2(DType::kF32, {4, 3});
  x1.from_doubles({1, 0, 2, 0, 1, 1, 1, 1, 0, 2, 0, 1});
  x2.from_doubles({0, 1, 1, 3, 0, 1, 0, 0, 2, 1, 1, 0});
  std::vector<double> want = w.to_doubles();
  store.set("w", w);
  last_run.set("lr", 0.125);  // 2^-3: every number below is exact in f32
  for (int step = 1; step <= 2; ++step) {
    accumulate_run.feed("x", x1);
    accumulate_run.run();
    last_run.feed("x", x2);
    last_run.set("step", step);
    last_run.run();
    for (int64_t c = 0; c < 3; ++c) {
      double squares = 0;
      for (int64_t n = 0; n < 4; ++n) squares += x1.at({n, c}) * x1.at({n, c}) + x2.at({n, c}) * x2.at({n, c});
      want[static_cast<size_t>(c)] -= 0.125 * 2 * want[static_cast<size_t>(c)] * squares;
    }
    EXPECT_EQ(store.get("w").to_doubles(), want) << "step " << step;
    EXPECT_EQ(store.get("grad.w").to_doubles(), std::vector<double>(3, 0.0));
  }
}

}  // namespace
}  // namespace galley::test
