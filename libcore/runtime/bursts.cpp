#include "libcore/runtime/bursts.h"

#include "libcore/base/parallel.h"
#include "libcore/base/processor.h"
#include "libcore/runtime/machine.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace galley {
namespace {

// Ten independent chains of multiply-adds hide the latency. The empty asm keeps the accumulators in registers.
#define GALLEY_CHAINS(Vector, step)                                                                                          \
  Vector a{}, b{}, c{}, d{}, e{}, f{}, g{}, h{}, i{}, j{};                                                                   \
  for (int64_t n = 0; n < rounds; ++n) {                                                                                     \
    step(a) step(b) step(c) step(d) step(e) step(f) step(g) step(h) step(i)                                                  \
        step(j) asm volatile("" : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f), "+v"(g), "+v"(h), "+v"(i), "+v"(j)); \
  }

#if defined(__x86_64__)
typedef float F4 __attribute__((vector_size(16)));
typedef double D2 __attribute__((vector_size(16)));
typedef float F8 __attribute__((vector_size(32)));
typedef double D4 __attribute__((vector_size(32)));
typedef float F16 __attribute__((vector_size(64)));
typedef double D8 __attribute__((vector_size(64)));

#define GALLEY_MULTIPLY_ADD(v) v = v * y + x;
#define GALLEY_FLOAT_BURST(name, Vector, target_text)                                            \
  __attribute__((target(target_text), optimize("fp-contract=fast"))) void name(int64_t rounds) { \
    Vector x = Vector{} + 0.25f, y = Vector{} + 0.5f;                                            \
    asm volatile("" : "+v"(x), "+v"(y));                                                         \
    GALLEY_CHAINS(Vector, GALLEY_MULTIPLY_ADD)                                                   \
  }
GALLEY_FLOAT_BURST(f32_sse2, F4, "sse2")
GALLEY_FLOAT_BURST(f64_sse2, D2, "sse2")
GALLEY_FLOAT_BURST(f32_avx2, F8, "avx2,fma")
GALLEY_FLOAT_BURST(f64_avx2, D4, "avx2,fma")
GALLEY_FLOAT_BURST(f32_avx512, F16, "avx512f")
GALLEY_FLOAT_BURST(f64_avx512, D8, "avx512f")

// Products of bytes, added in pairs twice, as integer kernels without VNNI do: three instructions per step.
#define GALLEY_BYTES_AVX2(v) v = _mm256_add_epi32(v, _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), ones));
__attribute__((target("avx2"))) void int8_avx2(int64_t rounds) {
  __m256i x = _mm256_set1_epi8(3), y = _mm256_set1_epi8(2), ones = _mm256_set1_epi16(1);
  for (int64_t n = 0; n < rounds; ++n) {
    __m256i a = x, b = y, c = ones, d = x, e = y;
    asm volatile("" : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(x), "+v"(y));
    GALLEY_BYTES_AVX2(a) asm volatile("" : "+v"(x));
    GALLEY_BYTES_AVX2(b) asm volatile("" : "+v"(x));
    GALLEY_BYTES_AVX2(c)
    asm volatile("" : "+v"(x));
    GALLEY_BYTES_AVX2(d) asm volatile("" : "+v"(x));
    GALLEY_BYTES_AVX2(e)
    asm volatile("" : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e));
  }
}
#define GALLEY_BYTES_VNNI(v) v = _mm512_dpbusd_epi32(v, x, y);
__attribute__((target("avx512f,avx512vnni"))) void int8_vnni(int64_t rounds) {
  __m512i x = _mm512_set1_epi8(3), y = _mm512_set1_epi8(2);
  asm volatile("" : "+v"(x), "+v"(y));
  GALLEY_CHAINS(__m512i, GALLEY_BYTES_VNNI)
}
#define GALLEY_DOT_BF16(v) v = _mm512_dpbf16_ps(v, x, y);
__attribute__((target("avx512f,avx512bf16"))) void bf16_avx512(int64_t rounds) {
  __m512bh x = (__m512bh)_mm512_set1_epi16(0x3e80), y = (__m512bh)_mm512_set1_epi16(0x3f00);
  asm volatile("" : "+v"(x), "+v"(y));
  GALLEY_CHAINS(__m512, GALLEY_DOT_BF16)
}

