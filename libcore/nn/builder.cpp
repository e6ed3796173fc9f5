#include "libcore/nn/builder.h"

#include <cmath>

#include "libcore/base/philox.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/conv.h"
#include "libcore/ops/deform_conv.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/emit.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/random.h"
#include "libcore/ops/registry.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley {
namespace {

/// Sets the phase of a graph and restores it at the end of the scope.
class PhaseScope {
 public:
  PhaseScope(Graph& graph, Phase phase) : graph_(graph), saved_(graph.phase()) { graph.set_phase(phase); }
  ~PhaseScope() { graph_.set_phase(saved_); }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Graph& graph_;
  Phase saved_;
};

/// The rule, or PyTorch's default for biases.
Init bias_init(const std::optional<Init>& rule, const Shape& weight) {
  return rule ? *rule : Init::uniform(1.0 / std::sqrt(static_cast<double>(fan_of(weight, Init::Fan::kIn))));
}

}  // namespace

Builder::Builder(Graph& graph, BuilderOptions options) : graph_(graph), options_(std::move(options)) { ensure_ops_registered(); }

Value Builder::rng() { return fed("rng", {.dtype = DType::kI64, .shape = {3}}); }

Value Builder::fed(const std::string& name, const TensorType& type) {
  const ValueId known = graph_.find_input(name);
  if (known == kNoValue) return graph_.add_input(name, type, ValueRole::kInput);
  GALLEY_ASSERT(graph_.type(known).dtype == type.dtype && graph_.type(known).shape == type.shape, "the input '", name, "' is ",
                graph_.type(known), " and ", type);
  return graph_.at(known);
}

Value Builder::carried(std::string_view leaf, const TensorType& type) {
  const std::string& path = graph_.path();
  return graph_.add_input(path.empty() ? std::string(leaf) : cat(path, ".", leaf), type, ValueRole::kCarried);
}

Value Builder::parameter(std::string_view leaf, Shape shape, const Init& init, std::string_view module_type) {
  const std::string& path = graph_.path();
  const TensorType type{.dtype = options_.dtype, .shape = shape};
  ParameterSpec spec{.name = path.empty() ? std::string(leaf) : cat(path, ".", leaf),
                     .type = type,
                     .role = ValueRole::kParameter,
                     .init = init,
                     .trainable = !frozen_,
                     .module = path,
                     .module_type = std::string(module_type)};
  const Value value = graph_.add_input(spec.name, type, ValueRole::kParameter);
  parameters_.push_back(std::move(spec));
  return value;
}

Value Builder::buffer(std::string_view leaf, TensorType type, const Init& init, std::string_view module_type) {
  const std::string& path = graph_.path();
  ParameterSpec spec{.name = path.empty() ? std::string(leaf) : cat(path, ".", leaf),
                     .type = type,
                     .role = ValueRole::kBuffer,
                     .init = init,
                     .trainable = false,
                     .module = path,
                     .module_type = std::string(module_type)};
  const Value value = graph_.add_input(spec.name, std::move(type), ValueRole::kBuffer);
  parameters_.push_back(std::move(spec));
  return value;
}

LinearParameters Builder::convolution_parameters(std::string_view op, Value x, const std::vector<int64_t>& kernel_size,
                                                 int64_t out_channels, bool bias, int64_t groups) {
  const auto axes = std::ssize(kernel_size);
  GALLEY_CHECK(x.shape().rank() == axes + 2, "[", op, "] needs an input with ", axes + 2, " dimensions ",
               axes == 2 ? "[N,C,H,W]" : "[N,C,D,H,W]", ", not ", x.type(), ", at ", graph_.path());
  GALLEY_CHECK(out_channels >= 1 && groups >= 1 && x.channels() % groups == 0 && out_channels % groups == 0, "[", op, "] groups=", groups,
               " must divide the channels of input and output; the input is ", x.type(), ", out_channels ", out_channels, ", at ",
               graph_.path());
  Shape shape{out_channels, x.channels() / groups};
  for (const int64_t size : kernel_size) shape.push_back(size);
  LinearParameters layer;
  layer.weight = parameter("weight", shape, init_.conv_weight, op);
  if (bias) layer.bias = parameter("bias", {out_channels}, bias_init(init_.conv_bias, shape), op);
  return layer;
}

Value Builder::convolution(std::string_view op, Value x, const std::vector<int64_t>& kernel_size, int64_t out_channels, bool bias,
                           const Conv2dAttrs& attrs) {
  const LinearParameters layer = convolution_parameters(op, x, kernel_size, out_channels, bias, attrs.groups);
  return emit(op, {x, layer.weight, layer.bias}, attrs);
}

Value Builder::conv2d(std::string_view name, Value x, const Conv2dOptions& options) {
  const PathScope module = scope(name);
  Conv2dAttrs attrs;
  attrs.stride = options.stride.list();
  attrs.padding = options.padding.list();
  attrs.dilation = options.dilation.list();
  attrs.groups = options.groups;
  return convolution("conv2d", x, {options.kernel_size.h, options.kernel_size.w}, options.out_channels, options.bias, attrs);
}

