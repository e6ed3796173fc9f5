#pragma once
// Names of the values that are observed and quantized: the same in a calibration file, in reports and in the quantize pass, for any
// batch size and on any machine.

#include <map>
#include <string>
#include <vector>

#include "libcore/graph/graph.h"

namespace galley {

/// The name of each node's output 0, by index of node, for a folded and fused inference graph: the module's path for conv2d and linear
/// (a fused node keeps the convolution's path), else path + "." + operator ("layer1.0.add", "hardswish" at the top); the second and later
/// nodes of one name get ".2", ".3". Names are unique. "" for nodes that do not depend on what is fed (folding of weights, which a compiled
/// program may do first and another way), for reorders, and for nodes of another phase than forward; these are not counted.
std::vector<std::string> quant_names(const Graph& graph);
/// The name of one node.
std::string quant_name(const Graph& graph, const Node& node);

/// Names by value: every f32 output 0 of a node that has a name, and every fed f32 input under its own name ("input").
std::map<ValueId, std::string> quant_values(const Graph& graph);

}  // namespace galley
