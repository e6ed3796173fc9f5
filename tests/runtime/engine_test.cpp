#include "libcore/runtime/engine.h"

#include <gtest/gtest.h>

#include <future>

#include "libcore/backends/backend.h"
#include "libcore/base/error.h"
#include "libcore/ops/conv.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/unary.h"
#include "tests/support/graphs.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

/// y = x w^T, named so that two graphs share the parameter.
Graph dense(int64_t batch) {
  Graph g;
  const Value x = g.add_input("x", f32({batch, 3}), ValueRole::kInput);
  g.add_output("y", linear(x, g.add_input("w", f32({2, 3}), ValueRole::kParameter), {}));
  return g;
}

ProgramKey key_of(int64_t batch) { return {.mode = "predict", .fields = {{"x", f32({batch, 3})}}}; }

TEST(Engine, CompilesOnceAKeyAndSaysWhy) {
  Engine engine(open_backend("ref"));
  int captures = 0;
  const auto capture = [&](int64_t batch) { return [&captures, batch] { return ++captures, dense(batch); }; };
  const auto first = engine.program(key_of(2), "first batch", capture(2), ParameterFormats::kLead);
  EXPECT_EQ(engine.program(key_of(2), "asked again", capture(2)), first);
  EXPECT_NE(engine.program(key_of(1), "last batch of 1", capture(1)), first);
  EXPECT_EQ(captures, 2);
  ASSERT_EQ(engine.compilations().size(), 2u);
  EXPECT_EQ(engine.compilations()[0].program, "predict x f32 [2,3]");
  EXPECT_EQ(engine.compilations()[0].reason, "first batch");
  EXPECT_EQ(engine.compilations()[1].program, "predict x f32 [1,3]");
  EXPECT_GE(engine.compilations()[1].seconds, 0);
}

TEST(Engine, TheKeyTellsModesVariantsAndTypesApart) {
  const ProgramKey key{.mode = "evaluate", .variant = "rounded", .fields = {{"input", f32({4, 3})}, {"label", {DType::kI64, {4}}}}};
  EXPECT_EQ(key.str(), "evaluate rounded input f32 [4,3], label i64 [4]");
  Engine engine(open_backend("ref"));
  const auto program = engine.program(key_of(2), "", [] { return dense(2); }, ParameterFormats::kLead);
  ProgramKey other = key_of(2);
  other.mode = "evaluate";
  EXPECT_NE(engine.program(other, "", [] { return dense(2); }), program);
  other = key_of(2);
  other.variant = "captured";
  EXPECT_NE(engine.program(other, "", [] { return dense(2); }), program);
}

/// A weight keeps the format of the leading program, even if another kernel prefers a different format.
TEST(Engine, ProgramsFollowTheFormatsOfTheFirst) {
  if (!has_cpu()) GTEST_SKIP();
  const auto network = [](int64_t batch) {
    Graph g;
    const Value x = g.add_input("x", f32({batch, 16, 14, 14}), ValueRole::kInput);
    Conv2dAttrs attrs;
    attrs.padding = {1, 1};
    g.add_output("y", relu(conv2d(x, g.add_input("w", f32({32, 16, 3, 3}), ValueRole::kParameter), {}, attrs)));
    return g;
  };
  const auto format = [](const Program& program) { return program.graph().type(program.graph().find_input("w")).format; };
  Engine engine(open_backend("cpu", {.threads = 1}));
  const auto lead = engine.program({.mode = "train"}, "", [&] { return network(8); }, ParameterFormats::kLead);
  const auto next = engine.program({.mode = "evaluate"}, "", [&] { return network(1); });
  EXPECT_EQ(format(*next), format(*lead));
  engine.declare(*lead);
  EXPECT_EQ(engine.store().formats().at("w"), format(*lead));
  EXPECT_THROW(engine.program(
                   {.mode = "predict"}, "", [&] { return network(2); }, ParameterFormats::kLead),
               InternalError)
      << "too late to lead";
}

