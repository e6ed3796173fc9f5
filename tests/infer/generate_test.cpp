// Laws: beam search with enough beams finds the best of all continuations; a prompt of a batch gives what it gives alone, also where others
// end before it; sequences that end cause no compilation.

#include "libcore/infer/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <span>

#include "libcore/base/error.h"
#include "libcore/infer/components.h"
#include "libcore/recipe/recipe.h"
#include "libcore/text/tokenizer.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

std::string text_of(const LanguageModel& model, const std::vector<int64_t>& tokens) {
  return model.tokenizer().decode(std::vector<int32_t>(tokens.begin(), tokens.end()));
}

/// An untrained GPT with three characters, abc.
class Generate : public testing::Test {
 protected:
  Generate() : recipe_(recipe()), session_(recipe_), model_(session_) {}

  std::vector<int64_t> ids(const std::string& text) const {
    const std::vector<int32_t> ids = model_.tokenizer().encode(text);
    return {ids.begin(), ids.end()};
  }
  std::vector<std::vector<int64_t>> prompts(const std::vector<std::string>& texts) const {
    std::vector<std::vector<int64_t>> prompts;
    for (const std::string& text : texts) prompts.push_back(ids(text));
    return prompts;
  }
  std::string text(const std::vector<int64_t>& tokens) const { return text_of(model_, tokens); }

  LanguageModel& model() { return model_; }

 private:
  Recipe recipe() const {
    std::ofstream(folder_ / "abc.txt") << "abc";
    std::ofstream(folder_ / "recipe.yaml") << "recipe: 1\nname: tiny\nseed: 3\nthreads: 1\n"
                                           << "model: {type: gpt, n_layer: 1, n_head: 2, n_embd: 16, block_size: 32, dropout: 0}\n"
                                           << "data: {tokenizer: {type: char, path: [" << folder_ / "abc.txt" << "]}}\n";
    return load_recipe(folder_ / "recipe.yaml", recipe_components(), {}).recipe;
  }

  TemporaryFolder folder_;
  Recipe recipe_;
  Session session_;
  LanguageModel model_;
};

/// The first place after which `text` contains one of the strings; npos: none.
size_t end_of_stop(const std::string& text, const std::vector<std::string>& stops) {
  size_t end = std::string::npos;
  for (const std::string& stop : stops) {
    const size_t begin = text.find(stop);
    if (begin != std::string::npos) end = std::min(end, begin + stop.size());
  }
  return end;
}

struct Best {
  std::vector<int64_t> tokens;
  double mean = -INFINITY;
};

/// Tries all continuations of at most `length` tokens that go on until a stop string.
void search(LanguageModel& model, const std::vector<int64_t>& prompt, const std::vector<int64_t>& tokens, double sum, size_t length,
            const std::vector<std::string>& stops, Best& best) {
  if (tokens.size() == length || end_of_stop(text_of(model, tokens), stops) != std::string::npos) {
    const double mean = sum / static_cast<double>(tokens.size());
    if (mean > best.mean) best = {tokens, mean};
    return;
  }
  std::vector<int64_t> row = prompt;
  row.insert(row.end(), tokens.begin(), tokens.end());
  const Tensor logits = model.next_logits({row});
  double total = 0;
  for (int64_t token = 0; token < model.vocabulary(); ++token) total += std::exp(logits.data_as<float>()[token]);
  for (int64_t token = 0; token < model.vocabulary(); ++token) {
    std::vector<int64_t> next = tokens;
    next.push_back(token);
    search(model, prompt, next, sum + logits.data_as<float>()[token] - std::log(total), length, stops, best);
  }
}

TEST_F(Generate, BeamSearchFindsTheBestContinuation) {
  std::set<StopReason> seen;
  for (const std::vector<std::string>& stops : std::vector<std::vector<std::string>>{{}, {"aa"}, {"b", "cc"}, {"a", "b", "cb"}}) {
    for (const std::string prompt : {"a", "cb", "bac"}) {
      SCOPED_TRACE(cat("prompt ", prompt, ", ", stops.size(), " stop strings"));
      Best best;
      search(model(), ids(prompt), {}, 0, 3, stops, best);
      GenerateOptions options;
      options.max_new_tokens = 3;
      options.beams = 27;  // all sequences of three tokens
      options.stop = stops;
      const Generation found = generate(model(), prompts({prompt}), options).front();
      EXPECT_EQ(found.tokens, best.tokens);
      const size_t end = end_of_stop(text(best.tokens), stops);
      EXPECT_EQ(found.stopped, end == std::string::npos ? StopReason::kLength : StopReason::kStop);
      if (end == std::string::npos) {
        EXPECT_EQ(found.text, text(best.tokens));
      } else {
        const std::string whole = text(best.tokens);
        EXPECT_TRUE(std::any_of(stops.begin(), stops.end(), [&](const std::string& stop) { return found.text + stop == whole; })) << whole;
      }
      seen.insert(found.stopped);
    }
  }
  EXPECT_EQ(seen.size(), 2u) << "some end with a stop string, others do not";
}

