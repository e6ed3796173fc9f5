#pragma once
// Parameters of a model before any data exists: name, type, initialiser; and their initial values.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "libcore/graph/graph.h"
#include "libcore/tensor/tensor.h"

namespace galley {

/// How a parameter starts. A description: numbers that depend on the shape are worked out by `initialize`.
struct Init {
  enum class Kind { kZeros, kOnes, kConstant, kValues, kTensor, kNormal, kTruncatedNormal, kUniform, kKaimingNormal, kKaimingUniform };
  /// What a Kaiming initialiser keeps the variance of: activations (fan in) or gradients (fan out).
  enum class Fan { kIn, kOut };

  Kind kind = Kind::kZeros;
  double spread = 0;   // normal: standard deviation; uniform: bound; Kaiming: gain; constant: its value
  double cut = 0;      // truncated normal: values lie within -cut..cut
  Fan fan = Fan::kIn;  // Kaiming
  std::shared_ptr<const std::vector<double>> values = nullptr;  // kValues: all elements
  std::shared_ptr<const Tensor> tensor = nullptr;               // kTensor: values that a file gives

  static Init zeros() { return {}; }
  static Init ones() { return {Kind::kOnes}; }
  static Init constant(double value) { return {Kind::kConstant, value}; }
  /// These elements, in order: tables that a model computes once.
  static Init table(std::vector<double> elements);
  /// These values, which are not to be written (they may lie in a mapped file).
  static Init given(Tensor values);
  static Init normal(double stddev) { return {Kind::kNormal, stddev}; }
  /// Normal, redrawn until |x| <= cut (an absolute bound, as torch.nn.init.trunc_normal_).
  static Init truncated_normal(double stddev, double cut = 2) { return {Kind::kTruncatedNormal, stddev, cut}; }
  /// Uniform in [-bound, bound).
  static Init uniform(double bound) { return {Kind::kUniform, bound}; }
  /// Normal with deviation sqrt(2 / fan): He et al., "Delving deep into rectifiers", 2015, for relu.
  static Init kaiming_normal(Fan fan);
  /// Uniform with bound sqrt(3) * gain / sqrt(fan in), gain = sqrt(2 / (1 + a^2)). PyTorch's default for weights has a = sqrt(5),
  /// which is a bound of 1 / sqrt(fan in).
  static Init kaiming_uniform(double a);
  /// Uniform with bound sqrt(6 / (fan in + fan out)): Glorot, Bengio 2010, of a linear layer with these sizes.
  static Init xavier_uniform(int64_t fan_in, int64_t fan_out);

  /// "kaiming_normal(fan_out)", "normal(0.01)".
  std::string str() const;
};

/// fan in = size of dimension 1 times the kernel's area, fan out = size of dimension 0 times that area (as PyTorch, groups not
/// considered). Shapes of rank below 2 have no fans.
int64_t fan_of(const Shape& shape, Init::Fan fan);

/// A parameter or buffer that a Builder declared.
struct ParameterSpec {
  std::string name;  // "layer1.0.conv2.weight": the name of the graph input and of the tensor in files
  TensorType type;
  ValueRole role = ValueRole::kParameter;  // kParameter or kBuffer
  Init init;
  bool trainable = true;    // false for buffers and for what the trainer froze
  std::string module;       // "layer1.0.conv2"
  std::string module_type;  // "conv2d", "batch_norm", ...: what the selector type:NAME compares
};

/// The initial value of a parameter: a pure function of (seed, name, spec), whatever the order, threads or machine count.
Tensor initialize(const ParameterSpec& spec, uint64_t seed);

/// Elements of all parameters (buffers not counted), as torchvision counts.
int64_t parameter_count(const std::vector<ParameterSpec>& specs);

}  // namespace galley
