#pragma once
// Steps of optimizers that follow one another (passes/order_updates.h brings them together), in one launch.

#include <memory>
#include <vector>

#include "libcore/backends/cuda/device.h"
#include "libcore/backends/cuda/kernels/calls.h"
#include "libcore/backends/runner.h"

namespace galley {

/// A step of an optimizer that can be computed with others.
class JoinableUpdate : public PreparedKernel {
 public:
  /// What the kernel of one parameter is called with.
  virtual device::UpdateCall bound(const KernelArgs& args) const = 0;
  /// The kernel of many parameters.
  virtual const char* joined_kernel() const = 0;
};

/// The calls of a program, with one call in the place of each sequence of joinable updates by the same kernel.
class JoinedCalls {
 public:
  /// Tables of the joined calls are copied to the memory of the device, if there are any. Throws Error (kResource) without memory.
  JoinedCalls(CudaDevice& device, std::span<const BoundCall> calls);
  ~JoinedCalls();
  JoinedCalls(const JoinedCalls&) = delete;
  JoinedCalls& operator=(const JoinedCalls&) = delete;
  std::span<const BoundCall> calls() const { return calls_; }

 private:
  class Joined;
  CudaDevice& device_;
  std::vector<BoundCall> calls_;
  std::vector<std::unique_ptr<Joined>> joined_;
};

}  // namespace galley
