// Chains of element-wise functions: a kernel that NVRTC compiles for each, or the one of kernels/chain.h for all.

#include <algorithm>

#include "libcore/backends/broadcast_dimensions.h"
#include "libcore/backends/cuda/compiled_chains.h"
#include "libcore/backends/cuda/prepare.h"
#include "libcore/ops/elementwise_chain.h"

namespace galley {
namespace {

using device::ChainCall;
using device::ChainStepCall;
constexpr size_t kInputs = device::kMostChainInputs;
static_assert(kInputs == kChainInputs);

Support supports(const KernelQuery& query) {
  if (query.context.inputs.size() > kInputs) return Support::no(cat("more than ", kInputs, " inputs"));
  if (std::ssize(query.attrs<ElementwiseChainAttrs>().steps) > device::kMostChainSteps)
    return Support::no(cat("more than ", device::kMostChainSteps, " steps"));
  if (query.out(0).dtype == DType::kF64) return Support::no("dtype f64");
  if (const Support formats = no_blocked_formats(query); !formats) return formats;
  if (broadcast_dimensions<kInputs>(query.context.inputs, query.out(0)).size() > device::kMaxDimensions)
    return Support::no("more than 8 dimensions");
  return Support::yes();
}

ChainCall call_of(const KernelQuery& query) {
  ChainCall call{.type = type_of(query.out(0)), .elements = query.out(0).elements()};
  const auto dimensions = broadcast_dimensions<kInputs>(query.context.inputs, query.out(0));
  const auto inputs = static_cast<int64_t>(query.context.inputs.size());
  call.inputs_count = static_cast<int>(inputs);
  call.dimensions = static_cast<int>(dimensions.size());
  for (size_t d = 0; d < dimensions.size(); ++d) {
    call.sizes[d] = dimensions[d].size;
    for (size_t j = 0; j < kInputs; ++j) call.steps[j][d] = dimensions[d].steps[j];
  }
  for (const ChainStep& step : query.attrs<ElementwiseChainAttrs>().steps) {
    ChainStepCall& made = call.chain[call.steps_count++];
    made.kind = step.backward ? ChainStepCall::kBackward : step.operands.size() == 2 ? ChainStepCall::kTwo : ChainStepCall::kOne;
    made.function = static_cast<int>(step.formula->function);
    const auto operand = [&](int64_t o) { return static_cast<int>(o < inputs ? o : o - inputs + device::kMostChainInputs); };
    made.operands[0] = operand(step.operands.front());
    made.operands[1] = operand(step.operands.back());
    const FunctionNumbers numbers = function_numbers(step.attributes.get());
    std::transform(numbers.begin(), numbers.end(), made.numbers, [](double number) { return static_cast<float>(number); });
  }
  return call;
}

class Chain : public PreparedKernel {
 public:
  explicit Chain(const KernelQuery& query)
      : call_(call_of(query)), compiled_(call_.elements > 0 ? compiled_chain(gpu_of(query), call_) : nullptr) {}
  void run(Stream& stream, const KernelArgs& args) const override {
    ChainCall call = call_;
    std::copy(args.inputs.begin(), args.inputs.end(), call.inputs);
    call.output = args.outputs[0];
    if (!launch_compiled(stream, compiled_, call)) launch_elements(stream, "chain_elements", call.elements, call);
  }
  std::string implementation() const override { return compiled_ != nullptr ? "nvrtc" : ""; }

 private:
  ChainCall call_;
  cuda::KernelHandle compiled_;
};

constexpr Kernel kKernels[] = {{"elementwise_chain", "chain", supports, prepare_cuda<Chain>}};

}  // namespace

std::span<const Kernel> cuda_chains() { return kKernels; }

}  // namespace galley
