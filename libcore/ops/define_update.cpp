// Definitions of the update phase: they compute the new values first and then assign them to the states.

#include <limits>

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/unary.h"
#include "libcore/ops/update.h"

namespace galley::definition {
namespace {

/// Inputs 0..3 of all optimizer steps: param, grad, lr, step.
struct Step {
  Step(Expansion& e, size_t scale_input, double weight_decay) : param(e.in(0)), grad(e.in(1)), lr(e.in(2)), step(e.in(3)) {
    if (e.has(scale_input)) grad = mul(grad, e.in(scale_input));
    if (weight_decay != 0) grad = add(grad, affine(param, weight_decay));
  }
  Value param, grad, lr, step;
};

/// weight * a + (1 - weight) * b.
Value mixed(double weight, Value a, Value b) { return add(affine(a, weight), affine(b, 1 - weight)); }

/// 1 - beta^step, in double, because 1 - 0.999 has only four significant digits in float32.
Value correction(Expansion& e, double beta, Value step) {
  TensorType scalar;
  scalar.dtype = DType::kF64;
  return cast(affine(power(full(e.graph(), scalar, beta), cast(step, DType::kF64)), -1, 1), e.compute());
}

}  // namespace

void sgd_update(Expansion& e) {
  const auto& a = e.attrs<SgdUpdateAttrs>();
  const Step at(e, 5, a.weight_decay);
  Value direction = at.grad, buffer;
  if (a.momentum != 0) {
    const Value first = equal(at.step, full(e.graph(), e.type(3), 1));
    buffer = where(first, at.grad, add(affine(e.in(4), a.momentum), affine(at.grad, 1 - a.dampening)));
    direction = a.nesterov ? add(at.grad, affine(buffer, a.momentum)) : buffer;
  }
  e.assign(0, 0, sub(at.param, mul(at.lr, direction)));
  if (buffer) e.assign(1, 4, buffer);
}

void adam_update(Expansion& e) {
  const auto& a = e.attrs<AdamUpdateAttrs>();
  const Step at(e, 6, a.decoupled ? 0 : a.weight_decay);
  const Value param = a.decoupled && a.weight_decay != 0 ? mul(at.param, affine(at.lr, -a.weight_decay, 1)) : at.param;
  const Value mean = mixed(a.beta1, e.in(4), at.grad), mean_square = mixed(a.beta2, e.in(5), square(at.grad));
  const Value root = div(sqrt(mean_square), sqrt(correction(e, a.beta2, at.step)));
  const Value change = div(mul(div(at.lr, correction(e, a.beta1, at.step)), mean), affine(root, 1, a.eps));
  e.assign(0, 0, sub(param, change));
  e.assign(1, 4, mean);
  e.assign(2, 5, mean_square);
}

void rmsprop_update(Expansion& e) {
  const auto& a = e.attrs<RmspropUpdateAttrs>();
  const Step at(e, 7, a.weight_decay);
  const Value mean_square = mixed(a.alpha, e.in(4), square(at.grad));
  Value mean, variance = mean_square;
  if (a.centered) {
    mean = mixed(a.alpha, e.in(5), at.grad);
    variance = sub(mean_square, square(mean));
  }
  const Value root = a.tf_eps ? sqrt(affine(variance, 1, a.eps)) : affine(sqrt(variance), 1, a.eps);
  Value direction = div(at.grad, root);
  if (a.momentum != 0) direction = add(affine(e.in(6), a.momentum), direction);
  e.assign(0, 0, sub(at.param, mul(at.lr, direction)));
  e.assign(1, 4, mean_square);
  if (mean) e.assign(2, 5, mean);
  if (a.momentum == 0) return;
  if (!mean) e.set(2, e.constant(0, e.output_type(2).shape));
  e.assign(3, 6, direction);
}

void ema_update(Expansion& e) {
  if (!is_floating(e.type(0).dtype)) return e.assign(0, 0, e.in(1));  // counters are copied
  const Value decay = e.in(2);
  e.assign(0, 0, add(mul(decay, e.in(0)), mul(affine(decay, -1, 1), e.in(1))));
}

void accumulate(Expansion& e) { e.assign(0, 0, add(e.in(0), e.in(1))); }

void clear(Expansion& e) { e.assign(0, 0, full(e.graph(), e.in(0).type(), 0)); }

void clip_coefficient(Expansion& e) {
  const Value ratio = div(e.constant(e.attrs<ClipCoefficientAttrs>().max_norm), affine(sqrt(e.in(0)), 1, 1e-6));
  e.set(0, minimum(ratio, e.constant(1)));
}

void finite_gate(Expansion& e) {
  const Value no = full(e.graph(), e.type(0), 0);
  const Value finite = less(abs(e.in(1)), e.constant(std::numeric_limits<double>::infinity())), open = where(e.in(0), no, finite);
  e.assign(0, 0, equal(open, no));
  e.set(1, open);
}

}  // namespace galley::definition
