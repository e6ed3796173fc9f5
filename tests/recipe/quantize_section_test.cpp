// Laws: keys and shorthand of `quantize` are read as documented; invalid combinations are errors with key and suggestion; dumps load back.

#include "libcore/recipe/quantize_section.h"

#include <gtest/gtest.h>

#include "tests/recipe/kinds.h"

namespace galley::recipe_test {
namespace {

const std::string kPage =
    "quantize:\n"
    "  method: static\n"
    "  calibration: null\n"
    "  weights: {dtype: int8, scheme: per_channel_symmetric, observer: min_max, group_size: null}\n"
    "  activations: {dtype: uint8, scheme: per_tensor_affine, observer: auto, reduce_range: auto}\n"
    "  overrides: [{match: [features.0, classifier.3], keep: float}, {match: \"type:linear\", activations: {observer: mse}}]\n"
    "  fallback: error\n"
    "  goal: {metric: top1, max_drop: 0.5, objective: latency, time_budget: 10min}\n"
    "  qat: {start: 0 steps, observers_until: 4 epochs, batch_norm_until: 3 epochs, learn_scale: false}\n";

TEST(QuantizeSection, KeysOfThePage) {
  const LoadedRecipe loaded = load(kSmall + kPage);
  const QuantizeSection& q = loaded.recipe.quantize;
  EXPECT_EQ(q.method, QuantMethod::kStatic);
  EXPECT_EQ(q.weights.observer.type, ObserverType::kMinMax);
  EXPECT_EQ(q.activations.observer.type, ObserverType::kAuto);
  EXPECT_FALSE(q.activations.reduce_range.value.has_value());
  ASSERT_EQ(q.overrides.size(), 2u);
  const auto& first = q.overrides.at<QuantizeOverride>(0);
  EXPECT_EQ(first.match, (std::vector<std::string>{"features.0", "classifier.3"}));
  EXPECT_EQ(first.keep, KeepType::kFloat);
  EXPECT_FALSE(first.weights.has_value());
  const auto& second = q.overrides.at<QuantizeOverride>(1);
  ASSERT_TRUE(second.activations && second.activations->observer);
  EXPECT_EQ(second.activations->observer->type, ObserverType::kMse);
  EXPECT_FALSE(second.activations->dtype.has_value()) << "what is not written stays open";
  EXPECT_FALSE(second.keep.has_value());
  ASSERT_TRUE(q.goal.has_value());
  EXPECT_EQ(q.goal->max_drop->value, 0.5);
  EXPECT_FALSE(q.goal->max_drop->relative);
  EXPECT_EQ(q.goal->time_budget.value, 600);
  EXPECT_EQ(q.qat.observers_until, Duration(4, DurationUnit::kEpochs));
  EXPECT_EQ(q.saturation, SaturationRule::kExact);
}

TEST(QuantizeSection, DefaultsAreThoseOfThePage) {
  const LoadedRecipe bare = load(kSmall);
  EXPECT_FALSE(bare.recipe.quantize.goal.has_value());
  EXPECT_FALSE(bare.recipe.quantize.calibration.has_value());
  EXPECT_EQ(bare.recipe.data.calibration.from, "train");
  EXPECT_EQ(bare.recipe.data.calibration.samples, 512);
  EXPECT_EQ(bare.recipe.data.calibration.pipeline, "val");
  // The documented values are the defaults, except goal and overrides.
  const std::string said = dump_recipe(load(kSmall + kPage), DumpKind::kMin);
  for (const char* key : {"method:", "scheme:", "dtype:", "reduce_range", "qat:", "fallback:"})
    EXPECT_EQ(said.find(key), std::string::npos) << key << " in\n" << said;
}

TEST(QuantizeSection, DumpsLoadBack) {
  const std::string text = kSmall + kPage;
  for (const DumpKind kind : {DumpKind::kMin, DumpKind::kFull, DumpKind::kOrigin}) {
    const std::string dumped = dump_recipe(load(text, {"quantize.activations.observer={type: percentile, value: 99.9%}",
                                                       "quantize.saturation=reduce", "data.calibration.samples=64"}),
                                           kind);
    const LoadedRecipe again = load(dumped);
    EXPECT_EQ(dump_recipe(again, DumpKind::kFull), dump_recipe(load(dump_recipe(again, DumpKind::kMin)), DumpKind::kFull));
    EXPECT_EQ(again.recipe.quantize.activations.observer.spec().percentile, 99.9);
    EXPECT_EQ(again.recipe.quantize.saturation, SaturationRule::kReduce);
    EXPECT_EQ(again.recipe.data.calibration.samples, 64);
    EXPECT_EQ(again.recipe.quantize.overrides.size(), 2u);
    EXPECT_FALSE(again.recipe.quantize.overrides.at<QuantizeOverride>(1).activations->dtype.has_value());
  }
}

TEST(QuantizeSection, Shorthand) {
  const QuantizeSection q =
      load(kSmall +
           "quantize: {method: weight_only, weights: int4, activations: {observer: entropy}, goal: {metric: top1, max_drop: 1%}}\n")
          .recipe.quantize;
  EXPECT_EQ(q.weights.dtype, QuantDType::kInt4);
  EXPECT_EQ(q.activations.observer.type, ObserverType::kEntropy);
  EXPECT_TRUE(q.goal->max_drop->relative);
  EXPECT_EQ(load(kSmall + "quantize: dynamic\n").recipe.quantize.method, QuantMethod::kDynamic);
}

/// Key and suggestion of the error of a `quantize` section.
std::string mistake(const std::string& section) {
  const Error error = error_of([&] { load(kSmall + "quantize: {" + section + "}\n"); });
  EXPECT_EQ(error.code(), ErrorCode::kRecipe) << section;
  return error.key() + " | " + error.suggestion();
}

TEST(QuantizeSection, WhatCannotBe) {
  EXPECT_EQ(mistake("metod: static"), "quantize.metod | did you mean 'method'?");
  EXPECT_EQ(mistake("method: statik"), "quantize.method | did you mean 'static'?");
  EXPECT_EQ(mistake("activations: {observer: minmax}"), "quantize.activations.observer.type | did you mean 'min_max'?");
  EXPECT_EQ(mistake("weights: {observer: entropy}"), "quantize.weights.observer | write min_max, percentile or mse for weights");
  EXPECT_EQ(mistake("weights: {dtype: uint8}"), "quantize.weights.dtype | write int8");
  EXPECT_EQ(mistake("weights: {dtype: int4}"), "quantize.weights.dtype | write int8, or method: weight_only");
  EXPECT_EQ(mistake("weights: {group_size: 32}"), "quantize.weights.group_size | remove it");
  EXPECT_EQ(mistake("method: weight_only, weights: {group_size: 32, scheme: per_tensor_affine}"),
            "quantize.weights.group_size | write a scheme per_channel");
  EXPECT_EQ(mistake("weights: {scheme: per_channel_affine}"), "quantize.weights.scheme | write a symmetric scheme, or method: weight_only");
  EXPECT_EQ(mistake("method: qat, weights: f8_e4m3"), "quantize.weights.dtype | write method: static, or int8");
  EXPECT_EQ(mistake("method: weight_only, weights: f8_e4m3"), "quantize.weights.dtype | write method: static, or int8");
  EXPECT_EQ(mistake("weights: {dtype: f8_e4m3, observer: mse}"), "quantize.weights.observer | write min_max or percentile");
  EXPECT_EQ(mistake("weights: {dtype: f8_e4m3, scheme: per_channel_affine}"), "quantize.weights.scheme | write a symmetric scheme");
  EXPECT_EQ(mistake("weights: f8_e4m3, activations: int8"), "quantize.activations.dtype | remove it");
  EXPECT_EQ(mistake("weights: f8_e4m3, activations: {reduce_range: true}"), "quantize.activations.reduce_range | remove it");
  EXPECT_EQ(mistake("activations: f8_e4m3"), "quantize.activations.dtype | remove it, and write quantize.weights.dtype: f8_e4m3");
  constexpr const char* kF8Observers =
      " | write auto (the observed range), min_max, moving_average or percentile: inputs of layers with f8_e4m3 weights";
  EXPECT_EQ(mistake("weights: f8_e4m3, activations: {observer: entropy}"), cat("quantize.activations.observer", kF8Observers));
  EXPECT_EQ(mistake("activations: {observer: mse}, overrides: [{match: fc, weights: f8_e4m3}]"),
            cat("quantize.activations.observer", kF8Observers));
  EXPECT_EQ(mistake("activations: {dtype: int4}"), "quantize.activations.dtype | write uint8");
  EXPECT_EQ(mistake("activations: {observer: {type: mse, value: 99%}}"),
            "quantize.activations.observer.value | write type: percentile, or remove it");
  EXPECT_EQ(mistake("activations: {observer: {type: percentile, value: 40%}}"), "quantize.activations.observer.value | write 99.99%");
  EXPECT_EQ(mistake("overrides: [{match: fc}]"), "quantize.overrides.0 | write keep, weights or activations");
  EXPECT_EQ(mistake("overrides: [{match: fc, weights: {dtype: int4}}]"),
            "quantize.overrides.0.weights.dtype | write int8, or method: weight_only");
  EXPECT_EQ(mistake("goal: {metric: top1}"), "quantize.goal | write e.g. max_drop: 0.5 or min: 73.0");
  EXPECT_EQ(mistake("goal: {metric: top1, max_drop: -1}").substr(0, 22), "quantize.goal.max_drop");
  EXPECT_EQ(mistake("goal: {metric: top1, max_drop: 1, time_budget: 3 epochs}"), "quantize.goal.time_budget | ");
  EXPECT_EQ(error_of([] { load(kSmall, {"data.calibration.from=trian"}); }).suggestion(), "did you mean 'train'?");
  EXPECT_EQ(error_of([] { load(kSmall, {"data.calibration.samples=0"}); }).key(), "data.calibration.samples");
}

}  // namespace
}  // namespace galley::recipe_test
