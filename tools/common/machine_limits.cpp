#include "tools/common/machine_limits.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/parallel.h"

namespace galley::tools {
namespace {

/// The stored limits; rates are 0 where there is none that can be read.
MachineLimits stored_limits(int threads) {
  MachineLimits limits;
  std::ifstream file(machine_store(threads));
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return limits;
  try {
    if (json.at("threads") != threads) return limits;
    double widest = 0;
    for (const auto& peak : json.at("peaks")) {
      if (peak.at("dtype") != "f32" || peak.at("per_s").get<double>() <= widest) continue;
      widest = peak.at("per_s");
      limits.instruction_set = peak.at("isa");
    }
    limits.bytes_per_s = json.at("triad_per_s");
    limits.flops_per_s = widest;
  } catch (const nlohmann::json::exception&) {
    return MachineLimits();  // written by another version: measured anew
  }
  return limits;
}

}  // namespace

std::string machine_store(int threads) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string folder = cache != nullptr && *cache != '\0' ? cache : cat(home != nullptr ? home : "/tmp", "/.cache");
  char host[256] = "host";
  gethostname(host, sizeof host - 1);
  return cat(folder, "/galley/machine-", host, "-", threads, ".json");
}

MachineLimits machine_limits(int threads) {
  static std::map<int, MachineLimits> known;
  const auto found = known.find(threads);
  if (found != known.end()) return found->second;
  MachineLimits limits = stored_limits(threads);
  if (!(limits.flops_per_s > 0 && limits.bytes_per_s > 0)) {
    const ThreadShare share(threads);
    limits = measure_machine(0.5);
  }
  return known[threads] = limits;
}

}  // namespace galley::tools
