#include "libcore/ops/update.h"

#include "libcore/ops/definitions.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

constexpr std::string_view kNoUpdateGradient = "it updates state, and optimizer steps are not differentiated";

/// Checks the inputs that all optimizer steps share: inputs 0..3 are param, grad, lr, step. `scale` is the position of grad_scale; the gate
/// is the next input.
void check_step(const OpContext& c, int scale) {
  check_floating(c.in(0), "param");
  // Back ends may read the gradient of an f32 parameter in the dtype in which a product made it.
  const DType dtype = c.in(1).dtype;
  TensorType grad = c.in(1);
  if (c.in(0).dtype == DType::kF32 && (dtype == DType::kBF16 || dtype == DType::kF16)) grad.dtype = DType::kF32;
  check_like(grad, "grad", c.in(0), "param");
  check_scalar(c.in(2), "lr", DType::kF32);
  check_scalar(c.in(3), "step", DType::kI64);
  if (c.has(scale)) check_scalar(c.in(scale), "grad_scale", DType::kF32);
  check_gate(c, scale + 1);
}

void check_state(const OpContext& c, int i, std::string_view name, bool expected, std::string_view why) {
  GALLEY_CHECK(c.has(i) == expected, name, expected ? " is missing: " : " is not used: ", why);
  if (expected) check_like(c.in(i), name, c.in(0), "param");
}

void check_not_negative(double value, std::string_view name) { GALLEY_CHECK(value >= 0, name, " must not be negative, but is ", value); }
void check_below_one(double value, std::string_view name) {
  GALLEY_CHECK(value >= 0 && value < 1, name, " must be at least 0 and below 1, not ", value);
}

std::vector<TensorType> infer_sgd(const OpContext& c) {
  const auto& attrs = c.attrs<SgdUpdateAttrs>();
  check_step(c, 5);
  check_not_negative(attrs.momentum, "momentum");
  check_not_negative(attrs.weight_decay, "weight_decay");
  GALLEY_CHECK(!attrs.nesterov || (attrs.momentum > 0 && attrs.dampening == 0),
               "nesterov needs a momentum and no dampening, but has momentum ", attrs.momentum, ", dampening ", attrs.dampening);
  check_state(c, 4, "momentum_buffer", attrs.momentum != 0, cat("momentum is ", attrs.momentum));
  std::vector<TensorType> types{c.in(0)};
  if (c.has(4)) types.push_back(c.in(4));
  return types;
}

std::vector<TensorType> infer_adam(const OpContext& c) {
  const auto& attrs = c.attrs<AdamUpdateAttrs>();
  check_step(c, 6);
  check_below_one(attrs.beta1, "beta1");
  check_below_one(attrs.beta2, "beta2");
  check_not_negative(attrs.eps, "eps");
  check_not_negative(attrs.weight_decay, "weight_decay");
  check_like(c.in(4), "exp_avg", c.in(0), "param");
  check_like(c.in(5), "exp_avg_sq", c.in(0), "param");
  return {c.in(0), c.in(4), c.in(5)};
}

std::vector<TensorType> infer_rmsprop(const OpContext& c) {
  const auto& attrs = c.attrs<RmspropUpdateAttrs>();
  check_step(c, 7);
  check_not_negative(attrs.alpha, "alpha");
  check_not_negative(attrs.eps, "eps");
  check_not_negative(attrs.momentum, "momentum");
  check_not_negative(attrs.weight_decay, "weight_decay");
  check_like(c.in(4), "square_avg", c.in(0), "param");
  check_state(c, 5, "grad_avg", attrs.centered, attrs.centered ? "centered is true" : "centered is false");
  check_state(c, 6, "momentum_buffer", attrs.momentum != 0, cat("momentum is ", attrs.momentum));
  std::vector<TensorType> types{c.in(0), c.in(4)};
  if (c.has(5)) types.push_back(c.in(5));
  if (c.has(6)) {
    // Output 3 is always the momentum buffer, because `updates` refers to it. If grad_avg is absent, output 2 is empty.
    if (!c.has(5)) {
      TensorType empty;
      empty.dtype = c.in(0).dtype;
      empty.shape = Shape{0};
      types.push_back(empty);
    }
    types.push_back(c.in(6));
  }
  return types;
}

