// Definitions of softmax and of losses.

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/index.h"
#include "libcore/ops/loss.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/softmax.h"
#include "libcore/ops/unary.h"

namespace galley::definition {
namespace {

ReduceAttrs along(int64_t axis) {
  ReduceAttrs attrs;
  attrs.axes = {axis};
  attrs.keepdim = true;
  return attrs;
}

/// x minus its largest value along the axis. This does not change softmax, and exp cannot overflow.
Value shifted(Value x, int64_t axis) { return sub(x, amax(x, along(axis))); }

/// x - log sum exp x. An empty axis has no elements to sum.
Value log_softmax_of(Value x, int64_t axis) {
  if (x.type().elements() == 0) return x;
  const Value small = shifted(x, axis);
  return sub(small, log(sum(exp(small), along(axis))));
}

Value reduced(Value loss, Reduction reduction) {
  switch (reduction) {
    case Reduction::kNone: return loss;
    case Reduction::kSum: return sum(loss);
    case Reduction::kMean: return mean(loss);
  }
  GALLEY_ASSERT(false);
}

/// Cross entropy, expressed by the share of each class in the loss of each position: class weight times target, with label smoothing; 0 for
/// an ignored target.
class CrossEntropy {
 public:
  CrossEntropy(Expansion& e, size_t logits) : attrs_(e.attrs<CrossEntropyAttrs>()), log_p_(log_softmax_of(e.in(logits), 1)) {
    const Value x = e.in(logits), target = e.in(logits + 1);
    const int64_t classes = x.shape()[1];
    positions_ = classes == 0 ? 0 : x.type().elements() / classes;
    probabilities_ = is_floating(target.dtype());
    const Value weight = e.has(logits + 2) ? per_channel(e.in(logits + 2), x.shape().rank()) : Value();
    Value hit = target;
    if (!probabilities_) {
      const Value ignored = equal(target, full(e.graph(), {target.dtype(), {}, {}, {}}, static_cast<double>(attrs_.ignore_index)));
      const Value known = where(ignored, full(e.graph(), {target.dtype(), {}, {}, {}}, 0), target);
      counts_ = unsqueeze(cast(where(ignored, e.constant(0), e.constant(1)), x.dtype()), 1);
      hit = mul(one_hot(known, classes, 1, x.dtype()), counts_);
    }
    hits_ = weight ? mul(hit, weight) : hit;
    share_ =
        attrs_.label_smoothing == 0 ? hit : affine(hit, 1 - attrs_.label_smoothing, attrs_.label_smoothing / static_cast<double>(classes));
    if (counts_ && attrs_.label_smoothing != 0) share_ = mul(share_, counts_);
    if (weight) share_ = mul(share_, weight);
  }

  Value log_probabilities() const { return log_p_; }
  Value shares() const { return share_; }
  bool each() const { return attrs_.reduction == Reduction::kNone; }
  /// `sum` divided by the denominator of the mean: the sum of the targets' weights, or the number of positions if targets are
  /// probabilities.
  Value divided(Value sum) const {
    if (attrs_.reduction != Reduction::kMean) return sum;
    if (probabilities_) return affine(sum, 1 / static_cast<double>(positions_));
    return div(sum, galley::sum(hits_));
  }

 private:
  const CrossEntropyAttrs& attrs_;
  Value log_p_, counts_, hits_, share_;
  int64_t positions_ = 0;
  bool probabilities_ = false;
};

Value zero_where(Value condition, Value otherwise, Expansion& e) { return where(condition, e.constant(0), otherwise); }

}  // namespace

void softmax(Expansion& e) {
  const Value x = e.in(0);
  const int64_t axis = e.attrs<SoftmaxAttrs>().axis;
  if (x.type().elements() == 0) return e.set(0, x);
  const Value powers = exp(shifted(x, axis));
  e.set(0, div(powers, sum(powers, along(axis))));
}

void softmax_backward(Expansion& e) {
  const Value grad = e.in(0), y = e.in(1);
  e.set(0, mul(y, sub(grad, sum(mul(grad, y), along(e.attrs<SoftmaxAttrs>().axis)))));
}

void log_softmax(Expansion& e) { e.set(0, log_softmax_of(e.in(0), e.attrs<SoftmaxAttrs>().axis)); }

void log_softmax_backward(Expansion& e) {
  const Value grad = e.in(0);
  e.set(0, sub(grad, mul(exp(e.in(1)), sum(grad, along(e.attrs<SoftmaxAttrs>().axis)))));
}

void cross_entropy(Expansion& e) {
  const CrossEntropy of(e, 0);
  // A logit of -inf whose share is 0 contributes nothing.
  const Value terms = zero_where(equal(of.shares(), e.constant(0)), mul(of.shares(), of.log_probabilities()), e);
  const Value losses = neg(sum(terms, {1}));
  e.set(0, of.each() ? losses : of.divided(sum(losses)));
}

void cross_entropy_backward(Expansion& e) {
  const CrossEntropy of(e, 1);
  const Value grad = of.each() ? unsqueeze(e.in(0), 1) : e.in(0);
  const Value slope = sub(mul(exp(of.log_probabilities()), sum(of.shares(), along(1))), of.shares());
  // If the mean has no elements, the gradient is 0 instead of 0/0.
  e.set(0, zero_where(equal(slope, e.constant(0)), of.divided(mul(grad, slope)), e));
}

void mse_loss(Expansion& e) { e.set(0, reduced(square(sub(e.in(0), e.in(1))), e.attrs<LossAttrs>().reduction)); }

void bce_with_logits(Expansion& e) {
  const Value x = e.in(0);
  // max(x,0) - x target is exact where the prediction is correct and |x| is large. log(1 + exp(-|x|)) is the remaining loss there.
  const Value loss = add(sub(relu(x), mul(x, e.in(1))), emit("softplus", {neg(abs(x))}));
  e.set(0, reduced(e.has(2) ? mul(loss, e.in(2)) : loss, e.attrs<LossAttrs>().reduction));
}

}  // namespace galley::definition
