// Damaged, foreign and hostile files, a full disk, read-only folders, values that are not finite: as a user encounters them.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

void expect_all(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in:\n" << text;
}

void truncate(const std::string& path) {
  const std::string bytes = read_text(path);
  write_text(path, bytes.substr(0, bytes.size() / 2));
}
void flip_bit(const std::string& path) {
  std::string bytes = read_text(path);
  bytes[bytes.size() - bytes.size() / 4] ^= 4;  // in the values, which are at least three quarters of the file
  write_text(path, bytes);
}

class DamagedCheckpoint : public testing::TestWithParam<std::pair<const char*, void (*)(const std::string&)>> {};

TEST_P(DamagedCheckpoint, IsSaidAndTheOneBeforeItIsUsed) {
  const std::string folder = scratch_folder(), run_folder = folder + "/run", newest = run_folder + "/checkpoints/step-000006";
  const std::vector<std::string> command{tiny_recipe(folder), "-o", run_folder, "--format", "json"};
  ASSERT_EQ(run("galley-train", command).code, 0);
  const std::string weights = tensor_bytes(run_folder + "/weights.safetensors");
  // As after an interruption after the last save, whose files were then damaged.
  std::filesystem::remove(run_folder + "/result.json");
  GetParam().second(newest + "/parameters.safetensors");
  const Outcome outcome = run("galley-train", command);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_all(outcome.err, {"step-000006 is damaged and not used", "parameters.safetensors",
                           "continuing from " + run_folder + "/checkpoints/step-000004 instead"});
  EXPECT_EQ(tensor_bytes(run_folder + "/weights.safetensors"), weights);
  // All are damaged: an error with a suggestion, and no training.
  std::filesystem::remove(run_folder + "/result.json");
  for (const char* step : {"2", "4", "6"}) GetParam().second(run_folder + "/checkpoints/step-00000" + step + "/parameters.safetensors");
  const Outcome hopeless = run("galley-train", {command[0], "-o", run_folder});
  EXPECT_EQ(hopeless.code, 4);
  EXPECT_EQ(hopeless.out, "");
  expect_all(hopeless.err, {"every checkpoint in", "is damaged", "start over with --force"});
  EXPECT_EQ(run("galley-train", {command[0], "-o", run_folder, "--force", "--format", "json", "-q"}).code, 0);
  EXPECT_EQ(tensor_bytes(run_folder + "/weights.safetensors"), weights);
}

INSTANTIATE_TEST_SUITE_P(Both, DamagedCheckpoint, testing::Values(std::pair{"Truncated", &truncate}, std::pair{"BitFlipped", &flip_bit}),
                         [](const auto& info) { return info.param.first; });

TEST(FullDisk, KeepsTheOldCheckpointAndTheRunGoesOnWhenThereIsSpace) {
  const std::string folder = scratch_folder();
  const std::string recipe = tiny_recipe(folder);
  ASSERT_EQ(run("galley-train", {recipe, "-o", folder + "/whole", "duration=8 steps", "--format", "json", "-q"}).code, 0);
  const std::string cut = folder + "/cut";
  ASSERT_EQ(run("galley-train", {recipe, "-o", cut, "duration=4 steps", "--format", "json", "-q"}).code, 0);
  // Parameters are 25 kB: the save after step 6 fails in the middle.
  const Outcome full = run_limited("galley-train", {recipe, "-o", cut, "duration=8 steps", "--format", "json", "-q"}, 16384);
  EXPECT_EQ(full.code, 7) << full.err;
  EXPECT_EQ(full.out, "");
  expect_all(full.err, {"cannot write", "step-000006", "File too large", "ulimit -f"});
  EXPECT_EQ(shell("ls " + cut + "/checkpoints").out, "step-000002\nstep-000004\n") << "half a checkpoint stays, or an old one is lost";
  const Outcome evaluated = run("galley-evaluate", {recipe, "weights=" + cut + "/checkpoints/step-000004", "--format", "json", "-q"});
  EXPECT_EQ(evaluated.code, 0) << evaluated.err;
  ASSERT_EQ(run("galley-train", {recipe, "-o", cut, "duration=8 steps", "--format", "json", "-q"}).code, 0);
  EXPECT_EQ(tensor_bytes(cut + "/weights.safetensors"), tensor_bytes(folder + "/whole/weights.safetensors"));
}

