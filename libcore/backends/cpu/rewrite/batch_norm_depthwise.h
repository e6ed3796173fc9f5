#pragma once
// A batch norm and the depthwise convolution that reads it as one operator: the output of the norm is never written to memory. The rewrite
// fuse_batch_norm_depthwise (rewrites.h) creates it.

#include "libcore/ops/attrs.h"
#include "libcore/ops/conv.h"
#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

struct BatchNormDepthwiseAttrs : OptionsOf<BatchNormDepthwiseAttrs> {
  double eps = 1e-5;
  Activation activation = Activation::kNone;  // of the norm: none, relu, relu6 or hardswish
  std::vector<int64_t> stride{1};
  std::vector<int64_t> padding{0};
  void options(OptionVisitor& v) override;

  /// The attributes of the convolution, for this number of channels.
  Conv2dWindow window(int64_t channels) const;
};

const OpDef& batch_norm_depthwise_op();
const OpDef& batch_norm_depthwise_backward_op();

struct BatchNormDepthwise {
  Value y, mean, var;
};
/// x [N,C,H,W], weight [C,1,kh,kw], gamma and beta [C] or absent -> y = conv2d(batch_norm(x)) [N,C,H',W'], each channel by its own kernel;
/// mean and (biased) var [C] of x, by which it was normalized.
BatchNormDepthwise batch_norm_depthwise(Value x, Value weight, Value gamma, Value beta, const BatchNormDepthwiseAttrs& attrs = {});
/// (dx, dweight, dgamma, dbeta) of y's gradient.
std::vector<Value> batch_norm_depthwise_backward(Value grad, Value weight, Value x, Value mean, Value var, Value gamma, Value beta,
                                                 const BatchNormDepthwiseAttrs& attrs);

}  // namespace galley
