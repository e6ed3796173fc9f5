#include "libcore/comm/shared.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "libcore/base/error.h"
#include "libcore/base/log.h"
#include "libcore/base/units.h"

namespace galley {
namespace {

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// Removes what killed jobs have left: segments "galley-PID-..." of processes that no longer exist.
void remove_stale_segments() {
  constexpr std::string_view kPrefix = "galley-";
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    pid_t pid = 0;
    const auto [end, error] = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), pid);
    if (error == std::errc() && end < name.data() + name.size() && *end == '-' && pid > 0 && kill(pid, 0) != 0 && errno == ESRCH)
      shm_unlink(("/" + name).c_str());
  }
}

/// Without it, a full /dev/shm would end the process by SIGBUS at the first write.
void reserve_pages(int file, int64_t begin, int64_t bytes) {
  const int error = posix_fallocate(file, begin, bytes);
  if (error == 0) return;
  struct statvfs room{};
  const bool known = fstatvfs(file, &room) == 0;
  const auto size = [](double n) { return human_bytes(n); };
  fail(ErrorCode::kResource, "/dev/shm has no room for ", size(static_cast<double>(bytes)),
       known ? cat(" (", size(static_cast<double>(room.f_bavail) * static_cast<double>(room.f_bsize)), " of ",
                   size(static_cast<double>(room.f_blocks) * static_cast<double>(room.f_frsize)), " are free)")
             : cat(": ", std::strerror(error)),
       "; a container gets more with --shm-size");
}

/// Memory that ranks of a machine share, in segments that are allocated one after the other. One thread adds, others may look up.
class SharedRegions {
 public:
  struct Region {
    std::shared_ptr<SharedSegment> segment;
    std::byte* base = nullptr;
    int64_t each = 0;   // from the memory of a rank to that of the next; 0: all have the same
    int64_t bytes = 0;  // of a rank
  };
  size_t count() const { return count_.load(std::memory_order_acquire); }
  bool full() const { return count() == regions_.size(); }
  const Region& at(size_t i) const { return regions_[i]; }
  const Region& add(Region region) {
    const size_t last = count();
    regions_[last] = std::move(region);
    count_.store(last + 1, std::memory_order_release);
    return regions_[last];
  }

 private:
  std::array<Region, 4096> regions_;
  std::atomic<size_t> count_{0};
};

class SharedCommunicator : public DirectCommunicator {
 public:
  /// `board`: where it begins in the segment, followed by the staging memory.
  SharedCommunicator(std::shared_ptr<SharedSegment> segment, int64_t board, std::shared_ptr<SharedRegions> regions, std::string name,
                     int rank, const DirectOptions& options)
      : DirectCommunicator(*Board::open(segment->data() + board), rank, options, false),
        segment_(std::move(segment)),
        staging_(segment_->data() + board + aligned(Board::bytes(size()))),
        regions_(std::move(regions)),
        name_(std::move(name)) {}
  std::string transport() const override { return std::string(kSharedMemory); }
  int sharing_memory() const override { return size(); }

  static int64_t board_bytes(int ranks) { return aligned(Board::bytes(ranks)) + ranks * staging_bytes(ranks); }

  std::shared_ptr<std::byte> allocate(int64_t bytes) override {
    const Region* region = add_region(bytes, false);
    return region == nullptr ? Communicator::allocate(bytes)
                             : std::shared_ptr<std::byte>(region->segment, region->base + rank() * region->each);
  }
  std::shared_ptr<std::byte> allocate_common(int64_t bytes) override {
    const Region* region = add_region(bytes, true);
    return region == nullptr ? nullptr : std::shared_ptr<std::byte>(region->segment, region->base);
  }

 protected:
  /// Region 0 is the staging memory.
  Place64 place_of(const void* address) const override {
    const auto* at = static_cast<const std::byte*>(address);
    for (size_t i = 0; i < regions_->count(); ++i) {
      const Region& region = regions_->at(i);
      const std::byte* own = region.base + rank() * region.each;
      if (at >= own && at < own + region.bytes) return {.region = static_cast<int32_t>(i) + 1, .base = static_cast<uint64_t>(at - own)};
    }
    return {.region = kNone};
  }
  std::byte* address_of(int rank, const Place64& place) const override {
    if (place.region == 0) return staging_ + rank * staging_bytes(size()) + place.base;
    const Region& region = regions_->at(static_cast<size_t>(place.region) - 1);
    return region.base + rank * region.each + place.base;
  }

 private:
  using Region = SharedRegions::Region;
  /// nullptr on all ranks if one of them finds no room for its part. The last rank reserves common memory.
  const Region* add_region(int64_t bytes, bool common) {
    int64_t each = aligned(std::max<int64_t>(bytes, 1));
    all_reduce("shared memory", &each, &each, 1, DType::kI64, ReduceOp::kMax);
    if (regions_->full()) return nullptr;
    const std::string name = cat(name_, "-", regions_->count());
    std::shared_ptr<SharedSegment> segment;
    std::string problem;
    const auto attempt = [&](auto&& make) {
      try {
        segment = make();
        if (!common) segment->reserve(rank() * each, each);  // by the rank that uses it: on its own node of memory
        if (common && rank() == size() - 1) segment->reserve(0, each);
      } catch (const Error& error) {
        segment = nullptr;
        problem = error.message();
      }
    };
    if (rank() == 0) attempt([&] { return SharedSegment::create(name, common ? each : each * size(), false); });
    int32_t failed = segment == nullptr;
    broadcast("shared memory", &failed, 1, DType::kI32, 0);
    if (failed == 0 && rank() != 0) attempt([&] { return SharedSegment::open(name); });
    failed = segment == nullptr;
    all_reduce("shared memory", &failed, &failed, 1, DType::kI32, ReduceOp::kMax);
    if (rank() == 0 && segment != nullptr) segment->remove_name();
    if (failed != 0) {
      if (!problem.empty())
        log(LogLevel::kWarning, problem + "; collectives copy their arrays through a small buffer instead, which is slower");
      return nullptr;
    }
    std::byte* base = segment->data();
    return &regions_->add({segment, base, common ? 0 : each, each});
  }

