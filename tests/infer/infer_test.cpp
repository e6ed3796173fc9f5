// What infer computes without a trained model: distances, costs of models and single operators, against formulas and published figures.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "libcore/base/error.h"
#include "libcore/infer/batch_types.h"
#include "libcore/infer/compare.h"
#include "libcore/infer/model_cost.h"
#include "libcore/infer/operator_work.h"

namespace galley {
namespace {

TEST(Distance, IsTheRatioOfSignalAndNoise) {
  Distance distance;
  distance.add(Tensor::of({1, 2}, {3, 4}), Tensor::of({1, 2}, {3, 4.5f}), 1);
  EXPECT_DOUBLE_EQ(distance.sqnr_db(), 20);  // 25 / 0.25
  EXPECT_EQ(distance.max_abs(), 0.5);
  distance.add(Tensor::of({1, 2}, {0, 5}), Tensor::of({1, 2}, {-1.5f, 5}), 1);
  EXPECT_DOUBLE_EQ(distance.sqnr_db(), 10 * std::log10(50 / 2.5));
  EXPECT_EQ(distance.max_abs(), 1.5);
}

TEST(Distance, IgnoresRowsThatFillABatch) {
  Distance distance;
  distance.add(Tensor::of({2, 2}, {1, 2, 3, 4}), Tensor::of({2, 2}, {1, 2, 90, 90}), 1);
  EXPECT_EQ(distance.sqnr_db(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(distance.max_abs(), 0);
}

TEST(Distance, KeepsNaN) {
  Distance distance;
  distance.add(Tensor::of({1, 1}, {1}), Tensor::of({1, 1}, {std::nanf("")}), 1);
  distance.add(Tensor::of({1, 1}, {1}), Tensor::of({1, 1}, {2}), 1);
  EXPECT_TRUE(std::isnan(distance.sqnr_db()));
  EXPECT_TRUE(std::isnan(distance.max_abs()));
}

struct Published {
  const char* model;
  int64_t parameters;  // torchvision's documentation of its weights
  double giga_macs;    // the same, "GFLOPS" there, at 224 x 224
  double activations;  // millions; Radosavovic et al. 2020, table of ResNets; 0: not given
};

TEST(ModelCost, IsThePublishedOne) {
  for (const Published& p : {Published{"resnet18", 11689512, 1.814, 0}, Published{"resnet50", 25557032, 4.089, 11.1},
                             Published{"mobilenet_v2", 3504872, 0.301, 0}, Published{"alexnet", 61100840, 0.714, 0}}) {
    SCOPED_TRACE(p.model);
    const std::optional<ModelCost> cost = model_cost(p.model, 224);
    ASSERT_TRUE(cost.has_value());
    EXPECT_EQ(cost->parameters, p.parameters);
    // The published figures have three digits, and torchvision counts biases, pools and norms differently: one per cent.
    EXPECT_NEAR(cost->flops, 2e9 * p.giga_macs, 2e7 * p.giga_macs);
    if (p.activations > 0) {
      EXPECT_NEAR(cost->activations, 1e6 * p.activations, 5e4 * p.activations / 11);
    }
  }
}

TEST(ModelCost, GrowsWithTheImage) {
  const std::optional<ModelCost> usual = model_cost("resnet18", 0), small = model_cost("resnet18", 224),
                                 large = model_cost("resnet18", 448);
  ASSERT_TRUE(usual && small && large);
  EXPECT_EQ(usual->flops, small->flops);  // 224 is its size
  EXPECT_EQ(large->parameters, small->parameters);
  EXPECT_NEAR(large->activations / small->activations, 4, 0.01);  // all but the classifier
  EXPECT_FALSE(model_cost("resnet19", 224).has_value());
}

TEST(OperatorWork, LettersAndShapesAreTheSameCase) {
  const BenchmarkWork letters = operator_work("conv2d:mb2ic3ih9iw7oc4kh3sh2", false),
                      shapes = operator_work("conv2d:2x3x9x7+4x3x3x3:padding=1,stride=2", false);
  // 5 x 4 pixels: (9 + 2 - 3) / 2 + 1, (7 + 2 - 3) / 2 + 1. Two operations for each of 3 x 3 x 3 taps.
  EXPECT_EQ(letters.row.flops, 2.0 * (2 * 4 * 5 * 4) * (3 * 3 * 3));
  EXPECT_EQ(shapes.row.flops, letters.row.flops);
  letters.run();
  shapes.run();
}

TEST(OperatorWork, BytesAreThoseOfTheOperands) {
  const BenchmarkWork work = operator_work("add:5x7+5x7", false);
  EXPECT_EQ(work.row.bytes, 3 * 5 * 7 * 4);
  work.run();
}

TEST(OperatorWork, SaysWhatIsWrongWithACase) {
  const auto message = [](const std::string& text) -> std::string {
    try {
      operator_work(text, false);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage) << text;
      return error.message();
    }
    return "";
  };
  EXPECT_NE(message("rely:3").find("no operator 'rely'"), std::string::npos);
  EXPECT_NE(message("relu:3xb").find("'3xb' is no shape"), std::string::npos);
  EXPECT_NE(message("relu:3@f31").find("'f31' is no dtype"), std::string::npos);
  EXPECT_NE(message("add:3").find("the shape of 'b' is missing"), std::string::npos);
  EXPECT_NE(message("conv2d:mb1ic3oc4kh3").find("the size 'ih' is missing"), std::string::npos);
  EXPECT_NE(message("linear:mb1ic3oc4kh3").find("'kh' is no size of linear"), std::string::npos);
}

TEST(OperatorWork, EveryUsualCaseOfAProductRuns) {
  const std::vector<std::string> cases = operator_cases("linear");
  ASSERT_FALSE(cases.empty());
  for (const std::string& text : cases) EXPECT_EQ(text.substr(0, 7), "linear:") << text;
  EXPECT_THROW(operator_cases("liner"), Error);
}

TEST(InputType, HasTheBatchInFront) {
  ModelInput input;
  input.shape = {3, 32, 16};
  const TensorType plain = input_type(input, 5);
  EXPECT_EQ(plain.shape, (Shape{5, 3, 32, 16}));
  EXPECT_TRUE(plain.names.empty());
  input.names = {"C", "H", "W"};
  EXPECT_EQ(input_type(input, 5).names, (std::vector<std::string>{"N", "C", "H", "W"}));
}

}  // namespace
}  // namespace galley
