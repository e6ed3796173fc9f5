// Text as a user trains on it: texts packed into blocks, answers to questions, texts written from others; the built-in recipes in a tiny
// form, interrupted and continued, and one error with the documented exit code where something is wrong.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/cli/json_lines.h"
#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

Json result_of(const std::string& run) { return Json::parse(read_text(run + "/result.json")); }

/// Texts of which each repeats one letter, so that a model has to see where a text begins.
std::string letter_texts(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i)
    lines += "{\"text\": \"" + std::string(static_cast<size_t>(3 + i % 9), static_cast<char>('a' + i * 7 % 5)) + "\"}\n";
  return lines;
}

std::string packing_recipe(const std::string& folder, const std::string& item, int64_t width = 16) {
  write_text(folder + "/r.yaml",
             "recipe: 1\nname: packed\nmodel: {type: gpt, n_layer: 1, n_head: 2, n_embd: " + std::to_string(width) +
                 ", block_size: 12, dropout: 0}\ndata:\n  root: " + folder +
                 "\n  tokenizer: {type: hub, path: tokenizer.json}\n  train: {source: {type: jsonl, path: train.jsonl}, pipeline: [" +
                 item + "]}\n  val: {from: train, pipeline: [" + item +
                 "]}\nthreads: 1\ntrain: {duration: 60 steps, batch: 8, optimizer: {type: adamw, lr: 0.02}, validate: 60 steps}\n");
  return folder + "/r.yaml";
}
void write_packing_data(const std::string& folder) {
  write_text(folder + "/train.jsonl", letter_texts(120));
  ASSERT_EQ(run("galley-weights", {"tokenizer", "train", folder + "/train.jsonl", "--vocab-size", "257", "--special", "<|endoftext|>", "-o",
                                   folder + "/tokenizer.json"})
                .code,
            0);
}

TEST(Packing, TrainsWithinTextsAndContinuesAtItsPosition) {
  const std::string folder = scratch_folder();
  write_packing_data(folder);
  const std::string recipe = packing_recipe(folder, "{type: pack, length: 12, separate: true}");
  const Outcome whole = run("galley-train", {recipe, "-o", folder + "/whole"});
  ASSERT_EQ(whole.code, 0) << whole.err;
  const Json metrics = result_of(folder + "/whole")["metrics"];
  // Within a text the letter is known; only its end is not: 9 lengths.
  EXPECT_LT(metrics["loss"].get<double>(), 0.6) << metrics;
  EXPECT_TRUE(metrics.contains("bits_per_char")) << metrics;

  ASSERT_EQ(run("galley-train", {recipe, "-o", folder + "/parts", "duration=23 steps", "validate=null"}).code, 0);
  const Outcome rest = run("galley-train", {recipe, "-o", folder + "/parts", "duration=60 steps", "validate=null"});
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(result_of(folder + "/parts")["digest"], result_of(folder + "/whole")["digest"]) << "the run continues at its position";

  const Outcome evaluated = run("galley-evaluate", {folder + "/whole", "--format", "json"});
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_EQ(Json::parse(evaluated.out)["samples"], 80) << "blocks";
}

TEST(Packing, MistakesHaveTheirExitCodes) {
  const std::string folder = scratch_folder();
  write_packing_data(folder);
  const std::vector<std::tuple<std::string, int, std::string>> mistakes{
      {"{type: pack, length: 8, stride: 9}", 3, "tokens would be lost"},
      {"{type: pack, end: '</end>'}", 3, "has no piece '</end>'"},
      {"{type: pack, length: 13}", 3, "block_size=12"},
      {"{type: rename, from: input, to: x}, {type: pack}", 3, "pack must be the first item"},
      {"{type: pack, lenght: 8}", 3, "length"},
  };
  for (const auto& [item, code, says] : mistakes) {
    const Outcome outcome = run("galley-train", {packing_recipe(folder, item), "-o", folder + "/run"});
    EXPECT_EQ(outcome.code, code) << item << "\n" << outcome.err;
    EXPECT_NE(outcome.err.find(says), std::string::npos) << item << "\n" << outcome.err;
  }
}

