// squad: questions about contexts, whose answers are parts of them (Rajpurkar et al. 2016, 2018).

#include <algorithm>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/data/answers.h"
#include "libcore/data/sources.h"
#include "libcore/text/json_node.h"
#include "libcore/text/tokenizer.h"
#include "libcore/text/unicode.h"
#include "libcore/text/windows.h"

namespace galley {
namespace {

using text::JsonNode;

/// The byte at which the character of that number begins; the size for one past the end, npos for others.
size_t byte_of(const std::string& text, int64_t character) {
  const char* at = text.data();
  const char* const end = at + text.size();
  for (; character > 0 && at < end; --character) at += text::char_length(at);
  return character == 0 ? static_cast<size_t>(at - text.data()) : std::string::npos;
}

void add_answer(Question& question, const std::string& answer, int64_t character, const JsonNode& node) {
  const size_t begin = character < 0 ? std::string::npos : byte_of(*question.context, character);
  const std::string there = begin == std::string::npos ? "" : question.context->substr(begin, answer.size());
  if (answer.empty()) node.fail("the answer is empty");
  if (there != answer)
    node.fail(cat("the answer '", answer, "' is not at character ", character, " of the context, which has '",
                  text::replace_invalid_utf8(there), "' there"));
  if (question.answers.empty()) {
    question.begin = begin;
    question.end = begin + answer.size();
  }
  question.answers.push_back(answer);
}

/// A list of {text, answer_start}, or lists of both.
void read_answers(Question& question, const JsonNode& node) {
  if (node.json().is_array()) {
    for (const JsonNode& answer : node.elements()) add_answer(question, answer.text("text"), answer.at("answer_start").integer(), answer);
    return;
  }
  const std::vector<JsonNode> texts = node.at("text").elements(), starts = node.at("answer_start").elements();
  if (texts.size() != starts.size()) node.fail(cat("there are ", texts.size(), " texts, but ", starts.size(), " values of answer_start"));
  for (size_t i = 0; i < texts.size(); ++i) add_answer(question, texts[i].text(), starts[i].integer(), texts[i]);
}

/// data[].paragraphs[]: a context and its questions.
void read_document(const JsonNode& root, const std::string& path, std::vector<Question>& questions) {
  for (const JsonNode& article : root.at("data").elements()) {
    for (const JsonNode& paragraph : article.at("paragraphs").elements()) {
      const auto context = std::make_shared<const std::string>(paragraph.text("context"));
      for (const JsonNode& node : paragraph.at("qas").elements()) {
        Question& question = questions.emplace_back();
        question.question = node.text("question");
        question.context = context;
        question.name = cat(path, ": ", node.place());
        if (node.has("answers")) read_answers(question, node.at("answers"));
      }
    }
  }
}

void read_lines(const std::string& contents, const std::string& path, const QuestionColumns& columns, std::vector<Question>& questions) {
  int line = 0;
  for (size_t at = 0; at < contents.size();) {
    const size_t end = std::min(contents.find('\n', at), contents.size());
    const std::string_view record = std::string_view(contents).substr(at, end - at);
    at = end + 1;
    ++line;
    if (record.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      const JsonNode node = JsonNode::parse(record, path);
      Question& question = questions.emplace_back();
      question.question = node.text(columns.question);
      question.context = std::make_shared<const std::string>(node.text(columns.context));
      question.name = cat(path, ":", line);
      read_answers(question, node.at(columns.answers));
    } catch (Error& error) {
      throw error.at({.file = path, .line = line, .column = error.place().column});
    }
  }
}

void read_questions(const std::string& path, const QuestionColumns& columns, std::vector<Question>& questions) {
  const std::string contents = read_file(path);
  text::check_utf8(contents, path);
  if (!path.ends_with(".json")) return read_lines(contents, path, columns, questions);
  read_document(JsonNode::parse(contents, path), path, questions);
}

class SquadSource : public AnswerSource {
 public:
  SquadSource(std::vector<std::string> files, std::vector<Question> questions, const Squad& options, const SourceContext& context)
      : files_(std::move(files)), questions_(std::move(questions)), shared_(static_cast<size_t>(options.doc_stride)) {
    tokenizer_ = context.tokenizer ? context.tokenizer : std::shared_ptr<const text::Tokenizer>(text::byte_tokenizer());
    length_ = options.max_length.value_or(0);
    if (length_ == 0) {
      GALLEY_CHECK(context.input_shape.rank() == 1, "squad: the model needs samples of shape ", context.input_shape,
                   ", not [tokens]; set the source's max_length, or use another model");
      length_ = context.input_shape[0];
    }
    for (int64_t i = 0; i < std::ssize(questions_); ++i) {
      const std::vector<text::ContextWindow> windows = windows_of(questions_[static_cast<size_t>(i)]);
      for (size_t w = 0; w < windows.size(); ++w) places_.push_back({i, w, std::ssize(windows[w].tokens)});
      answered_ += !questions_[static_cast<size_t>(i)].answers.empty();
    }
  }