TEST(FullDisk, OfTheResultIsSaid) {
  const Outcome outcome = shell("galley-recipes schema > /dev/full");
  EXPECT_EQ(outcome.code, 7);
  expect_all(outcome.err, {"cannot write to standard output"});
}

TEST(Output, ThatCannotBeWrittenIsExit7BeforeAnythingIsTrained) {
  const std::string folder = scratch_folder();
  const std::string recipe = tiny_recipe(folder);
  write_text(folder + "/file", "");
  for (const std::string& place : {std::string("/proc/galley"), std::string("/dev/null/run"), folder + "/file/run"}) {
    const Outcome outcome = run("galley-train", {recipe, "-o", place, "-q"});
    EXPECT_EQ(outcome.code, 7) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    expect_all(outcome.err, {"cannot create the folder", place.substr(0, place.rfind('/')), "choose another path"});
    EXPECT_FALSE(std::filesystem::exists(place));
  }
  // A read-only folder. Root may write anywhere, so the tool runs as another user.
  std::filesystem::create_directories(folder + "/locked");
  chmod((folder + "/locked").c_str(), 0555);
  chmod(folder.c_str(), 0755);
  const Outcome locked = run_unprivileged("galley-train", {recipe, "-o", folder + "/locked/run", "-q"});
  if (locked.code == 126 || locked.code == 127) GTEST_SKIP() << "the user nobody cannot run the build's programs here";
  EXPECT_EQ(locked.code, 7) << locked.err;
  expect_all(locked.err, {"cannot create the folder", "locked/run", "Permission denied", "choose a folder that this user may write to"});
}

struct BadFile {
  std::string name;
  std::string header;
  std::vector<std::string> parts;
};
class HostileSafetensors : public testing::TestWithParam<BadFile> {};

TEST_P(HostileSafetensors, IsExit4WithTheReason) {
  const std::string folder = scratch_folder();
  const std::string file = folder + "/weights.safetensors";
  write_text(file, safetensors_of(GetParam().header, std::string(64, '\0')));
  const Outcome outcome = run("galley-evaluate", {tiny_recipe(folder), "weights=" + file});
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  expect_all(outcome.err, {file});
  expect_all(outcome.err, GetParam().parts);
}

INSTANTIATE_TEST_SUITE_P(
    All, HostileSafetensors,
    testing::Values(
        BadFile{"Overlap",
                R"({"a":{"dtype":"F32","shape":[8],"data_offsets":[0,32]},"b":{"dtype":"F32","shape":[12],"data_offsets":[16,64]}})",
                {"'b'", "16"}},
        BadFile{"Hole",
                R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"b":{"dtype":"F32","shape":[8],"data_offsets":[32,64]}})",
                {"'b'", "32"}},
        BadFile{"BeyondTheEnd", R"({"a":{"dtype":"F32","shape":[1024],"data_offsets":[0,4096]}})", {"4096"}},
        BadFile{"Overflow", R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,64]}})", {"'a'"}},
        BadFile{"OffsetsOverflow", R"({"a":{"dtype":"F32","shape":[16],"data_offsets":[0,18446744073709551680]}})", {"a"}},
        BadFile{"NotJson", "{\"a\":", {"header"}}),
    [](const auto& info) { return info.param.name; });

TEST(Weights, OfAnotherShapeAreNamedWithBothShapes) {
  const std::string folder = scratch_folder();
  const std::string recipe = tiny_recipe(folder);
  ASSERT_EQ(run("galley-train", {recipe, "-o", folder + "/run", "--format", "json", "-q"}).code, 0);
  const Outcome outcome = run("galley-evaluate", {recipe, "weights=" + folder + "/run", "model.num_classes=5", "--format", "json", "-q"});
  EXPECT_EQ(outcome.code, 4);
  EXPECT_EQ(outcome.out, "");
  const Json error = Json::parse(outcome.err)["error"];
  EXPECT_EQ(error["code"], 4);
  expect_all(error["message"], {"does not fit the model", "fc2.weight", "f32 [5,8]", "f32 [4,8]",
                                "the weights were trained with model.num_classes: 4; here it is 5"});
  EXPECT_EQ(error["message"].get<std::string>().find("ignore:"), std::string::npos);
  // Samples of another shape: the first layer has another size, although the recipe is the same.
  write_text(folder + "/small.safetensors",
             safetensors_of(R"({"input":{"dtype":"F32","shape":[1,1,4,4],"data_offsets":[0,64]}})", std::string(64, '\0')));
  const Outcome predicted = run("galley-predict", {folder + "/run", "--tensors", folder + "/small.safetensors", "-o",
                                                   folder + "/out.safetensors", "--format", "json", "-q"});
  EXPECT_EQ(predicted.code, 4) << predicted.err;
  expect_all(Json::parse(predicted.err)["error"]["message"],
             {"fc1.weight", "the weights were trained on samples of shape [1,28,28]; here samples have the shape [1,4,4]"});
}

