#pragma once
// Names of observed and quantized values. They are the same in calibration files, in reports and in the quantize pass, for any batch size
// and on any machine.

#include <map>
#include <span>
#include <string>
#include <vector>

#include "libcore/graph/graph.h"

namespace galley {

/// The name of each node's output 0, indexed by node, for a folded and fused inference graph: the module path for conv2d and linear (a
/// fused node keeps the convolution's path), otherwise path + "." + operator ("layer1.0.add", "hardswish" at the top level). Further nodes
/// with the same name get ".2", ".3"; names are unique. "" for nodes that do not depend on fed inputs (folding of weights, which a compiled
/// program may do differently), for reorders, and for nodes outside the forward phase; these are not counted.
std::vector<std::string> quant_names(const Graph& graph);
/// The name of one node of the graph.
std::string quant_name(const Graph& graph, const Node& node);

/// Names by value: every f32 output 0 of a named node, and every fed f32 input under its own name ("input").
std::map<ValueId, std::string> quant_values(const Graph& graph);

/// For each value, the one whose range it has, by which calibration knows it: itself; the input of a view; before a maximum of pixels
/// inside images, and of its result, the array without the infinity that lies outside.
std::vector<ValueId> range_sources(const Graph& graph);
/// The values that calibration observes, with their names: quant_values without those that have the range of another value.
std::map<ValueId, std::string> watched_values(const Graph& graph);
/// Their names in the order of the graph, inputs first.
std::vector<std::string> watched_names(const Graph& graph);

/// Versions before 2026-11-25 computed the attention of ViT and Swin by several operators, so that their calibration files name more
/// values, and number those of a module differently. Returns the name in such a file for each watched name of the graph, except for parts
/// of attention that the graph still has (Swin 2); empty if the file is of another model. `former`: the names in the file.
std::map<std::string, std::string> former_names(const Graph& graph, std::span<const std::string> former);

}  // namespace galley