std::vector<TensorType> infer_ema(const OpContext& c) {
  check_like(c.in(1), "value", c.in(0), "ema");
  check_scalar(c.in(2), "decay", DType::kF32);
  check_gate(c, 3);
  return {c.in(0)};
}

std::vector<TensorType> infer_accumulate(const OpContext& c) {
  check_floating(c.in(0), "acc");
  check_like(c.in(1), "grad", c.in(0), "acc");
  check_gate(c, 2);
  return {c.in(0)};
}

std::vector<TensorType> infer_finite_gate(const OpContext& c) {
  check_scalar(c.in(0), "stopped", DType::kBool);
  check_floating(c.in(1), "value");
  GALLEY_CHECK(c.in(1).shape.rank() == 0, "value must be a scalar, not ", c.in(1));
  return {c.in(0), c.in(0)};
}

}  // namespace

void SgdUpdateAttrs::options(OptionVisitor& v) {
  v.option({.name = "momentum", .doc = "momentum factor", .min = 0}, momentum);
  v.option({.name = "dampening", .doc = "dampening of momentum"}, dampening);
  v.option({.name = "nesterov", .doc = "Nesterov momentum"}, nesterov);
  v.option({.name = "weight_decay", .doc = "L2 penalty", .min = 0}, weight_decay);
}
void AdamUpdateAttrs::options(OptionVisitor& v) {
  v.option({.name = "beta1", .doc = "decay of the mean", .min = 0, .max = 1}, beta1);
  v.option({.name = "beta2", .doc = "decay of the mean square", .min = 0, .max = 1}, beta2);
  v.option({.name = "eps", .doc = "added to the square root", .min = 0}, eps);
  v.option({.name = "weight_decay", .doc = "L2 penalty, or decoupled decay", .min = 0}, weight_decay);
  v.option({.name = "decoupled", .doc = "AdamW: decay the parameter, not the gradient"}, decoupled);
}
void RmspropUpdateAttrs::options(OptionVisitor& v) {
  v.option({.name = "alpha", .doc = "smoothing of the mean square", .min = 0}, alpha);
  v.option({.name = "eps", .doc = "added to the square root", .min = 0}, eps);
  v.option({.name = "weight_decay", .doc = "L2 penalty", .min = 0}, weight_decay);
  v.option({.name = "momentum", .doc = "momentum factor", .min = 0}, momentum);
  v.option({.name = "centered", .doc = "divide by the standard deviation"}, centered);
  v.option({.name = "tf_eps", .doc = "eps inside the root, as TensorFlow"}, tf_eps);
}
void ClipCoefficientAttrs::options(OptionVisitor& v) { v.option({.name = "max_norm", .doc = "largest norm", .min = 0}, max_norm); }

