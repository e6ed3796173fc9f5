// A language model as a user trains it: the built-in recipe in a tiny form reaches the perplexity of its text, later tools use the
// tokenizer of the weights, which carry that of files too, durations may be in tokens, and errors in a text have their place.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

/// Pairs of a random letter of abcd and its capital: one bit per character, perplexity 2.
std::string one_bit_text(int pairs) {
  std::string text;
  uint32_t state = 12345;
  for (int i = 0; i < pairs; ++i) {
    state = state * 1664525u + 1013904223u;
    const char letter = static_cast<char>('a' + (state >> 28) % 4);
    text += {letter, static_cast<char>(letter - 'a' + 'A')};
  }
  return text;
}

std::vector<std::string> tiny(const std::string& folder, std::vector<std::string> more) {
  std::vector<std::string> arguments{"tinyshakespeare_lstm",
                                     "data.train.source.path=" + folder + "/text.txt",
                                     "model.embedding_dim=8",
                                     "model.hidden_size=16",
                                     "model.num_layers=1",
                                     "model.sequence_length=16",
                                     "model.dropout=0",
                                     "batch=16",
                                     "optimizer.lr=0.02",
                                     "-o",
                                     folder + "/run",
                                     "--threads",
                                     "1",
                                     "-q"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(Language, ReachesThePerplexityOfItsText) {
  const std::string folder = scratch_folder();
  write_text(folder + "/text.txt", one_bit_text(4000));
  for (const char* cell : {"lstm", "gru", "rnn"}) {
    const Outcome trained =
        run("galley-train", tiny(folder, {"duration=150 steps", std::string("model.cell=") + cell, "--force", "--format", "json"}));
    ASSERT_EQ(trained.code, 0) << trained.err;
    const Json result = Json::parse(trained.out);
    const double perplexity = result["metrics"]["perplexity"], loss = result["metrics"]["loss"], bits = result["metrics"]["bits_per_char"];
    // The first character of a sample may be a capital, whose letter is not known: 1/16 of a bit more than the text has. 800 characters of
    // validation: the letters' share of the four varies by a few per cent.
    EXPECT_GE(perplexity, 1.9) << cell;
    EXPECT_LE(perplexity, 2.3) << cell;
    EXPECT_NEAR(perplexity, std::exp(loss), 1e-9 * perplexity);
    EXPECT_NEAR(bits, std::log2(perplexity), 1e-9);
    EXPECT_EQ(result["best"]["metric"], "perplexity");
  }
}

// A text after the last evaluation is what galley-predict generates with the run's weights, where a cache computes the logits.
TEST(Language, ShowsTextsAfterEachEvaluation) {
  const std::string folder = scratch_folder();
  write_text(folder + "/text.txt", one_bit_text(2000));
  const std::vector<std::string> options{"predict.generate={max_new_tokens: 12, temperature: 0.7}"};
  const std::vector<std::string> train{"shakespeare_gpt",
                                       "data.train.source.path=" + folder + "/text.txt",
                                       "model={type: gpt, bias: false, dropout: 0, n_layer: 2, n_head: 2, n_embd: 16, block_size: 16}",
                                       "train.duration=40 steps",
                                       "train.validate={every: 20 steps, prompts: [aA, cC]}",
                                       options.front(),
                                       "-o",
                                       folder + "/run",
                                       "--threads",
                                       "1"};
  const Outcome trained = run("galley-train", train);
  ASSERT_EQ(trained.code, 0) << trained.err;
  std::vector<Json> evaluations;
  std::istringstream lines(read_text(folder + "/run/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    if (Json row = Json::parse(line); row["kind"] == "eval") evaluations.push_back(std::move(row));
  }
  ASSERT_EQ(evaluations.size(), 2u);
  EXPECT_NE(evaluations[0]["texts"], evaluations[1]["texts"]) << "weights differ";
  for (size_t i = 0; i < 2; ++i) {
    const Json text = evaluations[1]["texts"][i];
    EXPECT_EQ(text["prompt"], i == 0 ? "aA" : "cC");
    EXPECT_EQ(text["text"].get<std::string>().size(), 12u);
    EXPECT_NE(trained.err.find("text  " + text["prompt"].get<std::string>() + text["text"].get<std::string>()), std::string::npos)
        << trained.err;
  }
  write_text(folder + "/prompts.txt", "aA\ncC\n");
  const Outcome predicted = run("galley-predict", {folder + "/run", "--prompts", folder + "/prompts.txt", "--format", "json", "-q"});
  ASSERT_EQ(predicted.code, 0) << predicted.err;
  std::istringstream texts(predicted.out);
  for (size_t i = 0; i < 2; ++i) {
    std::string line;
    std::getline(texts, line);
    EXPECT_EQ(Json::parse(line)["text"], evaluations[1]["texts"][i]["text"]) << i;
  }

  std::vector<std::string> classifier{"benchmark/cifar_resnet20_synthetic", "train.validate={prompts: [a]}", "-n"};
  const Outcome refused = run("galley-train", classifier);
  EXPECT_EQ(refused.code, 3);
  EXPECT_NE(refused.err.find("has no tokenizer"), std::string::npos) << refused.err;
}

TEST(Language, LaterToolsReadTheTokenizerOfTheWeights) {
  const std::string folder = scratch_folder();
  write_text(folder + "/text.txt", one_bit_text(500));
  const Outcome trained = run("galley-train", tiny(folder, {"duration=3200 tokens", "--format", "json"}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Json result = Json::parse(trained.out);
  EXPECT_EQ(result["steps"], 13) << "3200 tokens, 256 per step, rounded up";
  // The training text is removed, so the vocabulary can only come from the weights.
  write_text(folder + "/other.txt", "aAbB");
  const std::vector<std::string> other{"data.train.source.path=" + folder + "/other.txt", "data.val.slice=0%..100%", "--format", "json",
                                       "-q"};
  std::vector<std::string> arguments{folder + "/run"};
  arguments.insert(arguments.end(), other.begin(), other.end());
  const Outcome evaluated = run("galley-evaluate", arguments);
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_EQ(Json::parse(evaluated.out)["samples"], 1) << "one window of four tokens";
  // Three predictions count for any length of the window.
  const double perplexity = Json::parse(evaluated.out)["metrics"]["perplexity"];
  EXPECT_GT(perplexity, 1);
  EXPECT_LT(perplexity, 16);
  // A repeated run on the same data gives the same numbers.
  const Outcome again = run("galley-evaluate", {folder + "/run", "--format", "json", "-q"});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(Json::parse(again.out)["metrics"], result["metrics"]);
  write_text(folder + "/other.txt", "aAbB\naAxX");
  const Outcome unknown = run("galley-evaluate", {folder + "/run", "data.train.source.path=" + folder + "/other.txt", "-q"});
  EXPECT_EQ(unknown.code, 4) << unknown.err;
  EXPECT_NE(unknown.err.find("other.txt:1:5: error: the character U+000A is not in the vocabulary of 8"), std::string::npos) << unknown.err;
}

/// Trains a tiny GPT on FOLDER/text.txt, into FOLDER/run.
Outcome train_gpt(const std::string& folder, const std::vector<std::string>& more) {
  std::vector<std::string> arguments{"shakespeare_gpt",
                                     "data.train.source.path=" + folder + "/text.txt",
                                     "model.n_layer=1",
                                     "model.n_head=2",
                                     "model.n_embd=16",
                                     "model.block_size=16",
                                     "batch=16",
                                     "optimizer.lr=0.01",
                                     "train.validate.prompts=[]",
                                     "--unset",
                                     "predict.generate",
                                     "-o",
                                     folder + "/run",
                                     "--threads",
                                     "1",
                                     "-q"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run("galley-train", arguments);
}

/// The lines of JSON that galley-predict prints for the model of FOLDER/run.
std::vector<Json> predict_lines(const std::string& folder, const std::vector<std::string>& more) {
  std::vector<std::string> arguments{folder + "/run", "--format", "json", "-q", "--threads", "1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Outcome outcome = run("galley-predict", arguments);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::vector<Json> lines;
  std::istringstream text(outcome.out);
  for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
  return lines;
}

/// Each letter of abcd is followed by its capital, also in generated text if the model has learned it.
TEST(Language, ContinuesPrompts) {
  const std::string folder = scratch_folder();
  write_text(folder + "/text.txt", one_bit_text(4000));
  const Outcome trained = train_gpt(folder, {"duration=300 steps"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const auto predict = [&](const std::vector<std::string>& more) { return predict_lines(folder, more); };
  // Past the context of 16 tokens the model reads the last ones. Samples of training begin with a small letter; windows past the context
  // may not.
  const std::vector<Json> drawn = predict({"--prompt", "aAb", "generate.max_new_tokens=41", "generate.temperature=0.7", "--seed", "3"});
  ASSERT_EQ(drawn.size(), 1u);
  EXPECT_EQ(drawn[0]["stopped"], "length");
  EXPECT_EQ(drawn[0]["tokens"].size(), 41u);
  EXPECT_GT(drawn[0]["prefill_ms"].get<double>(), 0);
  const std::string text = drawn[0]["prompt"].get<std::string>() + drawn[0]["text"].get<std::string>();
  ASSERT_EQ(text.size(), 44u);
  int wrong = 0;
  for (size_t i = 0; i < 16; i += 2) wrong += text[i + 1] != text[i] - 'a' + 'A';
  EXPECT_LE(wrong, 1) << text;
  EXPECT_EQ(predict({"--prompt", "aAb", "generate.max_new_tokens=41", "generate.temperature=0.7", "--seed", "3"})[0]["text"],
            drawn[0]["text"]);
  EXPECT_NE(predict({"--prompt", "aAb", "generate.max_new_tokens=41", "generate.temperature=0.7", "--seed", "4"})[0]["text"],
            drawn[0]["text"]);

  // A batch of prompts of different lengths gives the same results as single prompts.
  write_text(folder + "/prompts.txt", "aAb\n\nd\naAbBcCdDaAbBc\r\n");
  const std::vector<Json> batch = predict({"--prompts", folder + "/prompts.txt", "generate.max_new_tokens=9"});
  ASSERT_EQ(batch.size(), 3u);
  for (const Json& line : batch) {
    const std::string prompt = line["prompt"];
    EXPECT_EQ(predict({"--prompt", prompt, "generate.max_new_tokens=9"})[0]["text"], line["text"]) << prompt;
    EXPECT_EQ(line["text"].get<std::string>()[0], prompt.back() - 'a' + 'A');
  }
  // The output excludes the stop string; beam search finds the same certain letter.
  const std::string stop = batch[0]["text"].get<std::string>().substr(3, 2);
  const Json stopped = predict({"--prompt", "aAb", "generate.stop=[" + stop + "]"})[0];
  EXPECT_EQ(stopped["stopped"], "stop");
  EXPECT_EQ(stopped["text"].get<std::string>().find(stop), std::string::npos);
  EXPECT_EQ(predict({"--prompt", "aAc", "generate.beams=3", "generate.max_new_tokens=1"})[0]["text"], "C");

  // The output for people is the prompt and its continuation.
  const Outcome shown = run("galley-predict", {folder + "/run", "--prompt", "aAb", "generate.max_new_tokens=1", "-q"});
  EXPECT_EQ(shown.out, "aAbB\n") << shown.err;
  EXPECT_EQ(predict({"--tokenize", "abA"})[0]["pieces"], (Json{"a", "b", "A"}));
  const Json ids = predict({"--prompt", "abA", "--show-prompt"})[0]["ids"];
  EXPECT_EQ(ids, predict({"--tokenize", "abA"})[0]["ids"]);
  EXPECT_EQ(predict({"--detokenize", "4,0"})[0]["text"], "aA");

  const auto fails = [&](std::vector<std::string> arguments, int code, const std::string& message) {
    arguments.insert(arguments.begin(), folder + "/run");
    const Outcome outcome = run("galley-predict", arguments);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
  };
  fails({"--prompt", "aAbBaAbBaAbBaAbBa"}, 2, "the prompt has 17 tokens, but the model reads at most 16");
  fails({"--prompt", ""}, 2, "the prompt is empty");
  fails({"--prompt", "aX"}, 2, "--prompt, character 2: the character 'X' (U+0058) is not in the vocabulary");
  write_text(folder + "/wrong.txt", "aA\n\nbX\n");
  fails({"--prompts", folder + "/wrong.txt"}, 4, "wrong.txt:3:2: error: the character 'X'");
  fails({"--prompt", "a", "--text", "b"}, 2, "--text predicts whole texts");
  fails({"--prompt", "a", "--format", "csv"}, 2, "not as a table");
  fails({"--prompt", "a", "--save", "csv:" + folder + "/x.csv"}, 2, "--save of texts is JSON; --save json:");
  const Outcome saved = run("galley-predict", {folder + "/run", "--prompt", "aAb", "generate.max_new_tokens=1", "-q", "--save",
                                               "json:" + folder + "/saved.json"});
  EXPECT_EQ(saved.out, "aAbB\n") << saved.err;
  EXPECT_EQ(Json::parse(read_text(folder + "/saved.json"))["text"], "B");
  fails({"--detokenize", "1,99"}, 2, "--detokenize: 99 is not an id of the vocabulary, which has 8 tokens");
  fails({"--detokenize", "-1"}, 2, "--detokenize: -1 is not an id of the vocabulary, which has 8 tokens");
  fails({"--show-prompt"}, 2, "--show-prompt needs a prompt");
  fails({"--show-prompt", "--tokenize", "a"}, 2, "--show-prompt needs a prompt");
  fails({}, 2, "nothing to predict was named; --prompt TEXT");
  fails({"--prompt", "a", "generate.beams=2", "generate.temperature=1"}, 3, "beam search does not sample");
  fails({"--prompt", "a", "-o", folder + "/x.safetensors"}, 2, "do not apply to text");
}

/// Prompts keep their numbers, on which draws depend, so --batch 1 gives each alone.
TEST(Language, APromptThatStopsEarlyLeavesTheOthersOfItsBatchAlone) {
  const std::string folder = scratch_folder();
  write_text(folder + "/text.txt", one_bit_text(1000));
  const Outcome trained = train_gpt(folder, {"duration=20 steps"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  write_text(folder + "/prompts.txt", "aAb\nd\naAbBcCdDaAbBc\n");
  const auto draw = [&](const std::string& option, const std::string& value) {
    return predict_lines(folder,
                         {"--prompts", folder + "/prompts.txt", "generate.max_new_tokens=30", "generate.temperature=1", option, value});
  };
  const std::vector<Json> alone = draw("--batch", "1");
  ASSERT_EQ(alone.size(), 3u);
  std::vector<std::string> texts;
  for (const Json& line : alone) texts.push_back(line["text"]);
  // The shortest text after the first character that only the first prompt gives.
  std::string stop = texts[0].substr(1, 1);
  while (stop.size() < 20 && (texts[1] + "\n" + texts[2]).find(stop) != std::string::npos) stop = texts[0].substr(1, stop.size() + 1);
  ASSERT_LT(stop.size(), 20u) << texts[0];
  const size_t begin = texts[0].find(stop);
  for (const char* batch : {"1", "2", "16"}) {
    SCOPED_TRACE(batch);
    const std::vector<Json> lines = draw("generate.stop=[" + stop + "]", std::string("--batch=") + batch);
    ASSERT_EQ(lines.size(), 3u);
    EXPECT_EQ(lines[0]["stopped"], "stop");
    EXPECT_EQ(lines[0]["text"], texts[0].substr(0, begin));
    EXPECT_EQ(lines[0]["tokens"].size(), begin + stop.size()) << "the tokens of the stop string are among them";
    for (size_t i = 1; i < 3; ++i) {
      EXPECT_EQ(lines[i]["stopped"], "length");
      EXPECT_EQ(lines[i]["text"], texts[i]);
    }
  }
}

TEST(Language, WhatIsWrongHasOneClearError) {
  const std::string folder = scratch_folder();
  const auto fails = [&](const std::string& text, const std::vector<std::string>& more, int code, const std::string& message) {
    write_text(folder + "/text.txt", text);
    std::vector<std::string> arguments = tiny(folder, more);
    arguments.push_back("--force");
    const Outcome outcome = run("galley-train", arguments);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
    EXPECT_TRUE(outcome.out.empty());
  };
  fails("", {"duration=1 steps"}, 4, "the text is empty");
  fails("ab\nc\xFF", {"duration=1 steps"}, 4, "text.txt:2:2: error: byte 0xFF at offset 4 is not UTF-8");
  fails(one_bit_text(200), {"duration=1 steps", "model.vocab=5"}, 3, "model.vocab is 5, but the tokenizer char has 8 tokens");
  fails(one_bit_text(200), {"duration=1 steps", "metrics=perplexty"}, 3, "perplexity");
  fails(one_bit_text(200), {"duration=1 steps", "model.tie_weights=true"}, 3, "tie_weights needs hidden_size = embedding_dim");
  const Outcome vocabulary = train_gpt(folder, {"duration=1 steps", "model.vocab_size=5"});
  EXPECT_EQ(vocabulary.code, 3) << vocabulary.err;
  for (const char* part : {"model.vocab_size is 5, but the tokenizer char has 8 tokens", "remove model.vocab_size; the tokenizer"})
    EXPECT_NE(vocabulary.err.find(part), std::string::npos) << vocabulary.err;
  write_text(folder + "/text.txt", one_bit_text(2000));
  const Outcome longer = run("galley-train", {"shakespeare_gpt", "data.train.source.path=" + folder + "/text.txt",
                                              "data.train.source.sequence_length=256", "--dry-run"});
  EXPECT_EQ(longer.code, 3) << longer.err;
  for (const char* part :
       {"command line:1:", "256 tokens, more than block_size=64", "sequence_length (max_length of samples of one text) to"})
    EXPECT_NE(longer.err.find(part), std::string::npos) << longer.err;
  const Outcome missing = run("galley-train", {"tinyshakespeare_lstm", "data.train.source.path=" + folder + "/nothing.txt",
                                               "duration=1 steps", "-o", folder + "/other"});
  EXPECT_EQ(missing.code, 4);
  EXPECT_NE(missing.err.find("nothing.txt: no such file or folder"), std::string::npos) << missing.err;
  EXPECT_EQ(run("galley-recipes", {"validate", "tinyshakespeare_lstm"}).code, 0) << "a recipe is valid without its data";
}

/// A text of words, white space and characters of two to four bytes.
std::string mixed_text() {
  std::string text;
  for (int i = 0; i < 300; ++i) {
    text += std::to_string(i * 7919 % 1000) + " st\u00F6p the \u20AC " + (i % 3 == 0 ? "\U0001F600\n" : "\u4F60\u597D, ");
  }
  return text;
}

std::vector<Json> lines_of(const Outcome& outcome) {
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::vector<Json> lines;
  std::istringstream text(outcome.out);
  for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
  if (lines.empty()) lines.push_back(Json::object());  // after a failure
  return lines;
}

/// Trains a small GPT with a tokenizer of files for a few steps.
class TokenizerOfFiles : public testing::Test {
 protected:
  TokenizerOfFiles() {
    write_text(folder_ + "/text.txt", mixed_text());
    write_text(folder_ + "/tokenizer.json", read_text(golden("gpt2.json")));
  }
  static std::string golden(const std::string& name) { return std::string(GALLEY_SOURCE_DIR) + "/tests/text/golden/" + name; }
  Outcome train(std::vector<std::string> more, const std::string& run_folder = "run") const {
    std::vector<std::string> arguments{"shakespeare_gpt",
                                       "data.train.source.path=" + folder_ + "/text.txt",
                                       "model.n_layer=1",
                                       "model.n_head=2",
                                       "model.n_embd=16",
                                       "model.block_size=16",
                                       "batch=16",
                                       "data.tokenizer=hub",
                                       "--threads",
                                       "1",
                                       "-o",
                                       folder_ + "/" + run_folder,
                                       "-q"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run("galley-train", arguments);
  }
  Outcome predict(std::vector<std::string> more) const {
    std::vector<std::string> arguments{folder_ + "/run", "--format", "json", "-q", "--threads", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run("galley-predict", arguments);
  }
  static void fails(const Outcome& outcome, int code, const std::string& message) {
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
  }
  std::string folder_ = scratch_folder();
};

TEST_F(TokenizerOfFiles, TravelsWithTheWeights) {
  const std::string file = folder_ + "/tokenizer.json";
  // Rows of the vocabulary beyond the tokens are never sampled: at this temperature every row is equally probable.
  const Outcome trained = train({"data.tokenizer.path=" + file, "model.vocab_size=1300", "duration=2 steps"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  std::filesystem::remove(file);
  const Json tokens = lines_of(predict({"--tokenize", "the \u20ACx"}))[0];
  EXPECT_EQ(tokens["pieces"][0], "the");
  EXPECT_EQ(lines_of(predict({"--detokenize", tokens["ids"].dump().substr(1, tokens["ids"].dump().size() - 2)}))[0]["text"], "the \u20ACx");
  const std::vector<std::string> hot{"--prompt", "st\u00F6p", "generate.temperature=1e6", "generate.max_new_tokens=200", "--seed", "1"};
  const Json drawn = lines_of(predict(hot))[0];
  ASSERT_EQ(drawn["tokens"].size(), 200u);
  for (const Json& token : drawn["tokens"]) EXPECT_LT(token.get<int>(), 1200);
  // The text as it streams is the text of all tokens at once, with a replacement where bytes form no character.
  std::string ids;
  for (const Json& token : drawn["tokens"]) ids += (ids.empty() ? "" : ",") + token.dump();
  const std::string text = lines_of(predict({"--detokenize", ids}))[0]["text"];
  std::string without_special = text;
  for (size_t at = 0; (at = without_special.find("<|endoftext|>")) != std::string::npos;) without_special.erase(at, 13);
  EXPECT_EQ(drawn["text"], without_special);
  std::vector<std::string> streamed{folder_ + "/run", "-q", "--threads", "1"};
  streamed.insert(streamed.end(), hot.begin(), hot.end());
  EXPECT_EQ(run("galley-predict", streamed).out, "st\u00F6p" + without_special + "\n");
  // Later tools need the file as little as these.
  const Outcome evaluated = run("galley-evaluate", {folder_ + "/run", "--format", "json", "-q"});
  EXPECT_EQ(evaluated.code, 0) << evaluated.err;
}

TEST_F(TokenizerOfFiles, ThatDoesNotFitIsAnError) {
  const std::string file = folder_ + "/tokenizer.json", path = "data.tokenizer.path=" + file;
  fails(train({"duration=1 steps"}), 3, "the tokenizer has no path");
  fails(train({"duration=1 steps", "data.tokenizer.path=" + folder_ + "/none.json"}), 4, "none.json: no such file or folder");
  fails(train({"duration=1 steps", path, "model.vocab_size=5"}), 3,
        "model.vocab_size is 5, but the tokenizer " + file + " has 1200 tokens");
  const std::string good = read_text(file);
  write_text(file, "{\n \"model\": {\n");
  fails(train({"duration=1 steps", path}), 4, "tokenizer.json:2:12");
  write_text(file, good);
  ASSERT_EQ(train({"duration=1 steps", path}).code, 0);
  // The weights carry their tokenizer; a recipe that names another one is contradicted.
  const Outcome other = run("galley-evaluate", {folder_ + "/run", "data.tokenizer.path=" + golden("roberta.json"), "-q"});
  fails(other, 3, "is not the tokenizer of the weights");
  fails(run("galley-evaluate", {folder_ + "/run", "data.tokenizer=char", "-q"}), 3, "need the tokenizer hub, but the recipe has char");
  EXPECT_EQ(run("galley-evaluate", {folder_ + "/run", "--unset", "data.tokenizer.path", "-q"}).code, 0);
  // A run does not go on with other ids.
  write_text(file, read_text(golden("roberta.json")));
  fails(train({"duration=2 steps", path}), 3, "was written with another tokenizer");
}

TEST(Language, BytesNeedNoVocabulary) {
  const std::string folder = scratch_folder();
  write_text(folder + "/text.txt", std::string("\xFF\x00\x80", 3) + one_bit_text(200));
  const Outcome outcome = run("galley-train", tiny(folder, {"data.tokenizer=byte", "duration=2 steps", "--format", "json"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NEAR(Json::parse(outcome.out)["metrics"]["loss"].get<double>(), std::log(256.0), 0.5) << "two small steps from even chances";
}

}  // namespace
}  // namespace galley::testing_cli
