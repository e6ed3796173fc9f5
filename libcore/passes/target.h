#pragma once
// Target: what passes may ask a back end. backends/backend.h implements it.

#include "libcore/graph/graph.h"
#include "libcore/ops/attention.h"
#include "libcore/passes/report.h"

namespace galley {

/// The recipe's memory_format. kAuto: channels_last for values that are connected to convolutions, pooling or batch norms.
enum class LayoutMode { kAuto, kContiguous, kChannelsLast };

/// The points at which a back end rewrites a graph (passes/pipelines.cpp).
enum class Stage : uint8_t {
  kForward,       // a training graph before `differentiate`; new operators must have gradients. Never a graph whose values calibration
                  // names.
  kBeforeLayout,  // a complete graph (forward, backward, updates) without formats
  kAfterLayout,   // a complete graph with formats
};

class Target {
 public:
  virtual ~Target() = default;
  /// Is there a kernel other than the reference for the node? Before kAfterLayout for images in channels_last, unless memory_format is
  /// contiguous; at kAfterLayout for the formats that they have.
  virtual bool has_kernel(const Graph& graph, const Node& node, Stage stage) const = 0;
  /// Why the target cannot run the node: the reasons of all kernels, including the reference. "": it can run it. Before kAfterLayout: in
  /// every format that layout may choose for its images; at kAfterLayout: in the formats that they have. Default: the target runs every
  /// node.
  virtual std::string refusal(const Graph& graph, const Node& node, Stage stage) const {
    static_cast<void>(graph), static_cast<void>(node), static_cast<void>(stage);
    return "";
  }
  /// The format of weight input `input` that is fastest for the node's kernel, with all other types as they are; the present format if the
  /// kernel has no preference.
  virtual MemoryFormat weight_format(const Graph& graph, const Node& node, int input) const = 0;
  /// The format in which the node's kernel writes output `output` fastest: a weight gradient, whose type has the format that readers
  /// prefer.
  virtual MemoryFormat output_format(const Graph& graph, const Node& node, int output) const = 0;
  /// How attention is computed where the graph does not say: the recipe's key `attention`.
  virtual AttentionAlgorithm attention() const { return AttentionAlgorithm::kAuto; }
  /// Replaces operators by operators of the target with the same results up to rounding. Adds to the report.
  virtual void rewrite(Graph& graph, Stage stage, PassReport& report) const {
    static_cast<void>(graph), static_cast<void>(stage), static_cast<void>(report);
  }
};

}  // namespace galley
