// Laws of encoder-decoder models: decoding with a cache gives the logits of the full pass at every position, for sources of different
// length, in any batch, wherever rows go on; a source is read once; generation begins with the begin token and ends with the end token.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "libcore/base/philox.h"
#include "libcore/infer/components.h"
#include "libcore/infer/generate.h"
#include "libcore/recipe/recipe.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

using Rows = std::vector<std::vector<int64_t>>;
constexpr int64_t kTargetContext = 40;

class EncoderDecoder : public testing::Test {
 protected:
  EncoderDecoder() : loaded_(load()), session_(loaded_.recipe), cached_(session_), whole_(session_, false) {}

  LoadedRecipe load() const {
    std::ofstream(folder_ / "vocab.txt") << "[UNK]\n[CLS]\n[SEP]\na\nb\nc\nd\ne\nf\ng\nh\n";
    std::ofstream(folder_ / "recipe.yaml")
        << "recipe: 1\nthreads: 2\ndata: {tokenizer: {type: wordpiece, path: " << (folder_ / "vocab.txt")
        << "}}\nmodel: {type: transformer, d_model: 32, nhead: 2, num_encoder_layers: 2, num_decoder_layers: 2, dim_feedforward: 48, "
           "dropout: 0, max_length: "
        << kTargetContext << "}\n";
    return load_recipe(folder_ / "recipe.yaml", recipe_components(), {});
  }
  std::vector<int64_t> sequence(int64_t length) {
    std::vector<int64_t> tokens;
    for (int64_t i = 0; i < length; ++i) tokens.push_back(static_cast<int64_t>(random_.below(11)));
    return tokens;
  }
  void expect_same(const Rows& rows, const Rows& sources) {
    const Tensor got = cached_.next_logits(rows, sources), expected = whole_.next_logits(rows, sources);
    ASSERT_EQ(got.shape(), expected.shape());
    double largest = 0;
    for (int64_t i = 0; i < expected.elements(); ++i)
      largest = std::max(largest, std::abs(static_cast<double>(expected.data_as<float>()[i])));
    for (int64_t i = 0; i < expected.elements(); ++i)
      ASSERT_NEAR(got.data_as<float>()[i], expected.data_as<float>()[i], 2e-5 * largest) << "row " << i / 11 << " of " << rows.size();
  }

  TemporaryFolder folder_;
  LoadedRecipe loaded_;
  Session session_;
  LanguageModel cached_, whole_;
  RandomStream random_{18, "encoder decoder"};
};

TEST_F(EncoderDecoder, EveryPositionIsThatOfTheFullPass) {
  const Rows sources{sequence(3), sequence(17), sequence(kTargetContext)};
  Rows rows{sequence(1), sequence(4), sequence(1)};
  for (int64_t step = 0; step < kTargetContext - 4; ++step) {
    expect_same(rows, sources);
    for (auto& row : rows) row.push_back(sequence(1)[0]);
  }
}

TEST_F(EncoderDecoder, OtherSourcesAndOtherPlaces) {
  Rows sources{sequence(5), sequence(9), sequence(9), sequence(2)}, rows{sequence(3), sequence(6), sequence(3), sequence(2)};
  rows[2] = rows[0];  // the same beginning of the targets of different sources
  expect_same(rows, sources);
  std::swap(rows[0], rows[3]);
  std::swap(sources[0], sources[3]);
  for (auto& row : rows) row.push_back(4);
  expect_same(rows, sources);
  sources.assign(4, sources[1]);  // beams of one source
  const std::vector<int64_t> best = rows[1];
  for (int64_t i = 0; i < 4; ++i) {
    rows[static_cast<size_t>(i)] = best;
    rows[static_cast<size_t>(i)].push_back(3 + i);
  }
  expect_same(rows, sources);
  sources[2] = sequence(30);  // a longer source: the cache becomes larger
  expect_same(rows, sources);
  expect_same({sequence(8)}, {sequence(6)});
  expect_same({rows[0]}, {sources[2]});
}

TEST_F(EncoderDecoder, ASourceIsReadOnce) {
  Rows rows{sequence(2)};
  const Rows sources{sequence(7)};
  cached_.next_logits(rows, sources);
  const size_t before = cached_.engine().compilations().size();
  for (int64_t step = 0; step < 10; ++step) {
    rows[0].push_back(3);
    cached_.next_logits(rows, sources);
  }
  EXPECT_EQ(cached_.engine().compilations().size(), before);
  EXPECT_EQ(before, 3u) << "one token, the source, the first two tokens";
  EXPECT_EQ(cached_.encoder_runs(), 1);
}

TEST_F(EncoderDecoder, BeamsOfOneSourceDoNotReadItAgain) {
  Rows sources{sequence(5), sequence(7), sequence(6)};
  Rows rows(3, sequence(2));
  rows[1] = sequence(2), rows[2] = sequence(2);
  cached_.next_logits(rows, sources);
  sources.assign(3, sources[1]);
  for (int64_t step = 0; step < 4; ++step) {
    const std::vector<int64_t> best = rows[1];  // all go on in copies of one row, with its source
    for (int64_t i = 0; i < 3; ++i) {
      rows[static_cast<size_t>(i)] = best;
      rows[static_cast<size_t>(i)].push_back(3 + i);
    }
    expect_same(rows, sources);
  }
  EXPECT_EQ(cached_.encoder_runs(), 1);
}

TEST_F(EncoderDecoder, GeneratesTargets) {
  ASSERT_TRUE(cached_.reads_source());
  EXPECT_EQ(cached_.begin(), 1);
  EXPECT_EQ(cached_.end(), 2);
  GenerateOptions options;
  options.max_new_tokens = 12;
  const Rows prompts{sequence(4), sequence(20), sequence(11)};
  const std::vector<Generation> batch = generate(cached_, prompts, options), whole = generate(whole_, prompts, options);
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(batch[i].tokens, whole[i].tokens) << i;
    EXPECT_EQ(batch[i].tokens, generate(cached_, {prompts[i]}, options).front().tokens) << "alone " << i;
    const bool ended = batch[i].tokens.back() == 2;
    EXPECT_EQ(batch[i].stopped, ended ? StopReason::kEnd : StopReason::kLength);
  }
  options.beams = 3;
  for (const auto& prompt : prompts)
    EXPECT_EQ(generate(cached_, {prompt}, options).front().tokens, generate(whole_, {prompt}, options).front().tokens);
  options.beams = 1;
  options.max_new_tokens = 1000;
  EXPECT_LE(std::ssize(generate(cached_, {prompts[0]}, options).front().tokens), kTargetContext - 1)
      << "a target without its beginning is another";
  EXPECT_THROW(generate(cached_, {sequence(kTargetContext + 1)}, options), Error);
}

}  // namespace
}  // namespace galley
