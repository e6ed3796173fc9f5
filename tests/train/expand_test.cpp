// A back end without kernels of composite operators trains and runs models with the definitions of operators.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "libcore/infer/inference.h"
#include "libcore/runtime/compile.h"
#include "tests/support/primitives.h"
#include "tests/train/models.h"
#include "tests/train/stepping.h"

namespace galley {
namespace {

// The reference computes a composite in double and rounds its results to f32; the nodes of a definition round each intermediate value. The
// error is 2^-24 times the few hundred terms of the largest sum, relative to the largest value.
constexpr double kRounding = 2e-5;

void expect_close(const Tensor& got, const Tensor& want, double tolerance, const std::string& what) {
  const std::vector<double> a = got.to_doubles(), b = want.to_doubles();
  ASSERT_EQ(a.size(), b.size()) << what;
  double largest = 0;
  for (double value : b) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < a.size(); ++i) ASSERT_TRUE(std::abs(a[i] - b[i]) <= tolerance * largest) << what << "[" << i << "]";
}

bool has_composite(const Program& program) {
  for (const Node& node : program.graph().nodes()) {
    const KernelQuery query{node, context_of(program.graph(), node)};
    if (!is_view(program.graph(), node) && !test::is_primitive(query)) return true;
  }
  return false;
}

class Expanded : public testing::TestWithParam<test::Model> {
 protected:
  LoadedRecipe load(const std::string& precision = "f32") {
    return test::load_text(GetParam().recipe, {"device=ref", "precision=" + precision});
  }
};
INSTANTIATE_TEST_SUITE_P(Models, Expanded, testing::ValuesIn(test::kModels), [](const auto& info) { return info.param.name; });

TEST_P(Expanded, TrainsAsTheReference) {
  const LoadedRecipe loaded = load();
  const Session session(loaded.recipe);
  // On the sim device, to verify that the expanded programs work in device memory.
  const auto primitives = std::make_shared<test::Primitives>(open_backend("sim"));
  test::Stepping want(session, 4, 2), got(session, 4, 2, primitives);
  EXPECT_TRUE(has_composite(want.training.program()));
  EXPECT_FALSE(has_composite(got.training.program()));
  EXPECT_FALSE(got.training.program().report().warnings.empty()) << "expansion is not silent";
  for (int64_t step = 1; step <= 3; ++step) {
    const double loss = want.training.run(step, [&]() -> const Batch& { return want.batch; }).loss;
    EXPECT_NEAR(got.training.run(step, [&]() -> const Batch& { return got.batch; }).loss, loss, kRounding * std::abs(loss));
  }
  const std::map<std::string, Tensor> reference = want.values(), values = got.values();
  ASSERT_EQ(values.size(), reference.size());
  // AdamW and RMSprop divide by the root of a mean of squares: errors of small gradients become larger.
  for (const auto& [name, tensor] : reference) expect_close(values.at(name), tensor, 50 * kRounding, name);
}

TEST_P(Expanded, PredictsAsTheReference) {
  for (const std::string precision : {"f32", "bf16"}) {
    const LoadedRecipe loaded = load(precision);
    const Session session(loaded.recipe);
    const BatchTypes types = session.usual_types(3, false);
    const Batch batch = random_batch(session, types);
    std::map<std::string, Tensor> outputs;
    for (const auto& backend : {session.backend(), std::shared_ptr<const Backend>(std::make_shared<test::Primitives>(session.backend()))}) {
      InferenceModel model = inference_model(session, types, nullptr);
      const auto program = compile(std::move(model.graph), {.backend = backend});
      EXPECT_EQ(has_composite(*program), backend->name() == "ref");
      ParameterStore store;
      store.declare(*program);
      session.initialize(model.parameters, store);
      Execution execution(program, store);
      feed_fields(execution, batch);
      execution.run();
      outputs[std::string(backend->name())] = execution.output("output");
    }
    // A value near the middle of two bf16 numbers may round the other way, and three layers follow: a few units of 2^-8.
    expect_close(outputs.at("primitives"), outputs.at("ref"), precision == "bf16" ? 0x1p-6 : kRounding, precision);
  }
}

// Like a first version of a CUDA back end: fast kernels for most operators, no references.
TEST(ExpandedPartly, TrainsOnTheKernelsThatAreThere) {
  const LoadedRecipe loaded = test::load_text(test::kConvolutions, {"device=cpu"});
  const Session session(loaded.recipe);
  const std::set<std::string_view> missing{"batch_norm", "batch_norm_backward", "cross_entropy", "cross_entropy_backward", "dropout"};
  test::Stepping want(session, 4, 1), got(session, 4, 1, std::make_shared<test::Without>(open_backend("cpu"), missing));
  for (const Node& node : got.training.program().graph().nodes()) EXPECT_FALSE(missing.contains(node.op->name));
  for (int64_t step = 1; step <= 3; ++step) {
    const double loss = want.training.run(step, [&]() -> const Batch& { return want.batch; }).loss;
    EXPECT_NEAR(got.training.run(step, [&]() -> const Batch& { return got.batch; }).loss, loss, kRounding * std::abs(loss));
  }
}

}  // namespace
}  // namespace galley
