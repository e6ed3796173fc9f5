// The profiler as a user runs it: JSON, trace, page, advice with its fragment, and SIGUSR2 during training.

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

std::string profiled_recipe(const std::string& folder, const std::string& more = "") {
  const std::string path = folder + "/tiny.yaml";
  write_text(path,
             "recipe: 1\n"
             "name: tiny\n"
             "model:\n"
             "  type: layers\n"
             "  input: {shape: [3, 16, 16]}\n"
             "  layers:\n"
             "    - {name: conv1, type: conv2d, out_channels: 16, kernel_size: 3, padding: 1, bias: false}\n"
             "    - {name: bn1, type: batch_norm}\n"
             "    - {name: relu1, type: relu}\n"
             "    - {name: pool, type: adaptive_avg_pool2d, output_size: 1}\n"
             "    - {name: flat, type: flatten}\n"
             "    - {name: fc, type: linear, out_features: 4}\n"
             "data:\n"
             "  train: {source: {type: synthetic, samples: 64}, workers: 1}\n"
             "  val: {source: {type: synthetic, samples: 16}, batch: 8}\n"
             "train:\n"
             "  duration: 200000 steps\n"
             "  batch: 16\n"
             "  optimizer: {type: sgd, lr: 0.01, momentum: 0.9}\n"
             "loss: cross_entropy\n"
             "threads: 1\n"
             "profile: {schedule: {skip_first: 1, wait: 0, warmup: 1, active: 3}}\n" +
                 more);
  return path;
}

std::string gunzip_file(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  std::string text, piece(1 << 16, '\0');
  for (int got; file != nullptr && (got = gzread(file, piece.data(), static_cast<unsigned>(piece.size()))) > 0;)
    text.append(piece, 0, static_cast<size_t>(got));
  if (file != nullptr) gzclose(file);
  return text;
}

