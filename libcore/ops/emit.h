#pragma once
// Capture: applying an operator to symbolic values appends a node to their graph. Every operator offers a free function of
// its name in its own header, e.g. Value relu(Value x); model code reads y = relu(x).

#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "libcore/graph/graph.h"

namespace galley {

/// Appends the node and returns its outputs. Inputs may be absent Values where the op allows; one at least is present.
std::vector<Value> emit_all(const OpDef& op, std::unique_ptr<Options> attributes, std::span<const Value> inputs);
std::vector<Value> emit_all(std::string_view op, std::unique_ptr<Options> attributes, std::span<const Value> inputs);

/// For an op with one output (or whose first output is the one wanted).
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
