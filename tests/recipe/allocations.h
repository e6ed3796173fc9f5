#pragma once
// Allocations of this test program, counted: work that does not depend on the machine.

#include <cstdint>

namespace galley::recipe_test {

/// Calls of operator new since the program began; always 0 under AddressSanitizer.
int64_t allocations();

}  // namespace galley::recipe_test
