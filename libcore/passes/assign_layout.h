#pragma once
// Memory formats: which values are channels_last, the format of each weight, and where a reorder is unavoidable.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/passes/target.h"

namespace galley {

struct LayoutOptions {
  LayoutMode mode = LayoutMode::kAuto;
  /// Says in which formats weights and their gradients are fastest. nullptr: they are contiguous.
  const Target* target = nullptr;
  /// Formats of named parameters, buffers and state that are given (another program's choice); others are chosen here.
  std::map<std::string, MemoryFormat> given;
};

struct LayoutReport {
  struct Reorder {
    std::string path;     // of the reader
    std::string reason;   // "reshape wants contiguous"
    int64_t bytes = 0;    // of the value
    bool free = false;    // both formats are the same bytes: a view
    bool weight = false;  // of a parameter or its gradient
  };
  std::vector<Reorder> reorders;
  int channels_last_values = 0;
  int blocked_parameters = 0;
};

/// Rebuilds the graph with formats. Values of rank 4 and 5 that convolutions, pooling or batch norms make or read are channels_last from
/// end to end; everything else is contiguous; a parameter that a convolution or linear layer reads takes the format its forward kernel
/// wants, and its state and gradient follow. Reorders are nodes.
LayoutReport assign_layout(Graph& graph, const LayoutOptions& options);

}  // namespace galley
