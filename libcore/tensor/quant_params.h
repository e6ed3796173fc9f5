#pragma once
// Quantization parameters: the affine map between real values and integers of 8 bits or fewer,
//   q = clamp(round(x / scale) + zero_point, qmin, qmax),   x = scale * (q - zero_point),
// rounding to nearest even. Every scale is a float32 value, so that the map is the same wherever it is computed.

#include <array>
#include <cstdint>
#include <ostream>
#include <string_view>

#include "libcore/tensor/dtype.h"

namespace galley {

/// Integer types of a scheme; int4 is stored two per byte.
enum class QuantDType { kInt8, kUint8, kInt4 };
inline constexpr std::array<std::string_view, 3> kQuantDTypeNames{"int8", "uint8", "int4"};

/// The integers that a scheme uses, and the element type that holds one of them (int4: i8, before packing).
struct QuantRange {
  int64_t min = 0, max = 255;
  DType dtype = DType::kU8;
};
/// int8 -128..127, uint8 0..255, int4 -8..7. Reduced: uint8 0..127, int8 -64..64, so that the sum of two products of an activation and a
/// weight fits 16 bits; reducing one of the two is enough. There is no reduced int4.
QuantRange quant_range(QuantDType dtype, bool reduced = false);

/// The map of one array, or of one channel of it.
struct QuantParams {
  double scale = 1;  // a float32 value, positive
  int64_t zero_point = 0;
  DType dtype = DType::kU8;  // kU8 or kI8
  int64_t qmin = 0, qmax = 255;
  friend bool operator==(const QuantParams&, const QuantParams&) = default;
  friend std::ostream& operator<<(std::ostream& out, const QuantParams& p);
};

/// Throws where the integers are not of the dtype, or fewer than two.
void check_quant_range(const QuantRange& range);
/// Throws where scale is not a positive float32 value, or the integers do not fit the dtype, or the zero point is not one of them.
void check_quant_params(const QuantParams& params);

/// Asymmetric map of [min, max], extended to include 0, which is represented exactly. Computed in float32 as in PyTorch's observers:
/// scale = max((max - min) / (qmax - qmin), 2^-23), zero_point = clamp(qmin - round(min / scale)).
/// Throws (kNumeric) where a bound is not finite or min > max.
QuantParams affine_params(double min, double max, const QuantRange& range);
/// Map of [-absmax, absmax], as in PyTorch's observers: scale = max(absmax / ((qmax - qmin) / 2), 2^-23), zero point 0, or the middle of an
/// unsigned range. With -128..127 the divisor is 127.5: the largest value becomes 127 by the clamp; give -127..127 to divide by 127.
QuantParams symmetric_params(double absmax, const QuantRange& range);

/// The integer of a value. Divides in float32, so that every kernel gives the same bits; NaN becomes qmin.
int64_t quantize_value(float x, const QuantParams& params);
/// The integer of a result computed in double, correctly rounded: the reference for kernels that compute in float32.
int64_t quantize_real(double x, const QuantParams& params);
/// scale * (q - zero_point), exact in double.
inline double dequantize_value(int64_t q, const QuantParams& params) { return params.scale * static_cast<double>(q - params.zero_point); }

}  // namespace galley
