#include "libcore/runtime/arena.h"

#include <algorithm>

#include "libcore/base/error.h"
#include "libcore/base/parallel.h"
#include "libcore/tensor/tensor.h"

namespace galley {
namespace {
constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kPage = 4096;
}  // namespace

Arena::~Arena() { release(); }

Arena::Use::Use(Arena& arena) : arena_(arena) {
  GALLEY_ASSERT(!arena.in_use_.exchange(true), "two executions use one arena at the same time; give one of them its own arena");
}

void Arena::use(Device& device) {
  GALLEY_ASSERT(address_ == nullptr || device_ == &device, "the arena is on device ", device_->name(), ", but the program is on ",
                device.name());
  device_ = &device;
}

void Arena::release() {
  if (address_ != nullptr && adopted_ == nullptr) device_->memory().free(address_, bytes_, alignment_);
  adopted_ = nullptr;
  address_ = nullptr;
  bytes_ = 0;
}

void Arena::adopt(std::shared_ptr<std::byte> memory, int64_t bytes) {
  GALLEY_ASSERT(device_->is_host());
  release();
  ++generation_;
  address_ = memory.get();
  adopted_ = std::move(memory);
  bytes_ = bytes;
}

void Arena::adopt_common(std::shared_ptr<std::byte> memory, int64_t bytes) {
  ++generation_;
  common_ = std::move(memory);
  common_bytes_ = bytes;
}

void Arena::reserve(int64_t bytes, int64_t common) {
  if (common > common_bytes_) {
    const std::shared_ptr<Storage> storage = Storage::allocate(common, *device_);
    adopt_common({storage, storage->address()}, common);
  }
  const int64_t alignment = bytes >= kHugePage ? kHugePage : kPage;
  bytes = (bytes + alignment - 1) / alignment * alignment;
  if (bytes <= bytes_) return;
  release();
  ++generation_;
  address_ = static_cast<std::byte*>(device_->memory().allocate(bytes, alignment));
  if (address_ == nullptr)
    fail(ErrorCode::kResource, "not enough memory for ", bytes / (1 << 20), " MiB of scratch; use a smaller batch or train.recompute");
  bytes_ = bytes;
  alignment_ = alignment;
  if (!device_->is_host()) return;
  parallel_for((bytes + kHugePage - 1) / kHugePage, 4, [&](int64_t begin, int64_t end) {
    for (int64_t offset = begin * kHugePage; offset < std::min(end * kHugePage, bytes); offset += kPage) address_[offset] = std::byte{0};
  });
}

}  // namespace galley
