// The CPU quota as read from the kernel's control group files (Documentation/admin-guide/cgroup-v2.rst, scheduler/sched-bwc.rst).
#include "libcore/base/cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include "libcore/base/file.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

class Quota : public testing::Test {
 protected:
  void put(const std::string& file, const std::string& text) {
    const std::string path = folder / file;
    make_folders(path.substr(0, path.rfind('/')));
    write_file(path, text);
  }
  std::optional<double> quota() const { return cpu_quota({.mount = folder / "mount", .membership = folder / "membership"}); }

  TemporaryFolder folder;
};

TEST_F(Quota, IsNoneWhereNothingLimits) {
  EXPECT_EQ(quota(), std::nullopt);  // no control groups at all
  put("membership", "0::/\n");
  EXPECT_EQ(quota(), std::nullopt);
  put("mount/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), std::nullopt);
}

TEST_F(Quota, OfVersion2IsTheLeastOfTheGroupsAbove) {
  put("membership", "0::/slice/job\n");
  put("mount/slice/job/cpu.max", "max 100000\n");
  put("mount/slice/cpu.max", "150000 100000\n");
  EXPECT_EQ(quota(), 1.5);
  put("mount/slice/job/cpu.max", "400000 100000\n");
  EXPECT_EQ(quota(), 1.5);
  put("mount/slice/job/cpu.max", "50000 200000\n");
  EXPECT_EQ(quota(), 0.25);
  // A container that sees its own group as the mount point, and the host's path or "/" as its group.
  put("membership", "0::/docker/0123456789ab\n");
  put("mount/cpu.max", "200000 100000\n");
  EXPECT_EQ(quota(), 2.0);
  put("membership", "0::/\n");
  EXPECT_EQ(quota(), 2.0);
  put("membership", "");
  EXPECT_EQ(quota(), 2.0);
}

TEST_F(Quota, OfVersion1ComesFromTheControllersOwnHierarchy) {
  put("membership", "12:memory:/docker/a\n11:cpuset:/docker/a\n4:cpu,cpuacct:/docker/a\n0::/system.slice\n");
  put("mount/cpu,cpuacct/docker/a/cpu.cfs_quota_us", "250000\n");
  put("mount/cpu,cpuacct/docker/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 2.5);
  put("mount/cpu,cpuacct/docker/a/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(quota(), std::nullopt);
  // In a container the group is at the mount point, often under the short name.
  put("mount/cpu/cpu.cfs_quota_us", "100000\n");
  put("mount/cpu/cpu.cfs_period_us", "50000\n");
  EXPECT_EQ(quota(), 2.0);
  // cpuset and cpuacct are other controllers.
  put("membership", "11:cpuset,cpuacct:/docker/a\n");
  EXPECT_EQ(quota(), std::nullopt);
}

TEST_F(Quota, IgnoresFilesThatAreNotWhatTheyShouldBe) {
  put("membership", "0::/a\nnonsense\n:\n");
  for (const char* text : {"", "x y\n", "100000\n", "100000 0\n", "-5 100000\n", "0 100000\n"}) {
    put("mount/a/cpu.max", text);
    EXPECT_EQ(quota(), std::nullopt) << text;
  }
  put("membership", "3:cpu:/a\n");
  put("mount/cpu/a/cpu.cfs_quota_us", "100000\n");
  EXPECT_EQ(quota(), std::nullopt) << "without a period";
}

TEST(Cores, AreThoseOfTheAffinityAndTheQuota) {
  cpu_set_t saved;
  ASSERT_EQ(sched_getaffinity(0, sizeof saved, &saved), 0);
  EXPECT_GE(available_cores(), 1);
  EXPECT_LE(available_cores(), CPU_COUNT(&saved));
  int first = 0;
  while (!CPU_ISSET(first, &saved)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(available_cores(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof saved, &saved), 0);
}

}  // namespace
}  // namespace galley