TEST(Weights, ThatAreNotFiniteAreRefusedUnlessTheRecipeTakesThem) {
  const std::string folder = scratch_folder();
  const std::string recipe = tiny_recipe(folder);
  ASSERT_EQ(run("galley-train", {recipe, "-o", folder + "/run", "--format", "json", "-q"}).code, 0);
  // A file of another program, without digests: the bias of the last layer is NaN.
  std::string values(4 * (8 * 784 + 8 + 4 * 8 + 4), '\0');
  const float nan = std::nanf("");
  std::memcpy(values.data() + values.size() - 4, &nan, 4);
  const std::string header = R"({"fc1.weight":{"dtype":"F32","shape":[8,784],"data_offsets":[0,25088]},)"
                             R"("fc1.bias":{"dtype":"F32","shape":[8],"data_offsets":[25088,25120]},)"
                             R"("fc2.weight":{"dtype":"F32","shape":[4,8],"data_offsets":[25120,25248]},)"
                             R"("fc2.bias":{"dtype":"F32","shape":[4],"data_offsets":[25248,25264]}})";
  write_text(folder + "/nan.safetensors", safetensors_of(header, values));
  const Outcome refused = run("galley-evaluate", {recipe, "weights=" + folder + "/nan.safetensors", "--format", "json", "-q"});
  EXPECT_EQ(refused.code, 4);
  expect_all(refused.err, {"'fc2.bias' contains 1 value that is NaN or infinite, the first at [3]", "weights.load.0.check_finite=false"});
  const Outcome taken = run(
      "galley-evaluate", {recipe, "weights=" + folder + "/nan.safetensors", "weights.load.0.check_finite=false", "--format", "json", "-q"});
  EXPECT_EQ(taken.code, 0) << taken.err;
  EXPECT_EQ(Json::parse(taken.out)["metrics"]["loss"], "nan");
}

TEST(Weights, CarryRecipePipelineAndParents) {
  const std::string folder = scratch_folder();
  const std::string recipe = tiny_recipe(folder);
  const std::vector<std::string> images{"data.train.source.values=image", "data.val.source.values=image", "--format", "json", "-q"};
  const auto train = [&](std::vector<std::string> words) {
    words.insert(words.end(), images.begin(), images.end());
    return run("galley-train", words);
  };
  const auto metadata = [](const std::string& path) {
    const std::string bytes = read_text(path);
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    return Json::parse(bytes.substr(8, length))["__metadata__"];
  };
  ASSERT_EQ(train({recipe, "-o", folder + "/parent", "data.val.pipeline=[{type: normalize, mean: 0.25, std: 0.5}]"}).code, 0);
  const Json parent = metadata(folder + "/parent/weights.safetensors");
  expect_all(parent["galley.pipeline"], {"normalize", "0.25", "0.5"});
  EXPECT_EQ(parent["galley.recipe"], read_text(folder + "/parent/recipe.yaml"));
  EXPECT_FALSE(parent.contains("galley.parents"));
  // from_weights stands for that pipeline: equal metrics as with the explicit pipeline, other metrics without it.
  const std::string weights = "weights=" + folder + "/parent";
  const auto metrics = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{recipe, weights};
    words.insert(words.end(), more.begin(), more.end());
    words.insert(words.end(), images.begin(), images.end());
    const Outcome outcome = run("galley-evaluate", words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? Json::parse(outcome.out)["metrics"] : Json();
  };
  const Json with_it = metrics({"data.val.pipeline=from_weights"});
  EXPECT_EQ(with_it, Json::parse(read_text(folder + "/parent/result.json"))["metrics"]);
  EXPECT_NE(with_it["loss"], metrics({"data.val.pipeline=[]"})["loss"]);
  // Training from these weights reports it and keeps the pipeline, also after an interruption.
  ASSERT_EQ(train({recipe, "-o", folder + "/child", weights, "data.val.pipeline=from_weights"}).code, 0);
  const Json child = metadata(folder + "/child/weights.safetensors");
  EXPECT_EQ(child["galley.pipeline"], parent["galley.pipeline"]);
  const Json parents = Json::parse(child["galley.parents"].get<std::string>());
  ASSERT_EQ(parents.size(), 1u);
  EXPECT_EQ(parents[0]["file"], folder + "/parent/weights.safetensors");
  EXPECT_EQ(parents[0]["digest"].get<std::string>().size(), 32u);
  ASSERT_EQ(train({recipe, "-o", folder + "/child", weights, "data.val.pipeline=from_weights", "duration=8 steps"}).code, 0);
  EXPECT_EQ(metadata(folder + "/child/weights.safetensors")["galley.parents"], child["galley.parents"]);
}

