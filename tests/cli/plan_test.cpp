// galley-plan as a user runs it: the object of the contract, clusters, the search, the pages, published runs, mistakes.

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

std::string gpt_recipe(const std::string& folder, const std::string& more = "") {
  const std::string path = folder + "/gpt.yaml";
  write_text(path,
             "recipe: 1\n"
             "name: gpt\n"
             "model: {type: gpt, n_layer: 4, n_head: 4, n_embd: 64, vocab_size: 256, block_size: 64, dropout: 0}\n"
             "data: {train: {source: {type: synthetic, samples: 64, values: integer, high: 256}}}\n"
             "train: {duration: 2 steps, batch: 16, optimizer: {type: adamw, lr: 1e-3}}\n"
             "threads: 1\n" +
                 more);
  return path;
}

Json plan(const std::vector<std::string>& arguments) {
  std::vector<std::string> words = arguments;
  words.insert(words.end(), {"--format", "json", "-q"});
  const Outcome outcome = run("galley-plan", words);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome.code == 0 ? Json::parse(outcome.out) : Json();
}

TEST(Plan, GivesTheObjectOfTheContract) {
  const std::string recipe = gpt_recipe(scratch_folder());
  const Json json = plan({recipe, "--ranks", "4", "--cluster", "a100_80gb", "sharding=zero1"});
  for (const char* key :
       {"ranks", "strategy", "peak_bytes", "parameter_bytes", "gradient_bytes", "state_bytes", "activation_bytes", "communication_bytes",
        "step_ms", "compute_ms", "exposed_communication_ms", "flops", "model_flops", "mfu", "hfu", "tables", "validated", "provenance"})
    EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_EQ(json["ranks"], 4);
  EXPECT_EQ(json["strategy"], "zero1");
  EXPECT_EQ(json["peak_bytes"].size(), 4u);
  EXPECT_TRUE(json["validated"].is_null());
  EXPECT_EQ(json["provenance"]["tool"], "galley-plan");
  EXPECT_EQ(json["flops"], json["model_flops"]) << "nothing is recomputed";
  EXPECT_TRUE(json["fits"].get<bool>());
  // AdamW: two f32 moments, divided; every rank has all parameters.
  const double parameters = json["parameter_bytes"][0], state = json["state_bytes"][0];
  EXPECT_NEAR(state, 2 * parameters / 4, 1e-9 * parameters);
  const Json full = plan({recipe, "--ranks", "4", "--cluster", "a100_80gb", "sharding=fsdp"});
  EXPECT_NEAR(full["parameter_bytes"][3].get<double>(), parameters / 4, 0.02 * parameters);
  const double sent = 0.75 * parameters;
  EXPECT_NEAR(json["communication_bytes"]["reduce_scatter"].get<double>(), sent, 0.02 * sent);
  EXPECT_NEAR(json["communication_bytes"]["all_gather"].get<double>(), sent, 0.02 * sent);
  EXPECT_EQ(json["communication_bytes"]["all_reduce"], 0);
}

TEST(Plan, RecomputationCostsFlopsAndSavesMemory) {
  const std::string recipe = gpt_recipe(scratch_folder());
  const Json plain = plan({recipe, "--cluster", "h100_sxm"}), again = plan({recipe, "--cluster", "h100_sxm", "train.recompute=full"});
  EXPECT_EQ(plain["model_flops"], again["model_flops"]);
  EXPECT_GT(again["flops"].get<double>(), plain["flops"].get<double>());
  EXPECT_LT(again["activation_bytes"][0].get<double>(), plain["activation_bytes"][0].get<double>());
  EXPECT_LT(again["mfu"].get<double>(), again["hfu"].get<double>());
}

