#pragma once
// The epilogue of quantized operators, which turns integer sums into results: scales and biases of each output, bounds and zero points,
// prepared once.

#include <cstddef>

#include "libcore/backends/cpu/quantized_gemm.h"

namespace galley::quantized {

/// 0x80 where bytes of that dtype become u8 by inverting their highest bit (i8), else 0. The same number is added to their zero point.
inline uint8_t flip_of(DType dtype) { return dtype == DType::kI8 ? 0x80 : 0; }

/// Sets the bounds and the zero point of results. The activations none, relu and relu6 are part of the bounds.
void set_results(Epilogue& epilogue, const QuantizedOutput& output, Activation activation);
/// Does the epilogue compute in levels of the result from the start (all scales divided by the output scale)?
bool in_levels(const QuantizedOutput& output, Activation activation);

/// Epilogues of products: one scale per output channel.
class Results {
 public:
  template <class Attrs>
  Results(const Attrs& attrs, Activation activation, int64_t outputs) : Results(attrs, attrs.input_scale, activation, outputs) {}
  Results(const QuantizedOutput& output, double input_scale, Activation activation, int64_t outputs);
  void set_residual(double scale, int64_t zero_point, DType dtype);

  int64_t outputs() const { return outputs_; }
  int64_t scratch_bytes() const { return 2 * padded_outputs(outputs_) * 4; }
  /// Writes the scales and biases into `scratch` (64-byte aligned); bias may be null. `input_scale` replaces the attribute.
  Epilogue epilogue(const float* weight_scale, const float* bias, std::byte* scratch, double input_scale) const;
  Epilogue epilogue(const float* weight_scale, const float* bias, std::byte* scratch) const {
    return epilogue(weight_scale, bias, scratch, input_scale_);
  }

 private:
  Epilogue base_;
  double input_scale_ = 1, to_levels_ = 1, residual_scale_ = 0, residual_zero_point_ = 0;
  int64_t outputs_ = 0;
};

/// Applies the epilogue's activation to real values (in levels where in_levels), in place, and writes bytes or f32 to `out`.
void finish_values(const Epilogue& epilogue, float* values, int64_t count, void* out);

/// out[i] = quantize_value(x[i], params), as a byte of u8 or i8.
void quantize_values(const float* x, const QuantParams& params, uint8_t* out, int64_t count);

/// The smallest interval that holds zero and the array, NaN left out; `finite`: all values are.
struct ValueRange {
  float min = 0, max = 0;
  bool finite = true;
};
ValueRange range_of(const float* x, int64_t count);

}  // namespace galley::quantized
