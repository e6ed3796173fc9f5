// The element-wise functions and their backward operators, by the kernels of kernels/elementwise.h.

#include "libcore/ops/elementwise.h"

#include <algorithm>
#include <vector>

#include "libcore/backends/broadcast_dimensions.h"
#include "libcore/backends/cuda/prepare.h"
#include "libcore/ops/registry.h"

namespace galley {
namespace {

using device::ElementwiseBackwardCall;
using device::ElementwiseCall;

/// Whether a float cannot hold all values of the dtype.
bool needs_double(DType dtype) { return dtype == DType::kF64 || dtype == DType::kI64 || dtype == DType::kI32; }

Support supports(const KernelQuery& query) {
  if (const Support formats = no_blocked_formats(query); !formats) return formats;
  if (broadcast_dimensions<3>(query.context.inputs, query.out(0)).size() > device::kMaxDimensions)
    return Support::no("more than 8 dimensions");
  return Support::yes();
}

Support supports_backward(const KernelQuery& query) {
  if (const Support formats = no_blocked_formats(query); !formats) return formats;
  for (const int i : {0, 1}) {
    if (query.in(i).format != query.out(0).format || query.in(i).dtype != query.out(0).dtype)
      return Support::no("operands of different types");
  }
  return Support::yes();
}

/// The position of the function in Functions, and its numbers.
template <class Call>
void set_function(Call& call, const KernelQuery& query, const ElementwiseRow& row) {
  const Options* attributes = query.context.attributes;
  const FunctionNumbers numbers = function_numbers(attributes);
  call.function = static_cast<int>(row.formula(attributes).function);
  std::copy(numbers.begin(), numbers.end(), call.numbers);
}

class Forward : public PreparedKernel {
 public:
  explicit Forward(const KernelQuery& query) : inputs_(query.context.inputs.size()) {
    set_function(call_, query, *find_elementwise(query.node.op->name));
    const auto dimensions = broadcast_dimensions<3>(query.context.inputs, query.out(0));
    call_.dimensions = static_cast<int>(dimensions.size());
    call_.elements = query.out(0).shape.elements();
    call_.output_type = type_of(query.out(0));
    bool exact = needs_double(query.out(0).dtype);
    for (size_t i = 0; i < inputs_; ++i) {
      call_.input_types[i] = type_of(query.in(static_cast<int>(i)));
      exact = exact || needs_double(query.in(static_cast<int>(i)).dtype);
    }
    for (size_t d = 0; d < dimensions.size(); ++d) {
      call_.sizes[d] = dimensions[d].size;
      for (size_t i = 0; i < inputs_; ++i) call_.steps[i][d] = dimensions[d].steps[i];
    }
    static constexpr const char* kNames[2][3] = {{"elementwise1", "elementwise2", "elementwise3"},
                                                 {"elementwise1_double", "elementwise2_double", "elementwise3_double"}};
    name_ = kNames[exact][inputs_ - 1];
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    ElementwiseCall call = call_;
    std::copy(args.inputs.begin(), args.inputs.end(), call.inputs);
    call.output = args.outputs[0];
    launch_elements(stream, name_, call.elements, call);
  }

 private:
  size_t inputs_;
  const char* name_;
  ElementwiseCall call_{};
};

class Backward : public PreparedKernel {
 public:
  explicit Backward(const KernelQuery& query)
      : name_(needs_double(query.out(0).dtype) ? "elementwise_backward_double" : "elementwise_backward") {
    set_function(call_, query, *find_elementwise(query.node.op->name, true));
    call_.elements = query.out(0).shape.elements();
    call_.type = type_of(query.out(0));
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    ElementwiseBackwardCall call = call_;
    call.grad = args.inputs[0];
    call.from = args.inputs[1];
    call.output = args.outputs[0];
    launch_elements(stream, name_, call.elements, call);
  }

 private:
  const char* name_;
  ElementwiseBackwardCall call_{};
};

}  // namespace

std::span<const Kernel> cuda_elementwise() {
  static const std::vector<Kernel> kernels = [] {
    std::vector<Kernel> list;
    for (const OpDef* op : elementwise_ops()) {
      const bool forward = find_elementwise(op->name) != nullptr;
      list.push_back({.op = op->name,
                      .algorithm = "elementwise",
                      .supports = forward ? supports : supports_backward,
                      .prepare = forward ? prepare_cuda<Forward> : prepare_cuda<Backward>});
    }
    return list;
  }();
  return kernels;
}

}  // namespace galley
