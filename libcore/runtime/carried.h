#pragma once
// Carried: the arrays that one request carries from run to run: key-value caches, recurrent state, positions.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/runtime/parameter_store.h"

namespace galley {

/// The values of ValueRole::kCarried, by name, in memory of the device and outside of any arena. All executions that serve a request
/// (prefill, decode, other batch sizes) take the same object and so go on where the last run stopped; another request, and each replica,
/// has an object of its own. Arrays are contiguous in every program. Not thread-safe.
class Carried {
 public:
  explicit Carried(Device& device = host_device()) : arrays_(device) {}
  Device& device() const { return arrays_.device(); }

  /// Makes an array of zeros for each value that the program carries and that is not there yet. Throws Error (kRecipe) where an array of
  /// that name has another dtype or shape, and makes none then.
  void declare(const Program& program);
  /// All values are zeros again: the begin of another request. Enqueued on the device's stream.
  void reset();

  bool has(std::string_view name) const { return arrays_.has(name); }
  /// In alphabetical order.
  std::vector<std::string> names() const { return arrays_.names(); }
  /// Overwrites the values; dtype and shape must be the array's. Later runs see them.
  void set(std::string_view name, const Tensor& values) { arrays_.set(name, values); }
  /// A copy in host memory, after the runs so far.
  Tensor get(std::string_view name) const { return arrays_.get(name); }
  /// The array itself, on the device.
  Tensor& tensor(std::string_view name) { return arrays_.tensor(name); }
  int64_t bytes() const { return arrays_.bytes(); }

 private:
  ParameterStore arrays_;
};

}  // namespace galley
