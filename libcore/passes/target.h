#pragma once
// Target: what target-independent passes may ask a back end. backends/backend.h implements it.

#include "libcore/graph/graph.h"
#include "libcore/passes/report.h"

namespace galley {

/// What the recipe's memory_format says; kAuto is channels_last where a convolution, pooling or batch norm is near.
enum class LayoutMode { kAuto, kContiguous, kChannelsLast };

/// When a back end rewrites a graph (passes/pipelines.cpp).
enum class Stage : uint8_t {
  kForward,       // a training graph before `differentiate`: operators with gradients of their own. Never a graph whose values calibration
                  // names.
  kBeforeLayout,  // forward, backward and updates are there; formats are not assigned
  kAfterLayout,   // with formats
};

class Target {
 public:
  virtual ~Target() = default;
  /// Will a kernel other than the reference compute the node? Before kAfterLayout its images are taken in the format that layout will give
  /// them, at kAfterLayout in the format that they have.
  virtual bool has_kernel(const Graph& graph, const Node& node, Stage stage) const = 0;
  /// Why the target cannot run the node: what each kernel, the reference included, says against it. "": it can. Before kAfterLayout: in
  /// each format that layout may give the node's images; at kAfterLayout in the format that they have. The default target runs every node.
  virtual std::string refusal(const Graph& graph, const Node& node, Stage stage) const {
    static_cast<void>(graph), static_cast<void>(node), static_cast<void>(stage);
    return "";
  }
  /// The format in which the node's kernel takes weight input `input` fastest, all other types as they are; the present format where it has
  /// no preference.
  virtual MemoryFormat weight_format(const Graph& graph, const Node& node, int input) const = 0;
  /// The format in which the node's kernel makes output `output` fastest, a weight gradient whose type says what its readers prefer.
  virtual MemoryFormat output_format(const Graph& graph, const Node& node, int output) const = 0;
  /// Replaces operators by the target's own, the same results within rounding. Adds to the report.
  virtual void rewrite(Graph& graph, Stage stage, PassReport& report) const {
    static_cast<void>(graph), static_cast<void>(stage), static_cast<void>(report);
  }
};

}  // namespace galley
