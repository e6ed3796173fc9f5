#pragma once
// Declarations of a model's parameters (name, type, initializer), and their initial values.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/graph/graph.h"
#include "libcore/tensor/tensor.h"

namespace galley {

/// The initializer of a parameter. Values that depend on the shape are computed by `initialize`.
struct Init {
  enum class Kind { kZeros, kOnes, kConstant, kValues, kTensor, kNormal, kTruncatedNormal, kUniform, kKaimingNormal, kKaimingUniform };
  /// Whether a Kaiming initializer preserves the variance of activations (fan in) or of gradients (fan out).
  enum class Fan { kIn, kOut };

  Kind kind = Kind::kZeros;
  double spread = 0;   // normal: standard deviation; uniform: bound; Kaiming: gain; constant: its value
  double cut = 0;      // truncated normal: values lie within -cut..cut
  Fan fan = Fan::kIn;  // Kaiming
  std::shared_ptr<const std::vector<double>> values = nullptr;  // kValues: all elements
  std::shared_ptr<const Tensor> tensor = nullptr;               // kTensor: values from a file

  static Init zeros() { return {}; }
  static Init ones() { return {Kind::kOnes}; }
  static Init constant(double value) { return {Kind::kConstant, value}; }
  /// Exactly these elements, e.g. a table that a model computes once.
  static Init table(std::vector<double> elements);
  /// Exactly these values. They are never written to, because they may be in a mapped file.
  static Init given(Tensor values);
  static Init normal(double stddev) { return {Kind::kNormal, stddev}; }
  /// Normal, redrawn until |x| <= cut (an absolute limit, as torch.nn.init.trunc_normal_).
  static Init truncated_normal(double stddev, double cut = 2) { return {Kind::kTruncatedNormal, stddev, cut}; }
  /// Uniform in [-bound, bound).
  static Init uniform(double bound) { return {Kind::kUniform, bound}; }
  /// Normal with standard deviation sqrt(2 / fan), for relu (He et al., "Delving deep into rectifiers", 2015).
  static Init kaiming_normal(Fan fan);
  /// Uniform with bound sqrt(3) * gain / sqrt(fan in), gain = sqrt(2 / (1 + a^2)). PyTorch's default for weights is a = sqrt(5), which
  /// gives a bound of 1 / sqrt(fan in).
  static Init kaiming_uniform(double a);
  /// Uniform with bound sqrt(6 / (fan in + fan out)) for a linear layer of these sizes (Glorot, Bengio 2010).
  static Init xavier_uniform(int64_t fan_in, int64_t fan_out);

  /// Text for listings: "kaiming_normal(fan_out)", "normal(0.01)".
  std::string str() const;
};

/// Fan in: size of dimension 1 times the kernel's area. Fan out: size of dimension 0 times the kernel's area. As in PyTorch, groups are
/// ignored. The shape must have rank 2 or more.
int64_t fan_of(const Shape& shape, Init::Fan fan);

/// ParameterSpec::module_type of the adapters of linear layers (LoraOptions).
inline constexpr std::string_view kAdapterType = "lora";

/// A parameter or buffer that a Builder declared.
struct ParameterSpec {
  std::string name;  // "layer1.0.conv2.weight": name of the graph input, and of the tensor in files
  TensorType type;
  ValueRole role = ValueRole::kParameter;  // kParameter or kBuffer
  Init init;
  bool trainable = true;    // false for buffers and for parameters that the model or the trainer froze
  std::string module;       // "layer1.0.conv2"
  std::string module_type;  // "conv2d", "batch_norm", ...: matched by the selector type:NAME
};

/// The initial value of a parameter. A pure function of (seed, name, spec), independent of the order of calls and the number of threads and
/// machines.
Tensor initialize(const ParameterSpec& spec, uint64_t seed);

/// Number of elements of all parameters without buffers, as torchvision counts.
int64_t parameter_count(const std::vector<ParameterSpec>& specs);

}  // namespace galley
