#include "libcore/passes/collective_nodes.h"

#include <algorithm>

#include "libcore/ops/convert.h"
#include "libcore/ops/shape.h"

namespace galley {

CollectiveScope::CollectiveScope(Graph& graph, Phase phase) : graph_(graph), path_(graph.path()), phase_(graph.phase()) {
  graph.set_path("ranks");
  graph.set_phase(phase);
}

CollectiveScope::~CollectiveScope() {
  graph_.set_path(std::move(path_));
  graph_.set_phase(phase_);
}

void move_nodes(Graph& graph, size_t first, int after) {
  std::deque<Node>& nodes = graph.nodes();
  const auto to = nodes.begin() + after + 1;
  std::rotate(to, nodes.begin() + static_cast<std::ptrdiff_t>(first), nodes.end());
}

TensorType flat_type(DType dtype, int64_t elements) {
  TensorType type;
  type.dtype = dtype;
  type.shape = Shape{elements};
  return type;
}

Value flat_array(Graph& graph, const std::vector<Value>& values, const std::vector<int64_t>& at, DType dtype, int64_t elements) {
  std::vector<Value> parts;
  int64_t filled = 0;
  const auto fill_until = [&](int64_t end) {
    if (end > filled) parts.push_back(full(graph, flat_type(dtype, end - filled), 0));
    filled = std::max(filled, end);
  };
  for (size_t i = 0; i < values.size(); ++i) {
    fill_until(at[i]);
    parts.push_back(values[i].shape().rank() == 1 ? values[i] : reshape(values[i], Shape{values[i].shape().elements()}));
    filled += values[i].shape().elements();
  }
  fill_until(elements);
  ConcatAttrs attrs;
  attrs.axis = 0;
  return parts.size() == 1 ? parts.front() : concat(parts, attrs);
}

Value tensor_of(Value array, int64_t at, const Shape& shape) {
  const int64_t elements = shape.elements();
  return reshape(array.shape()[0] == elements ? array : slice(array, 0, at, at + elements), shape);
}

}  // namespace galley
