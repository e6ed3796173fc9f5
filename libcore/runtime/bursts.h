#pragma once
// Bursts: short loops on registers that run at the processor's peak rate. They measure that rate.

#include <cstdint>
#include <string>
#include <vector>

#include "libcore/tensor/dtype.h"

namespace galley {

/// A loop for one dtype and instruction set.
struct Burst {
  DType dtype;                  // f32, f64, bf16 (summed in f32), i8 (products of u8 and i8, summed in i32)
  std::string instruction_set;  // sse2, avx2, avx512f, avx512_bf16, avx512_vnni, amx_bf16, amx_int8
  double per_round;             // operations per round; a multiply-add counts as two
  int64_t rounds;               // number of rounds that takes some tenths of a millisecond
  void (*run)(int64_t rounds);  // runs on the calling thread
};

/// The bursts that this processor can run. For each dtype the narrowest instruction set comes first.
const std::vector<Burst>& bursts();

/// Operations per second of a burst on compute_threads() threads. Takes about `seconds`.
double measure_burst(const Burst& burst, double seconds);

}  // namespace galley
