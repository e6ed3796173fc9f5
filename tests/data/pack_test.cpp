// Laws of pack: in an epoch every token of the texts, and the end token of each, is a label exactly once after its input, whatever the
// length and the stride; labels that a block shares with the one before are none; positions count from the begin of each text; a loader
// that starts at a position continues there.
#include "libcore/data/pack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "libcore/base/error.h"
#include "libcore/data/loader.h"
#include "libcore/data/sources.h"
#include "libcore/text/tokenizer.h"
#include "tests/data/files.h"

namespace galley {
namespace {

constexpr int64_t kNone = -100;

class PackTest : public ::testing::Test {
 protected:
  PackTest() {
    std::string pieces = "[UNK]\n[SEP]\n";
    for (int64_t i = 0; i < 90; ++i) pieces += cat("w", i, "\n");
    pieces += "[CLS]\n";
    folder_.write("vocab.txt", pieces);
    context_.root = folder_.path();
    context_.input_shape = {8};
    context_.tokenizer = text::read_tokenizer(folder_.path() + "/vocab.txt");
    std::string lines;
    for (int64_t row = 0; row < 23; ++row) {
      std::string text;
      for (int64_t i = 0; i < row % 7; ++i) text += cat(i > 0 ? " " : "", "w", (row * 5 + i) % 90);
      lines += cat("{\"text\": \"", text, "\"}\n");
      if (row % 7 == 0) continue;  // it has no tokens
      for (int64_t i = 0; i < row % 7; ++i) stream_.push_back(2 + (row * 5 + i) % 90);
      stream_.push_back(1);
    }
    folder_.write("rows.jsonl", lines);
    pack_.tokenizer = context_.tokenizer;
  }

  std::shared_ptr<const Source> rows() const {
    JsonLines options;
    options.path = {"rows.jsonl"};
    return options.open(context_);
  }
  static std::vector<int64_t> values(const Sample& sample, const char* field) {
    const Tensor& tensor = std::get<Tensor>(*sample.find(field));
    return {tensor.data_as<int64_t>(), tensor.data_as<int64_t>() + tensor.elements()};
  }
  std::string refusal(const Source* source = nullptr) const {
    try {
      std::shared_ptr<const Source> given = source == nullptr ? rows() : std::shared_ptr<const Source>(std::shared_ptr<void>(), source);
      pack_.blocks(std::move(given), 8);
      return "";
    } catch (const Error& error) {
      return cat(static_cast<int>(error.code()), " ", error.text());
    }
  }

