#include "libcore/device/disk_device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "libcore/base/error.h"
#include "libcore/base/file.h"

namespace galley {

class DiskDevice::Mapped : public Memory {
 public:
  explicit Mapped(std::string folder) : folder_(std::move(folder)) {}

  /// Pages are aligned more than any array. Throws Error (kResource) where the disk has no room, instead of a bus error when it is used.
  void* allocate(int64_t bytes, int64_t) override {
    const auto size = static_cast<size_t>(std::max<int64_t>(1, bytes));
    const int file = open_file();
    const int failed = posix_fallocate(file, 0, static_cast<off_t>(size));
    void* address = failed != 0 ? MAP_FAILED : mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    const int reason = failed != 0 ? failed : errno;
    ::close(file);
    if (address == MAP_FAILED) {
      throw Error(ErrorCode::kResource, cat("cannot map a file of ", size, " bytes in ", folder_, ": ", std::strerror(reason)))
          .key("sharding.offload")
          .suggest("free some space, or write RUN to another disk");
    }
    const std::lock_guard lock(mutex_);
    blocks_[address] = size;
    return address;
  }
  void free(void* address, int64_t, int64_t) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(address);
    if (block == blocks_.end()) return;
    munmap(address, block->second);
    blocks_.erase(block);
  }
  bool host_access() const override { return true; }

  void release() {
    const std::lock_guard lock(mutex_);
    for (const auto& [address, size] : blocks_) madvise(address, size, MADV_DONTNEED);
  }
  int64_t bytes() const {
    const std::lock_guard lock(mutex_);
    int64_t sum = 0;
    for (const auto& [address, size] : blocks_) sum += static_cast<int64_t>(size);
    return sum;
  }

 private:
  /// A file without a name; where the file system has none of these, one whose name is removed at once.
  int open_file() const {
    int file = ::open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT)) {
      std::string name = folder_ + "/galley-offload-XXXXXX";
      file = ::mkostemp(name.data(), O_CLOEXEC);
      if (file >= 0) ::unlink(name.c_str());
    }
    if (file < 0)
      throw Error(ErrorCode::kResource, cat("cannot make a file in ", folder_, ": ", std::strerror(errno))).key("sharding.offload");
    return file;
  }

  std::string folder_;
  mutable std::mutex mutex_;
  std::map<void*, size_t> blocks_;
};

DiskDevice::DiskDevice(const std::string& path) {
  std::string folder = path;
  while (!is_folder(folder)) folder = parent_folder(folder);
  memory_ = std::make_unique<Mapped>(std::move(folder));
}
DiskDevice::~DiskDevice() = default;

Memory& DiskDevice::memory() { return *memory_; }
void DiskDevice::release() { memory_->release(); }
int64_t DiskDevice::bytes() const { return memory_->bytes(); }

}  // namespace galley
