#pragma once
// Short loops that compute from registers as fast as the processor can. They measure its peak rates.

#include <cstdint>
#include <string>
#include <vector>

#include "libcore/tensor/dtype.h"

namespace galley {

struct Burst {
  DType dtype;                  // f32, f64, bf16 (summed in f32), i8 (products of u8 and i8, summed in i32)
  std::string instruction_set;  // sse2, avx2, avx512f, avx512_bf16, avx512_vnni, amx_bf16, amx_int8
  double per_round;             // operations; a multiply-add counts two
  int64_t rounds;               // number that takes some tenths of a millisecond
  void (*run)(int64_t rounds);  // on the calling thread
};

/// The bursts that this processor can run; for each dtype the narrowest instruction set first.
const std::vector<Burst>& bursts();

/// Operations per second of a burst on compute_threads() threads. Takes about `seconds`.
double measure_burst(const Burst& burst, double seconds);

}  // namespace galley
