#pragma once
// Runner: how a back end enqueues the kernels of a program that is bound to memory. runtime/ binds; a back end may do better than one
// kernel after the other.

#include <span>

#include "libcore/backends/kernel.h"

namespace galley {

/// A kernel and the memory that it works on.
struct BoundCall {
  const PreparedKernel* kernel = nullptr;
  KernelArgs args;
};

/// The calls of one run, in order. Addresses are those of every run; on the host's device, where fed arrays are not copied, `args` have
/// those of the next run.
struct BoundProgram {
  std::span<const BoundCall> calls;
};

/// Enqueues a bound program again and again. It is made when a program is bound, and again when its memory moves.
class Runner {
 public:
  virtual ~Runner() = default;
  /// Enqueues all calls. Allocates nothing from the third run on.
  virtual void run(Stream& stream) = 0;
};

}  // namespace galley
