#pragma once
// Tables of a profile: operators, modules, memory.

#include <cstddef>

#include "libcore/base/table.h"
#include "libcore/profiler/advice.h"
#include "libcore/profiler/profile.h"

namespace galley {

/// At most `max_rows` rows by operator, shape, module or layer, slowest first; then the sum of the remaining rows, the executor and
/// waiting for data.
Table operator_table(const Profile& profile, ProfileGroup by, size_t max_rows);
/// At most `max_rows` modules down to a depth, indented.
Table module_table(const Profile& profile, int depth, size_t max_rows);
/// Memory by category at the peak and its maximum; then planned and measured memory. Empty if no memory was recorded.
Table memory_table(const Profile& profile);
/// The operators of an advice below_limit, most time above the limit first.
Table below_limit_table(const Advice& advice);

}  // namespace galley
