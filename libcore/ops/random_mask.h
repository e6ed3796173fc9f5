#pragma once
// The random bits of dropout and stochastic depth: a pure function of (seed, stream, step, sample, element), so recomputation,
// micro-batches, threads, ranks and a resumed run draw the same masks. Shared by the reference and the fast kernels.

#include <cstdint>

#include "libcore/base/philox.h"

namespace galley {

/// The sample index of a draw that all samples of a step share (stochastic depth in mode batch).
inline constexpr uint64_t kWholeBatch = ~uint64_t{0};

/// splitmix64's finaliser (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
inline uint64_t mix_bits(uint64_t h) {
  h += 0x9e3779b97f4a7c15ull;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
  return h ^ (h >> 31);
}

/// Philox key of one operator in one step. `stream` names the operator (module path and occurrence).
inline uint64_t mask_key(int64_t seed, int64_t stream, int64_t step) {
  return mix_bits(mix_bits(mix_bits(static_cast<uint64_t>(seed)) ^ static_cast<uint64_t>(stream)) ^ static_cast<uint64_t>(step));
}

/// The words of elements 4*block .. 4*block+3 of a sample. Elements are numbered in logical order within the sample.
inline PhiloxBlock mask_block(uint64_t key, uint64_t sample, uint64_t block) { return philox(key, block, sample); }

/// The word of one element.
inline uint32_t mask_bits(int64_t seed, int64_t stream, int64_t step, int64_t sample, int64_t element) {
  const uint64_t e = static_cast<uint64_t>(element);
  return mask_block(mask_key(seed, stream, step), static_cast<uint64_t>(sample), e / 4)[e % 4];
}

/// Is an element with these bits kept if elements are dropped with probability p?
inline bool mask_keeps(uint32_t bits, double p) { return static_cast<double>(uniform_from_bits(bits)) >= p; }

/// The factor of kept elements, which preserves the expectation: 1/(1-p); 0 if all elements are dropped (p = 1).
inline double mask_scale(double p) { return p < 1 ? 1 / (1 - p) : 0; }

}  // namespace galley
