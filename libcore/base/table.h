#pragma once
// A result as rows of text; the tools write it as a table, Markdown or CSV (tools/common/report.h).

#include <string>
#include <vector>

namespace galley {

/// Rows of text cells under headings.
struct Table {
  std::vector<std::string> headings;
  std::vector<std::vector<std::string>> rows;
};

/// 3 or 4 significant digits: "1,412", "91.3", "0.0213".
std::string human_number(double value);

}  // namespace galley
