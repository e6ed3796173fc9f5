// Files of a past version (tests/golden/compat, made by its make.sh): later versions read them, compute the same numbers from them and
// continue from them.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

// Results of processors of other classes (AVX2, AVX-512, AMX) differ by the order of float32 sums. A forward pass of these networks adds at
// most 144 products: 1e-5 of the result. Training with batches of 8 amplifies this by less than ten in 20 steps (AVX2 against AVX-512:
// 6e-7).
constexpr double kForward = 1e-5, kTrained = 1e-4;
// If another order of sums moves an activation across a rounding boundary, it changes by one of the 255 steps of its range.
constexpr double kQuantized = 1.0 / 255;

class Compat : public ::testing::Test {
 protected:
  void SetUp() override {
    folder = scratch_folder();
    // The recipes contain paths relative to the working folder; a run stores the absolute path of its data.
    std::filesystem::copy(GALLEY_SOURCE_DIR "/tests/golden/compat", folder,
                          std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
    ASSERT_EQ(shell("cd " + folder + " && sed -i 's|root: ./|root: " + folder + "/|' */recipe.yaml && gunzip *.calib.gz && " +
                    "cp qat.calib qat/stats.calib")
                  .code,
              0);
    expected = Json::parse(read_text(folder + "/expected.json"));
  }
  Json report(const std::string& command) const {
    const Outcome outcome = shell("cd " + folder + " && " + command + " -q --format json");
    EXPECT_EQ(outcome.code, 0) << command << "\n" << outcome.err;
    return Json::parse(outcome.out, nullptr, false);
  }
  std::vector<float> floats(const std::string& file, const std::string& tensor) const {
    const std::string bytes = tensor_bytes(folder + "/" + file, tensor);
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::vector<double> losses(const std::string& run_folder) const {
    std::istringstream lines(read_text(folder + "/" + run_folder + "/metrics.jsonl"));
    std::vector<double> found;
    for (std::string line; std::getline(lines, line);) {
      const Json row = Json::parse(line);
      if (row["kind"] == "train") found.push_back(row["loss"]);
    }
    return found;
  }

  std::string folder;
  Json expected;
};

/// Compares `now` with `before`: texts and whole numbers exactly, other numbers within a relative tolerance. Ignores keys that `before`
/// does not have.
void expect_near(const Json& now, const Json& before, double share, const std::string& place) {
  if (before.is_object()) {
    for (const auto& [key, value] : before.items()) {
      ASSERT_TRUE(now.contains(key)) << place << "." << key;
      expect_near(now[key], value, share, place + "." + key);
    }
  } else if (before.is_array()) {
    ASSERT_EQ(now.size(), before.size()) << place;
    for (size_t i = 0; i < before.size(); ++i) expect_near(now[i], before[i], share, place + "[" + std::to_string(i) + "]");
  } else if (before.is_number_float()) {
    EXPECT_NEAR(now.get<double>(), before.get<double>(), share * std::abs(before.get<double>())) << place;
  } else {
    EXPECT_EQ(now, before) << place;
  }
}

/// A sample whose two best classes are close may be classified differently: one in 40 for top1. The loss shows whether outputs are correct.
void expect_metrics(const Json& now, const Json& before, double share, const std::string& name) {
  EXPECT_EQ(now["samples"], before["samples"]) << name;
  for (const auto& [metric, value] : before["metrics"].items()) {
    ASSERT_TRUE(now["metrics"].contains(metric)) << name << " " << metric;
    EXPECT_NEAR(now["metrics"][metric].get<double>(), value.get<double>(), metric == "top1" ? 2.5 + 1e-9 : share * value.get<double>())
        << name << " " << metric;
  }
}

TEST_F(Compat, EvaluationGivesTheSameNumbers) {
  const auto evaluated = [&](const std::string& name, const std::string& words, double share) {
    expect_metrics(report("galley-evaluate " + words), expected[name], share, name);
  };
  evaluated("net", "net", kForward);
  evaluated("net.ema", "net weights=net/weights_ema.safetensors", kForward);
  evaluated("net.int8", "net weights=net.int8.safetensors", kQuantized);
  evaluated("text", "text", kForward);
  evaluated("text.int8", "text weights=text.int8.safetensors", kQuantized);
  evaluated("qat", "qat", kQuantized);
  evaluated("qat.int8", "qat weights=qat.int8.safetensors", kQuantized);
}

TEST_F(Compat, PredictionsAreTheSame) {
  const auto predicted = [&](const std::string& weights, const std::string& before, double share) {
    report("galley-predict net weights=" + weights +
           " --tensors " GALLEY_SOURCE_DIR "/tests/golden/qat/data.safetensors -o now.safetensors");
    const std::vector<float> was = floats(before, "output"), is = floats("now.safetensors", "output");
    ASSERT_EQ(was.size(), 32u * 5u);
    ASSERT_EQ(is.size(), was.size());
    double largest = 0;
    for (const float value : was) largest = std::max(largest, std::abs(static_cast<double>(value)));
    for (size_t i = 0; i < was.size(); ++i) EXPECT_NEAR(is[i], was[i], share * largest) << weights << " " << i;
  };
  predicted("net/weights.safetensors", "net.output.safetensors", kForward);
  predicted("net.int8.safetensors", "net.int8.output.safetensors", kQuantized);
}

/// The digest of the graph in a calibration file is still that of the model, else galley-quantize would reject it. The quantized file is
/// bit-identical, since weights and scales are computed one by one, in an order that does not depend on the processor.
TEST_F(Compat, CalibrationsConvertToTheSameFile) {
  expect_near(report("galley-calibrate --show net.calib"), expected["net.calib"], 1e-9, "net.calib");
  const auto converted = [&](const std::string& words, const std::string& before) {
    report("galley-quantize " + words + " -o now.safetensors");
    EXPECT_EQ(tensor_bytes(folder + "/now.safetensors"), tensor_bytes(folder + "/" + before)) << words;
    EXPECT_FALSE(tensor_bytes(folder + "/" + before).empty());
  };
  converted("net --calibration net.calib", "net.int8.safetensors");
  converted("qat", "qat.int8.safetensors");
  converted("text quantize.method=dynamic", "text.int8.safetensors");
}

/// A finished run is not trained again, and a longer duration continues it from its checkpoint: momentum, averages, random numbers and
/// order of the data.
TEST_F(Compat, CheckpointsContinue) {
  for (const std::string name : {"net", "text"}) {
    const Json result = Json::parse(read_text(folder + "/" + name + "/result.json"));
    const Json again = report("galley-train " + name);
    for (const auto& [key, value] : result.items())
      EXPECT_EQ(again.value(key, Json()), value) << name << " " << key << ": later versions may add keys alone";
    const std::vector<double> before = losses(name), wanted = expected["resumed." + name]["losses"];
    ASSERT_EQ(before.size(), 12u);
    EXPECT_EQ(report("galley-train " + name + " train.duration='20 steps'")["steps"], 20);
    const std::vector<double> now = losses(name);
    ASSERT_EQ(now.size(), 20u);
    EXPECT_EQ(std::vector<double>(now.begin(), now.begin() + 12), before) << name << ": steps of before are not trained again";
    for (size_t i = 0; i < now.size(); ++i) EXPECT_NEAR(now[i], wanted[i], kTrained * wanted[i]) << name << ", step " << i + 1;
    expect_metrics(report("galley-evaluate " + name), expected["resumed." + name]["evaluation"], kTrained, name);
  }
}

/// Weights written by a past version match their digests, and their values are copied bit for bit.
TEST_F(Compat, WeightsAreReadBitForBit) {
  for (const std::string file : {"net/weights.safetensors", "net/weights_ema.safetensors", "net.int8.safetensors",
                                 "text/weights.safetensors", "net/checkpoints/step-000012/optimizer.safetensors"}) {
    report("galley-weights verify " + file);
    report("galley-weights convert " + file + " -o now.safetensors");
    EXPECT_EQ(tensor_bytes(folder + "/now.safetensors"), tensor_bytes(folder + "/" + file)) << file;
  }
}

/// Versions before 2026-11-25 computed the attention of ViT and Swin by several operators (tests/golden/compat_attention). Their statistics
/// give the integers and scales that they gave then; those of Swin 2, whose attention has other parts, are refused with a remedy.
TEST(CompatAttention, StatisticsConvertAsBefore) {
  const std::string folder = scratch_folder();
  std::filesystem::copy(GALLEY_SOURCE_DIR "/tests/golden/compat_attention", folder);
  ASSERT_EQ(shell("cd " + folder + " && gunzip *.calib.gz").code, 0);
  const auto in_folder = [&](const std::string& command) { return shell("cd " + folder + " && " + command + " -q --format json"); };
  const auto quantize = [&](const std::string& net) {
    return in_folder("galley-quantize " + net + ".yaml weights=" + net + ".safetensors --calibration " + net + ".calib -o now.safetensors");
  };
  for (const std::string net : {"vit", "swin"}) {
    const auto loss = [&](const std::string& weights) {
      const Outcome outcome = in_folder("galley-evaluate " + net + ".yaml weights=" + weights);
      EXPECT_EQ(outcome.code, 0) << outcome.err;
      return Json::parse(outcome.out)["metrics"]["loss"].get<double>();
    };
    const Outcome outcome = quantize(net);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(loss("now.safetensors"), loss(net + ".int8.safetensors")) << net;
    EXPECT_NE(loss("now.safetensors"), loss(net + ".safetensors")) << net << " was not quantized";
  }
  const Outcome refused = quantize("swin_v2");
  EXPECT_EQ(refused.code, 4);
  EXPECT_NE(refused.err.find("swin_v2.calib: the statistics belong to the same weights, but to other operators"), std::string::npos)
      << refused.err;
  EXPECT_NE(refused.err.find("calibrate again"), std::string::npos) << refused.err;
}

}  // namespace
}  // namespace galley::testing_cli