TEST(Loss, ThatBecomesNaNNamesStepLayerAndTensorAndIsExit5) {
  const std::string folder = scratch_folder();
  const Outcome outcome = run("galley-train", {tiny_recipe(folder), "-o", folder + "/run", "optimizer.lr=1e30", "--format", "json", "-q"});
  EXPECT_EQ(outcome.code, 5) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  // The last line, since a warning may precede it.
  const size_t begin = outcome.err.rfind("{\"error\"");
  ASSERT_NE(begin, std::string::npos) << outcome.err;
  const Json error = Json::parse(outcome.err.substr(begin))["error"];
  EXPECT_EQ(error["code"], 5);
  expect_all(error["message"], {"the loss is nan at step 2", "first in fc", "output y of linear has", "infinite of 32 values"});
  expect_all(error["suggestion"], {"train.optimizer.lr", "train.clip"});
  const Json result = Json::parse(read_text(folder + "/run/result.json"));
  EXPECT_EQ(result["stopped"], "nan");
  EXPECT_EQ(result["steps"], 1);
}

/// A regression on a table without shuffling, whose row `bad` squares to infinity. A step takes 8 rows.
std::string table_recipe(const std::string& folder, int bad, const std::string& batch) {
  std::string table;
  for (int row = 0; row < 64; ++row) {
    for (int column = 0; column < 5; ++column)
      table += (column > 0 ? "," : "") + (row == bad ? "3e38" : std::to_string((row * 7 + column * 3) % 11 * 0.1));
    table += "\n";
  }
  write_text(folder + "/table.csv", table);
  write_text(folder + "/table.yaml",
             "recipe: 1\nname: table\nthreads: 1\n"
             "model: {type: layers, input: {shape: [4]}, layers: [{name: fc, type: linear, out_features: 1}]}\n"
             "loss: {type: mse}\n"
             "data: {train: {source: {type: csv, path: " +
                 folder +
                 "/table.csv, columns: {target: [0], dense: [1..4]}}, shuffle: false}}\n"
                 "train: {duration: 6 steps, batch: " +
                 batch +
                 ", optimizer: {type: sgd, lr: 0.05, momentum: 0.9}}\n"
                 "checkpoint: {every: 2 steps}\nlog: {every: 1 step, tensorboard: false}\n");
  return folder + "/table.yaml";
}

/// A step, and the row of its batch that is bad.
struct BadStep {
  std::string name, batch;
  int step, row;
  std::vector<std::string> overrides;
};
class LossAtStep : public testing::TestWithParam<BadStep> {};
INSTANTIATE_TEST_SUITE_P(
    Steps, LossAtStep,
    testing::Values(BadStep{.name = "between", .batch = "8", .step = 5, .row = 3},
                    BadStep{.name = "first", .batch = "8", .step = 1, .row = 0}, BadStep{.name = "last", .batch = "8", .step = 6, .row = 7},
                    BadStep{.name = "first_micro_batch", .batch = "{global: 8, micro: 2}", .step = 5, .row = 1},
                    BadStep{.name = "last_micro_batch", .batch = "{global: 8, micro: 2}", .step = 5, .row = 6},
                    BadStep{.name = "on_sim", .batch = "{global: 8, micro: 2}", .step = 5, .row = 3, .overrides = {"device=sim"}}),
    [](const auto& info) { return info.param.name; });

