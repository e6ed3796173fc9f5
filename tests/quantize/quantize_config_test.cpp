// Laws: each key of a layer comes from the first matching override that sets it, else from the section; a pattern that matches nothing is
// an error with near names; `saturation: reduce` removes one bit of the weights unless the activations are reduced.

#include "libcore/quantize/quantize_config.h"

#include <gtest/gtest.h>

#include "libcore/base/error.h"
#include "libcore/ops/registry.h"

namespace galley {
namespace {

Graph model() {
  ensure_ops_registered();
  const std::string x = "f32 [2,4,6,6]";
  return parse_graph("galley graph 1\n%0 = input \"input\" : " + x +
                     "\n%1 = parameter \"a\" : f32 [4,4,1,1]\n%2 = parameter \"b\" : f32 [4,4,1,1]\n%3 = parameter \"c\" : f32 [4,4]\n" +
                     "%4 = conv2d(%0, %1) : " + x + " @\"features.0\"\n%5 = conv2d(%4, %2) : " + x +
                     " @\"features.10.conv\"\n%6 = add(%5, %4) : " + x + " @\"features.10\"\n" +
                     "%7 = mean(%6) axes=[2,3] : f32 [2,4]\n%8 = linear(%7, %3) : f32 [2,4] @\"classifier\"\noutput \"output\" = %8\n");
}

void add_override(QuantizeSection& section, const QuantizeOverride& item) { section.overrides.items.push_back(item.clone()); }

TEST(QuantizeConfig, TheFirstItemThatSetsAKeyWins) {
  QuantizeSection section;
  QuantizeOverride first, second, third;
  first.match = {"type:conv2d"};
  first.activations.emplace().observer = ObserverSection(ObserverType::kMse);
  second.match = {"features.10"};  // a module selects everything in it
  second.activations.emplace().observer = ObserverSection(ObserverType::kEntropy);
  second.activations->dtype = QuantDType::kInt8;
  second.weights.emplace().scheme = WeightSchemeName::kPerTensorSymmetric;
  third.match = {"*"};
  third.except = {"type:linear", "type:conv2d", "type:add", "type:mean"};
  third.keep = KeepType::kFloat;
  for (const QuantizeOverride& item : {first, second, third}) add_override(section, item);
  const QuantizeConfig config = resolve_quantize(section, model());
  EXPECT_EQ(config.of("features.0").activations.observer.type, ObserverType::kMse);
  EXPECT_EQ(config.of("features.0").activations.dtype, QuantDType::kUint8);
  EXPECT_TRUE(config.of("features.0").weights.per_channel);
  EXPECT_EQ(config.of("features.10.conv").activations.observer.type, ObserverType::kMse) << "set by the first";
  EXPECT_EQ(config.of("features.10.conv").activations.dtype, QuantDType::kInt8) << "left open by the first, set by the second";
  EXPECT_FALSE(config.of("features.10.conv").weights.per_channel);
  EXPECT_EQ(config.of("features.10.add").activations.observer.type, ObserverType::kEntropy);
  EXPECT_EQ(config.of("classifier").activations.observer.type, ObserverType::kAuto);
  EXPECT_FALSE(config.layers.contains("classifier"));
  EXPECT_TRUE(config.of("input").keep_float);
  EXPECT_EQ(config.of("input").float_reason, "override");
  EXPECT_FALSE(config.of("features.0").keep_float);
}

TEST(QuantizeConfig, KeepIntegerProtects) {
  QuantizeSection section;
  QuantizeOverride first, second;
  first.match = {"features.0"};
  first.keep = KeepType::kInteger;
  second.match = {"type:conv2d"};
  second.keep = KeepType::kFloat;
  for (const QuantizeOverride& item : {first, second}) add_override(section, item);
  const QuantizeConfig config = resolve_quantize(section, model());
  EXPECT_FALSE(config.of("features.0").keep_float);
  EXPECT_TRUE(config.of("features.10.conv").keep_float);
}

TEST(QuantizeConfig, APatternThatMatchesNothingIsAnError) {
  QuantizeSection section;
  QuantizeOverride item;
  item.match = {"features.0", "clasifier"};
  item.keep = KeepType::kFloat;
  add_override(section, item);
  try {
    resolve_quantize(section, model());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRecipe);
    EXPECT_EQ(error.suggestion(), "did you mean 'classifier'?");
    EXPECT_NE(error.message().find("quantize.overrides.0"), std::string::npos);
  }
}

TEST(QuantizeConfig, WhoGivesTheBit) {
  QuantizeSection section;
  EXPECT_FALSE(resolve_quantize(section, model()).defaults.weights.reduce_range);
  section.saturation = SaturationRule::kReduce;
  EXPECT_TRUE(resolve_quantize(section, model()).defaults.weights.reduce_range);
  EXPECT_FALSE(resolve_quantize(section, model()).defaults.activations.reduce_range);
  section.activations.reduce_range.value = true;
  EXPECT_FALSE(resolve_quantize(section, model()).defaults.weights.reduce_range);
  EXPECT_TRUE(resolve_quantize(section, model()).defaults.activations.reduce_range);
  EXPECT_EQ(resolve_quantize(section, model()).defaults.activations.range().max, 127);
  section.activations.reduce_range.value.reset();
  section.method = QuantMethod::kWeightOnly;
  EXPECT_FALSE(resolve_quantize(section, model()).defaults.weights.reduce_range) << "stored weights are never multiplied as integers";
}

}  // namespace
}  // namespace galley
