#pragma once
// The reference: every operator computed plainly in double over contiguous, logical-order arrays, whatever the dtypes and
// formats of the node. It is the oracle that all other kernels and passes are tested against. Clarity before speed. Primitives have
// functions here; a composite is computed by its definition (reference.h).

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/graph/graph.h"
#include "libcore/tensor/tensor.h"

namespace galley {

/// Values in logical (row-major) order. Integers up to 2^53 are exact.
struct RefArray {
  Shape shape;
  std::vector<double> v;
  double& operator[](int64_t i) { return v[static_cast<size_t>(i)]; }
  double operator[](int64_t i) const { return v[static_cast<size_t>(i)]; }
};

/// One call: attributes, types, arrays. Outputs come zeroed, with their shape.
class RefCall {
 public:
  RefCall(const Options* attributes, OpContext context, std::vector<const RefArray*> inputs, std::vector<RefArray>& outputs)
      : attributes_(attributes), context_(std::move(context)), inputs_(std::move(inputs)), outputs_(outputs) {}
  template <class T>
  const T& attrs() const {
    const auto* typed = dynamic_cast<const T*>(attributes_);
    GALLEY_ASSERT(typed != nullptr);
    return *typed;
  }
  bool has(size_t i) const { return i < inputs_.size() && inputs_[i] != nullptr; }
  size_t input_count() const { return inputs_.size(); }
  const RefArray& in(size_t i) const { return *inputs_[i]; }
  RefArray& out(size_t i = 0) { return outputs_[i]; }
  const OpContext& context() const { return context_; }

 private:
  const Options* attributes_;
  OpContext context_;
  std::vector<const RefArray*> inputs_;
  std::vector<RefArray>& outputs_;
};

using RefFunction = void (*)(RefCall& call);
struct RefEntry {
  std::string_view op;
  RefFunction run;
};

/// The function of a primitive; nullptr where there is none.
RefFunction find_reference(std::string_view op);

/// Runs a whole graph on the reference. `feeds` gives every named input. With `round`, each value is rounded to its dtype
/// after every node, as real kernels do; without, all is double: the oracle for f32 kernels. Returns every value, updates
/// under their output's id.
std::map<ValueId, RefArray> interpret(const Graph& graph, const std::map<std::string, RefArray>& feeds, bool round = false);

RefArray to_ref(const Tensor& tensor);

}  // namespace galley
