#pragma once
// Builder: captures layers that own parameters. Model code is written once and serves training, inference, every back end and any
// precision. Functions without parameters (relu, add, max_pool2d) are the free capture functions of ops/.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libcore/graph/graph.h"
#include "libcore/nn/parameter.h"

namespace galley {

/// Whether dropout, batch statistics and auxiliary classifiers are active.
enum class Mode { kTraining, kEvaluation };

/// Rows and columns: two numbers, or one number for both.
struct Size2 {
  int64_t h = 1;
  int64_t w = 1;
  Size2(int64_t both) : h(both), w(both) {}  // NOLINT: implicit, so that models can write `.stride = 2`
  Size2(int64_t rows, int64_t columns) : h(rows), w(columns) {}
  std::vector<int64_t> list() const { return h == w ? std::vector<int64_t>{h} : std::vector<int64_t>{h, w}; }
};

struct Conv2dAttrs;

/// Depth, rows and columns of a three-dimensional window.
struct Size3 {
  int64_t d = 1;
  int64_t h = 1;
  int64_t w = 1;
  Size3(int64_t all) : d(all), h(all), w(all) {}  // NOLINT: implicit, as Size2
  Size3(int64_t depth, int64_t rows, int64_t columns) : d(depth), h(rows), w(columns) {}
  std::vector<int64_t> list() const { return {d, h, w}; }
};

/// Options of the layers below, named as in PyTorch.
struct Conv2dOptions {
  int64_t out_channels;
  Size2 kernel_size = 1;
  Size2 stride = 1;
  Size2 padding = 0;
  Size2 dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};
struct Conv3dOptions {
  int64_t out_channels;
  Size3 kernel_size = 1;
  Size3 stride = 1;
  Size3 padding = 0;
  Size3 dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};
struct LinearOptions {
  int64_t out_features;
  bool bias = true;
};
struct BatchNormOptions {
  double eps = 1e-5;
  double momentum = 0.1;  // weight of the batch's statistics in the running statistics
  bool affine = true;
  Init weight_init = Init::ones();
  Init bias_init = Init::zeros(), mean_init = Init::zeros(), var_init = Init::ones();
  /// The norm is constant, with this epsilon: it uses the running statistics, also in training, and weight and bias are buffers
  /// (torchvision's FrozenBatchNorm2d).
  std::optional<double> frozen_eps = {};
};
struct LayerNormOptions {
  int64_t dims = 1;  // number of trailing dimensions to normalize
  double eps = 1e-5;
  bool affine = true;
  bool bias = true;  // no effect without affine
};
struct GroupNormOptions {
  int64_t groups;
  double eps = 1e-5;
  bool affine = true;
};
struct EmbeddingOptions {
  int64_t rows;       // of the table
  int64_t width;      // elements of a row
  double stddev = 1;  // of the initial values
};

struct PReluOptions {
  int64_t num_parameters = 1;  // 1, or the number of channels
  double init = 0.25;
};

/// Initializers of the layers in a scope. The defaults are PyTorch's.
struct InitRules {
  Init conv_weight = Init::kaiming_uniform(2.2360679774997896964);
  std::optional<Init> conv_bias;  // default: uniform, bound 1 / sqrt(fan in of the weight)
  Init linear_weight = Init::kaiming_uniform(2.2360679774997896964);
  std::optional<Init> linear_bias;  // default: as conv_bias
};

/// Low-rank adapters of linear layers (Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models"): a layer that is selected
/// computes W x + b + alpha / rank * B A dropout(x).
struct LoraOptions {
  int64_t rank = 8;
  double alpha = 8;
  double dropout = 0;
  /// Selects layers by module path. Empty: none.
  std::function<bool(std::string_view path)> selects = {};
};

/// Options of a Builder.
struct BuilderOptions {
  Mode mode = Mode::kTraining;
  /// Dtype of parameters and running statistics: f32, or f64 for tests.
  DType dtype = DType::kF32;
  /// Selects, by module path, batch norms that use their running statistics in training and do not update them. Empty: none.
  std::function<bool(std::string_view path)> frozen_batch_norm = {};
  /// Positions of the key-value cache of a program that continues sequences (nn/attention.h); 0: the program reads whole sequences.
  int64_t cache = 0;
  /// How the cache stores keys and values: as f32 (the type of the activations), bf16, or i8 with a scale for each head of a row.
  DType cache_dtype = DType::kF32;
  /// With a cache: results of all tokens of the program, not of the last token of each sequence.
  bool every_token = false;
  LoraOptions lora = {};
};

/// The parameters of a linear layer: weight [out_features, in_features] and bias [out_features], absent without one. A layer that
/// BuilderOptions::lora selects also has the adapter lora_A.weight [rank, in_features] and lora_B.weight [out_features, rank].
struct LinearParameters {
  Value weight, bias, lora_a, lora_b;
};

/// Captures layers into a graph, which must outlive the builder. Each layer has a name in the current scope. The module path
/// ("layer1.0.conv2") names its parameters and nodes. Using a name twice in a scope is an error.
class Builder {
 public:
  explicit Builder(Graph& graph, BuilderOptions options = {});
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  Graph& graph() const { return graph_; }
  bool training() const { return options_.mode == Mode::kTraining; }
  DType dtype() const { return options_.dtype; }
  /// Parameters and buffers in order of declaration.
  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  std::vector<ParameterSpec> take_parameters() { return std::move(parameters_); }

