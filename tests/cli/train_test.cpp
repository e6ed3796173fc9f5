// The training tool as a user runs it: files, JSON, exit codes; built-in recipes are valid.

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

std::string xxh3_128(const std::string& bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  std::string hex;
  for (const unsigned char byte : canonical.digest) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

/// The digest that docs/weights.md defines, from the bytes of a file of float32 tensors. Buffers are those of batch norm.
std::string digest_of_parameters(const std::string& path) {
  const std::string bytes = read_text(path), values = tensor_bytes(path);
  std::map<std::string, std::string> lines;
  const Json header = Json::parse(bytes.substr(8, bytes.size() - 8 - values.size()));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__" || name.ends_with(".running_mean") || name.ends_with(".running_var") ||
        name.ends_with(".num_batches_tracked"))
      continue;
    EXPECT_EQ(entry["dtype"], "F32");
    lines[name] = xxh3_128(tensor_bytes(path, name)) + " f32 " + entry["shape"].dump() + " " + name + "\n";
  }
  std::string text;
  for (const auto& [name, line] : lines) text += line;
  return xxh3_128(text);
}

/// docs/recipe.md: `train.validate: null` leaves the evaluation after the last step; `data.val: null` leaves none.
TEST(Train, WithoutValidationEvaluatesOnceAfterTheLastStep) {
  const std::string folder = scratch_folder(), recipe = tiny_recipe(folder);
  const auto evaluated_steps = [&](const std::string& name) {
    std::istringstream lines(read_text(folder + "/" + name + "/metrics.jsonl"));
    std::vector<int> steps;
    for (std::string line; std::getline(lines, line);) {
      const Json row = Json::parse(line);
      if (row["kind"] == "eval") steps.push_back(row["step"]);
    }
    return steps;
  };
  ASSERT_EQ(run("galley-train", {recipe, "-o", folder + "/each", "validate=2 steps", "-q"}).code, 0);
  EXPECT_EQ(evaluated_steps("each"), (std::vector<int>{2, 4, 6}));
  ASSERT_EQ(run("galley-train", {recipe, "-o", folder + "/last", "validate=null", "-q"}).code, 0);
  EXPECT_EQ(evaluated_steps("last"), std::vector<int>{6});
  EXPECT_EQ(Json::parse(read_text(folder + "/last/result.json"))["metrics"],
            Json::parse(read_text(folder + "/each/result.json"))["metrics"]);
  ASSERT_EQ(run("galley-train", {recipe, "-o", folder + "/never", "data.val=null", "-q"}).code, 0);
  EXPECT_TRUE(evaluated_steps("never").empty());
  EXPECT_TRUE(Json::parse(read_text(folder + "/never/result.json"))["metrics"].empty());
}

