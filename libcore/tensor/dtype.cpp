#include "libcore/tensor/dtype.h"

#include <array>
#include <cmath>

#include "libcore/base/error.h"

namespace galley {
namespace {
struct Entry {
  std::string_view name;
  int64_t size;
};
constexpr std::array<Entry, 11> kEntries{{{"f32", 4},
                                          {"f64", 8},
                                          {"f16", 2},
                                          {"bf16", 2},
                                          {"i64", 8},
                                          {"i32", 4},
                                          {"i16", 2},
                                          {"i8", 1},
                                          {"u8", 1},
                                          {"bool", 1},
                                          {"f8_e4m3", 1}}};
}  // namespace

int64_t dtype_size(DType dtype) { return kEntries[static_cast<size_t>(dtype)].size; }
std::string_view dtype_name(DType dtype) { return kEntries[static_cast<size_t>(dtype)].name; }

DType parse_dtype(std::string_view name) {
  std::string known;
  for (size_t i = 0; i < kEntries.size(); ++i) {
    if (kEntries[i].name == name) return static_cast<DType>(i);
    known += (i ? ", " : "") + std::string(kEntries[i].name);
  }
  fail(ErrorCode::kRecipe, "unknown dtype '", name, "' (known: ", known, ")");
}

uint16_t f16_from_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (bits >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // would round to 65536 or more
  if (bits < 0x38800000u) {                                               // subnormal: units of 2^-24
    float magnitude;
    std::memcpy(&magnitude, &bits, 4);
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(magnitude * 0x1p24f)));
  }
  const uint32_t rounded = bits + 0xfffu + ((bits >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

float float_from_f16(uint16_t half) {
  const uint32_t exponent = (half >> 10) & 0x1fu, mantissa = half & 0x3ffu;
  float value;
  if (exponent == 0) {
    value = static_cast<float>(mantissa) * 0x1p-24f;
  } else {
    const uint32_t bits = exponent == 31 ? 0x7f800000u | (mantissa << 13) : ((exponent + 112u) << 23) | (mantissa << 13);
    std::memcpy(&value, &bits, 4);
  }
  return half & 0x8000u ? -value : value;
}

uint8_t f8_from_float(float value) {
  const float rounded = rounded_to_f8(value);
  uint32_t bits;
  std::memcpy(&bits, &rounded, 4);
  const uint32_t sign = (bits >> 24) & 0x80u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (bits < 0x3c800000u) return static_cast<uint8_t>(sign | static_cast<uint32_t>(std::abs(rounded) * 0x1p9f));  // units of 2^-9
  return static_cast<uint8_t>(sign | ((bits >> 20) - (120u << 3)));                                               // biases 127 and 7
}

float float_from_f8(uint8_t code) {
  const uint32_t size = code & 0x7fu;
  float value;
  if (size < 8) {
    value = static_cast<float>(size) * 0x1p-9f;
  } else {
    const uint32_t bits = size == 0x7fu ? 0x7fc00000u : (size + (120u << 3)) << 20;
    std::memcpy(&value, &bits, 4);
  }
  return code & 0x80u ? -value : value;
}

}  // namespace galley