TEST(Gpt2, Gpt2124mRunsInATinyForm) {
  const std::string folder = scratch_folder();
  std::string text;
  for (int i = 0; i < 400; ++i) text += i % 20 == 19 ? "the end<|endoftext|>" : "one two three ";
  write_text(folder + "/train_0.txt", text);
  write_text(folder + "/train_1.txt", text);
  write_text(folder + "/val.txt", text);
  std::filesystem::create_directory(folder + "/gpt2");
  write_text(folder + "/corpus.txt", "one two three the end one two three");
  ASSERT_EQ(run("galley-weights", {"tokenizer", "train", folder + "/corpus.txt", "--vocab-size", "270", "--special", "<|endoftext|>", "-o",
                                   folder + "/gpt2/tokenizer.json"})
                .code,
            0);
  const std::vector<std::string> tiny{"gpt2_124m",          "data.root=" + folder, "model.n_layer=1",      "model.n_head=2",
                                      "model.n_embd=16",    "model.block_size=16", "model.vocab_size=320", "train.batch.global=4",
                                      "train.batch.micro=2"};
  std::vector<std::string> arguments = tiny;
  for (const char* more : {"duration=40 steps", "validate.every=40 steps", "validate.samples=20", "optimizer.lr=0.02", "threads=1",
                           "train.schedule.0.duration=5 steps", "checkpoint.every=40 steps"})
    arguments.emplace_back(more);
  arguments.insert(arguments.end(), {"-o", folder + "/run"});
  const Outcome trained = run("galley-train", arguments);
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_LT(result_of(folder + "/run")["metrics"]["loss"].get<double>(), 2.5) << "log 320 = 5.8 at the start";
  const Outcome generated = run("galley-predict", {folder + "/run", "--prompt", "one", "generate.max_new_tokens=8", "--format", "json"});
  ASSERT_EQ(generated.code, 0) << generated.err;
  EXPECT_GE(Json::parse(generated.out)["tokens"].size(), 1u);
  // Of the full size the plan alone: three times as much as the parameters and their moments is a bound that only tiny sizes miss.
  std::vector<std::string> planned{"gpt2_124m", "data.root=" + folder, "--dry-run", "--format", "json", "threads=1"};
  const Outcome plan = run("galley-train", planned);
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_GT(Json::parse(plan.out)["planned_peak_bytes"].get<double>(), 2e9) << plan.out.substr(0, 400);
}

TEST(Questions, AnswersAreThoseOfTransformers) {
  const Json golden = Json::parse(read_text(hub("bert_answers") + "/questions.json"));
  std::vector<std::string> arguments{hub("bert_answers"), "top=3", "--format", "json", "threads=1", "--text"}, contexts;
  for (const Json& row : golden["questions"]) {
    arguments.push_back(row["question"]);
    contexts.push_back(row["context"]);
  }
  arguments.emplace_back("--text-pair");
  arguments.insert(arguments.end(), contexts.begin(), contexts.end());
  const Outcome outcome = run("galley-predict", arguments);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<Json> lines = json_lines(outcome.out);
  ASSERT_EQ(lines.size(), golden["questions"].size());
  for (size_t i = 0; i < lines.size(); ++i) {
    const Json& expected = golden["questions"][i]["predicted"];
    ASSERT_EQ(lines[i]["answers"].size(), expected.size()) << lines[i];
    for (size_t k = 0; k < expected.size(); ++k) {
      for (const char* key : {"answer", "start", "end"}) EXPECT_EQ(lines[i]["answers"][k][key], expected[k][key]) << lines[i];
      EXPECT_NEAR(lines[i]["answers"][k]["score"].get<double>(), expected[k]["score"].get<double>(), 1e-4);
    }
  }
  const Outcome alone = run("galley-predict", {hub("bert_answers"), "threads=1", "--text", "is it?"});
  EXPECT_EQ(alone.code, 2);
  EXPECT_NE(alone.err.find("--text QUESTION --text-pair TEXT"), std::string::npos) << alone.err;
  std::string many = "is it";
  for (int i = 0; i < 40; ++i) many += " it";
  const Outcome full = run("galley-predict", {hub("bert_answers"), "threads=1", "--text", many, "--text-pair", "good"});
  EXPECT_EQ(full.code, 4);
  EXPECT_NE(full.err.find("leaves no room for the context"), std::string::npos) << full.err;
}