TEST(Plan, MoreRanksThanOnePipeline) {
  const std::string recipe = gpt_recipe(scratch_folder());
  const Json json =
      plan({recipe, "--ranks", "4", "--cluster", "a100_80gb", "sharding={strategy: pipeline, stages: 2}", "train.batch.micro=2"});
  EXPECT_EQ(json["mesh"]["pipe"], 2);
  EXPECT_EQ(json["mesh"]["data"], 2);
  EXPECT_EQ(json["accumulation"], 4);
  EXPECT_GT(json["bubble_ms"].get<double>(), 0);
  EXPECT_GT(json["communication_bytes"]["send"].get<double>(), 0);
  const Json tensor = plan({recipe, "--ranks", "2", "--cluster", "a100_80gb", "sharding=tensor"});
  EXPECT_EQ(tensor["mesh"]["tensor"], 2);
  EXPECT_GT(tensor["communication_bytes"]["all_reduce"].get<double>(), 0);
}

TEST(Plan, StagesBeginWhereTheRecipeSays) {
  const std::string recipe = gpt_recipe(scratch_folder(), "sharding: {strategy: pipeline, split: [transformer.h.1, transformer.h.3]}\n");
  const Json json = plan({recipe, "--ranks", "3", "--cluster", "a100_80gb"});
  ASSERT_EQ(json["stages"].size(), 3u);
  EXPECT_EQ(json["stages"][1]["begins"][0].get<std::string>().rfind("transformer.h.1.", 0), 0u) << json["stages"];
  EXPECT_EQ(json["stages"][2]["begins"][0].get<std::string>().rfind("transformer.h.3.", 0), 0u) << json["stages"];
  const auto refused = [&](const std::vector<std::string>& overrides, const std::string& text) {
    std::vector<std::string> words{recipe, "--ranks", "3", "--cluster", "a100_80gb"};
    words.insert(words.end(), overrides.begin(), overrides.end());
    const Outcome outcome = run("galley-plan", words);
    EXPECT_EQ(outcome.code, 3) << outcome.err;
    EXPECT_NE(outcome.err.find(text), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("sharding"), std::string::npos) << "the line is shown: " << outcome.err;
  };
  refused({"sharding.split=transformer.h.1,transformer.h.7"}, "names 'transformer.h.7', but no module of that name");
  refused({"sharding.split=transformer.h.2,transformer.h.1"}, "but it computes earlier");
  refused({"sharding.split=transformer.h.1"}, "names 1 module, but 3 parts begin at 2");
  refused({"sharding.offload.parameters=host"}, "does not apply to pipelines");
  refused({"sharding.tables=row_wise"}, "does not apply to pipelines");
}

/// Two tables, read by lookups of one and of four rows, and a small network.
std::string tables_recipe(const std::string& folder) {
  const std::string path = folder + "/tables.yaml";
  write_text(path,
             "recipe: 1\n"
             "name: ratings\n"
             "model:\n"
             "  type: layers\n"
             "  input: {shape: [4], dtype: i64}\n"
             "  layers:\n"
             "    - {name: user, type: embedding, num_embeddings: 400000, embedding_dim: 16}\n"
             "    - {name: flat, type: flatten}\n"
             "    - {name: day, type: embedding, inputs: [in], num_embeddings: 1000, embedding_dim: 16}\n"
             "    - {name: flat_day, type: flatten}\n"
             "    - {name: both, type: concat, inputs: [flat, flat_day], dim: 1}\n"
             "    - {name: fc, type: linear, out_features: 2}\n"
             "loss: cross_entropy\n"
             "data: {train: {source: {type: synthetic, samples: 64, values: integer, high: 1000}}}\n"
             "train: {duration: 2 steps, batch: 16, optimizer: {type: adamw, lr: 1e-3}}\n"
             "threads: 1\n");
  return path;
}

