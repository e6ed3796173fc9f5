// device: cuda on the stand-in driver, which runs the kernels on the host: the same losses as the processor, and clear errors without it.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/cli/json_lines.h"
#include "tests/cli/process.h"
#include "tests/support/temporary_folder.h"

namespace galley::testing_cli {
namespace {

const std::string kDriver = GALLEY_BUILD_DIR "/stand_in/libcuda_stand_in.so";

void write_file(const std::string& path, const std::string& text) { std::ofstream(path) << text; }
std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string training(const std::string& folder, const std::string& device) {
  return "cd " + folder + " && GALLEY_CUDA_DRIVER=" + kDriver + " galley-train r.yaml device=" + device + " log.every='1 steps' -q -o " +
         device;
}

std::vector<double> losses_of(const std::string& path) {
  std::vector<double> losses;
  for (const nlohmann::json& line : json_lines(read_file(path))) {
    if (line["kind"] == "train") losses.push_back(line["loss"]);
  }
  return losses;
}

/// Trains on both devices.
void expect_equal_losses(const std::string& recipe, size_t steps) {
  const TemporaryFolder folder;
  write_file(folder / "text.txt", std::string(2000, 'a') + std::string(2000, 'b'));
  write_file(folder / "r.yaml", "recipe: 1\n" + recipe);
  for (const std::string device : {"cpu", "cuda"}) {
    const Outcome outcome = shell(training(folder.path(), device));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
  }
  const std::vector<double> expected = losses_of(folder / "cpu/metrics.jsonl"), found = losses_of(folder / "cuda/metrics.jsonl");
  ASSERT_EQ(expected.size(), steps);
  ASSERT_EQ(found.size(), steps);
  for (size_t i = 0; i < steps; ++i) EXPECT_NEAR(found[i], expected[i], 1e-4 * std::abs(expected[i])) << "step " << i + 1;
}

TEST(Cuda, TrainsAClassifierAsTheProcessor) {
  expect_equal_losses(
      "model: {type: mlp, hidden: [32], num_classes: 10}\ndata: {train: {source: {type: synthetic, samples: 64}}}\n"
      "train: {duration: 5 steps, batch: 16, optimizer: {type: sgd, lr: 0.05, momentum: 0.9}}\n",
      5);
}

TEST(Cuda, TrainsALanguageModelAsTheProcessor) {
  expect_equal_losses(
      "model: {type: gpt, n_layer: 1, n_head: 2, n_embd: 16, block_size: 8, vocab_size: 256, dropout: 0.1}\n"
      "data: {train: {source: {type: text, path: text.txt}}}\n"
      "train: {duration: 4 steps, batch: 2, optimizer: {type: adamw, lr: 0.01}, clip: 1.0}\n",
      4);
}

TEST(Cuda, ErrorsSayWhatIsMissing) {
  const TemporaryFolder folder;
  write_file(folder / "r.yaml",
             "recipe: 1\nmodel: {type: mlp, num_classes: 10}\ndata: {train: {source: {type: synthetic, samples: 64}}}\n"
             "train: {duration: 1 steps, batch: 16, optimizer: {type: sgd, lr: 0.05}}\n");
  const std::string train = "cd " + folder.path() + " && galley-train r.yaml device=cuda -q -o run";
  Outcome outcome = shell("GALLEY_CUDA_DRIVER=/nowhere/libcuda.so.1; export GALLEY_CUDA_DRIVER; " + train);
  EXPECT_EQ(outcome.code, 7);
  EXPECT_NE(outcome.err.find("no NVIDIA driver was found: /nowhere/libcuda.so.1"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("install NVIDIA's driver 580 or later"), std::string::npos) << outcome.err;
  outcome = shell("GALLEY_CUDA_DRIVER=" + kDriver +
                  "; export GALLEY_CUDA_DRIVER; GALLEY_STAND_IN_FAIL=cuInit:1=100; export GALLEY_STAND_IN_FAIL; " + train);
  EXPECT_EQ(outcome.code, 7);
  EXPECT_NE(outcome.err.find("finds no NVIDIA GPU"), std::string::npos) << outcome.err;
  outcome = shell("GALLEY_CUDA_DRIVER=" + kDriver +
                  "; export GALLEY_CUDA_DRIVER; GALLEY_STAND_IN_FAIL=cuMemAlloc:2=2; export GALLEY_STAND_IN_FAIL; " + train);
  EXPECT_EQ(outcome.code, 7);
  EXPECT_NE(outcome.err.find("memory"), std::string::npos) << outcome.err;
  outcome = shell("GALLEY_CUDA_DRIVER=" + kDriver +
                  "; export GALLEY_CUDA_DRIVER; GALLEY_STAND_IN_FAIL=cuLaunchKernel:7=700; export GALLEY_STAND_IN_FAIL; " + train);
  EXPECT_EQ(outcome.code, 7);
  EXPECT_NE(outcome.err.find("CUDA: starting the kernel "), std::string::npos) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(folder / "run/weights.safetensors"));
}

TEST(Cuda, VersionListsDevices) {
  const Outcome outcome = shell("GALLEY_CUDA_DRIVER=" + kDriver + " galley-train --version -v");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_NE(outcome.out.find("device cuda: an NVIDIA GPU"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("driver of CUDA 13.0, " + kDriver), std::string::npos) << outcome.out;
}

}  // namespace
}  // namespace galley::testing_cli