const OpDef& assign_op() {
  static const OpDef def{.name = "assign",
                         .doc = "state = value, in place",
                         .inputs = {Port::state("state"), "value", Port::scalar("gate?")},
                         .outputs = {Port::state("state")},
                         .infer = [](const OpContext& c) -> std::vector<TensorType> {
                           check_like(c.in(1), "value", c.in(0), "state");
                           check_gate(c, 2);
                           return {c.in(0)};
                         },
                         .no_gradient = kNoUpdateGradient,
                         .cost =
                             [](const OpContext& c) {
                               Cost cost = operand_cost(c, 0);
                               cost.bytes_read = static_cast<double>(c.in(1).bytes());  // does not read the old value
                               return cost;
                             },
                         .work = WorkClass::kState,
                         .precision = PrecisionRule::kKeepF32,
                         .updates = {{0, 0}},
                         .gate = 2};
  return def;
}
const OpDef& sgd_update_op() {
  static const OpDef def{.name = "sgd_update",
                         .doc = "one step of torch.optim.SGD, in place; the first step's buffer is the gradient",
                         .inputs = {Port::state("param"), "grad", Port::scalar("lr"), Port::scalar("step"), Port::state("momentum_buffer?"),
                                    Port::scalar("grad_scale?"), Port::scalar("gate?")},
                         .outputs = {Port::state("param"), Port::state("momentum_buffer")},
                         .make_attrs = make_options<SgdUpdateAttrs>,
                         .infer = infer_sgd,
                         .no_gradient = kNoUpdateGradient,
                         .cost = input_cost<6>,
                         .work = WorkClass::kState,
                         .precision = PrecisionRule::kKeepF32,
                         .updates = {{0, 0}, {1, 4}},
                         .gate = 6,
                         .definition = definition::sgd_update,
                         .cases = {"sgd_update:2048x1000+2048x1000+scalar+scalar@i64+2048x1000:momentum=0.9"}};
  return def;
}
const OpDef& adam_update_op() {
  static const OpDef def{.name = "adam_update",
                         .doc = "one step of torch.optim.Adam (Kingma, Ba 2015) or AdamW (Loshchilov, Hutter 2019), in place",
                         .inputs = {Port::state("param"), "grad", Port::scalar("lr"), Port::scalar("step"), Port::state("exp_avg"),
                                    Port::state("exp_avg_sq"), Port::scalar("grad_scale?"), Port::scalar("gate?")},
                         .outputs = {Port::state("param"), Port::state("exp_avg"), Port::state("exp_avg_sq")},
                         .make_attrs = make_options<AdamUpdateAttrs>,
                         .infer = infer_adam,
                         .no_gradient = kNoUpdateGradient,
                         .cost = input_cost<14>,
                         .work = WorkClass::kState,
                         .precision = PrecisionRule::kKeepF32,
                         .updates = {{0, 0}, {1, 4}, {2, 5}},
                         .gate = 7,
                         .definition = definition::adam_update,
                         .cases = {"adam_update:2048x1000+2048x1000+scalar+scalar@i64+2048x1000+2048x1000"}};
  return def;
}
const OpDef& rmsprop_update_op() {
  static const OpDef def{
      .name = "rmsprop_update",
      .doc = "one step of torch.optim.RMSprop (Tieleman, Hinton 2012), in place",
      .inputs = {Port::state("param"), "grad", Port::scalar("lr"), Port::scalar("step"), Port::state("square_avg"),
                 Port::state("grad_avg?"), Port::state("momentum_buffer?"), Port::scalar("grad_scale?"), Port::scalar("gate?")},
      .outputs = {Port::state("param"), Port::state("square_avg"), Port::state("grad_avg"), Port::state("momentum_buffer")},
      .make_attrs = make_options<RmspropUpdateAttrs>,
      .infer = infer_rmsprop,
      .no_gradient = kNoUpdateGradient,
      .cost = input_cost<12>,
      .work = WorkClass::kState,
      .precision = PrecisionRule::kKeepF32,
      .updates = {{0, 0}, {1, 4}, {2, 5}, {3, 6}},
      .gate = 8,
      .definition = definition::rmsprop_update,
      .cases = {"rmsprop_update:2048x1000+2048x1000+scalar+scalar@i64+2048x1000"}};
  return def;
}
const OpDef& ema_update_op() {
  static const OpDef def{.name = "ema_update",
                         .doc = "ema = decay * ema + (1 - decay) * value, in place; integers are copied",
                         .inputs = {Port::state("ema"), "value", Port::scalar("decay"), Port::scalar("gate?")},
                         .outputs = {Port::state("ema")},
                         .infer = infer_ema,
                         .no_gradient = kNoUpdateGradient,
                         .cost = input_cost<3>,
                         .work = WorkClass::kState,
                         .precision = PrecisionRule::kKeepF32,
                         .updates = {{0, 0}},
                         .gate = 3,
                         .definition = definition::ema_update,
                         .cases = {"ema_update:2048x1000+2048x1000+scalar"}};
  return def;
}
const OpDef& accumulate_op() {
  static const OpDef def{.name = "accumulate",
                         .doc = "adds a gradient to its accumulator, in place",
                         .inputs = {Port::state("acc"), "grad", Port::scalar("gate?")},
                         .outputs = {Port::state("acc")},
                         .infer = infer_accumulate,
                         .no_gradient = kNoUpdateGradient,
                         .cost = input_cost<1>,
                         .work = WorkClass::kState,
                         .precision = PrecisionRule::kKeepF32,
                         .updates = {{0, 0}},
                         .gate = 2,
                         .definition = definition::accumulate};
  return def;
}
const OpDef& clear_op() {
  static const OpDef def{.name = "clear",
                         .doc = "sets state to zero, in place",
                         .inputs = {Port::state("acc"), Port::scalar("gate?")},
                         .outputs = {Port::state("acc")},
                         .infer = [](const OpContext& c) -> std::vector<TensorType> {
                           check_gate(c, 1);
                           return {c.in(0)};
                         },
                         .no_gradient = kNoUpdateGradient,
                         .cost =
                             [](const OpContext& c) {
                               Cost cost = operand_cost(c, 0);
                               cost.bytes_read = 0;
                               return cost;
                             },
                         .work = WorkClass::kState,
                         .precision = PrecisionRule::kKeepF32,
                         .updates = {{0, 0}},
                         .gate = 1,
                         .definition = definition::clear};
  return def;
}
const OpDef& clip_coefficient_op() {
  static const OpDef def{.name = "clip_coefficient",
                         .doc = "min(1, max_norm / (sqrt(sum of squares) + 1e-6)), as torch.nn.utils.clip_grad_norm_",
                         .inputs = {Port::scalar("sum_squares")},
                         .outputs = {Port::scalar("coefficient")},
                         .make_attrs = make_options<ClipCoefficientAttrs>,
                         .infer = [](const OpContext& c) -> std::vector<TensorType> {
                           check_scalar(c.in(0), "sum_squares", DType::kF32);
                           check_not_negative(c.attrs<ClipCoefficientAttrs>().max_norm, "max_norm");
                           return {c.in(0)};
                         },
                         .no_gradient = kNoUpdateGradient,
                         .cost = elementwise_cost<4>,
                         .precision = PrecisionRule::kKeepF32,
                         .definition = definition::clip_coefficient,
                         .cases = {"clip_coefficient:scalar:max_norm=1"}};
  return def;
}
const OpDef& finite_gate_op() {
  static const OpDef def{.name = "finite_gate",
                         .doc = "true while all values were finite; records a non-finite value in place",
                         .inputs = {Port::state("stopped"), Port::scalar("value")},
                         .outputs = {Port::state("stopped"), Port::scalar("gate")},
                         .infer = infer_finite_gate,
                         .no_gradient = kNoUpdateGradient,
                         .work = WorkClass::kState,
                         .updates = {{0, 0}},
                         .definition = definition::finite_gate};
  return def;
}

