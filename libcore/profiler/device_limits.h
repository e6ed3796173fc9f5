#pragma once
// Measured limits of a device with memory of its own, by its events: copies and matrix products.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/base/table.h"

namespace galley {

struct ProductRate {
  std::string dtype;   // f32, tf32 (f32 with operands that may be rounded), bf16, f16
  std::string kernel;  // "cublaslt"
  int64_t size = 0;    // rows and columns of the matrices, of random numbers
  double per_s = 0;    // operations, two per multiply-add
};

struct DeviceLimits {
  std::string device;          // as in recipes
  double copy_per_s = 0;       // bytes read and written by a copy in the device's memory
  double to_device_per_s = 0;  // bytes from pinned memory of the host
  double from_device_per_s = 0;
  std::vector<ProductRate> products;
};

/// Measures each rate several times and keeps the highest. Throws Error (kResource) if the device does not exist.
DeviceLimits measure_device(std::string_view device);

/// {"device","copy_per_s","to_device_per_s","from_device_per_s","products":[{"dtype","kernel","size","per_s"}]}
nlohmann::ordered_json device_json(const DeviceLimits& limits);
/// The limits of such JSON; none: it is something else.
std::optional<DeviceLimits> device_limits_of(const nlohmann::json& json);
Table device_table(const DeviceLimits& limits);

}  // namespace galley
