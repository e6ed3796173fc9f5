// Optimizer steps and averages, by the kernels of kernels/update.h.

#include "libcore/ops/update.h"

#include <cmath>

#include "libcore/backends/cuda/joined_updates.h"
#include "libcore/backends/cuda/prepare.h"

namespace galley {
namespace {

/// Whether the parameter and its states are contiguous arrays of one type; `scalars` are f32.
Support supports(const KernelQuery& query, int states, int scale) {
  const TensorType& parameter = query.in(0);
  if (!is_floating(parameter.dtype) || parameter.dtype == DType::kF64) return Support::no(cat("dtype ", parameter.dtype));
  if (!is_floating(query.in(1).dtype) || query.in(1).dtype == DType::kF64) return Support::no(cat("a gradient in ", query.in(1).dtype));
  if (query.in(1).format != parameter.format) return Support::no("a gradient in another format");
  for (int i = 4; i < 4 + states; ++i) {
    if (query.has(i) && (query.in(i).format != parameter.format || query.in(i).dtype != parameter.dtype))
      return Support::no("a state of another type");
  }
  if (query.in(2).dtype != DType::kF32 || (query.has(scale) && query.in(scale).dtype != DType::kF32))
    return Support::no("scalars other than f32");
  return no_blocked_formats(query);
}
Support supports_adam(const KernelQuery& query) { return supports(query, 2, 6); }
Support supports_sgd(const KernelQuery& query) { return supports(query, 1, 5); }

device::UpdateCall call_of(const KernelQuery& query) {
  return {.type = type_of(query.in(0)), .grad_type = type_of(query.in(1)), .elements = query.in(0).shape.elements()};
}
/// Binds param, grad, lr and step, which all optimizers have as their first inputs. States are updated in place: outputs are inputs.
void bind(device::UpdateCall& call, const KernelArgs& args, size_t scale, size_t gate) {
  call.parameter = args.outputs[0];
  call.grad = args.inputs[1];
  call.lr = args.inputs[2];
  call.step = args.in<int64_t>(3);
  call.grad_scale = args.in<void>(scale);
  call.gate = args.in<uint8_t>(gate);
}

class Adam : public JoinableUpdate {
 public:
  explicit Adam(const KernelQuery& query) : call_(call_of(query)) {
    const auto& attrs = query.attrs<AdamUpdateAttrs>();
    call_.beta1 = attrs.beta1;
    call_.beta2 = attrs.beta2;
    call_.log_beta1 = std::log(attrs.beta1);
    call_.log_beta2 = std::log(attrs.beta2);
    call_.eps = attrs.eps;
    call_.weight_decay = attrs.weight_decay;
    call_.decoupled = attrs.decoupled;
  }
  device::UpdateCall bound(const KernelArgs& args) const override {
    device::UpdateCall call = call_;
    bind(call, args, 6, 7);
    call.first = args.outputs[1];
    call.second = args.outputs[2];
    return call;
  }
  const char* joined_kernel() const override { return "adam_steps"; }
  void run(Stream& stream, const KernelArgs& args) const override {
    launch_elements(stream, "adam_step", packs_of(call_.elements), bound(args));
  }

 private:
  device::UpdateCall call_;
};

class Sgd : public JoinableUpdate {
 public:
  explicit Sgd(const KernelQuery& query) : call_(call_of(query)), momentum_(query.has(4)) {
    const auto& attrs = query.attrs<SgdUpdateAttrs>();
    call_.beta1 = attrs.momentum;
    call_.beta2 = attrs.dampening;
    call_.weight_decay = attrs.weight_decay;
    call_.nesterov = attrs.nesterov;
  }
  device::UpdateCall bound(const KernelArgs& args) const override {
    device::UpdateCall call = call_;
    bind(call, args, 5, 6);
    if (momentum_) call.first = args.outputs[1];
    return call;
  }
  const char* joined_kernel() const override { return "sgd_steps"; }
  void run(Stream& stream, const KernelArgs& args) const override {
    launch_elements(stream, "sgd_step", packs_of(call_.elements), bound(args));
  }

 private:
  device::UpdateCall call_;
  bool momentum_;
};

/// Averages must have the format of what they are of: evaluations read them in its place. Counters are copied by the definition.
Support supports_ema(const KernelQuery& query) {
  for (const int i : {0, 1}) {
    if (!is_floating(query.in(i).dtype) || query.in(i).dtype == DType::kF64) return Support::no(cat("dtype ", query.in(i).dtype));
  }
  if (query.in(1).format != query.in(0).format) return Support::no("an average in another format");
  if (query.in(2).dtype != DType::kF32) return Support::no("scalars other than f32");
  return no_blocked_formats(query);
}
class Ema : public JoinableUpdate {
 public:
  explicit Ema(const KernelQuery& query) : call_(call_of(query)) {}
  device::UpdateCall bound(const KernelArgs& args) const override {
    device::UpdateCall call = call_;
    call.parameter = args.outputs[0];
    call.grad = args.inputs[1];
    call.lr = args.inputs[2];
    call.gate = args.in<uint8_t>(3);
    return call;
  }
  const char* joined_kernel() const override { return "ema_steps"; }
  void run(Stream& stream, const KernelArgs& args) const override {
    launch_elements(stream, "ema_step", packs_of(call_.elements), bound(args));
  }

 private:
  device::UpdateCall call_;
};

class FiniteGate : public PreparedKernel {
 public:
  explicit FiniteGate(const KernelQuery& query) : type_(type_of(query.in(1))) {}
  void run(Stream& stream, const KernelArgs& args) const override {
    const device::FiniteGateCall call{.stopped = args.in<uint8_t>(0),
                                      .value = args.inputs[1],
                                      .stopped_to = args.out<uint8_t>(0),
                                      .gate = args.out<uint8_t>(1),
                                      .type = type_};
    cuda_launch(stream, "finite_gate_value", 1, call);
  }

 private:
  device::Type type_;
};

constexpr Kernel kKernels[] = {
    {"adam_update", "step", supports_adam, prepare_cuda<Adam>},
    {"sgd_update", "step", supports_sgd, prepare_cuda<Sgd>},
    {"ema_update", "step", supports_ema, prepare_cuda<Ema>},
    {"finite_gate", "value", no_blocked_formats, prepare_cuda<FiniteGate>},
};

}  // namespace

std::span<const Kernel> cuda_update() { return kKernels; }

}  // namespace galley
