// Mistakes in recipes and command lines: exit code, place and suggestion.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

/// The parts that a message must contain.
void expect_all(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in:\n" << text;
}

struct BadRecipe {
  std::string name;
  std::string text;                // appended to the tiny recipe
  std::vector<std::string> parts;  // of the message
};
class RecipeMistake : public testing::TestWithParam<BadRecipe> {};

TEST_P(RecipeMistake, IsOneErrorWithPlaceAndRemedy) {
  const std::string folder = scratch_folder();
  const std::string recipe = tiny_recipe(folder, GetParam().text);
  const Outcome outcome = run("galley-train", {recipe, "-o", folder + "/run"});
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  expect_all(outcome.err, GetParam().parts);
  EXPECT_EQ(shell("ls -d " + folder + "/run").code, 2) << "a refused recipe left a RUN folder";
  // galley-recipes reports the same.
  const Outcome checked = run("galley-recipes", {"validate", recipe, "--format", "json"});
  EXPECT_EQ(checked.code, 3);
  const Json report = Json::parse(checked.out);
  EXPECT_FALSE(report["valid"].get<bool>());
  EXPECT_GE(report["errors"].size(), 1u);
}

/// Ten aliases of ten aliases of ...: 10^9 values in a few lines.
std::string alias_bomb() {
  std::string text = "x-0: &a0 [1,1,1,1,1,1,1,1,1,1]\n";
  for (int i = 1; i < 9; ++i) {
    text += "x-" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int k = 0; k < 10; ++k) text += (k > 0 ? "," : "") + ("*a" + std::to_string(i - 1));
    text += "]\n";
  }
  return text;
}

// The tiny recipe has 14 lines, so appended text starts on line 15.
INSTANTIATE_TEST_SUITE_P(
    All, RecipeMistake,
    testing::Values(
        BadRecipe{"UnknownKey", "colour: red\n", {"tiny.yaml:14:1", "unknown key 'colour'", "^~~~~~"}},
        BadRecipe{"MisspeltKey", "metrcs: [top1]\n", {"tiny.yaml:14:1", "did you mean 'metrics'?"}},
        BadRecipe{"ForeignKey", "epochs: 3\n", {"tiny.yaml:14:1", "did you mean 'train.duration'?"}},
        BadRecipe{"DuplicateKey", "seed: 1\nseed: 2\n", {"tiny.yaml:15:1", "duplicate key 'seed'", "line 14", "remove one"}},
        BadRecipe{"WrongType", "seed: often\n", {"tiny.yaml:14:7", "'seed' must be a whole number", "often"}},
        BadRecipe{"WrongRange", "seed: -3\n", {"tiny.yaml:14:7", "'seed' is -3", "at least 0"}},
        BadRecipe{"WrongChoice", "memory_format: channel_last\n", {"tiny.yaml:14:16", "did you mean 'channels_last'?"}},
        BadRecipe{"UnknownModelKey", "evaluate: {data: vall}\n", {"evaluate", "'vall'", "did you mean 'val'?"}},
        BadRecipe{"Tab", "\tseed: 1\n", {"tiny.yaml:14:1", "a tab", "spaces"}},
        BadRecipe{"Tag", "seed: !!int 3\n", {"tiny.yaml:14:7", "a tag", "remove the tag"}},
        BadRecipe{"SecondDocument", "---\nseed: 1\n", {"second document"}},
        BadRecipe{"AliasCycle", "x-a: &a [*a]\n", {"tiny.yaml:14", "cycle"}},
        BadRecipe{"AliasBomb", alias_bomb(), {"more than 50000 values, aliases expanded"}},
        BadRecipe{"NoSuchInclude",
                  "include: [data/cifra10]\n",
                  {"tiny.yaml:14:11", "there is no built-in recipe 'data/cifra10'", "did you mean 'data/cifar10'?"}},
        BadRecipe{"NoSuchIncludedFile", "include: ./mine.yaml\n", {"tiny.yaml:14:10", "does not exist", "relative to the including file"}},
        BadRecipe{"IncludeOfItself", "include: ./tiny.yaml\n", {"tiny.yaml:14:10", "includes form a cycle", "remove one"}},
        BadRecipe{"UnknownVariable", "about: \"${vars.nam}\"\nvars: {name: x}\n", {"tiny.yaml:14:8", "vars.nam", "did you mean"}},
        BadRecipe{"WrongRangeInAMap",
                  "x-log: 1\nevaluate: {data: val}\npredict: {top: 0}\n",
                  {"tiny.yaml:16:16", "'predict.top' is 0", "1 to 100000"}}),
    [](const auto& info) { return info.param.name; });

