#pragma once
// Compilation: graph -> Program, and the cache that makes sure it happens once for each form of a graph.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "libcore/backends/backend.h"
#include "libcore/runtime/program.h"

namespace galley {

struct CompileOptions {
  std::shared_ptr<const Backend> backend;  // nullptr: the CPU with its usual options
  /// Formats of parameters that exist already: ParameterStore::formats(). The first program that is compiled chooses.
  std::map<std::string, MemoryFormat> parameter_formats;
  int64_t guard_bytes = 0;                 // free bytes behind every value, filled with a pattern (tests)
};

/// Runs the last passes (compile_passes of passes/pipelines.h), chooses a kernel for each node, prepares it and plans memory. The graph holds
/// whatever is to run: forward, backward, updates. Throws Error where no kernel supports a node.
std::shared_ptr<const Program> compile(Graph graph, const CompileOptions& options = {});

/// Programs by key (shapes, dtypes, mode). Counts compilations and remembers why each happened.
class ProgramCache {
 public:
  /// The program of that key, made by `make` where there is none; `reason` says what asked for it ("last batch of 7").
  std::shared_ptr<const Program> get(const std::string& key, const std::string& reason, const std::function<std::shared_ptr<const Program>()>& make);
  int compilations() const { return static_cast<int>(reasons_.size()); }
  /// "key: reason", in order.
  const std::vector<std::string>& reasons() const { return reasons_; }

 private:
  std::map<std::string, std::shared_ptr<const Program>> programs_;
  std::vector<std::string> reasons_;
};

}  // namespace galley
