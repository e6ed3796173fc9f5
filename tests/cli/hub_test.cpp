// Folders of model hubs as a user gives them: predicted, fine-tuned, and where they are incomplete one error with the documented exit code.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/cli/json_lines.h"
#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

TEST(HubFolder, PredictsTextsAsTransformers) {
  const Json expected = Json::parse(read_text(hub("bert_classes") + "/texts.json"));
  std::vector<std::string> arguments{hub("bert_classes") + "/", "--format", "json", "threads=1", "--text"};
  for (const Json& row : expected) arguments.push_back(row["text"]);
  const Outcome outcome = run("galley-predict", arguments);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<Json> lines = json_lines(outcome.out);
  ASSERT_EQ(lines.size(), expected.size());
  const std::vector<std::string> names{"negative", "neutral", "positive"};
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["text"], expected[i]["text"]);
    ASSERT_EQ(lines[i]["top"].size(), 3u);
    for (const Json& row : lines[i]["top"]) {
      const size_t index = row["index"];
      EXPECT_EQ(row["label"], names[index]);
      EXPECT_NEAR(row["score"].get<double>(), expected[i]["scores"][index].get<double>(), 1e-5);
    }
  }
}

TEST(HubFolder, PredictsPairsAsTransformers) {
  const std::string folder = scratch_folder();
  const Json expected = Json::parse(read_text(hub("bert_classes") + "/pairs.json"));
  std::vector<std::string> texts, pairs;
  std::string text_lines, pair_lines;
  for (const Json& row : expected) {
    texts.push_back(row["text"]);
    pairs.push_back(row["pair"]);
    text_lines += texts.back() + "\n\n";  // empty lines are left out, with their second texts
    pair_lines += pairs.back() + "\nskipped\n";
  }
  write_text(folder + "/t.txt", text_lines);
  write_text(folder + "/p.txt", pair_lines);
  std::vector<std::string> words{hub("bert_classes"), "--format", "json", "threads=1", "--text"};
  words.insert(words.end(), texts.begin(), texts.end());
  words.emplace_back("--text-pair");
  words.insert(words.end(), pairs.begin(), pairs.end());
  const Outcome outcome = run("galley-predict", words);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<Json> lines = json_lines(outcome.out);
  ASSERT_EQ(lines.size(), expected.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["text"], expected[i]["text"]);
    EXPECT_EQ(lines[i]["pair"], expected[i]["pair"]);
    EXPECT_EQ(lines[i].contains("note"), expected[i]["ids"].size() == 24);
    ASSERT_EQ(lines[i]["top"].size(), 3u);
    for (const Json& row : lines[i]["top"])
      EXPECT_NEAR(row["score"].get<double>(), expected[i]["scores"][row["index"].get<size_t>()].get<double>(), 1e-5);
  }
  const Outcome of_files = run("galley-predict", {hub("bert_classes"), "--format", "json", "threads=1", "--text-file", folder + "/t.txt",
                                                  "--text-pair-file", folder + "/p.txt"});
  ASSERT_EQ(of_files.code, 0) << of_files.err;
  ASSERT_EQ(json_lines(of_files.out).size(), lines.size());
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(json_lines(of_files.out)[i]["top"], lines[i]["top"]);
  const Outcome table = run("galley-predict", {hub("bert_classes"), "threads=1", "--format", "csv", "--text", "a", "--text-pair", "b"});
  EXPECT_EQ(table.out.substr(0, table.out.find('\n')), "text,pair,rank,index,label,score");

  write_text(folder + "/short.txt", "one\n");
  const std::vector<std::pair<std::vector<std::string>, std::pair<int, std::string>>> mistakes{
      {{"--text", "a", "b", "--text-pair", "c"}, {2, "--text has 2 texts, --text-pair 1"}},
      {{"--text-pair", "c"}, {2, "--text has 0 texts, --text-pair 1"}},
      {{"--text-file", folder + "/t.txt", "--text-pair-file", folder + "/short.txt"}, {4, "has 1 lines"}},
      {{"--text-pair-file", folder + "/short.txt"}, {2, "belong to no first ones"}},
      {{"--text", "a", "--text-pair", "c", "--embed"}, {2, "--embed gives the vector of one text"}},
  };
  for (const auto& [arguments, expects] : mistakes) {
    std::vector<std::string> all{hub("bert_classes")};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const Outcome wrong = run("galley-predict", all);
    EXPECT_EQ(wrong.code, expects.first) << wrong.err;
    EXPECT_NE(wrong.err.find(expects.second), std::string::npos) << wrong.err;
  }
}