TEST(Plan, TablesAreDivided) {
  const std::string recipe = tables_recipe(scratch_folder());
  const double user = 400000 * 16 * 16.0;  // parameters, gradients and two moments, in f32
  const Json json = plan({recipe, "--ranks", "4", "--cluster", "a100_80gb"});
  ASSERT_EQ(json["tables"].size(), 2u) << "most parameters are in tables: auto divides them";
  EXPECT_EQ(json["tables"][0]["name"], "user.weight");
  EXPECT_NE(json["tables"][0]["sharding"], "data_parallel");
  EXPECT_EQ(json["tables"][1]["name"], "day.weight");
  const Json rows = plan({recipe, "--ranks", "4", "--cluster", "a100_80gb", "sharding.tables=row_wise"});
  EXPECT_EQ(rows["tables"][0]["sharding"], "row_wise");
  EXPECT_DOUBLE_EQ(rows["tables"][0]["bytes"].get<double>(), user / 4);
  EXPECT_NEAR(rows["parameter_bytes"][3].get<double>(), (400000 + 1000) * 16 * 4 / 4, 5000) << "and a small layer";
  EXPECT_GT(rows["communication_bytes"]["reduce_scatter"].get<double>(), 0);
  // One rank holds the large table, each the small one.
  const Json one = plan({recipe, "--ranks", "4", "--cluster", "a100_80gb",
                         "sharding.tables={sharding: data_parallel, overrides: [{match: user, sharding: table_wise}]}"});
  ASSERT_EQ(one["tables"][0]["ranks"].size(), 1u);
  const int64_t holder = one["tables"][0]["ranks"][0];
  const double with = one["parameter_bytes"][static_cast<size_t>(holder)],
               without = one["parameter_bytes"][static_cast<size_t>((holder + 1) % 4)];
  EXPECT_NEAR(with - without, 400000 * 16 * 4, 1);
  EXPECT_NEAR(
      one["peak_bytes"][static_cast<size_t>(holder)].get<double>() - one["peak_bytes"][static_cast<size_t>((holder + 1) % 4)].get<double>(),
      user, 1);
  const Json whole = plan({recipe, "--ranks", "4", "--cluster", "a100_80gb", "sharding.tables=data_parallel"});
  EXPECT_GT(whole["communication_bytes"]["all_reduce"].get<double>(), 1.4 * 401000 * 16 * 4) << "dense gradients";
  const auto refused = [&](const std::vector<std::string>& overrides, int code, const std::string& text) {
    std::vector<std::string> words{recipe, "--ranks", "3", "--cluster", "a100_80gb", "train.batch=18"};
    words.insert(words.end(), overrides.begin(), overrides.end());
    const Outcome outcome = run("galley-plan", words);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_NE(outcome.err.find(text), std::string::npos) << outcome.err;
  };
  refused({"sharding.tables=column_wise"}, 3, "16 columns, which 3 ranks cannot divide");
  refused({"sharding.tables={overrides: [{match: usr, sharding: row_wise}]}"}, 3, "usr");
}

TEST(Plan, HostIsTheDeviceOnACpu) {
  const std::string recipe = gpt_recipe(scratch_folder());
  const Outcome noted = run("galley-plan", {recipe, "--ranks", "2", "--dry-run", "--format", "json", "sharding.offload.optimizer=host"});
  ASSERT_EQ(noted.code, 0) << noted.err;
  EXPECT_NE(noted.err.find("host changes nothing on a CPU"), std::string::npos) << noted.err;
  const Json plain = plan({recipe, "--ranks", "2", "--dry-run"}),
             disk = plan({recipe, "--ranks", "2", "--dry-run", "sharding.offload.optimizer=disk"});
  EXPECT_EQ(Json::parse(noted.out)["peak_bytes"], plain["peak_bytes"]);
  EXPECT_LT(disk["peak_bytes"][0].get<double>(), plain["peak_bytes"][0].get<double>());
  EXPECT_GT(disk["step_ms"].get<double>(), plain["step_ms"].get<double>());
}