Value assign(Value state, Value value, Value gate) { return emit("assign", {state, value, gate}); }
std::vector<Value> sgd_update(Value param, Value grad, Value lr, Value step, Value momentum_buffer, Value grad_scale,
                              const SgdUpdateAttrs& attrs, Value gate) {
  const Value inputs[] = {param, grad, lr, step, momentum_buffer, grad_scale, gate};
  return emit_all("sgd_update", std::make_unique<SgdUpdateAttrs>(attrs), inputs);
}
std::vector<Value> adam_update(Value param, Value grad, Value lr, Value step, Value exp_avg, Value exp_avg_sq, Value grad_scale,
                               const AdamUpdateAttrs& attrs, Value gate) {
  const Value inputs[] = {param, grad, lr, step, exp_avg, exp_avg_sq, grad_scale, gate};
  return emit_all("adam_update", std::make_unique<AdamUpdateAttrs>(attrs), inputs);
}
std::vector<Value> rmsprop_update(Value param, Value grad, Value lr, Value step, Value square_avg, Value grad_avg, Value momentum_buffer,
                                  Value grad_scale, const RmspropUpdateAttrs& attrs, Value gate) {
  const Value inputs[] = {param, grad, lr, step, square_avg, grad_avg, momentum_buffer, grad_scale, gate};
  return emit_all("rmsprop_update", std::make_unique<RmspropUpdateAttrs>(attrs), inputs);
}
Value ema_update(Value ema, Value value, Value decay, Value gate) { return emit("ema_update", {ema, value, decay, gate}); }
Value accumulate(Value acc, Value grad, Value gate) { return emit("accumulate", {acc, grad, gate}); }
Value clear(Value acc, Value gate) { return emit("clear", {acc, gate}); }
Value clip_coefficient(Value sum_squares, const ClipCoefficientAttrs& attrs) { return emit("clip_coefficient", {sum_squares}, attrs); }

Value finite_gate(Value stopped, Value value) {
  const Value inputs[] = {stopped, value};
  return emit_all("finite_gate", nullptr, inputs)[1];
}

OpTable update_ops() {
  return {&assign_op(),     &sgd_update_op(), &adam_update_op(),      &rmsprop_update_op(), &ema_update_op(),
          &accumulate_op(), &clear_op(),      &clip_coefficient_op(), &finite_gate_op()};
}

}  // namespace galley
