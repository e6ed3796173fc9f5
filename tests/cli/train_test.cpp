// The training tool as a user runs it: exit codes, files, JSON, resume and signals of the tools' contract.

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

const char kTiny[] =
    "recipe: 1\n"
    "name: tiny\n"
    "model: {type: mlp, num_classes: 4}\n"
    "data:\n"
    "  train: {source: {type: synthetic, samples: 24}, workers: 1}\n"
    "  val: {source: {type: synthetic, samples: 10}, batch: 4}\n"
    "train:\n"
    "  duration: 6 steps\n"
    "  batch: 8\n"
    "  optimizer: {type: sgd, lr: 0.05, momentum: 0.9}\n"
    "  schedule: [{type: cosine}]\n"
    "checkpoint: {every: 2 steps}\n"
    "log: {every: 1 step}\n";

std::string tiny_recipe(const std::string& folder) {
  const std::string path = folder + "/tiny.yaml";
  write_text(path, kTiny);
  return path;
}

TEST(Train, LeavesTheRunFolderOfTheContract) {
  const std::string folder = scratch_folder();
  const Outcome outcome = run("galley-train", {tiny_recipe(folder), "-o", folder + "/run", "--format", "json", "-q"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json result = Json::parse(outcome.out);
  EXPECT_EQ(result["steps"], 6);
  EXPECT_EQ(result["samples"], 48);
  EXPECT_EQ(result["stopped"], "done");
  EXPECT_EQ(result["micro"], 8);
  EXPECT_TRUE(result["metrics"].contains("top1"));
  EXPECT_EQ(result["provenance"]["tool"], "galley-train");
  EXPECT_EQ(Json::parse(read_text(folder + "/run/result.json")), result);
  std::istringstream lines(read_text(folder + "/run/metrics.jsonl"));
  int train = 0, eval = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json row = Json::parse(line);
    train += row["kind"] == "train";
    eval += row["kind"] == "eval";
    if (row["kind"] == "train") {
      EXPECT_EQ(row["samples"], 8 * row["step"].get<int>());
    }
  }
  EXPECT_EQ(train, 6);
  EXPECT_GE(eval, 1);
  // A finished run prints its result again and trains nothing.
  const Outcome again = run("galley-train", {tiny_recipe(folder), "-o", folder + "/run", "--format", "json", "-q"});
  EXPECT_EQ(again.code, 0);
  EXPECT_EQ(Json::parse(again.out), result);
  // Evaluation of the run gives the numbers that training ended with.
  const Outcome evaluated = run("galley-evaluate", {folder + "/run", "--format", "json", "-q"});
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_EQ(Json::parse(evaluated.out)["metrics"], result["metrics"]);
  EXPECT_EQ(Json::parse(evaluated.out)["samples"], 10);
}

TEST(Train, RepeatsBitForBitWhateverTheDataWorkers) {
  const std::string folder = scratch_folder();
  const std::string recipe = tiny_recipe(folder);
  ASSERT_EQ(run("galley-train", {recipe, "-o", folder + "/a", "-q", "--unset", "checkpoint.every"}).code, 0);
  ASSERT_EQ(run("galley-train", {recipe, "-o", folder + "/b", "-q", "data.train.workers=3", "--unset", "checkpoint.every"}).code, 0);
  // The files differ in their metadata (the recipe); their tensors lie at the end.
  const auto data = [](const std::string& file) {
    const std::string bytes = read_text(file);
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), 8);
    return bytes.substr(8 + header);
  };
  EXPECT_EQ(data(folder + "/a/weights.safetensors"), data(folder + "/b/weights.safetensors"));
}

TEST(Train, StopsOnSigtermAndContinuesToTheSameWeights) {
  const std::string folder = scratch_folder();
  const std::string recipe = tiny_recipe(folder);
  const std::vector<std::string> longer{"train.duration=400 steps", "train.validate=null", "optimizer.lr=0.001", "-q"};
  std::vector<std::string> whole{recipe, "-o", folder + "/whole"}, cut{recipe, "-o", folder + "/cut"};
  whole.insert(whole.end(), longer.begin(), longer.end());
  cut.insert(cut.end(), longer.begin(), longer.end());
  ASSERT_EQ(run("galley-train", whole).code, 0);
  int interrupted = 0;
  for (int attempt = 0; attempt < 50; ++attempt) {
    Child child("galley-train", cut);
    usleep(60000);
    child.signal(attempt % 2 == 0 ? SIGTERM : SIGKILL);
    const int code = child.wait();
    ASSERT_TRUE(code == 0 || code == 75 || code == 128 + SIGKILL || code == 128 + SIGTERM) << code;
    interrupted += code != 0;
    if (code == 0) break;
  }
  ASSERT_EQ(run("galley-train", cut).code, 0);
  EXPECT_GE(interrupted, 1);
  EXPECT_EQ(read_text(folder + "/whole/weights.safetensors"), read_text(folder + "/cut/weights.safetensors"));
}

TEST(Train, NamesTheStepAndTheLayerOfANaN) {
  const std::string folder = scratch_folder();
  const Outcome outcome = run("galley-train", {tiny_recipe(folder), "-o", folder + "/run", "optimizer.lr=1e30", "--format", "json"});
  EXPECT_EQ(outcome.code, 5) << outcome.err;
  EXPECT_TRUE(outcome.out.empty());
  EXPECT_NE(outcome.err.find("the loss is"), std::string::npos) << outcome.err;
  EXPECT_EQ(Json::parse(read_text(folder + "/run/result.json"))["stopped"], "nan");
}

