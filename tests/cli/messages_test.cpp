// What the tools say: examples that work, errors with place and remedy, and output that says what it means.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

void expect_all(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in:\n" << text;
}
void expect_none(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_EQ(text.find(part), std::string::npos) << "'" << part << "' in:\n" << text;
}

/// Runs a tool that must fail with this code, and expects these parts in its message.
void expect_refused(const std::string& tool, const std::vector<std::string>& words, int code, const std::vector<std::string>& parts) {
  const Outcome outcome = run(tool, words);
  EXPECT_EQ(outcome.code, code) << tool << ": " << outcome.err;
  expect_all(outcome.err, parts);
}

/// A RUN folder of the tiny recipe.
std::string tiny_run(const std::string& folder) {
  const Outcome outcome = run("galley-train", {tiny_recipe(folder), "-o", folder + "/run", "-q"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return folder + "/run";
}

TEST(Messages, ExamplesNameRecipesThatExist) {
  int checked = 0;
  for (const std::string tool : {"train", "evaluate", "predict", "calibrate", "quantize", "profile", "benchmark", "recipes"}) {
    std::istringstream lines(run("galley-" + tool, {"--help"}).out);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("  galley-")) continue;  // examples are the only lines that begin so
      std::istringstream words(line);
      for (std::string word; words >> word;) {
        const bool name = word.find('_') != std::string::npos &&
                          std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
        if (!name || word == "train_step") continue;
        ++checked;
        EXPECT_EQ(run("galley-recipes", {"show", word}).code, 0) << "'" << word << "' in: " << line;
      }
    }
  }
  EXPECT_GE(checked, 6);
  expect_refused("galley-train", {"resnet50_imagenet", "-n"}, 3, {"there is no recipe", "did you mean 'imagenet_resnet50'?"});
}

TEST(Messages, AGoalOfAnUnknownMetricIsRefusedBeforeTheCalibration) {
  const std::string folder = scratch_folder();
  const std::string made = tiny_run(folder);
  for (const std::string option : {"--dry-run", "--sensitivity"}) {
    const Outcome outcome =
        run("galley-quantize", {made, "goal={metric: topp1, max_drop: 0.5}", "data.calibration.pipeline=train", "--evaluate", option});
    EXPECT_EQ(outcome.code, 3) << outcome.err;
    expect_all(outcome.err, {"command line", "unknown metric 'topp1'", "did you mean 'top1'?"});
    expect_none(outcome.err, {"calibration 24/24"});
  }
}

TEST(Messages, ErrorsOfRecipesHaveAPlaceAndARemedy) {
  const std::string folder = scratch_folder();
  const std::string layers = folder + "/layers.yaml";
  const std::string rest =
      "data: {train: {source: {type: synthetic, samples: 24, shape: [4]}}}\n"
      "train: {duration: 1 step, batch: 8, optimizer: {type: sgd, lr: 0.1}}\n";
  const std::string model = "input: {shape: [4]}, layers: [{type: linear, out_features: 4}]}\n";
  write_text(layers, "recipe: 1\nmodel: {type: layers, " + model + rest);
  expect_refused("galley-train", {layers, "-n"}, 3, {"layers.yaml:2:", "no default loss", "add the key `loss` next to `model`"});
  write_text(layers, "recipe: 1\nmodel: {" + model + rest);
  expect_refused("galley-train", {layers, "-n"}, 3, {"layers.yaml:2:", "'model.type' is missing", "add type: layers"});
  const std::string recipe = tiny_recipe(folder);
  for (const std::string value : {"2", "2 epochs"})
    expect_refused("galley-benchmark", {recipe, "-n", "stop.max_time=" + value}, 3,
                   {"command line:1:15", "'" + value + "' is not a time: write e.g. 90s, 20min"});
  for (const std::string option : {"-n", "-q"})
    expect_refused("galley-benchmark", {recipe, option, "what=forwrd"}, 3, {"command line:1:6", "'forwrd'", "did you mean 'forward'?"});
  expect_refused("galley-quantize", {recipe, "goal={metric: top1, max_drop: 1, time_budget: 3 steps}"}, 3, {"command line", "not a time"});
}

