// Optical flow from files to files: a small RAFT is trained on pairs of frames with .flo files, evaluated, and writes flows.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

constexpr int kFrameWidth = 48, kFrameHeight = 40;

/// A PPM of a pattern that is `shift` pixels further right.
std::string frame(int shift) {
  std::string file = "P6 48 40 255\n";
  for (int y = 0; y < kFrameHeight; ++y) {
    for (int x = 0; x < kFrameWidth; ++x) {
      const int u = x - shift;
      for (int c = 0; c < 3; ++c) file += static_cast<char>(128 + 60 * std::sin(0.5 * u + c) + 50 * std::cos(0.4 * y - 0.3 * u));
    }
  }
  return file;
}

std::string flo(int width, int height, float right) {
  std::string file = "PIEH";
  const auto put = [&](const auto& value) { file.append(reinterpret_cast<const char*>(&value), sizeof value); };
  put(width);
  put(height);
  for (int i = 0; i < width * height; ++i) {
    put(right);
    put(0.0f);
  }
  return file;
}

std::string made_folder() {
  const std::string folder = scratch_folder();
  std::filesystem::create_directories(folder + "/data");
  for (int i = 0; i < 4; ++i) {
    const std::string name = folder + "/data/" + std::to_string(i);
    write_text(name + "_img1.ppm", frame(i));
    write_text(name + "_img2.ppm", frame(i + 2));
    write_text(name + "_flow.flo", flo(kFrameWidth, kFrameHeight, 2));
  }
  write_text(folder + "/raft.yaml", R"(recipe: 1
name: raft
threads: 1
model:
  type: raft_small
  num_flow_updates: 2
  feature_encoder_layers: [8, 8, 12, 16, 20]
  context_encoder_layers: [8, 8, 12, 16, 24]
  corr_block_num_levels: 2
  corr_block_radius: 2
  motion_encoder_corr_layers: [12]
  motion_encoder_flow_layers: [8, 6]
  motion_encoder_out_channels: 11
  recurrent_block_hidden_state_size: 10
  flow_head_hidden_size: 9
data:
  root: )" + folder + R"(
  train:
    source: {type: flow_pairs, path: data}
    pipeline:
      - {type: random_crop, size: [32, 32]}
      - {type: random_horizontal_flip}
      - {type: normalize, mean: 0.5, std: 0.5}
  val: {source: {type: flow_pairs, path: data}, pipeline: [{type: normalize, mean: 0.5, std: 0.5}], batch: 3}
train: {duration: 40 steps, batch: 4, optimizer: {type: adamw, lr: 0.004}, clip: 1.0}
)");
  return folder;
}

