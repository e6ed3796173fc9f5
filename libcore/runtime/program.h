#pragma once
// Program: a compiled graph, with prepared kernels and a memory offset for every value. It is immutable; several executions may run it at
// the same time, each with its own memory.

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "libcore/backends/backend.h"
#include "libcore/device/device.h"
#include "libcore/graph/graph.h"
#include "libcore/passes/assign_layout.h"
#include "libcore/passes/plan_memory.h"

namespace galley {

/// A node of the program with its kernel. Views have no step, because they need no work.
struct Step {
  int node = 0;  // index into Program::graph().nodes()
  std::shared_ptr<const PreparedKernel> kernel;
  std::string_view backend;  // the kernel's name in reports: "onednn", "winograd_4x4", "ref"
  bool reference = false;    // whether it is the reference kernel
  bool updates = false;      // writes parameters or state, or belongs to Phase::kUpdate
};

/// The choice of kernel for one step.
struct KernelReport {
  std::string path, op, backend, implementation;
  std::vector<std::string> declined;  // reasons of the kernels that declined: "onednn: reason"
};

/// What compilation decided, for tools and logs.
struct ProgramReport {
  std::vector<KernelReport> kernels;  // one per step
  LayoutReport layout;
  PassReport rewrites;                // by the back end, before and after layout
  std::vector<std::string> warnings;  // f32 work on reference kernels, slow vendor implementations, expanded operators
};

/// A compiled graph. compile() creates it.
class Program {
 public:
  const Graph& graph() const { return graph_; }
  const std::vector<Step>& steps() const { return steps_; }
  /// Number of leading steps that form `prepare`: they depend only on constants, and on parameters and buffers that no step changes.
  size_t prepare_steps() const { return prepare_steps_; }
  const MemoryPlan& memory() const { return memory_; }
  /// The back end that compiled it.
  const Backend& backend() const { return *backend_; }
  /// The device that runs it.
  Device& device() const { return backend_->device(); }
  /// The number of threads that it was compiled for. Every run uses this number.
  int threads() const { return threads_; }
  const ProgramReport& report() const { return report_; }

  /// Whether this parameter or buffer stays in the memory of the host, although the device has its own: only `prepare` reads it, often only
  /// once. A program whose steps change arrays keeps all of its own on the device.
  bool stays_on_host(ValueId input) const { return on_host_.contains(input); }

  /// Size of parameters, buffers and state in the program's formats, without those that stay on the host.
  int64_t persistent_bytes() const;
  /// Size of the fed inputs.
  int64_t feed_bytes() const;
  /// Size of the arrays that a request keeps between runs.
  int64_t carried_bytes() const;
  int64_t scratch_bytes() const { return memory_.arena_bytes + memory_.common_bytes; }
  int64_t prepared_bytes() const { return memory_.prepared_bytes; }

 private:
  friend std::shared_ptr<const Program> compile(Graph graph, const struct CompileOptions& options);
  std::shared_ptr<const Backend> backend_;
  Graph graph_;
  std::vector<Step> steps_;
  size_t prepare_steps_ = 0;
  int threads_ = 1;
  MemoryPlan memory_;
  std::set<ValueId> on_host_;
  ProgramReport report_;
};

}  // namespace galley