TEST(Messages, ABenchmarkThatCannotRunSaysWhereAndInItsOwnColumn) {
  const std::string folder = scratch_folder();
  const std::string recipe = folder + "/open.yaml";
  write_text(recipe, "recipe: 1\nmodel:\n  type: layers\n  layers: [{type: linear, out_features: 4}]\nloss: cross_entropy\n");
  const Outcome outcome = run("galley-benchmark", {recipe, "what=forward", "--format", "csv"});
  EXPECT_EQ(outcome.code, 3) << outcome.out;
  expect_all(outcome.err, {"open.yaml:", "error: "});
  std::istringstream lines(outcome.out);
  std::string head, row;
  std::getline(lines, head);
  std::getline(lines, row);
  EXPECT_TRUE(head.ends_with(",error")) << head;
  EXPECT_EQ(row.substr(0, 11), "forward,1,,") << row;
  expect_none(row, {"error: "});
}

TEST(Messages, ValuesOfOptionsThatAreWrongNameTheRightOnes) {
  const std::string folder = scratch_folder();
  const std::string recipe = tiny_recipe(folder);
  expect_refused("galley-train", {recipe, "-n", "--threads", "x"}, 2, {"--threads x is not supported; it must be a whole number"});
  expect_refused("galley-profile", {recipe, "-n", "--by", "layers"}, 2,
                 {"--by layers is not supported; it must be one of op, shape, module, layer", "did you mean 'layer'?"});
  expect_refused("galley-convert-layout", {"a.safetensors", "--to", "chanels_last"}, 2, {"--to", "did you mean 'channels_last'?"});
  expect_refused("galley-predict", {recipe, "--on-error", "foo"}, 2, {"--on-error foo is not supported; it must be one of report"});
  expect_refused("galley-predict", {recipe, "--batch", "0"}, 2, {"--batch 0 is not supported; it must be a whole number from 1 to"});
  expect_refused("galley-profile", {recipe, "--verify-time", "soon"}, 2, {"--verify-time soon is not supported; it must be a number"});
  expect_refused("galley-train", {recipe, "-n", "--progress", "plan"}, 2, {"--progress plan", "did you mean 'plain'?"});
  const Outcome format = run("galley-train", {recipe, "-n", "--format", "jsn"});
  EXPECT_EQ(format.code, 2);
  expect_all(format.err, {"--format jsn is not supported; it must be one of csv, json, md, table", "did you mean 'json'?"});
  expect_none(format.err, {"jsonl"});
  expect_refused("galley-benchmark", {recipe, "-n", "--format", "jsn"}, 2, {"jsonl"});
}

/// The words that a tool offers where the last of these is completed.
std::string completed(const std::string& tool, std::vector<std::string> words) {
  words.insert(words.begin(), "--complete-words");
  return run(tool, words).out;
}

TEST(Messages, CompletionOffersTheValuesOfOptions) {
  EXPECT_EQ(completed("galley-train", {"fashion_mnist_cnn", "--format", ""}), "csv\njson\nmd\ntable\n");
  expect_all(completed("galley-train", {"fashion_mnist_cnn", "--device", ""}), {"cpu\n", "ref\n"});
  EXPECT_EQ(completed("galley-train", {"--verbose="}), "--verbose=ops\n--verbose=compile\n--verbose=passes\n");
  EXPECT_EQ(completed("galley-train", {"--dump-recipe=f"}), "--dump-recipe=full\n");
  EXPECT_EQ(completed("galley-profile", {"fashion_mnist_cnn", "--by", "m"}), "module\n");
  EXPECT_EQ(completed("galley-train", {"fashion_mnist_cnn", "-o", "opt"}), "") << "names of files are the shell's";
  EXPECT_EQ(completed("galley-train", {"--format", "json", "fashion_mn"}), "fashion_mnist_cnn\n");
  EXPECT_EQ(completed("galley-train", {"--format", "json", "fashion_mnist_cnn", "optim"}), "optimizer.\n");
  const Outcome galley = run("galley", {"--completion", "bash"});
  EXPECT_EQ(galley.code, 0);
  expect_all(galley.out, {"complete -o default -F _galley galley ", " galley-train", " galley-weights"});
  expect_refused("galley", {"--completion", "tcsh"}, 2, {"bash, zsh or fish"});
  // A section goes on without a blank.
  const std::string line =
      "galley train fashion_mnist_cnn --explain train.optimizer.lr optimi\\t"
      "lr=0.25\\nexit\\n";
  const std::string typed =
      shell("printf '%s\\n" + line + "' 'source <(galley --completion bash)' | TERM=dumb bash --norc --noprofile -i 2>/dev/null").out;
  expect_all(typed, {"train.optimizer.lr = 0.25"});
}

