// csv: a table of numbers, read into memory once.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "libcore/base/file.h"
#include "libcore/base/trimmed.h"
#include "libcore/data/csv_reader.h"
#include "libcore/data/sources.h"

namespace galley {
namespace {

template <class T>
bool parse_number(std::string_view text, T& value) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

/// Column numbers for "3", "1..13" or a name in the header.
std::vector<size_t> columns_of(const std::vector<std::string>& texts, const std::vector<std::string>& names, const char* key) {
  constexpr int64_t kMaxColumn = 1'000'000;
  std::vector<size_t> columns;
  for (const std::string& text : texts) {
    const size_t dots = text.find("..");
    int64_t first = 0, last = 0;
    if (const auto name = std::find(names.begin(), names.end(), text); name != names.end()) {
      first = last = name - names.begin();
    } else {
      const bool good = dots == std::string::npos ? parse_number(text, first) && parse_number(text, last)
                                                  : parse_number(std::string_view(text).substr(0, dots), first) &&
                                                        parse_number(std::string_view(text).substr(dots + 2), last);
      GALLEY_CHECK(good && first >= 0 && first <= last && last < kMaxColumn, "[csv] columns.", key, ": '", text,
                   names.empty() ? "' is neither a column number nor a range such as 1..13"
                                 : "' is not a column name of the header, a column number or a range such as 1..13");
    }
    for (int64_t column = first; column <= last; ++column) columns.push_back(static_cast<size_t>(column));
  }
  return columns;
}

class CsvSource : public Source {
 public:
  CsvSource(const Csv& options, const SourceContext& context) {
    const char delimiter = delimiter_of(options.delimiter, "csv");
    GALLEY_CHECK(!options.columns.dense.empty() || !options.columns.sparse.empty(),
                 "[csv] columns: `dense` or `sparse` must name a column");
    paths_ = expand_paths(context.root, options.path);
    for (size_t file = 0; file < paths_.size(); ++file) read_table(options, delimiter, file);
  }

  int64_t size() const override { return static_cast<int64_t>(places_.size()); }
  int64_t label(int64_t index) const override { return labels_.empty() ? -1 : labels_[static_cast<size_t>(index)]; }
  std::string sample_name(int64_t index) const override {
    const auto& [file, line] = places_[static_cast<size_t>(index)];
    return cat(paths_[file], ":", line);
  }
  std::string describe() const override {
    return cat("csv ", paths_.front(), paths_.size() > 1 ? " ..." : "", ": ", size(), " rows, ", dense_width_, " dense and ", sparse_width_,
               " sparse columns");
  }
  std::vector<FieldType> fields() const override {
    std::vector<FieldType> fields;
    if (dense_width_ > 0) fields.push_back({.name = "input", .sample = {dense_width_}});
    if (sparse_width_ > 0)
      fields.push_back(
          {.name = dense_width_ > 0 ? "sparse" : "input", .kind = FieldKind::kTokens, .dtype = DType::kI64, .sample = {sparse_width_}});
    if (!labels_.empty()) fields.push_back(label_field());
    if (target_width_ > 0) fields.push_back({.name = "target", .sample = {target_width_}});
    return fields;
  }
  Sample read(int64_t index) const override {
    Sample sample;
    if (dense_width_ > 0) sample.set("input", row(dense_, dense_width_, index));
    if (sparse_width_ > 0) {
      Tensor sparse(DType::kI64, {sparse_width_});
      std::copy_n(sparse_.begin() + index * sparse_width_, sparse_width_, sparse.data_as<int64_t>());
      sample.set(dense_width_ > 0 ? "sparse" : "input", std::move(sparse));
    }
    if (!labels_.empty()) sample.set("label", label(index));
    if (target_width_ > 0) sample.set("target", row(target_, target_width_, index));
    return sample;
  }

 private:
  static Tensor row(const std::vector<float>& values, int64_t width, int64_t index) {
    Tensor tensor(DType::kF32, {width});
    std::copy_n(values.begin() + index * width, width, tensor.data_as<float>());
    return tensor;
  }

  void read_table(const Csv& options, char delimiter, size_t file) {
    const std::string text = read_file(paths_[file]);
    CsvReader reader(text, delimiter, paths_[file]);
    std::vector<std::string> fields, names;
    if (options.header) reader.next(names);
    const auto label = columns_of(options.columns.label, names, "label"), dense = columns_of(options.columns.dense, names, "dense");
    const auto sparse = columns_of(options.columns.sparse, names, "sparse"), target = columns_of(options.columns.target, names, "target");
    GALLEY_CHECK(label.size() <= 1, "[csv] columns.label must be one column, not ", label.size());
    dense_width_ = static_cast<int64_t>(dense.size());
    sparse_width_ = static_cast<int64_t>(sparse.size());
    target_width_ = static_cast<int64_t>(target.size());
    size_t width = names.size();
    while (reader.next(fields)) {
      if (width == 0) width = fields.size();
      if (fields.size() != width) reader.bad(cat(fields.size(), " fields, but the previous lines have ", width));
      const auto integer = [&](size_t column) {
        int64_t value = 0;
        const std::string_view field = take(reader, fields, column);
        if (field.empty() && options.empty) return static_cast<int64_t>(*options.empty);
        if (!parse_number(field, value)) reader.bad(cat("column ", column, ": '", field, "' is not an integer"));
        return value;
      };
      const auto real = [&](size_t column) {
        double value = 0;
        const std::string_view field = take(reader, fields, column);
        if (field.empty() && options.empty) return static_cast<float>(*options.empty);
        if (!parse_number(field, value) || !std::isfinite(static_cast<float>(value)))
          reader.bad(cat("column ", column, ": '", field, "' is not a finite number",
                         field.empty() ? "; set `empty` to the value of empty fields" : ""));
        return static_cast<float>(value);
      };
      for (const size_t column : label) labels_.push_back(integer(column));
      for (const size_t column : dense) dense_.push_back(real(column));
      for (const size_t column : sparse) sparse_.push_back(integer(column));
      for (const size_t column : target) target_.push_back(real(column));
      places_.emplace_back(file, reader.line());
    }
  }

  static std::string_view take(const CsvReader& reader, const std::vector<std::string>& fields, size_t column) {
    if (column >= fields.size()) reader.bad(cat("no column ", column, ": the line has ", fields.size(), " fields"));
    return trimmed(fields[column]);
  }

  std::vector<std::string> paths_;
  int64_t dense_width_ = 0, sparse_width_ = 0, target_width_ = 0;
  std::vector<float> dense_, target_;
  std::vector<int64_t> sparse_, labels_;
  std::vector<std::pair<size_t, int64_t>> places_;  // file index and line of each row
};

}  // namespace

std::unique_ptr<Source> Csv::open(const SourceContext& context) const { return std::make_unique<CsvSource>(*this, context); }

}  // namespace galley