  int64_t size() const override { return std::ssize(places_); }
  std::vector<FieldType> fields() const override {
    FieldType input{.name = "input",
                    .kind = FieldKind::kTokens,
                    .layout = FieldLayout::kPadded,
                    .dtype = DType::kI64,
                    .sample = {length_},
                    .classes = tokenizer_->size()};
    FieldType types = input;
    types.name = "token_types";
    types.classes = 2;
    const auto position = [&](const char* name) {
      return FieldType{.name = name, .kind = FieldKind::kClass, .dtype = DType::kI64, .classes = length_};
    };
    return {input, types, position("start_positions"), position("end_positions")};
  }
  int64_t length(int64_t index) const override { return places_[static_cast<size_t>(index)].tokens; }
  Sample read(int64_t index) const override {
    const text::ContextWindow window = window_of(index);
    const auto count = std::ssize(window.tokens);
    Tensor input(DType::kI64, {count}), types(DType::kI64, {count});
    for (int64_t i = 0; i < count; ++i) {
      input.data_as<int64_t>()[i] = window.tokens[static_cast<size_t>(i)].id;
      types.data_as<int64_t>()[i] = window.tokens[static_cast<size_t>(i)].type;
    }
    const auto [first, last] = answer_in(window, questions_[static_cast<size_t>(places_[static_cast<size_t>(index)].question)]);
    Sample sample;
    sample.set("input", std::move(input));
    sample.set("token_types", std::move(types));
    sample.set("start_positions", first);
    sample.set("end_positions", last);
    return sample;
  }
  int64_t label(int64_t) const override { return -1; }
  std::string sample_name(int64_t index) const override {
    const Place& place = places_[static_cast<size_t>(index)];
    return cat(questions_[static_cast<size_t>(place.question)].name, place.window == 0 ? "" : cat(" (window ", place.window, ")"));
  }
  const Question& question(int64_t number) const override { return questions_[static_cast<size_t>(number)]; }
  AnswerWindow window(int64_t index) const override {
    const text::ContextWindow window = window_of(index);
    AnswerWindow made{.question = places_[static_cast<size_t>(index)].question, .first = static_cast<int64_t>(window.first), .bytes = {}};
    for (size_t i = 0; i < window.count; ++i)
      made.bytes.emplace_back(window.tokens[window.first + i].begin, window.tokens[window.first + i].end);
    return made;
  }
  std::string describe() const override {
    return cat("squad: ", files_.front(), files_.size() > 1 ? cat(" and ", files_.size() - 1, " more") : "", ", ", questions_.size(),
               " questions, ", answered_, " with an answer, ", size(), " windows of at most ", length_, " tokens");
  }

 private:
  struct Place {
    int64_t question = 0;
    size_t window = 0;
    int64_t tokens = 0;
  };
  std::vector<text::ContextWindow> windows_of(const Question& question) const {
    return text::context_windows(*tokenizer_, question.question, *question.context, static_cast<size_t>(length_), shared_, question.name);
  }
  text::ContextWindow window_of(int64_t index) const {
    const Place& place = places_[static_cast<size_t>(index)];
    return std::move(windows_of(questions_[static_cast<size_t>(place.question)])[place.window]);
  }
  /// The tokens of the first answer; the first token of all, where the window does not have all of the answer.
  static std::pair<int64_t, int64_t> answer_in(const text::ContextWindow& window, const Question& question) {
    const auto tokens = std::span(window.tokens).subspan(window.first, window.count);
    if (question.answers.empty() || tokens.front().begin > question.begin || tokens.back().end < question.end) return {0, 0};
    int64_t first = 0, last = std::ssize(tokens) - 1;
    while (first + 1 < std::ssize(tokens) && tokens[static_cast<size_t>(first + 1)].begin <= question.begin) ++first;
    while (last > first && tokens[static_cast<size_t>(last - 1)].end >= question.end) --last;
    return {static_cast<int64_t>(window.first) + first, static_cast<int64_t>(window.first) + last};
  }

  std::vector<std::string> files_;
  std::vector<Question> questions_;
  size_t shared_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  int64_t length_ = 0, answered_ = 0;
  std::vector<Place> places_;  // of each sample
};

}  // namespace

void QuestionColumns::options(OptionVisitor& v) {
  v.option({.name = "question", .doc = "The question"}, question);
  v.option({.name = "context", .doc = "The text that has the answer"}, context);
  v.option({.name = "answers",
            .doc = "The answers and the characters of the context where they begin: lists `text` and `answer_start`, or "
                   "a list of such pairs; empty where there is none"},
           answers);
}

void Squad::options(OptionVisitor& v) {
  v.option({.name = "path",
            .doc = "Files in SQuAD's format (.json), or with one question per line (JSON Lines): path, list, or globs",
            .required = true,
            .main = true},
           path);
  v.section({.name = "columns", .doc = "Keys of JSON Lines"}, columns);
  v.option({.name = "max_length", .doc = "Largest number of tokens per sample; default: the model's", .min = 1}, max_length);
  v.option({.name = "doc_stride",
            .doc = "Tokens of a long context that each window shares with the one before; at most half of a window's are",
            .unit = "tokens",
            .min = 0},
           doc_stride);
}

std::unique_ptr<Source> Squad::open(const SourceContext& context) const {
  std::vector<std::string> files = expand_paths(context.root, path);
  std::vector<Question> questions;
  for (const std::string& file : files) read_questions(file, columns, questions);
  GALLEY_CHECK_INPUT(!questions.empty(), files.front(), ": there are no questions");
  return std::make_unique<SquadSource>(std::move(files), std::move(questions), *this, context);
}

}  // namespace galley