TEST_P(LossAtStep, LeavesTheRunAsBeforeItAlsoAfterAResume) {
  const std::string folder = scratch_folder();
  const BadStep& bad = GetParam();
  const std::string recipe = table_recipe(folder, 8 * (bad.step - 1) + bad.row, bad.batch);
  const auto train = [&](const std::string& to, std::vector<std::string> more) {
    std::vector<std::string> words{recipe, "-o", folder + to, "-q"};
    words.insert(words.end(), bad.overrides.begin(), bad.overrides.end());
    words.insert(words.end(), more.begin(), more.end());
    return run("galley-train", words);
  };
  std::string digest;  // of a run that ends before this step
  if (bad.step > 1) {
    ASSERT_EQ(train("/before", {"duration=" + std::to_string(bad.step - 1) + " steps"}).code, 0);
    digest = Json::parse(read_text(folder + "/before/result.json"))["digest"];
  }
  for (const char* how : {"from the begin", "resumed from the last checkpoint"}) {
    const Outcome outcome = train("/run", {});
    EXPECT_EQ(outcome.code, 5) << how << outcome.err;
    expect_all(outcome.err, {"the loss is inf at step " + std::to_string(bad.step), "; first in ", "this step changed no parameters"});
    const Json result = Json::parse(read_text(folder + "/run/result.json"));
    EXPECT_EQ(result["stopped"], "nan") << how;
    EXPECT_EQ(result["steps"], bad.step - 1) << how;
    if (bad.step > 1) {
      EXPECT_EQ(result["digest"], digest) << how;
      const std::string rows = read_text(folder + "/run/metrics.jsonl");
      EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), bad.step - 1) << how;
    }
    EXPECT_FALSE(std::filesystem::exists(folder + "/run/weights.safetensors")) << how;
  }
}

TEST(Loss, OfASampleThatIsNotFiniteNamesTheSampleAndLogsTheLastStep) {
  const std::string folder = scratch_folder();
  std::vector<float> values(48 * 5, 0.25f);  // 48 rows of 4 inputs, then their targets
  values[34 * 4 + 2] = std::nanf("");        // of step 5, the first of its two parts
  write_text(folder + "/data.safetensors",
             safetensors_of(R"({"input":{"dtype":"F32","shape":[48,4],"data_offsets":[0,768]},)"
                            R"("target":{"dtype":"F32","shape":[48,1],"data_offsets":[768,960]}})",
                            std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float))));
  const std::string recipe = table_recipe(folder, -1, "{global: 8, micro: 4}");
  const std::vector<std::string> command{
      recipe, "-o", folder + "/run", "log.every=3 steps", "-q", "data.train.source={type: tensors, path: " + folder + "/data.safetensors}"};
  const Outcome outcome = run("galley-train", command);
  EXPECT_EQ(outcome.code, 5) << outcome.err;
  expect_all(outcome.err,
             {"the loss is nan at step 5", "the field `input` of", "data.safetensors[34] contains nan", "correct or remove such samples"});
  // Steps 1 and 3 by the recipe, and step 4 as the last one.
  std::istringstream rows(read_text(folder + "/run/metrics.jsonl"));
  std::vector<int> steps;
  for (std::string row; std::getline(rows, row);) steps.push_back(Json::parse(row)["step"]);
  EXPECT_EQ(steps, (std::vector<int>{1, 3, 4}));
}

TEST(Loss, OfLabelsThatAreAllIgnoredNamesIgnoreIndex) {
  const std::string folder = scratch_folder();
  // One label per position, all of them ignored.
  std::string values(2 * 4 * 4, '\0');
  for (int i = 0; i < 2 * 4; ++i) {
    const int64_t ignored = -100;
    values.append(reinterpret_cast<const char*>(&ignored), sizeof ignored);
  }
  write_text(folder + "/data.safetensors", safetensors_of(R"({"input":{"dtype":"F32","shape":[2,1,2,2],"data_offsets":[0,32]},)"
                                                          R"("label":{"dtype":"I64","shape":[2,2,2],"data_offsets":[32,96]}})",
                                                          values));
  write_text(folder + "/ignored.yaml",
             "recipe: 1\nname: ignored\nmodel: {type: layers, input: {shape: [1, 2, 2]}, layers: [{type: conv2d, out_channels: 3, "
             "kernel_size: 1}]}\n"
             "loss: cross_entropy\ndata: {train: {source: {type: tensors, path: " +
                 folder + "/data.safetensors}}}\ntrain: {duration: 2 steps, batch: 2, optimizer: {type: sgd, lr: 0.1}}\n");
  const Outcome outcome = run("galley-train", {folder + "/ignored.yaml", "-o", folder + "/run", "-q"});
  EXPECT_EQ(outcome.code, 5) << outcome.err;
  expect_all(outcome.err, {"all labels of the batch are -100", "loss.ignore_index"});
}

