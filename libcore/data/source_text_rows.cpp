// jsonl and text_pairs: one text, or a pair of texts, a sample, with the labels or numbers that columns have.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/trimmed.h"
#include "libcore/data/csv_reader.h"
#include "libcore/data/documents.h"
#include "libcore/data/sources.h"
#include "libcore/data/special_tokens.h"
#include "libcore/text/json_node.h"
#include "libcore/text/shorten.h"
#include "libcore/text/tokenizer.h"
#include "libcore/text/unicode.h"

namespace galley {
namespace {

struct TextRow {
  std::string text, pair, label, target;
  std::vector<float> values;
  std::vector<std::string> labels;
  int64_t next = 0;  // 1: the second text does not follow the first
  size_t file = 0;
  int64_t line = 0;
};

bool parse_integer(std::string_view text, int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

/// The pieces of a cell between separators, without white space around them; empty ones are left out.
std::vector<std::string> split_labels(std::string_view cell, char separator) {
  std::vector<std::string> labels;
  for (size_t at = 0; at <= cell.size();) {
    const size_t end = std::min(cell.find(separator, at), cell.size());
    const std::string_view piece = trimmed(cell.substr(at, end - at));
    if (!piece.empty()) labels.emplace_back(piece);
    at = end + 1;
  }
  return labels;
}

bool parse_real(std::string_view text, float& value) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
}

class TextRows : public TextDocuments {
 public:
  TextRows(std::string kind, std::vector<std::string> files, std::vector<TextRow> rows, const TextRowOptions& options,
           const SourceContext& context)
      : kind_(std::move(kind)),
        files_(std::move(files)),
        rows_(std::move(rows)),
        is_pair_(options.columns.pair.has_value()),
        has_target_(options.columns.target),
        has_next_(options.columns.next_sentence) {
    tokenizer_ = context.tokenizer ? context.tokenizer : std::shared_ptr<const text::Tokenizer>(text::byte_tokenizer());
    length_ = options.max_length.value_or(0);
    if (length_ == 0) {
      GALLEY_CHECK(context.input_shape.rank() == 1, kind_, ": the model needs samples of shape ", context.input_shape,
                   ", not [tokens]; set the source's max_length, or use another model");
      length_ = context.input_shape[0];
    }
    const TextColumns& columns = options.columns;
    if (columns.label) read_labels(options.classes);
    if (columns.labels) read_label_sets(options.classes, context);
    if (!columns.values.empty()) {
      target_width_ = std::ssize(rows_.front().values);
      for (const std::string& column : columns.values) target_columns_ += cat(target_columns_.empty() ? "" : ", ", column);
    }
    if (!has_target_) return;
    target_length_ = options.max_target_length.value_or(length_);
    begin_ = begin_token(context.tokenizer.get(), options.begin, kind_);
    end_ = end_token(context.tokenizer.get(), options.end, kind_);
  }