TEST(Profile, GivesTheObjectOfTheContract) {
  const std::string folder = scratch_folder();
  const Outcome outcome = run("galley-profile", {profiled_recipe(folder), "-o", folder + "/trace.json.gz", "--html", folder + "/page.html",
                                                 "--format", "json", "-q"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json["what"], "train_step");
  EXPECT_EQ(json["batch"], 16);
  EXPECT_EQ(json["steps"], 3);
  EXPECT_EQ(json["synthetic"], false);
  double self = 0;
  bool convolution = false;
  for (const Json& row : json["operators"]) {
    self += row["self_ms"].get<double>();
    if (row["type"] != "conv2d" || row["phase"] != "forward") continue;
    convolution = true;
    EXPECT_EQ(row["module"], "conv1");
    EXPECT_EQ(row["calls"], 3);
    EXPECT_DOUBLE_EQ(row["flops"].get<double>(), 3 * 2.0 * 16 * 16 * 16 * 16 * 27);  // 3 steps, 2 flops per multiply-add, N H W O, C kh kw
    EXPECT_NE(row["shape"].get<std::string>().find("[16,3,16,16]"), std::string::npos) << row["shape"];
  }
  EXPECT_TRUE(convolution);
  EXPECT_NEAR(self, json["wall_ms"].get<double>(), 0.02 * json["wall_ms"].get<double>());
  EXPECT_GT(json["memory"]["peak"]["parameters"], 0);
  EXPECT_GE(json["memory"]["resident_bytes"], json["memory"]["planned_bytes"]);
  EXPECT_EQ(json["compilations"]["count"], 1);
  EXPECT_EQ(json["compilations"]["cache_hits"], 4);
  EXPECT_EQ(json["provenance"]["tool"], "galley-profile");
  const Json trace = Json::parse(gunzip_file(folder + "/trace.json.gz"));
  int steps = 0;
  for (const Json& event : trace["traceEvents"]) steps += event.value("cat", "") == "step";
  EXPECT_EQ(steps, 3);
  EXPECT_NE(read_text(folder + "/page.html").find("</html>"), std::string::npos);
}

TEST(Profile, ProfilesAForwardPassOnDataOrOnRandomBatches) {
  const std::string folder = scratch_folder(), recipe = profiled_recipe(folder);
  const Outcome data = run("galley-profile", {recipe, "what=forward", "--format", "json", "-q"});
  ASSERT_EQ(data.code, 0) << data.err;
  const Json on_data = Json::parse(data.out);
  EXPECT_EQ(on_data["batch"], 8) << "data.val.batch";
  for (const Json& row : on_data["operators"]) EXPECT_NE(row["phase"], "backward");
  const Outcome random =
      run("galley-profile", {recipe, "what=forward", "synthetic=true", "batch=2", "schedule.active=5", "--format", "json", "-q"});
  ASSERT_EQ(random.code, 0) << random.err;
  const Json on_random = Json::parse(random.out);
  EXPECT_EQ(on_random["batch"], 2);
  EXPECT_EQ(on_random["steps"], 5);
  EXPECT_EQ(on_random["synthetic"], true);
}

TEST(Profile, PrintsTablesForPeople) {
  const std::string folder = scratch_folder(), recipe = profiled_recipe(folder);
  const Outcome table = run("galley-profile", {recipe, "-q"});
  ASSERT_EQ(table.code, 0) << table.err;
  for (const char* word : {"conv2d", "(executor)", "waiting for data", "machine limits", "optimizer_state", "advice"})
    EXPECT_NE(table.out.find(word), std::string::npos) << word << "\n" << table.out;
  const Outcome csv = run("galley-profile", {recipe, "--by", "layer", "--format", "csv", "-q"});
  ASSERT_EQ(csv.code, 0) << csv.err;
  EXPECT_EQ(csv.out.find("module,op,phase,shape,kernel,calls,self_ms,percent"), 0u) << csv.out;
}

TEST(Profile, FindsAPlantedBottleneckAndWritesTheFragment) {
  const std::string folder = scratch_folder();
  // The recipe forces the contiguous format; the fragment undoes that, and the tools accept the fragment.
  const std::string recipe = profiled_recipe(folder, "memory_format: contiguous\n");
  const std::string fragment = folder + "/faster.yaml";
  const Outcome outcome = run("galley-profile", {recipe, "--apply", fragment, "--format", "json", "-q"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  bool found = false;
  for (const Json& advice : json["advice"]) {
    found |= advice["code"] == "contiguous_forced";
    if (advice["code"] == "below_limit") {
      EXPECT_FALSE(advice["operators"].empty());  // its gain may be unknown
    } else {
      EXPECT_GT(advice["gain_ms"], 0);
    }
    EXPECT_FALSE(advice["key"].get<std::string>().empty());
  }
  EXPECT_TRUE(found) << outcome.out;
  EXPECT_NE(read_text(fragment).find("memory_format: auto"), std::string::npos);
  const Outcome dumped = run("galley-profile", {recipe, "--with", fragment, "--explain", "memory_format"});
  ASSERT_EQ(dumped.code, 0) << dumped.err;
  EXPECT_NE(dumped.out.find("auto"), std::string::npos) << dumped.out;
}

TEST(Profile, VerifiesItsAdvice) {
  const std::string folder = scratch_folder();
  const Outcome outcome = run("galley-profile", {profiled_recipe(folder, "memory_format: contiguous\n"), "--verify", "--verify-time", "1",
                                                 "--format", "json", "-q"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  ASSERT_TRUE(json.contains("verified")) << outcome.out;
  EXPECT_LE(json["verified"]["low_percent"], json["verified"]["change_percent"]);
  EXPECT_GE(json["verified"]["high_percent"], json["verified"]["change_percent"]);
  EXPECT_TRUE(json["verified"]["verdict"].is_string());
}

TEST(Profile, TellsWhatRecordingCosts) {
  const std::string folder = scratch_folder();
  const Outcome outcome = run("galley-profile", {profiled_recipe(folder), "synthetic=true", "--overhead", "0.5", "--format", "json", "-q"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json overhead = Json::parse(outcome.out)["overhead"];
  EXPECT_LE(overhead["low_percent"], overhead["change_percent"]);
  EXPECT_GE(overhead["high_percent"], overhead["change_percent"]);
  EXPECT_TRUE(overhead["verdict"].is_string());
}

TEST(Profile, AQuantizedModelGetsAdviceForTheQuantizer) {
  // The heaviest layer is kept in float between two on integers.
  const std::string folder = scratch_folder(), recipe = folder + "/net.yaml", weights = folder + "/int8.safetensors";
  write_text(recipe,
             "recipe: 1\n"
             "model:\n"
             "  type: layers\n"
             "  input: {shape: [3, 32, 32]}\n"
             "  layers:\n"
             "    - {name: conv1, type: conv2d, out_channels: 32, kernel_size: 1}\n"
             "    - {name: conv2, type: conv2d, out_channels: 32, kernel_size: 3, padding: 1}\n"
             "    - {name: conv3, type: conv2d, out_channels: 4, kernel_size: 1}\n"
             "    - {name: pool, type: adaptive_avg_pool2d, output_size: 1}\n"
             "    - {name: flat, type: flatten}\n"
             "data: {train: {source: {type: synthetic, samples: 64}, workers: 1}}\n"
             "train: {duration: 1 step, batch: 16, optimizer: {type: sgd, lr: 0.01}}\n"
             "loss: cross_entropy\n"
             "threads: 1\n"
             "quantize: {overrides: [{match: [conv2], keep: float}]}\n"
             "profile: {schedule: {skip_first: 1, wait: 0, warmup: 1, active: 3}}\n");
  ASSERT_EQ(run("galley-train", {recipe, "-o", folder + "/run", "-q"}).code, 0);
  const Outcome made = run("galley-quantize", {folder + "/run", "data.calibration.pipeline=train", "-o", weights, "-q"});
  ASSERT_EQ(made.code, 0) << made.err;
  const Outcome outcome =
      run("galley-profile", {recipe, "weights=" + weights, "what=forward", "--verify", "--verify-time", "0.5", "--format", "json", "-q"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  bool found = false;
  for (const Json& advice : json["advice"]) {
    if (advice["code"] != "int8_float_layers") continue;
    found = true;
    EXPECT_EQ(advice["key"], "quantize.overrides");
    EXPECT_TRUE(advice["requantize"].get<bool>());
    EXPECT_NE(advice["message"].get<std::string>().find("conv2"), std::string::npos) << advice.dump();
    EXPECT_NE(advice["message"].get<std::string>().find("override"), std::string::npos) << advice.dump();
    EXPECT_GT(advice["gain_ms"], 0);
  }
  EXPECT_TRUE(found) << outcome.out;
}

TEST(Profile, MistakesNameTheKey) {
  const std::string folder = scratch_folder(), recipe = profiled_recipe(folder);
  const Outcome active = run("galley-profile", {recipe, "schedule.active=0", "--format", "json"});
  EXPECT_EQ(active.code, 3);
  EXPECT_TRUE(active.out.empty());
  EXPECT_EQ(Json::parse(active.err)["error"]["key"], "profile.schedule.active");
  EXPECT_EQ(run("galley-profile", {recipe, "what=sideways"}).code, 3);
  EXPECT_EQ(run("galley-profile", {recipe, "--by", "mood"}).code, 2);
  EXPECT_EQ(run("galley-profile", {recipe, "--overhead", "-1"}).code, 2);
  EXPECT_EQ(run("galley-profile", {recipe, "schedule.active=100000", "-o", folder + "/none/trace.json"}).code, 7) << "told before the work";
}

TEST(Profile, ARunningTrainingRecordsAWindowAtSigusr2) {
  const std::string folder = scratch_folder(), out = folder + "/run";
  Child child("galley-train", {profiled_recipe(folder), "-o", out, "-q"});
  const auto wait_for = [&](const std::function<bool()>& done) {
    for (int i = 0; i < 600 && !done(); ++i) usleep(50000);
    return done();
  };
  const auto profiles = [&] {
    std::vector<std::string> files;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(out, ignored)) {
      if (entry.path().filename().string().starts_with("profile-") && entry.path().extension() == ".gz") files.push_back(entry.path());
    }
    return files;
  };
  ASSERT_TRUE(wait_for([&] { return std::filesystem::exists(out + "/metrics.jsonl"); }));
  child.signal(SIGUSR2);
  ASSERT_TRUE(wait_for([&] { return !profiles().empty(); })) << "no profile was written";
  child.signal(SIGTERM);
  EXPECT_EQ(child.wait(), 75) << "the training went on, and stopped as ever";
  const std::vector<std::string> files = profiles();
  ASSERT_EQ(files.size(), 1u);
  const Json trace = Json::parse(gunzip_file(files[0]));
  std::vector<std::string> steps;
  for (const Json& event : trace["traceEvents"]) {
    if (event.value("cat", "") == "step") steps.push_back(event["name"]);
  }
  ASSERT_EQ(steps.size(), 3u) << "profile.schedule.active";
  EXPECT_NE(files[0].find("profile-" + steps.back().substr(5) + ".json.gz"), std::string::npos) << "named after its last step";
}

}  // namespace
}  // namespace galley::testing_cli
