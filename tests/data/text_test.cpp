// Laws of text: tokens are characters or bytes and come back as the same text; a tokenizer's line of text makes the same tokenizer; every
// token but the first is a label exactly once, and follows its input; what is wrong with a text is said with its place.

#include "libcore/data/loader.h"
#include "libcore/data/sources.h"
#include "libcore/data/tokenizer.h"
#include "tests/data/files.h"

namespace galley {
namespace {

std::vector<int32_t> ids_of(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, "text", ids);
  return ids;
}

std::vector<int64_t> wide(const std::vector<int32_t>& ids) { return {ids.begin(), ids.end()}; }

template <class Function>
std::string error_of(const Function& function) {
  try {
    function();
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput) << error.text();
    return error.text();
  }
}

std::vector<int64_t> row_of(const Sample& sample, const char* field) {
  const Tensor& tensor = std::get<Tensor>(*sample.find(field));
  return {tensor.data_as<int64_t>(), tensor.data_as<int64_t>() + tensor.elements()};
}

TEST(Tokenizer, CharactersInTheOrderOfTheirCodePoints) {
  // 1, 2, 3 and 4 bytes of UTF-8.
  const std::string text = "zaé€𝄞\na€";
  const auto tokenizer = char_tokenizer("zaé€𝄞\n");
  EXPECT_EQ(tokenizer->size(), 6);
  EXPECT_EQ(ids_of(*tokenizer, text), (std::vector<int32_t>{2, 1, 3, 4, 5, 0, 1, 4}));
  EXPECT_EQ(tokenizer->decode(wide(ids_of(*tokenizer, text))), text);
  EXPECT_EQ(tokenizer->str(), "char \nazé€𝄞");
  const auto again = parse_tokenizer(tokenizer->str());
  EXPECT_EQ(again->str(), tokenizer->str());
  EXPECT_EQ(ids_of(*again, text), ids_of(*tokenizer, text));
}

TEST(Tokenizer, BytesAreTheirOwnNumbers) {
  const auto tokenizer = byte_tokenizer();
  std::string all;
  for (int i = 255; i >= 0; --i) all += static_cast<char>(i);
  const std::vector<int32_t> ids = ids_of(*tokenizer, all);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(ids[static_cast<size_t>(i)], 255 - i);
  EXPECT_EQ(tokenizer->decode(wide(ids)), all);
  EXPECT_EQ(parse_tokenizer(tokenizer->str())->size(), 256);
}

TEST(Tokenizer, VocabularyOfTheTrainingTextOrOfAFile) {
  const TestFolder folder;
  const std::string text = folder.write("text.txt", "hello"), more = folder.write("more.txt", "aß\n");
  CharTokenizer options;
  EXPECT_EQ(options.make({.root = "", .training_files = {text, more}})->str(), "char \naehloß");
  options.path = {"text.txt"};
  EXPECT_EQ(options.make({.root = folder.path(), .training_files = {more}})->str(), "char ehlo");
  EXPECT_THROW(CharTokenizer().make({}), Error) << "no text at all";
  options.path = {"nothing.txt"};
  EXPECT_NE(error_of([&] { options.make({.root = folder.path(), .training_files = {}}); }).find("nothing.txt"), std::string::npos);
}

TEST(Tokenizer, WhatIsWrongIsSaidWithItsPlace) {
  const auto tokenizer = char_tokenizer("ab\n");
  const auto says = [&](const std::string& text, const std::vector<std::string>& words) {
    const std::string error = error_of([&] { ids_of(*tokenizer, text); });
    for (const std::string& word : words)
      EXPECT_NE(error.find(word), std::string::npos) << "'" << error << "' does not say '" << word << "'";
  };
  says("ab\nabba€", {"text:2:5:", "'€' (U+20AC)", "vocabulary's 3"});
  says("a\x07", {"text:1:2:", "U+0007"});
  // Not UTF-8: a lone continuation, a cut character, an overlong form, a surrogate, a number too large, a byte that begins nothing.
  for (const char* bad : {"\x80", "\xE2\x82", "\xC0\xAF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xFF", "\xE2\x28\xA1"}) {
    says(std::string("a\nb") + bad, {"text:2:2:", "at 3 is not UTF-8"});
  }
  EXPECT_NE(error_of([] { parse_tokenizer("bpe 5"); }).find("not a known tokenizer"), std::string::npos);
  EXPECT_NE(error_of([] { char_tokenizer("aba"); }).find("twice"), std::string::npos);
  EXPECT_NE(error_of([] { char_tokenizer(""); }).find("empty"), std::string::npos);
  EXPECT_NE(error_of([&] { tokenizer->decode(std::vector<int64_t>{3}); }).find("outside the vocabulary"), std::string::npos);
}

