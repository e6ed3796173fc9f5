// galley-calibrate as a user runs it. The model is two matrices with a relu between them, so that the tests can compute every range from
// the weights file and the inputs.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;
constexpr size_t kPixels = 28 * 28, kHidden = 8, kClasses = 4, kSamples = 30;

std::string bytes_of(const void* data, size_t size) { return {static_cast<const char*>(data), size}; }

class Calibrate : public ::testing::Test {
 protected:
  void SetUp() override {
    folder = scratch_folder();
    inputs.resize(kSamples * kPixels);
    for (size_t i = 0; i < inputs.size(); ++i)
      inputs[i] = static_cast<float>(std::sin(static_cast<double>(i) * 0.7) * (1 + static_cast<double>(i / kPixels) / 10));
    write_inputs(inputs);
    write_text(folder + "/model.yaml",
               "recipe: 1\nname: model\nthreads: 2\nmodel: {type: mlp, num_classes: 4, hidden: [8]}\ndata:\n  root: " + folder +
                   "\n  train: {source: {type: tensors, path: inputs.safetensors}, workers: 1}\n  val: {source: {type: synthetic, samples: "
                   "10}, batch: 4}\n"
                   "train: {duration: 2 steps, batch: 6, optimizer: {type: sgd, lr: 0.05}}\n");
    for (const std::string name : {"a", "b"}) {
      const Outcome trained =
          run("galley-train", {folder + "/model.yaml", "-o", folder + "/run_" + name, "-q", "--seed", name == "a" ? "0" : "1"});
      ASSERT_EQ(trained.code, 0) << trained.err;
      weights[name] = folder + "/run_" + name + "/weights.safetensors";
    }
  }
  void write_inputs(const std::vector<float>& values) {
    const std::vector<int64_t> labels(kSamples, 1);
    const size_t bytes = values.size() * 4;
    const Json header{{"input", {{"dtype", "F32"}, {"shape", {kSamples, 1, 28, 28}}, {"data_offsets", {0, bytes}}}},
                      {"label", {{"dtype", "I64"}, {"shape", {kSamples}}, {"data_offsets", {bytes, bytes + kSamples * 8}}}}};
    write_text(folder + "/inputs.safetensors",
               safetensors_of(header.dump(), bytes_of(values.data(), bytes) + bytes_of(labels.data(), kSamples * 8)));
  }
  Outcome calibrate(const std::string& output, std::vector<std::string> more = {}) {
    std::vector<std::string> words{folder + "/model.yaml", "-o", folder + "/" + output, "--format", "json"};
    if (std::none_of(more.begin(), more.end(), [](const std::string& word) { return word.starts_with("weights="); }))
      words.push_back("weights=" + weights.at("a"));
    words.insert(words.end(), more.begin(), more.end());
    return run("galley-calibrate", words);
  }
  Json show(const std::string& file) {
    const Outcome shown = run("galley-calibrate", {"--show", folder + "/" + file, "--format", "json"});
    EXPECT_EQ(shown.code, 0) << shown.err;
    return Json::parse(shown.out, nullptr, false);
  }
  /// f32 tensors of a safetensors file.
  static std::map<std::string, std::vector<float>> floats(const std::string& path) {
    const std::string file = read_text(path);
    uint64_t length = 0;
    std::memcpy(&length, file.data(), 8);
    std::map<std::string, std::vector<float>> tensors;
    const Json header = Json::parse(file.substr(8, length));
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__" || entry["dtype"] != "F32") continue;
      const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
      tensors[name].resize((end - begin) / 4);
      std::memcpy(tensors[name].data(), file.data() + 8 + length + begin, end - begin);
    }
    return tensors;
  }

  std::string folder;
  std::vector<float> inputs;
  std::map<std::string, std::string> weights;
};

