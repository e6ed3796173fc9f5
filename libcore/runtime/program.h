#pragma once
// Program: a graph made ready to run. Kernels chosen and prepared once, every value's memory known. Immutable: several executions
// may run one Program on memory of their own.

#include <memory>
#include <string>
#include <vector>

#include "libcore/backends/backend.h"
#include "libcore/device/device.h"
#include "libcore/graph/graph.h"
#include "libcore/passes/assign_layout.h"
#include "libcore/passes/plan_memory.h"

namespace galley {

/// One node of the program with its kernel. Views have none: nothing runs.
struct Step {
  int node = 0;  // index into Program::graph().nodes()
  std::shared_ptr<const PreparedKernel> kernel;
  std::string_view backend;  // the kernel's name in reports: "onednn", "cpu", "ref"
  bool reference = false;    // the reference kernel runs it
  bool updates = false;      // writes parameters or state, or is of Phase::kUpdate
};

struct KernelReport {
  std::string path, op, backend, implementation;
  std::vector<std::string> declined;  // "onednn: reason"
};

struct ProgramReport {
  std::vector<KernelReport> kernels;  // one a step
  LayoutReport layout;
  PassReport rewrites;                // the back end's, before and after layout
  std::vector<std::string> warnings;  // f32 work on reference kernels, slow vendor implementations, definitions in place of kernels
};

class Program {
 public:
  const Graph& graph() const { return graph_; }
  const std::vector<Step>& steps() const { return steps_; }
  /// The first steps are `prepare`: they depend on parameters, buffers and constants alone, which no step changes.
  size_t prepare_steps() const { return prepare_steps_; }
  const MemoryPlan& memory() const { return memory_; }
  /// What it was compiled for.
  const Backend& backend() const { return *backend_; }
  /// Where it runs.
  Device& device() const { return backend_->device(); }
  /// Threads that it was compiled for, and that every run of it uses.
  int threads() const { return threads_; }
  const ProgramReport& report() const { return report_; }

  /// Parameters, buffers and state, by bytes in the program's formats.
  int64_t persistent_bytes() const;
  /// Inputs that are fed each run.
  int64_t feed_bytes() const;
  /// What a request carries from run to run.
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