  /// Enters a module until the returned guard is destroyed: `const auto block = b.scope("layer1.0");`.
  [[nodiscard]] PathScope scope(std::string_view name) { return PathScope(graph_, name); }

  /// Initializes the layers that are captured until the returned guard is destroyed by `rules`.
  class InitScope {
   public:
    InitScope(Builder& builder, InitRules rules) : builder_(builder), saved_(std::exchange(builder.init_, std::move(rules))) {}
    ~InitScope() { builder_.init_ = std::move(saved_); }
    InitScope(const InitScope&) = delete;
    InitScope& operator=(const InitScope&) = delete;

   private:
    Builder& builder_;
    InitRules saved_;
  };
  [[nodiscard]] InitScope use_init(InitRules rules) { return InitScope(*this, std::move(rules)); }

  /// Parameters that are declared until the returned guard is destroyed are not trained if `frozen`.
  class FreezeScope {
   public:
    FreezeScope(Builder& builder, bool frozen) : builder_(builder), saved_(std::exchange(builder.frozen_, builder.frozen_ || frozen)) {}
    ~FreezeScope() { builder_.frozen_ = saved_; }
    FreezeScope(const FreezeScope&) = delete;
    FreezeScope& operator=(const FreezeScope&) = delete;

   private:
    Builder& builder_;
    bool saved_;
  };
  [[nodiscard]] FreezeScope freeze(bool frozen) { return FreezeScope(*this, frozen); }

  /// Declares a graph input, e.g. the batch, whose value is set for each run.
  Value input(std::string name, TensorType type) { return graph_.add_input(std::move(name), std::move(type), ValueRole::kInput); }
  /// The random key "rng", i64 [3] = (seed, step, global index of sample 0). The first call declares it as a graph input.
  Value rng();
  /// The stream of an operator's random draws, that of module `name`: a hash of its path and of how many streams the module has had. Adding
  /// a layer elsewhere therefore does not change the masks of existing layers.
  int64_t random_stream(std::string_view name);
  /// A graph input that is fed for each run besides the batch. The first call declares it; later ones must have the same type.
  Value fed(const std::string& name, const TensorType& type);
  /// Declares a value of the current module that a request carries from run to run (ValueRole::kCarried).
  Value carried(std::string_view leaf, const TensorType& type);
  /// BuilderOptions::cache.
  int64_t cache() const { return options_.cache; }
  DType cache_dtype() const { return options_.cache_dtype; }
  bool every_token() const { return options_.every_token; }
  /// Declares a parameter of the current module. `leaf` is the last part of its name ("weight").
  Value parameter(std::string_view leaf, Shape shape, const Init& init, std::string_view module_type);
  /// Declares a buffer of the current module: saved with the model, but not trained.
  Value buffer(std::string_view leaf, TensorType type, const Init& init, std::string_view module_type);

