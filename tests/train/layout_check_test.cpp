// The layout check: a model that flattens features leaves channels_last only at its edge; a model that reshapes images inside leaves it
// there, and the check reports the place.

#include "libcore/train/layout_check.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/train/stepping.h"

namespace galley {
namespace {

constexpr std::string_view kCheckedNet = R"(
recipe: 1
model:
  type: layers
  input: {shape: [3, 8, 8]}
  layers:
    - {name: conv1, type: conv2d, out_channels: 8, kernel_size: 3, padding: 1}
    - {type: relu}
    - {name: conv2, type: conv2d, out_channels: 8, kernel_size: 3, padding: 1}
    - {type: flatten}
    - {name: fc, type: linear, out_features: 4}
loss: {type: cross_entropy}
)";

LayoutCheck checked_layout(const LoadedRecipe& loaded, bool measure) {
  const std::optional<LayoutCheck> check =
      check_layouts(loaded.recipe, {.batch = 2, .measure = measure, .timing = {.min_runs = 1, .max_time_s = 0.01}});
  EXPECT_TRUE(check.has_value());
  return check.value_or(LayoutCheck());
}

TEST(LayoutCheck, FeaturesAreFlattenedAtTheEdge) {
  const LayoutCheck check = checked_layout(test::load_text(kCheckedNet, {}), false);
  ASSERT_EQ(check.costs.size(), 3u);  // no optimizer, no update
  EXPECT_EQ(check.costs[0].format, "contiguous");
  EXPECT_EQ(check.costs[0].reorders, 0);
  EXPECT_EQ(check.interior(), 0);
  EXPECT_EQ(check.edge(), check.costs[2].reorders);
  EXPECT_GT(check.edge(), 0);
  EXPECT_EQ(layout_loss_table(check).rows.size(), static_cast<size_t>(check.edge()));
  EXPECT_NE(layout_verdict(check).find("channels_last is kept"), std::string::npos);
  EXPECT_TRUE(check.best.empty());
  EXPECT_FALSE(layout_json(check).contains("best"));
  for (const LayoutActivation& activation : check.activations)
    EXPECT_EQ(activation.format, activation.module == "flatten" ? "contiguous" : "channels_last") << activation.module;
}

TEST(LayoutCheck, TimesEveryFormatOfForwardPassAndUpdate) {
  const LayoutCheck check = checked_layout(
      test::load_text(kCheckedNet, {"train.optimizer={type: sgd, lr: 0.1}", "train.batch=2", "train.duration=1 steps"}), true);
  ASSERT_EQ(check.costs.size(), 6u);
  EXPECT_EQ(check.costs[3].what, "train_step");
  for (const LayoutCost& cost : check.costs) EXPECT_GT(cost.time.median, 0) << cost.what << " " << cost.format;
  EXPECT_EQ(check.costs[0].speed, 1);
  EXPECT_EQ(layout_json(check)["best"], check.best);
  EXPECT_EQ(layout_cost_table(check).headings.size(), 9u);
}

TEST(LayoutCheck, AModelWithoutFormats) {
  const LoadedRecipe loaded = test::load_text(
      "recipe: 1\nmodel: {type: layers, input: {shape: [5]}, layers: [{name: fc, type: linear, out_features: 4}]}\n"
      "loss: {type: cross_entropy}\n",
      {});
  const LayoutCheck check = checked_layout(loaded, false);
  EXPECT_TRUE(check.activations.empty());
  EXPECT_EQ(layout_verdict(check), "the model has no activations of rank 4 or 5, which memory_format is about\n");
}

TEST(LayoutCheck, SaysWhatItDoes) {
  const LoadedRecipe loaded = test::load_text(kCheckedNet, {});
  std::vector<std::string> said;
  double before = -1;
  LayoutCheckOptions options{.batch = 1, .timing = {.min_runs = 1, .max_time_s = 0.01}};
  options.progress = [&](double done, const std::string& next) {
    EXPECT_GT(done, before);
    EXPECT_LT(done, 1);
    before = done;
    said.push_back(next);
  };
  ASSERT_TRUE(check_layouts(loaded.recipe, options).has_value());
  EXPECT_EQ(said, (std::vector<std::string>{"forward: compiles contiguous", "forward: compiles channels_last", "forward: compiles auto",
                                            "forward: times 3 formats in turns"}));
  EXPECT_EQ(before, 0.5);
}

TEST(LayoutCheck, EndsWhenItIsAskedTo) {
  const LoadedRecipe loaded = test::load_text(kCheckedNet, {});
  EXPECT_FALSE(check_layouts(loaded.recipe, {.batch = 1, .measure = true, .timing = {.stop = [] { return true; }}}).has_value());
}

}  // namespace
}  // namespace galley
