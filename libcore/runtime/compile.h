#pragma once
// Compilation: graph -> Program. Engine (engine.h) compiles each variant of a graph once.

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "libcore/backends/backend.h"
#include "libcore/runtime/program.h"

namespace galley {

/// Options of compile.
struct CompileOptions {
  std::shared_ptr<const Backend> backend;  // null: the CPU with default options
  /// Formats of existing parameters (ParameterStore::formats()). The program chooses the formats of all others.
  std::map<std::string, MemoryFormat> parameter_formats;
  int64_t guard_bytes = 0;  // bytes after every value, filled with a pattern to detect writes past its end (tests)
};

/// Whether the vendor's implementation of this name (KernelReport::implementation) is a slow one: plain loops, or products of unrolled
/// images.
bool is_slow(std::string_view implementation);

/// Runs the last passes (compile_passes in passes/pipelines.h), chooses and prepares a kernel for each node, and plans memory. The graph
/// must be complete: forward, backward, updates. Throws Error (kRecipe), naming operator, module and device, if nodes have no kernel.
std::shared_ptr<const Program> compile(Graph graph, const CompileOptions& options = {});

}  // namespace galley
