// LoRA as a user runs it: an adapter that PEFT wrote trains as in PEFT (tests/golden/lora, made by tests/golden/nn/make_lora.py), the base
// keeps its bits, only adapters have state of the optimizer, merged weights give the same results, and mistakes have one error.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

const std::string kLora = GALLEY_SOURCE_DIR "/tests/golden/lora";
/// Elements of the adapters: A [3,8] and B [24,3] of c_attn, A [3,8] and B [32,3] of c_fc, in two blocks.
constexpr int kTrained = 2 * (3 * 8 + 24 * 3 + 3 * 8 + 32 * 3);

std::string recipe_file(const std::string& folder) {
  const std::string path = folder + "/lora.yaml";
  write_text(path,
             "recipe: 1\nname: lora\nthreads: 1\n"
             "model: {type: gpt, n_layer: 2, n_head: 2, n_embd: 8, block_size: 6, vocab_size: 7, dropout: 0}\n"
             "data:\n  root: " +
                 kLora +
                 "\n"
                 "  train: {source: {type: tensors, path: data.safetensors}, shuffle: false}\n"
                 "  val: {from: train, batch: 20}\n"
                 "train: {duration: 5 steps, batch: 4, validate: null, optimizer: {type: adamw, lr: 0.01, weight_decay: 0.1}}\n"
                 "checkpoint: {every: 1 step}\nlog: {every: 1 step}\n");
  return path;
}

const std::string kBase = "weights=" + kLora + "/base.safetensors";

/// The tensors of a file of f32 values.
std::map<std::string, std::vector<float>> floats_of(const std::string& path) {
  const std::string bytes = read_text(path);
  uint64_t size = 0;
  if (bytes.size() < sizeof size) return {};
  std::memcpy(&size, bytes.data(), sizeof size);
  std::map<std::string, std::vector<float>> values;
  const Json header = Json::parse(bytes.substr(8, size));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__" || entry["dtype"] != "F32") continue;
    const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    values[name].resize((end - begin) / sizeof(float));
    std::memcpy(values[name].data(), bytes.data() + 8 + size + begin, end - begin);
  }
  return values;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], tolerance) << what << " element " << i;
}

