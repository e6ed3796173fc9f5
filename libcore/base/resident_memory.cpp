#include "libcore/base/resident_memory.h"

#include <fstream>
#include <string>

namespace galley {
namespace {

int64_t status_bytes(const char* key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return std::stoll(line.substr(line.find(':') + 1)) * 1024;
  }
  return 0;
}

}  // namespace

int64_t resident_bytes() { return status_bytes("VmRSS:"); }
int64_t peak_resident_bytes() { return status_bytes("VmHWM:"); }
void reset_peak_resident_bytes() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace galley
