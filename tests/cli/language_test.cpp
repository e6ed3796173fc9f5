// A language model as a user trains it: the built-in recipe in a tiny form reaches the perplexity that its text has, later tools read text
// by the tokenizer of the weights, durations may be tokens, and what is wrong with a text is said with its place.

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

/// Pairs of a random letter of abcd and its capital: one bit a character, perplexity 2.
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

TEST(Language, LaterToolsReadTheTokenizerOfTheWeights) {
  const std::string folder = scratch_folder();
  write_text(folder + "/text.txt", one_bit_text(500));
  const Outcome trained = run("galley-train", tiny(folder, {"duration=3200 tokens", "--format", "json"}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Json result = Json::parse(trained.out);
  EXPECT_EQ(result["steps"], 13) << "3200 tokens, 256 a step, rounded up";
  // The training text is gone, and with it what its vocabulary came from.
  write_text(folder + "/other.txt", "aAbB");
  const std::vector<std::string> other{"data.train.source.path=" + folder + "/other.txt", "data.val.slice=0%..100%", "--format", "json",
                                       "-q"};
  std::vector<std::string> arguments{folder + "/run"};
  arguments.insert(arguments.end(), other.begin(), other.end());
  const Outcome evaluated = run("galley-evaluate", arguments);
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_EQ(Json::parse(evaluated.out)["samples"], 1) << "one window of four tokens";
  // Three predictions count, whatever the window's length.
  const double perplexity = Json::parse(evaluated.out)["metrics"]["perplexity"];
  EXPECT_GT(perplexity, 1);
  EXPECT_LT(perplexity, 16);
  // The whole run again, on its own data: the same numbers.
  const Outcome again = run("galley-evaluate", {folder + "/run", "--format", "json", "-q"});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(Json::parse(again.out)["metrics"], result["metrics"]);
  write_text(folder + "/other.txt", "aAbB\naAxX");
  const Outcome unknown = run("galley-evaluate", {folder + "/run", "data.train.source.path=" + folder + "/other.txt", "-q"});
  EXPECT_EQ(unknown.code, 4) << unknown.err;
  EXPECT_NE(unknown.err.find("other.txt:1:5: character U+000A is not among the vocabulary's 8"), std::string::npos) << unknown.err;
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
  fails("ab\nc\xFF", {"duration=1 steps"}, 4, "text.txt:2:2: byte 0xFF at 4 is not UTF-8");
  fails(one_bit_text(200), {"duration=1 steps", "model.vocab=5"}, 3, "model.vocab is 5, the tokenizer char has 8 tokens");
  fails(one_bit_text(200), {"duration=1 steps", "metrics=perplexty"}, 3, "perplexity");
  fails(one_bit_text(200), {"duration=1 steps", "model.tie_weights=true"}, 3, "tie_weights needs hidden_size = embedding_dim");
  const Outcome missing = run("galley-train", {"tinyshakespeare_lstm", "data.train.source.path=" + folder + "/nothing.txt",
                                               "duration=1 steps", "-o", folder + "/other"});
  EXPECT_EQ(missing.code, 4);
  EXPECT_NE(missing.err.find("nothing.txt: no such file or folder"), std::string::npos) << missing.err;
  EXPECT_EQ(run("galley-recipes", {"validate", "tinyshakespeare_lstm"}).code, 0) << "a recipe is valid without its data";
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
