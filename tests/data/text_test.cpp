// Laws of text: the tokenizers of a recipe read their files; every token except the first is a label exactly once, after its input; errors
// in a text have their place.

#include <nlohmann/json.hpp>

#include "libcore/data/loader.h"
#include "libcore/data/sources.h"
#include "libcore/data/token_cache.h"
#include "libcore/data/tokenizers.h"
#include "libcore/text/train_bpe.h"
#include "tests/data/files.h"

namespace galley {
namespace {

std::vector<int64_t> wide(const std::vector<int32_t>& ids) { return {ids.begin(), ids.end()}; }

template <class Function>
std::string text_error(const Function& function) {
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

TEST(Tokenizers, VocabularyOfTheTrainingTextOrOfAFile) {
  const TestFolder folder;
  const std::string text = folder.write("text.txt", "hello"), more = folder.write("more.txt", "aß\n");
  CharTokenizer options;
  EXPECT_EQ(options.make({.root = "", .training_files = [&] { return std::vector{text, more}; }})->saved(), "char \naehloß");
  options.path = {"text.txt"};
  EXPECT_EQ(options.make({.root = folder.path(), .training_files = [&] { return std::vector{more}; }})->saved(), "char ehlo");
  EXPECT_THROW(CharTokenizer().make({}), Error) << "no text at all";
  options.path = {"nothing.txt"};
  EXPECT_NE(text_error([&] { options.make({.root = folder.path()}); }).find("nothing.txt"), std::string::npos);
  options.path = {folder.write("bad.txt", "a\nb\xFF")};
  EXPECT_NE(text_error([&] { options.make({}); }).find("bad.txt:2:2: error: byte 0xFF at offset 3 is not UTF-8"), std::string::npos);
  EXPECT_EQ(ByteTokenizer().make({})->size(), 256);
}

// Every type of data.tokenizer reads its file below data.root, by the name of the file or of its folder, and knows where its ids come from.
TEST(Tokenizers, FilesBelowTheRoot) {
  const TestFolder folder;
  folder.write("words.txt", "<unk>\na\nfilm\n");
  folder.write("bert/vocab.txt", "[UNK]\n[CLS]\n[SEP]\na\nfilm\n");
  text::BpeTrainer trainer({.vocabulary = 258});
  trainer.add("ababab", "text");
  const std::string json = trainer.finish();
  folder.write("hub/tokenizer.json", json);
  const auto tokenizer = [&](std::string_view type, const std::string& path) {
    for (const ComponentKind& kind : data_tokenizers()) {
      if (kind.type != type) continue;
      const std::unique_ptr<Options> options = kind.make();
      auto& file = dynamic_cast<FileTokenizer&>(*options);
      EXPECT_TRUE(file.from_weights()) << type;
      EXPECT_THROW(file.make({}), Error) << "no path, and no weights";
      file.path = path;
      EXPECT_FALSE(file.from_weights());
      return dynamic_cast<const FileTokenizer&>(*file.clone()).make({.root = folder.path()});
    }
    fail(ErrorCode::kUsage, "no such type: ", type);
  };
  const auto words = tokenizer("vocabulary", "words.txt");
  EXPECT_EQ(words->encode("a fine film"), (std::vector<int32_t>{1, 0, 2}));
  EXPECT_EQ(tokenizer("wordpiece", "bert")->encode("A film"), (std::vector<int32_t>{1, 3, 4, 2}));
  EXPECT_EQ(tokenizer("hub", "bert/vocab.txt")->saved(), tokenizer("wordpiece", "bert")->saved());
  const auto hub = tokenizer("hub", "hub");
  EXPECT_EQ(hub->saved(), tokenizer("hub", "hub/tokenizer.json")->saved());
  EXPECT_EQ(hub->decode(hub->encode("abba\xC3\xA9")), "abba\xC3\xA9");
  EXPECT_EQ(hub->encode("abab").size(), 1u) << "two merges: ab, abab";
  // The same vocabulary as two files.
  const auto model = nlohmann::json::parse(json)["model"];
  folder.write("bpe/vocab.json", model["vocab"].dump());
  folder.write("bpe/merges.txt", "#version: 0.2\na b\nab ab\n");
  for (const char* path : {"bpe", "bpe/vocab.json", "bpe/merges.txt"})
    EXPECT_EQ(tokenizer("bpe", path)->encode("babab"), hub->encode("babab"));
  EXPECT_NE(text_error([&] { tokenizer("tiktoken", "hub"); }).find("*.tiktoken is expected"), std::string::npos);
  EXPECT_NE(text_error([&] { tokenizer("sentencepiece", "none.model"); }).find("none.model: no such file"), std::string::npos);
  EXPECT_EQ(tokenizer_type(hub->saved()), "hub");
  EXPECT_EQ(tokenizer_type(text::byte_tokenizer()->saved()), "byte");
  EXPECT_EQ(tokenizer_type(text::character_tokenizer("{")->saved()), "char");
}

TEST(TextSource, EveryTokenIsALabelOnce) {
  const TestFolder folder;
  folder.write("a.txt", "abcabc");
  folder.write("b.txt", "cab");
  const std::shared_ptr<const text::Tokenizer> tokenizer = text::character_tokenizer("abc");
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
    const std::vector<int64_t> tokens = wide(tokenizer->encode("abcabccab"));
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

// A file is a part of one text: a template puts nothing around it, and a special token that the text spells out is one token.
TEST(TextSource, SpecialTokensAreThoseOfTheText) {
  const TestFolder folder;
  folder.write("vocab.txt", "[UNK]\n[CLS]\n[SEP]\na\nb\n");
  folder.write("a.txt", "a b");
  folder.write("b.txt", "b [SEP] a");
  TextFiles options;
  options.path = {"a.txt", "b.txt"};
  options.sequence_length = 4;
  const std::shared_ptr<const text::Tokenizer> tokenizer = text::read_tokenizer(folder.path() + "/vocab.txt");
  const auto source = options.open({.root = folder.path(), .tokenizer = tokenizer});
  ASSERT_EQ(source->size(), 1);
  EXPECT_EQ(row_of(source->read(0), "input"), (std::vector<int64_t>{3, 4, 4, 2}));
  EXPECT_EQ(row_of(source->read(0), "label"), (std::vector<int64_t>{4, 4, 2, 3}));
  EXPECT_EQ(source->fields()[0].classes, 5);
}

// By text_size a loss of tokens becomes one of characters and bytes: it has those of each label, nothing where labels are ignored.
TEST(TextSource, SizesAreThoseOfTheLabels) {
  const TestFolder folder;
  const std::string text =
      "aé€\xF0\x9F\x98\x80"
      "b";
  folder.write("a.txt", text);
  TextFiles options;
  options.path = {"a.txt"};
  options.sequence_length = 6;
  const auto sizes_of = [&](std::unique_ptr<const text::Tokenizer> tokenizer) {
    const auto source = options.open({.root = folder.path(), .tokenizer = std::move(tokenizer)});
    std::vector<int32_t> sizes;
    for (int64_t i = 0; i < source->size(); ++i) {
      const Sample sample = source->read(i);
      const Tensor& tensor = std::get<Tensor>(*sample.find("text_size"));
      sizes.insert(sizes.end(), tensor.data_as<int32_t>(), tensor.data_as<int32_t>() + tensor.elements());
    }
    return sizes;
  };
  EXPECT_EQ(sizes_of(text::character_tokenizer("aé€\xF0\x9F\x98\x80"
                                               "b")),
            (std::vector<int32_t>{1, 2, 1, 3, 1, 4, 1, 1, 0, 0, 0, 0}));
  const std::vector<int32_t> bytes = sizes_of(text::byte_tokenizer());
  ASSERT_EQ(bytes.size(), 24u);
  int characters = 0, count = 0;
  for (size_t i = 0; i < bytes.size(); i += 2) characters += bytes[i], count += bytes[i + 1];
  EXPECT_EQ(characters, 4) << "all but the first, which is never a label";
  EXPECT_EQ(count, 10);
}

// Tokens from a cache are those of the text, whatever happened to the cache; another text or tokenizer has another cache.
TEST(TokenCache, GivesTheSameTokens) {
  const TestFolder folder;
  const std::string path = folder.write("a.txt", "abcabcabba");
  const auto entries = [&] { return list_folder(folder.path() + "/cache"); };
  // A vocabulary of bytes, and one whose ids need four bytes.
  std::vector<std::string> words{"<unk>"};
  for (int i = 0; i < 70000; ++i) words.push_back("w" + std::to_string(i));
  folder.write("b.txt", "w69999 w1 x w0");
  const auto narrow = text::byte_tokenizer(), wide = text::word_tokenizer(words, "<unk>");
  const auto ids_of = [](const TokenList& list) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < list.size(); ++i) ids.push_back(list[i]);
    return ids;
  };
  const auto check = [&](const text::Tokenizer& tokenizer, const std::string& file) {
    const std::vector<int32_t> expected = tokenizer.encode(read_file(file));
    const TokenCache cache(tokenizer, folder.path() + "/cache");
    for (int round = 0; round < 2; ++round) {
      const TokenList list = cache.tokens_of(file);
      EXPECT_TRUE(list.is_mapped());
      EXPECT_EQ(ids_of(list), expected);
    }
  };
  check(*narrow, path);
  EXPECT_EQ(entries().size(), 1u);
  check(*wide, folder.path() + "/b.txt");
  check(*wide, path);
  EXPECT_EQ(entries().size(), 3u);
  folder.write("a.txt", "abcabcabbb");
  check(*narrow, path);
  EXPECT_EQ(entries().size(), 4u);
  for (const FolderEntry& entry : entries()) {
    const std::string file = folder.path() + "/cache/" + entry.name, good = read_file(file);
    for (size_t cut : {size_t{0}, size_t{50}, good.size() - 1}) {
      write_file(file, good.substr(0, cut));
      check(*narrow, path), check(*wide, folder.path() + "/b.txt");
    }
    for (size_t at = 0; at < good.size(); at += 3) {
      std::string bad = good;
      bad[at] ^= 4;
      write_file(file, bad);
      check(*narrow, path), check(*wide, folder.path() + "/b.txt");
    }
    write_file(file, good);
  }
  EXPECT_FALSE(TokenCache(*narrow, "none").tokens_of(path).is_mapped());
  EXPECT_FALSE(TokenCache(*narrow, "auto").tokens_of(path).is_mapped()) << "a small file";
  EXPECT_THROW(TokenCache(*narrow, "none").tokens_of(folder.path() + "/none.txt"), Error);
  // A folder that cannot be made: the tokens stay in memory.
  const TokenList list = TokenCache(*narrow, path + "/below_a_file").tokens_of(path);
  EXPECT_FALSE(list.is_mapped());
  EXPECT_EQ(list.size(), 10);
}

TEST(TextSource, ReadsFromACache) {
  const TestFolder folder;
  folder.write("a.txt", "abcabc");
  folder.write("empty.txt", "");
  folder.write("b.txt", "cab");
  TextFiles options;
  options.path = {"a.txt", "empty.txt", "b.txt"};
  options.sequence_length = 4;
  const auto rows = [&] {
    const auto source = options.open({.root = folder.path(), .tokenizer = text::character_tokenizer("abc")});
    std::vector<std::vector<int64_t>> all;
    for (int64_t i = 0; i < source->size(); ++i) {
      const Sample sample = source->read(i);
      all.push_back(row_of(sample, "input"));
      all.push_back(row_of(sample, "label"));
    }
    return all;
  };
  const auto expected = rows();
  EXPECT_EQ(expected.back(), (std::vector<int64_t>{2, 2, 0, 1})) << "across files";
  options.cache = "tokens";
  EXPECT_EQ(rows(), expected);
  EXPECT_EQ(list_folder(folder.path() + "/tokens").size(), 2u) << "nothing is kept for an empty file";
  EXPECT_EQ(rows(), expected);
}

/// Rows of a source of texts: "ids|token types|label".
std::vector<std::string> rows_of(const Source& source) {
  std::vector<std::string> rows;
  for (int64_t i = 0; i < source.size(); ++i) {
    const Sample sample = source.read(i);
    std::string row;
    for (const char* field : {"input", "token_types"}) {
      if (find_field(source.fields(), field) == nullptr) continue;
      for (const int64_t value : row_of(sample, field)) row += (row.empty() || row.back() == '|' ? "" : " ") + std::to_string(value);
      row += "|";
    }
    rows.push_back(row + std::to_string(source.label(i)));
  }
  return rows;
}

class TextRowSources : public testing::Test {
 protected:
  TextRowSources() {
    folder_.write("vocab.txt", "[PAD]\n[CLS]\n[SEP]\n[UNK]\na\nb\nc\n\"\n");
    context_.root = folder_.path();
    context_.tokenizer = text::read_tokenizer(folder_.path() + "/vocab.txt");
    context_.input_shape = {8};
  }
  /// The message of a mistake in the recipe.
  std::string mistake_of(const SourceOptions& options) const {
    try {
      options.open(context_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kRecipe);
      return error.text();
    }
    return "";
  }
  TestFolder folder_;
  SourceContext context_;
};

TEST_F(TextRowSources, TablesWithoutHeaderAndQuotes) {
  folder_.write("train.tsv", "a b\t1\r\n\"c\t0\n\nb\t1");
  TextPairs options;
  options.path = {"train.tsv"};
  options.columns.label = "1";
  const auto source = options.open(context_);
  EXPECT_EQ(rows_of(*source), (std::vector<std::string>{"1 4 5 2|1", "1 7 6 2|0", "1 5 2|1"}));
  EXPECT_TRUE(source->sample_name(2).ends_with("train.tsv:4"));
  EXPECT_TRUE(source->categories().empty());
  EXPECT_EQ(source->fields()[0].layout, FieldLayout::kPadded);
  EXPECT_EQ(source->fields()[0].sample, (std::vector<int64_t>{8}));
  EXPECT_EQ(source->fields()[0].classes, 8);
}

TEST_F(TextRowSources, PairsByNamesOfTheHeader) {
  folder_.write("pairs.csv", "label,first,second\nyes,\"a, b\",c\nno,a,\"b\n\"\"c\"\"\"\n");
  TextPairs options;
  options.path = {"pairs.csv"};
  options.delimiter = ",";
  options.header = true;
  options.columns.text = "first";
  options.columns.pair = "second";
  options.columns.label = "label";
  const auto source = options.open(context_);
  // The comma is not in the vocabulary. Names are sorted: no, yes.
  EXPECT_EQ(rows_of(*source), (std::vector<std::string>{"1 4 3 5 2 6 2|0 0 0 0 0 1 1|1", "1 4 2 5 7 6 7 2|0 0 0 1 1 1 1 1|0"}));
  EXPECT_EQ(source->categories(), (std::vector<std::string>{"no", "yes"}));
  options.classes = {"yes", "no"};
  EXPECT_EQ(options.open(context_)->label(0), 0);
  options.classes = {"yes", "maybe"};
  EXPECT_NE(text_error([&] { options.open(context_); }).find("pairs.csv:3: error: the label 'no' is not one of the 2 classes"),
            std::string::npos);
  // The longer text is cut first; what stands around the texts stays.
  options.classes.clear();
  options.max_length = 6;
  EXPECT_EQ(rows_of(*options.open(context_))[0], "1 4 3 2 6 2|0 0 0 0 1 1|1");
  EXPECT_EQ(rows_of(*options.open(context_))[1], "1 4 2 5 7 2|0 0 0 1 1 1|0");
  options.max_length = 3;
  EXPECT_EQ(rows_of(*options.open(context_))[1], "1 2 2|0 0 1|0");
}

TEST_F(TextRowSources, JsonLines) {
  folder_.write("a.jsonl", "{\"text\": \"a\\nb\", \"label\": 2, \"other\": [1]}\r\n\n{\"label\": \"0\", \"text\": \"c\"}");
  class JsonLines options;
  options.path = {"a.jsonl"};
  options.columns.label = "label";
  const auto source = options.open(context_);
  EXPECT_EQ(rows_of(*source), (std::vector<std::string>{"1 4 5 2|2", "1 6 2|0"}));
  EXPECT_TRUE(source->sample_name(1).ends_with("a.jsonl:3"));
  const auto says = [&](const std::string& contents, const std::string& message) {
    folder_.write("a.jsonl", contents);
    const std::string error = text_error([&] { options.open(context_); });
    EXPECT_NE(error.find(message), std::string::npos) << error;
  };
  says("{\"text\": \"a\", \"label\": 1}\n{\"text\": 3, \"label\": 1}", "a.jsonl:2: error: text: must be a string");
  says("\n{\"text\": \"a\"}", "a.jsonl:2: error: the key 'label' is missing");
  says("{\"text\": \"a\", \"label\": 0.5}", "label: must be a string");
  says("{\"text\": \"a\"", "a.jsonl:1:12: error: is not valid JSON");
  says("{}\n\xFF", "a.jsonl:2:1: error: byte 0xFF");
  says("\n", "there are no rows");
}

/// The field `target` of all rows.
std::vector<std::vector<float>> targets_of(const Source& source) {
  std::vector<std::vector<float>> all;
  for (int64_t i = 0; i < source.size(); ++i) {
    const Sample sample = source.read(i);
    const Tensor& target = std::get<Tensor>(*sample.find("target"));
    all.emplace_back(target.data_as<float>(), target.data_as<float>() + target.elements());
  }
  return all;
}
using Targets = std::vector<std::vector<float>>;

TEST_F(TextRowSources, NumbersOfColumns) {
  folder_.write("t.csv", "text,second,score,other\na,b,2.5,-1\nb,c, +3e-1 ,7\n");
  TextPairs options;
  options.path = {"t.csv"};
  options.delimiter = ",";
  options.header = true;
  options.columns.text = "text";
  options.columns.pair = "second";
  options.columns.values = {"score"};
  const auto source = options.open(context_);
  EXPECT_EQ(targets_of(*source), (Targets{{2.5f}, {0.3f}}));
  EXPECT_EQ(source->label(0), -1);
  const std::vector<FieldType> fields = source->fields();
  const FieldType* target = find_field(std::span<const FieldType>(fields), "target");
  ASSERT_NE(target, nullptr);
  EXPECT_EQ(target->dtype, DType::kF32);
  EXPECT_EQ(target->sample, (std::vector<int64_t>{1}));
  options.columns.values = {"other", "2"};
  EXPECT_EQ(targets_of(*options.open(context_)), (Targets{{-1, 2.5f}, {7, 0.3f}}));
  for (const std::string cell : {"x", "", "nan", "1e99", "1 2"}) {
    folder_.write("t.csv", "text,second,score,other\na,b,2.5,-1\nb,c,1," + cell + "\n");
    EXPECT_NE(text_error([&] { options.open(context_); }).find("t.csv:3: error: column other: '" + cell + "' is not a finite number"),
              std::string::npos);
  }

  folder_.write("t.jsonl", R"({"text": "a", "score": 2.5, "all": [1, 2]})"
                           "\n"
                           R"({"text": "b", "score": -1, "all": [3, 4]})");
  class JsonLines lines;
  lines.path = {"t.jsonl"};
  lines.columns.values = {"all", "score"};
  EXPECT_EQ(targets_of(*lines.open(context_)), (Targets{{1, 2, 2.5f}, {3, 4, -1}}));
  const auto says = [&](const std::string& second, const std::string& message) {
    folder_.write("t.jsonl", R"({"text": "a", "score": 2.5, "all": [1, 2]})"
                             "\n" +
                                 second);
    const std::string error = text_error([&] { lines.open(context_); });
    EXPECT_NE(error.find(message), std::string::npos) << error;
  };
  says(R"({"text": "b", "score": -1, "all": [3]})", "t.jsonl:2: error: all: gives 2 numbers; the lines before have 3");
  says(R"({"text": "b", "score": "1", "all": [3, 4]})", "t.jsonl:2: error: score: must be a number");
  says(R"({"text": "b", "score": 1e99, "all": [3, 4]})", "t.jsonl:2: error: score: is too large for a float");
  says(R"({"text": "b", "all": [3, 4]})", "t.jsonl:2: error: the key 'score' is missing");
}

TEST_F(TextRowSources, AnyNumberOfLabels) {
  folder_.write("t.tsv", "a\tgood, kind\nb\t\nc\tbad\n");
  TextPairs options;
  options.path = {"t.tsv"};
  options.columns.labels = "1";
  options.classes = {"bad", "good", "kind"};
  const auto source = options.open(context_);
  EXPECT_EQ(targets_of(*source), (Targets{{0, 1, 1}, {0, 0, 0}, {1, 0, 0}}));
  EXPECT_EQ(source->categories(), options.classes);
  EXPECT_EQ(source->label(0), -1);
  options.classes = {"bad", "good", "kin"};
  EXPECT_NE(text_error([&] { options.open(context_); }).find("t.tsv:1: error: the label 'kind' is not one of the 3 classes"),
            std::string::npos);
  options.classes.clear();
  EXPECT_NE(text_error([&] { options.open(context_); }).find("t.tsv:1: error: the label 'good' is not the index of a class"),
            std::string::npos);
  // Indices: as many classes as the task's target has, else as occur.
  folder_.write("t.tsv", "a\t2;0\nb\t1");
  options.label_separator = ";";
  EXPECT_EQ(targets_of(*options.open(context_)), (Targets{{1, 0, 1}, {0, 1, 0}}));
  SourceContext of_model = context_;
  of_model.targets = {{.name = "target", .sample = {4}}};
  EXPECT_EQ(targets_of(*options.open(of_model)), (Targets{{1, 0, 1, 0}, {0, 1, 0, 0}}));
  of_model.targets.front().sample = {2};
  EXPECT_NE(text_error([&] { options.open(of_model); }).find("t.tsv:1: error: the label 2 is not one of the 2 classes, 0 to 1"),
            std::string::npos);
  options.label_separator = ", ";
  EXPECT_NE(mistake_of(options).find("[text_pairs] label_separator: ', ' must be one character"), std::string::npos);

  folder_.write("t.jsonl", R"({"text": "a", "tags": ["x", "y z"]})"
                           "\n"
                           R"({"text": "b", "tags": []})"
                           "\n"
                           R"({"text": "c", "tags": "y z"})");
  class JsonLines lines;
  lines.path = {"t.jsonl"};
  lines.columns.labels = "tags";
  lines.classes = {"x", "y z"};
  EXPECT_EQ(targets_of(*lines.open(context_)), (Targets{{1, 1}, {0, 0}, {0, 1}}));
}

TEST_F(TextRowSources, WhetherTheSecondTextFollows) {
  folder_.write("t.tsv", "a\tb\t0\nb\tc\t1\n");
  TextPairs options;
  options.path = {"t.tsv"};
  options.columns.pair = "1";
  options.columns.next_sentence = "2";
  const auto source = options.open(context_);
  for (int64_t i = 0; i < 2; ++i) EXPECT_EQ(std::get<int64_t>(*source->read(i).find("next_sentence_label")), i);
  folder_.write("t.tsv", "a\tb\t0\nb\tc\t2\n");
  EXPECT_NE(text_error([&] { options.open(context_); }).find("t.tsv:2: error: column 2 is '2'; it must be 0, the second text follows"),
            std::string::npos);
  const auto says = [&](const std::string& message) {
    const std::string error = mistake_of(options);
    EXPECT_NE(error.find(message), std::string::npos) << error;
  };
  options.columns.pair.reset();
  says("columns.next_sentence needs a pair of texts; set columns.pair");
  options.columns.next_sentence.reset();
  options.columns.values = {"2"};
  options.columns.labels = "2";
  says("columns.values and columns.labels both give the field `target`");
  options.columns.values.clear();
  options.columns.label = "2";
  says("columns.label is one class of a text, columns.labels are any number");
  options.columns.label.reset();
  options.columns.target = "1";
  says("columns.target goes with columns.text alone, not with labels");
}

// Rows come as one batch with the lengths of their texts; what is after a text is zero.
TEST_F(TextRowSources, BatchesArePaddedWithLengths) {
  folder_.write("t.tsv", "a b\t1\nc\t0\n");
  TextPairs options;
  options.path = {"t.tsv"};
  options.columns.label = "1";
  LoaderOptions loading;
  loading.order = {.last_batch = LastBatchRule::kKeep, .batch = 2};
  loading.classes = 2;
  DataLoader loader(options.open(context_), Pipeline({}), {}, loading);
  const Batch* batch = loader.next();
  ASSERT_NE(batch, nullptr);
  const Tensor &input = batch->input(), &length = batch->at("input.length");
  EXPECT_EQ((std::vector<int64_t>(input.data_as<int64_t>(), input.data_as<int64_t>() + 16)),
            (std::vector<int64_t>{1, 4, 5, 2, 0, 0, 0, 0, 1, 6, 2, 0, 0, 0, 0, 0}));
  EXPECT_EQ(length.data_as<int64_t>()[0], 4);
  EXPECT_EQ(length.data_as<int64_t>()[1], 3);
  EXPECT_EQ(batch->label().data_as<int64_t>()[0], 1);
}

TEST_F(TextRowSources, TablesThatDoNotFitAreErrors) {
  TextPairs options;
  options.path = {"t.tsv"};
  const auto says = [&](const std::string& contents, const std::string& message) {
    folder_.write("t.tsv", contents);
    try {
      options.open(context_);
      ADD_FAILURE() << message;
    } catch (const Error& error) {
      EXPECT_NE(error.text().find(message), std::string::npos) << error.text();
    }
  };
  says("a\tb\nc", "t.tsv:2: error: 1 fields, but the previous lines have 2");
  says("", "there are no rows");
  says("a\n\xFF", "t.tsv:2:1: error: byte 0xFF");
  options.columns.pair = "1";
  says("a", "no column 1: the line has 1 fields");
  options.columns.pair = "sentence";
  says("a", "columns.pair: 'sentence' is not a column number");
  options.header = true;
  says("a\tb\n", "'sentence' is neither a column name of the header nor a column number");
  options.delimiter = "ab";
  says("a", "[text_pairs] delimiter: 'ab' must be one character");
}

TEST(TextSource, NothingToPredictIsAnError) {
  const TestFolder folder;
  TextFiles options;
  options.sequence_length = 4;
  options.path = {folder.write("empty.txt", "")};
  EXPECT_NE(text_error([&] { options.open({}); }).find("empty.txt: the text is empty"), std::string::npos);
  options.path = {folder.write("one.txt", "x")};
  EXPECT_NE(text_error([&] { options.open({}); }).find("one token"), std::string::npos);
  options.path = {folder.path() + "/missing.txt"};
  EXPECT_NE(text_error([&] { options.open({}); }).find("missing.txt"), std::string::npos);
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
            << "rows after the valid ones do not count";
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
  const std::shared_ptr<const Source> source = options.open({.root = folder.path(), .tokenizer = text::character_tokenizer("abc")});
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
