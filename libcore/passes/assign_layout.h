#pragma once
// Memory formats: which values are channels_last, which format each weight lies in, and where a reorder is unavoidable.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/graph/graph.h"

namespace galley {

/// What the recipe's memory_format says; kAuto is channels_last where a convolution, pooling or batch norm is near.
enum class LayoutMode { kAuto, kContiguous, kChannelsLast };

struct LayoutOptions {
  LayoutMode mode = LayoutMode::kAuto;
  /// The format that the kernel of a node, with its types as they are now, wants weight input i in: the present one where it takes the
  /// weight as it comes. Empty function: contiguous.
  std::function<MemoryFormat(const Graph& graph, const Node& node, size_t input)> preferred_weight;
  /// The format that the kernel makes output 0 of a node in, a weight gradient whose type says what is wished for. Empty: contiguous.
  std::function<MemoryFormat(const Graph& graph, const Node& node)> preferred_output;
  /// Formats of named parameters, buffers and state that are given (another program's choice); others are chosen here.
  std::map<std::string, MemoryFormat> given;
};

struct LayoutReport {
  struct Reorder {
    std::string path;    // of the reader
    std::string reason;  // "reshape wants contiguous"
    int64_t bytes = 0;   // of the value
    bool free = false;   // both formats are the same bytes: a view
    bool weight = false; // of a parameter or its gradient
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
