#pragma once
// Tables on stdout in the formats table, md and csv. Tools build JSON themselves (nlohmann, in .cpp files).

#include <string>

#include "libcore/base/table.h"
#include "libcore/base/units.h"

namespace galley::tools {

/// kJsonLines: one object per line, for tools whose result is rows.
enum class Format { kTable, kMarkdown, kCsv, kJson, kJsonLines };

/// The table as text with a final newline; columns of numbers are right-aligned. Not for kJson and kJsonLines.
std::string render(const Table& table, Format format);

}  // namespace galley::tools
