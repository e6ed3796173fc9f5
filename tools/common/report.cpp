#include "tools/common/report.h"

#include <algorithm>

#include "libcore/base/error.h"

namespace galley::tools {
namespace {

bool is_number(const std::string& cell) {
  if (cell.empty()) return true;
  const char c = cell[cell[0] == '-' || cell[0] == '+' ? 1 : 0];
  return c >= '0' && c <= '9';
}

/// Width of a text on a terminal: UTF-8 continuation bytes take no column.
size_t width(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string padded(const std::string& cell, size_t columns, bool right) {
  const std::string space(columns > width(cell) ? columns - width(cell) : 0, ' ');
  return right ? space + cell : cell + space;
}

std::string csv_cell(const std::string& cell) {
  if (cell.find_first_of(",\"\n") == std::string::npos) return cell;
  std::string quoted = "\"";
  for (char c : cell) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string join(const std::vector<std::string>& cells, const char* separator) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) line += (i ? separator : "") + cells[i];
  return line;
}

}  // namespace

std::string render(const Table& table, Format format) {
  constexpr size_t kLongestNumber = 40;
  GALLEY_ASSERT(format != Format::kJson && format != Format::kJsonLines);
  std::string text;
  if (format == Format::kCsv) {
    auto line = [&](std::vector<std::string> cells) {
      std::transform(cells.begin(), cells.end(), cells.begin(), csv_cell);
      text += join(cells, ",") + "\n";
    };
    line(table.headings);
    for (const auto& row : table.rows) line(row);
    return text;
  }
  const size_t columns = table.headings.size();
  std::vector<size_t> widths(columns);
  std::vector<bool> right(columns, !table.rows.empty());
  for (size_t c = 0; c < columns; ++c) {
    widths[c] = width(table.headings[c]);
    for (const auto& row : table.rows) {
      if (c >= row.size()) continue;
      widths[c] = std::max(widths[c], width(row[c]));
      right[c] = right[c] && is_number(row[c]) && width(row[c]) <= kLongestNumber;  // not a vector
    }
  }
  const bool markdown = format == Format::kMarkdown;
  auto line = [&](const std::vector<std::string>& cells) {
    std::string out = markdown ? "| " : "";
    for (size_t c = 0; c < columns; ++c) {
      const std::string cell = c < cells.size() ? cells[c] : "";
      out += (c ? (markdown ? " | " : "  ") : "") + padded(cell, widths[c], right[c]);
    }
    if (markdown) out += " |";
    while (!markdown && out.ends_with(" ")) out.pop_back();
    text += out + "\n";
  };
  line(table.headings);
  if (markdown) {
    text += "|";
    for (size_t c = 0; c < columns; ++c) text += " " + std::string(std::max<size_t>(widths[c], 3) - 1, '-') + (right[c] ? ":" : "-") + " |";
    text += "\n";
  }
  for (const auto& row : table.rows) line(row);
  return text;
}

}  // namespace galley::tools