TEST(OpticalFlow, TrainsEvaluatesAndDraws) {
  const std::string folder = made_folder(), recipe = folder + "/raft.yaml", run_folder = folder + "/run";
  const Outcome before = run("galley-evaluate", {recipe, "--format", "json"});
  const Outcome trained = run("galley-train", {recipe, "-o", run_folder, "-q"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Outcome evaluated = run("galley-evaluate", {run_folder, "--format", "json"});
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  const Json metrics = Json::parse(evaluated.out)["metrics"];
  for (const char* name : {"loss", "epe", "1px", "3px", "5px"}) EXPECT_TRUE(metrics.contains(name)) << name;
  // The flow is 2 everywhere: to predict none would be an error of 2.
  EXPECT_LT(metrics["epe"].get<double>(), 1.5);
  EXPECT_GT(metrics["5px"].get<double>(), 90);

  const std::string a = folder + "/data/0_img1.ppm", b = folder + "/data/0_img2.ppm", out = folder + "/out";
  const Outcome predicted = run("galley-predict", {run_folder, a, b, "--draw", out, "--format", "json"});
  ASSERT_EQ(predicted.code, 0) << predicted.err;
  const Json line = Json::parse(predicted.out);
  EXPECT_EQ(line["files"], (Json{a, b}));
  EXPECT_FALSE(line.contains("file"));
  EXPECT_EQ(line["flow"], out + "/0_img1.flo");
  EXPECT_EQ(read_text(out + "/0_img1.flo").size(), 12u + 8u * kFrameWidth * kFrameHeight);
  EXPECT_TRUE(read_text(out + "/0_img1.png").starts_with("\x89PNG"));
  EXPECT_LT(std::abs(line["mean"].get<double>() - 2), 1.5);

  // Resized for the model, the flow is still in pixels of the file.
  const Outcome resized =
      run("galley-predict", {run_folder, a, b, "--draw", out, "--format", "json",
                             "data.val.pipeline=[{type: resize, size: [64, 64]}, {type: normalize, mean: 0.5, std: 0.5}]"});
  ASSERT_EQ(resized.code, 0) << resized.err;
  EXPECT_EQ(read_text(out + "/0_img1.flo").size(), 12u + 8u * kFrameWidth * kFrameHeight);
}

TEST(OpticalFlow, ComparesWeightsByTheirFlow) {
  const std::string folder = made_folder();
  ASSERT_EQ(run("galley-train", {folder + "/raft.yaml", "-o", folder + "/run", "-q", "train.duration=2 steps"}).code, 0);
  ASSERT_EQ(run("galley-train", {folder + "/raft.yaml", "-o", folder + "/more", "-q", "train.duration=4 steps"}).code, 0);
  const auto difference = [&](const std::string& other) {
    const Outcome outcome = run("galley-evaluate", {folder + "/run", "--against", folder + other, "--format", "json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out)["outputs"]["max_abs"].get<double>();
  };
  EXPECT_EQ(difference("/run/weights.safetensors"), 0);
  EXPECT_GT(difference("/more/weights.safetensors"), 0);
}

TEST(OpticalFlow, TensorsByName) {
  const std::string folder = made_folder();
  ASSERT_EQ(run("galley-train", {folder + "/raft.yaml", "-o", folder + "/run", "-q", "train.duration=1 steps"}).code, 0);
  const std::string shape = R"("dtype":"F32","shape":[1,3,32,40],"data_offsets":)";
  const std::string header = "{\"image1\":{" + shape + "[0,15360]},\"image2\":{" + shape + "[15360,30720]}}";
  std::string values;
  for (int i = 0; i < 2 * 3 * 32 * 40; ++i) {
    const auto value = static_cast<float>(std::sin(0.1 * i));
    values.append(reinterpret_cast<const char*>(&value), 4);
  }
  write_text(folder + "/in.safetensors", safetensors_of(header, values));
  const Outcome outcome =
      run("galley-predict", {folder + "/run", "--tensors", folder + "/in.safetensors", "-o", folder + "/out.safetensors"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(tensor_bytes(folder + "/out.safetensors").size(), 4u * 2 * 32 * 40) << "the flow, and nothing else";
  EXPECT_EQ(tensor_bytes(folder + "/out.safetensors", "flow").size(), 4u * 2 * 32 * 40);
}

TEST(OpticalFlow, MistakesHaveTheirCode) {
  const std::string folder = made_folder(), recipe = folder + "/raft.yaml";
  ASSERT_EQ(run("galley-train", {recipe, "-o", folder + "/run", "-q", "train.duration=1 steps"}).code, 0);
  const Outcome odd = run("galley-predict", {folder + "/run", folder + "/data/0_img1.ppm"});
  EXPECT_EQ(odd.code, 2) << odd.err;
  EXPECT_NE(odd.err.find("the command line has 1 file"), std::string::npos) << odd.err;
  // The drawing would have the name of the input.
  std::filesystem::copy(folder + "/data/0_img1.ppm", folder + "/data/0_img1.png");
  const Outcome replaces =
      run("galley-predict", {folder + "/run", folder + "/data/0_img1.png", folder + "/data/0_img2.ppm", "--draw", folder + "/data/."});
  EXPECT_EQ(replaces.code, 2) << replaces.err;
  EXPECT_NE(replaces.err.find("would replace the input"), std::string::npos) << replaces.err;
  EXPECT_EQ(read_text(folder + "/data/0_img1.png"), read_text(folder + "/data/0_img1.ppm"));
  std::filesystem::remove(folder + "/data/0_img1.png");
  write_text(folder + "/data/3_flow.flo", flo(kFrameWidth, kFrameHeight, 2).substr(0, 1000));
  const Outcome cut = run("galley-evaluate", {folder + "/run"});
  EXPECT_EQ(cut.code, 4) << cut.err;
  EXPECT_NE(cut.err.find("3_flow.flo: the file has 1000 bytes, but 48 x 40 pixels"), std::string::npos) << cut.err;
  const Outcome size = run("galley-evaluate", {folder + "/run", "data.val.pipeline=[{type: resize, size: [36, 40]}]"});
  EXPECT_EQ(size.code, 3) << size.err;
  EXPECT_NE(size.err.find("size: [40, 40]"), std::string::npos) << size.err;
}

}  // namespace
}  // namespace galley::testing_cli
