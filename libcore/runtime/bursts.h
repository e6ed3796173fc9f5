#pragma once
// Short loops that compute as fast as the processor can, from registers: what its peaks are measured by.

#include <cstdint>
#include <string>
#include <vector>

#include "libcore/tensor/dtype.h"

namespace galley {

struct Burst {
  DType dtype;                  // f32, f64, bf16 (summed in f32), i8 (products of u8 and i8, summed in i32)
  std::string instruction_set;  // sse2, avx2, avx512f, avx512_bf16, avx512_vnni, amx_bf16, amx_int8
  double per_round;             // operations, two a multiply-add
  int64_t rounds;               // that take some tenths of a millisecond
  void (*run)(int64_t rounds);  // on the calling thread
};

/// Those that this processor can run; of one dtype the narrowest first.
const std::vector<Burst>& bursts();

/// Operations a second of a burst on compute_threads() threads, in about `seconds`.
double measure_burst(const Burst& burst, double seconds);

}  // namespace galley
