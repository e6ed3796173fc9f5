// Heads of encoders from a hub, as text: several labels, numbers, replaced tokens, the next sentence, BERT's pre-training; they are trained
// and evaluated. Those that are not supported are one error that lists what is.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/cli/json_lines.h"
#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

/// A copy of a folder with other values in config.json.
std::string changed(const std::string& name, const std::string& folder, const Json& values) {
  fs::copy(hub(name), folder);
  Json config = Json::parse(read_text(folder + "/config.json"));
  config.update(values);
  write_text(folder + "/config.json", config.dump());
  return folder;
}

std::vector<Json> predicted(const std::string& folder, const Json& rows, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments{folder, "--format", "json", "threads=1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  arguments.emplace_back("--text");
  for (const Json& row : rows) arguments.push_back(row["text"]);
  const Outcome outcome = run("galley-predict", arguments);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::vector<Json> lines = json_lines(outcome.out);
  EXPECT_EQ(lines.size(), rows.size());
  lines.resize(rows.size());
  return lines;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST(HubHeads, SeveralLabelsAreThoseAboveTheThreshold) {
  const std::string folder = changed("bert_classes", scratch_folder() + "/m", {{"problem_type", "multi_label_classification"}});
  const Json expected = Json::parse(read_text(hub("bert_classes") + "/texts.json"));
  const std::vector<std::string> names{"negative", "neutral", "positive"};
  const std::vector<Json> lines = predicted(folder, expected);
  bool some_not_all = false;
  for (size_t i = 0; i < lines.size(); ++i) {
    std::map<std::string, double> wanted, got;
    for (size_t k = 0; k < names.size(); ++k) {
      const double score = sigmoid(expected[i]["logits"][k]);
      if (score >= 0.5) wanted[names[k]] = score;
    }
    for (const Json& label : lines[i]["labels"]) got[label["label"]] = label["score"];
    ASSERT_EQ(got.size(), wanted.size()) << lines[i];
    for (const auto& [name, score] : wanted) EXPECT_NEAR(got[name], score, 1e-5) << name;
    some_not_all |= !wanted.empty() && wanted.size() < names.size();
  }
  EXPECT_TRUE(some_not_all);
  // A recipe that gives the folder another head has the task of that head.
  const std::string recipe = fs::path(folder).parent_path().string() + "/r.yaml";
  write_text(recipe, "recipe: 1\nmodel: {type: hub, num_labels: 3}\nweights: " + folder + "\n");
  EXPECT_TRUE(predicted(recipe, expected).front().contains("top"));
}

TEST(HubHeads, RegressionGivesNumbers) {
  const std::string folder = changed("bert_classes", scratch_folder() + "/m", {{"problem_type", "regression"}});
  const Json expected = Json::parse(read_text(hub("bert_classes") + "/texts.json"));
  const std::vector<Json> lines = predicted(folder, expected);
  for (size_t i = 0; i < lines.size(); ++i) {
    ASSERT_EQ(lines[i]["values"].size(), 3u) << lines[i];
    for (size_t k = 0; k < 3; ++k) EXPECT_NEAR(lines[i]["values"][k].get<double>(), expected[i]["logits"][k].get<double>(), 1e-5);
  }
}

TEST(HubHeads, OneLabelIsANumber) {
  const std::string folder = scratch_folder();
  const std::string one =
      changed("bert_base", folder + "/m", {{"architectures", {"BertForSequenceClassification"}}, {"id2label", {{"0", "LABEL_0"}}}});
  const std::vector<Json> lines = predicted(one, Json::array({{{"text", "a fine film"}}}), {"--seed", "1"});
  EXPECT_EQ(lines.front()["values"].size(), 1u) << lines.front();
  const Outcome unknown =
      run("galley-predict", {changed("bert_classes", folder + "/u", {{"problem_type", "ranking"}}), "--text", "a fine film"});
  EXPECT_EQ(unknown.code, 4);
  EXPECT_NE(unknown.err.find("problem_type: is ranking"), std::string::npos) << unknown.err;
}

TEST(HubHeads, ReplacedTokensHaveTheirProbability) {
  const std::string folder = scratch_folder(), model = folder + "/m", out = folder + "/out.safetensors";
  fs::copy(hub("electra_replaced"), model);
  fs::copy(hub("bert_classes") + "/tokenizer.json", model + "/tokenizer.json");
  const std::string text = "the dull story";
  const Json line = predicted(model, Json::array({{{"text", text}}})).front();
  ASSERT_EQ(line["tokens"].size(), 3u) << line;  // without [CLS] and [SEP]
  ASSERT_EQ(run("galley-predict", {model, "threads=1", "-o", out, "--text", text}).code, 0);
  const std::string bytes = tensor_bytes(out, "logits");
  ASSERT_EQ(bytes.size(), 5 * sizeof(float));
  for (size_t i = 0; i < 3; ++i) {
    float logit = 0;
    std::memcpy(&logit, bytes.data() + (i + 1) * sizeof(float), sizeof(float));
    EXPECT_NEAR(line["tokens"][i]["score"].get<double>(), sigmoid(static_cast<double>(logit)), 1e-6);
  }
  EXPECT_EQ(line["tokens"][1]["token"], "dull");
}

TEST(HubHeads, TheNextSentenceIsOneOfTwoClasses) {
  const std::string model = scratch_folder() + "/m";
  fs::copy(hub("bert_next"), model);
  fs::copy(hub("bert_classes") + "/tokenizer.json", model + "/tokenizer.json");
  const Outcome outcome =
      run("galley-predict", {model, "--format", "json", "threads=1", "--text", "a fine film", "--text-pair", "it was good"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json top = Json::parse(outcome.out)["top"];
  ASSERT_EQ(top.size(), 2u);
  EXPECT_NEAR(top[0]["score"].get<double>() + top[1]["score"].get<double>(), 1, 1e-6);
  const Outcome other = run("galley-predict", {hub("electra_masked"), "model.head=next_sentence", "--tensors", "x"});
  EXPECT_EQ(other.code, 3);
  EXPECT_NE(other.err.find("[electra] has no head next_sentence"), std::string::npos) << other.err;
}

/// A copy of a model with BERT's or ALBERT's heads of pre-training, with a tokenizer.
std::string pretraining_folder(const std::string& folder, const std::string& name = "bert_pretraining") {
  fs::copy(hub(name), folder);
  fs::copy(hub("bert_classes") + "/tokenizer.json", folder + "/tokenizer.json");
  return folder;
}

TEST(HubHeads, PreTrainingFindsMaskedTokensAndTheNextSentence) {
  const std::string model = pretraining_folder(scratch_folder() + "/m");
  const std::vector<std::string> texts{"--text", "a [MASK] film", "--text-pair", "it was [MASK]"};
  const auto predict = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), texts.begin(), texts.end());
    const Outcome outcome = run("galley-predict", arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out);
  };
  const Json both = predict({model, "--format", "json", "threads=1"});
  ASSERT_EQ(both["masks"].size(), 2u) << both;
  ASSERT_EQ(both["top"].size(), 2u) << both;
  // Each head alone gives the same.
  EXPECT_EQ(predict({model, "model.head=masked_lm", "--format", "json", "threads=1"})["masks"], both["masks"]);
  EXPECT_EQ(predict({model, "model.head=next_sentence", "--format", "json", "threads=1"})["top"], both["top"]);
}

TEST(HubHeads, PreTrainingOfAlbertFindsMaskedTokensAndTheOrderOfTexts) {
  const std::string model = pretraining_folder(scratch_folder() + "/m", "albert_pretraining");
  const std::vector<std::string> texts{"--format", "json", "threads=1", "--text", "a [MASK] film", "--text-pair", "it was [MASK]"};
  std::vector<std::string> arguments{model};
  arguments.insert(arguments.end(), texts.begin(), texts.end());
  const Outcome outcome = run("galley-predict", arguments);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json both = Json::parse(outcome.out);
  ASSERT_EQ(both["masks"].size(), 2u) << both;
  ASSERT_EQ(both["top"].size(), 2u) << both;
  EXPECT_NEAR(both["top"][0]["score"].get<double>() + both["top"][1]["score"].get<double>(), 1, 1e-6);
  arguments.insert(arguments.begin() + 1, "model.head=masked_lm");
  EXPECT_EQ(Json::parse(run("galley-predict", arguments).out)["masks"], both["masks"]);
}

TEST(HubHeads, PreTrainingTrains) {
  const std::string folder = scratch_folder(), model = pretraining_folder(folder + "/m");
  std::string rows;
  for (int i = 0; i < 24; ++i) rows += "the story is fine\tit was very good .\t0\nthe story is fine\ta dull film !\t1\n";
  write_text(folder + "/t.tsv", rows);
  const std::string pipeline =
      "[{type: rename, from: input, to: input_ids}, {type: rename, from: token_types, to: token_type_ids}, "
      "{type: mask_tokens, p: 0.15, field: input_ids}]";
  const std::string albert = pretraining_folder(folder + "/albert", "albert_pretraining");
  write_text(folder + "/r.yaml", "recipe: 1\nname: pretraining\nmodel: {type: hub, path: " + model +
                                     "}\nweights: null\ndata:\n  train:\n    source: {type: text_pairs, path: " + folder +
                                     "/t.tsv, columns: {text: 0, pair: 1, next_sentence: 2}, max_length: 16}\n    pipeline: " + pipeline +
                                     "\n  val: {from: train, pipeline: " + pipeline +
                                     "}\ntrain: {duration: 30 epochs, batch: 12, optimizer: {type: adamw, lr: 0.01}}\nthreads: 1\n");
  const Outcome trained = run("galley-train", {folder + "/r.yaml", "-o", folder + "/run"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Json metrics = Json::parse(read_text(folder + "/run/result.json"))["metrics"];
  EXPECT_EQ(metrics["next_sentence"], 100.0) << metrics;
  EXPECT_LT(metrics["masked_loss"].get<double>(), 1.5) << "log 27 = 3.3 at the start";
  EXPECT_NE(read_text(folder + "/run/metrics.jsonl").find("\"losses\":{\"masked\":"), std::string::npos);
  const Outcome evaluated = run("galley-evaluate", {folder + "/run", "--format", "json"});
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_EQ(Json::parse(evaluated.out)["metrics"], metrics);
  const Outcome of_albert =
      run("galley-train", {folder + "/r.yaml", "model.path=" + albert, "train.duration=1 epoch", "-o", folder + "/albert_run"});
  EXPECT_EQ(of_albert.code, 0) << of_albert.err;
  const Outcome other = run("galley-train", {folder + "/r.yaml", "model.head=masked_lm", "task=pre_training", "-o", folder + "/other"});
  EXPECT_EQ(other.code, 3);
  EXPECT_NE(other.err.find("needs a model with prediction_logits and seq_relationship_logits"), std::string::npos) << other.err;
}

/// Trains bert_base on a table or lines, and returns the metrics.
Json fine_tuned(const std::string& folder, const std::string& task, const std::string& source, int labels, const std::string& metrics) {
  const std::string pipeline = "[{type: rename, from: input, to: input_ids}]";
  write_text(folder + "/r.yaml",
             "recipe: 1\nname: tuned\nmodel: {type: hub, head: sequence_classification, num_labels: " + std::to_string(labels) +
                 "}\nweights: " + hub("bert_base") + "\ntask: " + task + "\ndata:\n  train: {source: " + source +
                 ", pipeline: " + pipeline + "}\n  val: {from: train, pipeline: " + pipeline + "}\nmetrics: " + metrics +
                 "\ntrain: {duration: 15 epochs, batch: 12, optimizer: {type: adamw, lr: 0.02}}\nthreads: 1\n");
  const Outcome trained = run("galley-train", {folder + "/r.yaml", "-o", folder + "/run"});
  EXPECT_EQ(trained.code, 0) << trained.err;
  if (trained.code != 0) return {};
  const Outcome evaluated = run("galley-evaluate", {folder + "/run", "--format", "json"});
  EXPECT_EQ(evaluated.code, 0) << evaluated.err;
  return Json::parse(evaluated.out)["metrics"];
}

TEST(HubHeads, NumbersOfTextsAreLearned) {
  const std::string folder = scratch_folder();
  std::string rows = "sentence1\tsentence2\tscore\n";
  for (int i = 0; i < 12; ++i) rows += "a very good film\tgood film\t1.5\nthe story is dull\ta film\t-1\nit was a film\tthe story\t0.25\n";
  write_text(folder + "/train.tsv", rows);
  write_text(folder + "/dev.tsv", rows);
  const auto train = [&](const std::string& name, std::vector<std::string> more) {
    std::vector<std::string> arguments{"stsb_bert",
                                       "weights=" + hub("bert_base"),
                                       "data.root=" + folder,
                                       "train.duration=15 epochs",
                                       "batch=12",
                                       "optimizer.lr=0.02",
                                       "train.schedule=[]",
                                       "data.train.source.max_length=16",
                                       "data.train.pipeline.bucket.lengths=12,16",
                                       "data.val.source.max_length=16",
                                       "metrics=loss,mae,pearson,spearman",
                                       "threads=1",
                                       "-o",
                                       folder + "/" + name};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run("galley-train", arguments);
  };
  const Outcome trained = train("run", {});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Json metrics = Json::parse(read_text(folder + "/run/result.json"))["metrics"];
  EXPECT_LT(metrics["loss"].get<double>(), 0.1) << metrics;
  EXPECT_LT(metrics["mae"].get<double>(), 0.3) << metrics;
  EXPECT_GT(metrics["pearson"].get<double>(), 0.9) << metrics;
  EXPECT_GT(metrics["spearman"].get<double>(), 0.9) << metrics;
  const Outcome shown =
      run("galley-predict", {folder + "/run", "--format", "json", "threads=1", "--text", "a very good film", "--text-pair", "good film"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_NEAR(Json::parse(shown.out)["values"][0].get<double>(), 1.5, 0.5) << shown.out;
  const Outcome two = train("two", {"model.num_labels=2"});
  EXPECT_EQ(two.code, 3);
  EXPECT_NE(two.err.find("the field `target` of the data has 1 number for each sample, but the model has 2 outputs (text_pairs: "),
            std::string::npos)
      << two.err;
  EXPECT_NE(two.err.find("1 number (column score)"), std::string::npos) << two.err;
  EXPECT_NE(two.err.find("set model.num_labels=1, or let the source give 2 numbers (columns.values"), std::string::npos) << two.err;
  write_text(folder + "/train.tsv", rows + "a film\tfilm\tgood\n");
  const Outcome bad = train("bad", {});
  EXPECT_EQ(bad.code, 4);
  EXPECT_NE(bad.err.find("train.tsv:38: error: column score: 'good' is not a finite number"), std::string::npos) << bad.err;
}

TEST(HubHeads, SeveralLabelsOfTextsAreLearned) {
  const std::string folder = scratch_folder();
  std::string lines;
  for (int i = 0; i < 12; ++i)
    lines += R"({"text": "a very good film", "tags": ["good", "film"]})"
             "\n"
             R"({"text": "the story is dull", "tags": []})"
             "\n"
             R"({"text": "a film", "tags": ["film"]})"
             "\n";
  write_text(folder + "/t.jsonl", lines);
  const Json metrics =
      fine_tuned(folder, "multi_label",
                 "{type: jsonl, path: " + folder + "/t.jsonl, columns: {text: text, labels: tags}, classes: [good, film], max_length: 12}",
                 2, "[loss, f1_micro, f1_macro, map, exact_match]");
  for (const char* name : {"f1_micro", "f1_macro", "map", "exact_match"}) EXPECT_EQ(metrics[name], 100.0) << name << " " << metrics;
  const Json line = predicted(folder + "/run", Json::array({{{"text", "a very good film"}}})).front();
  ASSERT_EQ(line["labels"].size(), 2u) << line;
  EXPECT_TRUE(line["labels"][0]["label"] == "good" || line["labels"][0]["label"] == "film") << line;
}

TEST(HubHeads, OthersAreErrorsThatSayWhatIsSupported) {
  struct Case {
    std::string architecture, model_type, says;
  };
  const std::string folder = scratch_folder();
  const std::vector<Case> cases{
      {"BertForMultipleChoice", "bert",
       "BertForMultipleChoice is not supported; of the model_type \"bert\" are BertModel, BertForMaskedLM,"},
      {"BertLMHeadModel", "bert", "BertForNextSentencePrediction"},
      {"GPT2DoubleHeadsModel", "gpt2", "of the model_type \"gpt2\" are GPT2LMHeadModel, GPT2Model"},
      {"ModernBertForMaskedLM", "modernbert",
       "this version has the model_types bert, roberta, xlm-roberta, electra, distilbert, albert, gpt2"},
  };
  for (const Case& c : cases) {
    const std::string model =
        changed("bert_classes", folder + "/" + c.architecture, {{"architectures", {c.architecture}}, {"model_type", c.model_type}});
    const Outcome outcome = run("galley-predict", {model, "--text", "a"});
    EXPECT_EQ(outcome.code, 4) << outcome.err;
    EXPECT_NE(outcome.err.find(c.says), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
}

TEST(HubHeads, ConfigsThatContradictTheWeightsAreErrors) {
  struct Case {
    std::string name, key;
    Json value;
    std::string says;
  };
  const std::string folder = scratch_folder();
  const std::vector<Case> cases{
      {"bert_classes", "num_hidden_layers", 1, "the folder has more layers than config.json says"},
      {"bert_classes", "num_hidden_layers", 3, "bert.encoder.layer.2.attention.self.query.weight"},
      {"bert_classes", "num_hidden_layers", 1000000000, "num_hidden_layers: is 1000000000; it must be 1 to 10000"},
      {"bert_classes", "vocab_size", 1000000000000000, "vocab_size: is 1000000000000000; it must be 1 to 2147483647"},
      {"llama", "num_key_value_heads", 3, "num_attention_heads is 4, which is not a multiple of num_key_value_heads, 3"},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    const std::string model = changed(c.name, folder + "/" + std::to_string(i), {{c.key, c.value}});
    if (c.name == "llama") fs::copy(hub("tokenizer"), model);
    const Outcome outcome = run("galley-predict", {model, c.name == "llama" ? "--prompt" : "--text", "a"});
    EXPECT_EQ(outcome.code, 4) << outcome.err;
    EXPECT_NE(outcome.err.find(c.says), std::string::npos) << outcome.err;
  }
  // Fewer layers on purpose.
  EXPECT_EQ(
      run("galley-predict", {hub("bert_classes"), "model.num_hidden_layers=1", "weights.load.0.ignore=*.layer.1.*", "--text", "a"}).code,
      0);
}

TEST(HubHeads, FoldersWithoutWeightsOrTokenizerAreErrors) {
  const std::string folder = scratch_folder();
  const auto fails = [&](const std::string& removed, int code, const std::string& says) {
    const std::string model = changed("bert_classes", folder + "/" + removed, Json::object());
    fs::remove(model + "/" + removed);
    const Outcome outcome = run("galley-predict", {model, "--text", "a"});
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_NE(outcome.err.find("the folder " + model + says), std::string::npos) << outcome.err;
  };
  fails("model.safetensors", 4, " has no weights: neither model.safetensors nor pytorch_model.bin");
  fails("tokenizer.json", 3, " has no tokenizer (tokenizer.json, vocab.json, vocab.txt, ");
}

TEST(HubHeads, AQuantizedFileOfAnotherHeadSaysHowToQuantize) {
  const std::string folder = scratch_folder(), classes = folder + "/classes.safetensors", vectors = folder + "/vectors.safetensors";
  const auto quantize = [&](const std::string& file, std::vector<std::string> more) {
    more.insert(more.begin(), {hub("bert_classes"), "method=weight_only", "-q", "-o", file});
    const Outcome outcome = run("galley-quantize", more);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
  };
  quantize(classes, {});
  quantize(vectors, {"model.head=embedding"});
  const auto embed = [&](const std::string& model, const std::string& file) {
    return run("galley-predict", {model, "weights=" + file, "--embed", "--text", "a fine film"});
  };
  EXPECT_EQ(embed(hub("bert_classes"), vectors).code, 0);
  const Outcome refused = embed(hub("bert_classes"), classes);
  EXPECT_EQ(refused.code, 4);
  EXPECT_EQ(refused.err.rfind(classes + ": error: the quantization plan has no layer", 0), 0u) << refused.err;
  EXPECT_NE(refused.err.find("(--embed: model.head=embedding)"), std::string::npos) << refused.err;
  const Outcome other = run("galley-predict", {hub("llama"), "weights=" + classes, "--prompt", "a",
                                               "data.tokenizer.path=" + hub("tokenizer"), "data.tokenizer.type=hub"});
  EXPECT_EQ(other.code, 4);
  EXPECT_NE(other.err.find("use the recipe that it was quantized with"), std::string::npos) << other.err;
}

}  // namespace
}  // namespace galley::testing_cli
