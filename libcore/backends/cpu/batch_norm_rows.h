#pragma once
// How kernels of batch norm walk rows of channels: several at a time, with prefetch.

#include <algorithm>
#include <cstdint>

#include "libcore/backends/cpu/batch_norm.h"
#include "libcore/backends/cpu/vector_math.h"

namespace galley::batchnorm {

constexpr int64_t kLanes = 32;  // channels whose partial sums are added up together

constexpr int64_t kAhead = 2048;
/// Prefetches the bytes kAhead after [p, p + count): the processor's own prefetcher does not keep up with two or three arrays that are read
/// by whole rows at once (docs/performance/rules.md#memory).
template <class T>
GALLEY_INLINE void prefetch_ahead(const T* p, int64_t count) {
  const char* at = reinterpret_cast<const char*>(p) + kAhead;
  for (int64_t i = 0; i < count * static_cast<int64_t>(sizeof(T)); i += 64) __builtin_prefetch(at + i);
}

// Note [Wide rows]: 512 bits hold 32 values of bf16, and the values of a row after the last 16 are computed one by one: 8 of 72 channels,
// which take longer than the other 64. So several rows are handled as one wide row that fills whole vectors. Coefficients are repeated as
// often, and the sums of the rows in a wide row are added afterwards. (f32 gains nothing: its remainders are half as long, and memory
// bounds it.)

constexpr int64_t kWidestRow = 1024;
/// Number of rows that are handled as one wide row.
template <class T>
int64_t rows_together(int64_t channels) {
  if (sizeof(T) != 2) return 1;
  int64_t together = 1;
  while (together * channels < 64 || together * channels % 32 != 0) together *= 2;
  return together * channels <= kWidestRow ? together : 1;
}

/// Repeats the first `channels` values, for wide rows.
template <class T>
void repeat(T* values, int64_t channels, int64_t together) {
  for (int64_t i = 1; i < together; ++i) std::copy_n(values, channels, values + i * channels);
}

/// Calls sums(first row, rows, channels, two results) for the wide rows and for the rest, and adds the results.
template <class T, class Sums>
void sum_rows(int64_t rows, int64_t channels, float* one, float* other, const Sums& sums) {
  const int64_t together = rows_together<T>(channels), wide = together == 1 ? 0 : rows / together;
  sums(wide * together, rows - wide * together, channels, one, other);
  if (wide == 0) return;
  float ones[kWidestRow], others[kWidestRow];
  sums(0, wide, together * channels, ones, others);
  for (int64_t i = 0; i < together; ++i) {
    for (int64_t c = 0; c < channels; ++c) {
      one[c] += ones[i * channels + c];
      other[c] += others[i * channels + c];
    }
  }
}

}  // namespace galley::batchnorm