/// Options that only layers, losses, sources and transforms can check, when they are built.
struct LateMistake {
  std::string name;
  std::string model, data;         // the recipe's sections, from line 2 on
  std::string loss, train;         // sections of the recipe, in one line each
  std::vector<std::string> parts;  // of the message
  bool without_data = true;        // galley-recipes validate reports it too
};
class Late : public testing::TestWithParam<LateMistake> {};

TEST_P(Late, HasAPlaceToo) {
  const std::string folder = scratch_folder();
  const LateMistake& mistake = GetParam();
  const std::string recipe = folder + "/late.yaml";
  write_text(recipe, "recipe: 1\n" + mistake.model + mistake.data + mistake.loss + mistake.train);
  const Outcome outcome = run("galley-train", {recipe, "-o", folder + "/run"});
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  expect_all(outcome.err, mistake.parts);
  const Outcome checked = run("galley-recipes", {"validate", recipe, "--format", "json"});
  EXPECT_EQ(checked.code, mistake.without_data ? 3 : 0) << checked.out << checked.err;
  if (!mistake.without_data) return;
  const Json error = Json::parse(checked.out)["errors"][0];
  EXPECT_GT(error["line"].get<int>(), 0) << error.dump();
  EXPECT_NE(error["key"], "");
}

const std::string kOneLayer = "model: {type: mlp, num_classes: 4, hidden: []}\n";
const std::string kSynthetic = "data: {train: {source: {type: synthetic, samples: 24}}}\n";
const std::string kCrossEntropy = "loss: cross_entropy\n";
const std::string kSgd = "train: {duration: 1 step, batch: 8, optimizer: {type: sgd, lr: 0.1}}\n";

INSTANTIATE_TEST_SUITE_P(
    All, Late,
    testing::Values(
        LateMistake{
            "Layer",
            "model:\n  type: layers\n  input: {shape: [4]}\n  layers:\n    - {type: linear, out_features: 4}\n    - {type: softplus, beta: "
            "-1}\n",
            kSynthetic,
            kCrossEntropy,
            kSgd,
            {"late.yaml:7:7: error: ", "[softplus] beta is -1", "at softplus"}},
        LateMistake{
            "LayerOfAGroup",
            "model:\n  type: layers\n  input: {shape: [4]}\n  layers:\n    - name: block\n      repeat: 2\n      layers:\n        - {type: "
            "relu}\n        - {type: celu, alpha: 0}\n    - {type: linear, out_features: 4}\n",
            kSynthetic,
            kCrossEntropy,
            kSgd,
            {"late.yaml:10:11: error: ", "[celu] alpha is 0", "at block.0.celu"}},
        LateMistake{"ModelOfTheZoo",
                    "model: {type: vit_b_16, image_size: 30, patch_size: 16}\n",
                    kSynthetic,
                    "",
                    kSgd,
                    {"late.yaml:2:8: error: ", "image_size=30"}},
        LateMistake{"Loss",
                    kOneLayer,
                    kSynthetic,
                    "loss: {type: cross_entropy, weight: [1, 2]}\n",
                    kSgd,
                    {"late.yaml:4:7: error: ", "[cross_entropy] weight has 2"}},
        LateMistake{"Optimizer",
                    kOneLayer,
                    kSynthetic,
                    kCrossEntropy,
                    "train:\n  duration: 1 step\n  batch: 8\n  optimizer: {type: adam, lr: 0.1, betas: [0.9]}\n",
                    {"late.yaml:8:14: error: ", "betas needs two numbers, but has 1"},
                    false},
        LateMistake{"Transform",
                    kOneLayer,
                    "data:\n  train:\n    source: {type: synthetic, samples: 24}\n    pipeline:\n      - {type: pad, padding: [1, 2, 3]}\n",
                    "",
                    kSgd,
                    {"late.yaml:7:9: error: ", "[pad] `padding` has 3 values"}},
        LateMistake{"BatchTransform",
                    kOneLayer,
                    "data:\n  train:\n    source: {type: synthetic, samples: 24}\n    batch_transforms:\n      - {type: mixup, alpha: 0}\n",
                    "",
                    kSgd,
                    {"late.yaml:7:9: error: ", "[mixup] `alpha` is 0"}},
        LateMistake{"Source",
                    kOneLayer,
                    "data:\n  train:\n    source: {type: synthetic, samples: 24, shape: [1, 28, 28], values: integer}\n",
                    "",
                    kSgd,
                    {"late.yaml:5:13: error: ", "[synthetic] values: integer needs `high`"},
                    false}),
    [](const auto& info) { return info.param.name; });

