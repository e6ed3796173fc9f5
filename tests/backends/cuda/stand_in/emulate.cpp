#include "tests/backends/cuda/stand_in/emulate.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define GALLEY_ASAN 1
#elif defined(__SANITIZE_THREAD__)
#define GALLEY_TSAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GALLEY_ASAN 1
#elif __has_feature(thread_sanitizer)
#define GALLEY_TSAN 1
#endif
#endif
#ifdef GALLEY_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define IF_ASAN(...) __VA_ARGS__
#else
#define IF_ASAN(...)
#endif
#ifdef GALLEY_TSAN
#include <sanitizer/tsan_interface.h>
#define IF_TSAN(...) __VA_ARGS__
// The scheduler is not checked, and uses plain arrays only: the functions of instrumented templates would be.
#define GALLEY_UNCHECKED __attribute__((no_sanitize("thread"), noinline))
#else
#define IF_TSAN(...)
#define GALLEY_UNCHECKED
#endif

namespace emulate {
namespace {

constexpr unsigned kMaxThreads = 1024, kWarp = 32, kMaxArrays = 16;
constexpr size_t kStackBytes = size_t{32} << 10, kSharedBytes = size_t{48} << 10;

enum class State : uint8_t { kReady, kAtBarrier, kAtWarpBarrier, kDone };

struct Fiber {
  void* stack_pointer = nullptr;
  uint3 thread;
  State state = State::kReady;
  unsigned parity = 0;              // of its exchanges: two words, so that one wait is enough
  IF_TSAN(unsigned turns[2] = {};)  // parities of its barriers of blocks and warps
  const char* place = nullptr;      // of the barrier at which it waits
  IF_ASAN(void* fake_stack = nullptr;)
  IF_TSAN(void* tsan = nullptr;)
};

struct SharedArray {
  const char* place;
  size_t offset;
};

/// A running block.
struct Block {
  const char* kernel = nullptr;
  unsigned threads = 0, current = 0, arrays = 0;
  Fiber* fibers = nullptr;
  unsigned char* shared = nullptr;
  size_t shared_used = 0;
  SharedArray array[kMaxArrays];
  uint32_t exchanged[2][kMaxThreads];
  const std::function<void()>* body = nullptr;
  void* scheduler = nullptr;  // its stack pointer
  const char* problem = nullptr;
  const char* problem_place = nullptr;
  IF_ASAN(const void* stack = nullptr; size_t stack_size = 0;)
  IF_TSAN(void* tsan = nullptr;)
};
thread_local Block* running = nullptr;
thread_local uint64_t random_state = 1;
// What ThreadSanitizer is told about order; only the addresses matter. Barriers that follow one another have two in turn: else a thread
// that leaves the first one would be ordered after all that other threads did before the second.
char start_order, end_order, grid_order;
char block_order[64][2 * (1 + kMaxThreads / kWarp)];
thread_local char* orders = nullptr;

void after([[maybe_unused]] void* order) { IF_TSAN(__tsan_acquire(order);) }
void before([[maybe_unused]] void* order) { IF_TSAN(__tsan_release(order);) }

/// Saves the registers of the running fiber, and goes on with those at `to`.
__attribute__((naked, noinline)) void switch_stack(void** /*save*/, void* /*to*/) {
  asm("push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15; mov %rsp, (%rdi); mov %rsi, %rsp;"
      "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp; ret");
}

/// Leaves the running fiber, for the scheduler.
GALLEY_UNCHECKED void yield(State state, const char* place) {
  Block& block = *running;
  Fiber& fiber = block.fibers[block.current];
  fiber.state = state;
  fiber.place = place;
  IF_ASAN(__sanitizer_start_switch_fiber(state == State::kDone ? nullptr : &fiber.fake_stack, block.stack, block.stack_size);)
  IF_TSAN(__tsan_switch_to_fiber(block.tsan, __tsan_switch_to_fiber_no_sync);)
  switch_stack(&fiber.stack_pointer, block.scheduler);
  IF_ASAN(__sanitizer_finish_switch_fiber(fiber.fake_stack, nullptr, nullptr);)
}

GALLEY_UNCHECKED void fiber_main() {
  IF_ASAN(__sanitizer_finish_switch_fiber(nullptr, &running->stack, &running->stack_size);)
  after(&start_order);
  (*running->body)();
  before(&end_order);
  yield(State::kDone, "the end of the kernel");
}

GALLEY_UNCHECKED void resume(Block& block, unsigned i, [[maybe_unused]] unsigned char* stacks) {
  block.current = i;
  threadIdx = block.fibers[i].thread;
  IF_ASAN(void* own = nullptr; __sanitizer_start_switch_fiber(&own, stacks + i * kStackBytes, kStackBytes);)
  IF_TSAN(__tsan_switch_to_fiber(block.fibers[i].tsan, __tsan_switch_to_fiber_no_sync);)
  switch_stack(&block.scheduler, block.fibers[i].stack_pointer);
  IF_ASAN(__sanitizer_finish_switch_fiber(own, nullptr, nullptr);)
}

GALLEY_UNCHECKED void note_problem(Block& block, const char* problem, unsigned fiber) {
  if (block.problem != nullptr) return;
  block.problem = problem;
  block.problem_place = block.fibers[fiber].place;
}

/// Lets fibers first .. last-1 go on if all of them are at one barrier.
GALLEY_UNCHECKED bool release(Block& block, unsigned first, unsigned last, State state) {
  unsigned ended = 0, waiting = last;
  for (unsigned i = first; i < last; ++i) {
    Fiber& fiber = block.fibers[i];
    if (fiber.state == State::kDone) {
      ++ended;
      continue;
    }
    if (fiber.state != state) return false;
    if (waiting != last && block.fibers[waiting].place != fiber.place) {
      note_problem(block, "threads of one group are at different barriers", i);
      return false;
    }
    waiting = i;
  }
  if (waiting == last) return false;
  if (ended > 0) {
    note_problem(block, "other threads of the group ended before this barrier", waiting);
    return false;
  }
  for (unsigned i = first; i < last; ++i) block.fibers[i].state = State::kReady;
  return true;
}

GALLEY_UNCHECKED uint64_t next_random() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}
GALLEY_UNCHECKED void make_order(unsigned* order, unsigned count, uint64_t seed) {
  for (unsigned i = 0; i < count; ++i) order[i] = seed == 1 ? count - 1 - i : i;
  for (unsigned i = count; seed > 1 && i > 1; --i) {
    const auto j = static_cast<unsigned>(next_random() % i);
    const unsigned kept = order[i - 1];
    order[i - 1] = order[j];
    order[j] = kept;
  }
}

/// Runs the fibers of a block until all have ended, or none can go on.
GALLEY_UNCHECKED void run_fibers(Block& block, unsigned char* stacks, uint64_t seed) {
  unsigned order[kMaxThreads];
  while (block.problem == nullptr) {
    bool ran = false, alive = false, released = false;
    make_order(order, block.threads, seed);
    for (unsigned k = 0; k < block.threads; ++k) {
      Fiber& fiber = block.fibers[order[k]];
      if (fiber.state == State::kReady) {
        resume(block, order[k], stacks);
        ran = true;
      }
      alive = alive || fiber.state != State::kDone;
    }
    if (!alive) return;
    for (unsigned first = 0; first < block.threads; first += kWarp) {
      const unsigned last = first + kWarp < block.threads ? first + kWarp : block.threads;
      released = release(block, first, last, State::kAtWarpBarrier) || released;
    }
    if (!released) released = release(block, 0, block.threads, State::kAtBarrier);
    for (unsigned i = 0; !released && !ran && i < block.threads; ++i) {
      if (block.fibers[i].state != State::kDone) note_problem(block, "not every thread of the group reaches this barrier or shuffle", i);
    }
  }
}

/// What kernels read of their block changes while fibers of earlier blocks exist, which ThreadSanitizer must not take for a race.
GALLEY_UNCHECKED void enter(Block* block, uint3 index, char* order) {
  running = block;
  blockIdx = index;
  orders = order;
}
/// The order of the next barrier of the running fiber.
GALLEY_UNCHECKED char* next_order([[maybe_unused]] Group group) {
  char* order = nullptr;
  IF_TSAN(const unsigned of_warp = group == Group::kWarp ? 1 : 0; const unsigned fiber = running->current;
          order = orders + 2 * (of_warp * (1 + fiber / kWarp)) + (running->fibers[fiber].turns[of_warp] ^= 1);)
  return order;
}

#ifdef GALLEY_TSAN
constexpr unsigned kMostFibers = 2 * kMaxThreads;  // that ThreadSanitizer can have
#else
constexpr unsigned kMostFibers = kMaxThreads;
#endif
/// Stacks and states of the fibers of a thread. (Allocated once: a block has up to 1024.) Each of
/// ThreadSanitizer's fibers has a stack of its own, since it takes the reuse of a stack for a race.
struct Fibers {
  std::unique_ptr<unsigned char[]> stacks{new unsigned char[kMostFibers * kStackBytes]};
  std::array<Fiber, kMaxThreads> fibers;
  IF_TSAN(std::vector<void*> tsan;)  // kept for the next launches: making them takes most of the time
};

GALLEY_UNCHECKED void start_fiber(Fiber& fiber, unsigned char* stack, uint3 thread) {
  void** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack) + kStackBytes) & ~uintptr_t{15});
  top[-1] = nullptr;
  top[-2] = reinterpret_cast<void*>(&fiber_main);
  fiber.stack_pointer = top - 8;  // below it, six saved registers
  fiber.thread = thread;
  fiber.state = State::kReady;
  fiber.parity = 0;
  IF_TSAN(fiber.turns[0] = fiber.turns[1] = 0;)
}