Value Builder::conv3d(std::string_view name, Value x, const Conv3dOptions& options) {
  const PathScope module = scope(name);
  Conv2dAttrs attrs;
  attrs.stride = options.stride.list();
  attrs.padding = options.padding.list();
  attrs.dilation = options.dilation.list();
  attrs.groups = options.groups;
  return convolution("conv3d", x, options.kernel_size.list(), options.out_channels, options.bias, attrs);
}

Value Builder::deform_conv2d(std::string_view name, Value x, Value offset, const Conv2dOptions& options, Value mask) {
  const PathScope module = scope(name);
  DeformConv2dAttrs attrs;
  attrs.stride = options.stride.list();
  attrs.padding = options.padding.list();
  attrs.dilation = options.dilation.list();
  attrs.groups = options.groups;
  const LinearParameters layer = convolution_parameters("deform_conv2d", x, {options.kernel_size.h, options.kernel_size.w},
                                                        options.out_channels, options.bias, options.groups);
  return galley::deform_conv2d(x, offset, layer.weight, attrs, layer.bias, mask);
}

Value Builder::linear(std::string_view name, Value x, const LinearOptions& options) {
  const PathScope module = scope(name);
  GALLEY_CHECK(x.shape().rank() >= 1, "[linear] needs an input with at least 1 dimension, not ", x.type(), ", at ", graph_.path());
  return linear(x, linear_parameters(x.shape()[-1], options));
}

LinearParameters Builder::linear_parameters(int64_t in_features, const LinearOptions& options) {
  const Shape shape{options.out_features, in_features};
  std::optional<Init> bias;
  if (options.bias) bias = bias_init(init_.linear_bias, shape);
  return linear_parameters(shape, init_.linear_weight, bias);
}

LinearParameters Builder::linear_parameters(const Shape& shape, const Init& weight, const std::optional<Init>& bias) {
  const std::string& path = graph_.path();
  LinearParameters layer;
  layer.weight = parameter("weight", shape, weight, "linear");
  if (bias) layer.bias = parameter("bias", {shape[0]}, *bias, "linear");
  linear_layers_.push_back(path);
  const LoraOptions& lora = options_.lora;
  if (!lora.selects || !lora.selects(path)) return layer;
  const auto adapter = [&](std::string_view name, Shape adapter_shape, const Init& init) {
    const PathScope module = scope(name);
    return parameter("weight", std::move(adapter_shape), init, kAdapterType);
  };
  layer.lora_a = adapter("lora_A", {lora.rank, shape[1]}, Init::kaiming_uniform(std::sqrt(5.0)));
  layer.lora_b = adapter("lora_B", {shape[0], lora.rank}, Init::zeros());
  return layer;
}

Value Builder::linear(Value x, const LinearParameters& layer) {
  const Value y = emit("linear", {x, layer.weight, layer.bias}, LinearAttrs());
  if (!layer.lora_a) return y;
  const LoraOptions& lora = options_.lora;
  Value low = dropout("lora_dropout", x, lora.dropout);
  {
    const PathScope module = scope("lora_A");
    low = galley::linear(low, layer.lora_a);
    // The scale is applied to the shorter vectors.
    if (const double scale = lora.alpha / static_cast<double>(lora.rank); scale != 1) low = affine(low, scale);
  }
  const PathScope module = scope("lora_B");
  return add(y, galley::linear(low, layer.lora_b));
}

Value Builder::batch_norm(std::string_view name, Value x, const BatchNormOptions& options) {
  const PathScope module = scope(name);
  GALLEY_CHECK(x.shape().rank() >= 2, "[batch_norm] needs an input [N,C,...], not ", x.type(), ", at ", graph_.path());
  const int64_t channels = x.channels();
  if (options.frozen_eps) return frozen_batch_norm(x, options);
  const TensorType statistics{.dtype = options_.dtype, .shape = {channels}};
  const Value weight = options.affine ? parameter("weight", {channels}, options.weight_init, "batch_norm") : Value();
  const Value bias = options.affine ? parameter("bias", {channels}, options.bias_init, "batch_norm") : Value();
  const Value running_mean = buffer("running_mean", statistics, options.mean_init, "batch_norm");
  const Value running_var = buffer("running_var", statistics, options.var_init, "batch_norm");
  const Value batches = buffer("num_batches_tracked", {.dtype = DType::kI64}, Init::zeros(), "batch_norm");

  const bool frozen = options_.frozen_batch_norm && options_.frozen_batch_norm(graph_.path());
  if (!training() || frozen) {
    BatchNormInferenceAttrs attrs;
    attrs.eps = options.eps;
    return emit("batch_norm_inference", {x, weight, bias, running_mean, running_var}, attrs);
  }
  // As PyTorch: a single value per channel has no variance.
  const int64_t count = channels == 0 ? 0 : x.shape().elements() / channels;
  GALLEY_CHECK(count > 1, "[batch_norm] training needs more than one value per channel, but the input is ", x.type(), ", at ",
               graph_.path(), "; use a larger batch or image");
  BatchNormAttrs attrs;
  attrs.eps = options.eps;
  const std::array<Value, 3> inputs{x, weight, bias};
  const std::vector<Value> made = emit_all("batch_norm", std::make_unique<BatchNormAttrs>(attrs), inputs);
  const PhaseScope update(graph_, Phase::kUpdate);
  BatchNormUpdateAttrs update_attrs;
  update_attrs.momentum = options.momentum;
  update_attrs.count = count;
  emit("batch_norm_update", {running_mean, running_var, made[1], made[2], batches}, update_attrs);
  return made[0];
}

