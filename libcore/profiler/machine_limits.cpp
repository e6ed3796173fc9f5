#include "libcore/profiler/machine_limits.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "libcore/base/error.h"
#include "libcore/base/parallel.h"
#include "libcore/base/table.h"
#include "libcore/profiler/device_limits.h"

namespace galley {
namespace {

/// The stored limits; rates are 0 if the store is missing or unreadable.
MachineLimits stored_limits(int threads) {
  MachineLimits limits;
  std::ifstream file(machine_store(threads));
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return limits;
  try {
    if (json.at("threads") != threads) return limits;
    std::map<std::string, double> best;
    for (const auto& peak : json.at("peaks")) {
      const std::string dtype = peak.at("dtype");
      if (peak.at("per_s").get<double>() <= best[dtype]) continue;
      best[dtype] = peak.at("per_s");
      limits.set_peak(dtype == "f32"    ? DType::kF32
                      : dtype == "bf16" ? DType::kBF16
                      : dtype == "int8" ? DType::kI8
                                        : DType::kF64,
                      best[dtype], peak.at("isa").get<std::string>());
    }
    limits.bytes_per_s = json.at("triad_per_s");
  } catch (const nlohmann::json::exception&) {
    return MachineLimits();  // written by another version: measure again
  }
  return limits;
}

/// A file of the cache that names this host.
std::string store_of(const std::string& what) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string folder = cache != nullptr && *cache != '\0' ? cache : cat(home != nullptr ? home : "/tmp", "/.cache");
  char host[256] = "host";
  gethostname(host, sizeof host - 1);
  return cat(folder, "/galley/machine-", host, "-", what, ".json");
}

/// Of a device with memory of its own. bf16 stands for both types of 16 bits.
MachineLimits device_limits(std::string_view device) {
  std::ifstream file(machine_store(device));
  const std::optional<DeviceLimits> stored = device_limits_of(nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false));
  const bool usable = stored && stored->copy_per_s > 0 && !stored->products.empty();
  const DeviceLimits measured = usable ? *stored : measure_device(device);
  MachineLimits limits{.bytes_per_s = measured.copy_per_s};
  for (const ProductRate& product : measured.products) {
    const DType dtype = product.dtype == "f32" ? DType::kF32 : DType::kBF16;
    if (product.dtype == "f32" || (product.dtype != "tf32" && product.per_s > limits.bf16_per_s))
      limits.set_peak(dtype, product.per_s, product.kernel);
  }
  return limits;
}

}  // namespace

std::string machine_store(int threads) { return store_of(cat(threads)); }
std::string machine_store(std::string_view device) {
  std::string name(device);
  std::replace(name.begin(), name.end(), ':', '-');
  return store_of(name);
}

MachineLimits machine_limits(int threads, std::string_view device) {
  if (device.starts_with("cuda")) {
    static std::map<std::string, MachineLimits, std::less<>> of_devices;
    const auto place = of_devices.find(device);
    return place != of_devices.end() ? place->second : of_devices.emplace(device, device_limits(device)).first->second;
  }
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

std::string limits_text(const MachineLimits& limits, const Arithmetic& work) {
  std::string text = cat(human_number(limits.flops_per_s * 1e-9), " GFLOP/s (", limits.instruction_set, ")");
  if (work.bf16 > 0 && limits.bf16_per_s > 0) text += cat(", ", human_number(limits.bf16_per_s * 1e-9), " of bf16");
  if (work.int8 > 0 && limits.int8_per_s > 0) text += cat(", ", human_number(limits.int8_per_s * 1e-9), " of 8-bit integers");
  return cat(text, " and ", human_number(limits.bytes_per_s * 1e-9), " GB/s");
}

}  // namespace galley