TEST(TextSource, EveryTokenIsALabelOnce) {
  const TestFolder folder;
  folder.write("a.txt", "abcabc");
  folder.write("b.txt", "cab");
  const auto tokenizer = char_tokenizer("abc");
  TextFiles options;
  options.path = {"a.txt", "b.txt"};
  for (const int64_t length : {1, 2, 3, 4, 8, 9, 100}) {
    options.sequence_length = length;
    const auto source = options.open({.root = folder.path(), .tokenizer = tokenizer});
    EXPECT_EQ(source->size(), (8 + length - 1) / length);
    std::vector<int64_t> inputs, labels;
    for (int64_t i = 0; i < source->size(); ++i) {
      const std::vector<int64_t> input = row_of(source->read(i), "input"), label = row_of(source->read(i), "label");
      ASSERT_EQ(static_cast<int64_t>(input.size()), length);
      inputs.insert(inputs.end(), input.begin(), input.end());
      labels.insert(labels.end(), label.begin(), label.end());
    }
    const std::vector<int64_t> tokens = wide(ids_of(*tokenizer, "abcabccab"));
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_EQ(inputs[i], i < 8 ? tokens[i] : 0) << i;
      EXPECT_EQ(labels[i], i < 8 ? tokens[i + 1] : -100) << i;
    }
  }
  options.sequence_length = 4;
  const auto source = options.open({.root = folder.path(), .tokenizer = tokenizer});
  EXPECT_TRUE(source->sample_name(1).ends_with("a.txt[token 4]")) << source->sample_name(1);
  options.sequence_length = 7;
  EXPECT_TRUE(options.open({.root = folder.path(), .tokenizer = tokenizer})->sample_name(1).ends_with("b.txt[token 1]"));
  options.sequence_length.reset();
  EXPECT_EQ(row_of(options.open({.root = folder.path(), .input_shape = {5}, .tokenizer = tokenizer})->read(0), "input").size(), 5u)
      << "the model says the length";
}

TEST(TextSource, NothingToPredictIsAnError) {
  const TestFolder folder;
  TextFiles options;
  options.sequence_length = 4;
  options.path = {folder.write("empty.txt", "")};
  EXPECT_NE(error_of([&] { options.open({}); }).find("empty.txt: the text is empty"), std::string::npos);
  options.path = {folder.write("one.txt", "x")};
  EXPECT_NE(error_of([&] { options.open({}); }).find("one token"), std::string::npos);
  options.path = {folder.path() + "/missing.txt"};
  EXPECT_NE(error_of([&] { options.open({}); }).find("missing.txt"), std::string::npos);
  options.path = {folder.write("two.txt", "ab")};
  EXPECT_EQ(row_of(options.open({})->read(0), "label"), (std::vector<int64_t>{'b', -100, -100, -100})) << "without a tokenizer: bytes";
}

/// Tokens of all batches in order of delivery.
std::vector<std::vector<int64_t>> batches_of(const std::shared_ptr<const Source>& source, int64_t workers, int64_t start, Slice slice) {
  LoaderOptions options;
  options.order = {.slice = slice, .shuffle = true, .last_batch = LastBatchRule::kKeep, .batch = 4, .seed = 7};
  options.workers = workers;
  options.start = start;
  options.passes = 2;
  options.classes = 3;
  DataLoader loader(source, Pipeline({}), {}, options);
  std::vector<std::vector<int64_t>> rows;
  while (const Batch* batch = loader.next()) {
    EXPECT_EQ(batch->input().dtype(), DType::kI64);
    for (int64_t n = 0; n < 4; ++n) {
      const int64_t *input = batch->input().data_as<int64_t>() + n * 3, *label = batch->label().data_as<int64_t>() + n * 3;
      if (n >= batch->valid) {
        EXPECT_EQ(std::vector<int64_t>(label, label + 3), (std::vector<int64_t>{-100, -100, -100}))
            << "rows behind the valid ones do not count";
      } else {
        rows.emplace_back(input, input + 3);
      }
    }
  }
  return rows;
}

TEST(TextSource, OrderDependsOnSeedAndPlaceAlone) {
  const TestFolder folder;
  std::string text;
  for (int i = 0; i < 61; ++i) text += static_cast<char>('a' + i * i % 7 % 3);
  folder.write("text.txt", text);
  TextFiles options;
  options.path = {"text.txt"};
  options.sequence_length = 3;
  const std::shared_ptr<const Source> source = options.open({.root = folder.path(), .tokenizer = char_tokenizer("abc")});
  ASSERT_EQ(source->size(), 20);
  Slice most, rest;
  most.parse("0%..90%");
  rest.parse("90%..100%");
  const auto rows = batches_of(source, 0, 0, most);
  EXPECT_EQ(rows.size(), 36u);
  EXPECT_EQ(batches_of(source, 3, 0, most), rows);
  EXPECT_EQ(batches_of(source, 2, 8, most), std::vector<std::vector<int64_t>>(rows.begin() + 8, rows.end())) << "a start in the middle";
  EXPECT_EQ(batches_of(source, 0, 0, rest).size(), 4u);
}

}  // namespace
}  // namespace galley
