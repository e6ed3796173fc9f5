// A model that PyTorch trained: galley-evaluate reproduces PyTorch's metrics, and galley-train continues training as PyTorch does.
// The files and the scale of float32 rounding come from tests/golden/train/make.py.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

const std::string kGoldenFolder = GALLEY_SOURCE_DIR "/tests/golden/train";

/// The golden numbers are float64. PyTorch's float32 run deviates by `rounding` (1e-7 to 3e-7 of a loss), these tools by 0.4 to 3.1 times
/// that with AVX2; the factor leaves room for other instruction sets. A wrong step gives an error of at least 1e-4.
constexpr double kRoundings = 16;

const Json& expected() {
  static const Json json = Json::parse(read_text(kGoldenFolder + "/expected.json"));
  return json;
}

std::string recipe_file(const std::string& folder) {
  const std::string normalize = "{type: normalize, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}";
  const std::string path = folder + "/elsewhere.yaml";
  write_text(path,
             "recipe: 1\n"
             "threads: 1\n"
             "model: {type: mobilenet_v3_small, num_classes: 10, width_mult: 0.1, dropout: 0}\n"
             "data:\n"
             "  root: " +
                 kGoldenFolder +
                 "\n"
                 "  train: {source: {type: tensors, path: train.safetensors}, pipeline: [" +
                 normalize +
                 "], shuffle: false}\n"
                 "  val: {source: {type: tensors, path: val.safetensors}, pipeline: [" +
                 normalize +
                 "], batch: 10}\n"
                 "train: {duration: 5 steps, batch: 8, optimizer: {type: sgd, lr: 0.02}}\n"
                 "log: {every: 1 step}\n");
  return path;
}

Json evaluate(const std::string& recipe, const std::vector<std::string>& more) {
  std::vector<std::string> arguments{recipe, "--format", "json", "-q"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Outcome outcome = run("galley-evaluate", arguments);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome.code == 0 ? Json::parse(outcome.out) : Json{{"metrics", {{"loss", NAN}, {"top1", NAN}}}, {"samples", 0}};
}

void expect_golden_evaluation(const Json& result) {
  const Json& golden = expected()["evaluate"];
  EXPECT_EQ(result["samples"], 24);
  EXPECT_DOUBLE_EQ(result["metrics"]["top1"].get<double>(), golden["top1"].get<double>());
  const double error = std::fabs(result["metrics"]["loss"].get<double>() - golden["loss"].get<double>());
  EXPECT_TRUE(error <= kRoundings * golden["rounding"]["loss"].get<double>())
      << "loss " << result["metrics"]["loss"] << ", want " << golden["loss"];
}

struct Tensors {
  Json header;
  std::string data;
};

Tensors read_tensors(const std::string& path) {
  const std::string bytes = read_text(path);
  uint64_t size = 0;
  if (bytes.size() < sizeof size) return {};
  std::memcpy(&size, bytes.data(), sizeof size);
  return {Json::parse(bytes.substr(8, size)), bytes.substr(8 + size)};
}

std::map<std::string, std::vector<float>> floats_of(const Tensors& file) {
  std::map<std::string, std::vector<float>> values;
  for (const auto& [name, entry] : file.header.items()) {
    if (name == "__metadata__" || entry["dtype"] != "F32") continue;
    const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    values[name].resize((end - begin) / sizeof(float));
    std::memcpy(values[name].data(), file.data.data() + begin, end - begin);
  }
  return values;
}

class TrainedElsewhere : public testing::TestWithParam<std::vector<std::string>> {};

TEST_P(TrainedElsewhere, EvaluatesToTheSameNumbers) {
  std::vector<std::string> arguments{"weights=" + kGoldenFolder + "/weights.safetensors"};
  arguments.insert(arguments.end(), GetParam().begin(), GetParam().end());
  expect_golden_evaluation(evaluate(recipe_file(scratch_folder()), arguments));
}

TEST_P(TrainedElsewhere, TrainsOnWithTheSameLosses) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> optimizers{
      {"sgd",
       {"optimizer.type=sgd", "optimizer.lr=0.02", "optimizer.momentum=0.9", "optimizer.weight_decay=1e-3", "optimizer.nesterov=true"}},
      {"adamw",
       {"optimizer.type=adamw", "optimizer.lr=1e-3", "optimizer.betas=0.9,0.99", "optimizer.eps=1e-5", "optimizer.weight_decay=0.05"}}};
  const std::string folder = scratch_folder();
  const auto before = floats_of(read_tensors(kGoldenFolder + "/weights.safetensors"));
  for (const auto& [name, overrides] : optimizers) {
    SCOPED_TRACE(name);
    const std::string made = folder + "/" + name;
    std::vector<std::string> arguments{recipe_file(folder), "-o", made, "-q", "weights=" + kGoldenFolder + "/weights.safetensors"};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    arguments.insert(arguments.end(), GetParam().begin(), GetParam().end());
    const Outcome outcome = run("galley-train", arguments);
    ASSERT_EQ(outcome.code, 0) << outcome.err;

    const Json& golden = expected()[name];
    const std::vector<double> rounding = golden["rounding"]["losses"];
    const double tolerance = kRoundings * *std::max_element(rounding.begin(), rounding.end());
    std::istringstream lines(read_text(made + "/metrics.jsonl"));
    size_t step = 0;
    for (std::string line; std::getline(lines, line);) {
      const Json row = Json::parse(line);
      if (row["kind"] != "train") continue;
      ASSERT_LT(step, golden["losses"].size());
      const double want = golden["losses"][step++], got = row["loss"];
      EXPECT_TRUE(std::fabs(got - want) <= tolerance)
          << "step " << step << ": loss " << got << ", want " << want << ", tolerance " << tolerance;
    }
    EXPECT_EQ(step, golden["losses"].size());

    // The end of training: distance to the golden end relative to the distance from the start, for parameters and running statistics.
    const auto want = floats_of(read_tensors(kGoldenFolder + "/" + name + ".safetensors")),
               got = floats_of(read_tensors(made + "/weights.safetensors"));
    ASSERT_EQ(want.size(), got.size());
    double off = 0, moved = 0;
    for (const auto& [key, values] : want) {
      ASSERT_TRUE(got.count(key) == 1 && got.at(key).size() == values.size()) << key;
      for (size_t i = 0; i < values.size(); ++i) {
        off += std::pow(static_cast<double>(got.at(key)[i]) - values[i], 2);
        moved += std::pow(static_cast<double>(before.at(key)[i]) - values[i], 2);
      }
    }
    EXPECT_TRUE(std::sqrt(off / moved) <= kRoundings * golden["rounding"]["moved"].get<double>()) << std::sqrt(off / moved);
  }
}

