// Laws of the source squad: windows, types and the positions of answers are those of transformers (tests/golden/hub/bert_answers, made by
// make_questions.py), from both forms of files; every token of a context is in a window; mistakes have their place.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "libcore/data/answers.h"
#include "libcore/data/loader.h"
#include "libcore/data/sources.h"
#include "libcore/text/tokenizer.h"
#include "libcore/text/windows.h"
#include "tests/data/files.h"

namespace galley {
namespace {

const std::string kFolder = GALLEY_SOURCE_DIR "/tests/golden/hub/bert_answers";

SourceContext context_of(const std::string& root) {
  SourceContext context;
  context.root = root;
  context.tokenizer = text::read_tokenizer(kFolder + "/tokenizer.json");
  return context;
}

std::vector<int64_t> values(const Sample& sample, const char* field) {
  const Tensor& tensor = std::get<Tensor>(*sample.find(field));
  return {tensor.data_as<int64_t>(), tensor.data_as<int64_t>() + tensor.elements()};
}

TEST(SquadSource, WindowsAreThoseOfTransformers) {
  const nlohmann::json golden = nlohmann::json::parse(read_file(kFolder + "/questions.json"));
  for (const char* file : {"questions.jsonl", "questions.squad.json"}) {
    SCOPED_TRACE(file);
    Squad options;
    options.path = {file};
    options.max_length = golden["max_length"].get<int64_t>();
    options.doc_stride = golden["doc_stride"];
    const std::unique_ptr<Source> source = options.open(context_of(kFolder));
    const auto& answers = dynamic_cast<const AnswerSource&>(*source);
    int64_t next = 0, number = 0;
    for (const nlohmann::json& question : golden["questions"]) {
      EXPECT_EQ(answers.question(number).question, question["question"]);
      EXPECT_EQ(*answers.question(number).context, question["context"]);
      EXPECT_EQ(nlohmann::json(answers.question(number).answers), question["answers"]);
      for (const nlohmann::json& window : question["windows"]) {
        ASSERT_LT(next, source->size());
        const Sample sample = source->read(next);
        EXPECT_EQ(nlohmann::json(values(sample, "input")), window["ids"]) << source->sample_name(next);
        EXPECT_EQ(nlohmann::json(values(sample, "token_types")), window["types"]);
        const std::vector<int64_t> positions{std::get<int64_t>(*sample.find("start_positions")),
                                             std::get<int64_t>(*sample.find("end_positions"))};
        EXPECT_EQ(nlohmann::json(positions), window["positions"]) << source->sample_name(next);
        EXPECT_EQ(source->length(next), std::ssize(window["ids"]));
        EXPECT_EQ(answers.window(next).question, number);
        ++next;
      }
      ++number;
    }
    EXPECT_EQ(next, source->size());
  }
}

TEST(SquadSource, WindowsShareTokensAndCoverTheContext) {
  const std::shared_ptr<const text::Tokenizer> tokenizer = text::read_tokenizer(kFolder + "/tokenizer.json");
  std::string context;
  for (int i = 0; i < 37; ++i) context += i % 3 == 0 ? "film " : "a ";
  for (const size_t longest : {7u, 8u, 12u, 60u}) {
    for (const size_t shared : {0u, 1u, 3u, 128u}) {
      const auto windows = text::context_windows(*tokenizer, "was it", context, longest, shared, "q");
      const size_t room = longest - 5, common = std::min(shared, room / 2);  // [CLS] was it [SEP] ... [SEP]
      uint32_t end = 0;
      for (size_t w = 0; w < windows.size(); ++w) {
        EXPECT_LE(windows[w].tokens.size(), longest);
        EXPECT_EQ(windows[w].first, 4u);
        EXPECT_EQ(windows[w].tokens.size(), windows[w].count + 5);
        EXPECT_EQ(windows[w].tokens.back().id, 3);
        if (w > 0) {
          const auto& before = windows[w - 1];
          EXPECT_EQ(before.count, room) << "only the last window is shorter";
          EXPECT_EQ(before.tokens[before.first + room - common].begin == windows[w].tokens[4].begin, common > 0)
              << "longest " << longest << " shared " << shared;
        }
        for (size_t i = 0; i < windows[w].count; ++i) {
          const text::Token& token = windows[w].tokens[4 + i];
          EXPECT_LE(token.begin, end + 1) << "a token is missing";
          end = std::max(end, token.end);
        }
      }
      EXPECT_EQ(end, context.size() - 1);
    }
  }
}

// Of every answer that consists of whole tokens, in every window: its tokens where the window has all of them, else the first token of all.
// Places are counted in characters.
TEST(SquadSource, PositionsAreThoseOfTheAnswersTokens) {
  const std::vector<std::string> tokens{"é", "film", ".", "a", ",", "fine", ".", "was", ".", "東", "good", "."};
  std::string context, lines;
  std::vector<std::pair<size_t, size_t>> bytes;  // of each token
  std::vector<int> characters;
  int character = 0;
  for (const std::string& token : tokens) {
    const bool joined = token == "." || token == "," || context.empty();
    context += (joined ? "" : " ") + token;
    bytes.emplace_back(context.size() - token.size(), context.size());
    character += joined ? 0 : 1;
    characters.push_back(character);
    character += static_cast<unsigned char>(token[0]) >= 0x80 ? 1 : static_cast<int>(token.size());
  }
  std::vector<std::pair<size_t, size_t>> spans;
  for (size_t first = 0; first < tokens.size(); ++first) {
    for (size_t last = first; last < std::min(tokens.size(), first + 3); ++last) {
      const std::string answer = context.substr(bytes[first].first, bytes[last].second - bytes[first].first);
      lines +=
          nlohmann::json{
              {"question", "was it"}, {"context", context}, {"answers", {{"text", {answer}}, {"answer_start", {characters[first]}}}}}
              .dump() +
          "\n";
      spans.emplace_back(first, last);
    }
  }
  const TestFolder folder;
  folder.write("spans.jsonl", lines);
  Squad options;
  options.path = {"spans.jsonl"};
  options.max_length = 10;
  options.doc_stride = 2;
  const std::unique_ptr<Source> source = options.open(context_of(folder.path()));
  const auto& answers = dynamic_cast<const AnswerSource&>(*source);
  size_t whole = 0;
  for (int64_t i = 0; i < source->size(); ++i) {
    const AnswerWindow window = answers.window(i);
    const auto [first, last] = spans[static_cast<size_t>(window.question)];
    int64_t begin = 0, end = 0;
    for (size_t t = 0; t < window.bytes.size(); ++t) {
      const auto place = static_cast<int64_t>(t) + window.first;
      if (window.bytes[t].first == bytes[first].first) begin = place;
      if (window.bytes[t].second == bytes[last].second) end = place;
    }
    if (begin == 0 || end == 0) begin = end = 0;
    whole += begin > 0;
    const Sample sample = source->read(i);
    EXPECT_EQ(std::get<int64_t>(*sample.find("start_positions")), begin) << "sample " << i << ", tokens " << first << " to " << last;
    EXPECT_EQ(std::get<int64_t>(*sample.find("end_positions")), end) << "sample " << i << ", tokens " << first << " to " << last;
  }
  EXPECT_GE(whole, spans.size());
  EXPECT_LT(static_cast<int64_t>(whole), source->size());
}

TEST(SquadSource, FieldsArePadded) {
  Squad options;
  options.path = {"questions.jsonl"};
  options.max_length = 24;
  LoaderOptions loading;
  loading.order = {.batch = 4};
  loading.passes = 1;
  DataLoader loader(options.open(context_of(kFolder)), Pipeline({}), {}, loading);
  const Batch* batch = loader.next();
  EXPECT_EQ(batch->at("input").shape(), (Shape{4, 24}));
  EXPECT_EQ(batch->at("start_positions").shape(), (Shape{4}));
  EXPECT_EQ(batch->at("input.length").data_as<int64_t>()[0], 10);
}

TEST(SquadSource, MistakesHaveTheirPlace) {
  const TestFolder folder;
  const auto message = [&](const std::string& name, const std::string& contents, int64_t longest = 16) {
    folder.write(name, contents);
    Squad options;
    options.path = {name};
    options.max_length = longest;
    try {
      options.open(context_of(folder.path()));
      return std::string();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInput);
      return error.text();
    }
  };
  const std::string good = R"({"question": "is it", "context": "a good film", "answers": {"text": ["good"], "answer_start": [2]}})";
  EXPECT_EQ(message("ok.jsonl", good), "");
  const std::string moved =
      message("moved.jsonl", good + "\n" + R"({"question": "q", "context": "a film", "answers": {"text": ["film"], "answer_start": [1]}})");
  EXPECT_NE(moved.find("moved.jsonl:2"), std::string::npos) << moved;
  EXPECT_NE(moved.find("the answer 'film' is not at character 1 of the context, which has ' fil' there"), std::string::npos) << moved;
  const std::string outside =
      message("o.jsonl", R"({"question": "q", "context": "a film", "answers": {"text": ["film"], "answer_start": [77]}})");
  EXPECT_NE(outside.find("not at character 77"), std::string::npos) << outside;
  const std::string missing = message("m.jsonl", R"({"question": "q", "answers": {"text": [], "answer_start": []}})");
  EXPECT_NE(missing.find("context"), std::string::npos) << missing;
  const std::string unequal =
      message("u.jsonl", R"({"question": "q", "context": "a film", "answers": {"text": ["a"], "answer_start": []}})");
  EXPECT_NE(unequal.find("1 texts, but 0 values of answer_start"), std::string::npos) << unequal;
  const std::string nested = message("n.json", R"({"data": [{"paragraphs": [{"context": "a", "qas": [{"answers": []}]}]}]})");
  EXPECT_NE(nested.find("data[0].paragraphs[0].qas[0]"), std::string::npos) << nested;
  EXPECT_NE(message("short.jsonl", good, 5).find("leaves no room for the context"), std::string::npos);
  EXPECT_NE(message("empty.jsonl", "\n").find("there are no questions"), std::string::npos);
}

}  // namespace
}  // namespace galley