TEST(RecipeMistakes, OfASourceOfMasksHaveAPlace) {
  const std::string folder = scratch_folder();
  write_text(
      folder + "/masks.yaml",
      "recipe: 1\nmodel: {type: layers, input: {shape: [3, 8, 8]}, layers: [{type: conv2d, out_channels: 2, kernel_size: 1}]}\nloss: "
      "cross_entropy\ndata:\n  train:\n    source: {type: mask_folder, images: a, masks: b, num_classes: 2, classes: [sky]}\n" +
          kSgd);
  const Outcome outcome = run("galley-train", {folder + "/masks.yaml", "-o", folder + "/run"});
  EXPECT_EQ(outcome.code, 3);
  expect_all(outcome.err, {"masks.yaml:6:13: error: ", "[mask_folder] `classes` has 1"});
}

TEST(RecipeMistakes, ShortNamesMeanTheNamesThatBeginSo) {
  const std::string folder = scratch_folder();
  const Outcome outcome = run("galley-train", {tiny_recipe(folder, "loss: bce\n"), "-o", folder + "/run"});
  EXPECT_EQ(outcome.code, 3);
  expect_all(outcome.err, {"tiny.yaml:14:7", "did you mean 'bce_with_logits'?"});
}

TEST(DumpedRecipes, SayNothingOfVariablesThereAreNot) {
  const std::string folder = scratch_folder();
  const std::string recipe = tiny_recipe(folder);
  const Outcome dumped = run("galley-train", {recipe, "--dump-recipe=full"});
  ASSERT_EQ(dumped.code, 0);
  EXPECT_EQ(dumped.out.find("vars"), std::string::npos);
}