TEST_F(Calibrate, WatchesEachFunctionOfAChain) {
  write_text(folder + "/chain.yaml",
             "recipe: 1\nname: chain\nthreads: 2\nmodel:\n  type: layers\n  input: {shape: [1, 28, 28]}\n  layers:\n"
             "    - {name: conv, type: conv2d, out_channels: 4, kernel_size: 3}\n    - {name: first, type: elu}\n    - {name: second, "
             "type: mish}\n"
             "    - {name: third, type: softplus}\n    - {name: pool, type: adaptive_avg_pool2d, output_size: 1}\n    - {name: flat, type: "
             "flatten}\n"
             "    - {name: fc, type: linear, out_features: 4}\nloss: cross_entropy\ndata:\n  root: " +
                 folder +
                 "\n  train: {source: {type: tensors, path: inputs.safetensors}, workers: 1}\n  val: {source: {type: synthetic, samples: "
                 "10}, batch: 4}\n"
                 "train: {duration: 2 steps, batch: 6, optimizer: {type: sgd, lr: 0.05}}\n");
  const Outcome trained = run("galley-train", {folder + "/chain.yaml", "-o", folder + "/chain", "-q"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Outcome made = run("galley-calibrate", {folder + "/chain", "-o", folder + "/chain.calib"});
  ASSERT_EQ(made.code, 0) << made.err;
  const std::string shown = run("galley-calibrate", {"--show", folder + "/chain.calib"}).out;
  for (const std::string function : {"first.elu", "second.mish", "third.softplus"})
    EXPECT_NE(shown.find(function), std::string::npos) << shown;
}

TEST_F(Calibrate, RangesAreThoseOfTheValues) {
  const Outcome outcome = calibrate("stats.calib", {"data.calibration.batch=8"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json result = Json::parse(outcome.out);
  EXPECT_EQ(result["samples"], kSamples) << "512 are requested, 30 exist";
  EXPECT_NE(outcome.err.find("data.train has only 30 samples; all are used"), std::string::npos) << outcome.err;
  EXPECT_EQ(result["batches"], 4);
  EXPECT_EQ(result["provenance"]["tool"], "galley-calibrate");

  auto w = floats(weights.at("a"));
  std::map<std::string, std::pair<double, double>> expected;
  const auto see = [&](const std::string& name, double x) {
    auto [at, first] = expected.try_emplace(name, x, x);
    at->second = {std::min(at->second.first, x), std::max(at->second.second, x)};
  };
  for (size_t n = 0; n < kSamples; ++n) {
    std::vector<double> hidden(kHidden);
    for (size_t i = 0; i < kPixels; ++i) see("input", static_cast<double>(inputs[n * kPixels + i]));
    for (size_t h = 0; h < kHidden; ++h) {
      double sum = static_cast<double>(w.at("fc1.bias")[h]);
      for (size_t i = 0; i < kPixels; ++i)
        sum += static_cast<double>(w.at("fc1.weight")[h * kPixels + i]) * static_cast<double>(inputs[n * kPixels + i]);
      hidden[h] = std::max(sum, 0.0);
      see("fc1", hidden[h]);
    }
    for (size_t c = 0; c < kClasses; ++c) {
      double sum = static_cast<double>(w.at("fc2.bias")[c]);
      for (size_t h = 0; h < kHidden; ++h) sum += static_cast<double>(w.at("fc2.weight")[c * kHidden + h]) * hidden[h];
      see("fc2", sum);
    }
  }
  const Json shown = show("stats.calib");
  ASSERT_EQ(shown["values"].size(), 3u) << shown.dump();
  for (const Json& value : shown["values"]) {
    const auto& [low, high] = expected.at(value["name"]);
    // Up to 784 products in f32 of size at most 0.15: 784 * 2^-24 * 0.15.
    EXPECT_TRUE(std::abs(value["min"].get<double>() - low) <= 1e-5) << value["name"];
    EXPECT_TRUE(std::abs(value["max"].get<double>() - high) <= 1e-5) << value["name"];
    const double scale = value["observers"]["min_max"]["scale"];
    EXPECT_TRUE(std::abs(scale - (std::max(high, 0.0) - std::min(low, 0.0)) / 255) <= 1e-6 * scale + 1e-7) << value["name"];
    const std::string best = value["best"];
    for (const auto& [observer, chosen] : value["observers"].items())
      EXPECT_GE(value["observers"][best]["sqnr_db"].get<double>(), chosen["sqnr_db"].get<double>()) << observer;
  }
  EXPECT_EQ(shown["values"][0]["name"], "input");
  EXPECT_EQ(shown["values"][1]["elements"], kSamples * kHidden) << "the padding of the last batch does not count";
  // The scheme comes from the recipe.
  const Outcome signed_ones =
      run("galley-calibrate", {folder + "/model.yaml", "--show", folder + "/stats.calib",
                               "quantize.activations={dtype: int8, scheme: per_tensor_symmetric}", "--format", "json"});
  ASSERT_EQ(signed_ones.code, 0) << signed_ones.err;
  EXPECT_EQ(Json::parse(signed_ones.out)["values"][0]["observers"]["mse"]["zero_point"], 0);
  for (const std::string format : {"table", "md", "csv"}) {
    const Outcome table = run("galley-calibrate", {"--show", folder + "/stats.calib", "--format", format});
    ASSERT_EQ(table.code, 0);
    EXPECT_NE(table.out.find("fc2"), std::string::npos);
  }
}

TEST_F(Calibrate, ContinuedIsOneRun) {
  const std::vector<std::string> four{"data.calibration.batch=4"};
  ASSERT_EQ(calibrate("whole.calib", {four[0], "--samples", "24"}).code, 0);
  ASSERT_EQ(calibrate("part.calib", {four[0], "--samples", "8"}).code, 0);
  const Outcome more = calibrate("part.calib", {four[0], "--samples", "24", "--continue"});
  ASSERT_EQ(more.code, 0) << more.err;
  const Json result = Json::parse(more.out);
  EXPECT_EQ(result["samples"], 24);
  EXPECT_EQ(result["parts"].size(), 2u);
  EXPECT_EQ(result["parts"][1]["first"], 8);
  EXPECT_EQ(tensor_bytes(folder + "/part.calib"), tensor_bytes(folder + "/whole.calib"));
  // All samples are already in the file.
  EXPECT_EQ(Json::parse(calibrate("part.calib", {four[0], "--samples", "24", "--continue"}).out)["samples"], 24);
  // Without --continue the file is replaced; another seed draws other samples.
  ASSERT_EQ(calibrate("other.calib", {four[0], "--samples", "8", "--seed", "3"}).code, 0);
  ASSERT_EQ(calibrate("first.calib", {four[0], "--samples", "8"}).code, 0);
  EXPECT_NE(tensor_bytes(folder + "/other.calib"), tensor_bytes(folder + "/first.calib"));
  const Outcome other = calibrate("other.calib", {four[0], "--samples", "24", "--continue"});
  EXPECT_EQ(other.code, 4);
  EXPECT_NE(other.err.find("other data"), std::string::npos) << other.err;
}

TEST_F(Calibrate, MergedIsOneRun) {
  ASSERT_EQ(calibrate("whole.calib", {"data.calibration.batch=5"}).code, 0);
  ASSERT_EQ(calibrate("a.calib", {"data.calibration.batch=5", "data.train.slice=0..15"}).code, 0);
  ASSERT_EQ(calibrate("b.calib", {"data.calibration.batch=5", "data.train.slice=15..30"}).code, 0);
  const Outcome merged =
      run("galley-calibrate", {"--merge", folder + "/a.calib", folder + "/b.calib", "-o", folder + "/both.calib", "--format", "json"});
  ASSERT_EQ(merged.code, 0) << merged.err;
  EXPECT_EQ(Json::parse(merged.out)["samples"], kSamples);
  const Json both = show("both.calib"), whole = show("whole.calib");
  for (size_t i = 0; i < whole["values"].size(); ++i) {
    // The batches contain other samples, so moving averages differ; all other statistics are of the same values.
    for (const char* key : {"name", "min", "max", "elements", "stride"}) EXPECT_EQ(both["values"][i][key], whole["values"][i][key]);
    for (const char* observer : {"min_max", "histogram", "percentile", "entropy", "mse"})
      EXPECT_EQ(both["values"][i]["observers"][observer], whole["values"][i]["observers"][observer]) << observer;
  }
  // The same file twice is accepted with a warning.
  const Outcome twice = run("galley-calibrate", {"--merge", folder + "/a.calib", folder + "/a.calib", "-o", folder + "/twice.calib"});
  EXPECT_EQ(twice.code, 0);
  EXPECT_NE(twice.err.find("count twice"), std::string::npos) << twice.err;
}

TEST_F(Calibrate, WhatDoesNotBelongTogether) {
  ASSERT_EQ(calibrate("a.calib").code, 0);
  ASSERT_EQ(calibrate("b.calib", {"weights=" + weights.at("b")}).code, 0);
  const Outcome merged = run("galley-calibrate", {"--merge", folder + "/a.calib", folder + "/b.calib", "-o", folder + "/both.calib"});
  EXPECT_EQ(merged.code, 4);
  EXPECT_NE(merged.err.find("other weights: 4 of 4 tensors differ (first fc1.bias)"), std::string::npos) << merged.err;
  EXPECT_FALSE(std::filesystem::exists(folder + "/both.calib"));
  const Outcome continued = calibrate("a.calib", {"weights=" + weights.at("b"), "--continue"});
  EXPECT_EQ(continued.code, 4) << continued.err;

  write_text(folder + "/other.yaml", "recipe: 1\nmodel: {type: mlp, num_classes: 4, hidden: [8, 8]}\nextra: 1\n");
  std::string other = read_text(folder + "/model.yaml");
  other.replace(other.find("[8]"), 3, "[8, 8]");
  write_text(folder + "/other.yaml", other);
  ASSERT_EQ(run("galley-train", {folder + "/other.yaml", "-o", folder + "/run_other", "-q"}).code, 0);
  ASSERT_EQ(run("galley-calibrate",
                {folder + "/other.yaml", "weights=" + folder + "/run_other/weights.safetensors", "-o", folder + "/other.calib"})
                .code,
            0);
  const Outcome models = run("galley-calibrate", {"--merge", folder + "/a.calib", folder + "/other.calib", "-o", folder + "/both.calib"});
  EXPECT_EQ(models.code, 4);
  EXPECT_NE(models.err.find("another model"), std::string::npos) << models.err;

  write_text(folder + "/no.calib", "no calibration");
  EXPECT_EQ(run("galley-calibrate", {"--show", folder + "/no.calib"}).code, 4);
  EXPECT_EQ(run("galley-calibrate", {"--show", weights.at("a")}).code, 4) << "weights are not a calibration";
  std::string damaged = read_text(folder + "/a.calib");
  damaged[damaged.size() - 100] = static_cast<char>(damaged[damaged.size() - 100] ^ 4);
  write_text(folder + "/damaged.calib", damaged);
  EXPECT_EQ(run("galley-calibrate", {"--show", folder + "/damaged.calib"}).code, 4);
  EXPECT_EQ(run("galley-calibrate", {"--merge", folder + "/a.calib", folder + "/damaged.calib", "-o", folder + "/both.calib"}).code, 4);
}

TEST_F(Calibrate, NumbersThatAreNone) {
  std::vector<float> bad = inputs;
  bad[17 * kPixels + 5] = std::nanf("");
  write_inputs(bad);
  const Outcome input = calibrate("stats.calib");
  EXPECT_EQ(input.code, 5) << input.err;
  EXPECT_NE(input.err.find("input has 1 values"), std::string::npos) << input.err;
  EXPECT_FALSE(std::filesystem::exists(folder + "/stats.calib"));
  // Weights that overflow in the second layer: the error names it.
  write_inputs(inputs);
  std::string file = read_text(weights.at("a"));
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  Json header = Json::parse(file.substr(8, length));
  header.erase("__metadata__");
  std::string values = file.substr(8 + length);
  const size_t at = header["fc2.weight"]["data_offsets"][0];
  const std::vector<float> huge(kHidden * kClasses, 3e38f);
  values.replace(at, huge.size() * 4, bytes_of(huge.data(), huge.size() * 4));
  write_text(folder + "/huge.safetensors", safetensors_of(header.dump(), values));
  const Outcome layer = calibrate("stats.calib", {"weights=" + folder + "/huge.safetensors"});
  EXPECT_EQ(layer.code, 5) << layer.err;
  EXPECT_NE(layer.err.find("fc2 has"), std::string::npos) << layer.err;
}

TEST_F(Calibrate, NoSamples) {
  const Outcome outcome = calibrate("stats.calib", {"data.train.slice=0%..1%"});
  EXPECT_EQ(outcome.code, 5) << outcome.err;
  EXPECT_NE(outcome.err.find("no samples"), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(calibrate("stats.calib", {"data.train.slice=0..0"}).code, 3)
      << "a slice that is empty whatever the data is a mistake of the recipe";
  EXPECT_EQ(calibrate("stats.calib", {"data.calibration.from=test"}).code, 3) << "there is no data.test";
}

TEST_F(Calibrate, CommandLines) {
  const std::string recipe = folder + "/model.yaml", with = "weights=" + weights.at("a");
  EXPECT_EQ(run("galley-calibrate", {recipe, with}).code, 2) << "where to?";
  EXPECT_EQ(run("galley-calibrate", {recipe, "-o", folder + "/x.calib"}).code, 3) << "no weights";
  EXPECT_EQ(run("galley-calibrate", {recipe, with, "-o", folder + "/nowhere/x.calib"}).code, 7);
  EXPECT_EQ(run("galley-calibrate", {recipe, with, "-o", folder}).code, 7);
  EXPECT_EQ(run("galley-calibrate", {recipe, with, "-o", folder + "/x.calib", "--samples", "0"}).code, 2);
  EXPECT_EQ(run("galley-calibrate", {"--merge", folder + "/a.calib"}).code, 2) << "where to?";
  EXPECT_EQ(run("galley-calibrate", {"--merge", folder + "/a.calib", "-o", folder + "/x.calib"}).code, 4) << "there is none";
  EXPECT_EQ(run("galley-calibrate", {"--show", folder + "/a.calib"}).code, 4);
  EXPECT_EQ(run("galley-calibrate", {"--show", folder + "/a.calib", "--merge", folder + "/a.calib"}).code, 2);
  EXPECT_EQ(run("galley-calibrate", {recipe, with, "-o", folder + "/x.calib", "metod=static"}).code, 3);
  const Outcome dry = run("galley-calibrate", {recipe, with, "-o", folder + "/x.calib", "--dry-run", "--format", "json"});
  ASSERT_EQ(dry.code, 0) << dry.err;
  EXPECT_EQ(Json::parse(dry.out)["samples"], kSamples);
  EXPECT_FALSE(std::filesystem::exists(folder + "/x.calib"));
  // A RUN folder as the recipe uses its recipe and its weights.
  const Outcome folder_run = run("galley-calibrate", {folder + "/run_a", "-o", folder + "/run.calib", "-q"});
  ASSERT_EQ(folder_run.code, 0) << folder_run.err;
  ASSERT_EQ(calibrate("stats.calib").code, 0);
  EXPECT_EQ(tensor_bytes(folder + "/run.calib"), tensor_bytes(folder + "/stats.calib"));
  EXPECT_NE(run("galley-calibrate", {"--complete-words", recipe, "quantize.act"}).out.find("quantize.activations"), std::string::npos);
  const Outcome full = run_limited("galley-calibrate", {recipe, with, "-o", folder + "/full.calib"}, 1000);
  EXPECT_EQ(full.code, 7) << full.err;
  EXPECT_FALSE(std::filesystem::exists(folder + "/full.calib"));
}

TEST_F(Calibrate, StoppedGoesOn) {
  std::string recipe = read_text(folder + "/model.yaml");
  const std::string tensors = "{type: tensors, path: inputs.safetensors}";
  recipe.replace(recipe.find(tensors), tensors.size(), "{type: synthetic, samples: 300000}");
  write_text(folder + "/long.yaml", recipe);
  const std::vector<std::string> words{
      folder + "/long.yaml", "weights=" + weights.at("a"), "-o", folder + "/long.calib", "data.calibration.batch=1", "--format", "json"};
  std::vector<std::string> all = words;
  all.insert(all.end(), {"--samples", "300000", "-q"});
  Child child("galley-calibrate", all);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  child.signal(SIGINT);
  ASSERT_EQ(child.wait(), 75);
  const Outcome shown = run("galley-calibrate", {"--show", folder + "/long.calib", "--format", "json"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  const int64_t done = Json::parse(shown.out)["samples"];
  ASSERT_GT(done, 0);
  std::vector<std::string> more = words;
  more.insert(more.end(), {"--samples", std::to_string(done + 8), "--continue"});
  ASSERT_EQ(run("galley-calibrate", more).code, 0);
  std::vector<std::string> whole = words;
  whole[3] = folder + "/whole.calib";
  whole.insert(whole.end(), {"--samples", std::to_string(done + 8)});
  ASSERT_EQ(run("galley-calibrate", whole).code, 0);
  EXPECT_EQ(tensor_bytes(folder + "/long.calib"), tensor_bytes(folder + "/whole.calib"));
}

}  // namespace
}  // namespace galley::testing_cli
