#pragma once
// The update phase: optimizer steps, moving averages and accumulated gradients, in place on parameters and state. Learning
// rate, step (from 1) and gradient scale are scalar inputs, not attributes, so that one program serves the whole run. Each takes
// an optional gate, bool []: if it is false, the update changes nothing.

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

struct SgdUpdateAttrs : OptionsOf<SgdUpdateAttrs> {
  double momentum = 0, dampening = 0;
  bool nesterov = false;
  double weight_decay = 0;
  void options(OptionVisitor& v) override;
};
struct AdamUpdateAttrs : OptionsOf<AdamUpdateAttrs> {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled = false;  // AdamW
  void options(OptionVisitor& v) override;
};
struct RmspropUpdateAttrs : OptionsOf<RmspropUpdateAttrs> {
  double alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0;
  bool centered = false;
  bool tf_eps = false;  // eps inside the root, as in TensorFlow
  void options(OptionVisitor& v) override;
};
struct ClipCoefficientAttrs : OptionsOf<ClipCoefficientAttrs> {
  double max_norm = 1;
  void options(OptionVisitor& v) override;
};

const OpDef& assign_op();
const OpDef& sgd_update_op();
const OpDef& adam_update_op();
const OpDef& rmsprop_update_op();
const OpDef& ema_update_op();
const OpDef& accumulate_op();
const OpDef& clear_op();
const OpDef& clip_coefficient_op();
const OpDef& finite_gate_op();

/// state = value, in place; both have one dtype and shape.
Value assign(Value state, Value value, Value gate = {});

// lr: f32 []; step: i64 [], 1 for the first update; grad_scale: f32 [], absent = 1, multiplies the gradient first.
// States have the shape of the parameter. Each returns the new parameter, then the new values of the given states, in input order.

/// torch.optim.SGD. momentum_buffer is given if momentum is not 0.
std::vector<Value> sgd_update(Value param, Value grad, Value lr, Value step, Value momentum_buffer, Value grad_scale,
                              const SgdUpdateAttrs& attrs, Value gate = {});
/// torch.optim.Adam (weight decay added to the gradient) or, decoupled, torch.optim.AdamW.
std::vector<Value> adam_update(Value param, Value grad, Value lr, Value step, Value exp_avg, Value exp_avg_sq, Value grad_scale,
                               const AdamUpdateAttrs& attrs, Value gate = {});
/// torch.optim.RMSprop. grad_avg is given if centered, momentum_buffer if momentum is not 0. The momentum buffer is
/// always output 3: with momentum but not centered, output 2 is an empty array ([0]).
std::vector<Value> rmsprop_update(Value param, Value grad, Value lr, Value step, Value square_avg, Value grad_avg, Value momentum_buffer,
                                  Value grad_scale, const RmspropUpdateAttrs& attrs, Value gate = {});
/// ema = decay*ema + (1-decay)*value; decay: f32 []. An integer (a counter) is copied.
Value ema_update(Value ema, Value value, Value decay, Value gate = {});
/// acc += grad.
Value accumulate(Value acc, Value grad, Value gate = {});
/// acc = 0.
Value clear(Value acc, Value gate = {});
/// min(1, max_norm / (sqrt(sum_squares) + 1e-6)), as torch.nn.utils.clip_grad_norm_; f32 [] -> f32 [].
Value clip_coefficient(Value sum_squares, const ClipCoefficientAttrs& attrs);
/// A gate for updates: true as long as `value` (floating, []), the loss, has been finite in every run. The state `stopped` (bool [], false
/// at first) records that it was not; the host clears it to continue. Returns the gate, bool [].
Value finite_gate(Value stopped, Value value);

}  // namespace galley
