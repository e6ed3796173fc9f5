#pragma once
// Runner: enqueues the kernels of a program that is bound to memory. runtime/ binds programs; a back end may enqueue them in a better way
// than one after the other.

#include <span>

#include "libcore/backends/kernel.h"

namespace galley {

/// A kernel and its memory.
struct BoundCall {
  const PreparedKernel* kernel = nullptr;
  KernelArgs args;
  const Node* node = nullptr;  ///< What it computes.

  /// Enqueues the kernel. An Error names the node: " at layer1.0.conv2 (conv2d)".
  void run(Stream& stream) const;
};

/// The calls of one run, in order. Addresses are the same in every run, except on the host's device, where fed arrays are not copied: there
/// `args` hold the addresses of the next run.
struct BoundProgram {
  std::span<const BoundCall> calls;
};

/// Enqueues a bound program any number of times. Created when a program is bound, and again when its memory moves.
class Runner {
 public:
  virtual ~Runner() = default;
  /// Enqueues all calls. The second and later runs allocate nothing.
  virtual void run(Stream& stream) = 0;
};

}  // namespace galley
