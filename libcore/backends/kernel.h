#pragma once
// Kernels: code that computes an operator. A kernel supports a node or declines it with a reason, prepares its state once at
// compile time, and runs without allocating. backends/table.h lists the kernels of an operator, fastest first, the reference last.

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/graph/graph.h"

namespace galley {

class Device;  // device/device.h
class Stream;  // device/stream.h

/// Does a kernel support a node? If not, the reason, for verbose output.
struct Support {
  bool ok = true;
  std::string reason;
  static Support yes() { return {}; }
  static Support no(std::string reason) { return {false, std::move(reason)}; }
  explicit operator bool() const { return ok; }
};

/// A node for which a kernel is looked for, with types and formats.
struct KernelQuery {
  const Node& node;
  OpContext context;
  int threads = 1;           // logical thread count: choice and blocking of kernels depend on it, not on the cores of the machine
  Device* device = nullptr;  // on which the kernel would run; nullptr: the host

  template <class T>
  const T& attrs() const {
    return node.attrs<T>();
  }
  bool has(int i) const { return context.has(i); }
  const TensorType& in(int i) const { return context.in(i); }
  const TensorType& out(int i) const { return context.out(i); }
};

/// Memory of one execution: addresses of inputs (nullptr: an optional input that is not given) and outputs, and `scratch_bytes`
/// bytes of scratch memory, aligned to 64 bytes.
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

/// A kernel prepared for one node. Immutable: several executions may run it at once on different memory.
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
  /// The format of weight input i (a parameter of rank 2 to 5) that is fastest for this kernel, for assign_layout.
  /// nullptr: the present format.
  MemoryFormat (*preferred_format)(const KernelQuery& query, int input) = nullptr;
  /// The format in which this kernel writes output i (a weight gradient) fastest; nullptr: the format of the type.
  MemoryFormat (*preferred_output_format)(const KernelQuery& query, int output) = nullptr;
  /// A slow kernel for any dtype and format that computes the operator as it is defined. Tests compare with it.
  bool reference = false;
};

}  // namespace galley
