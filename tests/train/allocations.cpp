#include "tests/train/allocations.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>

#include "tests/support/sanitizers.h"

#if GALLEY_ASAN || GALLEY_TSAN || !defined(__GLIBC__)
#define GALLEY_COUNTS 0
#else
#define GALLEY_COUNTS 1
#endif

namespace {

constexpr int kStacks = 8, kFrames = 40;
struct Stack {
  std::array<void*, kFrames> frames;
  int depth = 0;
};
std::atomic<bool> counting{false};
std::atomic<int64_t> count{0}, live{0}, peak{0};
std::array<Stack, kStacks> stacks;
std::atomic<int> in_library{0};     // threads that run a vendor primitive
thread_local bool looking = false;  // true while recording a stack, which may allocate

}  // namespace

#if GALLEY_COUNTS
namespace {

/// Bytes of an allocation that is made or freed, if they are counted.
void changed(void* address, bool made) {
  if (!counting.load(std::memory_order_relaxed) || address == nullptr) return;
  const auto bytes = static_cast<int64_t>(malloc_usable_size(address));
  const int64_t now = live.fetch_add(made ? bytes : -bytes) + (made ? bytes : 0);
  for (int64_t before = peak; made && now > before && !peak.compare_exchange_weak(before, now);) {
  }
}
void* made(void* address) { return changed(address, true), address; }

void allocated() {
  if (!counting.load(std::memory_order_relaxed) || in_library.load(std::memory_order_relaxed) > 0 || looking) return;
  const int64_t number = count++;
  if (number >= kStacks) return;
  looking = true;
  Stack& stack = stacks[static_cast<size_t>(number)];
  stack.depth = backtrace(stack.frames.data(), kFrames);
  looking = false;
}

}  // namespace

extern "C" {

// The replaced functions call those of glibc, including free.
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* old, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void* address);

void* malloc(size_t bytes) { return allocated(), made(__libc_malloc(bytes)); }
void* calloc(size_t items, size_t bytes) { return allocated(), made(__libc_calloc(items, bytes)); }
void* realloc(void* old, size_t bytes) { return allocated(), changed(old, false), made(__libc_realloc(old, bytes)); }
void* memalign(size_t alignment, size_t bytes) { return allocated(), made(__libc_memalign(alignment, bytes)); }
void* aligned_alloc(size_t alignment, size_t bytes) { return allocated(), made(__libc_memalign(alignment, bytes)); }
int posix_memalign(void** address, size_t alignment, size_t bytes) {
  allocated();
  *address = made(__libc_memalign(alignment, bytes));
  return *address == nullptr ? ENOMEM : 0;
}
void free(void* address) {
  changed(address, false);
  __libc_free(address);
}

/// Allocations of oneDNN in a primitive are not counted, on any thread: it copies the arguments into a map, and some of its convolutions
/// create vectors and objects in each call, for which Galley cannot supply memory. oneDNN is a shared library, so its calls can be
/// intercepted here.
int dnnl_primitive_execute(const void* primitive, void* stream, int arguments, const void* list) {
  using Execute = int (*)(const void*, void*, int, const void*);
  static const auto execute = reinterpret_cast<Execute>(dlsym(RTLD_NEXT, "dnnl_primitive_execute"));
  ++in_library;
  const int status = execute(primitive, stream, arguments, list);
  --in_library;
  return status;
}

}  // extern "C"
#endif

namespace galley::test {

bool counts_allocations() { return GALLEY_COUNTS != 0; }

AllocationCount::AllocationCount() {
  void* frame = nullptr;
  backtrace(&frame, 1);  // the first call loads a library, which allocates
  count = live = peak = 0;
  counting = true;
}

int64_t AllocationCount::stop() {
  counting = false;
  return count;
}

int64_t AllocationCount::peak_bytes() const { return peak; }

std::string AllocationCount::text() const {
  std::string text;
  for (int64_t i = 0; i < std::min<int64_t>(count, kStacks); ++i) {
    const Stack& stack = stacks[static_cast<size_t>(i)];
    char** names = backtrace_symbols(stack.frames.data(), stack.depth);
    for (int f = 2; f < stack.depth && names != nullptr; ++f) text += std::string(names[f]) + "\n";
    text += "\n";
    std::free(names);
  }
  return text;
}

}  // namespace galley::test
