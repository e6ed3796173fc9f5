// Laws: mask_tokens hides the given shares of the tokens, never special ones, others in each epoch and the same in each run; the label
// holds what was hidden, and no class elsewhere; as augmentation it leaves the label, and may hide nothing. pad gives all fields of
// different length the same room.
#include <gtest/gtest.h>

#include <cmath>

#include "libcore/base/error.h"
#include "libcore/data/loader.h"
#include "libcore/data/sources.h"
#include "libcore/text/tokenizer.h"
#include "tests/data/files.h"

namespace galley {
namespace {

constexpr int64_t kWords = 40;

class TextTransforms : public ::testing::Test {
 protected:
  TextTransforms() {
    std::string pieces = "[UNK]\n[CLS]\n[SEP]\n[MASK]\n", text;
    for (int64_t i = 0; i < kWords; ++i) pieces += cat("w", i, "\n");
    folder_.write("vocab.txt", pieces);
    tokenizer_ = text::read_tokenizer(folder_.path() + "/vocab.txt");
    for (int64_t row = 0; row < 500; ++row) {
      for (int64_t i = 0; i <= row % 20; ++i) text += cat("w", (row * 7 + i) % kWords, " ");
      text += "\n";
    }
    folder_.write("rows.tsv", text);
    context_.root = folder_.path();
    context_.tokenizer = tokenizer_;
    context_.input_shape = {24};
  }

  static Component item(Options& options, std::string_view type) {
    Component component;
    component.type = type;
    component.params = options.clone();
    return component;
  }
  std::unique_ptr<DataLoader> loader(std::vector<Component> items, int64_t passes = 1) const {
    TextPairs options;
    options.path = {"rows.tsv"};
    with_tokenizer(items, tokenizer_);
    LoaderOptions loading;
    loading.order = {.batch = 50, .seed = 5};
    loading.passes = passes;
    return std::make_unique<DataLoader>(options.open(context_), Pipeline(items), std::vector<Component>{}, loading);
  }