/// Files may lack tensors; these get the initial values of training without the file.
TEST(TrainedElsewhere, WhatAFileLeavesOutHasItsInitialValues) {
  const std::string folder = scratch_folder(), recipe = recipe_file(folder), left_out = "classifier.3.";
  const auto trained = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> arguments{recipe, "-o", folder + "/" + name, "-q", "--seed", "5", "train.duration=1 step", "optimizer.lr=0"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run("galley-train", arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return floats_of(read_tensors(folder + "/" + name + "/weights.safetensors"));
  };
  const auto initial = trained("initial", {}),
             loaded =
                 trained("loaded", {"weights.load=[{from: " + kGoldenFolder + "/weights.safetensors, ignore: ['" + left_out + "*']}]"});
  const auto file = floats_of(read_tensors(kGoldenFolder + "/weights.safetensors"));
  int left = 0;
  for (const auto& [name, values] : loaded) {
    if (name.find("running_") != std::string::npos) continue;  // a step changes them with any learning rate
    left += name.starts_with(left_out);
    EXPECT_EQ(values, (name.starts_with(left_out) ? initial : file).at(name)) << name;
  }
  EXPECT_EQ(left, 2);
  EXPECT_NE(initial.at("classifier.3.weight"), file.at("classifier.3.weight"));
}

INSTANTIATE_TEST_SUITE_P(Ways, TrainedElsewhere,
                         testing::Values(std::vector<std::string>{"memory_format=contiguous"},
                                         std::vector<std::string>{"memory_format=channels_last", "data.train.workers=3"}),
                         [](const auto& info) { return info.index == 0 ? "Contiguous" : "ChannelsLast"; });

/// The tensors of the file with other names or dtypes, and with the values `data`.
void write_tensors(const std::string& path, const Json& header, const std::string& data) {
  const std::string text = header.dump();
  const uint64_t size = text.size();
  write_text(path, std::string(reinterpret_cast<const char*>(&size), sizeof size) + text + data);
}

TEST(ForeignWeights, GiveEachSampleItsLogits) {
  const std::string folder = scratch_folder();
  // galley-predict --tensors runs no pipeline, so the test preprocesses the pixels.
  const Tensors val = read_tensors(kGoldenFolder + "/val.safetensors");
  const std::vector<size_t> shape = val.header["input"]["shape"];
  const size_t begin = val.header["input"]["data_offsets"][0], plane = shape[2] * shape[3], count = shape[0] * 3 * plane;
  const float mean[] = {0.485f, 0.456f, 0.406f}, std[] = {0.229f, 0.224f, 0.225f};
  std::vector<float> input(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t channel = i / plane % 3;
    input[i] = (static_cast<float>(static_cast<unsigned char>(val.data[begin + i])) / 255.0f - mean[channel]) / std[channel];
  }
  write_tensors(folder + "/in.safetensors", {{"input", {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {0, count * sizeof(float)}}}}},
                std::string(reinterpret_cast<const char*>(input.data()), count * sizeof(float)));
  const Outcome outcome = run("galley-predict", {recipe_file(folder), "weights=" + kGoldenFolder + "/weights.safetensors", "--tensors",
                                                 folder + "/in.safetensors", "-o", folder + "/out.safetensors", "--batch", "7", "-q"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<float> got = floats_of(read_tensors(folder + "/out.safetensors")).at("output");
  const Json& golden = expected()["evaluate"];
  const double tolerance = kRoundings * golden["rounding"]["logits"].get<double>();
  ASSERT_EQ(got.size(), shape[0] * 10);
  for (size_t i = 0; i < got.size(); ++i) {
    const double want = golden["logits"][i / 10][i % 10];
    EXPECT_TRUE(std::fabs(got[i] - want) <= tolerance)
        << "sample " << i / 10 << ", class " << i % 10 << ": " << got[i] << ", want " << want;
  }
}

TEST(ForeignWeights, OfDataParallelFitByTheRuleOfTheError) {
  const std::string folder = scratch_folder(), recipe = recipe_file(folder), file = folder + "/parallel.safetensors";
  const Tensors plain = read_tensors(kGoldenFolder + "/weights.safetensors");
  Json prefixed;
  for (const auto& [name, entry] : plain.header.items()) prefixed[name == "__metadata__" ? name : "module." + name] = entry;
  write_tensors(file, prefixed, plain.data);
  const Outcome refused = run("galley-evaluate", {recipe, "weights=" + file});
  EXPECT_EQ(refused.code, 4);
  // The error shows a fragment of a recipe, which is used unchanged.
  const size_t rule = refused.err.find("  weights:\n");
  ASSERT_NE(rule, std::string::npos) << refused.err;
  write_text(folder + "/rename.yaml", refused.err.substr(rule));
  expect_golden_evaluation(evaluate(recipe, {"--with", folder + "/rename.yaml"}));
}

TEST(ForeignWeights, OfAnotherDtypeAreCastWhereTheRecipeAllowsIt) {
  const std::string folder = scratch_folder(), recipe = recipe_file(folder), file = folder + "/double.safetensors";
  const Tensors plain = read_tensors(kGoldenFolder + "/weights.safetensors");
  Json header;
  std::string data;
  for (const auto& [name, values] : floats_of(plain)) {
    const std::vector<double> wide(values.begin(), values.end());
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(wide.data()), wide.size() * sizeof(double));
    header[name] = {{"dtype", "F64"}, {"shape", plain.header[name]["shape"]}, {"data_offsets", {begin, data.size()}}};
  }
  write_tensors(file, header, data);
  const Outcome refused = run("galley-evaluate", {recipe, "weights=" + file});
  EXPECT_EQ(refused.code, 4);
  EXPECT_NE(refused.err.find("cast: true"), std::string::npos) << refused.err;
  expect_golden_evaluation(evaluate(recipe, {"weights.load={from: " + file + ", cast: true}"}));
}

}  // namespace
}  // namespace galley::testing_cli
