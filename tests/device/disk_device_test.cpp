// Arrays in memory-mapped files: they keep their values while their pages are not in memory.
#include "libcore/device/disk_device.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/resident_memory.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

constexpr int64_t kBytes = int64_t{64} << 20;

TEST(DiskDevice, ReleasedPagesLeaveMemoryAndKeepTheirValues) {
  const TemporaryFolder folder;
  DiskDevice disk(folder / "run/not/there/yet");
  EXPECT_TRUE(disk.is_host());
  EXPECT_TRUE(list_folder(folder / ".").empty()) << "files have no name";
  auto* array = static_cast<unsigned char*>(disk.memory().allocate(kBytes, 64));
  EXPECT_EQ(disk.bytes(), kBytes);
  EXPECT_EQ(array[kBytes - 1], 0);
  for (int64_t i = 0; i < kBytes; ++i) array[i] = static_cast<unsigned char>(i * 7 + i / 4096);
  const int64_t full = resident_bytes();
  disk.release();
  EXPECT_LT(resident_bytes(), full - kBytes * 9 / 10);
  int64_t wrong = 0;
  for (int64_t i = 0; i < kBytes; ++i) wrong += array[i] != static_cast<unsigned char>(i * 7 + i / 4096);
  EXPECT_EQ(wrong, 0);
  disk.memory().free(array, kBytes, 64);
  EXPECT_EQ(disk.bytes(), 0);
}

TEST(DiskDevice, ADiskWithoutRoomIsAnError) {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    DiskDevice disk(folder / "run");
    try {
      disk.memory().allocate(kBytes, 64);
    } catch (const Error& error) {
      ::_exit(error.code() == ErrorCode::kResource && error.message().find("cannot map a file of 67108864 bytes") == 0 ? 42 : 1);
    }
    ::_exit(2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 42);
}

}  // namespace
}  // namespace galley
