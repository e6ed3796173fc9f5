#pragma once
// Capture: applying an operator to symbolic values appends a node to their graph. Most operators have a free function of their
// name in their header, e.g. Value relu(Value x), so that model code reads y = relu(x).

#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "libcore/graph/graph.h"

namespace galley {

/// Appends the node and returns its outputs. Optional inputs may be absent Values; at least one input must be given.
std::vector<Value> emit_all(const OpDef& op, std::unique_ptr<Options> attributes, std::span<const Value> inputs);
std::vector<Value> emit_all(std::string_view op, std::unique_ptr<Options> attributes, std::span<const Value> inputs);

/// Appends the node and returns its first output.
inline Value emit(std::string_view op, std::initializer_list<Value> inputs) {
  return emit_all(op, nullptr, std::span<const Value>(inputs.begin(), inputs.size())).front();
}
template <class Attrs>
Value emit(std::string_view op, std::initializer_list<Value> inputs, const Attrs& attributes) {
  return emit_all(op, std::make_unique<Attrs>(attributes), std::span<const Value>(inputs.begin(), inputs.size())).front();
}

template <class Attrs>
Value emit(const OpDef& op, std::initializer_list<Value> inputs, const Attrs& attributes) {
  return emit_all(op, std::make_unique<Attrs>(attributes), std::span<const Value>(inputs.begin(), inputs.size())).front();
}

}  // namespace galley
