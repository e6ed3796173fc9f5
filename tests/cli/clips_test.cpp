// Video classification from folders of frames: a model of clips is trained, evaluated, and classifies a folder.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

/// A PPM with a bright column at x.
std::string frame(int x) {
  std::string file = "P6 16 16 255\n";
  for (int i = 0; i < 256; ++i) file += std::string(3, static_cast<char>((i % 16 + 16 - x) % 16 < 6 ? 230 : 20));
  return file;
}

TEST(Clips, FromFoldersToClasses) {
  const std::string folder = scratch_folder();
  for (const bool right : {false, true}) {
    for (int video = 0; video < 4; ++video) {
      const std::string name = folder + "/data/" + (right ? "right" : "left") + "/" + std::to_string(video);
      std::filesystem::create_directories(name);
      for (int t = 0; t < 4; ++t) write_text(name + "/" + std::to_string(t) + ".ppm", frame((4 * video + (right ? 3 : 13) * t) % 16));
    }
  }
  const std::string recipe = folder + "/clips.yaml";
  write_text(recipe, R"(recipe: 1
name: clips
threads: 2
model: {type: mc3_18, num_classes: 2, width: 16}
data:
  root: )" + folder + R"(
  train: {source: {type: video_folder, path: data, frames: 4}, pipeline: [{type: normalize, mean: 0.5, std: 0.5}]}
  val: {source: {type: video_folder, path: data, frames: 4}, pipeline: [{type: normalize, mean: 0.5, std: 0.5}], batch: 8}
train: {duration: 12 steps, batch: 8, optimizer: {type: adamw, lr: 0.001}, validate: null}
checkpoint: null
log: {tensorboard: false}
)");
  const Outcome trained = run("galley-train", {recipe, "-o", folder + "/run", "-q", "--format", "json"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  // Each frame alone is the same for both classes: the order of the frames tells them apart.
  Json last;
  std::istringstream rows(read_text(folder + "/run/metrics.jsonl"));
  for (std::string row; std::getline(rows, row);)
    if (const Json parsed = Json::parse(row); parsed["kind"] == "train") last = parsed;
  EXPECT_LT(last["loss"].get<double>(), 0.5) << last.dump();
  const Outcome evaluated = run("galley-evaluate", {folder + "/run", "--format", "json"});
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_TRUE(Json::parse(evaluated.out)["metrics"].contains("top1"));
  const Outcome predicted =
      run("galley-predict", {folder + "/run", folder + "/data/left/0", "--format", "json", "--draw", folder + "/out"});
  ASSERT_EQ(predicted.code, 0) << predicted.err;
  const Json line = Json::parse(predicted.out);
  EXPECT_EQ(line["file"], folder + "/data/left/0");
  EXPECT_EQ(line["top"].size(), 2u);
  EXPECT_TRUE(read_text(folder + "/out/0.png").starts_with("\x89PNG"));
  // A path without a video is reported, and the other videos are predicted.
  const Outcome file = run("galley-predict", {folder + "/run", folder + "/data/left/0/0.ppm", folder + "/data/left/0", "--format", "json"});
  EXPECT_EQ(file.code, 4) << file.err;
  const size_t end = file.out.find('\n');
  ASSERT_LT(end + 1, file.out.size()) << file.out;
  const Json error = Json::parse(file.out.substr(0, end))["error"];
  EXPECT_NE(error["message"].get<std::string>().find("folders of frames"), std::string::npos) << error;
  EXPECT_EQ(Json::parse(file.out.substr(end + 1))["top"].size(), 2u);
}

}  // namespace
}  // namespace galley::testing_cli