  /// x [N,C,H,W] -> [N,out_channels,H',W']; weight [out_channels, C/groups, kh, kw].
  Value conv2d(std::string_view name, Value x, const Conv2dOptions& options);
  /// x [N,C,D,H,W] -> [N,out_channels,D',H',W']; weight [out_channels, C/groups, kd, kh, kw].
  Value conv3d(std::string_view name, Value x, const Conv3dOptions& options);
  /// A convolution whose taps are moved (deform_conv2d of ops/deform_conv.h): offset [N,2*D*kh*kw,H',W'], mask [N,D*kh*kw,H',W'] or absent;
  /// parameters as conv2d.
  Value deform_conv2d(std::string_view name, Value x, Value offset, const Conv2dOptions& options, Value mask = {});
  /// x [...,I] -> [...,out_features]; weight [out_features, I].
  Value linear(std::string_view name, Value x, const LinearOptions& options);
  /// Declares the parameters of `linear` for inputs of that many features, in the current module.
  LinearParameters linear_parameters(int64_t in_features, const LinearOptions& options);
  /// Declares the parameters of a linear layer, the current module, with a weight of this shape; without `bias` there is none.
  LinearParameters linear_parameters(const Shape& shape, const Init& weight, const std::optional<Init>& bias);
  /// The product of x [...,I] with the parameters of the current module: [...,out_features]. They may be used several times.
  Value linear(Value x, const LinearParameters& layer);
  /// The paths of all linear layers declared so far: what BuilderOptions::lora selects from.
  const std::vector<std::string>& linear_layers() const { return linear_layers_; }
  /// Normalizes over all dimensions except 1. Training uses the statistics of the batch and updates the running statistics in a node of
  /// Phase::kUpdate (once per run of the graph, as PyTorch). Evaluation and frozen layers use the running statistics.
  Value batch_norm(std::string_view name, Value x, const BatchNormOptions& options = {});
  /// Normalizes over the last `dims` dimensions; weight and bias have their shape.
  Value layer_norm(std::string_view name, Value x, const LayerNormOptions& options = {});
  /// x [N,C,...]: normalizes over each group of channels and all other dimensions of a sample; weight and bias [C].
  Value group_norm(std::string_view name, Value x, const GroupNormOptions& options);
  /// index i64 [...] -> [...,width].
  Value embedding(std::string_view name, Value index, const EmbeddingOptions& options);
  /// max(x, 0) + weight * min(x, 0); weight [num_parameters] has one value for all channels (dimension 1), or one per channel.
  Value prelu(std::string_view name, Value x, const PReluOptions& options = {});
  /// Sets elements to zero with probability p in training and scales the others by 1 / (1 - p). Returns x in evaluation.
  Value dropout(std::string_view name, Value x, double p);
  /// Sets whole samples of a residual branch to zero with probability p in training. Returns x in evaluation.
  Value stochastic_depth(std::string_view name, Value x, double p);

 private:
  friend class InitScope;
  friend class FreezeScope;

  Value frozen_batch_norm(Value x, const BatchNormOptions& options);
  /// The weight, and with `bias` the bias, of a convolution of x.
  LinearParameters convolution_parameters(std::string_view op, Value x, const std::vector<int64_t>& kernel_size, int64_t out_channels,
                                          bool bias, int64_t groups);
  /// A convolution with a kernel of these sizes and the other attributes.
  Value convolution(std::string_view op, Value x, const std::vector<int64_t>& kernel_size, int64_t out_channels, bool bias,
                    const Conv2dAttrs& attrs);

  Graph& graph_;
  BuilderOptions options_;
  InitRules init_;
  bool frozen_ = false;
  std::vector<ParameterSpec> parameters_;
  std::vector<std::string> linear_layers_;
  std::map<std::string, int, std::less<>> random_uses_;  // number of random streams so far, by module path
};

}  // namespace galley