TEST_F(Generate, FewBeamsKeepTheBestTokens) {
  for (const std::string prompt : {"a", "cb", "bac"}) {
    SCOPED_TRACE(prompt);
    Best best;
    search(model(), ids(prompt), {}, 0, 1, {}, best);
    GenerateOptions options;
    options.max_new_tokens = 1;
    options.beams = 2;  // fewer than the vocabulary
    EXPECT_EQ(generate(model(), prompts({prompt}), options).front().tokens, best.tokens);
  }
}

TEST_F(Generate, PromptsOfABatchEndWithoutTheOthers) {
  const std::vector<std::string> texts{"a", "bca", "c", "abcabcabcabc", "b"};
  GenerateOptions options;
  options.sampling.temperature = 1;
  options.max_new_tokens = 24;
  options.seed = 11;
  const std::vector<Generation> whole = generate(model(), prompts(texts), options);
  const size_t compiled = model().engine().compilations().size();
  std::set<StopReason> seen;
  for (const std::string stop : {"aba", "cc", "acb"}) {
    options.stop = {stop};
    std::vector<std::string> streamed(texts.size());
    GenerateCallbacks callbacks;
    callbacks.text = [&](size_t prompt, std::string_view text) { streamed[prompt] += text; };
    const std::vector<Generation> results = generate(model(), prompts(texts), options, callbacks);
    ASSERT_EQ(results.size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      SCOPED_TRACE(cat("prompt ", i, ", stop ", stop));
      const size_t end = end_of_stop(whole[i].text, {stop});
      EXPECT_EQ(text(results[i].tokens), whole[i].text.substr(0, end));
      EXPECT_EQ(results[i].stopped, end == std::string::npos ? StopReason::kLength : StopReason::kStop);
      EXPECT_EQ(results[i].text, end == std::string::npos ? whole[i].text : whole[i].text.substr(0, end - stop.size()));
      EXPECT_EQ(streamed[i], results[i].text);
      seen.insert(results[i].stopped);
    }
  }
  EXPECT_EQ(seen.size(), 2u) << "some end with a stop string, others do not";
  EXPECT_EQ(model().engine().compilations().size(), compiled) << "a batch keeps its programs while its sequences end";
  // Alone, with its number.
  options.stop.clear();
  for (size_t i = 0; i < texts.size(); ++i)
    EXPECT_EQ(generate(model(), prompts({texts[i]}), options, {}, static_cast<int64_t>(i)).front().tokens, whole[i].tokens) << i;
}

// Of several end tokens each ends the text, with a reason of its own; it is the last token and has no text.
TEST_F(Generate, EndTokensEndTheText) {
  GenerateOptions options;
  options.sampling.temperature = 1;
  options.max_new_tokens = 20;
  const std::vector<Generation> whole = generate(model(), prompts({"a", "cb"}), options);
  std::set<StopReason> seen;
  for (const std::vector<int64_t>& ends : std::vector<std::vector<int64_t>>{{0}, {1}, {2}, {0, 2}}) {
    options.end_tokens = ends;
    std::string streamed;
    GenerateCallbacks callbacks;
    callbacks.text = [&](size_t prompt, std::string_view text) { streamed += prompt == 0 ? text : ""; };
    const std::vector<Generation> results = generate(model(), prompts({"a", "cb"}), options, callbacks);
    for (size_t i = 0; i < results.size(); ++i) {
      const auto& all = whole[i].tokens;
      const auto end = std::find_first_of(all.begin(), all.end(), ends.begin(), ends.end());
      const std::vector<int64_t> before(all.begin(), end);
      EXPECT_EQ(results[i].text, text(before));
      EXPECT_EQ(results[i].tokens, std::vector<int64_t>(all.begin(), end == all.end() ? end : end + 1));
      EXPECT_EQ(results[i].stopped, end == all.end() ? StopReason::kLength : StopReason::kEnd);
      seen.insert(results[i].stopped);
    }
    EXPECT_EQ(streamed, results[0].text);
  }
  EXPECT_TRUE(seen.contains(StopReason::kEnd));
  options = {.max_new_tokens = 4, .beams = 2, .end_tokens = {0, 1, 2}};
  const Generation beam = generate(model(), prompts({"a"}), options).front();
  EXPECT_EQ(beam.stopped, StopReason::kEnd);
  EXPECT_EQ(beam.tokens.size(), 1u);
  EXPECT_EQ(beam.text, "");
  options.end_tokens = {3};
  EXPECT_THROW(generate(model(), prompts({"a"}), options), Error);
}