Value Builder::frozen_batch_norm(Value x, const BatchNormOptions& options) {
  const TensorType type{.dtype = options_.dtype, .shape = {x.channels()}};
  const Value weight = buffer("weight", type, options.weight_init, "batch_norm"),
              bias = buffer("bias", type, options.bias_init, "batch_norm");
  const Value mean = buffer("running_mean", type, options.mean_init, "batch_norm"),
              var = buffer("running_var", type, options.var_init, "batch_norm");
  BatchNormInferenceAttrs attrs;
  attrs.eps = *options.frozen_eps;
  return emit("batch_norm_inference", {x, weight, bias, mean, var}, attrs);
}

Value Builder::layer_norm(std::string_view name, Value x, const LayerNormOptions& options) {
  const PathScope module = scope(name);
  const int rank = x.shape().rank();
  GALLEY_CHECK(options.dims >= 1 && options.dims <= rank, "[layer_norm] dims=", options.dims, ", but the input is ", x.type(), ", at ",
               graph_.path());
  Shape shape;
  for (int axis = rank - static_cast<int>(options.dims); axis < rank; ++axis) shape.push_back(x.shape()[axis]);
  const Value weight = options.affine ? parameter("weight", shape, Init::ones(), "layer_norm") : Value();
  const Value bias = options.affine && options.bias ? parameter("bias", shape, Init::zeros(), "layer_norm") : Value();
  LayerNormAttrs attrs;
  attrs.dims = options.dims;
  attrs.eps = options.eps;
  return emit("layer_norm", {x, weight, bias}, attrs);
}

Value Builder::group_norm(std::string_view name, Value x, const GroupNormOptions& options) {
  const PathScope module = scope(name);
  GALLEY_CHECK(x.shape().rank() >= 2, "[group_norm] needs an input [N,C,...], not ", x.type(), ", at ", graph_.path());
  const Value weight = options.affine ? parameter("weight", {x.channels()}, Init::ones(), "group_norm") : Value();
  const Value bias = options.affine ? parameter("bias", {x.channels()}, Init::zeros(), "group_norm") : Value();
  GroupNormAttrs attrs;
  attrs.groups = options.groups;
  attrs.eps = options.eps;
  return emit("group_norm", {x, weight, bias}, attrs);
}

Value Builder::embedding(std::string_view name, Value index, const EmbeddingOptions& options) {
  const PathScope module = scope(name);
  const Value weight = parameter("weight", {options.rows, options.width}, Init::normal(options.stddev), "embedding");
  return galley::embedding(weight, index);
}

Value Builder::prelu(std::string_view name, Value x, const PReluOptions& options) {
  const PathScope module = scope(name);
  const int64_t count = options.num_parameters;
  GALLEY_CHECK(count == 1 || (x.shape().rank() >= 2 && count == x.channels()), "[prelu] num_parameters is ", count,
               "; it must be 1 or the number of channels (dimension 1) of the input ", x.type(), ", at ", graph_.path());
  const Value weight = parameter("weight", {count}, Init::constant(options.init), "prelu");
  if (count == 1) return emit("prelu", {x, weight});
  std::vector<int64_t> shape(static_cast<size_t>(x.shape().rank() - 1), 1);
  shape.front() = count;
  ReshapeAttrs by_channel;
  by_channel.shape = std::move(shape);
  return emit("prelu", {x, reshape(weight, by_channel)});
}

Value Builder::dropout(std::string_view name, Value x, double p) {
  if (!training() || p == 0) return x;
  DropoutAttrs attrs;
  attrs.p = p;
  attrs.stream = random_stream(name);
  const PathScope module = scope(name);
  return galley::dropout(x, rng(), attrs);
}

Value Builder::stochastic_depth(std::string_view name, Value x, double p) {
  if (!training() || p == 0) return x;
  StochasticDepthAttrs attrs;
  attrs.p = p;
  attrs.stream = random_stream(name);
  const PathScope module = scope(name);
  return galley::stochastic_depth(x, rng(), attrs);
}

int64_t Builder::random_stream(std::string_view name) {
  const PathScope module = scope(name);
  const int turn = random_uses_[graph_.path()]++;
  return static_cast<int64_t>(stream_key(static_cast<uint64_t>(turn), graph_.path()) >> 1);
}

}  // namespace galley
