#pragma once
// Normalization: batch norm (training, inference, running statistics), layer norm, group norm, and their backward operators.

#include <string>

#include "libcore/ops/attrs.h"
#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

struct BatchNormAttrs : OptionsOf<BatchNormAttrs> {
  double eps = 1e-5;
  Activation activation = Activation::kNone;  // none, relu, relu6 or hardswish; with a residual: none or relu
  /// Statistics are those of all ranks together, which sum them in a collective of this name; "": of this rank alone.
  std::string sync;
  void options(OptionVisitor& v) override;
};
struct BatchNormBackwardAttrs : OptionsOf<BatchNormBackwardAttrs> {
  double eps = 1e-5;
  Activation activation = Activation::kNone;
  bool residual = false;  // a fourth output: the gradient of the residual
  std::string sync;       // as in BatchNormAttrs; dgamma and dbeta are of this rank alone
  void options(OptionVisitor& v) override;
};
struct BatchNormInferenceAttrs : OptionsOf<BatchNormInferenceAttrs> {
  double eps = 1e-5;
  Activation activation = Activation::kNone;
  void options(OptionVisitor& v) override;
};
struct BatchNormUpdateAttrs : OptionsOf<BatchNormUpdateAttrs> {
  double momentum = 0.1;  // weight of the batch statistics
  int64_t count = 1;      // values per channel in the batch
  void options(OptionVisitor& v) override;
};
struct LayerNormAttrs : OptionsOf<LayerNormAttrs> {
  int64_t dims = 1;  // number of trailing dimensions to normalize
  double eps = 1e-5;
  void options(OptionVisitor& v) override;
};
struct LayerNormBackwardAttrs : OptionsOf<LayerNormBackwardAttrs> {
  int64_t dims = 1;
  void options(OptionVisitor& v) override;
};
struct GroupNormAttrs : OptionsOf<GroupNormAttrs> {
  int64_t groups = 1;
  double eps = 1e-5;
  void options(OptionVisitor& v) override;
};
struct GroupNormBackwardAttrs : OptionsOf<GroupNormBackwardAttrs> {
  int64_t groups = 1;
  void options(OptionVisitor& v) override;
};

const OpDef& batch_norm_op();
const OpDef& batch_norm_backward_op();
const OpDef& batch_norm_inference_op();
const OpDef& batch_norm_update_op();
const OpDef& layer_norm_op();
const OpDef& layer_norm_backward_op();
const OpDef& group_norm_op();
const OpDef& group_norm_backward_op();

/// Can batch norm apply this activation?
bool batch_norm_takes(Activation activation);

struct BatchNorm {
  Value y, mean, var;
};
/// Ioffe, Szegedy 2015, with batch statistics over all dimensions but 1 (x of rank 2..5):
/// y = activation(gamma (x - mean) / sqrt(var + eps) + beta + residual); mean and (biased) var are [C].
BatchNorm batch_norm(Value x, Value gamma, Value beta, const BatchNormAttrs& attrs = {}, Value residual = {});
/// (dx, dgamma, dbeta[, dresidual]). The input of the activation is computed again from x. With a residual (relu only), y is the output
/// of the forward pass and the mask is y > 0.
std::vector<Value> batch_norm_backward(Value grad, Value x, Value mean, Value var, Value gamma, Value beta, Value y,
                                       const BatchNormBackwardAttrs& attrs);
/// With the running statistics.
Value batch_norm_inference(Value x, Value gamma, Value beta, Value running_mean, Value running_var,
                           const BatchNormInferenceAttrs& attrs = {});
/// In place: running = (1 - momentum) running + momentum batch, the variance unbiased (count / (count - 1)), as in PyTorch; adds 1 to the
/// counter.
std::vector<Value> batch_norm_update(Value running_mean, Value running_var, Value mean, Value var, Value num_batches_tracked,
                                     const BatchNormUpdateAttrs& attrs);
struct LayerNorm {
  Value y, mean, rstd;
};
/// Ba et al. 2016, over the trailing `dims` dimensions; gamma and beta have the shape of these, mean and rstd that of the leading
/// dimensions.
LayerNorm layer_norm(Value x, Value gamma, Value beta, const LayerNormAttrs& attrs = {});
/// (dx, dgamma, dbeta); dgamma and dbeta have the shape of the normalized dimensions.
std::vector<Value> layer_norm_backward(Value grad, Value x, Value mean, Value rstd, Value gamma, const LayerNormBackwardAttrs& attrs);
struct GroupNorm {
  Value y, mean, rstd;
};
/// Wu, He 2018, over each of `groups` groups of channels of a sample; gamma and beta [C], mean and rstd [N,groups].
GroupNorm group_norm(Value x, Value gamma, Value beta, const GroupNormAttrs& attrs);
std::vector<Value> group_norm_backward(Value grad, Value x, Value mean, Value rstd, Value gamma, const GroupNormBackwardAttrs& attrs);

}  // namespace galley