TEST(Plan, RecomputationByModule) {
  const std::string recipe = gpt_recipe(scratch_folder());
  const auto bytes = [&](const std::string& policy) {
    return plan({recipe, "--cluster", "h100_sxm", "train.recompute=" + policy})["activation_bytes"][0].get<double>();
  };
  const double none = bytes("null"), one = bytes("{match: [transformer.h.0]}"), all = bytes("full");
  EXPECT_LT(one, none);
  EXPECT_LT(all, one);
}

TEST(Plan, ThisMachineIsMeasured) {
  const std::string recipe = gpt_recipe(scratch_folder());
  const Json json = plan({recipe, "--validate", "3"});
  EXPECT_EQ(json["ranks"], 1);
  EXPECT_EQ(json["strategy"], "none");
  EXPECT_GT(json["step_ms"].get<double>(), 0);
  EXPECT_GT(json["validated"]["step_ms"].get<double>(), 0);
  EXPECT_GE(json["validated"]["steps"], 3);
  EXPECT_LE(json["validated"]["fastest_step_ms"].get<double>(), json["validated"]["step_ms"].get<double>());
  EXPECT_GT(json["validated"]["arena_bytes"].get<int64_t>(), 0);
  const int64_t arena = json["validated"]["arena_bytes"], planned = json["validated"]["planned_arena_bytes"];
  EXPECT_TRUE(arena >= planned && arena < planned + (2 << 20)) << "memory is placed as planned, in huge pages: " << arena << ' ' << planned;
  // Peak memory of one rank is that of the compiled program, which galley-train prints before its first step.
  const Outcome dry = run("galley-train", {recipe, "--dry-run", "--format", "json", "-q"});
  ASSERT_EQ(dry.code, 0) << dry.err;
  EXPECT_LE(json["peak_bytes"][0].get<int64_t>(), Json::parse(dry.out)["planned_peak_bytes"].get<int64_t>());
  const Outcome text = run("galley-plan", {recipe, "--ranks", "2", "-q"});
  ASSERT_EQ(text.code, 0) << text.err;
  for (const char* word : {"2 on local, ddp, data 2", "optimizer state", "MFU"})
    EXPECT_NE(text.out.find(word), std::string::npos) << word << text.out;
}

TEST(Plan, TheSearchWritesAFragment) {
  const std::string folder = scratch_folder(), recipe = gpt_recipe(folder), cluster = folder + "/c.yaml", fragment = folder + "/fit.yaml";
  write_text(cluster, "gpu: a100_40gb\nper_node: 4\nnetwork: 100Gb/s\nnetwork_share: 50%\nmemory: 6MiB\n");
  const Outcome big = run("galley-plan", {recipe, "--ranks", "4", "--cluster", cluster});
  EXPECT_EQ(big.code, 0);
  EXPECT_NE(big.err.find("needs"), std::string::npos) << big.err;
  const Json json = plan({recipe, "--ranks", "4", "--cluster", cluster, "--fit", "6MiB", "-o", fragment});
  EXPECT_LE(json["peak_bytes"][0].get<double>(), 6 << 20);
  EXPECT_GT(json["fit"]["tried"].get<int64_t>(), 10);
  const Json same = plan({recipe, "--ranks", "4", "--cluster", cluster, "--with", fragment});
  EXPECT_EQ(same["peak_bytes"], json["peak_bytes"]);
  EXPECT_EQ(same["step_ms"], json["step_ms"]);
  const Outcome none = run("galley-plan", {recipe, "--cluster", cluster, "--fit", "1KiB", "--format", "json", "-q"});
  EXPECT_EQ(none.code, 6) << "the goal is missed, the result is written";
  EXPECT_TRUE(Json::parse(none.out)["fit"].is_null());
  EXPECT_NE(Json::parse(none.out)["rejected"][0]["reason"].get<std::string>().find("does not fit: the least needs"), std::string::npos);
}

