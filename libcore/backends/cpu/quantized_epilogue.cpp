#include "libcore/backends/cpu/quantized_epilogue.h"

#include <algorithm>
#include <limits>

#include "libcore/backends/cpu/activate.h"
#include "libcore/backends/cpu/vector_math.h"

namespace galley::quantized {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Rounded half to even by the magic number; NaN becomes low. Division, not a product with the reciprocal: the map is the same everywhere.
GALLEY_CLONES void quantize_all(const float* x, float scale, float low, float high, int32_t off, uint8_t flip, uint8_t* out,
                                int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    float v = x[i] / scale;
    v = v > low ? v : low;
    v = v < high ? v : high;
    out[i] = static_cast<uint8_t>(static_cast<uint8_t>(std::bit_cast<int32_t>(v + 12582912.0f) - off) ^ flip);
  }
}

GALLEY_CLONES void gate_all(float* v, int64_t count, bool times, float levels) {
  for (int64_t i = 0; i < count; ++i) {
    const float gate = at_most(at_least(v[i] + 3.0f, 0.0f), 6.0f) * levels;
    v[i] = times ? v[i] * gate : gate;
  }
}
GALLEY_CLONES void scale_all(float* v, int64_t count, float factor) {
  for (int64_t i = 0; i < count; ++i) v[i] *= factor;
}
GALLEY_CLONES void bound_all(const float* v, float low, float high, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = at_most(at_least(v[i], low), high);
}
GALLEY_CLONES void round_all(const float* v, float low, float high, int32_t off, uint8_t flip, uint8_t* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float bounded = at_most(at_least(v[i], low), high);
    out[i] = static_cast<uint8_t>(static_cast<uint8_t>(std::bit_cast<int32_t>(bounded + 12582912.0f) - off) ^ flip);
  }
}

}  // namespace

void finish_values(const Epilogue& e, float* values, int64_t count, void* out) {
  switch (e.activation) {
    case Activation::kNone:
    case Activation::kRelu:
    case Activation::kRelu6: break;
    case Activation::kHardswish:
    case Activation::kHardsigmoid: gate_all(values, count, e.activation == Activation::kHardswish, e.to_levels); break;
    default: activate(e.activation, values, count); scale_all(values, count, e.to_levels);
  }
  if (e.real) return bound_all(values, e.low, e.high, static_cast<float*>(out), count);
  round_all(values, e.low, e.high, 0x4B400000 - e.zero_point, e.flip, static_cast<uint8_t*>(out), count);
}

void quantize_values(const float* x, const QuantParams& params, uint8_t* out, int64_t count) {
  const auto zero_point = static_cast<int32_t>(params.zero_point) + flip_of(params.dtype);
  quantize_all(x, static_cast<float>(params.scale), static_cast<float>(params.qmin - params.zero_point),
               static_cast<float>(params.qmax - params.zero_point), 0x4B400000 - zero_point, flip_of(params.dtype), out, count);
}

bool in_levels(const QuantizedOutput& output, Activation activation) {
  return output.output_dtype != DType::kF32 &&
         (activation == Activation::kNone || activation == Activation::kRelu || activation == Activation::kRelu6);
}

void set_results(Epilogue& e, const QuantizedOutput& output, Activation activation) {
  e.activation = activation;
  e.real = output.output_dtype == DType::kF32;
  const double to_levels = e.real ? 1 : 1 / output.output_scale;
  e.to_levels = in_levels(output, activation) ? 1 : static_cast<float>(to_levels);
  e.low = e.real ? -kInfinity : static_cast<float>(output.output_qmin - output.output_zero_point);
  e.high = e.real ? kInfinity : static_cast<float>(output.output_qmax - output.output_zero_point);
  if (activation == Activation::kRelu || activation == Activation::kRelu6) e.low = std::max(e.low, 0.0f);
  if (activation == Activation::kRelu6) e.high = std::min(e.high, static_cast<float>(6 * to_levels));
  // The gate of these two is relu6(v + 3), six times what it should be.
  if (activation == Activation::kHardswish || activation == Activation::kHardsigmoid) e.to_levels = static_cast<float>(to_levels / 6);
  e.flip = e.real ? 0 : flip_of(output.output_dtype);
  e.zero_point = e.real ? 0 : static_cast<int32_t>(output.output_zero_point) + e.flip;
}

Results::Results(const QuantizedOutput& output, double input_scale, Activation activation, int64_t outputs)
    : input_scale_(input_scale), outputs_(outputs) {
  set_results(base_, output, activation);
  base_.channels = outputs;
  if (in_levels(output, activation)) to_levels_ = 1 / output.output_scale;
}

void Results::set_residual(double scale, int64_t zero_point, DType dtype) {
  residual_scale_ = scale;
  base_.residual_flip = flip_of(dtype);
  residual_zero_point_ = static_cast<double>(zero_point) + base_.residual_flip;
  base_.residual_scale = static_cast<float>(scale * to_levels_);
}

Epilogue Results::epilogue(const float* weight_scale, const float* bias, std::byte* scratch, double input_scale) const {
  auto* scales = reinterpret_cast<float*>(scratch);
  float* biases = scales + padded_outputs(outputs_);
  for (int64_t o = 0; o < padded_outputs(outputs_); ++o) {
    const bool is_output = o < outputs_;
    scales[o] = is_output ? static_cast<float>(input_scale * static_cast<double>(weight_scale[o]) * to_levels_) : 0;
    const double shift = (bias != nullptr && is_output ? static_cast<double>(bias[o]) : 0) - residual_scale_ * residual_zero_point_;
    biases[o] = static_cast<float>(shift * to_levels_);
  }
  Epilogue e = base_;
  e.scale = scales;
  e.bias = biases;
  return e;
}

}  // namespace galley::quantized
