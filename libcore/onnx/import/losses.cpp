// Imports loss operators.

#include "libcore/onnx/import/import.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/index.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/softmax.h"
#include "libcore/ops/unary.h"

namespace galley::onnx_import {
namespace {

/// -weight[target] log_prob[target] for each element; sums and means skip ignored targets. log_prob [N,C,...], target [N,...].
Value negative_log_likelihood(Call& c, Value log_prob, Value target) {
  const int64_t classes = log_prob.channels();
  const Value index = cast(target, DType::kI64), zero = c.scalar_value(DType::kI64, 0);
  Value place = index, counts = full(log_prob.graph(), {.dtype = log_prob.dtype(), .shape = target.shape()}, 1);
  if (c.find("ignore_index") != nullptr) {
    const Value ignored = equal(index, c.scalar_value(DType::kI64, static_cast<double>(c.integer("ignore_index", 0))));
    place = where(ignored, zero, index);
    counts = where(ignored, c.scalar_value(log_prob.dtype(), 0), counts);
  }
  Value weights = counts;
  if (c.has(2)) {
    GALLEY_CHECK_INPUT(c.x(2).shape() == Shape({classes}), "its weights are ", c.x(2).type(), ", but must have ", classes, " elements");
    weights = mul(counts, reshape(gather(c.x(2), reshape(place, {-1}), 0), target.shape()));
  }
  const Value picked = squeeze(gather(log_prob, unsqueeze(place, 1), 1), 1), losses = neg(mul(picked, weights));
  const std::string reduction = c.text("reduction", "mean");
  if (reduction == "none") return losses;
  if (reduction == "sum") return sum(losses);
  if (reduction != "mean") c.refuse(cat("reduction '", reduction, "' is not supported; it must be none, sum or mean"));
  return div(sum(losses), sum(weights));
}

void check_targets(Value scores, Value target) {
  bool fits = scores.shape().rank() == target.shape().rank() + 1 && scores.shape().rank() >= 2;
  for (int d = 0; fits && d < target.shape().rank(); ++d) fits = target.shape()[d] == scores.shape()[d == 0 ? 0 : d + 1];
  GALLEY_CHECK_INPUT(fits, "targets ", target.type(), " do not fit scores ", scores.type());
}

void nll_loss(Call& c) {
  check_targets(c.x(0), c.x(1));
  c.set(negative_log_likelihood(c, c.x(0), c.x(1)));
}
void softmax_cross_entropy(Call& c) {
  check_targets(c.x(0), c.x(1));
  SoftmaxAttrs attrs;
  attrs.axis = 1;
  const Value log_prob = log_softmax(c.x(0), attrs);
  c.set(0, negative_log_likelihood(c, log_prob, c.x(1)));
  c.set(1, log_prob);
}

}  // namespace

MakeTable loss_rows() { return {{"NegativeLogLikelihoodLoss", nll_loss}, {"SoftmaxCrossEntropyLoss", softmax_cross_entropy}}; }

}  // namespace galley::onnx_import
