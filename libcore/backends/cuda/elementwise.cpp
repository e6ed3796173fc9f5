// The element-wise functions and their backward operators, by the kernels of kernels/elementwise.h.

#include "libcore/ops/elementwise.h"

#include <algorithm>

#include "libcore/backends/broadcast_dimensions.h"
#include "libcore/backends/cuda/kernels.h"
#include "libcore/backends/cuda/kernels/calls.h"
#include "libcore/backends/cuda/table.h"
#include "libcore/ops/registry.h"

namespace galley {
namespace {

using device::ElementwiseBackwardCall;
using device::ElementwiseCall;

Support supports_types(const KernelQuery& query) {
  const DType dtype = query.out(0).dtype;
  if (dtype != DType::kF32 && dtype != DType::kBF16) return Support::no(cat("dtype ", dtype));
  for (size_t i = 0; i < query.context.inputs.size(); ++i) {
    if (query.in(static_cast<int>(i)).dtype != dtype) return Support::no("operands of different dtypes");
  }
  return Support::yes();
}

Support supports(const KernelQuery& query) {
  if (const Support types = supports_types(query); !types) return types;
  const auto dimensions = broadcast_dimensions<3>(query.context.inputs, query.out(0));
  if (dimensions.size() > device::kMaxDimensions) return Support::no("operands that broadcast along more than 6 dimensions");
  return Support::yes();
}

Support supports_backward(const KernelQuery& query) {
  if (const Support types = supports_types(query); !types) return types;
  for (const int i : {0, 1}) {
    if (query.in(i).format != query.out(0).format) return Support::no("operands of different formats");
  }
  return Support::yes();
}

/// The position of the function in Functions, and its numbers.
template <class Call>
void set_function(Call& call, const KernelQuery& query, const ElementwiseRow& row) {
  const Options* attributes = query.context.attributes;
  const FunctionNumbers numbers = function_numbers(attributes);
  call.function = static_cast<int>(row.formula(attributes).function);
  for (size_t i = 0; i < numbers.size(); ++i) call.numbers[i] = static_cast<float>(numbers[i]);
}

class Forward : public PreparedKernel {
 public:
  explicit Forward(const KernelQuery& query) : inputs_(query.context.inputs.size()) {
    set_function(call_, query, *find_elementwise(query.node.op->name));
    const auto dimensions = broadcast_dimensions<3>(query.context.inputs, query.out(0));
    call_.dimensions = static_cast<int>(dimensions.size());
    call_.elements = query.out(0).shape.elements();
    for (size_t d = 0; d < dimensions.size(); ++d) {
      call_.sizes[d] = dimensions[d].size;
      for (size_t i = 0; i < inputs_; ++i) call_.steps[i][d] = dimensions[d].steps[i];
    }
    static constexpr const char* kNames[3][2] = {
        {"elementwise1_f32", "elementwise1_bf16"}, {"elementwise2_f32", "elementwise2_bf16"}, {"elementwise3_f32", "elementwise3_bf16"}};
    name_ = kNames[inputs_ - 1][query.out(0).dtype == DType::kBF16];
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    ElementwiseCall call = call_;
    for (size_t i = 0; i < inputs_; ++i) call.inputs[i] = args.inputs[i];
    call.output = args.outputs[0];
    cuda_launch(stream, name_, cuda_blocks(stream, call.elements), call);
  }

 private:
  size_t inputs_;
  const char* name_;
  ElementwiseCall call_{};
};

class Backward : public PreparedKernel {
 public:
  explicit Backward(const KernelQuery& query)
      : name_(query.out(0).dtype == DType::kBF16 ? "elementwise_backward_bf16" : "elementwise_backward_f32") {
    set_function(call_, query, *find_elementwise(query.node.op->name, true));
    call_.elements = query.out(0).shape.elements();
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    ElementwiseBackwardCall call = call_;
    call.grad = args.inputs[0];
    call.from = args.inputs[1];
    call.output = args.outputs[0];
    cuda_launch(stream, name_, cuda_blocks(stream, call.elements), call);
  }

 private:
  const char* name_;
  ElementwiseBackwardCall call_{};
};

template <class K>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& query) {
  return std::make_unique<K>(query);
}

}  // namespace

std::span<const Kernel> cuda_elementwise() {
  static const std::vector<Kernel> kernels = [] {
    std::vector<Kernel> list;
    for (const OpDef* op : elementwise_ops()) {
      const bool forward = find_elementwise(op->name) != nullptr;
      list.push_back({.op = op->name,
                      .algorithm = "elementwise",
                      .supports = forward ? supports : supports_backward,
                      .prepare = forward ? prepare<Forward> : prepare<Backward>});
    }
    return list;
  }();
  return kernels;
}

}  // namespace galley
