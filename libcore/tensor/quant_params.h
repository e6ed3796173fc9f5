#pragma once
// Quantization parameters: the affine map between real values and integers of at most 8 bits,
//   q = clamp(round(x / scale) + zero_point, qmin, qmax),   x = scale * (q - zero_point),
// with rounding to nearest even. Every scale is a float32 value, so that the map is the same wherever it is computed.

#include <array>
#include <cstdint>
#include <ostream>
#include <string_view>

#include "libcore/tensor/dtype.h"

namespace galley {

/// Types of a quantization scheme. Two int4 values are stored per byte. f8_e4m3 is not of integers: a value is scale * code, with f8_scale.
enum class QuantDType { kInt8, kUint8, kInt4, kF8E4M3 };
inline constexpr std::array<std::string_view, 4> kQuantDTypeNames{"int8", "uint8", "int4", "f8_e4m3"};

/// The range of integers, and the dtype that holds one of them (int4: i8, before packing).
struct QuantRange {
  int64_t min = 0, max = 255;
  DType dtype = DType::kU8;
};
/// int8 -128..127, uint8 0..255, int4 -8..7. `reduced`: uint8 0..127, int8 -64..64, so that the sum of two products of an activation and a
/// weight fits in 16 bits; reducing one of the operands is enough. int4 cannot be reduced. Not for f8_e4m3.
QuantRange quant_range(QuantDType dtype, bool reduced = false);

/// The quantization map of an array, or of one channel.
struct QuantParams {
  double scale = 1;  // a float32 value, positive
  int64_t zero_point = 0;
  DType dtype = DType::kU8;  // kU8 or kI8
  int64_t qmin = 0, qmax = 255;
  friend bool operator==(const QuantParams&, const QuantParams&) = default;
  friend std::ostream& operator<<(std::ostream& out, const QuantParams& p);
};

/// Throws Error if the dtype cannot hold the integers, or there are fewer than two.
void check_quant_range(const QuantRange& range);
/// Throws Error if the scale is not a positive float32 value, the dtype cannot hold the integers, or the zero point is not one of them.
void check_quant_params(const QuantParams& params);

/// Asymmetric map of [min, max], extended to include 0, which is represented exactly. Computed in float32 as in PyTorch's observers: scale
/// = max((max - min) / (qmax - qmin), 2^-23), zero_point = clamp(qmin - round(min / scale)). Throws Error (kNumeric) if a limit is not
/// finite or min > max.
QuantParams affine_params(double min, double max, const QuantRange& range);
/// Symmetric map of [-absmax, absmax], as in PyTorch's observers: scale = max(absmax / ((qmax - qmin) / 2), 2^-23); the zero point is 0, or
/// the middle of an unsigned range. For -128..127 the divisor is 127.5, and the largest value is clamped to 127; use the range -127..127 to
/// divide by 127.
QuantParams symmetric_params(double absmax, const QuantRange& range);

/// The scale with which f8_e4m3 covers [-absmax, absmax]: absmax / 448 in float32, so that the largest value is represented exactly; 1
/// where all values are 0. Throws Error (kNumeric) as symmetric_params.
float f8_scale(double absmax);
/// Throws Error if an operator's scale of f8_e4m3 is not a positive, finite float32 value.
void check_f8_scale(double scale);

/// Quantizes a value. Divides in float32, so that all kernels give the same bits; NaN becomes qmin.
int64_t quantize_value(float x, const QuantParams& params);
/// Quantizes a result that was computed in double, correctly rounded. The reference for kernels that compute in float32.
int64_t quantize_real(double x, const QuantParams& params);
/// scale * (q - zero_point), exact in double.
inline double dequantize_value(int64_t q, const QuantParams& params) { return params.scale * static_cast<double>(q - params.zero_point); }

}  // namespace galley
