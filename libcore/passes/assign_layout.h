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
  /// Says which formats of weights and their gradients are fastest. nullptr: these are contiguous.
  const Target* target = nullptr;
  /// Given formats of parameters, buffers and state, by name (chosen by another program). The others are chosen here.
  std::map<std::string, MemoryFormat> given;
};

struct LayoutReport {
  struct Reorder {
    std::string path;     // of the reader
    std::string reason;   // "reshape needs contiguous values"
    int64_t bytes = 0;    // of the value
    bool free = false;    // it moves no bytes: a view
    bool weight = false;  // of a parameter or its gradient
  };
  std::vector<Reorder> reorders;
  int channels_last_values = 0;
  int blocked_parameters = 0;
};

/// Rebuilds the graph with formats. Values of rank 4 and 5 that are connected to convolutions, pooling or batch norms are channels_last;
/// all others are contiguous. A parameter that a convolution or linear layer reads has the format that its forward kernel prefers, and so
/// have its optimizer state and its gradient. Reorders become nodes. Value ids change.
LayoutReport assign_layout(Graph& graph, const LayoutOptions& options);

}  // namespace galley
