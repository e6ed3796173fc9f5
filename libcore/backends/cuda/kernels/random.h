#pragma once
// The random bits of dropout: those of ops/random_mask.h and base/philox.h.

#include "libcore/backends/cuda/kernels/portable.h"

namespace galley::device {

GALLEY_DEVICE uint64_t mix_bits(uint64_t h) {
  h += 0x9e3779b97f4a7c15ull;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
  return h ^ (h >> 31);
}

/// Word `word` of Philox4x32-10 for a key and a counter.
GALLEY_DEVICE uint32_t philox_word(uint64_t key, uint64_t low, uint64_t high, int word) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t x0 = static_cast<uint32_t>(low), x1 = static_cast<uint32_t>(low >> 32), x2 = static_cast<uint32_t>(high),
           x3 = static_cast<uint32_t>(high >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * x0, p1 = uint64_t{0xCD9E8D57u} * x2;
    x0 = static_cast<uint32_t>(p1 >> 32) ^ x1 ^ k0;
    x1 = static_cast<uint32_t>(p1);
    x2 = static_cast<uint32_t>(p0 >> 32) ^ x3 ^ k1;
    x3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return word == 0 ? x0 : word == 1 ? x1 : word == 2 ? x2 : x3;
}

/// The word of one element (mask_bits in ops/random_mask.h).
GALLEY_DEVICE uint32_t mask_word(int64_t seed, int64_t stream, int64_t step, int64_t sample, int64_t element) {
  const uint64_t key =
      mix_bits(mix_bits(mix_bits(static_cast<uint64_t>(seed)) ^ static_cast<uint64_t>(stream)) ^ static_cast<uint64_t>(step));
  const uint64_t e = static_cast<uint64_t>(element);
  return philox_word(key, e / 4, static_cast<uint64_t>(sample), static_cast<int>(e % 4));
}

GALLEY_KERNEL(random_words, (const RandomBitsCall call)) {
  const uint64_t seed = static_cast<uint64_t>(call.rng[0]), step = static_cast<uint64_t>(call.rng[1]);
  const uint64_t key = mix_bits(mix_bits(mix_bits(seed) ^ static_cast<uint64_t>(call.stream)) ^ step);
  for (int64_t i = first_element(); i < call.elements; i += all_threads()) {
    const uint64_t sample = call.whole_batch != 0 ? ~uint64_t{0} : static_cast<uint64_t>(call.rng[2] + i / call.per_sample);
    const uint64_t element = static_cast<uint64_t>(i % call.per_sample);
    static_cast<int64_t*>(call.to)[i] = philox_word(key, element / 4, sample, static_cast<int>(element % 4));
  }
}

}  // namespace galley::device
