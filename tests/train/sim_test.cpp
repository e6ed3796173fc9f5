// device: sim is bit-identical to device: ref, although the host cannot access its memory and its kernels run asynchronously: training and
// forward passes of three models, and the values that the host reads.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "libcore/device/sim_device.h"
#include "libcore/infer/inference.h"
#include "libcore/runtime/compile.h"
#include "libcore/runtime/execution.h"
#include "tests/train/models.h"
#include "tests/train/stepping.h"

namespace galley {
namespace {

class Sim : public testing::TestWithParam<test::Model> {};
INSTANTIATE_TEST_SUITE_P(Models, Sim, testing::ValuesIn(test::kModels), [](const auto& info) { return info.param.name; });

TEST_P(Sim, TrainsAsTheReference) {
  std::map<std::string, std::map<std::string, Tensor>> values;
  std::map<std::string, std::vector<double>> read;
  for (const char* device : {"ref", "sim"}) {
    const LoadedRecipe loaded = test::load_text(GetParam().recipe, {std::string("device=") + device});
    const Session session(loaded.recipe);
    test::Stepping at(session, 2, 2);
    EXPECT_EQ(at.training.store().device().name() == "sim", std::string_view(device) == "sim");
    for (int64_t step = 1; step <= 3; ++step) {
      const TrainStep::Outcome outcome = at.training.run(step, [&]() -> const Batch& { return at.batch; });
      read[device].insert(read[device].end(), {outcome.loss, outcome.grad_norm});
    }
    values[device] = at.values();
  }
  EXPECT_EQ(read.at("sim"), read.at("ref"));
  ASSERT_EQ(values.at("sim").size(), values.at("ref").size());
  for (const auto& [name, tensor] : values.at("ref")) EXPECT_TRUE(bit_equal(tensor, values.at("sim").at(name))) << name;
}

TEST_P(Sim, PredictsAsTheReference) {
  std::map<std::string, Tensor> outputs;
  for (const char* device : {"ref", "sim"}) {
    const LoadedRecipe loaded = test::load_text(GetParam().recipe, {std::string("device=") + device});
    const Session session(loaded.recipe);
    const BatchTypes types = session.usual_types(3, false);
    InferenceModel model = inference_model(session, types, nullptr);
    const auto program = compile(std::move(model.graph), {.backend = session.backend()});
    ParameterStore store;
    store.declare(*program);
    session.initialize(model.parameters, store);
    Execution execution(program, store);
    feed_fields(execution, random_batch(session, types));
    execution.run();
    outputs[device] = execution.output("output");
  }
  EXPECT_TRUE(bit_equal(outputs.at("ref"), outputs.at("sim")));
}

// The purpose of the device: it detects host code that accesses device memory.
TEST(SimProgram, TheHostCannotReadAParameter) {
  const LoadedRecipe loaded = test::load_text(test::kPerceptron, {"device=sim"});
  const Session session(loaded.recipe);
  test::Stepping at(session, 4, 1);
  EXPECT_THROW(at.training.store().tensor("fc1.weight").data(), InternalError);
}

// A loss that is not finite is also detected, named and undone on the device.
TEST(SimProgram, NamesTheFirstBadTensor) {
  const LoadedRecipe loaded = test::load_text(test::kPerceptron, {"device=sim"});
  const Session session(loaded.recipe);
  test::Stepping at(session, 4, 1);
  Tensor weight = at.training.store().get("fc2.weight");
  weight.from_doubles(std::vector<double>(static_cast<size_t>(weight.elements()), 3e38));
  at.training.store().set("fc2.weight", weight);
  try {
    at.training.run(1, [&]() -> const Batch& { return at.batch; });
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("fc2: output y of linear"), std::string::npos) << error.message();
  }
  EXPECT_TRUE(bit_equal(at.training.store().get("fc2.weight"), weight));
}

// Also if the batch of the next step has replaced the bad one on the device.
TEST(SimProgram, NamesTheBadSampleOfTheStepNotOfTheNext) {
  const LoadedRecipe loaded = test::load_text(test::kPerceptron, {"device=sim"});
  const Session session(loaded.recipe);
  std::string messages[2];
  for (const bool ahead : {false, true}) {
    test::Stepping at(session, 4, 1);
    if (ahead) at.training.feed_ahead([](int64_t) { return true; });
    Batch bad = at.batch;
    bad.fields["input"] = bad.fields.at("input").clone();
    bad.fields["input"].data_as<float>()[13] = NAN;  // sample 1
    bool first = true;
    try {
      at.training.run(1, [&]() -> const Batch& { return std::exchange(first, false) ? bad : at.batch; });
    } catch (const Error& error) {
      messages[ahead] = error.message();
    }
    EXPECT_EQ(first, false);
  }
  EXPECT_NE(messages[0].find("first in input"), std::string::npos) << messages[0];
  EXPECT_EQ(messages[1], messages[0]);
}

}  // namespace
}  // namespace galley
