// jsonl and text_pairs: one text, or a pair of texts, a sample, with a label where a column has one.

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
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
  size_t file = 0;
  int64_t line = 0;
};

bool parse_integer(std::string_view text, int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

class TextRows : public TextDocuments {
 public:
  TextRows(std::string kind, std::vector<std::string> files, std::vector<TextRow> rows, const TextRowOptions& options,
           const SourceContext& context)
      : kind_(std::move(kind)),
        files_(std::move(files)),
        rows_(std::move(rows)),
        is_pair_(options.columns.pair.has_value()),
        has_target_(options.columns.target) {
    tokenizer_ = context.tokenizer ? context.tokenizer : std::shared_ptr<const text::Tokenizer>(text::byte_tokenizer());
    length_ = options.max_length.value_or(0);
    if (length_ == 0) {
      GALLEY_CHECK(context.input_shape.rank() == 1, kind_, ": the model needs samples of shape ", context.input_shape,
                   ", not [tokens]; set the source's max_length, or use another model");
      length_ = context.input_shape[0];
    }
    if (options.columns.label) read_labels(options.classes);
    if (!has_target_) return;
    GALLEY_CHECK(!is_pair_ && !options.columns.label, kind_, ": columns.target goes with columns.text alone, not with ",
                 is_pair_ ? "pair" : "label");
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
               categories_.empty() ? "" : cat(", ", categories_.size(), " classes"), ", at most ", length_, " tokens");
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
          throw Error(ErrorCode::kInput, cat("the label '", rows_[i].label, "' is not one of the ", categories_.size(), " classes"))
              .at({.file = files_[rows_[i].file], .line = static_cast<int>(rows_[i].line)})
              .suggest(nearest(rows_[i].label, categories_));
        value = found - categories_.begin();
      }
      labels_.push_back(value);
    }
  }

  std::string kind_;
  std::vector<std::string> files_;
  std::vector<TextRow> rows_;
  bool is_pair_, has_target_;
  int64_t begin_ = 0, end_ = 0, target_length_ = 0;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  int64_t length_ = 0;
  std::vector<int64_t> labels_;
  std::vector<std::string> categories_;
};

/// A text, or a label that is a string or a whole number.
std::string text_of(const text::JsonNode& node) { return node.json().is_number_integer() ? std::to_string(node.integer()) : node.text(); }

void read_json_lines(const std::string& path, size_t file, const TextColumns& columns, std::vector<TextRow>& rows) {
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
      TextRow& row = rows.emplace_back();
      row.file = file;
      row.line = line;
      row.text = node.text(columns.text);
      if (columns.pair) row.pair = node.text(*columns.pair);
      if (columns.target) row.target = node.text(*columns.target);
      if (columns.label) row.label = text_of(node.at(*columns.label));
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
             label = column(options.columns.label, "label"), target = column(options.columns.target, "target");
  size_t width = names.size();
  while (reader.next(fields)) {
    if (width == 0) width = fields.size();
    if (fields.size() != width) reader.bad(cat(fields.size(), " fields, but the previous lines have ", width));
    const auto take = [&](const std::optional<size_t>& at) -> std::string {
      if (!at) return "";
      if (*at >= fields.size()) reader.bad(cat("no column ", *at, ": the line has ", fields.size(), " fields"));
      return fields[*at];
    };
    rows.push_back({take(text), take(pair), take(label), take(target), file, reader.line()});
  }
}

template <class Read>
std::unique_ptr<Source> open_rows(const char* kind, const TextRowOptions& options, const SourceContext& context, const Read& read) {
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
  v.option({.name = "target", .doc = "The text that an encoder-decoder model writes: samples have the fields src, tgt and label"}, target);
}

void TextRowOptions::common_options(OptionVisitor& v) {
  v.option({.name = "max_length", .doc = "Largest number of tokens per sample; longer texts are truncated; default: the model's", .min = 1},
           max_length);
  v.option({.name = "max_target_length", .doc = "Largest number of tokens of a target; default: max_length", .unit = "tokens", .min = 1},
           max_target_length);
  v.option({.name = "begin", .doc = "The piece of the tokenizer before a target; auto: the usual one (docs/tools.md)"}, begin);
  v.option({.name = "end", .doc = "The piece of the tokenizer after a target; auto: the usual one (docs/tools.md)"}, end);
  v.option({.name = "classes", .doc = "Class names in the order of labels; default: the names that occur, sorted"}, classes);
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
                   [&](const std::string& path, size_t file, std::vector<TextRow>& rows) { read_json_lines(path, file, columns, rows); });
}

std::unique_ptr<Source> TextPairs::open(const SourceContext& context) const {
  return open_rows("text_pairs", *this, context,
                   [&](const std::string& path, size_t file, std::vector<TextRow>& rows) { read_table(path, file, *this, rows); });
}

}  // namespace galley
