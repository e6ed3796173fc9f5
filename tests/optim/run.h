#pragma once
// Runs a graph with in-place updates on the reference for several steps: a minimal training loop.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "libcore/backends/ref/ref.h"
#include "libcore/optim/updates.h"

namespace galley {

inline TensorType type_of(DType dtype, Shape shape) {
  TensorType type;
  type.dtype = dtype;
  type.shape = shape;
  return type;
}

/// The closed forms of make.py.
inline RefArray start_array() {
  RefArray array{{2, 3}, {}};
  for (int i = 0; i < 6; ++i) array.v.push_back(std::sin(i + 1.0));
  return array;
}
inline RefArray gradient_array(int step) {
  RefArray array{{2, 3}, {}};
  for (int i = 0; i < 6; ++i) array.v.push_back(std::cos(1.7 * i + 0.9 * step));
  return array;
}

class GraphRunner {
 public:
  explicit GraphRunner(const Graph& graph) : graph_(graph) {}
  RefArray& operator[](const std::string& name) { return memory_[name]; }
  void set(const std::string& name, double value) { memory_[name] = RefArray{{}, {value}}; }
  /// Initial states.
  void start(const UpdateTable& table) {
    for (const StateSpec& state : table.states) {
      memory_[state.name] = state.starts_as_copy
                                ? memory_.at(state.of)
                                : RefArray{state.type.shape, std::vector<double>(static_cast<size_t>(state.type.elements()))};
    }
  }
  /// Runs once and stores the values that nodes update in place.
  void run() {
    values_ = interpret(graph_, memory_);
    for (const Node& node : graph_.nodes()) {
      for (const InPlace& update : node.op->updates) {
        const ValueId state = node.input(static_cast<size_t>(update.input));
        if (state == kNoValue || static_cast<size_t>(update.output) >= node.outputs.size()) continue;
        memory_[graph_.value(state).name] = values_.at(node.outputs[static_cast<size_t>(update.output)]);
      }
    }
  }
  const RefArray& output(const std::string& name) const { return values_.at(graph_.find_output(name)); }

 private:
  const Graph& graph_;
  std::map<std::string, RefArray> memory_;
  std::map<ValueId, RefArray> values_;
};

/// Expects each element within `tolerance`; NaN fails.
inline void expect_near(const RefArray& got, const std::vector<double>& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.v.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_FALSE(!(std::fabs(got.v[i] - want[i]) <= tolerance)) << what << "[" << i << "]: got " << got.v[i] << ", want " << want[i];
  }
}

}  // namespace galley
