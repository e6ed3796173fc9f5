#pragma once
// How many cores this process may use.

#include <optional>
#include <string>

namespace galley {

/// Where cpu_quota reads; tests name files of their own.
struct CgroupFiles {
  std::string mount = "/sys/fs/cgroup";
  std::string membership = "/proc/self/cgroup";  ///< The process's groups, one hierarchy a line (cgroups(7)).
};

/// The CPU time a second that control groups leave to this process, in cores (1.5), or no value where nothing limits it. The least limit of
/// the process's group and the groups above it counts: cpu.max of version 2, cpu.cfs_quota_us over cpu.cfs_period_us of version 1.
std::optional<double> cpu_quota(const CgroupFiles& files = {});

/// Cores that this process may run on: its affinity, and no more than the quota, rounded (at least 1).
int available_cores();

}  // namespace galley
