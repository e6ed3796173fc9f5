// Laws: filters keep the tokens of their definitions; sampled tokens have the frequencies of the softmax; a sample depends only on its key;
// text is output as soon as no later byte can change it.

#include "libcore/infer/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/base/philox.h"
#include "libcore/infer/text_stream.h"
#include "libcore/text/readers.h"
#include "libcore/text/train_bpe.h"
#include "libcore/text/unicode.h"

namespace galley {
namespace {

/// Probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625 of tokens 3, 0, 4, 1, 2.
const std::vector<float> kLogits{std::log(0.25f), std::log(0.0625f), std::log(0.0625f), std::log(0.5f), std::log(0.125f)};

std::map<int64_t, int> draws(const SamplingOptions& options, int count, const std::vector<int64_t>& text = {}) {
  std::map<int64_t, int> result;
  for (int i = 0; i < count; ++i) ++result[sample_token(kLogits, text, options, {.seed = 7, .sequence = 0, .position = i})];
  return result;
}
std::set<int64_t> tokens(const SamplingOptions& options, const std::vector<int64_t>& text = {}) {
  std::set<int64_t> result;
  for (const auto& [token, count] : draws(options, 2000, text)) result.insert(token);
  return result;
}

TEST(Sampling, GreedyTakesTheMostProbableToken) {
  EXPECT_EQ(tokens({}), (std::set<int64_t>{3}));
  EXPECT_EQ(tokens({.temperature = 0, .top_k = 4}), (std::set<int64_t>{3}));
  const std::vector<float> equal{1, 2, 2, 0};
  EXPECT_EQ(sample_token(equal, {}, {}, {}), 1);
}

TEST(Sampling, FrequenciesAreTheSoftmax) {
  constexpr int kDraws = 20000;
  for (const double temperature : {1.0, 2.0}) {
    std::map<int64_t, int> seen = draws({.temperature = temperature}, kDraws);
    double sum = 0;
    for (const float logit : kLogits) sum += std::exp(logit / temperature);
    for (size_t i = 0; i < kLogits.size(); ++i) {
      const double p = std::exp(kLogits[i] / temperature) / sum, deviation = std::sqrt(p * (1 - p) * kDraws);
      EXPECT_NEAR(seen[static_cast<int64_t>(i)], p * kDraws, 5 * deviation) << "token " << i << ", temperature " << temperature;
    }
  }
}

TEST(Sampling, FiltersKeepWhatTheyName) {
  EXPECT_EQ(tokens({.top_k = 2}), (std::set<int64_t>{0, 3}));
  EXPECT_EQ(tokens({.top_k = 9}), (std::set<int64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(tokens({.top_p = 0.4}), (std::set<int64_t>{3}));
  EXPECT_EQ(tokens({.top_p = 0.6}), (std::set<int64_t>{0, 3}));
  EXPECT_EQ(tokens({.top_p = 0.8}), (std::set<int64_t>{0, 3, 4}));
  EXPECT_EQ(tokens({.min_p = 0.2}), (std::set<int64_t>{0, 3, 4}));
  EXPECT_EQ(tokens({.min_p = 0.6}), (std::set<int64_t>{3}));
  // top_p applies to the tokens that top_k keeps: of 2/3 and 1/3 the first is enough.
  EXPECT_EQ(tokens({.top_k = 2, .top_p = 0.6}), (std::set<int64_t>{3}));
}

/// What a filter keeps is drawn in the proportions of the softmax.
TEST(Sampling, FiltersKeepTheProportions) {
  constexpr int kDraws = 20000;
  const SamplingOptions filters[] = {{.temperature = 1, .top_k = 3},
                                     {.temperature = 1, .top_p = 0.8},
                                     {.temperature = 1, .min_p = 0.2},
                                     {.temperature = 1, .top_p = 0.8, .min_p = 0.1}};
  for (const SamplingOptions& filter : filters) {
    SCOPED_TRACE(cat("top_k ", filter.top_k, ", top_p ", filter.top_p, ", min_p ", filter.min_p));
    std::map<int64_t, int> seen = draws(filter, kDraws);
    EXPECT_EQ(seen.size(), 3u);
    for (const auto& [token, kept] : {std::pair{3, 0.5}, {0, 0.25}, {4, 0.125}}) {
      const double p = kept / 0.875;
      EXPECT_NEAR(seen[token], p * kDraws, 5 * std::sqrt(p * (1 - p) * kDraws)) << "token " << token;
    }
  }
}

TEST(Sampling, RepetitionPenaltyMovesTokensOfTheText) {
  const std::vector<float> logits{2, 1.5f, -1};
  const std::vector<int64_t> text{0, 0, 2};
  EXPECT_EQ(sample_token(logits, text, {.repetition_penalty = 1.2}, {}), 0);  // 1.67 against 1.5
  EXPECT_EQ(sample_token(logits, text, {.repetition_penalty = 1.5}, {}), 1);  // 1.33 against 1.5, and once only
  const std::vector<float> negative{-1, -1.5f};
  EXPECT_EQ(sample_token(negative, std::vector<int64_t>{0}, {.repetition_penalty = 2}, {}), 1);
}

TEST(Sampling, ADrawDependsOnItsKeyOnly) {
  const SamplingOptions options{.temperature = 1};
  std::map<std::string, int> different;
  for (int64_t i = 0; i < 50; ++i) {
    const TokenKey key{.seed = 1, .sequence = 2, .position = i};
    const int64_t token = sample_token(kLogits, {}, options, key);
    EXPECT_EQ(sample_token(kLogits, std::vector<int64_t>{1, 2}, options, key), token);
    different["seed"] += sample_token(kLogits, {}, options, {.seed = 2, .sequence = 2, .position = i}) != token;
    different["sequence"] += sample_token(kLogits, {}, options, {.seed = 1, .sequence = 3, .position = i}) != token;
  }
  EXPECT_GT(different["seed"], 10);
  EXPECT_GT(different["sequence"], 10);
}

TEST(Sampling, RefusesLogitsThatAreNotNumbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const std::vector<float>& logits : {std::vector<float>{0, nan}, {infinity, 0}, {-infinity, -infinity}}) {
    try {
      sample_token(logits, {}, {}, {});
      ADD_FAILURE() << logits[0] << ", " << logits[1];
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kNumeric);
    }
  }
  // A token that is excluded by -infinity is never drawn.
  const std::vector<float> excluded{0, -infinity};
  for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(sample_token(excluded, {}, {.temperature = 5}, {.seed = 1, .sequence = 0, .position = i}), 0);
}

/// The text that a stream returns for bytes, one token each.
std::string push(TextStream& stream, std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += stream.push(static_cast<uint8_t>(c));
  return text;
}

TEST(TextStream, NeverBreaksACharacter) {
  const auto bytes = text::byte_tokenizer();
  TextStream stream(*bytes);
  EXPECT_EQ(push(stream, "a\xC3"), "a");
  EXPECT_EQ(push(stream, "\xA4"), "\xC3\xA4");
  EXPECT_EQ(push(stream, "\xF0\x9F"), "");
  EXPECT_EQ(push(stream, "\x98\x80!"), "\xF0\x9F\x98\x80!");
  EXPECT_EQ(push(stream, "\xE2\x82"), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD") << "the text ended inside of a character";
  EXPECT_THROW(stream.push(256), Error);
  EXPECT_THROW(stream.push(int64_t{1} << 40), Error);
}

/// A byte-level vocabulary in which tokens end within characters.
std::unique_ptr<const text::Tokenizer> breaking_vocabulary() {
  text::BpeTrainer trainer({.vocabulary = 300, .special = {"<|end|>"}});
  // The first two bytes of the euro sign are one token, which its last byte follows in a third of the cases only.
  trainer.add("\xE2\x82\xAC \xE2\x82\xAA \xE2\x82\xA9 STOP stop st\xC3\xB6p here", "text");
  return text::parse_tokenizer_json(trainer.finish(), "t.json");
}

// Any sequence of tokens, cut where the vocabulary cuts, gives the same characters as decoding it at once.
TEST(TextStream, TokensThatEndWithinCharacters) {
  const auto tokenizer = breaking_vocabulary();
  RandomStream random(5, "tokens");
  for (int round = 0; round < 300; ++round) {
    TextStream stream(*tokenizer);
    std::vector<int32_t> ids;
    std::string shown;
    for (int i = 0; i < 12; ++i) {
      ids.push_back(static_cast<int32_t>(random.bits() % static_cast<uint64_t>(tokenizer->size())));
      const std::string part = stream.push(ids.back());
      EXPECT_EQ(text::replace_invalid_utf8(part), part) << "no broken character";
      shown += part;
    }
    shown += stream.finish();
    EXPECT_EQ(shown, tokenizer->decode(ids, /*skip_special=*/true));
  }
}

TEST(TextStream, AnyVocabularyGivesTheSameText) {
  const std::string text = "The \xE2\x82\xAC stop, st\xC3\xB6p, STOP here";
  const auto bytes = text::byte_tokenizer(), merged = breaking_vocabulary();
  for (const text::Tokenizer* tokenizer : {bytes.get(), merged.get()}) {
    TextStream stream(*tokenizer, {"STOP", "zz"});
    std::string shown;
    for (const int32_t id : tokenizer->encode(text)) shown += stream.push(id);
    shown += stream.finish();
    EXPECT_EQ(shown, "The \xE2\x82\xAC stop, st\xC3\xB6p, ");
    EXPECT_TRUE(stream.stopped());
  }
}

// A decoder that drops the space at the beginning of a text must keep it where the text is continued.
TEST(TextStream, FollowsThePrompt) {
  const auto tokenizer = text::parse_tokenizer_json(R"({"model":{"type":"WordLevel","vocab":{"\u2581a":0,"\u2581b":1}},)"
                                                    R"("decoder":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"always"}})",
                                                    "t.json");
  TextStream alone(*tokenizer), after(*tokenizer);
  EXPECT_EQ(alone.push(1), "b");
  after.follow(std::vector<int64_t>{0});
  EXPECT_EQ(after.push(1), " b");
  EXPECT_EQ(after.push(0), " a");
  EXPECT_EQ(after.finish(), "");
}

/// Beams branch: a copy continues with the characters and the text that the original holds back.
TEST(TextStream, ACopyGoesOnAlone) {
  const auto bytes = text::byte_tokenizer();
  TextStream stream(*bytes, {"</s>"});
  EXPECT_EQ(push(stream, "a</"), "a");
  TextStream copy(stream);
  EXPECT_EQ(push(stream, "s>"), "");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(push(copy, "b\xC3"), "</b");
  EXPECT_FALSE(copy.stopped());
  stream = copy;
  EXPECT_EQ(push(stream, "\xA4"), "\xC3\xA4");
  EXPECT_EQ(copy.finish(), "\xEF\xBF\xBD");
}

TEST(TextStream, HoldsBackWhatMayBeAStopString) {
  const auto bytes = text::byte_tokenizer();
  TextStream stream(*bytes, {"</s>", "\n\n"});
  EXPECT_EQ(push(stream, "x</"), "x");
  EXPECT_EQ(push(stream, "b"), "</b");
  EXPECT_EQ(push(stream, "\n"), "");
  EXPECT_EQ(stream.finish(), "\n");
  EXPECT_FALSE(stream.stopped());
  TextStream first(*bytes, {"bc", "b"});  // the earliest stop string counts
  EXPECT_EQ(push(first, "abc"), "a");
  EXPECT_TRUE(first.stopped());
  EXPECT_EQ(push(first, "more"), "");
  TextStream whole(*bytes, {"x"});
  EXPECT_EQ(push(whole, "\xE2\x82x"), "\xEF\xBF\xBD") << "a stop string after a broken character";
  EXPECT_EQ(whole.finish(), "");
}

}  // namespace
}  // namespace galley
