#pragma once
// Kernels: how an operator is computed. A kernel says whether it supports a node (or declines with a reason), prepares its state
// once at compile time, and runs without allocating. backends/table.h lists them per operator, fastest first, the reference last.

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/graph/graph.h"

namespace galley {

class Stream;  // device/stream.h

/// A kernel's answer: yes, or no with the reason that verbose output shows.
struct Support {
  bool ok = true;
  std::string reason;
  static Support yes() { return {}; }
  static Support no(std::string reason) { return {false, std::move(reason)}; }
  explicit operator bool() const { return ok; }
};

/// The node a kernel is asked about: types with their formats.
struct KernelQuery {
  const Node& node;
  OpContext context;
  int threads = 1;  // logical thread count: the choice of kernel and its blocking depend on it, not on the machine's cores

  template <class T>
  const T& attrs() const {
    return node.attrs<T>();
  }
  bool has(int i) const { return context.has(i); }
  const TensorType& in(int i) const { return context.in(i); }
  const TensorType& out(int i) const { return context.out(i); }
};

/// Memory of one execution: addresses of inputs (nullptr: optional, not given), outputs, and scratch of the size that
/// `scratch_bytes` named, 64-byte aligned.
struct KernelArgs {
  std::span<const void* const> inputs;
  std::span<void* const> outputs;
  void* scratch = nullptr;

  template <class T>
  const T* in(size_t i) const {
    return i < inputs.size() ? static_cast<const T*>(inputs[i]) : nullptr;
  }
  template <class T>
  T* out(size_t i) const {
    return static_cast<T*>(outputs[i]);
  }
};

/// A kernel made ready for one node. Immutable: several executions may run it at once on different memory.
class PreparedKernel {
 public:
  virtual ~PreparedKernel() = default;
  /// Enqueues the work on the stream: no allocation, no waiting, no host reads of device memory. On a host stream it has run on return.
  virtual void run(Stream& stream, const KernelArgs& args) const = 0;
  virtual int64_t scratch_bytes() const { return 0; }
  /// The vendor's implementation name for verbose output ("brgconv:avx2"), or "".
  virtual std::string implementation() const { return ""; }
};

struct Kernel {
  std::string_view op;
  std::string_view algorithm;  // what reports call it by: "onednn", "winograd_4x4", "ref"
  Support (*supports)(const KernelQuery& query);
  std::unique_ptr<PreparedKernel> (*prepare)(const KernelQuery& query);
  /// The format that this kernel wants input i in, where it is a weight (rank-2..5 parameter): layout assignment asks.
  /// nullptr: as it comes.
  MemoryFormat (*preferred_format)(const KernelQuery& query, int input) = nullptr;
  /// The format that this kernel makes output i in at its fastest (weight gradients); nullptr: as the type says.
  MemoryFormat (*preferred_output_format)(const KernelQuery& query, int output) = nullptr;
  /// Computes the operator by its definition, for any dtype and format, slowly: the last resort, and the oracle of tests.
  bool reference = false;
};

}  // namespace galley
