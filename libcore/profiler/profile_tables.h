#pragma once
// A profile as tables: operators, modules, memory.

#include <cstddef>

#include "libcore/base/table.h"
#include "libcore/profiler/profile.h"

namespace galley {

/// Rows by operator, shape, module or layer, slowest first, at most so many; what is left, the executor and waiting for data are the last
/// ones.
Table operator_table(const Profile& profile, ProfileGroup by, size_t most);
/// Modules down to a depth, indented, at most so many rows.
Table module_table(const Profile& profile, int depth, size_t most);
/// Categories of memory at the peak and at most; what was planned and measured. Empty where no memory was recorded.
Table memory_table(const Profile& profile);

}  // namespace galley
