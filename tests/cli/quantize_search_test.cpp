// galley-quantize --sensitivity and quantize.goal as a user runs them: journals, fragments, exit codes, and the file, which is always
// written.

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

class QuantizeSearch : public ::testing::Test {
 protected:
  void SetUp() override {
    folder = scratch_folder();
    recipe = folder + "/net.yaml";
    write_text(recipe,
               "recipe: 1\nname: net\nmodel: {type: cnn, num_classes: 4, channels: [8, 8]}\n"
               "data:\n  train: {source: {type: synthetic, samples: 48}}\n  val: {source: {type: synthetic, samples: 20}, batch: 10}\n  "
               "calibration: {samples: 16, batch: 8}\n"
               "train: {duration: 4 steps, batch: 8, optimizer: {type: sgd, lr: 0.05}}\n");
    const Outcome trained = run("galley-train", {recipe, "-o", folder + "/run", "-q", "--format", "json"});
    ASSERT_EQ(trained.code, 0) << trained.err;
  }
  Outcome quantize(const std::string& output, const std::vector<std::string>& more) const {
    std::vector<std::string> words{folder + "/run", "-o", folder + "/" + output, "--format", "json", "-q"};
    words.insert(words.end(), more.begin(), more.end());
    return run("galley-quantize", words);
  }
  std::string folder, recipe;
};

TEST_F(QuantizeSearch, SensitivityNamesEveryLayerAndItsFragmentKeepsTheWorst) {
  const Outcome outcome = quantize("keep.yaml", {"--sensitivity", "--evaluate", "--keep-float", "2"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  ASSERT_TRUE(json["complete"]);
  EXPECT_EQ(json["metric"], "top1");
  std::set<std::string> names;
  double last = 1e9;
  for (const Json& layer : json["sensitivity"]) {
    names.insert(layer["name"]);
    EXPECT_LE(layer["only_drop"].get<double>(), last);
    last = layer["only_drop"];
    // Rounding one layer has a smaller effect than rounding all layers.
    EXPECT_GT(layer["only_sqnr_db"].get<double>(), json["sqnr_db"].get<double>() - 3) << layer;
  }
  EXPECT_EQ(names.size(), json["sensitivity"].size());

  const Outcome plain = quantize("plain.safetensors", {});
  ASSERT_EQ(plain.code, 0) << plain.err;
  std::set<std::string> layers;
  const Json all = Json::parse(plain.out);
  for (const Json& layer : all["layers"]) layers.insert(layer["name"]);
  EXPECT_EQ(names, layers);

  const Outcome kept = quantize("kept.safetensors", {"--with", folder + "/keep.yaml"});
  ASSERT_EQ(kept.code, 0) << kept.err;
  std::set<std::string> in_float;
  const Json fewer = Json::parse(kept.out);
  for (const Json& layer : fewer["layers"]) {
    if (layer["float_reason"] == "override") in_float.insert(layer["name"]);
  }
  EXPECT_EQ(in_float, (std::set<std::string>{json["sensitivity"][0]["name"], json["sensitivity"][1]["name"]}));
}

TEST_F(QuantizeSearch, SensitivityContinuesItsJournal) {
  const std::string journal = folder + "/keep.yaml.journal.jsonl";
  const Outcome first = quantize("keep.yaml", {"--sensitivity"});
  ASSERT_EQ(first.code, 0) << first.err;
  const std::string whole = read_text(journal);
  // As after a kill during the last line. The numbers of the other lines are changed to verify that they are used.
  std::string cut = whole.substr(0, whole.size() - 20);
  const size_t at = cut.find("\"bytes\":");
  cut.replace(at, 9, "\"bytes\":7");
  write_text(journal, cut);
  const Outcome again = quantize("keep.yaml", {"--sensitivity"});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(Json::parse(again.out)["sensitivity"], Json::parse(first.out)["sensitivity"]);
  const std::string continued = read_text(journal);
  EXPECT_EQ(continued.substr(0, cut.size()), cut) << "finished trials were made again";
  EXPECT_EQ(std::count(continued.begin(), continued.end(), '\n'), std::count(whole.begin(), whole.end(), '\n') + 1);

  const Outcome other = quantize("keep.yaml", {"--sensitivity", "quantize.activations.observer=min_max"});
  EXPECT_EQ(other.code, 4);
  EXPECT_NE(other.err.find("journal with other settings"), std::string::npos) << other.err;
}

TEST_F(QuantizeSearch, AGoalThatIsMetEndsWithItsFile) {
  const Outcome outcome = quantize("model.safetensors", {"goal={metric: top1, max_drop: 100, objective: size}"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_TRUE(json["goal"]["met"]);
  ASSERT_EQ(json["trials"].size(), 1u) << "the first trial met it";
  const Json evaluated =
      Json::parse(run("galley-evaluate", {recipe, "weights=" + folder + "/model.safetensors", "--format", "json", "-q"}).out);
  EXPECT_EQ(evaluated["metrics"]["top1"], json["metrics"]["quantized"]["top1"]);
}

TEST_F(QuantizeSearch, AGoalThatIsMissedWritesTheBestAndThePareto) {
  const Outcome outcome = quantize("model.safetensors", {"goal={metric: loss, max_drop: 0, min: 0, objective: latency, time_budget: 60s}"});
  ASSERT_EQ(outcome.code, 6) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_FALSE(json["goal"]["met"]);
  const Json& trials = json["trials"];
  ASSERT_GT(trials.size(), 2u);
  double least = 1e9;
  for (const Json& trial : trials) least = std::min(least, trial["drop"].get<double>());
  int written = 0;
  for (const Json& trial : trials) {
    if (trial["written"]) {
      ++written;
      EXPECT_EQ(trial["drop"].get<double>(), least);
      EXPECT_EQ(json["goal"]["drop"], trial["drop"]);
    }
    const bool beaten = std::any_of(trials.begin(), trials.end(), [&](const Json& other) {
      int better = 0, worse = 0;
      for (const char* key : {"drop", "latency_ms", "bytes"}) better += other[key]<trial[key], worse += other[key]> trial[key];
      return better > 0 && worse == 0;
    });
    EXPECT_EQ(trial["pareto"].get<bool>(), !beaten) << trial;
  }
  EXPECT_EQ(written, 1);
  EXPECT_EQ(run("galley-evaluate", {recipe, "weights=" + folder + "/model.safetensors", "--format", "json", "-q"}).code, 0);
  EXPECT_FALSE(read_text(folder + "/model.safetensors.journal.jsonl").empty());
}

TEST_F(QuantizeSearch, NamesMistakes) {
  const Outcome without = run("galley-quantize", {folder + "/run", "-o", folder + "/x.safetensors", "goal={metric: top1, max_drop: 1}",
                                                  "data.val=null", "metrics=auto", "train.validate=null"});
  EXPECT_EQ(without.code, 3) << without.err;
  EXPECT_NE(without.err.find("data.val"), std::string::npos) << without.err;
  const Outcome metric = quantize("x.safetensors", {"goal={metric: top5, max_drop: 1}", "metrics=[loss,top1]"});
  EXPECT_EQ(metric.code, 3) << metric.err;
  const Outcome all_float = quantize("x.yaml", {"--sensitivity", "quantize.overrides=[{match: '*', keep: float}]"});
  EXPECT_EQ(all_float.code, 3);
  EXPECT_NE(all_float.err.find("leaves every layer in float"), std::string::npos) << all_float.err;
}

}  // namespace
}  // namespace galley::testing_cli