TEST(Questions, AnEncoderIsFineTunedByTheRecipeOfSquad) {
  const std::string folder = scratch_folder();
  // The answer is what follows "good": a fact about tokens that a tiny model learns.
  const std::vector<std::string> words{"film", "story", "one", "two"};
  std::string lines;
  for (size_t i = 0; i < 48; ++i) {
    const std::string answer = words[i % 4], before = i % 3 == 0 ? "the bad " : i % 3 == 1 ? "a fine " + words[(i + 1) % 4] + " and " : "";
    const std::string context = before + "good " + answer + (i % 2 == 0 ? " and bad " + words[(i + 2) % 4] : "");
    lines +=
        Json{{"question", "was it good ?"}, {"context", context}, {"answers", {{"text", {answer}}, {"answer_start", {before.size() + 5}}}}}
            .dump() +
        "\n";
  }
  write_text(folder + "/q.jsonl", lines);
  const Outcome trained =
      run("galley-train", {"squad_bert", "weights=" + hub("bert_base"), "data.root=" + folder, "data.train.source.path=q.jsonl",
                           "data.val.source.path=q.jsonl", "data.train.source.max_length=20", "data.val.source.max_length=16",
                           "data.val.source.doc_stride=3", "data.train.pipeline.bucket.lengths=16,20", "train.duration=60 epochs",
                           "batch=12", "optimizer.lr=0.02", "train.schedule=[]", "validate=60 epochs", "threads=1", "-o", folder + "/run"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Json metrics = result_of(folder + "/run")["metrics"];
  EXPECT_GE(metrics["exact_match"].get<double>(), 90) << metrics;
  EXPECT_GE(metrics["f1"].get<double>(), metrics["exact_match"].get<double>());
  const Outcome predicted = run("galley-predict", {folder + "/run", "top=1", "--format", "json", "threads=1", "--text", "was it good ?",
                                                   "--text-pair", "a fine story and good film"});
  ASSERT_EQ(predicted.code, 0) << predicted.err;
  EXPECT_EQ(Json::parse(predicted.out)["answers"][0]["answer"], "film") << predicted.out;
}

TEST(EncoderDecoder, LearnsToReverseByTheRecipe) {
  const std::string folder = scratch_folder();
  std::string table;
  uint32_t state = 7;
  for (int i = 0; i < 400; ++i) {
    std::string word;
    for (int k = 0; k < 2 + i % 4; ++k) {
      state = state * 1664525u + 1013904223u;
      word += static_cast<char>('a' + (state >> 28) % 5);
    }
    table += word + "\t" + std::string(word.rbegin(), word.rend()) + "\n";
  }
  write_text(folder + "/train.tsv", table);
  write_text(folder + "/val.tsv", table.substr(0, table.find('\n', 600) + 1));
  ASSERT_EQ(run("galley-weights", {"tokenizer", "train", folder + "/train.tsv", "--vocab-size", "258", "--special", "<s>", "--special",
                                   "</s>", "-o", folder + "/tokenizer.json"})
                .code,
            0);
  const Outcome trained =
      run("galley-train", {"translation_transformer", "data.root=" + folder, "model.d_model=32", "model.nhead=2",
                           "model.num_encoder_layers=1", "model.num_decoder_layers=1", "model.dim_feedforward=64", "model.dropout=0",
                           "model.max_length=8", "data.train.pipeline.bucket.lengths=4,8", "duration=60 epochs", "batch=50",
                           "optimizer.lr=0.01", "train.schedule=[{type: linear, from: 0x, duration: 40 steps}, {type: cosine}]",
                           "loss.label_smoothing=0.05", "validate=60 epochs", "threads=1", "-o", folder + "/run"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Json metrics = result_of(folder + "/run")["metrics"];
  EXPECT_GE(metrics["top1"].get<double>(), 90) << metrics;
  for (const char* beams : {"1", "3"}) {
    const Outcome outcome = run("galley-predict", {folder + "/run", "--prompt", "abcd", "--prompt", "ea", "--prompt", "bbcde", "--format",
                                                   "json", std::string("generate.beams=") + beams});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const std::vector<Json> lines = json_lines(outcome.out);
    ASSERT_EQ(lines.size(), 3u);
    int right = 0;
    for (const auto& [index, wanted] : std::vector<std::pair<size_t, std::string>>{{0, "dcba"}, {1, "ae"}, {2, "edcbb"}}) {
      right += lines[index]["text"] == wanted;
      EXPECT_EQ(lines[index]["stopped"], "end") << lines[index];
    }
    EXPECT_GE(right, 2) << outcome.out;
  }
  const Outcome printed = run("galley-predict", {folder + "/run", "--prompt", "ea"});
  EXPECT_EQ(printed.out, "ae\n") << "the source is not a part of the text";
  const Outcome large = run("galley-predict", {folder + "/run", "--prompt", "abcdeabcde"});
  EXPECT_EQ(large.code, 2);
  EXPECT_NE(large.err.find("the prompt has 10 tokens, but the model reads at most 8"), std::string::npos) << large.err;
  const Outcome both =
      run("galley-train", {"translation_transformer", "data.root=" + folder, "data.train.source.columns.label=0", "-o", folder + "/x"});
  EXPECT_EQ(both.code, 3) << both.err;
  EXPECT_NE(both.err.find("columns.target goes with columns.text alone"), std::string::npos) << both.err;
}

}  // namespace
}  // namespace galley::testing_cli