// Tokens of the prompt count as repetitions, and those that were drawn.
TEST_F(Generate, RepetitionsAreThoseOfTheWholeText) {
  GenerateOptions options;
  options.sampling.repetition_penalty = 1.7;
  options.max_new_tokens = 6;
  bool differs = false;
  for (const std::string prompt : {"a", "b", "c", "ab", "bbc", "ca"}) {
    std::vector<int64_t> all = ids(prompt);
    const size_t begin = all.size();
    for (int64_t i = 0; i < options.max_new_tokens; ++i) {
      const Tensor logits = model().next_logits({all});
      const std::span<const float> row(logits.data_as<float>(), static_cast<size_t>(model().vocabulary()));
      const std::span<const int64_t> drawn(all.data() + begin, all.size() - begin);
      const int64_t token = sample_token(row, all, options.sampling, {});
      differs = differs || token != sample_token(row, drawn, options.sampling, {});
      all.push_back(token);
    }
    EXPECT_EQ(generate(model(), prompts({prompt}), options).front().tokens,
              std::vector<int64_t>(all.begin() + static_cast<std::ptrdiff_t>(begin), all.end()))
        << prompt;
  }
  EXPECT_TRUE(differs) << "the prompts matter";
}

LoadedRecipe load(const std::string& text) {
  const TemporaryFolder folder;
  std::ofstream(folder / "recipe.yaml") << "recipe: 1\nthreads: 1\n" << text << "\n";
  return load_recipe(folder / "recipe.yaml", recipe_components(), {});
}

// A model may have more logits than the tokenizer has tokens.
TEST(GenerateFromRecipe, DrawsOnlyTokensOfTheTokenizer) {
  const LoadedRecipe loaded =
      load("data: {tokenizer: byte}\nmodel: {type: gpt, n_layer: 1, n_head: 1, n_embd: 8, block_size: 32, dropout: 0, vocab_size: 2000}");
  Session session(loaded.recipe);
  LanguageModel model(session);
  ASSERT_EQ(model.vocabulary(), 2000);
  GenerateOptions options;
  options.sampling.temperature = 1;
  options.max_new_tokens = 20;
  const std::vector<Generation> results = generate(model, {{65}}, options);
  EXPECT_EQ(results.front().tokens.size(), 20u);
  for (const int64_t token : results.front().tokens) EXPECT_LT(token, 256);
}

TEST(GenerateFromRecipe, OptionsAreThoseOfTheSection) {
  const LoadedRecipe loaded = load(
      "model: gpt\ndata: {tokenizer: byte}\npredict: {generate: {max_new_tokens: 7, temperature: 0.5, top_k: 3, top_p: 0.75, min_p: 0.125, "
      "repetition_penalty: 1.5, stop: [x, yz], end_tokens: [1, 2]}}");
  const GenerateOptions options = generate_options(loaded.recipe);
  EXPECT_EQ(options.max_new_tokens, 7);
  EXPECT_EQ(options.sampling.temperature, 0.5);
  EXPECT_EQ(options.sampling.top_k, 3);
  EXPECT_EQ(options.sampling.top_p, 0.75);
  EXPECT_EQ(options.sampling.min_p, 0.125);
  EXPECT_EQ(options.sampling.repetition_penalty, 1.5);
  EXPECT_EQ(options.stop, (std::vector<std::string>{"x", "yz"}));
  EXPECT_EQ(options.end_tokens, (std::vector<int64_t>{1, 2}));
}

TEST_F(Generate, AnInterruptedGenerationKeepsItsText) {
  GenerateOptions options;
  options.sampling.temperature = 1;
  const std::vector<Generation> whole = generate(model(), prompts({"a", "b"}), options);
  for (const int64_t beams : {1, 3}) {
    options.beams = beams;
    if (beams > 1) options.sampling = {};
    GenerateCallbacks callbacks;
    int tokens = 0;
    callbacks.stop = [&] { return ++tokens >= 4; };
    const std::vector<Generation> results = generate(model(), prompts({"a", "b"}), options, callbacks);
    ASSERT_EQ(results.size(), 2u);
    EXPECT_EQ(results[0].stopped, StopReason::kInterrupted);
    EXPECT_EQ(results[0].tokens.size(), 4u);
    EXPECT_EQ(results[0].text, text(results[0].tokens));
    if (beams == 1) {
      EXPECT_EQ(results[1].text, whole[1].text.substr(0, 4));
    }
  }
}

}  // namespace
}  // namespace galley