/// Finds settings, and plans with the fragment: both must agree.
Json fitted(std::vector<std::string> words, const std::string& size, const std::string& fragment) {
  std::vector<std::string> search = words;
  search.insert(search.end(), {"--fit", size, "-o", fragment});
  const Json found = plan(search);
  words.insert(words.end(), {"--with", fragment});
  const Json same = plan(words);
  for (const char* key : {"peak_bytes", "step_ms", "mesh", "strategy", "micro", "stages"})
    EXPECT_EQ(same[key], found[key]) << key << " of " << read_text(fragment);
  return found;
}

TEST(Plan, TheSearchTriesMeshes) {
  const std::string folder = scratch_folder(), cluster = folder + "/c.yaml", fragment = folder + "/fit.yaml";
  // A large model on few devices of slow nodes: neither copies nor gathers of the whole model are cheap.
  const std::string recipe = folder + "/large.yaml";
  write_text(recipe,
             "recipe: 1\n"
             "name: large\n"
             "model: {type: gpt, n_layer: 24, n_head: 32, n_embd: 4096, vocab_size: 50257, block_size: 1024, dropout: 0}\n"
             "data: {train: {source: {type: synthetic, samples: 64, values: integer, high: 50257}}}\n"
             "train: {duration: 2 steps, batch: 64, optimizer: {type: adamw, lr: 1e-3}}\n"
             "precision: bf16\n"
             "sharding: {strategy: fsdp, wrap: 10M, offload: {optimizer: host}}\n");
  write_text(cluster, "gpu: a100_40gb\nper_node: 4\nnetwork: 10Gb/s\nnetwork_share: 50%\n");
  const Json json = fitted({recipe, "--ranks", "16", "--cluster", cluster}, "36GiB", fragment);
  EXPECT_GT(json["mesh"]["pipe"].get<int64_t>() * json["mesh"]["tensor"].get<int64_t>(), 1) << json["fit"]["settings"];
  EXPECT_LE(json["peak_bytes"][0].get<double>(), 36.0 * (1 << 30));
  int64_t counted = 1;
  for (const Json& item : json["rejected"]) counted += item["candidates"].get<int64_t>();
  EXPECT_EQ(counted, json["fit"]["tried"].get<int64_t>()) << "each candidate has a reason";
  for (const char* words : {"does not fit: the least needs", "is not faster", "galley-train cannot train this yet"})
    EXPECT_NE(json["rejected"].dump().find(words), std::string::npos) << words << json["rejected"];
}

// `galley-plan published` finds that inputs of layers do not fit. The plan of the same sizes keeps fewer values than one for each layer,
// and does not fit either.
TEST(Plan, TheLargestRunDoesNotFitAndASearchHelps) {
  const std::string folder = scratch_folder(), recipe = folder + "/gpt_1t.yaml", cluster = folder + "/p4d.yaml";
  write_text(recipe,
             "recipe: 1\n"
             "name: gpt_1t\n"
             "model: {type: gpt, n_layer: 128, n_head: 160, n_embd: 25600, vocab_size: 50257, block_size: 2048, dropout: 0}\n"
             "data: {train: {source: {type: synthetic, samples: 64, values: integer, high: 50257}}}\n"
             "train: {duration: 2 steps, batch: 512, recompute: full, optimizer: {type: sgd, lr: 1e-3, momentum: 0.9}}\n"
             "precision: bf16\n"
             "sharding: {strategy: fsdp, hook: bf16, offload: {parameters: host, gradients: host, optimizer: host}}\n");
  write_text(cluster, "gpu: a100_40gb\nnetwork: 400Gb/s\nnetwork_share: 25%\nallocator: serialises\n");
  const Outcome published = run("galley-plan", {recipe, "--ranks", "128", "--cluster", cluster, "--format", "json"});
  ASSERT_EQ(published.code, 0) << published.err;
  EXPECT_NE(published.err.find("of it arrays of the operators that run), but a device of"), std::string::npos) << published.err;
  const Json serial = Json::parse(published.out), hidden = plan({recipe, "--ranks", "128", "--cluster", "a100_40gb_p4d"});
  EXPECT_FALSE(serial["fits"].get<bool>());
  EXPECT_GT(serial["step_ms"].get<double>(), 1.1 * hidden["step_ms"].get<double>()) << "no gather beside computation";
  EXPECT_LE(serial["host_bytes"].get<double>(), 1.15e12) << "states of 128 ranks fit 16 hosts";
  const Json found = fitted({recipe, "--ranks", "128", "--cluster", cluster, "sharding.mesh.shard=128"}, "36GiB", folder + "/fit.yaml");
  EXPECT_LE(found["peak_bytes"][0].get<double>(), 36.0 * (1 << 30));
  EXPECT_LE(found["host_bytes"].get<double>(), 1.15e12);
  // Replicas of the offloaded states do not.
  const Outcome copies = run("galley-plan", {recipe, "--ranks", "128", "--cluster", cluster, "sharding.strategy=hybrid",
                                             "train.batch.micro=1", "sharding.wrap=10M"});
  EXPECT_NE(copies.err.find("but a host of"), std::string::npos) << copies.err;
}

