// The report of a quantization, from a hand-made result: names of numbers that are not finite, trials that read back, totals of the
// measured values.

#include "libcore/quantize/quantization_report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace galley {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

QuantizationResult result() {
  QuantizationResult result;
  auto plan = std::make_shared<QuantizationPlan>();
  LayerPlan integers, real;
  integers.name = "conv1";
  integers.type = real.type = "conv2d";
  integers.scheme = "i8 per channel, u8";
  integers.sqnr_activation_db = 31.25;
  real.name = "conv2";
  real.scheme = "f32";
  real.float_reason = "override";
  real.sqnr_activation_db = kNan;
  plan->layers = {integers, real};
  result.model.plan = plan;
  result.model.layers = {{.plan = integers, .sqnr_weight_db = 40, .mse_weight = 1e-5, .bytes = 1024, .bytes_float = 4096},
                         {.plan = real, .sqnr_weight_db = kInfinity, .bytes = 512, .bytes_float = 512}};
  result.real = {{"top1", 90}, {"loss", 0.5}};
  result.quantized = {{"top1", 89.5}, {"loss", kInfinity}};
  result.model.tensors.emplace("conv1.weight", Tensor(DType::kU8, {1536}));
  result.bytes = 1700;  // of the file, with its header
  result.bytes_float = 4608;
  result.file = "model.int8.safetensors";
  return result;
}

TEST(QuantizationReport, OneRowALayer) {
  QuantizationResult made = result();
  const Table plain = layer_table(made, {});
  EXPECT_EQ(plain.rows[0],
            (std::vector<std::string>{"conv1", "conv2d", "i8 per channel, u8", "40.0", "31.2", "0.00001000", "4.0", "1.0", ""}));
  EXPECT_EQ(plain.rows[1], (std::vector<std::string>{"conv2", "conv2d", "f32", "-", "-", "-", "0.5", "0.5", "override"}));
  QuantizationTimes times;
  times.real.layers["conv1"] = {.seconds = 0.004, .flops = 4e6, .bytes = 8e3};
  times.quantized.layers["conv1"] = {.seconds = 0.002, .flops = 4e6, .bytes = 2e6};
  made.times.emplace_back(1, times);
  MachineLimits limits;
  limits.flops_per_s = limits.int8_per_s = 1e9;
  limits.bytes_per_s = 1e8;
  const Table timed = layer_table(made, limits);
  EXPECT_EQ(timed.headings.size(), plain.headings.size() + 5);
  EXPECT_EQ(timed.rows[0][8], "4.000");
  EXPECT_EQ(timed.rows[0][9], "4.000");    // 4e6 operations at 1e9 a second
  EXPECT_EQ(timed.rows[0][11], "20.000");  // 2e6 bytes at 1e8 a second: memory bounds it
  EXPECT_EQ(timed.rows[0][12], "2.00");
  EXPECT_EQ(timed.rows[1][8], "-");  // no operator of that name was timed
}

TEST(QuantizationReport, Json) {
  const nlohmann::ordered_json json = quantization_json(result(), {});
  EXPECT_EQ(json["layers"][0]["sqnr_weight_db"], 40);
  EXPECT_TRUE(json["layers"][1]["sqnr_weight_db"].is_null());
  EXPECT_EQ(json["layers"][1]["float_reason"], "override");
  EXPECT_EQ(json["metrics"]["quantized"]["loss"], "inf");
  EXPECT_TRUE(json["goal"].is_null());
  EXPECT_EQ(json["file"], "model.int8.safetensors");
  EXPECT_EQ(json["bytes"], 1700);
  EXPECT_TRUE(metrics_json({}, {}).is_null());
  EXPECT_EQ(number_json(-kInfinity), "-inf");
  EXPECT_EQ(number_json(kNan), "nan");
}

TEST(QuantizationReport, TotalsAreOfWhatWasMeasured) {
  const Table totals = total_table(result());
  EXPECT_EQ(totals.rows[0], (std::vector<std::string>{"MiB", "0.004", "0.001", "-0.003", "33.3%"}));
  EXPECT_EQ(totals.rows[1], (std::vector<std::string>{"top1", "90.000", "89.500", "-0.500", ""}));
  QuantizationResult unmeasured = result();
  unmeasured.real.clear();
  unmeasured.quantized.clear();
  EXPECT_EQ(total_table(unmeasured).rows.size() + 2, totals.rows.size());
}

TEST(QuantizationReport, TrialsReadBack) {
  Trial trial;
  trial.setting.float_layers = {"conv1", "fc"};
  trial.setting.weights = ObserverType::kMse;
  trial.sqnr_db = kInfinity;
  trial.metrics = {{"top1", 75.5}};
  trial.latency_s = 0.25;
  trial.bytes = 77;
  const Trial read = trial_of_json(nlohmann::ordered_json::parse(trial_json(trial).dump()));
  EXPECT_EQ(read.setting.text(), trial.setting.text());
  EXPECT_EQ(read.sqnr_db, kInfinity);
  EXPECT_EQ(read.metrics, trial.metrics);
  EXPECT_EQ(read.latency_s, 0.25);
  EXPECT_EQ(read.bytes, 77);
}

}  // namespace
}  // namespace galley
