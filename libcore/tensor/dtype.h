#pragma once
// Element types and their conversions.

#include <cstdint>
#include <cstring>
#include <ostream>
#include <string_view>

namespace galley {

/// Element types. Those in which operators compute real numbers come first. f8_e4m3 comes last: it only stores operands of products
/// (ops/f8.h), so it is not is_floating, and an operator that computes refuses it.
enum class DType : uint8_t { kF32, kF64, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool, kF8E4M3 };

/// Size of one element in bytes.
int64_t dtype_size(DType dtype);
/// Name in recipes, reports and graph text: "f32", "i64", ...
std::string_view dtype_name(DType dtype);
/// The dtype of that name. Throws Error, listing the known names, if there is none.
DType parse_dtype(std::string_view name);
/// Does the type hold real numbers with which operators compute?
inline bool is_floating(DType dtype) { return dtype <= DType::kBF16; }
inline std::ostream& operator<<(std::ostream& out, DType dtype) { return out << dtype_name(dtype); }

/// Converts between bfloat16 and float. Rounds to nearest even; NaN stays NaN.
inline uint16_t bf16_from_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline float float_from_bf16(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
/// Converts between IEEE binary16 and float. Rounds to nearest even.
uint16_t f16_from_float(float value);
float float_from_f16(uint16_t half);

/// The largest value of f8_e4m3: OCP FP8 E4M3 (Micikevicius et al. 2022, "FP8 Formats for Deep Learning"; OCP OFP8 1.0), which has a sign,
/// 4 bits of exponent with bias 7 and 3 bits of fraction, no infinities, and NaN where all bits but the sign are 1.
inline constexpr float kLargestF8 = 448;
/// The nearest value of f8_e4m3, ties to the one with an even fraction; +-448 beyond it; NaN stays NaN.
inline float rounded_to_f8(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint32_t sign = bits & 0x80000000u, magnitude = bits ^ sign;
  if (magnitude > 0x7f800000u) return value;
  float size;
  if (magnitude < 0x3c800000u) {  // below 2^-6: a multiple of 2^-9, as sums with 2^14 are
    std::memcpy(&size, &magnitude, 4);
    size = (size + 0x1p14f) - 0x1p14f;
  } else {
    const uint32_t rounded = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) & ~0xfffffu;
    std::memcpy(&size, &rounded, 4);
    size = size > kLargestF8 ? kLargestF8 : size;
  }
  uint32_t signed_bits;
  std::memcpy(&signed_bits, &size, 4);
  signed_bits |= sign;
  std::memcpy(&value, &signed_bits, 4);
  return value;
}
/// The code of rounded_to_f8(value), and the value of a code.
uint8_t f8_from_float(float value);
float float_from_f8(uint8_t code);

}  // namespace galley
