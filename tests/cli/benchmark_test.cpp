// galley-benchmark and galley-convert-layout as a user runs them. The tests check reports, not times.

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/process.h"
#include "tests/cli/small_net.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

class Benchmark : public ::testing::Test {
 protected:
  void SetUp() override {
    folder = scratch_folder();
    recipe = folder + "/net.yaml";
    write_text(recipe, kSmallNet);
  }
  std::string folder, recipe;
};

TEST_F(Benchmark, SweepsEveryCombinationAndLeavesOutWhatIsExcluded) {
  const Outcome outcome = run("galley-benchmark", {recipe, "what=forward,train_step", "batch=1..4x2", "sweep.threads=1", "--unset",
                                                   "benchmark.exclude", "--format", "json", "-q"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json["provenance"]["tool"], "galley-benchmark");
  ASSERT_EQ(json["rows"].size(), 6u);
  std::vector<std::pair<std::string, int>> cells;
  for (const Json& row : json["rows"]) {
    cells.emplace_back(row["what"], row["batch"]);
    EXPECT_TRUE(row["error"].is_null());
    EXPECT_EQ(row["threads"], 1);
    EXPECT_EQ(row["set"]["threads"], "1");
    EXPECT_GE(row["runs"].get<int>(), 3);
    EXPECT_LE(row["min_ms"].get<double>(), row["median_ms"].get<double>());
    EXPECT_LE(row["median_ms"].get<double>(), row["p99_ms"].get<double>());
    EXPECT_GT(row["peak_bytes"].get<double>(), 0);
    EXPECT_GT(row["planned_bytes"].get<double>(), 0);
    for (const char* key :
         {"recipe", "precision", "memory_format", "device", "mean_ms", "p10_ms", "p90_ms", "samples_per_s", "peak_fraction"})
      EXPECT_TRUE(row.contains(key)) << key;
  }
  EXPECT_EQ(cells, (std::vector<std::pair<std::string, int>>{
                       {"forward", 1}, {"forward", 2}, {"forward", 4}, {"train_step", 1}, {"train_step", 2}, {"train_step", 4}}));
  // Flops are proportional to the batch.
  EXPECT_NEAR(json["rows"][1]["flops"].get<double>() / json["rows"][0]["flops"].get<double>(), 2,
              0.05);  // except for the folding of batch norms
}

TEST_F(Benchmark, RunsOnTheTestDevice) {
  const Outcome outcome = run("galley-benchmark", {recipe, "device=sim", "what=forward,train_step", "batch=2", "sweep.threads=1", "--unset",
                                                   "benchmark.exclude", "--format", "json", "-q"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json rows = Json::parse(outcome.out)["rows"];
  ASSERT_EQ(rows.size(), 2u);
  for (const Json& row : rows) {
    EXPECT_TRUE(row["error"].is_null()) << row["error"];
    EXPECT_EQ(row["device"], "sim");
    EXPECT_GE(row["runs"].get<int>(), 3);
  }
}

TEST_F(Benchmark, TellsExecutedOperationsAndTheSwitchOfWinograd) {
  write_text(recipe,
             "recipe: 1\n"
             "model:\n"
             "  type: layers\n"
             "  input: {shape: [32, 16, 16]}\n"
             "  layers:\n"
             "    - {name: conv1, type: conv2d, out_channels: 32, kernel_size: 3, padding: 1}\n"
             "    - {name: conv2, type: conv2d, out_channels: 32, kernel_size: 3, padding: 1}\n"
             "    - {name: pool, type: adaptive_avg_pool2d, output_size: 1}\n"
             "    - {name: flat, type: flatten}\n"
             "data: {train: {source: {type: synthetic, samples: 16}, workers: 1}}\n"
             "train: {duration: 1 step, batch: 8, optimizer: {type: sgd, lr: 0.01}}\n"
             "loss: cross_entropy\n"
             "benchmark: {stop: {max_time: 1s, min_runs: 3}}\n");
  const auto rows = [&](const std::string& winograd) {
    const Outcome outcome =
        run("galley-benchmark", {recipe, "what=forward,train_step", "batch=8", "precision.winograd=" + winograd, "--format", "json", "-q"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const Json json = Json::parse(outcome.out);
    return std::pair(json["rows"], json["provenance"]["isa"].get<std::string>().starts_with("avx"));
  };
  const auto [with, wide] = rows("true");
  const auto [without, unused] = rows("false");
  for (const size_t i : {0, 1}) {
    EXPECT_EQ(with[i]["flops"], without[i]["flops"]);
    EXPECT_EQ(without[i]["executed_flops"], without[i]["flops"]);
    if (wide) {
      EXPECT_LT(with[i]["executed_flops"].get<double>(), 0.6 * with[i]["flops"].get<double>());
    }
  }
}

// Decoding computes one token of each sequence, prefill all tokens of the prompt, and the product with the weights dominates both.
TEST_F(Benchmark, TimesTextGeneration) {
  write_text(recipe, "recipe: 1\nname: gpt\nmodel: {type: gpt, n_layer: 2, n_head: 2, n_embd: 64, vocab_size: 96, block_size: 64}\n");
  const Outcome outcome =
      run("galley-benchmark", {recipe, "what=decode,prefill", "batch=1,3", "tokens=32", "stop.max_time=50ms", "--format", "json", "-q"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::map<std::pair<std::string, int>, double> flops;
  const Json json = Json::parse(outcome.out);
  for (const Json& row : json["rows"]) {
    ASSERT_TRUE(row["error"].is_null()) << row;
    flops[{row["what"], row["batch"]}] = row["flops"];
  }
  ASSERT_EQ(flops.size(), 4u);
  // Two per weight of a product: 2 blocks of 12 x 64 x 64, and the head of 64 x 96. The rest is attention, norms and activations.
  const double products = 2.0 * (2 * 12 * 64 * 64 + 64 * 96);
  EXPECT_GT((flops[{"decode", 1}]), products);
  EXPECT_LT((flops[{"decode", 1}]), 1.5 * products);
  EXPECT_NEAR((flops[{"decode", 3}] / flops[{"decode", 1}]), 3, 0.01);
  EXPECT_GT((flops[{"prefill", 1}]), 2.0 * 2 * 12 * 64 * 64 * 32);
  EXPECT_LT((flops[{"prefill", 1}]), 1.5 * 2.0 * 2 * 12 * 64 * 64 * 32);

  const Outcome longer = run("galley-benchmark", {recipe, "what=decode", "tokens=64", "-q"});
  EXPECT_EQ(longer.code, 3);
  EXPECT_NE(longer.err.find("sequences of 65 tokens, but the model reads at most 64"), std::string::npos) << longer.err;
  write_text(recipe, kSmallNet);
  const Outcome classifier = run("galley-benchmark", {recipe, "what=decode", "-q"});
  EXPECT_EQ(classifier.code, 3);
  EXPECT_NE(classifier.err.find("has no key-value cache"), std::string::npos) << classifier.err;
}

TEST_F(Benchmark, ListsCellsBeforeItRuns) {
  const Outcome outcome = run("galley-benchmark", {recipe, "what=forward,data", "batch=1,2", "--dry-run", "--format", "csv"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 5) << outcome.out;
  EXPECT_NE(outcome.err.find("4 cells, at most"), std::string::npos) << outcome.err;
}

TEST_F(Benchmark, ContinuesItsJournal) {
  const std::string journal = folder + "/journal.jsonl";
  ASSERT_EQ(run("galley-benchmark", {recipe, "batch=1,2", "-o", journal, "-q"}).code, 0);
  std::istringstream lines(read_text(journal));
  std::string first, second;
  ASSERT_TRUE(std::getline(lines, first) && std::getline(lines, second));
  // As after an interruption in the second cell, whose line is incomplete.
  write_text(journal, first + "\n" + second.substr(0, second.size() / 2));
  const Outcome outcome = run("galley-benchmark", {recipe, "batch=1,2", "-o", journal, "--format", "json", "-q"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  ASSERT_EQ(json["rows"].size(), 2u);
  EXPECT_EQ(json["rows"][0]["median_ms"], Json::parse(first)["value"]["median_ms"]) << "the finished cell was measured again";
  const Outcome other = run("galley-benchmark", {recipe, "batch=1,2", "stop.min_runs=4", "-o", journal});
  EXPECT_EQ(other.code, 4);
  EXPECT_NE(other.err.find("journal with other settings"), std::string::npos) << other.err;
}

TEST_F(Benchmark, RecordsACellThatCannotRun) {
  const Outcome outcome = run("galley-benchmark", {recipe, "precision=f32,bf16", "--format", "json", "-q"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  ASSERT_EQ(json["rows"].size(), 2u);
  EXPECT_TRUE(json["rows"][0]["error"].is_null());
  EXPECT_EQ(json["rows"][0]["precision"], "f32");
  EXPECT_EQ(json["rows"][1]["precision"], "bf16");
  EXPECT_EQ(json["rows"][1]["set"]["precision"], "bf16");
}

// The rows of cells that cannot run also name their device and format.
TEST_F(Benchmark, RowsSayTheirPrecisionAndDeviceAlsoWhereTheyFail) {
  const Outcome outcome =
      run("galley-benchmark", {recipe, "device=cuda:7", "precision=bf16", "memory_format=contiguous", "--format", "json", "-q"});
  EXPECT_NE(outcome.code, 0);
  const Json row = Json::parse(outcome.out)["rows"][0];
  EXPECT_FALSE(row["error"].is_null());
  EXPECT_EQ(row["device"], "cuda:7");
  EXPECT_EQ(row["precision"], "bf16");
  EXPECT_EQ(row["memory_format"], "contiguous");
}

TEST_F(Benchmark, FailsWhereNoCellCouldRun) {
  const Outcome outcome =
      run("galley-benchmark", {recipe, "weights=" + folder + "/none.safetensors", "batch=1,2", "--format", "json", "-q"});
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  const Json json = Json::parse(outcome.out);
  ASSERT_EQ(json["rows"].size(), 2u);
  for (const Json& row : json["rows"]) EXPECT_FALSE(row["error"].is_null());
}

TEST_F(Benchmark, ComparesInTurnsAndSaysSo) {
  const Outcome outcome =
      run("galley-benchmark", {recipe, "--compare", "batch=1", "batch=64", "stop.min_runs=20", "--format", "json", "-q"});
  const Json json = Json::parse(outcome.out);
  ASSERT_EQ(json["compare"].size(), 1u);
  const Json& item = json["compare"][0];
  const std::string verdict = item["verdict"];
  // 64 times the work is slower on any machine, unless the machine is too noisy to tell.
  EXPECT_TRUE((verdict == "slower" && outcome.code == 6) || (verdict == "cannot tell" && outcome.code == 9)) << outcome.out << outcome.code;
  EXPECT_LE(item["low"].get<double>(), item["change"].get<double>());
  EXPECT_LE(item["change"].get<double>(), item["high"].get<double>());
}

TEST_F(Benchmark, ComparesSavedResults) {
  const Outcome saved = run("galley-benchmark", {recipe, "--save", "json:" + folder + "/a.json", "-q"});
  ASSERT_EQ(saved.code, 0) << saved.err;
  const Outcome outcome = run("galley-benchmark", {"--compare", folder + "/a.json", folder + "/a.json", "--format", "json"});
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json["compare"][0]["change"], 0.0);
  const std::string verdict = json["compare"][0]["verdict"];
  EXPECT_TRUE((verdict == "same" && outcome.code == 0) || (verdict == "cannot tell" && outcome.code == 9));
}

TEST_F(Benchmark, GivesRowsAsLinesPageAndDatabase) {
  const std::string page = folder + "/result.html", database = folder + "/result.db";
  for (int time = 1; time <= 2; ++time) {
    const Outcome outcome = run(
        "galley-benchmark", {recipe, "batch=1,2", "sweep.threads=1,2", "--format", "jsonl", "--html", page, "--sqlite", database, "-q"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    std::istringstream lines(outcome.out);
    int count = 0;
    for (std::string line; std::getline(lines, line); ++count) {
      const Json row = Json::parse(line);
      EXPECT_TRUE(row.contains("median_ms") && row["provenance"]["tool"] == "galley-benchmark") << line;
    }
    EXPECT_EQ(count, 4);
  }
  sqlite3* opened = nullptr;
  ASSERT_EQ(sqlite3_open_v2(database.c_str(), &opened, SQLITE_OPEN_READONLY, nullptr), SQLITE_OK);
  std::string found;
  const auto append = [](void* text, int, char** cells, char**) {
    return *static_cast<std::string*>(text) += std::string(cells[0]) + "|" + cells[1] + "|" + cells[2] + "|" + cells[3] + "\n", 0;
  };
  EXPECT_EQ(
      sqlite3_exec(opened, "select r.id, w.batch, w.threads, w.median_ms > 0 from rows w join runs r on w.run = r.id order by 1, 2, 3",
                   append, &found, nullptr),
      SQLITE_OK);
  EXPECT_EQ(found, "1|1|1|1\n1|1|2|1\n1|2|1|1\n1|2|2|1\n2|1|1|1\n2|1|2|1\n2|2|1|1\n2|2|2|1\n");
  sqlite3_close(opened);

  const std::string text = read_text(page);
  EXPECT_NE(text.find("\"scaling\":[{"), std::string::npos);
  EXPECT_EQ(text.find("http://") == std::string::npos ? text.npos : text.find("src="), text.npos) << "the page asks for something";
}

TEST_F(Benchmark, TellsHowTimeFallsWithThreads) {
  const Outcome outcome = run("galley-benchmark", {recipe, "sweep.threads=2,1", "--format", "json", "-q"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  ASSERT_EQ(json["scaling"].size(), 2u);
  std::map<int, double> median;
  for (const Json& row : json["rows"]) median[row["threads"]] = row["median_ms"];
  EXPECT_EQ(json["scaling"][0]["threads"], 1);
  EXPECT_EQ(json["scaling"][0]["speedup"], 1.0);
  EXPECT_DOUBLE_EQ(json["scaling"][1]["speedup"].get<double>(), median[1] / median[2]);
  EXPECT_DOUBLE_EQ(json["scaling"][1]["efficiency"].get<double>(), median[1] / median[2] / 2);
}

TEST_F(Benchmark, RefusesADatabaseBeforeItMeasures) {
  write_text(folder + "/text.db", "no database at all, but some text of a user that must not be lost\n");
  const Outcome damaged = run("galley-benchmark", {recipe, "--sqlite", folder + "/text.db"});
  EXPECT_EQ(damaged.code, 4);
  EXPECT_NE(damaged.err.find("text.db is not a database of galley-benchmark"), std::string::npos) << damaged.err;
  EXPECT_EQ(read_text(folder + "/text.db").substr(0, 11), "no database");
  const Outcome nowhere = run("galley-benchmark", {recipe, "--sqlite", folder + "/none/x.db"});
  EXPECT_EQ(nowhere.code, 7) << nowhere.err;
  const Outcome lines = run("galley-train", {recipe, "--format", "jsonl"});
  EXPECT_EQ(lines.code, 2);
  EXPECT_NE(lines.err.find("use json"), std::string::npos) << lines.err;
}

TEST_F(Benchmark, NamesMistakes) {
  const auto expect = [&](int code, const std::string& text, const std::vector<std::string>& arguments) {
    const Outcome outcome = run("galley-benchmark", arguments);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_NE(outcome.err.find(text), std::string::npos) << outcome.err;
  };
  expect(3, "did you mean 'forward'", {recipe, "what=foward"});
  expect(3, "never reaches its end", {recipe, "batch=4..1"});
  expect(3, "'benchmark.batch': '' is not a whole number", {recipe, "batch=1.."});
  expect(3, "'benchmark.threads': the value is 0", {recipe, "threads=0,1"});
  expect(2, "did you mean 'conv2d'", {"op", "conv2:mb1"});
  expect(2, "'zz' is not a size", {"op", "conv2d:mb1ic3ih8oc4kh3zz2"});
  expect(2, "the shape of 'x' is missing: batch_norm_backward takes grad + x", {"op", "batch_norm_backward:2x8x4x4:activation=relu"});
  expect(2, "there are 3 shapes, but relu takes x", {"op", "relu:8x8+8x8+8x8"});
  expect(2, "no recipe was given", {});
  expect(2, "no override 'batch=2'", {"op", "relu:8x8", "batch=2"});
  expect(2, "no override 'precision.winograd=no'", {"op", "relu:8x8", "precision.winograd=no"});
  expect(2, "no override 'threads=1'", {"machine", "threads=1"});
  expect(7, "device=ref", {"op", "relu:8x8", "--device", "rex"});
  expect(2, "-o is only for sweeps", {"op", "relu:8x8", "-o", folder + "/journal"});
  expect(2, "--html is only for sweeps", {recipe, "--compare", "batch=1", "batch=2", "--html", folder + "/page.html"});
  // Output that cannot be written is an error before the measurement. Nothing could be measured here.
  expect(7, "cannot write", {recipe, "model.type=resnet152", "--unset", "model.channels", "--html", folder + "/none/page.html"});
  expect(7, "cannot write", {recipe, "-o", folder + "/none/journal"});
  expect(7, "cannot write", {recipe, "--save", "json:" + folder + "/none/result.json"});
  expect(4, "cannot read the journal", {recipe, "-o", folder});
}

TEST_F(Benchmark, EveryOperatorHasACase) {
  const Outcome outcome = run("galley-benchmark", {"op", "--dry-run", "--format", "csv"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  // Views run nothing, and operators without inputs are not measured.
  for (const char* op : {"conv2d", "relu", "batch_norm_backward", "sgd_update", "embedding", "layer_norm", "max_pool2d", "softmax", "where",
                         "quantized_conv2d", "dynamic_quantized_linear", "lookup", "fake_quantize"}) {
    EXPECT_NE(outcome.out.find(std::string(op) + ":"), std::string::npos) << op;
  }
  const Outcome one = run("galley-benchmark", {"op", "conv2d:mb1ic8ih9oc8kh3sh2", "--format", "json", "-q"});
  ASSERT_EQ(one.code, 0) << one.err;
  const Json row = Json::parse(one.out)["rows"][0];
  EXPECT_EQ(row["flops"], 2.0 * 8 * 8 * 9 * 5 * 5);  // two flops per multiply-add, 5 x 5 results
  EXPECT_EQ(row["what"], "conv2d:mb1ic8ih9oc8kh3sh2");
  EXPECT_EQ(row["device"], "cpu");
  const Outcome other = run("galley-benchmark", {"op", "relu:8x8", "--device", "ref", "--format", "json", "-q"});
  ASSERT_EQ(other.code, 0) << other.err;
  EXPECT_EQ(Json::parse(other.out)["rows"][0]["device"], "ref");
}

/// Header of a safetensors file.
Json header_of(const std::string& path) {
  const std::string file = read_text(path);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  return Json::parse(file.substr(8, length));
}

TEST_F(Benchmark, ConvertLayoutStoresThePhysicalShapeAndComesBack) {
  ASSERT_EQ(run("galley-train", {recipe, "-o", folder + "/run", "-q"}).code, 0);
  const std::string plain = folder + "/run/weights.safetensors", last = folder + "/last.safetensors", back = folder + "/back.safetensors";
  const Outcome there = run("galley-convert-layout", {plain, "--to", "channels_last", "-o", last, "--format", "json"});
  ASSERT_EQ(there.code, 0) << there.err;
  const Json before = header_of(plain), after = header_of(last);
  EXPECT_EQ(before["conv1.weight"]["shape"], Json({8, 1, 3, 3}));
  EXPECT_EQ(after["conv1.weight"]["shape"], Json({8, 3, 3, 1}));
  EXPECT_EQ(after["conv2.weight"]["shape"], Json({8, 3, 3, 8}));
  EXPECT_EQ(Json::parse(after["__metadata__"]["galley.memory_format"].get<std::string>())["conv1.weight"], "channels_last");
  EXPECT_EQ(after["__metadata__"]["galley.recipe"], before["__metadata__"]["galley.recipe"]);
  // [O,I,H,W] -> [O,H,W,I], by hand.
  const std::string from = tensor_bytes(plain, "conv2.weight"), to = tensor_bytes(last, "conv2.weight");
  for (size_t o = 0; o < 8; ++o)
    for (size_t i = 0; i < 8; ++i)
      for (size_t k = 0; k < 9; ++k) ASSERT_EQ(to.substr(((o * 9 + k) * 8 + i) * 4, 4), from.substr(((o * 8 + i) * 9 + k) * 4, 4));
  ASSERT_EQ(run("galley-convert-layout", {last, "--to", "contiguous", "-o", back}).code, 0);
  EXPECT_EQ(header_of(back)["conv2.weight"]["shape"], before["conv2.weight"]["shape"]);
  EXPECT_EQ(tensor_bytes(back, "conv2.weight"), from);
  const auto metrics = [&](const std::string& weights) {
    const Outcome outcome = run("galley-evaluate", {recipe, "weights=" + weights, "--format", "json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out)["metrics"];
  };
  EXPECT_EQ(metrics(last), metrics(plain)) << "a converted file is the same weights to every tool";
}

TEST_F(Benchmark, ConvertLayoutNamesMistakes) {
  write_text(folder + "/junk.safetensors", "junk");
  EXPECT_EQ(run("galley-convert-layout", {folder + "/junk.safetensors", "--to", "channels_last", "-o", folder + "/x"}).code, 4);
  EXPECT_FALSE(std::filesystem::exists(folder + "/x"));
  EXPECT_EQ(run("galley-convert-layout", {folder + "/junk.safetensors", "-o", folder + "/x"}).code, 2);
  EXPECT_EQ(run("galley-convert-layout", {folder + "/junk.safetensors", "--to", "sideways", "-o", folder + "/x"}).code, 2);
}

}  // namespace
}  // namespace galley::testing_cli
