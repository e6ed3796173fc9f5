#pragma once
// A table of text; tools write it as plain text, Markdown or CSV (tools/common/report.h).

#include <string>
#include <vector>

namespace galley {

/// Column headings and rows of cells.
struct Table {
  std::vector<std::string> headings;
  std::vector<std::vector<std::string>> rows;
};

/// A number with 3 or 4 significant digits: "1,412", "91.3", "0.0213".
std::string human_number(double value);

}  // namespace galley
