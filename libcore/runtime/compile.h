#pragma once
// Compilation: graph -> Program. Engine (engine.h) compiles each form of a graph once.

#include <map>
#include <memory>
#include <string>

#include "libcore/backends/backend.h"
#include "libcore/runtime/program.h"

namespace galley {

struct CompileOptions {
  std::shared_ptr<const Backend> backend;  // nullptr: the CPU with its usual options
  /// Formats of parameters that exist already: ParameterStore::formats(). The first program that is compiled chooses.
  std::map<std::string, MemoryFormat> parameter_formats;
  int64_t guard_bytes = 0;  // free bytes behind every value, filled with a pattern (tests)
};

/// Runs the last passes (compile_passes of passes/pipelines.h), chooses a kernel for each node, prepares it and plans memory. The graph
/// holds whatever is to run: forward, backward, updates. Throws Error where no kernel supports a node.
std::shared_ptr<const Program> compile(Graph graph, const CompileOptions& options = {});

}  // namespace galley
