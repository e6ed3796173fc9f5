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

TEST(TextStream, NeverBreaksACharacter) {
  TextStream stream;
  EXPECT_EQ(stream.push("a\xC3"), "a");
  EXPECT_EQ(stream.push("\xA4"), "\xC3\xA4");
  EXPECT_EQ(stream.push("\xF0\x9F"), "");
  EXPECT_EQ(stream.push("\x98\x80!"), "\xF0\x9F\x98\x80!");
  EXPECT_EQ(stream.push("\xE2\x82"), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD") << "the text ended inside of a character";
  // Bytes that cannot become a character are replaced at once: overlong forms, surrogates, lone continuations.
  for (const char* bytes : {"\xC0", "\xC1", "\xF5", "\xFF", "\x80"}) EXPECT_EQ(TextStream().push(bytes), "\xEF\xBF\xBD");
  EXPECT_EQ(TextStream().push("\xED\xA0x"), "\xEF\xBF\xBD\xEF\xBF\xBDx");
  EXPECT_EQ(TextStream().push("\xE2\x82x"), "\xEF\xBF\xBDx");
}

TEST(TextStream, AnyCutGivesTheSameText) {
  const std::string text = "The \xE2\x82\xAC stop, st\xC3\xB6p, STOP here";
  RandomStream random(3, "cuts");
  for (int round = 0; round < 200; ++round) {
    TextStream stream({"STOP", "zz"});
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const size_t count = 1 + random.bits() % 4;
      shown += stream.push(std::string_view(text).substr(at, count));
      at += count;
    }
    shown += stream.finish();
    EXPECT_EQ(shown, "The \xE2\x82\xAC stop, st\xC3\xB6p, ");
    EXPECT_TRUE(stream.stopped());
  }
}

TEST(TextStream, HoldsBackWhatMayBeAStopString) {
  TextStream stream({"</s>", "\n\n"});
  EXPECT_EQ(stream.push("x</"), "x");
  EXPECT_EQ(stream.push("b"), "</b");
  EXPECT_EQ(stream.push("\n"), "");
  EXPECT_EQ(stream.finish(), "\n");
  EXPECT_FALSE(stream.stopped());
  TextStream first({"bc", "b"});  // the earliest stop string counts
  EXPECT_EQ(first.push("abc"), "a");
  EXPECT_TRUE(first.stopped());
  EXPECT_EQ(first.push("more"), "");
}

}  // namespace
}  // namespace galley