TEST(Messages, AnExplanationSaysEachThingOnce) {
  const std::string folder = scratch_folder();
  const std::string recipe = tiny_recipe(folder);
  const Outcome outcome = run("galley-recipes", {"explain", recipe, "train.optimizer.lr"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_all(outcome.out, {"default: (required)", "default  (required)", "tiny.yaml:11"});
  expect_none(outcome.out, {"0.001"});
  const std::string about = outcome.out.substr(20, outcome.out.find('\n') - 20);
  EXPECT_EQ(outcome.out.find(about), outcome.out.rfind(about)) << outcome.out;
  const Outcome alone = run("galley-recipes", {"explain", "fashion_mnist_cnn"});
  EXPECT_EQ(alone.code, 2);
  expect_all(alone.err, {"fashion_mnist_cnn is a recipe; name the key", "explain fashion_mnist_cnn train.optimizer.lr"});
  expect_refused("galley-recipes", {"explain", "colour"}, 3, {"unknown key 'colour'"});
}

TEST(Messages, TextModelsSayThatTheyTakeText) {
  const std::string folder = scratch_folder();
  std::string text;
  for (int i = 0; i < 400; ++i) text += static_cast<char>('a' + i * i % 7);
  write_text(folder + "/text.txt", text);
  const Outcome trained = run("galley-train", {"shakespeare_gpt", "data.train.source.path=" + folder + "/text.txt", "model.n_layer=1",
                                               "model.n_head=2", "model.n_embd=8", "model.block_size=8", "batch=4", "duration=1 steps",
                                               "train.validate.prompts=[]", "-o", folder + "/run", "-q"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  write_text(folder + "/photo.jpg", "");
  expect_refused("galley-predict", {folder + "/run", folder + "/photo.jpg"}, 2, {"the model takes text", "photo.jpg", "--prompt TEXT"});
  expect_refused("galley-predict", {folder + "/run", "--prompt", "ab", "temperature=0.8"}, 3,
                 {"unknown key 'temperature'", "did you mean 'generate.temperature'?"});
}

TEST(Messages, WhatIsNoRecipeIsCalledWhatItIs) {
  const std::string folder = scratch_folder();
  ASSERT_EQ(shell("mkdir " + folder + "/emptyd").code, 0);
  for (const std::string name : {"emptyd", "./emptyd"}) {
    const Outcome outcome = shell("cd " + folder + " && galley-predict " + name + " x.png");
    EXPECT_EQ(outcome.code, 3);
    expect_all(outcome.err, {"the folder '" + name + "' contains neither a recipe.yaml nor a config.json"});
  }
  const Outcome none = shell("cd " + folder + " && galley-train nofile.yaml");
  EXPECT_EQ(none.code, 3);
  expect_all(none.err, {"nofile.yaml", "check the path"});
  expect_none(none.err, {"its suffix"});
  expect_refused("galley-train", {tiny_recipe(folder), "--device", "cuda", "-n"}, 7,
                 {"device cuda: no NVIDIA driver was found", "device=cpu computes on"});
}

TEST(Messages, LargeAndSmallNumbersHaveExponents) {
  const std::string folder = scratch_folder();
  const std::string recipe = tiny_recipe(folder);
  const Outcome outcome = run("galley-train", {recipe, "-o", folder + "/run", "optimizer.lr=1e30", "duration=1 steps"});
  expect_all(outcome.err, {"lr 1e+30"});
  const Outcome small = run("galley-train", {recipe, "-o", folder + "/small", "optimizer.lr=1e-9", "duration=1 steps"});
  expect_all(small.err, {"lr 1e-09"});
}

TEST(Messages, AnImageThatIsNamedTwiceIsPredictedOnce) {
  const std::string folder = scratch_folder();
  const std::string made = tiny_run(folder), pics = folder + "/pics";
  ASSERT_EQ(shell("mkdir " + pics + " && cp " GALLEY_SOURCE_DIR "/tests/fuzz/seeds/image/rgb.jpg " + pics + "/a.jpg").code, 0);
  const std::string pipeline = "data.val.pipeline=[{type: resize, size: [28, 28]}]";
  const Outcome once = run("galley-predict", {made, pics + "/a.jpg", pics, pics + "/../pics/a.jpg", pipeline, "--format", "json"});
  ASSERT_EQ(once.code, 0) << once.err;
  EXPECT_EQ(std::count(once.out.begin(), once.out.end(), '\n'), 1) << once.out;
  expect_all(once.err, {"1 image,", "1 sample in "});
  const Outcome half = run("galley-predict", {made, pics, pics + "/none.jpg", pipeline});
  EXPECT_EQ(half.code, 4);
  expect_all(half.err, {"1 image, 1 unreadable", "1 of 2 files could not be read"});
}

TEST(Messages, ADryRunOfAComparisonShowsBothSides) {
  const std::string folder = scratch_folder();
  const std::string recipe = tiny_recipe(folder);
  const std::vector<std::string> words{
      recipe, "what=forward", "--compare", "memory_format=contiguous", "memory_format=channels_last threads=1", "-n"};
  const Outcome table = run("galley-benchmark", words);
  ASSERT_EQ(table.code, 0) << table.err;
  expect_all(table.out, {"base", "tiny.yaml memory_format=contiguous", "new", "tiny.yaml memory_format=channels_last threads=1"});
  std::vector<std::string> json = words;
  json.insert(json.end(), {"--format", "json"});
  const Json plan = Json::parse(run("galley-benchmark", json).out);
  EXPECT_EQ(plan["base"]["overrides"], Json::array({"memory_format=contiguous"}));
  EXPECT_EQ(plan["new"]["recipe"], recipe);
}

TEST(Messages, MoreThreadsThanCoresAreAWarning) {
  const std::string folder = scratch_folder();
  const Outcome many = run("galley-train", {tiny_recipe(folder), "-n", "threads=900"});
  EXPECT_EQ(many.code, 0) << many.err;
  expect_all(many.err, {"warning: 900 threads share ", " core"});
  expect_none(run("galley-train", {tiny_recipe(folder), "-n", "threads=1"}).err, {"threads share"});
}

TEST(Messages, CsvOfTrainingHasNumbersForMachines) {
  const std::string folder = scratch_folder();
  for (const std::string option : {"--dry-run", "-q"}) {
    const Outcome outcome = run("galley-train", {tiny_recipe(folder), "-o", folder + "/run", option, "--format", "csv"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    std::istringstream lines(outcome.out);
    std::string head;
    std::getline(lines, head);
    EXPECT_EQ(head, option == "-q" ? "result,value" : "plan,value");
    expect_all(outcome.out, {"\nsteps,6\n", "\nplanned_peak_bytes,"});
    if (option == "-q") expect_all(outcome.out, {"\nmetrics.loss,", "\nwall_s,", "\nweights," + folder + "/run/weights.safetensors\n"});
    for (std::string line; std::getline(lines, line);) EXPECT_EQ(std::count(line.begin(), line.end(), ','), 1) << line;
  }
}

}  // namespace
}  // namespace galley::testing_cli