TEST(Plan, AnswersWhatChangesWouldDo) {
  const std::string recipe = gpt_recipe(scratch_folder());
  const Json json = plan({recipe, "--ranks", "2", "--cluster", "a100_40gb_p4d", "sharding=fsdp", "--effects"});
  std::string changes;
  for (const Json& effect : json["effects"]) changes += effect["key"].get<std::string>() + ' ';
  for (const char* key : {"--ranks", "sharding.strategy", "sharding.wrap", "sharding.reshard_after_forward", "train.recompute",
                          "sharding.offload", "sharding.hook"})
    EXPECT_NE(changes.find(key), std::string::npos) << key << " is not among " << changes;
  EXPECT_GT(json["limits"]["micro"].get<int64_t>(), 16);
  EXPECT_EQ(json["limits"]["sequence"], 64) << "the model reads no more";
}

/// A row of the table of questions in docs/tools.md: words of the command without the tool, key of the answer and its item.
struct Question {
  std::vector<std::string> words;
  std::string key, item;
};

std::vector<Question> questions() {
  const std::string page = read_text(GALLEY_SOURCE_DIR "/docs/tools.md");
  const size_t begin = page.find("| question | command | answer |");
  EXPECT_NE(begin, std::string::npos);
  std::vector<Question> all;
  std::istringstream lines(page.substr(begin, page.find("\n\n", begin) - begin));
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> spans;  // the texts between backticks
    std::istringstream parts(line);
    for (std::string part; std::getline(parts, part, '`');) spans.push_back(part);
    if (spans.size() < 4) continue;
    Question question{.words = {}, .key = spans[3], .item = spans.size() > 5 ? spans[5] : ""};
    std::istringstream command(spans[1]);
    for (std::string word; command >> word;) question.words.push_back(word);
    question.words.erase(question.words.begin());
    all.push_back(std::move(question));
  }
  return all;
}

TEST(Plan, AnswersTheQuestionsOfThePage) {
  const std::string recipe = gpt_recipe(scratch_folder());
  const std::vector<Question> all = questions();
  EXPECT_EQ(all.size(), 9u);
  for (Question question : all) {
    std::replace(question.words.begin(), question.words.end(), std::string("R"), recipe);
    const Json json = plan(question.words);
    ASSERT_TRUE(json.contains(question.key)) << question.key;
    if (question.key == "limits") {
      EXPECT_GT(json["limits"][question.item].get<int64_t>(), 0) << question.item;
    }
    if (question.key != "effects") continue;
    // Each change is planned, and one of them at least changes memory or time.
    int64_t planned = 0, changes = 0;
    const Json& same = json["effects"][0];
    for (const Json& effect : json["effects"]) {
      if (effect["key"] != question.item) continue;
      EXPECT_TRUE(effect["reason"].is_null()) << effect;
      ++planned;
      changes += effect["peak_bytes"] != same["peak_bytes"] || effect["step_ms"] != same["step_ms"];
    }
    EXPECT_GE(planned, 1) << question.item;
    EXPECT_GE(changes, 1) << question.item;
  }
}

