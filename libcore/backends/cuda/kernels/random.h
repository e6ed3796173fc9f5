#pragma once
// The random bits of dropout: those of ops/random_mask.h and base/philox.h.

#include "libcore/backends/cuda/kernels/packs.h"

namespace galley::device {

GALLEY_DEVICE uint64_t mix_bits(uint64_t h) {
  h += 0x9e3779b97f4a7c15ull;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
  return h ^ (h >> 31);
}

/// The words of Philox4x32-10 for a key and a counter.
GALLEY_DEVICE void philox_words(uint64_t key, uint64_t low, uint64_t high, uint32_t (&words)[4]) {
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
  words[0] = x0;
  words[1] = x1;
  words[2] = x2;
  words[3] = x3;
}
GALLEY_DEVICE uint32_t philox_word(uint64_t key, uint64_t low, uint64_t high, int word) {
  uint32_t words[4];
  philox_words(key, low, high, words);
  return word == 0 ? words[0] : word == 1 ? words[1] : word == 2 ? words[2] : words[3];
}

GALLEY_DEVICE uint64_t mask_key(int64_t seed, int64_t stream, int64_t step) {
  return mix_bits(mix_bits(mix_bits(static_cast<uint64_t>(seed)) ^ static_cast<uint64_t>(stream)) ^ static_cast<uint64_t>(step));
}
/// The word of one element (mask_bits in ops/random_mask.h).
GALLEY_DEVICE uint32_t mask_word(int64_t seed, int64_t stream, int64_t step, int64_t sample, int64_t element) {
  const uint64_t key = mask_key(seed, stream, step);
  const uint64_t e = static_cast<uint64_t>(element);
  return philox_word(key, e / 4, static_cast<uint64_t>(sample), static_cast<int>(e % 4));
}

/// Eight elements at once, of samples that packs divide.
template <Type kType>
GALLEY_DEVICE void drop_packs(const DropoutCall& call, uint64_t key) {
  const bool narrow = call.elements < int64_t{1} << 31;
  for (int64_t i = first_element() * kPack; i < call.elements; i += all_threads() * kPack) {
    const Packed<kType> pack = read_pack<kType>(call.from, i);
    const int64_t sample = narrow ? static_cast<uint32_t>(i) / static_cast<uint32_t>(call.per_sample) : i / call.per_sample;
    const uint64_t block = static_cast<uint64_t>(i - sample * call.per_sample) / 4, high = static_cast<uint64_t>(call.rng[2] + sample);
    uint32_t words[2][4];
    philox_words(key, block, high, words[0]);
    philox_words(key, block + 1, high, words[1]);
    float x[kPack];
    unpack(pack, x);
    GALLEY_UNROLL
    for (int j = 0; j < kPack; ++j) x[j] = words[j / 4][j % 4] >> 8 >= call.least ? x[j] * call.scale : 0.0f;
    write_pack(packed<kType>(x), call.to, i);
  }
}
GALLEY_KERNEL(dropout_elements, (const DropoutCall call)) {
  if (call.per_sample % kPack == 0 && has_packs(call.from) && has_packs(call.to)) {
    const uint64_t key = mask_key(call.rng[0], call.stream, call.rng[1]);
    with_type(call.type, [&]<Type kType>() { drop_packs<kType>(call, key); });
    return;
  }
  for (int64_t i = first_element(); i < call.elements; i += all_threads()) {
    const uint32_t word = mask_word(call.rng[0], call.stream, call.rng[1], call.rng[2] + i / call.per_sample, i % call.per_sample);
    store_real(word >> 8 >= call.least ? load_real(call.from, i, call.type) * call.scale : 0.0f, call.to, i, call.type);
  }
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
