#include "libcore/base/cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

namespace galley {
namespace {

/// cgroup v2: cpu.max contains "QUOTA PERIOD" in microseconds, or "max PERIOD" for no limit.
std::optional<double> quota_of_version_2(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  double quota = 0, period = 0;
  if (!(file >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;  // "max" is not a number
  return quota / period;
}

/// cgroup v1: the quota and the period, in microseconds, are separate files; a quota of -1 means no limit.
std::optional<double> quota_of_version_1(const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us"), period_file(folder + "/cpu.cfs_period_us");
  double quota = 0, period = 0;
  if (!(quota_file >> quota) || !(period_file >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

using ReadQuota = std::optional<double> (*)(const std::string& folder);

/// Takes the smallest quota of a group and its ancestors up to the mount point. In a container the path is often the host's and does not
/// exist below the mount point; the mount point is then the container's own group.
void take_group_limits(const std::string& mount, std::string path, ReadQuota read, std::optional<double>& smallest) {
  for (;;) {
    if (const std::optional<double> quota = read(mount + path)) smallest = std::min(smallest.value_or(*quota), *quota);
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return;
    path.resize(slash);
  }
}

bool has_word(const std::string& list, const std::string& word) {
  std::istringstream words(list);
  for (std::string item; std::getline(words, item, ',');) {
    if (item == word) return true;
  }
  return false;
}

}  // namespace

std::optional<double> cpu_quota(const CgroupFiles& files) {
  std::optional<double> smallest;
  std::ifstream membership(files.membership);
  bool any = false;
  for (std::string line; std::getline(membership, line);) {
    // "0::/path" for cgroup v2, "4:cpu,cpuacct:/path" for v1.
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty()) {
      take_group_limits(files.mount, path, quota_of_version_2, smallest);
      any = true;
    } else if (has_word(controllers, "cpu")) {
      // The hierarchy is mounted under the controller list, to which "cpu" links, or only as "cpu".
      for (const std::string& name : {controllers, std::string("cpu")}) {
        take_group_limits(files.mount + "/" + name, path, quota_of_version_1, smallest);
      }
      any = true;
    }
  }
  if (!any) take_group_limits(files.mount, "", quota_of_version_2, smallest);
  return smallest;
}

int available_cores() {
  cpu_set_t set;
  int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  if (const std::optional<double> quota = cpu_quota()) cores = std::min(cores, static_cast<int>(std::lround(std::min(*quota, 1e6))));
  return std::max(1, cores);
}

}  // namespace galley
