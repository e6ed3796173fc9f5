#include "tests/recipe/allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/support/sanitizers.h"

namespace {
std::atomic<int64_t> count{0};
}

// AddressSanitizer replaces new and delete itself and checks that they match, so nothing is counted there.
#if !GALLEY_ASAN
// In a separate file: elsewhere GCC 12 inlines only one of the two and warns of a mismatch with malloc and free.
void* operator new(size_t bytes) {
  ++count;
  if (void* made = std::malloc(bytes > 0 ? bytes : 1)) return made;
  throw std::bad_alloc();
}
void operator delete(void* made) noexcept { std::free(made); }
void operator delete(void* made, size_t) noexcept { std::free(made); }
#endif

namespace galley::recipe_test {

int64_t allocations() { return count; }

}  // namespace galley::recipe_test
