// The quantization plan as text: it is restored bit-exactly, and a damaged one is rejected with the reason.

#include "libcore/weights/quantization_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "libcore/base/error.h"

namespace galley::test {
namespace {

QuantizationPlan sample_plan() {
  QuantizationPlan plan;
  plan.method = QuantMethod::kStatic;
  plan.layers.push_back({.name = "conv1",
                         .type = "conv2d",
                         .scheme = "int8 per channel symmetric, uint8 affine (mse)",
                         .reduced = true,
                         .sqnr_activation_db = 41.25});
  plan.layers.push_back({.name = "layer1.0.\"odd\"",
                         .type = "linear",
                         .scheme = "float",
                         .float_reason = "no kernel: int4 weights need the method weight_only",
                         .sqnr_activation_db = std::nan("")});
  plan.layers.push_back(
      {.name = "fc", .type = "linear", .bits = 4, .group_size = 32, .sqnr_activation_db = std::numeric_limits<double>::infinity()});
  plan.values["input"] = {static_cast<double>(0.1f), 114, DType::kU8, 0, 255};
  plan.values["conv1"] = {static_cast<double>(std::numeric_limits<float>::denorm_min() * 1000003.0f), -3, DType::kI8, -64, 64};
  return plan;
}

TEST(QuantizationPlanText, ComesBackWithTheSameBits) {
  const QuantizationPlan plan = sample_plan();
  const QuantizationPlan back = parse_plan(plan_json(plan), "model.safetensors");
  EXPECT_EQ(back.method, plan.method);
  EXPECT_EQ(back.values, plan.values);
  ASSERT_EQ(back.layers.size(), plan.layers.size());
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    const LayerPlan &a = plan.layers[i], &b = back.layers[i];
    EXPECT_EQ(b.name, a.name);
    EXPECT_EQ(b.type, a.type);
    EXPECT_EQ(b.scheme, a.scheme);
    EXPECT_EQ(b.float_reason, a.float_reason);
    EXPECT_EQ(b.bits, a.bits);
    EXPECT_EQ(b.group_size, a.group_size);
    EXPECT_EQ(b.reduced, a.reduced);
    EXPECT_TRUE(b.sqnr_activation_db == a.sqnr_activation_db || (std::isnan(a.sqnr_activation_db) && std::isnan(b.sqnr_activation_db)));
  }
  EXPECT_EQ(plan_json(back), plan_json(plan));
}

TEST(QuantizationPlanText, LayersOfF8HaveAVersionOfTheirOwn) {
  QuantizationPlan plan = sample_plan();
  EXPECT_NE(plan_json(plan).find("\"version\":1,"), std::string::npos) << "earlier versions of Galley read it";
  plan.layers[0].f8 = true;
  plan.layers[0].input_scale = static_cast<double>(0.3f);
  const std::string text = plan_json(plan);
  EXPECT_NE(text.find("\"version\":2,"), std::string::npos);
  const QuantizationPlan back = parse_plan(text, "model.safetensors");
  EXPECT_TRUE(back.layers[0].f8);
  EXPECT_EQ(back.layers[0].input_scale, plan.layers[0].input_scale);
  EXPECT_FALSE(back.layers[2].f8);
  EXPECT_EQ(back.dtype(), "int4 and f8_e4m3");
  EXPECT_EQ(plan_json(back), text);
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{{"\"dtype\":\"f8_e4m3\"", "\"dtype\":\"f8_e5m2\""},
                                                                                 {"\"input_scale\":0.3", "\"input_scale\":-0.3"},
                                                                                 {"\"input_scale\"", "\"scale\""}}) {
    std::string damaged = text;
    damaged.replace(damaged.find(from), from.size(), to);
    EXPECT_THROW(parse_plan(damaged, "model.safetensors"), Error) << to;
  }
}

TEST(QuantizationPlanText, ADamagedOneIsRefused) {
  const std::string good = plan_json(sample_plan());
  const auto refused = [&](const std::string& from, const std::string& to, const std::string& why) {
    std::string text = good;
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    try {
      parse_plan(text, "model.safetensors");
      ADD_FAILURE() << "accepted with " << to;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInput);
      EXPECT_TRUE(error.message().starts_with("model.safetensors")) << error.message();
      EXPECT_NE(error.message().find(why), std::string::npos) << error.message();
    }
  };
  refused("{", "", "not a JSON object");
  refused("\"version\":1", "\"version\":3", "version 3");
  refused("\"static\"", "\"statik\"", "'method' is 'statik'");
  refused("\"bits\":8", "\"bits\":7", "'bits' is 7");
  refused("\"bits\":8", "\"bits\":1e300", "'bits' is not an integer");
  refused("\"group_size\":32", "\"group_size\":-1", "'group_size' is -1");
  refused("\"name\":\"fc\"", "\"name\":\"conv1\"", "listed twice");
  refused("\"zero_point\":114", "\"zero_point\":256", "'zero_point' is 256");
  refused("\"zero_point\":114", "\"zero_point\":18446744073709551615", "'zero_point' is");
  refused("\"dtype\":\"u8\"", "\"dtype\":\"u4\"", "'dtype' is u4");
  refused("\"qmax\":255", "\"qmax\":-1", "value 'input'");
  refused("0.10000000149011612", "0.1", "value 'input'");  // not a float32 value
  refused("0.10000000149011612", "0", "value 'input'");
  refused("0.10000000149011612", "-0.10000000149011612", "value 'input'");
  refused("\"values\":{", "\"walues\":{", "there is no 'values'");
  refused("\"reduced\":true", "\"reduced\":1", "'reduced' is not true or false");
}

}  // namespace
}  // namespace galley::test