// 8 x 8 gray images, written by Pillow.
const char kJpeg[] =
    "ffd8ffe000104a46494600010100000100010000ffdb0043000d090a0b0a080d0b0a0b0e0e0d0f13201513121213271c1e17202e2931302e292d2c333a4a3e33364637"
    "2c2d405741464c4e525352323e5a615a"
    "50604a51524fffc0000b080008000801011100ffc40014000100000000000000000000000000000001ffc4001910000105000000000000000000000000000004062133"
    "51ffda0008010100003f001888ab8c3fffd9";
const char kPng[] =
    "89504e470d0a1a0a0000000d4948445200000008000000080800000000e164e1570000001249444154789c6364908500267628208f010067e50263a46cb04b00000000"
    "49454e44ae426082";

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

/// Twelve images of two classes; `damaged` of them without their last four bytes.
std::string image_recipe(const std::string& folder, const std::vector<std::string>& damaged) {
  for (const char* split : {"train", "val"}) {
    for (const char* category : {"cat", "dog"}) {
      std::filesystem::create_directories(folder + "/" + split + "/" + category);
      for (int i = 0; i < 3; ++i) {
        const std::string stem = folder + "/" + split + "/" + category + "/" + std::to_string(i);
        write_text(stem + ".jpg", from_hex(kJpeg));
        write_text(stem + ".png", from_hex(kPng));
      }
    }
  }
  for (const std::string& name : damaged) {
    const std::string bytes = read_text(folder + "/" + name);
    write_text(folder + "/" + name, bytes.substr(0, bytes.size() - 4));
  }
  const std::string path = folder + "/images.yaml";
  write_text(path, "recipe: 1\nthreads: 1\nmodel: {type: mlp, num_classes: 2, hidden: []}\ndata:\n  root: " + folder +
                       "\n"
                       "  train: {source: {type: image_folder, path: train, mode: gray}, pipeline: [{type: resize, size: 28}]}\n"
                       "  val: {source: {type: image_folder, path: val, mode: gray}, pipeline: [{type: resize, size: 28}], batch: 4}\n"
                       "train: {duration: 2 epochs, batch: 4, optimizer: {type: sgd, lr: 0.01}}\n"
                       "log: {tensorboard: false}\n");
  return path;
}

TEST(Images, ThatAreTruncatedEndTheRunWithExit4) {
  for (const auto& [name, message] :
       {std::pair<std::string, std::string>{"train/cat/1.jpg", "Premature end of JPEG file"}, {"train/dog/2.png", "without end chunk"}}) {
    const std::string folder = scratch_folder();
    const Outcome outcome = run("galley-train", {image_recipe(folder, {name}), "-o", folder + "/run", "-q"});
    EXPECT_EQ(outcome.code, 4) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    expect_all(outcome.err, {folder + "/" + name, message});
  }
}

TEST(Images, ThatCannotBeReadLoseNoFinishedStep) {
  const std::string intact = scratch_folder();
  const Outcome whole = run("galley-train", {image_recipe(intact, {}), "-o", intact + "/run", "--format", "json"});
  ASSERT_EQ(whole.code, 0) << whole.err;
  for (const std::string name : {"val/cat/1.jpg", "train/dog/2.png"}) {
    const std::string folder = scratch_folder();
    const std::string recipe = image_recipe(folder, {name});
    const std::vector<std::string> command{recipe, "-o", folder + "/run", "--format", "json"};
    const Outcome stopped = run("galley-train", command);
    EXPECT_EQ(stopped.code, 4) << stopped.err;
    write_text(folder + "/" + name, from_hex(name.ends_with("jpg") ? kJpeg : kPng));
    const Outcome continued = run("galley-train", command);
    ASSERT_EQ(continued.code, 0) << continued.err;
    if (name.starts_with("val")) {
      expect_all(continued.err, {"\"step\":4,"});
      EXPECT_EQ(continued.err.find("\"step\":3,"), std::string::npos) << "three steps were finished: " << continued.err;
    }
    const Json result = Json::parse(continued.out), expected = Json::parse(whole.out);
    EXPECT_EQ(result["digest"], expected["digest"]) << name;
    EXPECT_EQ(result["metrics"], expected["metrics"]) << name;
  }
}