  TestFolder folder_;
  SourceContext context_;
  std::vector<int64_t> stream_;  // all tokens in order
  Pack pack_;
};

TEST_F(PackTest, EveryTokenIsALabelOnceAfterItsInput) {
  for (const int64_t length : {1, 2, 5, 8, 40, 100}) {
    for (const int64_t stride : {int64_t{1}, (length + 1) / 2, length}) {
      pack_.length = length;
      pack_.stride = stride;
      const std::shared_ptr<const Source> blocks = pack_.blocks(rows(), 3);
      std::vector<int64_t> labels(stream_.size(), kNone);
      for (int64_t i = 0; i < blocks->size(); ++i) {
        const Sample sample = blocks->read(i);
        const std::vector<int64_t> input = values(sample, "input"), label = values(sample, "label");
        ASSERT_EQ(std::ssize(input), length);
        int64_t labelled = 0;
        for (int64_t t = 0; t < length; ++t) {
          const auto at = static_cast<size_t>(i * stride + t);
          const bool in = at + 1 < stream_.size();
          EXPECT_EQ(input[static_cast<size_t>(t)], in ? stream_[at] : 0) << "block " << i << " token " << t;
          if (label[static_cast<size_t>(t)] == kNone) continue;
          ASSERT_TRUE(in);
          EXPECT_EQ(label[static_cast<size_t>(t)], stream_[at + 1]);
          EXPECT_EQ(labels[at + 1], kNone) << "a second time: block " << i << " token " << t;
          labels[at + 1] = label[static_cast<size_t>(t)];
          ++labelled;
        }
        EXPECT_GT(labelled, 0) << "block " << i << " has nothing to learn";
        EXPECT_LE(labelled, i > 0 ? stride : length);
      }
      EXPECT_TRUE(std::equal(labels.begin() + 1, labels.end(), stream_.begin() + 1)) << length << " " << stride;
      EXPECT_EQ(labels.front(), kNone);
    }
  }
}

TEST_F(PackTest, PositionsCountFromTheBeginOfEachText) {
  pack_.length = 11;
  pack_.separate = true;
  const std::shared_ptr<const Source> blocks = pack_.blocks(rows(), 0);
  int64_t begins = 0;
  for (int64_t i = 0; i < blocks->size(); ++i) {
    const Sample sample = blocks->read(i);
    const std::vector<int64_t> input = values(sample, "input"), label = values(sample, "label"), places = values(sample, "position_ids");
    EXPECT_EQ(places.front(), 0);
    for (size_t t = 1; t < 11; ++t) {
      if (static_cast<size_t>(i) * 11 + t + 1 >= stream_.size()) break;
      const bool begin = input[t - 1] == 1;
      EXPECT_EQ(places[t], begin ? 0 : places[t - 1] + 1) << "block " << i << " token " << t;
      EXPECT_EQ(label[t - 1] == kNone, begin) << "the first token of a text does not follow from another text";
      begins += begin;
    }
  }
  EXPECT_GT(begins, 10);
}

// Without end tokens texts follow each other; those that spell one out end there, and no second one is added.
TEST_F(PackTest, EndTokens) {
  folder_.write("a.txt", "w1 w2 [SEP]");
  folder_.write("b.txt", "w3 [SEP] w4 w5");
  TextFiles files;
  files.path = {"a.txt", "b.txt"};
  pack_.length = 20;
  pack_.separate = true;
  const auto inputs = [&] {
    Sample sample = pack_.blocks(files.open(context_), 0)->read(0);
    std::vector<int64_t> ids = values(sample, "input"), places = values(sample, "position_ids");
    ids.insert(ids.end(), places.begin(), places.begin() + 7);
    return ids;
  };
  // The last token of all is only a label.
  std::vector<int64_t> expected{3, 4, 1, 5, 1, 6, 7};
  expected.resize(20);
  for (const int64_t place : {0, 1, 2, 0, 1, 0, 1}) expected.push_back(place);
  EXPECT_EQ(inputs(), expected);
  folder_.write("a.txt", "w1 w2");
  pack_.end = "none";
  expected = {3, 4, 5, 1, 6};
  expected.resize(20);
  for (const int64_t place : {0, 1, 0, 1, 2, 3, 4}) expected.push_back(place);
  EXPECT_EQ(inputs(), expected) << "[SEP] is a token like others";
  pack_.end = "w9";
  expected = {3, 4, 11, 5, 1, 6, 7};
  expected.resize(20);
  for (const int64_t place : {0, 1, 2, 0, 1, 2, 3}) expected.push_back(place);
  EXPECT_EQ(inputs(), expected);
}

TEST_F(PackTest, SizesOfTextAreThoseOfTheLabels) {
  pack_.length = 6;
  pack_.stride = 4;
  const std::shared_ptr<const Source> blocks = pack_.blocks(rows(), 0);
  int64_t bytes = 0, expected = 0;
  for (int64_t i = 0; i < blocks->size(); ++i) {
    const Sample sample = blocks->read(i);
    const Tensor& sizes = std::get<Tensor>(*sample.find("text_size"));
    for (int64_t t = 0; t < 6; ++t) bytes += sizes.data_as<int32_t>()[2 * t + 1];
  }
  for (size_t i = 1; i < stream_.size(); ++i)
    if (stream_[i] != 1) expected += std::ssize(context_.tokenizer->bytes(static_cast<int32_t>(stream_[i])));
  EXPECT_EQ(bytes, expected) << "end tokens that pack adds are no text";
}

TEST_F(PackTest, SizesAreCharactersAndBytes) {
  folder_.write("words-vocab.txt", "[UNK]\n[SEP]\n[CLS]\n京\nabc\n東\n");
  context_.tokenizer = pack_.tokenizer = text::read_tokenizer(folder_.path() + "/words-vocab.txt");
  folder_.write("rows.jsonl", "{\"text\": \"abc 東京\"}\n");
  pack_.length = 3;
  const Sample sample = pack_.blocks(rows(), 0)->read(0);
  ASSERT_EQ(values(sample, "label"), (std::vector<int64_t>{5, 3, 1}));
  const Tensor& sizes = std::get<Tensor>(*sample.find("text_size"));
  // A word has a space before it.
  EXPECT_EQ(std::vector<int32_t>(sizes.data_as<int32_t>(), sizes.data_as<int32_t>() + 6), (std::vector<int32_t>{2, 4, 2, 4, 0, 0}));
}

// A text without tokens keeps its number.
TEST_F(PackTest, SamplesHaveTheNamesOfTheirTexts) {
  folder_.write("rows.jsonl", "{\"text\": \"\"}\n{\"text\": \"w1 w2 w3\"}\n{\"text\": \"\"}\n{\"text\": \"w4 w5 w6\"}\n");
  pack_.length = 5;
  const std::shared_ptr<const Source> blocks = pack_.blocks(rows(), 0);
  ASSERT_EQ(blocks->size(), 2);
  EXPECT_NE(blocks->sample_name(0).find("rows.jsonl:2[token 0]"), std::string::npos) << blocks->sample_name(0);
  EXPECT_NE(blocks->sample_name(1).find("rows.jsonl:4[token 1]"), std::string::npos) << blocks->sample_name(1);
}

// The position is the number of samples consumed: a loader that starts there delivers what an uninterrupted one does.
TEST_F(PackTest, LoadersContinueAtAPosition) {
  pack_.length = 4;
  Component item;
  item.type = "pack";
  item.params = pack_.clone();
  const std::shared_ptr<const Source> blocks = pack_.blocks(rows(), 0);
  const auto rows_from = [&](int64_t start) {
    LoaderOptions options;
    options.order = {.shuffle = true, .last_batch = LastBatchRule::kWrap, .batch = 3, .seed = 9};
    options.start = start;
    options.workers = 2;
    DataLoader loader(blocks, Pipeline({item}), {}, options);
    std::vector<std::vector<double>> seen;
    for (int64_t step = start / 3; step < 25; ++step) {
      const Batch* batch = loader.next();
      seen.push_back(batch->at("input").to_doubles());
    }
    return seen;
  };
  const std::vector<std::vector<double>> all = rows_from(0), rest = rows_from(24);
  ASSERT_EQ(rest.size(), 17u);
  EXPECT_TRUE(std::equal(rest.begin(), rest.end(), all.begin() + 8));
  std::map<double, int64_t> counts, expected;  // of the first epoch
  const int64_t samples = blocks->size();
  for (int64_t i = 0; i < samples; ++i) {
    for (int64_t t = 0; t < 4; ++t) ++counts[all[static_cast<size_t>(i / 3)][static_cast<size_t>(i % 3 * 4 + t)]];
    for (const int64_t id : values(blocks->read(i), "input")) ++expected[static_cast<double>(id)];
  }
  EXPECT_EQ(counts, expected);
}

TEST_F(PackTest, Errors) {
  pack_.length = 4;
  pack_.stride = 5;
  EXPECT_NE(refusal().find("3 error: [pack] `stride` is 5, more than `length`, 4; tokens would be lost"), std::string::npos) << refusal();
  pack_.stride.reset();
  pack_.end = "<eot>";
  EXPECT_NE(refusal().find("no piece '<eot>'; set `end` to one of its pieces, or to none"), std::string::npos) << refusal();
  pack_.end = "auto";
  pack_.tokenizer = nullptr;
  EXPECT_NE(refusal().find("no tokenizer, and bytes have no token that ends a text"), std::string::npos) << refusal();
  pack_.end = "none";
  TextPairs pairs;
  pairs.columns.pair = "1";
  pairs.path = {"pairs.tsv"};
  folder_.write("pairs.tsv", "w1\tw2\n");
  const std::unique_ptr<Source> source = pairs.open(context_);
  EXPECT_NE(refusal(source.get()).find("3 error: [pack] joins whole texts"), std::string::npos) << refusal(source.get());
  pack_.length.reset();
  EXPECT_THROW(pack_.blocks(rows(), 0), Error);
  folder_.write("rows.jsonl", "{\"text\": \"w1\"}\n");
  EXPECT_NE(refusal().find("4 error"), std::string::npos) << refusal();
  EXPECT_NE(refusal().find("only one token"), std::string::npos) << refusal();

  Component rename, pack;
  rename.type = "rename";
  rename.params = std::make_unique<Rename>();
  pack.type = "pack";
  pack.params = pack_.clone();
  EXPECT_EQ(find_pack({rename}, "p"), nullptr);
  EXPECT_NE(find_pack({pack, rename}, "p"), nullptr);
  try {
    find_pack({rename, pack}, "data.train.pipeline");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.key(), "data.train.pipeline.1");
  }
}

}  // namespace
}  // namespace galley