TEST(HubFolder, EmbedsALineEach) {
  const std::string folder = scratch_folder();
  const Json expected = Json::parse(read_text(hub("bert_base") + "/texts.json"));
  std::string text;
  for (const Json& row : expected) text += row["text"].get<std::string>() + "\r\n\n";
  write_text(folder + "/t.txt", text);
  const std::string out = folder + "/v.safetensors";
  const Outcome outcome =
      run("galley-predict", {hub("bert_base"), "--text-file", folder + "/t.txt", "--embed", "--format", "json", "-o", out, "threads=1"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<Json> lines = json_lines(outcome.out);
  ASSERT_EQ(lines.size(), expected.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto vector = lines[i]["embedding"].get<std::vector<double>>(), wanted = expected[i]["embedding"].get<std::vector<double>>();
    ASSERT_EQ(vector.size(), wanted.size());
    for (size_t k = 0; k < vector.size(); ++k) EXPECT_NEAR(vector[k], wanted[k], 1e-5);
  }
  EXPECT_EQ(tensor_bytes(out, "embedding").size(), expected.size() * 8 * sizeof(float));
}

TEST(HubFolder, MasksAreFilled) {
  const std::string folder = scratch_folder();
  fs::copy(hub("bert_masked"), folder + "/m");
  fs::copy(hub("bert_classes") + "/tokenizer.json", folder + "/m/tokenizer.json");
  const Outcome outcome = run("galley-predict", {folder + "/m", "top=2", "--format", "json", "threads=1", "--text", "a [MASK] film"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json line = Json::parse(outcome.out);
  ASSERT_EQ(line["masks"].size(), 1u);
  EXPECT_EQ(line["masks"][0]["position"], 2);
  ASSERT_EQ(line["masks"][0]["top"].size(), 2u);
  EXPECT_GT(line["masks"][0]["top"][0]["score"].get<double>(), line["masks"][0]["top"][1]["score"].get<double>());
}

TEST(HubFolder, ATextWithoutAMaskIsSaid) {
  const std::string folder = scratch_folder();
  fs::copy(hub("bert_masked"), folder + "/m");
  fs::copy(hub("bert_classes") + "/tokenizer.json", folder + "/m/tokenizer.json");
  const Outcome outcome = run("galley-predict", {folder + "/m", "threads=1", "--text", "a film"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("--text: the text has no [MASK], so there is nothing to fill"), std::string::npos) << outcome.err;
}

TEST(HubFolder, ItsRecipeIsShownAndRuns) {
  const std::string folder = scratch_folder();
  const Outcome shown = run("galley-predict", {hub("bert_classes"), "--dump-recipe"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_NE(shown.out.find("type: bert"), std::string::npos) << shown.out;
  write_text(folder + "/r.yaml", shown.out);
  const std::vector<std::string> rest{"threads=1", "--text", "a fine film"};
  std::vector<std::string> first{hub("bert_classes")}, second{folder + "/r.yaml"};
  first.insert(first.end(), rest.begin(), rest.end());
  second.insert(second.end(), rest.begin(), rest.end());
  EXPECT_EQ(run("galley-predict", second).out, run("galley-predict", first).out);
  const Outcome explained = run("galley-predict", {hub("bert_classes"), "--explain", "model.hidden_size"});
  EXPECT_NE(explained.out.find("config.json"), std::string::npos) << explained.out;
}

TEST(HubFolder, IsFineTunedByTheRecipeOfSst2) {
  const std::string folder = scratch_folder();
  std::string good, bad;
  for (int i = 0; i < 12; ++i) {
    good += "a very good film\t1\nthe story is fine and good .\t1\n";
    bad += "a bad film\t0\nthe story is dull , not good\t0\n";
  }
  write_text(folder + "/train.tsv", good + bad);
  write_text(folder + "/dev.tsv", good + bad);
  const Outcome trained =
      run("galley-train", {"sst2_bert", "weights=" + hub("bert_base"), "data.root=" + folder, "train.duration=12 epochs", "batch=12",
                           "optimizer.lr=0.02", "train.schedule=[]", "data.train.source.max_length=16",
                           "data.train.pipeline.bucket.lengths=8,16", "data.val.source.max_length=16", "threads=1", "-o", folder + "/run"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE(trained.err.find("start at random: classifier.weight, classifier.bias"), std::string::npos) << trained.err;
  const Json metrics = Json::parse(read_text(folder + "/run/result.json"))["metrics"];
  EXPECT_EQ(metrics["top1"], 100.0) << metrics;
  EXPECT_EQ(metrics["f1"], 100.0);
  EXPECT_EQ(metrics["mcc"], 1.0);
  const Outcome predicted =
      run("galley-predict", {folder + "/run", "top=1", "--format", "json", "threads=1", "--text", "a very good film", "a bad film"});
  ASSERT_EQ(predicted.code, 0) << predicted.err;
  const std::vector<Json> lines = json_lines(predicted.out);
  EXPECT_EQ(lines[0]["top"][0]["index"], 1);
  EXPECT_EQ(lines[1]["top"][0]["index"], 0);

  // The data have lengths and types of tokens, which a model that is quantized from a file of statistics does not need.
  const Outcome quantized = run("galley-quantize", {folder + "/run", "method=static", "threads=1", "--evaluate", "--format", "json", "-o",
                                                    folder + "/int8.safetensors"});
  ASSERT_EQ(quantized.code, 0) << quantized.err;
  EXPECT_GE(Json::parse(quantized.out)["metrics"]["quantized"]["top1"], 95.0) << quantized.out;
}

TEST(HubFolder, TheBestAveragedWeightsAreKept) {
  const std::string folder = scratch_folder();
  std::string rows;
  for (int i = 0; i < 12; ++i) rows += "a very good film\t1\na bad film\t0\n";
  write_text(folder + "/train.tsv", rows);
  write_text(folder + "/dev.tsv", rows);
  std::vector<std::string> arguments{"sst2_bert",
                                     "weights=" + hub("bert_base"),
                                     "data.root=" + folder,
                                     "train.duration=3 epochs",
                                     "batch=12",
                                     "train.schedule=[]",
                                     "optimizer.lr=0.01",
                                     "train.ema=0.5",
                                     "data.train.source.max_length=16",
                                     "data.train.pipeline.bucket.lengths=8,16",
                                     "data.val.source.max_length=16",
                                     "threads=1",
                                     "checkpoint.keep.best.metric=ema/loss",
                                     "-o",
                                     folder + "/run"};
  const Outcome trained = run("galley-train", arguments);
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Json result = Json::parse(read_text(folder + "/run/result.json"));
  EXPECT_EQ(result["best"]["metric"], "ema/loss");
  EXPECT_NE(result["metrics"]["loss"], result["metrics"]["ema/loss"]);
  const Outcome evaluated =
      run("galley-evaluate", {folder + "/run", "weights=" + folder + "/run/weights_best.safetensors", "threads=1", "--format", "json"});
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_EQ(Json::parse(evaluated.out)["metrics"]["loss"], result["best"]["value"]);
  arguments[7] = "train.ema=null";
  arguments.push_back("--force");
  const Outcome refused = run("galley-train", arguments);
  EXPECT_EQ(refused.code, 3);
  EXPECT_NE(refused.err.find("'ema/loss' is a metric of averaged weights, but the recipe has no train.ema"), std::string::npos)
      << refused.err;
}

TEST(HubFolder, AMaskedModelTrains) {
  const std::string folder = scratch_folder();
  std::string text;
  for (int i = 0; i < 64; ++i) text += "the story is fine and the film is very good .\n";
  write_text(folder + "/text.tsv", text);
  write_text(
      folder + "/r.yaml",
      "recipe: 1\nname: masked\nmodel: {type: hub, path: " + hub("bert_masked") +
          "}\nweights: null\ndata:\n  tokenizer: {type: hub, path: " + hub("bert_classes") +
          "/tokenizer.json}\n  train:\n    source: {type: text_pairs, path: " + folder +
          "/text.tsv, max_length: 16}\n    pipeline: [{type: rename, from: input, to: input_ids}, {type: mask_tokens, p: 0.3, field: "
          "input_ids}]\n  val: {from: train, pipeline: [{type: rename, from: input, to: input_ids}, {type: mask_tokens, p: 0.3, "
          "field: input_ids}]}\ntrain: {duration: 20 epochs, batch: 16, optimizer: {type: adamw, lr: 0.03}}\nthreads: 1\n");
  const Outcome trained = run("galley-train", {folder + "/r.yaml", "-o", folder + "/run"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Json result = Json::parse(read_text(folder + "/run/result.json"));
  EXPECT_LT(result["metrics"]["loss"].get<double>(), 1.0) << "log 27 = 3.3 at the start";
}

TEST(HubFolder, AgNewsTrainsFromScratch) {
  const std::string folder = scratch_folder();
  std::string table;
  for (int i = 0; i < 8; ++i)
    table +=
        "\"1\",\"War and peace\",\"Troops, they say\"\n\"2\",\"Cup final\",\"The team wins\"\n\"3\",\"Stocks\",\"Markets "
        "fall\"\n\"4\",\"Chips\",\"A \"\"new\"\" chip\"\n";
  write_text(folder + "/train.csv", table);
  write_text(folder + "/test.csv", table);
  ASSERT_EQ(
      run("galley-weights", {"tokenizer", "train", folder + "/train.csv", "--vocab-size", "300", "-o", folder + "/tokenizer.json"}).code,
      0);
  const Outcome trained = run(
      "galley-train", {"agnews_from_scratch", "data.root=" + folder, "train.duration=20 epochs", "batch=8", "train.schedule=[]",
                       "model.hidden_size=16", "model.intermediate_size=32", "optimizer.lr=0.01", "data.train.source.max_length=48",
                       "data.train.pipeline.bucket.lengths=32,48", "data.val.source.max_length=48", "threads=1", "-o", folder + "/run"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(Json::parse(read_text(folder + "/run/result.json"))["metrics"]["top1"], 100.0);
}

struct Mistake {
  std::string what;
  std::vector<std::string> arguments;
  int code;
  std::string says;
};

TEST(HubFolder, MistakesHaveTheirExitCodes) {
  const std::string folder = scratch_folder();
  const auto copy = [&](const std::string& name) {
    const std::string to = folder + "/" + name + std::to_string(std::distance(fs::directory_iterator(folder), {}));
    fs::copy(hub(name), to);
    return to;
  };
  const auto changed = [&](const std::string& name, const std::string& key, const Json& value) {
    const std::string to = copy(name);
    Json config = Json::parse(read_text(to + "/config.json"));
    config[key] = value;
    write_text(to + "/config.json", config.dump());
    return to;
  };
  const std::string empty = folder + "/empty", without_shard = copy("bert_base"), without_config = copy("bert_masked"),
                    tiny = tiny_recipe(folder);
  const std::string ids = folder + "/ids.safetensors";
  const int64_t three[3] = {2, 99, 3};
  write_text(ids, safetensors_of(R"({"input_ids":{"dtype":"I64","shape":[1,3],"data_offsets":[0,24]}})",
                                 std::string(reinterpret_cast<const char*>(three), sizeof(three))));
  const std::string lengths = folder + "/lengths.safetensors";
  const int64_t values[8] = {2, 5, 3, 2, 5, 3, 3, 4};
  write_text(lengths, safetensors_of(R"({"input_ids":{"dtype":"I64","shape":[2,3],"data_offsets":[0,48]},)"
                                     R"("input_ids.length":{"dtype":"I64","shape":[2],"data_offsets":[48,64]}})",
                                     std::string(reinterpret_cast<const char*>(values), sizeof(values))));
  fs::create_directory(empty);
  fs::remove(without_shard + "/model-00002-of-00004.safetensors");
  fs::remove(without_config + "/config.json");
  const std::vector<Mistake> mistakes{
      {"no config.json, as a recipe", {empty + "/", "--text", "a"}, 3, "neither a recipe.yaml nor a config.json"},
      {"no config.json, as weights", {tiny, "weights=" + without_config, "--tensors", "x"}, 4, "has no config.json"},
      {"unknown architecture",
       {changed("bert_masked", "architectures", {"MambaForCausalLM"}), "--text", "a"},
       4,
       "of the model_type \"bert\" are BertModel, BertForMaskedLM, BertForSequenceClassification, BertForTokenClassification, "
       "BertForQuestionAnswering, BertForPreTraining, BertForNextSentencePrediction\n"},
      {"contradiction", {changed("bert_masked", "hidden_size", 9), "--text", "a"}, 4, "not a multiple of num_attention_heads"},
      {"shapes that config.json does not have",
       {changed("bert_classes", "intermediate_size", 16), "--text", "a"},
       4,
       "does not fit the model"},
      {"missing shard", {without_shard, "--text", "a"}, 4, "model-00002-of-00004.safetensors is missing"},
      {"vocabularies", {changed("bert_classes", "vocab_size", 20), "--text", "a"}, 3, "model.vocab_size is 20"},
      {"no tokenizer", {hub("bert_masked"), "--text", "a"}, 3, "has no tokenizer"},
      {"ids out of range",
       {hub("bert_masked"), "--tensors", ids, "-o", folder + "/o.safetensors"},
       4,
       "'input_ids' has the id 99 at [0,1]"},
      {"lengths out of range",
       {hub("bert_masked"), "--tensors", lengths, "-o", folder + "/o.safetensors"},
       4,
       "has 4 at [1]; a length is 1 to 3"},
      {"--embed without text", {hub("bert_base"), "--embed"}, 2, "--embed needs texts"},
      {"--embed of no encoder", {tiny, "--text", "a", "--embed", "weights=x"}, 2, "gives no vectors of texts"},
      {"--text and a file", {hub("bert_classes"), "x.jpg", "--text-file", "y"}, 2, "both text and a file"},
      {"answers without -o", {hub("distilbert_answers"), "--text", "a"}, 3, "has no tokenizer"},
      {"an encoder continues nothing", {hub("bert_classes"), "--prompt", "a"}, 3, "--text TEXT predicts a whole text"},
      {"no weights for the type hub", {"sst2_bert", "--text", "a"}, 3, "no weights were given"},
  };
  for (const Mistake& mistake : mistakes) {
    const Outcome outcome = run("galley-predict", mistake.arguments);
    EXPECT_EQ(outcome.code, mistake.code) << mistake.what << "\n" << outcome.err;
    EXPECT_NE(outcome.err.find(mistake.says), std::string::npos) << mistake.what << "\n" << outcome.err;
    EXPECT_EQ(outcome.out, "") << mistake.what;
  }
}

}  // namespace
}  // namespace galley::testing_cli