TEST(RecipeMistakes, OfOneFileAreReportedTogether) {
  const std::string folder = scratch_folder();
  const std::string recipe = tiny_recipe(folder, "colour: red\nseed: often\nevaluate: {dat: val}\n");
  const Outcome outcome = run("galley-train", {recipe, "-o", folder + "/run", "--format", "json"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.out, "");
  std::istringstream lines(outcome.err);
  std::vector<std::pair<int, std::string>> found;
  for (std::string line; std::getline(lines, line);) {
    const Json error = Json::parse(line).at("error");
    EXPECT_EQ(error["code"], 3);
    EXPECT_EQ(error["file"], recipe);
    found.emplace_back(error["line"], error["key"]);
  }
  EXPECT_EQ(found, (std::vector<std::pair<int, std::string>>{{14, "colour"}, {15, "seed"}, {16, "evaluate.dat"}}));
}

TEST(RecipeMistakes, IncludesThatLeadInACircleNameAllFiles) {
  const std::string folder = scratch_folder();
  write_text(folder + "/a.yaml", "include: ./b.yaml\n");
  write_text(folder + "/b.yaml", "include: ./c.yaml\n");
  write_text(folder + "/c.yaml", "include: ./a.yaml\n");
  const Outcome outcome = run("galley-train", {folder + "/a.yaml"});
  EXPECT_EQ(outcome.code, 3);
  expect_all(outcome.err, {"c.yaml:1:10", "includes form a cycle", "/a.yaml -> ", "/b.yaml -> ", "/c.yaml -> "});
}

struct BadLine {
  std::string name;
  std::vector<std::string> arguments;
  int code;
  std::vector<std::string> parts;
};
class CommandLine : public testing::TestWithParam<BadLine> {};

TEST_P(CommandLine, IsRefusedWithARemedy) {
  const std::string folder = scratch_folder();
  std::vector<std::string> arguments{tiny_recipe(folder), "-o", folder + "/run", "-q"};
  arguments.insert(arguments.end(), GetParam().arguments.begin(), GetParam().arguments.end());
  const Outcome outcome = run("galley-train", arguments);
  EXPECT_EQ(outcome.code, GetParam().code) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  expect_all(outcome.err, GetParam().parts);
  EXPECT_EQ(shell("ls -d " + folder + "/run").code, 2) << "a refused command line left a RUN folder";
}

INSTANTIATE_TEST_SUITE_P(
    All, CommandLine,
    testing::Values(
        BadLine{"OverrideOfUnknownKey",
                {"optimizer.momentun=0.5"},
                3,
                {"command line:1:1", "train.optimizer.momentun", "did you mean 'momentum'?"}},
        // The key remains when an override changes only the type.
        BadLine{"TypeWithoutItsKeys",
                {"optimizer.type=adamw"},
                3,
                {"tiny.yaml:11:36", "unknown key 'train.optimizer.momentum' (type adamw)", "'momentum' is a key of",
                 "--unset train.optimizer.momentum"}},
        BadLine{"UnsetOfUnknownKey", {"--unset", "train.clipp"}, 3, {"unknown key 'train.clipp'"}},
        BadLine{"DurationWithoutUnit", {"duration=10"}, 3, {"command line:1:10", "train.duration", "unit"}},
        BadLine{"NoSuchItem", {"data.train.pipeline.resize.size=3"}, 3, {"data.train.pipeline", "resize"}},
        BadLine{"TwoRecipes", {"other.yaml"}, 2, {"two recipes were given", "key=value"}},
        BadLine{"BadFormat", {"--format", "xml"}, 2, {"--format xml is not supported; it must be one of", "json"}},
        BadLine{"TimeInTheSchedule",
                {"schedule=[{type: cosine, duration: 10min}]"},
                3,
                {"train.schedule", "10min", "steps, epochs, samples or percent"}},
        BadLine{
            "TimeBetweenCheckpoints", {"checkpoint.every=10min"}, 3, {"checkpoint.every", "10min", "steps, epochs, samples or percent"}},
        BadLine{"StepsInARunThatEndsByTime",
                {"duration=2s", "schedule=[{type: linear, from: 0x, duration: 2 steps}, {type: cosine}]"},
                3,
                {"train.schedule", "'2 steps'", "ends by time", "percent"}},
        BadLine{"PercentOfARunThatEndsByTime", {"duration=2s", "log.every=10%"}, 3, {"log.every", "'10%'", "train.duration in steps"}},
        BadLine{"PipelineFromNoWeights",
                {"data.val.pipeline=from_weights"},
                3,
                {"data.val.pipeline", "the recipe has no weights", "weights=FILE"}},
        BadLine{"NoSuchField",
                {"data.train.pipeline=[{type: resize, size: 3, field: mask}]"},
                3,
                {"resize", "no field 'mask'", "input, label"}},
        BadLine{"RecomputeOfNoModule", {"recompute={match: [fc9]}"}, 3, {"train.recompute", "fc9"}},
        BadLine{"MissingWeights", {"weights=nowhere.safetensors"}, 4, {"cannot read", "nowhere.safetensors"}},
        BadLine{"ZeroSamples", {"data.train.source.samples=0"}, 3, {"'data.train.source.samples' is 0", "at least 1"}},
        BadLine{"BatchLargerThanTheData", {"batch=32", "data.train.last_batch=drop"}, 3, {"32", "24", "last_batch", "smaller batch"}}),
    [](const auto& info) { return info.param.name; });

TEST(RecipeMistakes, MissingRecipesNameNearOnes) {
  const Outcome built_in = run("galley-train", {"fashion_mnist_cn"});
  EXPECT_EQ(built_in.code, 3);
  expect_all(built_in.err, {"there is no recipe 'fashion_mnist_cn'", "did you mean 'fashion_mnist_cnn'?"});
  const Outcome path = run("galley-train", {"./nowhere.yaml"});
  EXPECT_EQ(path.code, 3);
  expect_all(path.err, {"the recipe './nowhere.yaml' does not exist"});
  EXPECT_EQ(run("galley-train", {}).code, 2);
}

TEST(Train, ABatchLargerThanTheDataRunsOnIntoTheNextEpochs) {
  const std::string folder = scratch_folder();
  const Outcome outcome =
      run("galley-train", {tiny_recipe(folder), "-o", folder + "/run", "batch=60", "duration=2 steps", "--format", "json", "-q"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(Json::parse(outcome.out)["samples"], 120);
  EXPECT_EQ(Json::parse(outcome.out)["epochs"], 5.0);
}

TEST(Train, EndsByTimeWithAScheduleInPercent) {
  const std::string folder = scratch_folder();
  const Outcome outcome =
      run("galley-train", {tiny_recipe(folder), "-o", folder + "/run", "duration=1s", "checkpoint=null",
                           "schedule=[{type: linear, from: 0x, to: 1x, duration: 50%}, {type: linear, to: 0x}]", "--format", "json", "-q"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json result = Json::parse(outcome.out);
  EXPECT_EQ(result["stopped"], "done");
  EXPECT_GE(result["wall_s"].get<double>(), 1.0);
  // The learning rate depends on the elapsed share of the time: up, then down, never above that of the optimizer.
  std::istringstream lines(read_text(folder + "/run/metrics.jsonl"));
  std::vector<double> rates;
  for (std::string line; std::getline(lines, line);) {
    const Json row = Json::parse(line);
    if (row["kind"] == "train") rates.push_back(row["lr"]);
  }
  ASSERT_GE(rates.size(), 3u);
  EXPECT_EQ(rates.front(), 0);
  const size_t top = static_cast<size_t>(std::max_element(rates.begin(), rates.end()) - rates.begin());
  EXPECT_LE(rates[top], 0.05);
  EXPECT_TRUE(std::is_sorted(rates.begin(), rates.begin() + static_cast<long>(top)));
  EXPECT_TRUE(std::is_sorted(rates.begin() + static_cast<long>(top), rates.end(), std::greater<>()));
}

/// Runs a tool that must fail with this code, and expects these parts in its message.
void expect_refused(const std::string& tool, const std::vector<std::string>& words, int code, const std::vector<std::string>& parts) {
  const Outcome outcome = run(tool, words);
  EXPECT_EQ(outcome.code, code) << tool << ": " << outcome.err;
  expect_all(outcome.err, parts);
}

TEST(Messages, AMissingFolderIsCalledMissing) {
  const std::string folder = scratch_folder();
  expect_refused("galley-recipes", {"cp", "fashion_mnist_cnn", folder + "/copies/"}, 7,
                 {folder + "/copies/: it does not exist", "create the folder first"});
  expect_refused("galley-evaluate", {folder + "/runs/none"}, 3, {"the file or folder '" + folder + "/runs/none' does not exist"});
  expect_refused("galley-evaluate", {"runs/none"}, 3, {"the file or folder 'runs/none' does not exist"});
}

TEST(Messages, AFileOfWeightsIsNoRecipe) {
  const std::string folder = scratch_folder();
  ASSERT_EQ(run("galley-train", {tiny_recipe(folder), "-o", folder + "/run", "-q"}).code, 0);
  const std::string weights = folder + "/run/weights.safetensors";
  for (const std::string tool : {"evaluate", "predict"})
    expect_refused("galley-" + tool, {weights}, 3,
                   {"weights.safetensors is a file of weights", "galley-" + tool + " RUN weights=" + weights});
  write_text(folder + "/model.pth", "PK\x03\x04 and what follows");
  expect_refused("galley-evaluate", {folder + "/model.pth"}, 3, {"model.pth is a file of weights (.pth)", "weights=" + folder});
  write_text(folder + "/model.onnx", "\x08\x07\x12\x07pytorch and more");
  expect_refused("galley-evaluate", {folder + "/model.onnx"}, 3, {"model.onnx is an ONNX model", "{type: onnx, path: " + folder});
}

TEST(Messages, OverridesThatAreSuggestedWork) {
  const std::string folder = scratch_folder();
  ASSERT_EQ(run("galley-train", {tiny_recipe(folder), "data.val=null", "model={type: cifar_resnet20, num_classes: 4}", "duration=1 steps",
                                 "-o", folder + "/run", "-q"})
                .code,
            0);
  const std::string made = folder + "/run", image = std::string(GALLEY_SOURCE_DIR) + "/tests/fuzz/seeds/image/rgb.jpg";
  expect_refused("galley-evaluate", {made}, 3, {"no data.val", "evaluate.data=train"});
  EXPECT_EQ(run("galley-evaluate", {made, "evaluate.data=train", "-q"}).code, 0);
  expect_refused("galley-calibrate", {made, "-o", folder + "/s.calib"}, 3, {"data.calibration.pipeline=train"});
  EXPECT_EQ(run("galley-calibrate", {made, "-o", folder + "/s.calib", "data.calibration.pipeline=train", "-q"}).code, 0);
  const std::string pipeline = "data.val={from: train, pipeline: [{type: resize, size: [32, 32]}]}";
  expect_refused("galley-predict", {made, image}, 3, {"preprocessing is unknown", pipeline});
  EXPECT_EQ(run("galley-predict", {made, image, pipeline, "-q"}).code, 0);
  expect_refused("galley-predict", {made, folder + "/nothere.jpg"}, 4, {"nothere.jpg", "No such file"});
}

TEST(Messages, MissingDataNameTheVariableAndTheLine) {
  const std::string folder = scratch_folder();
  const Outcome missing = shell("TINYSHAKESPEARE= galley-train shakespeare_gpt data.root=" + folder + " -o " + folder + "/run");
  EXPECT_EQ(missing.code, 4);
  expect_all(missing.err, {"shakespeare_gpt.yaml:11:", "tinyshakespeare.txt: no such file or folder",
                           "set the environment variable TINYSHAKESPEARE", "data.root or the source's path"});
  const Outcome given = run("galley-train", {"shakespeare_gpt", "data.train.source.path=" + folder + "/a.txt", "-o", folder + "/run"});
  EXPECT_EQ(given.code, 4);
  EXPECT_EQ(given.err.find("TINYSHAKESPEARE"), std::string::npos) << given.err;  // it would change nothing
  expect_refused("galley-train", {"fashion_mnist_cnn", "data.root=" + folder, "-o", folder + "/run"}, 4,
                 {"no such file", "dataset-fashion-mnist"});
}

TEST(Messages, WordsThatNothingTakesGetTheNearVerb) {
  expect_refused("galley-recipes", {"list"}, 2, {"galley-recipes has no verb 'list'; did you mean 'ls'?"});
  expect_refused("galley-weights", {"exprot", "runs/first"}, 2, {"galley-weights has no verb 'exprot'; did you mean 'export'?"});
  expect_refused("galley-recipes", {"--format", "json", "zzz"}, 2, {"no verb 'zzz'; known: ", "validate"});
  const Outcome version = run("galley", {"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.out.substr(0, 7), "galley ");
  const std::string script = std::string(GALLEY_SOURCE_DIR) + "/scripts/test --quik";
  const Outcome refused = shell(script);
  EXPECT_EQ(refused.code, 2);
  expect_all(refused.err, {"unknown argument '--quik'", "--quick"});
}

TEST(Messages, NamesOfOtherFrameworksAreKnown) {
  const Outcome gpu = run("galley-train", {"fashion_mnist_cnn", "--dry-run", "device=gpu"});
  EXPECT_EQ(gpu.code, 3);
  expect_all(gpu.err, {"'gpu' is not a device", "this build has cpu, cuda, ref, sim"});
  EXPECT_EQ(gpu.err.find("did you mean"), std::string::npos) << gpu.err;
  expect_refused("galley-train", {"fashion_mnist_cnn", "--dry-run", "memory_format=nhwc"}, 3, {"did you mean 'channels_last'?"});
}

TEST(Messages, DamageIsSaidOnce) {
  const std::string folder = scratch_folder();
  write_text(folder + "/short.pth", "abcdef");
  expect_refused("galley-weights", {"show", folder + "/short.pth"}, 4,
                 {"short.pth: the file (6 bytes)", "a file of PyTorch", "fetch or save it again"});
  ASSERT_EQ(run("galley-train", {tiny_recipe(folder), "-o", folder + "/run", "-q"}).code, 0);
  const std::string good = read_text(folder + "/run/weights.safetensors");
  write_text(folder + "/cut.safetensors", good.substr(0, 100));
  const Outcome cut = run("galley-weights", {"show", folder + "/cut.safetensors"});
  EXPECT_EQ(cut.code, 4);
  expect_all(cut.err, {"the file is truncated; fetch or save it again"});
  EXPECT_EQ(cut.err.find("is damaged"), std::string::npos) << cut.err;
  write_text(folder + "/cut.calib", good.substr(0, 100));
  expect_refused("galley-quantize", {folder + "/run", "calibration=" + folder + "/cut.calib", "-o", folder + "/q.safetensors"}, 4,
                 {"the file is truncated; run galley-calibrate again"});
}

}  // namespace
}  // namespace galley::testing_cli
