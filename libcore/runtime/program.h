#pragma once
// Program: a compiled graph, with prepared kernels and an offset in memory for every value. Immutable: several executions may run one
// Program, each on its own memory.

#include <memory>
#include <string>
#include <vector>

#include "libcore/backends/backend.h"
#include "libcore/device/device.h"
#include "libcore/graph/graph.h"
#include "libcore/passes/assign_layout.h"
#include "libcore/passes/plan_memory.h"

namespace galley {

/// A node of the program with its kernel. Views have no step: nothing runs.
struct Step {
  int node = 0;  // index into Program::graph().nodes()
  std::shared_ptr<const PreparedKernel> kernel;
  std::string_view backend;  // the kernel's name in reports: "onednn", "winograd_4x4", "ref"
  bool reference = false;    // the reference kernel runs it
  bool updates = false;      // writes parameters or state, or is of Phase::kUpdate
};

struct KernelReport {
  std::string path, op, backend, implementation;
  std::vector<std::string> declined;  // "onednn: reason"
};

struct ProgramReport {
  std::vector<KernelReport> kernels;  // one per step
  LayoutReport layout;
  PassReport rewrites;                // of the back end, before and after layout
  std::vector<std::string> warnings;  // f32 work on reference kernels, slow vendor implementations, operators that were expanded
};

class Program {
 public:
  const Graph& graph() const { return graph_; }
  const std::vector<Step>& steps() const { return steps_; }
  /// The number of first steps that are `prepare`: they depend only on constants, and on parameters and buffers that no step changes.
  size_t prepare_steps() const { return prepare_steps_; }
  const MemoryPlan& memory() const { return memory_; }
  /// The back end for which it was compiled.
  const Backend& backend() const { return *backend_; }
  /// The device on which it runs.
  Device& device() const { return backend_->device(); }
  /// The number of threads for which it was compiled; every run uses as many.
  int threads() const { return threads_; }
  const ProgramReport& report() const { return report_; }

  /// Bytes of parameters, buffers and state in the program's formats.
  int64_t persistent_bytes() const;
  /// Bytes of fed inputs.
  int64_t feed_bytes() const;
  /// Bytes of what a request keeps between runs.
  int64_t carried_bytes() const;
  int64_t scratch_bytes() const { return memory_.arena_bytes; }
  int64_t prepared_bytes() const { return memory_.prepared_bytes; }

 private:
  friend std::shared_ptr<const Program> compile(Graph graph, const struct CompileOptions& options);
  std::shared_ptr<const Backend> backend_;
  Graph graph_;
  std::vector<Step> steps_;
  size_t prepare_steps_ = 0;
  int threads_ = 1;
  MemoryPlan memory_;
  ProgramReport report_;
};

}  // namespace galley