  std::shared_ptr<SharedSegment> segment_;
  std::byte* staging_;
  std::shared_ptr<SharedRegions> regions_;
  std::string name_;
};

}  // namespace

/// The address is a multiple of a huge page, as places in the file must be at the same places in huge pages.
SharedSegment::SharedSegment(std::string name, int file, int64_t bytes) : name_(std::move(name)), file_(file), bytes_(bytes) {
  const auto size = static_cast<size_t>(bytes), room = size + kHugePage;
  void* range = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) fail(ErrorCode::kResource, "cannot map ", bytes, " bytes of shared memory: ", std::strerror(errno));
  const auto begin = reinterpret_cast<uintptr_t>(range);
  auto* const at = reinterpret_cast<std::byte*>((begin + kHugePage - 1) / kHugePage * kHugePage);
  if (mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
    const std::string why = std::strerror(errno);
    munmap(range, room);
    fail(ErrorCode::kResource, "cannot map ", bytes, " bytes of shared memory: ", why);
  }
  data_ = at;
  range_ = range;
}

SharedSegment::~SharedSegment() {
  munmap(range_, static_cast<size_t>(bytes_) + kHugePage);
  close(file_);
  if (named_) shm_unlink(name_.c_str());
}

void use_huge_pages(std::byte* begin, int64_t bytes) {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, Linux 6.1: it does not depend on the system's settings
  const auto first = (reinterpret_cast<uintptr_t>(begin) + kHugePage - 1) / kHugePage * kHugePage,
             last = (reinterpret_cast<uintptr_t>(begin) + static_cast<size_t>(bytes)) / kHugePage * kHugePage;
  if (last > first) static_cast<void>(madvise(reinterpret_cast<void*>(first), last - first, kCollapse));
}

std::shared_ptr<SharedSegment> SharedSegment::create(const std::string& name, int64_t bytes, bool reserves) {
  remove_stale_segments();
  const int file = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (file < 0) fail(ErrorCode::kResource, "cannot create the shared memory ", name, ": ", std::strerror(errno));
  std::shared_ptr<SharedSegment> segment;
  try {
    if (ftruncate(file, bytes) != 0)
      fail(ErrorCode::kResource, "cannot give the shared memory ", name, " its size: ", std::strerror(errno));
    if (reserves) reserve_pages(file, 0, bytes);
    segment.reset(new SharedSegment(name, file, bytes));
  } catch (const Error&) {
    close(file);
    shm_unlink(name.c_str());
    throw;
  }
  segment->named_ = true;
  return segment;
}

void SharedSegment::reserve(int64_t begin, int64_t bytes) { reserve_pages(file_, begin, bytes); }

std::shared_ptr<SharedSegment> SharedSegment::open(const std::string& name) {
  const int file = shm_open(name.c_str(), O_RDWR, 0600);
  struct stat status{};
  if (file < 0 || fstat(file, &status) != 0) {
    const std::string why = std::strerror(errno);
    if (file >= 0) close(file);
    fail(ErrorCode::kResource, "cannot open the shared memory ", name, ": ", why);
  }
  try {
    return std::shared_ptr<SharedSegment>(new SharedSegment(name, file, status.st_size));
  } catch (const Error&) {
    close(file);
    throw;
  }
}

void SharedSegment::remove_name() {
  if (named_) shm_unlink(name_.c_str());
  named_ = false;
}

int64_t shared_board_bytes(int ranks) { return SharedCommunicator::board_bytes(ranks); }

void create_shared_board(SharedSegment& segment, int ranks) {
  GALLEY_ASSERT(segment.bytes() >= shared_board_bytes(ranks));
  Board::create(segment.data(), ranks);
}

std::unique_ptr<Communicator> shared_communicator(std::shared_ptr<SharedSegment> segment, const std::string& name, int rank,
                                                  const DirectOptions& options) {
  return std::make_unique<SharedCommunicator>(std::move(segment), 0, std::make_shared<SharedRegions>(), name, rank, options);
}

int64_t shared_pair_bytes(int ranks) { return 2 * shared_board_bytes(ranks); }

void create_shared_pair(SharedSegment& segment, int ranks) {
  GALLEY_ASSERT(segment.bytes() >= shared_pair_bytes(ranks));
  Board::create(segment.data(), ranks);
  Board::create(segment.data() + shared_board_bytes(ranks), ranks);
}

SharedPair shared_pair(std::shared_ptr<SharedSegment> segment, const std::string& name, int rank, const DirectOptions& options) {
  const auto regions = std::make_shared<SharedRegions>();
  const int64_t second = shared_board_bytes(Board::open(segment->data())->ranks());
  DirectOptions of_second = options;
  of_second.spins = false;
  return {std::make_unique<SharedCommunicator>(segment, 0, regions, name, rank, options),
          std::make_unique<SharedCommunicator>(segment, second, regions, name, rank, of_second)};
}

}  // namespace galley