TEST(Train, RefusesAChangedRecipeOnResume) {
  const std::string folder = scratch_folder();
  const std::string recipe = tiny_recipe(folder);
  ASSERT_EQ(run("galley-train", {recipe, "-o", folder + "/run", "-q"}).code, 0);
  const Outcome changed = run("galley-train", {recipe, "-o", folder + "/run", "optimizer.lr=0.07", "-q"});
  EXPECT_EQ(changed.code, 3);
  EXPECT_NE(changed.err.find("train.optimizer"), std::string::npos) << changed.err;
  const Outcome grown = run("galley-train", {recipe, "-o", folder + "/run", "train.duration=8 steps", "--format", "json", "-q"});
  EXPECT_EQ(grown.code, 0) << grown.err;
  EXPECT_EQ(Json::parse(grown.out)["steps"], 8);
  EXPECT_EQ(run("galley-train", {recipe, "-o", folder + "/run", "train.duration=4 steps", "-q"}).code, 3);
  EXPECT_EQ(run("galley-train", {recipe, "-o", folder + "/run", "optimizer.lr=0.07", "--force", "-q"}).code, 0);
}

struct BadCase {
  std::string name;
  std::vector<std::string> arguments;
  int code;
  std::string message;
};
class BadInput : public testing::TestWithParam<BadCase> {};

TEST_P(BadInput, HasItsExitCodeAndOneClearError) {
  const std::string folder = scratch_folder();
  std::vector<std::string> arguments{tiny_recipe(folder), "-o", folder + "/run", "-q"};
  arguments.insert(arguments.end(), GetParam().arguments.begin(), GetParam().arguments.end());
  const Outcome outcome = run("galley-train", arguments);
  EXPECT_EQ(outcome.code, GetParam().code) << outcome.err;
  EXPECT_TRUE(outcome.out.empty()) << outcome.out;
  EXPECT_NE(outcome.err.find(GetParam().message), std::string::npos) << outcome.err;
  // The same as JSON: one object a line on stderr.
  arguments.insert(arguments.end(), {"--format", "json"});
  const Outcome json = run("galley-train", arguments);
  EXPECT_EQ(json.code, GetParam().code);
  std::istringstream lines(json.err);
  Json error;
  for (std::string line; std::getline(lines, line);) {
    const Json object = Json::parse(line);
    if (object.contains("error")) error = object["error"];
  }
  EXPECT_EQ(error["code"], GetParam().code) << json.err;
}

INSTANTIATE_TEST_SUITE_P(Cases, BadInput,
                         testing::Values(BadCase{"UnknownKey", {"train.optimizer.learning_rate=1"}, 3, "lr"},
                                         BadCase{"WrongType", {"batch=many"}, 3, "batch"},
                                         BadCase{"UnknownFlag", {"--formatt", "json"}, 2, "--format"},
                                         BadCase{"MissingWeights", {"weights=nowhere.safetensors"}, 4, "nowhere.safetensors"},
                                         BadCase{"MissingData", {"--unset", "data.train.source.samples", "data.train.source.type=idx", "data.root=/nowhere"}, 4, "/nowhere"},
                                         BadCase{"NoSuchDevice", {"device=cuda"}, 7, "cuda"},
                                         BadCase{"UnwritableOutput", {"-o", "/proc/galley/run"}, 7, "/proc/galley"},
                                         BadCase{"IndivisibleBatch", {"batch.global=9", "batch.micro=4"}, 3, "9"}),
                         [](const auto& info) { return info.param.name; });

TEST(Recipes, ListsShowsCopiesAndValidates) {
  const std::string folder = scratch_folder();
  const Outcome list = run("galley-recipes", {"ls", "--format", "json"});
  ASSERT_EQ(list.code, 0) << list.err;
  EXPECT_NE(list.out.find("\"fashion_mnist_cnn\""), std::string::npos);
  const std::string copy = folder + "/mine.yaml";
  ASSERT_EQ(run("galley-recipes", {"cp", "fashion_mnist_cnn", copy}).code, 0);
  EXPECT_EQ(read_text(copy), run("galley-recipes", {"show", "fashion_mnist_cnn"}).out);
  EXPECT_EQ(run("galley-recipes", {"cp", "fashion_mnist_cnn", copy}).code, 7);
  const Outcome bad = run("galley-recipes", {"validate", copy, "train.epochs=3", "--format", "json"});
  EXPECT_EQ(bad.code, 3);
  const Json report = Json::parse(bad.out);
  EXPECT_FALSE(report["valid"].get<bool>());
  EXPECT_EQ(report["errors"].size(), 1u);
}

class BuiltIn : public testing::TestWithParam<std::string> {};

TEST_P(BuiltIn, IsValidAsDeepAsTheToolsCheck) {
  const Outcome outcome = run("galley-recipes", {"validate", GetParam()});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

INSTANTIATE_TEST_SUITE_P(All, BuiltIn,
                         testing::Values("fashion_mnist_cnn", "cifar10_resnet20", "cifar10_resnet56", "cifar10_resnet18", "imagenet_resnet50", "imagenet_mobilenet_v3_large",
                                         "benchmark/resnet50_synthetic", "benchmark/mobilenet_v3_large_synthetic", "benchmark/cifar_resnet20_synthetic"));

TEST(Galley, ExecsItsVerbs) {
  const Outcome outcome = run("galley", {"recipes", "show", "fashion_mnist_cnn"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_NE(outcome.out.find("fashion_mnist_cnn"), std::string::npos);
  EXPECT_EQ(run("galley", {"nothing"}).code, 2);
}

}  // namespace
}  // namespace galley::testing_cli