void check_limits(const char* kernel, dim3 grid, dim3 block, size_t shared_bytes) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z, blocks = uint64_t{grid.x} * grid.y * grid.z;
  const bool fits = threads >= 1 && threads <= kMaxThreads && block.z <= 64 && blocks >= 1 && grid.x <= 0x7fffffffu && grid.y <= 65535 &&
                    grid.z <= 65535 && shared_bytes <= size_t{227} * 1024;
  if (!fits) throw std::runtime_error(std::string(kernel) + ": the launch exceeds the limits of the device");
}

}  // namespace

void launch(const char* kernel, dim3 grid, dim3 size, size_t shared_bytes, uint64_t seed, const std::function<void()>& body) {
  check_limits(kernel, grid, size, shared_bytes);
  static std::mutex one_launch;  // ThreadSanitizer's orders are those of one launch
  const std::lock_guard lock(one_launch);
  static thread_local Fibers fibers;
  const unsigned threads = size.x * size.y * size.z, blocks = grid.x * grid.y * grid.z;
  random_state = seed * 0x9e3779b97f4a7c15u + 1;
  gridDim = grid;
  blockDim = size;
  std::vector<unsigned> order(blocks);
  make_order(order.data(), blocks, seed);
  // Blocks have fibers and shared memory of their own under ThreadSanitizer, else no two blocks would ever race. It can have 2048 fibers.
  const unsigned sets = kMostFibers == kMaxThreads ? 1u : std::max(1u, std::min(blocks, kMostFibers / threads));
  IF_TSAN(std::vector<void*>& tsan = fibers.tsan; while (tsan.size() < size_t{sets} * threads) tsan.push_back(__tsan_create_fiber(0));)
  std::vector<std::unique_ptr<unsigned char[]>> shared;
  for (unsigned n = 0; n < blocks; ++n) {
    const unsigned id = order[n];
    unsigned char* stacks = fibers.stacks.get() + size_t{n % sets} * threads * kStackBytes;
#ifndef GALLEY_TSAN
    shared.clear();
#endif
    shared.emplace_back(new unsigned char[kSharedBytes]);
    std::memset(shared.back().get(), 0xff, kSharedBytes);  // NaN in f32, f16 and bf16
    IF_ASAN(__asan_poison_memory_region(shared.back().get(), kSharedBytes);)
    IF_ASAN(__asan_unpoison_memory_region(stacks, threads * kStackBytes);)
    Block block;
    block.kernel = kernel;
    block.threads = threads;
    block.fibers = fibers.fibers.data();
    block.shared = shared.back().get();
    block.body = &body;
    IF_TSAN(block.tsan = __tsan_get_current_fiber();)
    for (unsigned i = 0; i < threads; ++i) {
      start_fiber(block.fibers[i], stacks + i * kStackBytes, {i % size.x, i / size.x % size.y, i / size.x / size.y});
      IF_TSAN(block.fibers[i].tsan = tsan[size_t{n % sets} * threads + i];)
    }
    before(&start_order);
    enter(&block, {id % grid.x, id / grid.x % grid.y, id / grid.x / grid.y}, block_order[n % 64]);
    run_fibers(block, stacks, seed);
    enter(nullptr, {}, nullptr);
    IF_ASAN(__asan_unpoison_memory_region(shared.back().get(), kSharedBytes);)
    if (block.problem != nullptr) {
      throw std::runtime_error(std::string(kernel) + ": " + block.problem + " (block " + std::to_string(id) + ", " + block.problem_place +
                               ")");
    }
  }
  after(&end_order);
}