TEST(Lora, FiveStepsOfAdamwAreThoseOfPeft) {
  const std::string folder = scratch_folder(), recipe = recipe_file(folder), run_folder = folder + "/run";
  const std::vector<std::string> arguments{recipe, kBase, "lora.load=" + kLora + "/start", "-o", run_folder, "--format", "json"};
  std::vector<std::string> dry = arguments;
  dry.push_back("-n");
  const Outcome planned = run("galley-train", dry);
  ASSERT_EQ(planned.code, 0) << planned.err;
  const Json plan = Json::parse(planned.out);
  EXPECT_EQ(plan["trainable"], kTrained);
  EXPECT_EQ(plan["adapters"], 4);
  EXPECT_EQ(plan["state_bytes"], 2 * 4 * kTrained) << "two f32 numbers for each trained one";
  const Outcome trained = run("galley-train", arguments);
  ASSERT_EQ(trained.code, 0) << trained.err;

  // The golden losses are float64; the largest deviation of PyTorch's own float32 run is 3e-7 times 2.5.
  const Json expected = Json::parse(read_text(kLora + "/expected.json"))["losses"];
  std::istringstream journal(read_text(run_folder + "/metrics.jsonl"));
  size_t step = 0;
  for (std::string line; std::getline(journal, line);) {
    const Json row = Json::parse(line);
    if (row["kind"] != "train") continue;
    EXPECT_NEAR(row["loss"].get<double>(), expected[step].get<double>(), 1e-5) << step;
    ++step;
  }
  EXPECT_EQ(step, 5u);

  // AdamW moves an element by up to 0.01 a step, whatever its gradient: rounding of small gradients shows.
  const auto adapter = floats_of(run_folder + "/adapter/adapter_model.safetensors");
  const auto peft = floats_of(kLora + "/trained/adapter_model.safetensors"), start = floats_of(kLora + "/start/adapter_model.safetensors");
  ASSERT_EQ(adapter.size(), 8u);
  for (const auto& [name, values] : peft) {
    ASSERT_TRUE(adapter.contains(name)) << name;
    expect_near(adapter.at(name), values, 1e-4, name);
    EXPECT_NE(adapter.at(name), start.at(name)) << name;
  }
  const Json config = Json::parse(read_text(run_folder + "/adapter/adapter_config.json"));
  EXPECT_EQ(config["peft_type"], "LORA");
  EXPECT_EQ(config["r"], 3);
  EXPECT_EQ(config["lora_alpha"], 6);
  EXPECT_EQ(config["task_type"], "CAUSAL_LM");
  EXPECT_EQ(config["bias"], "none");
  EXPECT_EQ(config["fan_in_fan_out"], false);
  EXPECT_EQ(config["base_model_name_or_path"], kLora + "/base.safetensors");
  EXPECT_EQ(config["target_modules"],
            Json({"transformer.h.0.attn.c_attn", "transformer.h.0.mlp.c_fc", "transformer.h.1.attn.c_attn", "transformer.h.1.mlp.c_fc"}));

  // The base keeps its bits, and only adapters have state.
  const auto base = floats_of(kLora + "/base.safetensors"), all = floats_of(run_folder + "/weights.safetensors");
  EXPECT_EQ(all.size(), base.size() + 8);
  for (const auto& [name, values] : base) EXPECT_EQ(all.at(name), values) << name;
  size_t states = 0;
  for (const auto& entry : fs::recursive_directory_iterator(run_folder + "/checkpoints")) {
    if (entry.path().filename().string().find("optimizer") == std::string::npos || entry.path().extension() != ".safetensors") continue;
    for (const auto& [name, values] : floats_of(entry.path().string())) {
      EXPECT_NE(name.find(".lora_"), std::string::npos) << name;
      ++states;
    }
  }
  EXPECT_GE(states, 16u) << "in each checkpoint";
}

TEST(Lora, MergedWeightsGiveTheSameResults) {
  const std::string folder = scratch_folder(), recipe = recipe_file(folder), merged = folder + "/merged.safetensors";
  const Outcome outcome =
      run("galley-weights", {"merge-lora", kLora + "/base.safetensors", kLora + "/trained", "-o", merged, "--format", "json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json["layers"], 4);
  EXPECT_EQ(json["rank"], 3);
  EXPECT_EQ(json["replaced"], 0);
  const auto got = floats_of(merged), expected = floats_of(kLora + "/merged.safetensors");
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, values] : expected) expect_near(got.at(name), values, 5e-7, name);  // PEFT's sums are in f32
  const auto logits = floats_of(kLora + "/merged_logits.safetensors").at("logits");
  const auto predict = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{recipe, "--tensors", kLora + "/data.safetensors", "-o", folder + "/out.safetensors", "-q"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome predicted = run("galley-predict", arguments);
    EXPECT_EQ(predicted.code, 0) << predicted.err;
    return floats_of(folder + "/out.safetensors")["output"];
  };
  expect_near(predict({"weights=" + merged}), logits, 2e-5, "merged");
  expect_near(predict({kBase, "lora.load=" + kLora + "/trained"}), logits, 2e-5, "base and adapter");
}

