#pragma once
// The number of cores that this process may use.

#include <optional>
#include <string>

namespace galley {

/// The files that cpu_quota reads; tests pass their own.
struct CgroupFiles {
  std::string mount = "/sys/fs/cgroup";
  std::string membership = "/proc/self/cgroup";  ///< Groups of the process, one hierarchy per line (cgroups(7)).
};

/// The CPU quota that control groups give this process, in cores (e.g. 1.5), or nullopt without a limit: the smallest limit of the
/// process's group and its ancestors. Reads cpu.max (cgroup v2) or cpu.cfs_quota_us / cpu.cfs_period_us (v1).
std::optional<double> cpu_quota(const CgroupFiles& files = {});

/// The number of cores in the process's affinity mask, limited by the rounded CPU quota; at least 1.
int available_cores();

}  // namespace galley
