// galley-weights tokenizer train as a user runs it: the vocabulary is that of Hugging Face's BpeTrainer on the same texts, does not depend
// on the order of the files, and trains a model.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/cli/process.h"

namespace galley::testing_cli {
namespace {

using Json = nlohmann::json;

Json golden(const std::string& name) { return Json::parse(read_text(std::string(GALLEY_SOURCE_DIR) + "/tests/text/golden/" + name)); }

Outcome train(const std::vector<std::string>& files, const std::vector<std::string>& options) {
  std::vector<std::string> arguments{"tokenizer", "train"};
  arguments.insert(arguments.end(), files.begin(), files.end());
  arguments.insert(arguments.end(), options.begin(), options.end());
  return run("galley-weights", arguments);
}

TEST(TokenizerTrain, LearnsWhatTheReferenceLearns) {
  const std::string folder = scratch_folder();
  std::vector<std::string> files;
  for (const Json& text : golden("texts.json")) {
    files.push_back(folder + "/" + std::to_string(files.size()) + ".txt");
    write_text(files.back(), text);
  }
  const Json expected = golden("trained.json");
  for (const std::string pattern : {"gpt2", "llama3"}) {
    const std::string out = folder + "/" + pattern + ".json";
    const std::vector<std::string> options{"--vocab-size", expected[pattern]["vocabulary"].dump(),
                                           "--special",    "<|endoftext|>",
                                           "--pattern",    pattern,
                                           "--format",     "json",
                                           "-o",           out};
    const Outcome outcome = train(files, options);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const Json made = Json::parse(read_text(out));
    EXPECT_EQ(made["model"]["vocab"], expected[pattern]["vocab"]);
    EXPECT_EQ(made["model"]["merges"], expected[pattern]["merges"]);
    const Json report = Json::parse(outcome.out);
    EXPECT_EQ(report["tokens"], made["model"]["vocab"].size());
    EXPECT_EQ(report["special"], 1);
    EXPECT_EQ(report["provenance"]["tool"], "galley-weights");
    const std::string first = read_text(out);
    std::reverse(files.begin(), files.end());
    ASSERT_EQ(train(files, options).code, 0);
    EXPECT_EQ(read_text(out), first) << "the order of the files has no influence";
  }
}

TEST(TokenizerTrain, ItsFileTrainsAModel) {
  const std::string folder = scratch_folder();
  std::string text;
  for (int i = 0; i < 400; ++i) text += "the thief st\u00F6pped " + std::to_string(i * 37 % 100) + " \u20AC, ";
  write_text(folder + "/text.txt", text);
  ASSERT_EQ(train({folder + "/text.txt"}, {"--vocab-size", "300", "-o", folder + "/tokenizer.json", "-q"}).code, 0);
  const Outcome trained = run("galley-train", {"shakespeare_bpe_gpt", "data.root=" + folder, "data.train.source.path=text.txt",
                                               "model.n_layer=1", "model.n_head=2", "model.n_embd=16", "model.block_size=16", "batch=8",
                                               "duration=60 steps", "optimizer.lr=0.01", "-o", folder + "/run", "--threads", "1", "-q"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Outcome shown = run("galley-predict", {folder + "/run", "--prompt", "the thief", "generate.max_new_tokens=30",
                                               "generate.temperature=0.5", "--format", "json", "-q", "--threads", "1"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_EQ(Json::parse(shown.out)["tokens"].size(), 30u);
}

TEST(TokenizerTrain, WhatIsWrongHasOneClearError) {
  const std::string folder = scratch_folder();
  const auto fails = [&](const Outcome& outcome, int code, const std::string& message) {
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
    EXPECT_TRUE(outcome.out.empty()) << outcome.out;
  };
  const std::string text = folder + "/text.txt", out = folder + "/t.json";
  write_text(text, "some text");
  fails(run("galley-weights", {"tokenizer"}), 2, "tokenizer train");
  fails(train({}, {"-o", out}), 2, "one or more text files");
  fails(train({text}, {}), 2, "-o is missing");
  fails(train({text}, {"-o", folder + "/t.safetensors"}), 2, "the output format is json");
  ASSERT_EQ(mkfifo((folder + "/pipe.json").c_str(), 0600), 0);
  fails(train({text}, {"-o", folder + "/pipe.json"}), 7, "it is a pipe, not a regular file");
  EXPECT_TRUE(std::filesystem::is_fifo(folder + "/pipe.json"));
  fails(train({text}, {"-o", out, "--vocab-size", "100"}), 2, "it must have 256 to");
  fails(train({text}, {"-o", out, "--vocab-size", "x"}), 2, "--vocab-size");
  fails(train({text}, {"-o", out, "--special", "a"}), 2, "the special token 'a'");
  fails(train({text}, {"-o", out, "--pattern", "gpt5"}), 2, "gpt2, llama3");
  fails(train({text}, {"-o", out, "--min-frequency", "0"}), 2, "--min-frequency");
  EXPECT_NE(train({"--help"}, {}).out.find("tekken3"), std::string::npos);
  const Outcome untrained = run("galley-train", {"shakespeare_bpe_gpt", "data.root=" + folder, "--dry-run"});
  fails(untrained, 4, "shakespeare_bpe_gpt.yaml:");
  fails(untrained, 4, "galley-weights tokenizer train TEXT -o " + folder + "/tokenizer.json learns one from a text");
  fails(train({folder + "/none.txt"}, {"-o", out}), 4, "none.txt");
  write_text(text, "a\nb\xFF");
  fails(train({text}, {"-o", out}), 4, "text.txt:2:2: error: byte 0xFF");
  write_text(text, "");
  fails(train({text}, {"-o", out}), 4, "there is no text");
  write_text(text, "abab");
  const Outcome few = train({text}, {"-o", out, "--vocab-size", "1000"});
  EXPECT_EQ(few.code, 0) << few.err;
  EXPECT_NE(few.err.find("have pairs for 257 tokens only"), std::string::npos) << few.err;
}

}  // namespace
}  // namespace galley::testing_cli
