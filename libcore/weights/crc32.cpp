#include "libcore/weights/crc32.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace galley {
namespace {

constexpr uint32_t kPolynomial = 0xedb88320u;

using Tables = std::array<std::array<uint32_t, 256>, 8>;

/// Table k holds the contribution of a byte that is followed by k bytes.
constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? kPolynomial : 0);
    tables[0][byte] = value;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 0xff];
  }
  return tables;
}
constexpr Tables kTables = make_tables();

/// Processes eight bytes per step ("slicing by 8"). `state` is the inverted checksum.
uint32_t by_tables(const std::byte* data, size_t count, uint32_t state) {
  while (count >= 8) {
    uint32_t low, high;
    std::memcpy(&low, data, 4);
    std::memcpy(&high, data + 4, 4);
    low ^= state;
    state = kTables[7][low & 0xff] ^ kTables[6][low >> 8 & 0xff] ^ kTables[5][low >> 16 & 0xff] ^ kTables[4][low >> 24] ^
            kTables[3][high & 0xff] ^ kTables[2][high >> 8 & 0xff] ^ kTables[1][high >> 16 & 0xff] ^ kTables[0][high >> 24];
    data += 8;
    count -= 8;
  }
  for (; count > 0; --count, ++data) state = (state >> 8) ^ kTables[0][(state ^ static_cast<uint32_t>(*data)) & 0xff];
  return state;
}

#if defined(__x86_64__)

/// x^n mod P, reflected into 33 bits as needed for carry-less products of reflected numbers.
constexpr uint64_t power_of_x(int n) {
  uint32_t value = 0x80000000u;  // x^0, reflected
  for (int i = 0; i < n; ++i) value = (value >> 1) ^ ((value & 1) ? kPolynomial : 0);
  return static_cast<uint64_t>(value) << 1;
}
static_assert(power_of_x(4 * 128 + 32) == 0x154442bd4 && power_of_x(128 - 32) == 0x0ccaa009e,
              "must equal the constants in the paper cited below");

/// Folds 64 bytes per step with carry-less products, then 16; the tables process the last 16. V. Gopal et al., "Fast CRC Computation for
/// Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009. `count` must be a multiple of 16 and at least 64.
__attribute__((target("pclmul,sse4.1"))) uint32_t by_products(const std::byte* data, size_t count, uint32_t state) {
  const auto load = [](const std::byte* from)
                        __attribute__((target("pclmul,sse4.1"))) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); };
  const auto fold = [](__m128i sum, __m128i next, __m128i powers) __attribute__((target("pclmul,sse4.1"))) {
    return _mm_xor_si128(next, _mm_xor_si128(_mm_clmulepi64_si128(sum, powers, 0x00), _mm_clmulepi64_si128(sum, powers, 0x11)));
  };
  __m128i sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = load(data + 16 * i);
  sums[0] = _mm_xor_si128(sums[0], _mm_cvtsi32_si128(static_cast<int>(state)));
  data += 64;
  count -= 64;
  const __m128i by_512 = _mm_set_epi64x(static_cast<int64_t>(power_of_x(4 * 128 - 32)), static_cast<int64_t>(power_of_x(4 * 128 + 32)));
  for (; count >= 64; data += 64, count -= 64) {
    for (int i = 0; i < 4; ++i) sums[i] = fold(sums[i], load(data + 16 * i), by_512);
  }
  const __m128i by_128 = _mm_set_epi64x(static_cast<int64_t>(power_of_x(128 - 32)), static_cast<int64_t>(power_of_x(128 + 32)));
  __m128i sum = sums[0];
  for (int i = 1; i < 4; ++i) sum = fold(sum, sums[i], by_128);
  for (; count >= 16; data += 16, count -= 16) sum = fold(sum, load(data), by_128);
  std::array<std::byte, 16> rest;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(rest.data()), sum);
  return by_tables(rest.data(), rest.size(), 0);
}

bool has_products() {
  static const bool yes = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
  return yes;
}

#endif

}  // namespace

uint32_t crc32_of(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t state = ~before;
  const std::byte* data = bytes.data();
  size_t count = bytes.size();
#if defined(__x86_64__)
  if (count >= 64 && has_products()) {
    const size_t folded = count / 16 * 16;
    state = by_products(data, folded, state);
    data += folded;
    count -= folded;
  }
#endif
  return ~by_tables(data, count, state);
}

}  // namespace galley
