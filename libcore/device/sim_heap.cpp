#include "libcore/device/sim_heap.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "libcore/base/error.h"

namespace galley {
namespace {
constexpr int64_t kPage = 4096;
int64_t up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }
}  // namespace

SimHeap::SimHeap(std::function<void()> drain) : drain_(std::move(drain)) {
  void* memory = mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    fail(ErrorCode::kResource, "device sim: cannot reserve ", kReserved >> 30, " GiB of addresses: ", std::strerror(errno));
  begin_ = static_cast<std::byte*>(memory);
  free_[0] = kReserved;
}

void SimHeap::protect(int64_t from, int64_t to, bool access) {
  if (to <= from) return;
  const int failed = mprotect(begin_ + from, static_cast<size_t>(to - from), access ? PROT_READ | PROT_WRITE : PROT_NONE);
  if (failed != 0)
    fail(ErrorCode::kResource, "device sim: memory cannot be ", access ? "unprotected: " : "protected: ", std::strerror(errno));
}

void* SimHeap::allocate(int64_t bytes, int64_t alignment) {
  // The heap starts at a page. Larger alignments apply to the absolute address.
  const auto base = reinterpret_cast<int64_t>(begin_);
  bytes = up(std::max<int64_t>(bytes, 1), 64);
  const std::lock_guard lock(mutex_);
  for (auto block = free_.begin(); block != free_.end(); ++block) {
    const int64_t from = up(base + block->first, std::max<int64_t>(alignment, 64)) - base, end = block->first + block->second;
    if (from + bytes > end) continue;
    const int64_t begin = block->first;
    free_.erase(block);
    if (from > begin) free_[begin] = from - begin;
    if (from + bytes < end) free_[from + bytes] = end - from - bytes;
    const int64_t used = std::max(used_, up(from + bytes, kPage));
    if (open_ > 0) protect(used_, used, true);
    used_ = used;
    return begin_ + from;
  }
  return nullptr;
}

void SimHeap::free(void* address, int64_t bytes, int64_t) noexcept {
  drain_();
  bytes = up(std::max<int64_t>(bytes, 1), 64);
  int64_t from = static_cast<std::byte*>(address) - begin_, end = from + bytes;
  const std::lock_guard lock(mutex_);
  // Returns whole pages to the system.
  if (up(from, kPage) < end / kPage * kPage)
    madvise(begin_ + up(from, kPage), static_cast<size_t>(end / kPage * kPage - up(from, kPage)), MADV_DONTNEED);
  const auto after = free_.lower_bound(from);
  if (after != free_.end() && after->first == end) {
    end += after->second;
    free_.erase(after);
  }
  const auto next = free_.lower_bound(from);
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == from) {
      from = before->first;
      free_.erase(before);
    }
  }
  free_[from] = end - from;
}

void SimHeap::open() {
  const std::lock_guard lock(mutex_);
  if (open_++ == 0) protect(0, used_, true);
}

void SimHeap::close() {
  const std::lock_guard lock(mutex_);
  if (--open_ == 0) protect(0, used_, false);
}

void* SimHostMemory::allocate(int64_t bytes, int64_t alignment) {
  bytes = up(std::max<int64_t>(bytes, 1), alignment);
  void* address = std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(bytes));
  if (address == nullptr) return nullptr;
  const std::lock_guard lock(mutex_);
  blocks_[static_cast<const std::byte*>(address)] = bytes;
  return address;
}

void SimHostMemory::free(void* address, int64_t, int64_t) noexcept {
  drain_();
  {
    const std::lock_guard lock(mutex_);
    blocks_.erase(static_cast<const std::byte*>(address));
  }
  std::free(address);
}

bool SimHostMemory::holds(const void* address) const {
  const std::lock_guard lock(mutex_);
  const auto after = blocks_.upper_bound(static_cast<const std::byte*>(address));
  if (after == blocks_.begin()) return false;
  const auto& [begin, bytes] = *std::prev(after);
  return static_cast<const std::byte*>(address) < begin + bytes;
}

}  // namespace galley
