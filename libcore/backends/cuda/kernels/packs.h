#pragma once
// Packs: eight floating-point elements beside each other, which a thread reads or writes in words of 16 bytes. Their address must be a
// multiple of 16. Kernels that memory traffic bounds are several times as fast with them as with single elements.

#include "libcore/backends/cuda/kernels/portable.h"

namespace galley::device {

struct alignas(16) Word {
  uint32_t bits[4];
};

/// A pack of f32, bf16 or f16 as it is in memory. Read several before the first is used, so that they are on their way at once.
template <Type kType>
struct Packed {
  Word words[kType == kF32 ? 2 : 1];
};
/// Elements i to i + 7.
template <Type kType>
GALLEY_DEVICE Packed<kType> read_pack(const void* array, int64_t i) {
  Packed<kType> pack;
  const Word* words = reinterpret_cast<const Word*>(static_cast<const char*>(array) + i * (kType == kF32 ? 4 : 2));
  pack.words[0] = words[0];
  if constexpr (kType == kF32) pack.words[1] = words[1];
  return pack;
}
template <Type kType>
GALLEY_DEVICE void unpack(const Packed<kType>& pack, float (&x)[kPack]) {
  GALLEY_UNROLL
  for (int j = 0; j < kPack; ++j) {
    if constexpr (kType == kF32) {
      Bits value;
      value.bits = pack.words[j / 4].bits[j % 4];
      x[j] = value.number;
    } else {
      const uint16_t bits = static_cast<uint16_t>(pack.words[0].bits[j / 2] >> (j % 2 * 16));
      x[j] = kType == kBF16 ? from_bf16(bits) : from_f16(bits);
    }
  }
}
template <Type kType>
GALLEY_DEVICE Packed<kType> packed(const float (&x)[kPack]) {
  Packed<kType> pack;
  GALLEY_UNROLL
  for (int j = 0; j < kPack; ++j) {
    if constexpr (kType == kF32) {
      Bits value;
      value.number = x[j];
      pack.words[j / 4].bits[j % 4] = value.bits;
    } else if (j % 2 == 0) {
      pack.words[0].bits[j / 2] = kType == kBF16 ? to_bf16_pair(x[j], x[j + 1]) : to_f16_pair(x[j], x[j + 1]);
    }
  }
  return pack;
}
template <Type kType>
GALLEY_DEVICE void write_pack(const Packed<kType>& pack, void* array, int64_t i) {
  Word* words = reinterpret_cast<Word*>(static_cast<char*>(array) + i * (kType == kF32 ? 4 : 2));
  words[0] = pack.words[0];
  if constexpr (kType == kF32) words[1] = pack.words[1];
}

/// The same of a pack that is not read soon, so that the cache keeps others.
template <Type kType>
GALLEY_DEVICE void stream_pack(const Packed<kType>& pack, void* array, int64_t i) {
#ifdef __CUDACC__
  uint4* words = reinterpret_cast<uint4*>(static_cast<char*>(array) + i * (kType == kF32 ? 4 : 2));
  GALLEY_UNROLL
  for (int w = 0; w < (kType == kF32 ? 2 : 1); ++w) {
    const uint32_t(&b)[4] = pack.words[w].bits;
    __stcs(words + w, make_uint4(b[0], b[1], b[2], b[3]));
  }
#else
  write_pack(pack, array, i);
#endif
}

/// A row of any begin, whose elements a block shares: threads call of_pack(c, pack) for packs of it from element c on, whose addresses are
/// multiples of 16, and of_one(c) for the elements before and after them. Packs of 64 bytes in all are on their way at once.
template <Type kType, class P, class O>
GALLEY_DEVICE void each_of_row(const void* array, int64_t begin, int64_t size, const P& of_pack, const O& of_one) {
  constexpr int64_t kBytes = kType == kF32 ? 4 : 2, kStep = kThreads * kPack;
  constexpr int kAtOnce = kType == kF32 ? 2 : 4;
  const int64_t thread = threadIdx.x, over = static_cast<int64_t>((reinterpret_cast<uintptr_t>(array) + begin * kBytes) % sizeof(Word));
  const int64_t to_word = over == 0 ? 0 : (static_cast<int64_t>(sizeof(Word)) - over) / kBytes, head = to_word < size ? to_word : size;
  const int64_t end = head + (size - head) / kPack * kPack;
  int64_t c = head + thread * kPack;
  for (; c + (kAtOnce - 1) * kStep < end; c += kAtOnce * kStep) {
    Packed<kType> packs[kAtOnce];
    GALLEY_UNROLL
    for (int p = 0; p < kAtOnce; ++p) packs[p] = read_pack<kType>(array, begin + c + p * kStep);
    GALLEY_KEEP_ORDER();  // else the compiler may move each to its use
    GALLEY_UNROLL
    for (int p = 0; p < kAtOnce; ++p) of_pack(c + p * kStep, packs[p]);
  }
  for (; c < end; c += kStep) of_pack(c, read_pack<kType>(array, begin + c));
  if (thread < head + size - end) of_one(thread < head ? thread : end + thread - head);
}

/// Calls f.template operator()<kType>() for f32, bf16 or f16.
template <class F>
GALLEY_DEVICE void with_type(Type type, const F& f) {
  if (type == kF32) {
    f.template operator()<kF32>();
  } else if (type == kBF16) {
    f.template operator()<kBF16>();
  } else {
    f.template operator()<kF16>();
  }
}

/// Reads elements i to i + 7 of an array in f32, bf16 or f16.
GALLEY_DEVICE void load_pack(const void* array, int64_t i, Type type, float (&x)[kPack]) {
  with_type(type, [&]<Type kType>() { unpack(read_pack<kType>(array, i), x); });
}
/// Writes elements i to i + 7.
GALLEY_DEVICE void store_pack(const float (&x)[kPack], void* array, int64_t i, Type type) {
  with_type(type, [&]<Type kType>() { write_pack(packed<kType>(x), array, i); });
}

/// Whether packs of the array may be read: its address is a multiple of 16.
GALLEY_DEVICE bool has_packs(const void* array) { return reinterpret_cast<uintptr_t>(array) % sizeof(Word) == 0; }

}  // namespace galley::device
