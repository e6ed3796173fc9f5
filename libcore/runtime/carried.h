#pragma once
// Carried: the arrays that one request keeps between runs: key-value caches, recurrent state, positions.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/runtime/parameter_store.h"

namespace galley {

/// The values of ValueRole::kCarried, by name, in device memory outside of any arena. All executions of a request (prefill, decode, other
/// batch sizes) share one object, so that each continues where the previous run stopped. Every request and every replica has its own
/// object. Arrays are contiguous in every program. Not thread-safe.
class Carried {
 public:
  explicit Carried(Device& device = host_device()) : arrays_(device) {}
  Device& device() const { return arrays_.device(); }

  /// Allocates an array of zeros for each carried value of the program that is missing. Throws Error (kRecipe), and allocates nothing, if
  /// an array of that name has another dtype or shape.
  void declare(const Program& program);
  /// Sets all values to zero, for a new request. Enqueued on the device's stream.
  void reset();

  /// Copies row `from` of every array to row `to`; rows are its first dimension, which all arrays share. Enqueued on the device's stream.
  void copy_row(int64_t from, int64_t to);

  bool has(std::string_view name) const { return arrays_.has(name); }
  /// Names in alphabetical order.
  std::vector<std::string> names() const { return arrays_.names(); }
  /// Overwrites an array with values of its dtype and shape. Later runs read them.
  void set(std::string_view name, const Tensor& values) { arrays_.set(name, values); }
  /// A copy in host memory, after all runs so far.
  Tensor get(std::string_view name) const { return arrays_.get(name); }
  /// The array itself, on the device.
  Tensor& tensor(std::string_view name) { return arrays_.tensor(name); }
  int64_t bytes() const { return arrays_.bytes(); }

 private:
  ParameterStore arrays_;
};

}  // namespace galley