TEST(Plan, PagesAndTraces) {
  const std::string folder = scratch_folder(), recipe = gpt_recipe(folder);
  plan({recipe, "--ranks", "8", "--cluster", "a100_80gb", "sharding=fsdp", "sharding.wrap=10k", "--html", folder + "/p.html", "--trace",
        folder + "/t.json"});
  EXPECT_NE(read_text(folder + "/p.html").find("<title>galley-plan</title>"), std::string::npos);
  const Json trace = Json::parse(read_text(folder + "/t.json"));
  bool gathers = false;
  for (const Json& event : trace["traceEvents"]) gathers = gathers || event["name"].get<std::string>().starts_with("all_gather");
  EXPECT_TRUE(gathers);
}

TEST(Plan, PublishedRunsAndClusters) {
  const Outcome rows = run("galley-plan", {"published", "--format", "json"});
  ASSERT_EQ(rows.code, 0) << rows.err;
  const Json json = Json::parse(rows.out);
  EXPECT_GE(10 * json["within_20_percent"].get<int64_t>(), 8 * static_cast<int64_t>(json["rows"].size()));
  const Outcome text = run("galley-plan", {"published"});
  EXPECT_NE(text.out.find("GPT-1T, 128 A100-40GB: does not fit as published"), std::string::npos) << text.out;
  const Outcome clusters = run("galley-plan", {"clusters"});
  EXPECT_EQ(clusters.code, 0);
  EXPECT_NE(clusters.out.find("a100_40gb_p4d"), std::string::npos);
}

TEST(Plan, MistakesNameWhatIsRight) {
  const std::string folder = scratch_folder(), recipe = gpt_recipe(folder), cluster = folder + "/c.yaml";
  const auto said = [](const Outcome& outcome, int code, const std::string& text) {
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_NE(outcome.err.find(text), std::string::npos) << text << " is not in " << outcome.err;
    EXPECT_TRUE(outcome.out.empty());
  };
  said(run("galley-plan", {recipe, "--cluster", "a100_80g"}), 2, "did you mean 'a100_80gb'?");
  said(run("galley-plan", {recipe, "--cluster", "h100_sxm", "--fit", "lots"}), 2, "--fit: ");
  EXPECT_EQ(run("galley-plan", {recipe, "--cluster", "h100_sxm", "precision=f16"}).err.find("no f16 kernels"), std::string::npos);
  said(run("galley-plan", {recipe, "--cluster", "h100_sxm", "--validate", "2"}), 2, "runs on this machine");
  said(run("galley-plan", {recipe, "-o", folder + "/x.yaml"}), 2, "only for --fit");
  said(run("galley-plan", {recipe, "--ranks", "3", "--cluster", "h100_sxm"}), 3, "is not a multiple of the 3 ranks");
  said(run("galley-plan", {recipe, "--ranks", "4", "--cluster", "h100_sxm", "sharding.mesh.data=3"}), 3, "but the job has 4");
  write_text(cluster, "# nothing\n");
  said(run("galley-plan", {recipe, "--cluster", cluster}), 3, "c.yaml: error: does not have the keys of a cluster");
  said(run("galley-plan", {recipe, "--cluster", "h100_sxm", "sharding={strategy: pipeline, hook: bf16}"}), 3, "do not round gradients");
  write_text(cluster, "gpu: a100_41gb\n");
  said(run("galley-plan", {recipe, "--cluster", cluster}), 3, "did you mean 'a100_40gb'?");
  write_text(cluster, "gpu: a100_40gb\nnetwork: 400\n");
  said(run("galley-plan", {recipe, "--cluster", cluster}), 3, "is not a rate");
}

}  // namespace
}  // namespace galley::testing_cli
