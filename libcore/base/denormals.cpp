#include "libcore/base/denormals.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "libcore/base/parallel.h"

namespace galley {
namespace {

#if defined(__x86_64__)
constexpr bool kKnown = true;
constexpr unsigned long long kFlush = 0x8040;  // MXCSR: flush results to zero, operands are zero
unsigned long long read_state() { return _mm_getcsr(); }
void write_state(unsigned long long state) { _mm_setcsr(static_cast<unsigned>(state)); }
#elif defined(__aarch64__)
constexpr bool kKnown = true;
constexpr unsigned long long kFlush = 1ull << 24;  // FPCR.FZ: both
unsigned long long read_state() {
  unsigned long long state = 0;
  asm volatile("mrs %0, fpcr" : "=r"(state));
  return state;
}
void write_state(unsigned long long state) { asm volatile("msr fpcr, %0" : : "r"(state)); }
#else
constexpr bool kKnown = false;
constexpr unsigned long long kFlush = 0;
unsigned long long read_state() { return 0; }
void write_state(unsigned long long) {}
#endif

/// As many compute threads of the calling thread flush. A thread that the pool replaced is set again by its first part of a parallel_for.
thread_local int flushing_threads = 1;

}  // namespace

FlushDenormals::FlushDenormals() : saved_(read_state()) {
  start_flushing_denormals();
  const int threads = compute_threads();
  if (threads <= flushing_threads) return;
  parallel_for(threads, 1, [](int64_t, int64_t) {});  // which sets each thread
  flushing_threads = threads;
}

FlushDenormals::~FlushDenormals() {
  if (read_state() != saved_) write_state((read_state() & ~kFlush) | (saved_ & kFlush));
}

void start_flushing_denormals() {
  const unsigned long long state = read_state();
  if ((state & kFlush) != kFlush) write_state(state | kFlush);
}

bool flushes_denormals() { return kKnown && (read_state() & kFlush) == kFlush; }
bool can_flush_denormals() { return kKnown; }

}  // namespace galley