  int64_t size() const override { return static_cast<int64_t>(rows_.size()); }
  std::vector<FieldType> fields() const override {
    std::vector<FieldType> fields{{.name = "input",
                                   .kind = FieldKind::kTokens,
                                   .layout = FieldLayout::kPadded,
                                   .dtype = DType::kI64,
                                   .sample = {length_},
                                   .classes = tokenizer_->size()}};
    if (has_target_) {
      fields.front().name = "src";
      FieldType target = fields.front();
      target.sample = {target_length_};
      target.name = "tgt";
      fields.push_back(target);
      target.name = "label";
      target.kind = FieldKind::kClass;
      fields.push_back(target);
    }
    if (is_pair_) {
      FieldType types = fields.front();
      types.name = "token_types";
      types.classes = 2;
      fields.push_back(types);
    }
    if (!labels_.empty()) fields.push_back(label_field(static_cast<int64_t>(categories_.size())));
    if (target_width_ > 0) fields.push_back({.name = "target", .sample = {target_width_}});
    if (has_next_) {
      fields.push_back(label_field(2));
      fields.back().name = "next_sentence_label";
    }
    return fields;
  }
  int64_t length(int64_t index) const override {
    const int64_t tokens = std::ssize(tokens_of(index));
    return has_target_ ? std::max(tokens, std::ssize(target_of(index)) - 1) : tokens;
  }
  Sample read(int64_t index) const override {
    const std::vector<text::Token> tokens = tokens_of(index);
    const auto count = static_cast<int64_t>(tokens.size());
    Tensor input(DType::kI64, {count}), types(DType::kI64, {count});
    for (size_t i = 0; i < tokens.size(); ++i) {
      input.data_as<int64_t>()[i] = tokens[i].id;
      types.data_as<int64_t>()[i] = tokens[i].type;
    }
    Sample sample;
    if (has_target_) {
      const std::vector<int64_t> target = target_of(index);
      const auto part = [&](int64_t begin) {
        Tensor made(DType::kI64, {std::ssize(target) - 1});
        std::copy_n(target.begin() + begin, made.elements(), made.data_as<int64_t>());
        return made;
      };
      sample.set("src", std::move(input));
      sample.set("tgt", part(0));
      sample.set("label", part(1));
      return sample;
    }
    sample.set("input", std::move(input));
    if (is_pair_) sample.set("token_types", std::move(types));
    if (!labels_.empty()) sample.set("label", label(index));
    if (target_width_ > 0) sample.set("target", numbers_of(index));
    if (has_next_) sample.set("next_sentence_label", rows_[static_cast<size_t>(index)].next);
    return sample;
  }
  int64_t documents() const override { return is_pair_ || has_target_ ? 0 : size(); }
  TokenList document(int64_t index) const override {
    const std::string name = sample_name(index);
    return TokenList(tokenizer_->encode(rows_[static_cast<size_t>(index)].text, {.add_special = false, .name = name}));
  }
  int64_t label(int64_t index) const override { return labels_.empty() ? -1 : labels_[static_cast<size_t>(index)]; }
  std::string sample_name(int64_t index) const override {
    const TextRow& row = rows_[static_cast<size_t>(index)];
    return cat(files_[row.file], ":", row.line);
  }
  const std::vector<std::string>& categories() const override { return categories_; }
  std::string describe() const override {
    return cat(kind_, ": ", files_.front(), files_.size() > 1 ? cat(" and ", files_.size() - 1, " more") : "", ", ", size(),
               is_pair_      ? " pairs of texts"
               : has_target_ ? " texts with targets"
                             : " texts",
               categories_.empty() ? "" : cat(", ", categories_.size(), " classes"),
               target_columns_.empty()
                   ? ""
                   : cat(", ", target_width_, target_width_ == 1 ? " number (column " : " numbers (columns ", target_columns_, ")"),
               ", at most ", length_, " tokens");
  }

 private:
  /// The begin token, the target and the end token, of which at most target_length_ + 1: inputs of the decoder and labels overlap.
  std::vector<int64_t> target_of(int64_t index) const {
    std::vector<int64_t> ids{begin_};
    for (const int32_t id :
         tokenizer_->encode(rows_[static_cast<size_t>(index)].target, {.add_special = false, .name = sample_name(index)}))
      ids.push_back(id);
    ids.push_back(end_);
    ids.resize(std::min(ids.size(), static_cast<size_t>(target_length_) + 1));
    return ids;
  }
  std::vector<text::Token> tokens_of(int64_t index) const {
    const TextRow& row = rows_[static_cast<size_t>(index)];
    const std::string name = sample_name(index);
    std::vector<text::Token> tokens =
        is_pair_ ? tokenizer_->pair(row.text, row.pair, {.name = name}) : tokenizer_->tokens(row.text, {.name = name});
    if (static_cast<int64_t>(tokens.size()) > length_) {
      const size_t first = tokenizer_->encode(row.text, {.add_special = false, .name = name}).size();
      text::shorten(tokens, first, static_cast<size_t>(length_));
    }
    return tokens;
  }
  /// The field `target`: the numbers of a text, or 1 for each of its classes.
  Tensor numbers_of(int64_t index) const {
    Tensor numbers(DType::kF32, {target_width_});
    auto* cells = numbers.data_as<float>();
    const TextRow& row = rows_[static_cast<size_t>(index)];
    std::fill_n(cells, target_width_, 0.0f);
    std::copy(row.values.begin(), row.values.end(), cells);
    if (!label_sets_.empty()) {
      for (const int64_t label : label_sets_[static_cast<size_t>(index)]) cells[label] = 1;
    }
    return numbers;
  }
  [[noreturn]] void bad_label(const TextRow& row, const std::string& message, const std::string& suggestion) const {
    throw Error(ErrorCode::kInput, message).at({.file = files_[row.file], .line = static_cast<int>(row.line)}).suggest(suggestion);
  }
  /// Several labels of a text: names of `classes`, or indices below the width of the task's target.
  void read_label_sets(const std::vector<std::string>& classes, const SourceContext& context) {
    categories_ = classes;
    target_width_ = std::ssize(classes);
    const FieldType* wanted = find_field(std::span<const FieldType>(context.targets), "target");
    if (classes.empty() && wanted != nullptr && wanted->sample.size() == 1) target_width_ = wanted->sample.front();
    const bool known = target_width_ > 0;
    for (const TextRow& row : rows_) {
      std::vector<int64_t>& set = label_sets_.emplace_back();
      for (const std::string& name : row.labels) {
        int64_t value = 0;
        if (const auto found = std::find(classes.begin(), classes.end(), name); found != classes.end()) {
          value = found - classes.begin();
        } else if (!classes.empty()) {
          bad_label(row, cat("the label '", name, "' is not one of the ", classes.size(), " classes"), nearest(name, classes));
        } else if (!parse_integer(name, value) || value < 0) {
          bad_label(row, cat("the label '", name, "' is not the index of a class"), "set `classes` to the names in the order of labels");
        } else if (known ? value >= target_width_ : value >= kMostClasses) {
          bad_label(row,
                    cat("the label ", value, " is not one of the ", known ? target_width_ : kMostClasses, " classes, 0 to ",
                        (known ? target_width_ : kMostClasses) - 1),
                    known ? "the classes of the model" : "");
        }
        set.push_back(value);
        if (!known) target_width_ = std::max(target_width_, value + 1);
      }
    }
  }
  /// Labels are class indices where all are whole numbers and no classes are named, else names.
  void read_labels(const std::vector<std::string>& classes) {
    std::set<std::string> names;
    bool numbers = classes.empty();
    for (const TextRow& row : rows_) {
      int64_t value = 0;
      numbers = numbers && parse_integer(row.label, value) && value >= 0;
      names.insert(row.label);
    }
    categories_ = classes;
    if (classes.empty() && !numbers) categories_.assign(names.begin(), names.end());
    for (size_t i = 0; i < rows_.size(); ++i) {
      int64_t value = 0;
      if (numbers) {
        parse_integer(rows_[i].label, value);
      } else {
        const auto found = std::find(categories_.begin(), categories_.end(), rows_[i].label);
        if (found == categories_.end())
          bad_label(rows_[i], cat("the label '", rows_[i].label, "' is not one of the ", categories_.size(), " classes"),
                    nearest(rows_[i].label, categories_));
        value = found - categories_.begin();
      }
      labels_.push_back(value);
    }
  }