TEST(Train, LeavesTheRunFolderOfTheContract) {
  const std::string folder = scratch_folder();
  const Outcome outcome = run("galley-train", {tiny_recipe(folder), "-o", folder + "/run", "--format", "json", "-q"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json result = Json::parse(outcome.out);
  EXPECT_EQ(result["steps"], 6);
  EXPECT_EQ(result["samples"], 48);
  EXPECT_EQ(result["stopped"], "done");
  EXPECT_EQ(result["digest"], digest_of_parameters(folder + "/run/weights.safetensors"));
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

/// With every operator computed by its definition in double, the model is the same within f32 rounding, and bit-identical on the test
/// device.
TEST(Train, OnTheReferenceBackEndGivesTheSameModel) {
  const std::string folder = scratch_folder();
  std::vector<double> losses;
  for (const std::string device : {"cpu", "ref", "sim"}) {
    const Outcome outcome =
        run("galley-train", {tiny_recipe(folder), "-o", folder + "/" + device, "--device", device, "--format", "json", "-q"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    losses.push_back(Json::parse(outcome.out)["metrics"]["loss"].get<double>());
  }
  EXPECT_NE(tensor_bytes(folder + "/cpu/weights.safetensors"), tensor_bytes(folder + "/ref/weights.safetensors"))
      << "other kernels round otherwise";
  EXPECT_EQ(tensor_bytes(folder + "/sim/weights.safetensors"), tensor_bytes(folder + "/ref/weights.safetensors"))
      << "the test device computes what ref computes";
  EXPECT_NEAR(losses[0], losses[1], 1e-4 * losses[0]);
}

/// A network with batch norm, whose buffers the digest excludes.
TEST(Train, DigestIsThatOfTheParameters) {
  const std::string folder = scratch_folder();
  const std::string tiny = std::string(GALLEY_SOURCE_DIR) + "/recipes/data/tiny_synthetic.yaml";
  const auto train = [&](const std::string& name, const std::string& seed) {
    const Outcome outcome = run("galley-train", {"cifar10_resnet20", "--with", tiny, "threads=1", "seed=" + seed, "-o", folder + "/" + name,
                                                 "--format", "json", "-q"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out)["digest"].get<std::string>();
  };
  const std::string digest = train("first", "1");
  EXPECT_EQ(digest.size(), 32u);
  EXPECT_EQ(digest, digest_of_parameters(folder + "/first/weights.safetensors"));
  EXPECT_EQ(digest, train("second", "1")) << "equal runs agree";
  EXPECT_NE(digest, train("third", "2")) << "another seed differs";
}

/// Weights store the size of their images: that of validation, not the model's default.
TEST(Train, WeightsSayWhatValidationFeeds) {
  const std::string folder = scratch_folder();
  const std::string tiny = std::string(GALLEY_SOURCE_DIR) + "/recipes/data/tiny_synthetic.yaml";
  ASSERT_EQ(run("galley-train", {"cifar10_resnet20", "--with", tiny, "data.train.source.shape=[3,24,24]", "data.val.source.shape=[3,40,40]",
                                 "-o", folder + "/run", "-q"})
                .code,
            0);
  const Outcome shown = run("galley-weights", {"show", folder + "/run/weights.safetensors", "--format", "json"});
  EXPECT_EQ(Json::parse(shown.out)["metadata"]["galley.input"], "[3,40,40]");
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
  // With --format json, stderr has one JSON object per line.
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

INSTANTIATE_TEST_SUITE_P(
    Cases, BadInput,
    testing::Values(
        BadCase{"UnknownKey", {"train.optimizer.learning_rate=1"}, 3, "lr"}, BadCase{"WrongType", {"batch=many"}, 3, "batch"},
        BadCase{"UnknownFlag", {"--formatt", "json"}, 2, "--format"},
        BadCase{"MissingWeights", {"weights=nowhere.safetensors"}, 4, "nowhere.safetensors"},
        BadCase{"MissingData", {"--unset", "data.train.source.samples", "data.train.source.type=idx", "data.root=/nowhere"}, 4, "/nowhere"},
        BadCase{"NoSuchDevice", {"device=cuda"}, 7, "cuda"}, BadCase{"NoSuchBackEnd", {"--device", "rex"}, 3, "did you mean 'ref'?"},
        BadCase{"NoDeviceName", {"device=/dev/cpu"}, 3, "cuda:1"},
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
                         testing::Values("fashion_mnist_cnn", "cifar10_resnet20", "cifar10_resnet56", "cifar10_resnet18",
                                         "cifar10_mobilenet_v2", "imagenet_resnet50", "imagenet_mobilenet_v3_large",
                                         "benchmark/resnet50_synthetic", "benchmark/mobilenet_v3_large_synthetic",
                                         "benchmark/cifar_resnet20_synthetic"));

TEST(Train, SaysWhyItCompiled) {
  const std::string folder = scratch_folder();
  const Outcome outcome = run("galley-train", {tiny_recipe(folder), "-o", folder + "/run", "--format", "json", "--verbose=compile"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json compilations = Json::parse(outcome.out)["compilations"];
  ASSERT_GE(compilations.size(), 2u);
  EXPECT_TRUE(compilations[0]["program"].get<std::string>().starts_with("train input f32 [")) << compilations[0];
  EXPECT_EQ(compilations[0]["reason"], "updates");
  EXPECT_TRUE(compilations[1]["program"].get<std::string>().starts_with("evaluate ")) << compilations[1];
  for (const Json& each : compilations) {
    EXPECT_GE(each["seconds"].get<double>(), 0);
    EXPECT_NE(outcome.err.find("compiled " + each["program"].get<std::string>()), std::string::npos) << outcome.err;
  }
  EXPECT_EQ(Json::parse(read_text(folder + "/run/result.json"))["compilations"], compilations);
}

/// GoogLeNet's objective includes its two auxiliary classifiers.
TEST(Train, LogsThePartsOfALossOfSeveral) {
  const std::string folder = scratch_folder(), recipe = folder + "/aux.yaml";
  write_text(recipe,
             "recipe: 1\nthreads: 2\nmodel: {type: googlenet, num_classes: 5}\n"
             "data: {train: {source: {type: synthetic, samples: 8, shape: [3, 64, 64]}, workers: 1}}\n"
             "train: {duration: 2 steps, batch: {global: 4, micro: 2}, optimizer: {type: sgd, lr: 0.001}}\ncheckpoint: null\nlog: {every: "
             "1 step}\n");
  const Outcome trained = run("galley-train", {recipe, "-o", folder + "/run", "-q"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  std::istringstream journal(read_text(folder + "/run/metrics.jsonl"));
  int rows = 0;
  Json losses;
  for (std::string line; std::getline(journal, line); ++rows) {
    const Json row = Json::parse(line);
    losses = row.at("losses");
    EXPECT_EQ(losses.size(), 3u) << line;
    const double sum = losses.at("logits").get<double>() + 0.3 * (losses.at("aux1").get<double>() + losses.at("aux2").get<double>());
    EXPECT_NEAR(row.at("loss").get<double>(), sum, 1e-5 * sum) << "f32 sums of two micro-batches";
  }
  EXPECT_EQ(rows, 2);
  EXPECT_EQ(Json::parse(read_text(folder + "/run/result.json")).at("losses"), losses);
  EXPECT_NE(shell("cat " + folder + "/run/tensorboard/*").out.find("train/loss/aux2"), std::string::npos);
}

}  // namespace
}  // namespace galley::testing_cli