// Six tiles of sums, each the product of 16 x 64 and 64 x 16 bytes. The asm avoids compiling any other code for AMX. The contents of the
// tiles do not affect the speed.
#define GALLEY_TILES(name, product)                                                                                       \
  void name(int64_t rounds) {                                                                                             \
    struct alignas(64) {                                                                                                  \
      uint8_t palette = 1, start_row = 0, reserved[14] = {};                                                              \
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};                                                          \
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};                                                                \
    } config;                                                                                                             \
    asm volatile("ldtilecfg %0" : : "m"(config));                                                                         \
    for (int64_t n = 0; n < rounds; ++n) {                                                                                \
      asm volatile(product " %tmm7, %tmm6, %tmm0\n\t" product " %tmm7, %tmm6, %tmm1\n\t" product " %tmm7, %tmm6, %tmm2"); \
      asm volatile(product " %tmm7, %tmm6, %tmm3\n\t" product " %tmm7, %tmm6, %tmm4\n\t" product " %tmm7, %tmm6, %tmm5"); \
    }                                                                                                                     \
    asm volatile("tilerelease");                                                                                          \
  }
GALLEY_TILES(int8_amx, "tdpbusd")
GALLEY_TILES(bf16_amx, "tdpbf16ps")
#else
typedef float F4 __attribute__((vector_size(16)));
void f32_generic(int64_t rounds) {
  F4 x = F4{} + 0.25f, y = F4{} + 0.5f, a = x, b = x, c = x, d = x;
  for (int64_t n = 0; n < rounds; ++n) {
    a = a * y + x;
    b = b * y + x;
    c = c * y + x;
    d = d * y + x;
  }
  volatile float keep = (a + b + c + d)[0];  // using the result keeps the compiler from removing the loop
  (void)keep;
}
#endif

std::vector<Burst> find_bursts() {
  [[maybe_unused]] constexpr int64_t kRounds = 100000, kTileRounds = 5000;
  std::vector<Burst> list;
#if defined(__x86_64__)
  __builtin_cpu_init();
  list.push_back({DType::kF32, "sse2", 2 * 4 * 10, kRounds, f32_sse2});
  list.push_back({DType::kF64, "sse2", 2 * 2 * 10, kRounds, f64_sse2});
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    list.push_back({DType::kF32, "avx2", 2 * 8 * 10, kRounds, f32_avx2});
    list.push_back({DType::kF64, "avx2", 2 * 4 * 10, kRounds, f64_avx2});
    list.push_back({DType::kI8, "avx2", 2 * 32 * 5, kRounds, int8_avx2});
  }
  if (__builtin_cpu_supports("avx512f")) {
    list.push_back({DType::kF32, "avx512f", 2 * 16 * 10, kRounds, f32_avx512});
    list.push_back({DType::kF64, "avx512f", 2 * 8 * 10, kRounds, f64_avx512});
  }
  if (__builtin_cpu_supports("avx512vnni")) list.push_back({DType::kI8, "avx512_vnni", 2 * 64 * 10, kRounds, int8_vnni});
  if (__builtin_cpu_supports("avx512bf16")) list.push_back({DType::kBF16, "avx512_bf16", 2 * 32 * 10, kRounds, bf16_avx512});
  if (tile_unit().int8) list.push_back({DType::kI8, "amx_int8", 2 * 16 * 16 * 64 * 6, kTileRounds, int8_amx});
  if (tile_unit().bf16) list.push_back({DType::kBF16, "amx_bf16", 2 * 16 * 16 * 32 * 6, kTileRounds, bf16_amx});
#else
  list.push_back({DType::kF32, "generic", 2 * 4 * 4, kRounds, f32_generic});
#endif
  return list;
}

}  // namespace

const std::vector<Burst>& bursts() {
  static const std::vector<Burst> list = find_bursts();
  return list;
}

double measure_burst(const Burst& burst, double seconds) {
  const int threads = compute_threads();
  return reached_rate(seconds, [&] {
    parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) burst.run(burst.rounds);
    });
    return burst.per_round * static_cast<double>(burst.rounds) * threads;
  });
}

}  // namespace galley
