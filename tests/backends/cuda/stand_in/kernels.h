#pragma once
// Galley's CUDA kernels as host code, by name.

#include <functional>
#include <string_view>

namespace galley::stand_in {

struct HostKernel {
  const char* name;
  /// Copies the arguments, as a launch does, and returns what each thread runs.
  std::function<void()> (*bind)(void** arguments);
};

/// The kernel of that name; nullptr: there is none.
const HostKernel* find_kernel(std::string_view name);

}  // namespace galley::stand_in