void barrier(Group group, const char* place) {
  char* order = next_order(group);
  before(order);
  yield(group == Group::kBlock ? State::kAtBarrier : State::kAtWarpBarrier, place);
  after(order);
}

// As on the device, a shuffle does not order memory.
GALLEY_UNCHECKED uint32_t exchange(uint32_t value, unsigned n, bool down, const char* place) {
  Block& block = *running;
  const unsigned self = block.current, lane = self % kWarp;
  const unsigned from = !down ? self ^ n : lane + n < kWarp ? self + n : self;
  const unsigned parity = block.fibers[self].parity ^= 1;
  block.exchanged[parity][self] = value;
  yield(State::kAtWarpBarrier, place);
  if (from >= block.threads) return 0xffffffffu;  // undefined on the device
  return block.exchanged[parity][from];
}

GALLEY_UNCHECKED void* shared(size_t bytes, const char* place) {
  constexpr size_t kBorder = 32;
  Block& block = *running;
  for (unsigned i = 0; i < block.arrays; ++i)
    if (block.array[i].place == place) return block.shared + block.array[i].offset;
  if (block.arrays == kMaxArrays || block.shared_used + bytes > kSharedBytes) {
    block.fibers[block.current].place = place;
    note_problem(block, "more than 48 KiB or 16 arrays of shared memory", block.current);
    yield(State::kDone, place);
  }
  const size_t offset = block.shared_used;
  IF_ASAN(__asan_unpoison_memory_region(block.shared + offset, bytes);)
  block.shared_used += (bytes + kBorder + 31) / 32 * 32;
  block.array[block.arrays++] = {place, offset};
  return block.shared + offset;
}

void fence() {
  before(&grid_order);
  after(&grid_order);
}

float atomic_add(float* to, float value) {
  float old = 0, sum = 0;
  __atomic_load(to, &old, __ATOMIC_RELAXED);
  do sum = old + value;
  while (!__atomic_compare_exchange(to, &old, &sum, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old;
}
unsigned atomic_add(unsigned* to, unsigned value) { return __atomic_fetch_add(to, value, __ATOMIC_RELAXED); }
unsigned long long atomic_add(unsigned long long* to, unsigned long long value) { return __atomic_fetch_add(to, value, __ATOMIC_RELAXED); }

}  // namespace emulate