  TestFolder folder_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  SourceContext context_;
};

/// Tokens and labels of one epoch after another.
struct Epochs {
  explicit Epochs(DataLoader& loader) {
    while (const Batch* batch = loader.next()) {
      const Tensor &tokens = batch->at("input"), &label = batch->at("label"), &lengths = batch->at("input.length");
      EXPECT_EQ(batch->at("label.length").to_doubles(), lengths.to_doubles());
      const int64_t room = tokens.shape()[1];
      for (int64_t n = 0; n < batch->valid; ++n) {
        const int64_t count = lengths.data_as<int64_t>()[n], index = batch->indices[static_cast<size_t>(n)];
        int64_t hidden = 0;
        for (int64_t t = 0; t < room; ++t) {
          const int64_t token = tokens.data_as<int64_t>()[n * room + t], wanted = label.data_as<int64_t>()[n * room + t];
          if (t == 0 || t >= count - 1) {
            EXPECT_EQ(wanted, -100) << "special tokens, and what is after a text, have no class";
            EXPECT_EQ(token, t == 0 ? 1 : t == count - 1 ? 2 : 0);
            continue;
          }
          const int64_t original = 4 + (index * 7 + t - 1) % kWords;
          ++ordinary;
          all.push_back(token);
          if (wanted == -100) {
            EXPECT_EQ(token, original);
            continue;
          }
          EXPECT_EQ(wanted, original);
          ++hidden;
          ++total;
          masks += token == 3;
          same += token == original;
        }
        EXPECT_GE(hidden, 1);
      }
    }
  }
  int64_t ordinary = 0, total = 0, masks = 0, same = 0;
  std::vector<int64_t> all;
};

TEST_F(TextTransforms, MaskTokensHidesTheGivenShares) {
  MaskTokens mask;
  mask.p = 0.3;
  mask.replace = 0.7;
  mask.random = 0.2;
  const auto one = loader({item(mask, "mask_tokens")});
  EXPECT_EQ(find_field(std::span<const FieldType>(one->types()), "label")->classes, 4 + kWords);
  const Epochs epoch(*one);
  ASSERT_EQ(epoch.ordinary, 25 * 210);
  // Texts of few tokens have at least one hidden: of n tokens 0.3 n + 0.7^n are on average. Deviations are four standard ones.
  double expected = 0;
  for (int n = 1; n <= 20; ++n) expected += 25 * (0.3 * n + std::pow(0.7, n));
  EXPECT_NEAR(static_cast<double>(epoch.total), expected, 4 * std::sqrt(expected * 0.7));
  const auto total = static_cast<double>(epoch.total);
  EXPECT_NEAR(static_cast<double>(epoch.masks) / total, 0.7 + 0.2 / 44, 4 * std::sqrt(0.7 * 0.3 / total));
  EXPECT_NEAR(static_cast<double>(epoch.same) / total, 0.1 + 0.2 / 44, 4 * std::sqrt(0.1 * 0.9 / total));
}

TEST_F(TextTransforms, MaskTokensAsAugmentationLeavesTheLabel) {
  std::string rows;
  for (int64_t row = 0; row < 400; ++row) rows += cat("w", row % kWords, " w1 w2\t", row % 3, "\n");
  folder_.write("labelled.tsv", rows);
  MaskTokens mask;
  mask.p = 0.25;
  mask.replace = 0.8;
  mask.random = 0;
  mask.targets = false;
  std::vector<Component> items{item(mask, "mask_tokens")};
  with_tokenizer(items, tokenizer_);
  TextPairs options;
  options.path = {"labelled.tsv"};
  options.columns.text = "0";
  options.columns.label = "1";
  LoaderOptions loading;
  loading.order = {.batch = 400, .seed = 3};
  DataLoader one(options.open(context_), Pipeline(items), {}, loading);
  const Batch* batch = one.next();
  const Tensor &tokens = batch->at("input"), &label = batch->at("label");
  const int64_t room = tokens.shape()[1];
  int64_t hidden = 0, untouched = 0;
  for (int64_t n = 0; n < batch->valid; ++n) {
    const int64_t row = batch->indices[static_cast<size_t>(n)], *of_row = tokens.data_as<int64_t>() + n * room;
    EXPECT_EQ(label.data_as<int64_t>()[n], row % 3);
    EXPECT_EQ(of_row[0], 1);
    EXPECT_EQ(of_row[4], 2);
    int64_t masked = 0;
    for (int64_t t = 1; t <= 3; ++t) {
      const int64_t original = 4 + (t == 1 ? row % kWords : t - 1);
      if (of_row[t] == 3)
        ++masked;
      else
        EXPECT_EQ(of_row[t], original);
    }
    hidden += masked;
    untouched += masked == 0;
  }
  // Of 1200 tokens 0.25 * 0.8 become the mask, and 0.8^3 of the rows have none. Deviations are four standard ones.
  EXPECT_NEAR(static_cast<double>(hidden), 240, 4 * std::sqrt(1200 * 0.2 * 0.8));
  EXPECT_NEAR(static_cast<double>(untouched), 400 * 0.512, 4 * std::sqrt(400 * 0.512 * 0.488));
}

TEST_F(TextTransforms, MaskTokensRepeatsAndDiffersByEpoch) {
  MaskTokens mask;
  const std::vector<int64_t> first = Epochs(*loader({item(mask, "mask_tokens")})).all;
  EXPECT_EQ(Epochs(*loader({item(mask, "mask_tokens")})).all, first);
  const std::vector<int64_t> two = Epochs(*loader({item(mask, "mask_tokens")}, 2)).all;
  ASSERT_EQ(two.size(), 2 * first.size());
  EXPECT_TRUE(std::equal(first.begin(), first.end(), two.begin()));
  EXPECT_FALSE(std::equal(first.begin(), first.end(), two.begin() + std::ssize(first)));
}

TEST_F(TextTransforms, MaskTokensTakesTheWindowsOfAText) {
  TextFiles options;
  options.path = {"rows.tsv"};
  options.cache = "none";
  MaskTokens mask;
  std::vector<Component> items{item(mask, "mask_tokens")};
  with_tokenizer(items, tokenizer_);
  LoaderOptions loading;
  loading.order.batch = 4;
  DataLoader windows(options.open(context_), Pipeline(items), {}, loading);
  std::vector<std::string> names;
  for (const FieldType& type : windows.types()) names.push_back(type.name);
  EXPECT_EQ(names, (std::vector<std::string>{"input", "label"})) << "the sizes of the labels are those of the next tokens";
  const Batch* batch = windows.next();
  for (int64_t i = 0; i < 4 * 24; ++i) {
    const int64_t token = batch->input().data_as<int64_t>()[i], label = batch->label().data_as<int64_t>()[i];
    EXPECT_TRUE(token == 3 ? label >= 4 : label == -100 || label == token || label >= 4);
  }
}

TEST_F(TextTransforms, MaskTokensSaysWhatIsMissing) {
  const auto error_of = [&](MaskTokens mask, bool with = true) -> std::string {
    if (!with) tokenizer_ = nullptr;
    try {
      loader({item(mask, "mask_tokens")});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kRecipe);
      return error.message();
    }
    return "";
  };
  MaskTokens mask;
  mask.mask = "[HIDE]";
  EXPECT_NE(error_of(mask).find("has no [HIDE]"), std::string::npos) << error_of(mask);
  mask.mask.clear();
  mask.field = "text";
  EXPECT_NE(error_of(mask).find("no field 'text'; they have input"), std::string::npos);
  mask.field = "input";
  mask.random = 0.5;
  EXPECT_NE(error_of(mask).find("their sum must be at most 1"), std::string::npos);
  mask.random = 0.1;
  EXPECT_NE(error_of(mask, false).find("has no tokenizer; set data.tokenizer"), std::string::npos);
}

TEST_F(TextTransforms, PadGivesRoom) {
  Pad pad;
  pad.to = 32;
  MaskTokens mask;
  const auto padded = loader({item(mask, "mask_tokens"), item(pad, "pad")});
  const Batch* batch = padded->next();
  EXPECT_EQ(batch->at("input").shape(), (Shape{50, 32}));
  EXPECT_EQ(batch->at("label").shape(), (Shape{50, 32}));
  EXPECT_EQ(batch->at("label").data_as<int64_t>()[31], -100);
  EXPECT_EQ(batch->at("input").data_as<int64_t>()[31], 0);
  pad.to = 10;
  const auto narrow = loader({item(pad, "pad")});
  EXPECT_THROW(narrow->next(), Error) << "a text has 22 tokens";
  pad.padding = {1};
  EXPECT_THROW(loader({item(pad, "pad")}), Error) << "both padding and to";
}

/// Batches of a loader that cuts them.
std::unique_ptr<DataLoader> cutting(const SourceContext& context, std::vector<int64_t> lengths, LastBatchRule last, int64_t start,
                                    int64_t workers, int64_t passes) {
  TextPairs options;
  options.path = {"rows.tsv"};
  Bucket bucket;
  bucket.lengths = std::move(lengths);
  Component component;
  component.type = "bucket";
  component.params = bucket.clone();
  LoaderOptions loading;
  loading.order = {.shuffle = true, .last_batch = last, .batch = 6, .seed = 5};
  loading.passes = passes;
  loading.start = start;
  loading.workers = workers;
  loading.cut = true;
  return std::make_unique<DataLoader>(options.open(context), Pipeline({component}), std::vector<Component>{}, loading);
}

TEST_F(TextTransforms, BucketsCutBatchesAndKeepEverySample) {
  for (const LastBatchRule last : {LastBatchRule::kKeep, LastBatchRule::kDrop, LastBatchRule::kWrap}) {
    const auto loader = cutting(context_, {8, 12, 16, 24}, last, 0, 0, 3);
    EXPECT_EQ(loader->lengths(), (std::vector<int64_t>{8, 12, 16, 24}));
    EXPECT_EQ(loader->layout().at("input").shape(), (Shape{6, 24}));
    std::vector<int64_t> seen(500);
    std::map<int64_t, int64_t> batches;
    int64_t cells = 0, tokens = 0;
    std::vector<int64_t> order;
    while (const Batch* batch = loader->next()) {
      const Tensor &input = batch->input(), &lengths = batch->at("input.length");
      const int64_t room = input.shape()[1];
      ++batches[room];
      int64_t longest = 0;
      for (int64_t n = 0; n < batch->valid; ++n) {
        const int64_t count = lengths.data_as<int64_t>()[n], index = batch->indices[static_cast<size_t>(n)];
        ++seen[static_cast<size_t>(index)];
        order.push_back(index);
        longest = std::max(longest, count);
        tokens += count;
        cells += room;
        ASSERT_EQ(count, index % 20 + 3);
        for (int64_t t = 0; t < room; ++t) {
          const int64_t wanted = t == 0 ? 1 : t == count - 1 ? 2 : t >= count ? 0 : 4 + (index * 7 + t - 1) % kWords;
          ASSERT_EQ(input.data_as<int64_t>()[n * room + t], wanted) << "sample " << index << " token " << t << " of " << room;
        }
      }
      EXPECT_TRUE(longest <= room && (room == 8 || longest > (room == 24 ? 16 : room - 4))) << longest << " in " << room;
    }
    EXPECT_EQ(batches.size(), 4u);
    for (const int64_t count : seen) {
      if (last == LastBatchRule::kKeep) {
        EXPECT_EQ(count, 3);
      } else {
        EXPECT_NEAR(static_cast<double>(count), 3, 1) << "windows reach past the last batch";
      }
    }
    EXPECT_LT(static_cast<double>(cells), 1.25 * static_cast<double>(tokens)) << "without groups nearly all batches have 24 tokens";
    // A start in the middle and any number of workers give the same batches.
    const auto later = cutting(context_, {8, 12, 16, 24}, last, 600, 2, 3);
    const Batch* batch = later->next();
    for (int64_t n = 0; n < batch->valid; ++n)
      EXPECT_EQ(batch->indices[static_cast<size_t>(n)], order[static_cast<size_t>(600 + n)]) << "row " << n;
    // Short and long batches take turns.
    EXPECT_FALSE(std::is_sorted(order.begin(), order.begin() + 300, [](int64_t a, int64_t b) { return a % 20 / 5 < b % 20 / 5; }));
  }
}

}  // namespace
}  // namespace galley