TEST(Engine, BindsProgramsToOneSetOfParameters) {
  Engine engine(open_backend("ref"));
  const auto two = engine.program(
                 key_of(2), "", [] { return dense(2); }, ParameterFormats::kLead),
             one = engine.program(key_of(1), "", [] { return dense(1); });
  engine.declare(*two);
  engine.store().set("w", Tensor::of({2, 3}, {1, 2, 3, 4, 5, 6}));
  const auto a = engine.bind(two), b = engine.bind(one);
  a->feed("x", Tensor::of({2, 3}, {1, 0, 0, 0, 1, 0}));
  a->run();
  EXPECT_EQ(a->output("y").to_doubles(), (std::vector<double>{1, 4, 2, 5}));
  b->feed("x", Tensor::of({1, 3}, {0, 0, 1}));
  b->run();
  EXPECT_EQ(b->output("y").to_doubles(), (std::vector<double>{3, 6}));
  engine.store().declare("w.ema", f32({2, 3}), ValueRole::kState);
  engine.store().set("w.ema", Tensor::of({2, 3}, {10, 20, 30, 40, 50, 60}));
  const auto average = engine.bind(one, {.names = {{"w", "w.ema"}}});
  average->feed("x", Tensor::of({1, 3}, {0, 0, 1}));
  average->run();
  EXPECT_EQ(average->output("y").to_doubles(), (std::vector<double>{30, 60}));
}

/// Formats must not depend implicitly on the order of calls: the first program declares that it leads.
TEST(Engine, TheFirstProgramLeadsOrFollowsTheStore) {
  Engine engine(open_backend("ref"));
  EXPECT_FALSE(engine.has_formats());
  EXPECT_THROW(engine.program(key_of(2), "", [] { return dense(2); }), InternalError);
  const auto fails = []() -> Graph { fail(ErrorCode::kRecipe, "no model"); };
  EXPECT_THROW(engine.program(key_of(2), "", fails, ParameterFormats::kLead), Error);
  EXPECT_FALSE(engine.has_formats()) << "a program that was not compiled has not led";
  engine.store().declare("w", f32({2, 3}), ValueRole::kParameter);
  engine.follow_store();
  EXPECT_NO_THROW(engine.program(key_of(2), "", [] { return dense(2); }));
}

TEST(Engine, ReplicasBindAndRunInThreads) {
  Engine engine(open_backend("ref"));
  const auto program = engine.program(key_of(1), "", [] { return dense(1); }, ParameterFormats::kLead);
  engine.declare(*program);
  engine.store().set("w", Tensor::of({2, 3}, {1, 2, 3, 4, 5, 6}));
  std::vector<std::future<std::vector<double>>> replicas;
  for (int replica = 0; replica < 4; ++replica) {
    replicas.push_back(std::async(std::launch::async, [&, replica] {
      std::vector<double> sums;
      for (int round = 0; round < 20; ++round) {
        const auto execution = engine.bind(program, {.arena = std::make_shared<Arena>()});
        execution->feed("x", Tensor::of({1, 3}, {static_cast<float>(replica), 1, 0}));
        execution->run();
        sums.push_back(execution->output("y").to_doubles()[1]);
      }
      return sums;
    }));
  }
  for (int replica = 0; replica < 4; ++replica)
    EXPECT_EQ(replicas[static_cast<size_t>(replica)].get(), std::vector<double>(20, 4.0 * replica + 5));
}

/// Concurrent calls that are not allowed are detected.
TEST(Engine, FindsCallsThatOverlap) {
  Engine engine(open_backend("ref"));
  const auto program = engine.program(key_of(1), "", [] { return dense(1); }, ParameterFormats::kLead);
  engine.declare(*program);
  const auto bind = [&](std::shared_ptr<Arena> arena) {
    return std::async(std::launch::async, [&, arena] { engine.bind(program, {.arena = arena}); });
  };
  // While a program is captured and compiled, nothing else may use the engine.
  const auto meanwhile = [&] {
    EXPECT_THROW(bind(std::make_shared<Arena>()).get(), InternalError);
    EXPECT_THROW(std::async(std::launch::async, [&] { engine.declare(*program); }).get(), InternalError);
    return dense(2);
  };
  engine.program(key_of(2), "", meanwhile);
  EXPECT_NO_THROW(bind(std::make_shared<Arena>()).get());
  EXPECT_NO_THROW(bind(nullptr).get()) << "no other thread uses it now";
  // Two runs on one arena.
  const auto arena = std::make_shared<Arena>();
  const auto execution = engine.bind(program, {.arena = arena});
  execution->feed("x", Tensor::of({1, 3}, {0, 0, 1}));
  {
    const Arena::Use other(*arena);
    EXPECT_THROW(execution->run(), InternalError);
  }
  EXPECT_NO_THROW(execution->run());
}

}  // namespace
}  // namespace galley::test
