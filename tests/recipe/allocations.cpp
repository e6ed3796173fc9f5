#include "tests/recipe/allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> count{0};
}

// AddressSanitizer has its own, and pairs every form of the one with the other: there nothing is counted.
#if !defined(__SANITIZE_ADDRESS__)
// In a file of their own: GCC 12 inlines the one without the other elsewhere, and takes malloc and free for a mismatch.
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
