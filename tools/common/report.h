#pragma once
// What tools print on stdout: tables in the formats table | md | csv | json (jsonl). JSON objects are built by the tool (nlohmann in .cpp
// files).

#include <string>

#include "libcore/base/table.h"
#include "libcore/base/units.h"

namespace galley::tools {

/// kJsonLines: an object a line, for tools whose result is rows.
enum class Format { kTable, kMarkdown, kCsv, kJson, kJsonLines };

/// The table as text, ending in a newline; numbers align right. Not for kJson and kJsonLines.
std::string render(const Table& table, Format format);

}  // namespace galley::tools
