#pragma once
// What tools print on stdout: tables in the formats table | md | csv | json (jsonl). JSON objects are built by the tool (nlohmann in .cpp files).

#include <string>
#include <vector>

namespace galley::tools {

/// kJsonLines: an object a line, for tools whose result is rows.
enum class Format { kTable, kMarkdown, kCsv, kJson, kJsonLines };

/// Rows of text cells under headings. Numbers align right.
struct Table {
  std::vector<std::string> headings;
  std::vector<std::vector<std::string>> rows;
};

/// The table as text, ending in a newline. Not for kJson and kJsonLines.
std::string render(const Table& table, Format format);
/// 3 or 4 significant digits: "1,412", "91.3", "0.0213".
std::string human_number(double value);

}  // namespace galley::tools
