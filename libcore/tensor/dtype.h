#pragma once
// Element types and their conversions.

#include <cstdint>
#include <cstring>
#include <ostream>
#include <string_view>

namespace galley {

/// Element types. Floating-point types come first.
enum class DType : uint8_t { kF32, kF64, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool };

/// Size of one element in bytes.
int64_t dtype_size(DType dtype);
/// Name in recipes, reports and graph text: "f32", "i64", ...
std::string_view dtype_name(DType dtype);
/// The dtype of that name. Throws Error, listing the known names, if there is none.
DType parse_dtype(std::string_view name);
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

}  // namespace galley