TEST(Images, ThatAreTruncatedAreSkippedAndCountedExactly) {
  const std::string folder = scratch_folder();
  const std::string recipe = image_recipe(folder, {"train/cat/1.jpg", "train/dog/2.png", "val/cat/0.png"});
  const std::vector<std::string> skip{"data.train.on_error=skip", "data.val.on_error=skip", "--format", "json"};
  std::vector<std::string> train{recipe, "-o", folder + "/run"}, evaluate{folder + "/run"};
  train.insert(train.end(), skip.begin(), skip.end());
  evaluate.insert(evaluate.end(), skip.begin(), skip.end());
  const Outcome trained = run("galley-train", train);
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(Json::parse(trained.out)["skipped"], 4);  // two in each of two epochs
  EXPECT_EQ(Json::parse(trained.out)["samples"], 24);
  expect_all(trained.err, {"skipped: ", "train/cat/1.jpg", "Premature end of JPEG file"});
  const Outcome evaluated = run("galley-evaluate", evaluate);
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_EQ(Json::parse(evaluated.out)["skipped"], 1);
  EXPECT_EQ(Json::parse(evaluated.out)["samples"], 12);
  expect_all(evaluated.err, {"1 damaged sample"});
  // The count is the same with and without an interruption.
  std::vector<std::string> first = train, second = train;
  first[2] = second[2] = folder + "/halves";
  first.push_back("duration=1 epoch");
  ASSERT_EQ(run("galley-train", first).code, 0);
  const Outcome continued = run("galley-train", second);
  ASSERT_EQ(continued.code, 0) << continued.err;
  EXPECT_EQ(Json::parse(continued.out)["skipped"], 4);
}

TEST(Images, ThatAreIrregularAreReadAsIfTheyWereCorrectAndCounted) {
  const std::string folder = scratch_folder();
  const std::string recipe = image_recipe(folder, {});
  const auto command = [&](const char* name) { return std::vector<std::string>{recipe, "-o", folder + "/" + name, "--format", "json"}; };
  const Outcome intact = run("galley-train", command("intact"));
  ASSERT_EQ(intact.code, 0) << intact.err;
  EXPECT_EQ(Json::parse(intact.out)["irregular"], 0);
  const std::vector<std::string> predict{folder + "/intact", folder + "/val/cat", folder + "/val/dog", "--format", "json"};
  const std::string jpeg = from_hex(kJpeg), end = jpeg.substr(jpeg.size() - 2);
  const Outcome before = run("galley-predict", predict);
  ASSERT_EQ(before.code, 0) << before.err;
  write_text(folder + "/train/cat/1.jpg", jpeg.substr(0, jpeg.size() - 2));
  write_text(folder + "/train/dog/2.jpg", jpeg.substr(0, jpeg.size() - 2) + std::string(20, 'x') + end);
  write_text(folder + "/val/dog/0.jpg", jpeg.substr(0, jpeg.size() - 2));
  const Outcome trained = run("galley-train", command("run"));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(Json::parse(trained.out)["irregular"], 4);  // two in each of two epochs
  EXPECT_EQ(Json::parse(trained.out)["skipped"], 0);
  EXPECT_EQ(tensor_bytes(folder + "/run/weights.safetensors"), tensor_bytes(folder + "/intact/weights.safetensors"));
  expect_all(trained.err, {"train/cat/1.jpg: JPEG deviates from the format but was read in full: no end marker",
                           "train/dog/2.jpg: JPEG deviates from the format but was read in full: extraneous bytes"});
  // Continued in the middle: the same count.
  std::vector<std::string> half = command("halves");
  half.push_back("duration=1 epoch");
  ASSERT_EQ(run("galley-train", half).code, 0);
  EXPECT_EQ(Json::parse(run("galley-train", command("halves")).out)["irregular"], 4);
  const Outcome evaluated = run("galley-evaluate", {folder + "/run", "--format", "json"});
  EXPECT_EQ(Json::parse(evaluated.out)["irregular"], 1) << evaluated.err;
  expect_all(evaluated.err, {"1 samples of irregular files were read in full"});
  const Outcome after = run("galley-predict", predict);
  ASSERT_EQ(after.code, 0) << after.err;
  std::istringstream lines(after.out), lines_before(before.out);
  int notes = 0;
  for (std::string line, line_before; std::getline(lines, line) && std::getline(lines_before, line_before);) {
    const Json json = Json::parse(line);
    EXPECT_EQ(json["top"], Json::parse(line_before)["top"]);
    if (!json.contains("note")) continue;
    ++notes;
    EXPECT_EQ(json["file"], folder + "/val/dog/0.jpg");
    EXPECT_EQ(json["note"], folder + "/val/dog/0.jpg: JPEG deviates from the format but was read in full: no end marker");
  }
  EXPECT_EQ(notes, 1);
}