// GPT-2's files have weights [in, out]; those of runs are [out, in]. Of attn.c_proj the shape does not tell.
TEST(Lora, MergesIntoBothOrientations) {
  const std::string folder = scratch_folder(), gpt2 = GALLEY_SOURCE_DIR "/tests/golden/hub/gpt2", peft = kLora + "/gpt2";
  const auto logits = floats_of(peft + "/expected.safetensors").at("logits");
  const auto merged = [&](const std::string& base, const std::string& adapter) {
    const Outcome outcome = run("galley-weights", {"merge-lora", base, adapter, "-o", folder + "/merged.safetensors"});
    EXPECT_EQ(outcome.code, 0) << base << "\n" << outcome.err;
  };
  const auto expect_logits = [&](std::vector<std::string> model, const std::string& what) {
    model.insert(model.end(), {"--tensors", peft + "/expected.safetensors", "-o", folder + "/out.safetensors", "threads=1", "-q"});
    const Outcome predicted = run("galley-predict", model);
    ASSERT_EQ(predicted.code, 0) << predicted.err;
    expect_near(floats_of(folder + "/out.safetensors")["logits"], logits, 2e-4, what);
  };
  // An adapter of Galley says that no weight is exchanged.
  fs::create_directory(folder + "/own");
  fs::copy(peft + "/adapter_model.safetensors", folder + "/own/adapter_model.safetensors");
  Json config = Json::parse(read_text(peft + "/adapter_config.json"));
  config["fan_in_fan_out"] = false;
  write_text(folder + "/own/adapter_config.json", config.dump());
  fs::create_directory(folder + "/elsewhere");
  fs::copy(gpt2 + "/model.safetensors", folder + "/elsewhere/model.safetensors");
  for (const std::string& adapter : {peft, folder + "/own"}) {
    for (const std::string& base : {gpt2, gpt2 + "/model.safetensors", folder + "/elsewhere/model.safetensors"}) {
      merged(base, adapter);
      fs::remove_all(folder + "/model");
      fs::create_directory(folder + "/model");
      fs::copy(gpt2 + "/config.json", folder + "/model/config.json");
      fs::copy(folder + "/merged.safetensors", folder + "/model/model.safetensors");
      expect_logits({folder + "/model"}, base + " and " + adapter);
    }
  }
  // A run that changes next to nothing.
  write_text(folder + "/r.yaml",
             "recipe: 1\nname: gpt2\nmodel: {type: hub, path: " + gpt2 + "}\ndata:\n  train: {source: {type: tensors, path: " + kLora +
                 "/data.safetensors}}\ntrain: {duration: 1 step, batch: 4, optimizer: {type: sgd, lr: 1e-12}}\nthreads: 1\n");
  const Outcome trained = run("galley-train", {folder + "/r.yaml", "weights=" + gpt2, "-o", folder + "/run", "-q"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  for (const std::string& adapter : {peft, folder + "/own"}) {
    for (const char* base : {"/run", "/run/weights.safetensors"}) {
      merged(folder + base, adapter);
      expect_logits({folder + "/run", "weights=" + folder + "/merged.safetensors"}, base + (" and " + adapter));
    }
  }
}

TEST(Lora, ARunContinuesAndIsEvaluatedAndMerged) {
  const std::string folder = scratch_folder(), recipe = recipe_file(folder);
  const std::vector<std::string> lora{recipe, kBase, "lora={rank: 2, alpha: 3, dropout: 0.25, match: [\"*c_attn\", \"*mlp.c_proj\"]}",
                                      "-q"};
  const auto train = [&](const std::string& to, std::vector<std::string> more) {
    std::vector<std::string> arguments = lora;
    arguments.insert(arguments.end(), {"-o", folder + "/" + to});
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run("galley-train", arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
  };
  train("whole", {});
  train("parts", {"duration=3 steps"});
  train("parts", {});
  EXPECT_EQ(tensor_bytes(folder + "/whole/weights.safetensors"), tensor_bytes(folder + "/parts/weights.safetensors"));

  const auto loss = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--format", "json", "-q"});
    const Outcome outcome = run("galley-evaluate", arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? Json::parse(outcome.out)["metrics"]["loss"].get<double>() : 0.0;
  };
  const double of_run = loss({folder + "/whole"}), of_base = loss({recipe, kBase});
  EXPECT_GT(std::abs(of_run - of_base), 1e-3);
  EXPECT_NEAR(of_run, loss({recipe, kBase, "lora.load=" + folder + "/whole/adapter"}), 1e-7);
  // The base may be the run itself, whose weights hold the adapters too.
  for (const std::string& base : {kLora + "/base.safetensors", folder + "/whole"}) {
    const std::string merged = folder + "/merged.safetensors";
    const Outcome outcome = run("galley-weights", {"merge-lora", base, folder + "/whole/adapter", "-o", merged});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NEAR(of_run, loss({recipe, "weights=" + merged}), 1e-5) << base;
  }
  const Outcome plain = run("galley-evaluate", {recipe, "weights=" + folder + "/whole", "-q"});
  EXPECT_EQ(plain.code, 4);
  EXPECT_NE(plain.err.find("these weights hold adapters (lora): name their run as the recipe (galley-predict " + folder + "/whole"),
            std::string::npos)
      << plain.err;
  // A run started from this one continues its adapters.
  const Outcome next = run("galley-train", {folder + "/whole", "duration=1 step", "-o", folder + "/next", "-q"});
  ASSERT_EQ(next.code, 0) << next.err;
  EXPECT_LT(std::abs(loss({folder + "/next"}) - of_run), std::abs(of_run - of_base));
}

TEST(Lora, FineTunesAnEncoderOfAHubWithItsNewHead) {
  const std::string folder = scratch_folder(), bert = std::string(GALLEY_SOURCE_DIR) + "/tests/golden/hub/bert_base";
  std::string rows;
  for (int i = 0; i < 12; ++i)
    rows += "a very good film\t1\nthe story is fine and good .\t1\na bad film\t0\nthe story is dull , not good\t0\n";
  write_text(folder + "/train.tsv", rows);
  write_text(folder + "/dev.tsv", rows);
  const Outcome trained =
      run("galley-train",
          {"sst2_bert", "weights=" + bert, "lora={rank: 4, match: [\"*.query\", \"*.value\"], train: [classifier]}", "data.root=" + folder,
           "train.duration=12 epochs", "batch=12", "optimizer.lr=0.03", "train.schedule=[]", "data.train.source.max_length=16",
           "data.val.source.max_length=16", "data.train.pipeline.bucket.lengths=8,16", "threads=1", "-o", folder + "/run"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_GE(Json::parse(read_text(folder + "/run/result.json"))["metrics"]["top1"].get<double>(), 75.0) << "50 at random";
  const Json config = Json::parse(read_text(folder + "/run/adapter/adapter_config.json"));
  EXPECT_EQ(config["modules_to_save"], Json({"classifier"}));
  EXPECT_EQ(config["task_type"], "SEQ_CLS");
  const auto adapter = floats_of(folder + "/run/adapter/adapter_model.safetensors");
  EXPECT_TRUE(adapter.contains("base_model.model.classifier.weight"));
  EXPECT_TRUE(adapter.contains("base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.weight"));
  // The hub folder with the adapter has the same loss as the run.
  const auto scores = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--format", "json", "threads=1", "-q", "--text", "a very good film"});
    const Outcome outcome = run("galley-predict", arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? Json::parse(outcome.out)["top"][0]["score"].get<double>() : 0.0;
  };
  EXPECT_NEAR(scores({folder + "/run"}), scores({"sst2_bert", "weights=" + bert, "lora.load=" + folder + "/run/adapter"}), 1e-6);
}

/// A file of f32 tensors [rows, columns] or [columns].
void write_floats(const std::string& path, const std::map<std::string, std::pair<std::vector<int64_t>, std::vector<float>>>& tensors) {
  Json header = Json::object();
  std::string values;
  for (const auto& [name, tensor] : tensors) {
    const size_t begin = values.size(), bytes = tensor.second.size() * sizeof(float);
    values.append(reinterpret_cast<const char*>(tensor.second.data()), bytes);
    header[name] = {{"dtype", "F32"}, {"shape", tensor.first}, {"data_offsets", {begin, begin + bytes}}};
  }
  const std::string text = header.dump();
  const uint64_t size = text.size();
  write_text(path, std::string(reinterpret_cast<const char*>(&size), sizeof size) + text + values);
}

/// The float weights that a file of weight_only integers stands for: (q - zero point) * scale.
void dequantize(const std::string& from, const std::string& to, int group) {
  const std::string bytes = read_text(from);
  uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof size);
  const Json header = Json::parse(bytes.substr(8, size));
  const auto data = [&](const std::string& name) { return bytes.data() + 8 + size + header[name]["data_offsets"][0].get<size_t>(); };
  std::map<std::string, std::pair<std::vector<int64_t>, std::vector<float>>> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__" || name.ends_with("_scale") || name.ends_with("_zero_point")) continue;
    std::vector<int64_t> shape = entry["shape"];
    if (entry["dtype"] == "F32") {
      std::vector<float> values((entry["data_offsets"][1].get<size_t>() - entry["data_offsets"][0].get<size_t>()) / sizeof(float));
      std::memcpy(values.data(), data(name), values.size() * sizeof(float));
      tensors[name] = {shape, values};
      continue;
    }
    const bool packed = entry["dtype"] == "U8";
    const int64_t rows = shape[0], stored = shape[1], columns = packed ? 2 * stored : stored;
    const int64_t groups = group > 0 ? (columns + group - 1) / group : 1;
    std::vector<float> values;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        const auto* row = reinterpret_cast<const uint8_t*>(data(name)) + r * stored;
        int q = packed ? row[c / 2] >> (c % 2 * 4) & 15 : static_cast<int8_t>(row[c]);
        if (packed && q > 7) q -= 16;
        const int64_t at = r * groups + (group > 0 ? c / group : 0);
        float scale = 0;
        std::memcpy(&scale, data(name + "_scale") + at * 4, sizeof scale);
        values.push_back(static_cast<float>(q - static_cast<int8_t>(data(name + "_zero_point")[at])) * scale);
      }
    }
    shape[1] = columns;
    tensors[name] = {shape, values};
  }
  write_floats(to, tensors);
}

std::vector<double> losses_of(const std::string& run_folder) {
  std::vector<double> losses;
  std::istringstream journal(read_text(run_folder + "/metrics.jsonl"));
  for (std::string line; std::getline(journal, line);) {
    if (const Json row = Json::parse(line); row["kind"] == "train") losses.push_back(row["loss"]);
  }
  return losses;
}

// Adapters over integers train as over the float weights that the integers stand for. Dropout draws the same masks.
TEST(Lora, TrainsOverABaseInIntegers) {
  const std::string folder = scratch_folder(), recipe = recipe_file(folder), untied = "model.tie_weights=false";
  ASSERT_EQ(run("galley-train", {recipe, untied, "duration=3 steps", "-o", folder + "/base", "-q"}).code, 0);
  const std::string lora = "lora={rank: 3, alpha: 6, dropout: 0.1, match: [\"*c_attn\", \"*c_fc\"]}";
  for (const int bits : {8, 4}) {
    SCOPED_TRACE(bits);
    const std::string q = folder + "/q" + std::to_string(bits) + ".safetensors", f = folder + "/f" + std::to_string(bits) + ".safetensors";
    std::vector<std::string> quantize{recipe, untied, "weights=" + folder + "/base", "quantize.method=weight_only", "-o", q, "-q"};
    if (bits == 4) quantize.insert(quantize.end(), {"quantize.weights.dtype=int4", "quantize.weights.group_size=4"});
    const Outcome quantized = run("galley-quantize", quantize);
    ASSERT_EQ(quantized.code, 0) << quantized.err;
    dequantize(q, f, bits == 4 ? 4 : 0);
    std::map<std::string, Json> plans;
    for (const std::string& base : {q, f}) {
      std::vector<std::string> arguments{recipe, untied, "weights=" + base, lora, "-o", base + ".run", "--format", "json"};
      const Outcome trained = run("galley-train", arguments);
      ASSERT_EQ(trained.code, 0) << trained.err;
      arguments.insert(arguments.end(), {"-n", "--force"});
      const Outcome planned = run("galley-train", arguments);
      ASSERT_EQ(planned.code, 0) << planned.err;
      plans[base] = Json::parse(planned.out);
    }
    const std::vector<double> got = losses_of(q + ".run"), wanted = losses_of(f + ".run");
    ASSERT_EQ(got.size(), 5u);
    ASSERT_EQ(wanted.size(), 5u);
    for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(got[i], wanted[i], 1e-5) << i;
    EXPECT_GT(std::abs(got[4] - losses_of(folder + "/base")[0]), 1e-3);
    EXPECT_EQ(plans[q]["trainable"], plans[f]["trainable"]);
    EXPECT_EQ(plans[q]["state_bytes"], plans[f]["state_bytes"]);
    const auto adapter = floats_of(q + ".run/adapter/adapter_model.safetensors"),
               other = floats_of(f + ".run/adapter/adapter_model.safetensors");
    ASSERT_EQ(adapter.size(), 8u);
    for (const auto& [name, values] : other) expect_near(adapter.at(name), values, 2e-4, name);

    // The run holds the integers as they were, and is evaluated, predicts and continues.
    const auto before = tensor_bytes(q), after = tensor_bytes(q + ".run/weights.safetensors");
    const auto loss = [&](std::vector<std::string> arguments) {
      arguments.insert(arguments.end(), {"--format", "json", "-q"});
      const Outcome outcome = run("galley-evaluate", arguments);
      EXPECT_EQ(outcome.code, 0) << outcome.err;
      return outcome.code == 0 ? Json::parse(outcome.out)["metrics"]["loss"].get<double>() : 0.0;
    };
    EXPECT_NE(before, after);
    EXPECT_NEAR(loss({q + ".run"}), loss({f + ".run"}), 1e-5);
    EXPECT_NEAR(loss({q + ".run"}), loss({recipe, untied, "weights=" + q, "lora.load=" + q + ".run/adapter"}), 1e-6);
    EXPECT_GT(std::abs(loss({q + ".run"}) - loss({recipe, untied, "weights=" + q})), 1e-4);
    const Outcome next = run("galley-train", {q + ".run", "duration=6 steps", "-q"});
    EXPECT_EQ(next.code, 0) << next.err;

    const Outcome merged = run("galley-weights", {"merge-lora", q, q + ".run/adapter", "-o", folder + "/merged.safetensors"});
    EXPECT_EQ(merged.code, 4);
    EXPECT_NE(merged.err.find("merge the adapter into the float weights that it was made from, then quantize"), std::string::npos)
        << merged.err;
  }
}

TEST(Lora, ABaseForProductsOfIntegersIsRefused) {
  const std::string folder = scratch_folder(), recipe = recipe_file(folder), q = folder + "/q.safetensors";
  ASSERT_EQ(run("galley-quantize", {recipe, kBase, "quantize.method=dynamic", "-o", q, "-q"}).code, 0);
  const Outcome refused = run("galley-train", {recipe, "weights=" + q, "lora={match: [\"*c_attn\"]}", "-o", folder + "/run"});
  EXPECT_EQ(refused.code, 3) << refused.err;
  EXPECT_NE(refused.err.find("adapters need products in float"), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("quantize.method=weight_only"), std::string::npos) << refused.err;
}

TEST(Lora, ALayerInIntegersIsNotTrainedItself) {
  const std::string folder = scratch_folder(), recipe = recipe_file(folder), q = folder + "/q.safetensors";
  ASSERT_EQ(run("galley-quantize", {recipe, kBase, "quantize.method=weight_only", "-o", q, "-q"}).code, 0);
  const Outcome refused =
      run("galley-train", {recipe, "weights=" + q, "lora={match: [\"*c_attn\"], train: [\"*c_fc\"]}", "-o", folder + "/run"});
  EXPECT_EQ(refused.code, 3) << refused.err;
  EXPECT_NE(refused.err.find("lora.train selects 'transformer.h.0.mlp.c_fc.weight', which the weights store as i8"), std::string::npos)
      << refused.err;
  const Outcome whole = run("galley-train", {recipe, "weights=" + q, "-o", folder + "/run"});
  EXPECT_EQ(whole.code, 3) << whole.err;
  EXPECT_NE(whole.err.find("or train adapters over them (lora)"), std::string::npos) << whole.err;
}

// A decoder of a hub, from its folder and as integers.
TEST(Lora, TheRecipeForDecodersOfHubsTrains) {
  const std::string folder = scratch_folder(), llama = folder + "/llama", golden = GALLEY_SOURCE_DIR "/tests/golden/hub/";
  fs::copy(golden + "llama", llama, fs::copy_options::recursive);
  fs::copy(golden + "tokenizer", llama, fs::copy_options::recursive);
  std::string text;
  for (int i = 0; i < 60; ++i) text += "To be, or not to be, that is the question. ";
  write_text(folder + "/text.txt", text);
  const std::vector<std::string> usual{"llama_lora",
                                       "data.train.source.path=" + folder + "/text.txt",
                                       "data.train.source.sequence_length=16",
                                       "duration=60 steps",
                                       "optimizer.lr=0.02",
                                       "threads=1",
                                       "-q"};
  const auto train = [&](const std::string& to, std::vector<std::string> more) {
    std::vector<std::string> arguments = usual;
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.insert(arguments.end(), {"-o", folder + "/" + to});
    const Outcome outcome = run("galley-train", arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return losses_of(folder + "/" + to);
  };
  const std::vector<double> whole = train("run", {"weights=" + llama});
  ASSERT_GE(whole.size(), 2u);
  EXPECT_LT(whole.back(), whole.front() - 0.2);
  const Json config = Json::parse(read_text(folder + "/run/adapter/adapter_config.json"));
  EXPECT_EQ(config["target_modules"], Json({"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj",
                                            "model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj"}));
  const std::string q = folder + "/q.safetensors";
  const Outcome quantized = run("galley-quantize", {llama, "quantize.method=weight_only", "-o", q, "-q"});
  ASSERT_EQ(quantized.code, 0) << quantized.err;
  const std::vector<double> stored = train("stored", {"model.path=" + llama, "weights=" + q});
  ASSERT_EQ(stored.size(), whole.size());
  EXPECT_NEAR(stored.front(), whole.front(), 0.05) << "int8";
  EXPECT_LT(stored.back(), stored.front() - 0.2);
  const Outcome said = run("galley-predict", {folder + "/stored", "--prompt", "To be", "--format", "json", "generate.max_new_tokens=3"});
  EXPECT_EQ(said.code, 0) << said.err;
}

TEST(Lora, MistakesHaveOneErrorAndTheirExitCodes) {
  const std::string folder = scratch_folder(), recipe = recipe_file(folder), start = kLora + "/start";
  const auto changed = [&](const std::string& key, const Json& value) {
    const std::string to = folder + "/" + key;
    fs::copy(start, to);
    Json config = Json::parse(read_text(to + "/adapter_config.json"));
    config[key] = value;
    write_text(to + "/adapter_config.json", config.dump());
    return to;
  };
  fs::create_directory(folder + "/empty");
  ASSERT_EQ(run("galley-train", {recipe, kBase, "lora.load=" + start, "-o", folder + "/run", "-q"}).code, 0);
  struct Mistake {
    std::string program;
    std::vector<std::string> arguments;
    int code;
    std::string says, also;
  };
  const std::vector<Mistake> mistakes{
      {"galley-train", {recipe, "lora={rank: 0, match: [\"*c_attn\"]}"}, 3, "lora.rank", "1"},
      {"galley-train", {recipe, "lora={rank: 2}"}, 3, "'lora.match' selects no layers", "type:linear"},
      {"galley-train", {recipe, "lora={match: [\"*c_atn\"]}"}, 3, "'*c_atn' matches none of the 8 names", "did you mean '*c_attn'?"},
      {"galley-train", {recipe, "lora={match: [\"*c_attn\"], train: [lm_haed]}"}, 3, "'lm_haed' matches none", ""},
      {"galley-train", {recipe, kBase, "lora={rank: 2, load: " + start + "}"}, 3, "'lora.rank' is 2, but the adapter", "has 3"},
      {"galley-train",
       {recipe, kBase, "lora={match: [\"*c_proj\"], load: " + start + "}"},
       4,
       "c_proj.lora_A.weight', which lora.match selects",
       ""},
      {"galley-train",
       {recipe, kBase, "lora={match: [\"*c_attn\"], load: " + start + "}"},
       4,
       "c_fc.lora_A.weight', which the model does not have",
       ""},
      {"galley-train", {recipe, "model.n_embd=16", "lora.load=" + start}, 4, "has the shape [3,8], but the model needs [3,16]", ""},
      {"galley-train", {recipe, kBase, "lora.load=" + folder + "/empty"}, 4, "adapter_config.json is missing", ""},
      {"galley-train", {recipe, kBase, "lora.load=" + folder + "/run"}, 4, "adapter_config.json is missing", "/run/adapter"},
      {"galley-train", {recipe, kBase, "lora.load=" + changed("peft_type", "IA3")}, 4, "peft_type", "IA3"},
      {"galley-train", {recipe, kBase, "lora.load=" + changed("use_dora", true)}, 4, "use_dora", ""},
      {"galley-train", {recipe, kBase, "lora.load=" + changed("r", 4)}, 4, "with r=4 of adapter_config.json", "[3,8]"},
      {"galley-train", {recipe, "weights=" + folder + "/run", "lora.load=" + start}, 3, "both the weights", "lora.load=null"},
      {"galley-weights", {"merge-lora", kLora + "/base.safetensors", folder + "/empty"}, 4, "adapter_config.json is missing", ""},
      {"galley-weights",
       {"merge-lora", GALLEY_SOURCE_DIR "/tests/golden/train/weights.safetensors", start},
       4,
       "has no tensor 'transformer.h.0.attn.c_attn.weight'",
       ""},
      {"galley-weights", {"merge-lora", kLora + "/base.safetensors"}, 2, "the weights of a base and the folder of an adapter", ""},
      {"galley-weights",
       {"merge-lora", kLora + "/base.safetensors", kLora + "/gpt2"},
       4,
       "needs a weight [",
       "the adapter belongs to another model"},
  };
  const Outcome foreign =
      run("galley-predict", {GALLEY_SOURCE_DIR "/tests/golden/hub/bert_classes", "lora.load=" + start, "--text", "a fine film"});
  EXPECT_EQ(foreign.code, 4);
  EXPECT_NE(foreign.err.find("changes the layer 'transformer.h.0.attn.c_attn', which the model does not have"), std::string::npos)
      << foreign.err;
  for (const Mistake& mistake : mistakes) {
    std::vector<std::string> arguments = mistake.arguments;
    arguments.insert(arguments.end(), {"-o", folder + "/out"});
    const Outcome outcome = run(mistake.program, arguments);
    EXPECT_EQ(outcome.code, mistake.code) << mistake.says << "\n" << outcome.err;
    EXPECT_NE(outcome.err.find(mistake.says), std::string::npos) << mistake.says << "\n" << outcome.err;
    EXPECT_NE(outcome.err.find(mistake.also), std::string::npos) << mistake.also << "\n" << outcome.err;
    EXPECT_TRUE(outcome.out.empty()) << outcome.out;
  }
}

}  // namespace
}  // namespace galley::testing_cli
