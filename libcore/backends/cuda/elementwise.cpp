// The element-wise functions and their backward operators, by the kernels of kernels/elementwise.h. Of large floating-point operands, NVRTC
// compiles a function as a chain of one step (compiled_chains.h).

#include "libcore/ops/elementwise.h"

#include <algorithm>
#include <vector>

#include "libcore/backends/broadcast_dimensions.h"
#include "libcore/backends/cuda/compiled_chains.h"
#include "libcore/backends/cuda/prepare.h"
#include "libcore/ops/registry.h"

namespace galley {
namespace {

using device::ChainCall;
using device::ChainStepCall;
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

/// Whether all operands have the type of the output, f32, bf16 or f16.
bool one_real_type(const KernelQuery& query) {
  const DType type = query.out(0).dtype;
  const auto same = [&](const TensorType* input) { return input->dtype == type; };
  return is_floating(type) && type != DType::kF64 && std::all_of(query.context.inputs.begin(), query.context.inputs.end(), same);
}
/// A function of one or two inputs as a chain, with a kernel of its own where that is worth it.
class CompiledFunction {
 public:
  CompiledFunction() = default;
  /// `call`: with the sizes and steps of the operands.
  CompiledFunction(const KernelQuery& query, ChainCall call, ChainStepCall::Kind kind, int function, const double (&numbers)[2])
      : call_(call) {
    constexpr int64_t kFewElements = 1 << 16;  // their kernels take less than 2 us in any form
    const TensorType& out = query.out(0);
    if (!one_real_type(query) || out.elements() < kFewElements) return;
    call_.type = type_of(out);
    call_.elements = out.elements();
    call_.inputs_count = static_cast<int>(query.context.inputs.size());
    call_.steps_count = 1;
    call_.chain[0] = {.kind = kind, .function = function, .operands = {0, call_.inputs_count - 1}, .numbers = {}};
    std::transform(numbers, numbers + 2, call_.chain[0].numbers, [](double number) { return static_cast<float>(number); });
    kernel_ = compiled_chain(gpu_of(query), call_);
  }
  bool exists() const { return kernel_ != nullptr; }
  /// False: it cannot run it with these addresses.
  bool run(Stream& stream, const KernelArgs& args) const {
    if (kernel_ == nullptr) return false;
    ChainCall call = call_;
    std::copy(args.inputs.begin(), args.inputs.end(), call.inputs);
    call.output = args.outputs[0];
    return launch_compiled(stream, kernel_, call);
  }

 private:
  ChainCall call_{};
  cuda::KernelHandle kernel_ = nullptr;
};

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
    if (inputs_ > 2) return;
    packs_ = one_real_type(query) && call_.dimensions == 1;
    for (size_t i = 0; i < inputs_; ++i) packs_ = packs_ && call_.steps[i][0] == 1;
    ChainCall chain{.dimensions = call_.dimensions};
    std::copy(call_.sizes, call_.sizes + call_.dimensions, chain.sizes);
    for (size_t i = 0; i < inputs_; ++i) std::copy(call_.steps[i], call_.steps[i] + call_.dimensions, chain.steps[i]);
    compiled_ = {query, chain, inputs_ == 2 ? ChainStepCall::kTwo : ChainStepCall::kOne, call_.function, call_.numbers};
  }
  std::string implementation() const override { return compiled_.exists() ? "nvrtc" : ""; }
  void run(Stream& stream, const KernelArgs& args) const override {
    if (compiled_.run(stream, args)) return;
    ElementwiseCall call = call_;
    std::copy(args.inputs.begin(), args.inputs.end(), call.inputs);
    call.output = args.outputs[0];
    if (packs_ && have_packs(call.inputs[0], call.inputs[1], call.output))
      return launch_elements(stream, inputs_ == 2 ? "elementwise2_packs" : "elementwise1_packs", packs_of(call.elements), call);
    launch_elements(stream, name_, call.elements, call);
  }

 private:
  bool packs_ = false;  // all operands are walked alike
  size_t inputs_;
  const char* name_;
  ElementwiseCall call_{};
  CompiledFunction compiled_;
};

class Backward : public PreparedKernel {
 public:
  explicit Backward(const KernelQuery& query)
      : name_(needs_double(query.out(0).dtype) ? "elementwise_backward_double" : "elementwise_backward") {
    set_function(call_, query, *find_elementwise(query.node.op->name, true));
    call_.elements = query.out(0).shape.elements();
    call_.type = type_of(query.out(0));
    packs_ = one_real_type(query);
    ChainCall chain{.dimensions = 1};
    chain.sizes[0] = call_.elements;
    chain.steps[0][0] = chain.steps[1][0] = 1;
    compiled_ = {query, chain, ChainStepCall::kBackward, call_.function, call_.numbers};
  }
  std::string implementation() const override { return compiled_.exists() ? "nvrtc" : ""; }
  void run(Stream& stream, const KernelArgs& args) const override {
    if (compiled_.run(stream, args)) return;
    ElementwiseBackwardCall call = call_;
    call.grad = args.inputs[0];
    call.from = args.inputs[1];
    call.output = args.outputs[0];
    if (packs_ && have_packs(call.grad, call.from, call.output))
      return launch_elements(stream, "elementwise_backward_packs", packs_of(call.elements), call);
    launch_elements(stream, name_, call.elements, call);
  }

 private:
  bool packs_ = false;
  const char* name_;
  ElementwiseBackwardCall call_{};
  CompiledFunction compiled_;
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