TEST(Images, OfNoKindAndFoldersWithoutAnyAreExit4) {
  const std::string folder = scratch_folder();
  const std::string recipe = image_recipe(folder, {});
  write_text(folder + "/train/cat/1.jpg", "GIF89a no picture at all");
  const Outcome gif = run("galley-train", {recipe, "-o", folder + "/run", "-q"});
  EXPECT_EQ(gif.code, 4);
  expect_all(gif.err, {"train/cat/1.jpg", "GIF"});
  for (const char* category : {"/train/cat", "/train/dog"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder + category)) std::filesystem::remove(entry);
  }
  const Outcome empty = run("galley-train", {recipe, "-o", folder + "/run", "-q"});
  EXPECT_EQ(empty.code, 5);
  expect_all(empty.err, {folder + "/train", "no samples"});
  std::filesystem::remove_all(folder + "/train");
  const Outcome missing = run("galley-train", {recipe, "-o", folder + "/run", "-q"});
  EXPECT_EQ(missing.code, 4);
  expect_all(missing.err, {folder + "/train"});
}

TEST(Labels, ThatTheModelDoesNotHaveAreExit4BeforeTheFirstStep) {
  const std::string folder = scratch_folder();
  std::string values(3 * 784 * 4, '\0');
  for (const int64_t label : {0, 3, 9}) values.append(reinterpret_cast<const char*>(&label), sizeof label);
  write_text(folder + "/samples.safetensors", safetensors_of(R"({"input":{"dtype":"F32","shape":[3,1,28,28],"data_offsets":[0,9408]},)"
                                                             R"("label":{"dtype":"I64","shape":[3],"data_offsets":[9408,9432]}})",
                                                             values));
  const Outcome outcome = run("galley-train", {tiny_recipe(folder), "-o", folder + "/run",
                                               "data.train.source={type: tensors, path: " + folder + "/samples.safetensors}", "-q"});
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  expect_all(outcome.err, {"samples.safetensors[2]", "label 9", "4 classes"});
  EXPECT_FALSE(std::filesystem::exists(folder + "/run"));
}

TEST(Samples, OfWhichThereAreNoneAreAnErrorThatSaysSo) {
  const std::string folder = scratch_folder();
  const std::string recipe = tiny_recipe(folder);
  const Outcome slice = run("galley-train", {recipe, "-o", folder + "/run", "data.train.slice=0%..0%", "-q"});
  EXPECT_TRUE(slice.code == 3 || slice.code == 5) << slice.code << slice.err;
  expect_all(slice.err, {"slice"});
  write_text(
      folder + "/none.safetensors",
      safetensors_of(
          R"({"input":{"dtype":"F32","shape":[0,1,28,28],"data_offsets":[0,0]},"label":{"dtype":"I64","shape":[0],"data_offsets":[0,0]}})",
          ""));
  const Outcome tensors = run(
      "galley-train", {recipe, "-o", folder + "/run", "data.train.source={type: tensors, path: " + folder + "/none.safetensors}", "-q"});
  EXPECT_EQ(tensors.code, 5) << tensors.err;
  expect_all(tensors.err, {"no samples", "none.safetensors"});
}

}  // namespace
}  // namespace galley::testing_cli
