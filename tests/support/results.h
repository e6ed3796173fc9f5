#pragma once
// Results of a graph on the reference, before and after a pass.

#include <gtest/gtest.h>

#include <cmath>

#include "libcore/backends/ref/ref.h"

namespace galley::test {

/// All outputs, and under "new NAME" the results of all updates.
inline std::map<std::string, RefArray> results(const Graph& graph, const std::map<std::string, RefArray>& feeds) {
  const std::map<ValueId, RefArray> values = interpret(graph, feeds);
  std::map<std::string, RefArray> found;
  for (const auto& [name, id] : graph.outputs()) found[name] = values.at(id);
  for (const Node& node : graph.nodes()) {
    for (const InPlace& update : node.op->updates) {
      const ValueId old = node.input(static_cast<size_t>(update.input));
      if (old != kNoValue) found["new " + graph.value(old).name] = values.at(node.outputs[static_cast<size_t>(update.output)]);
    }
  }
  return found;
}

/// Both are in double, so only the order of additions may differ; 1e-9 leaves three digits of room for graphs of this size.
inline void expect_same(const std::map<std::string, RefArray>& got, const std::map<std::string, RefArray>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, array] : want) {
    ASSERT_EQ(got.count(name), 1u) << name;
    const RefArray& mine = got.at(name);
    ASSERT_EQ(mine.shape, array.shape) << name;
    for (size_t i = 0; i < array.v.size(); ++i)
      ASSERT_TRUE(std::abs(mine.v[i] - array.v[i]) <= 1e-9 * (1 + std::abs(array.v[i]))) << name << "[" << i << "]";
  }
}

/// The number of nodes with this operator.
inline int count(const Graph& graph, std::string_view op) {
  int found = 0;
  for (const Node& node : graph.nodes()) found += node.is(op);
  return found;
}

}  // namespace galley::test
