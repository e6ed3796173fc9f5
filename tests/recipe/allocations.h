#pragma once
// Counts allocations of this test program: a measure of work that does not depend on the machine.

#include <cstdint>

namespace galley::recipe_test {

/// Calls of operator new since the start of the program; always 0 with AddressSanitizer.
int64_t allocations();

}  // namespace galley::recipe_test