  std::string kind_;
  std::vector<std::string> files_;
  std::vector<TextRow> rows_;
  static constexpr int64_t kMostClasses = 1'000'000;  // where nothing says how many there are

  bool is_pair_, has_target_, has_next_;
  int64_t begin_ = 0, end_ = 0, target_length_ = 0;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  int64_t length_ = 0;
  std::vector<int64_t> labels_;
  int64_t target_width_ = 0;                      // of the field `target`; 0: there is none
  std::string target_columns_;                    // of columns.values, for messages
  std::vector<std::vector<int64_t>> label_sets_;  // of each row, where texts have any number of classes
  std::vector<std::string> categories_;
};

/// A text, or a label that is a string or a whole number.
std::string text_of(const text::JsonNode& node) { return node.json().is_number_integer() ? std::to_string(node.integer()) : node.text(); }

char separator_of(const TextRowOptions& options, std::string_view kind) {
  const std::string& text = options.label_separator;
  GALLEY_CHECK(text == "\\t" || text.size() == 1, "[", kind, "] label_separator: '", text, "' must be one character");
  return text == "\\t" ? '\t' : text[0];
}

/// One or several labels: a list, or one text with separators.
std::vector<std::string> labels_of(const text::JsonNode& node, char separator) {
  if (!node.json().is_array()) return split_labels(text_of(node), separator);
  std::vector<std::string> labels;
  for (const text::JsonNode& item : node.elements()) labels.push_back(text_of(item));
  return labels;
}

constexpr std::string_view kNextRule = "must be 0, the second text follows the first, or 1";

/// The numbers of keys, each a number or a list of them. `width`: of the rows before; 0: there are none.
std::vector<float> values_of(const text::JsonNode& node, const std::vector<std::string>& keys, size_t width) {
  std::vector<float> values;
  const auto add = [&](const text::JsonNode& item) {
    const auto value = static_cast<float>(item.number());
    if (!std::isfinite(value)) item.fail("is too large for a float");
    values.push_back(value);
  };
  for (const std::string& key : keys) {
    const text::JsonNode item = node.at(key);
    if (!item.json().is_array()) {
      add(item);
      continue;
    }
    for (const text::JsonNode& each : item.elements()) add(each);
  }
  if (values.empty() || (width > 0 && values.size() != width))
    node.at(keys.front()).fail(cat("gives ", values.size(), " numbers", width > 0 ? cat("; the lines before have ", width) : ""));
  return values;
}

void read_json_lines(const std::string& path, size_t file, const JsonLines& options, std::vector<TextRow>& rows) {
  const TextColumns& columns = options.columns;
  const char separator = separator_of(options, "jsonl");
  const std::string contents = read_file(path);
  text::check_utf8(contents, path);
  int64_t line = 0;
  for (size_t at = 0; at < contents.size();) {
    const size_t end = std::min(contents.find('\n', at), contents.size());
    const std::string_view record = std::string_view(contents).substr(at, end - at);
    at = end + 1;
    ++line;
    if (record.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      const text::JsonNode node = text::JsonNode::parse(record, path);
      const size_t width = rows.empty() ? 0 : rows.front().values.size();
      TextRow& row = rows.emplace_back();
      row.file = file;
      row.line = line;
      row.text = node.text(columns.text);
      if (columns.pair) row.pair = node.text(*columns.pair);
      if (columns.target) row.target = node.text(*columns.target);
      if (columns.label) row.label = text_of(node.at(*columns.label));
      if (columns.labels) row.labels = labels_of(node.at(*columns.labels), separator);
      if (!columns.values.empty()) row.values = values_of(node, columns.values, width);
      if (!columns.next_sentence) continue;
      const text::JsonNode next = node.at(*columns.next_sentence);
      row.next = next.integer();
      if (row.next != 0 && row.next != 1) next.fail(std::string(kNextRule));
    } catch (Error& error) {
      throw error.at({.file = path, .line = static_cast<int>(line), .column = error.place().column});
    }
  }
}

/// The number of a column: by its name in the header, or itself.
size_t column_of(const std::string& text, const std::vector<std::string>& names, std::string_view key) {
  if (const auto name = std::find(names.begin(), names.end(), text); name != names.end()) return static_cast<size_t>(name - names.begin());
  int64_t column = 0;
  GALLEY_CHECK(
      parse_integer(text, column) && column >= 0 && column < 1'000'000, "[text_pairs] columns.", key, ": '", text,
      names.empty() ? "' is not a column number (from 0)" : "' is neither a column name of the header nor a column number (from 0)");
  return static_cast<size_t>(column);
}

void read_table(const std::string& path, size_t file, const TextPairs& options, std::vector<TextRow>& rows) {
  const std::string contents = read_file(path);
  text::check_utf8(contents, path);
  const char delimiter = delimiter_of(options.delimiter, "text_pairs");
  CsvReader reader(contents, delimiter, path, options.quoted.value_or(delimiter != '\t'));
  std::vector<std::string> fields, names;
  if (options.header) reader.next(names);
  const auto column = [&](const std::optional<std::string>& text, std::string_view key) {
    return text ? std::optional<size_t>(column_of(*text, names, key)) : std::nullopt;
  };
  const auto text = column(options.columns.text, "text"), pair = column(options.columns.pair, "pair"),
             label = column(options.columns.label, "label"), target = column(options.columns.target, "target"),
             labels = column(options.columns.labels, "labels"), next = column(options.columns.next_sentence, "next_sentence");
  std::vector<size_t> values;
  for (const std::string& each : options.columns.values) values.push_back(column_of(each, names, "values"));
  const char separator = separator_of(options, "text_pairs");
  size_t width = names.size();
  while (reader.next(fields)) {
    if (width == 0) width = fields.size();
    if (fields.size() != width) reader.bad(cat(fields.size(), " fields, but the previous lines have ", width));
    const auto take = [&](const std::optional<size_t>& at) -> std::string {
      if (!at) return "";
      if (*at >= fields.size()) reader.bad(cat("no column ", *at, ": the line has ", fields.size(), " fields"));
      return fields[*at];
    };
    TextRow& row = rows.emplace_back();
    row = {take(text), take(pair), take(label), take(target), {}, split_labels(take(labels), separator), 0, file, reader.line()};
    for (size_t i = 0; i < values.size(); ++i) {
      const std::string cell = take(values[i]);
      float& value = row.values.emplace_back();
      if (!parse_real(trimmed(cell), value)) reader.bad(cat("column ", options.columns.values[i], ": '", cell, "' is not a finite number"));
    }
    if (next && (!parse_integer(trimmed(take(next)), row.next) || row.next < 0 || row.next > 1))
      reader.bad(cat("column ", *options.columns.next_sentence, " is '", take(next), "'; it ", kNextRule));
  }
}

/// Throws for columns that do not go together.
void check_columns(const char* kind, const TextColumns& columns) {
  GALLEY_CHECK(columns.values.empty() || !columns.labels, kind, ": columns.values and columns.labels both give the field `target`");
  GALLEY_CHECK(!columns.label || !columns.labels, kind, ": columns.label is one class of a text, columns.labels are any number");
  GALLEY_CHECK(!columns.next_sentence || columns.pair, kind, ": columns.next_sentence needs a pair of texts; set columns.pair");
  const char* other = columns.pair              ? "pair"
                      : columns.label           ? "label"
                      : columns.labels          ? "labels"
                      : !columns.values.empty() ? "values"
                                                : nullptr;
  GALLEY_CHECK(!columns.target || other == nullptr, kind, ": columns.target goes with columns.text alone, not with ", other);
}

template <class Read>
std::unique_ptr<Source> open_rows(const char* kind, const TextRowOptions& options, const SourceContext& context, const Read& read) {
  check_columns(kind, options.columns);
  std::vector<std::string> files = expand_paths(context.root, options.path);
  std::vector<TextRow> rows;
  for (size_t file = 0; file < files.size(); ++file) read(files[file], file, rows);
  GALLEY_CHECK_INPUT(!rows.empty(), files.front(), ": there are no rows");
  return std::make_unique<TextRows>(kind, std::move(files), std::move(rows), options, context);
}

}  // namespace

void TextColumns::options(OptionVisitor& v) {
  v.option({.name = "text", .doc = "The text"}, text);
  v.option({.name = "pair", .doc = "The second text of a pair"}, pair);
  v.option({.name = "label", .doc = "The class: an index or a name"}, label);
  v.option({.name = "labels", .doc = "The classes of a text, any number of them: the field target has 0 or 1 for each class"}, labels);
  v.option({.name = "values", .doc = "One or more columns of numbers: the field target"}, values);
  v.option({.name = "next_sentence", .doc = "0 where the second text follows the first, else 1: the field next_sentence_label"},
           next_sentence);
  v.option({.name = "target", .doc = "The text that an encoder-decoder model writes: samples have the fields src, tgt and label"}, target);
}

void TextRowOptions::common_options(OptionVisitor& v) {
  v.option({.name = "max_length", .doc = "Largest number of tokens per sample; longer texts are truncated; default: the model's", .min = 1},
           max_length);
  v.option({.name = "max_target_length", .doc = "Largest number of tokens of a target; default: max_length", .unit = "tokens", .min = 1},
           max_target_length);
  v.option({.name = "begin", .doc = "The piece of the tokenizer before a target; auto: the usual one (docs/tools.md)"}, begin);
  v.option({.name = "end", .doc = "The piece of the tokenizer after a target; auto: the usual one (docs/tools.md)"}, end);
  v.option({.name = "classes",
            .doc = "Class names in the order of labels; default: the names that occur, sorted; columns.labels without it are indices"},
           classes);
  v.option({.name = "label_separator", .doc = "One character between the labels of a cell"}, label_separator);
}

void JsonLines::options(OptionVisitor& v) {
  v.option({.name = "path", .doc = "Files with one JSON object per line: path, list of paths, or globs", .required = true, .main = true},
           path);
  v.section({.name = "columns", .doc = "Keys of the texts and the label"}, columns);
  common_options(v);
}

void TextPairs::options(OptionVisitor& v) {
  v.option({.name = "path", .doc = "Tables of texts: path, list of paths, or globs", .required = true, .main = true}, path);
  v.section({.name = "columns", .doc = "Columns of the texts and the label: numbers from 0, or names of the header"}, columns);
  v.option({.name = "delimiter", .doc = "One character; \\t is a tab"}, delimiter);
  v.option({.name = "header", .doc = "The first line names the columns"}, header);
  v.option({.name = "quoted", .doc = "Cells may be in double quotes (RFC 4180); default: true, except for tab-separated tables"}, quoted);
  common_options(v);
}

std::unique_ptr<Source> JsonLines::open(const SourceContext& context) const {
  return open_rows("jsonl", *this, context,
                   [&](const std::string& path, size_t file, std::vector<TextRow>& rows) { read_json_lines(path, file, *this, rows); });
}

std::unique_ptr<Source> TextPairs::open(const SourceContext& context) const {
  return open_rows("text_pairs", *this, context,
                   [&](const std::string& path, size_t file, std::vector<TextRow>& rows) { read_table(path, file, *this, rows); });
}

}  // namespace galley
