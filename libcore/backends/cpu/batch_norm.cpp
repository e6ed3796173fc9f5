// Statistics of a batch: mean and variance of each channel of rows of channels, in f32 or bf16.
//
// One pass over blocks of rows: sums and sums of squares of x minus the block's first row, so that large means cancel nothing. Blocks are
// combined in double, in order (Chan, Golub, LeVeque 1979). O(elements), bound by memory.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/batch_norm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/batch_norm_rows-inl.h"

#ifndef GALLEY_BATCH_NORM_ONCE
#define GALLEY_BATCH_NORM_ONCE

#include <algorithm>

#include "libcore/backends/cpu/batch_norm.h"
#include "libcore/backends/cpu/batch_norm_rows.h"
#include "libcore/base/parallel.h"

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::batchnorm {
namespace HWY_NAMESPACE {

/// sum and sum of squares of x - shift; shift is the block's first row.
template <class T>
GALLEY_INLINE void shifted_sums(const T* __restrict x, int64_t rows, int64_t channels, const T* __restrict shift, float* __restrict sum,
                                float* __restrict squares) {
  for (int64_t c = 0; c < channels; ++c) sum[c] = squares[c] = 0;
  by_four_rows(rows, [&](int64_t r, auto count) GALLEY_LOOP {
    const T* row = x + r * channels;
    prefetch_ahead(row, count() * channels);
    for (int64_t c = 0; c < channels; ++c) {
      float s = 0, s2 = 0;
      for (int i = 0; i < count(); ++i) {
        const float d = row[i * channels + c] - shift[c];
        s += d;
        s2 += d * d;
      }
      sum[c] += s;
      squares[c] += s2;
    }
  });
}

void shifted_sums_f32(const float* x, int64_t rows, int64_t channels, const float* shift, float* sum, float* squares) {
  shifted_sums(x, rows, channels, shift, sum, squares);
}
void shifted_sums_bf16(const BFloat16* x, int64_t rows, int64_t channels, const BFloat16* shift, float* sum, float* squares) {
  shifted_sums(x, rows, channels, shift, sum, squares);
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::batchnorm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace galley::batchnorm {
HWY_EXPORT(shifted_sums_f32);
HWY_EXPORT(shifted_sums_bf16);

namespace {

void shifted_sums(const float* x, int64_t rows, int64_t channels, const float* shift, float* sum, float* squares) {
  HWY_DYNAMIC_DISPATCH(shifted_sums_f32)(x, rows, channels, shift, sum, squares);
}
void shifted_sums(const BFloat16* x, int64_t rows, int64_t channels, const BFloat16* shift, float* sum, float* squares) {
  HWY_DYNAMIC_DISPATCH(shifted_sums_bf16)(x, rows, channels, shift, sum, squares);
}

/// Sums and sums of squares of a block of rows, relative to its first row.
template <class T>
void shifted_row_sums(const T* x, int64_t rows, int64_t channels, float* sum, float* squares) {
  const int64_t together = rows_together<T>(channels);
  if (together == 1) return shifted_sums(x, rows, channels, x, sum, squares);
  T shift[kWidestRow];
  std::copy_n(x, channels, shift);
  repeat(shift, channels, together);
  sum_rows<T>(rows, channels, sum, squares, [&](int64_t first, int64_t count, int64_t width, float* one, float* other) {
    shifted_sums(x + first * channels, count, width, shift, one, other);
  });
}

}  // namespace

Blocks::Blocks(Rows rows, int threads, int64_t parts) : rows_(rows) {
  constexpr int64_t kMost = 256;
  const int64_t by_size = std::max<int64_t>(1, rows.pixels * rows.channels / 65536);
  count = std::clamp<int64_t>(by_size, std::min<int64_t>(threads, rows.pixels), std::min<int64_t>(kMost, rows.pixels));
  count = (count + parts - 1) / parts * parts;
}

template <class T>
void Statistics<T>::run(const T* x, float* mean, float* var, void* scratch) const {
  const int64_t channels = rows_.channels;
  auto* sums = static_cast<float*>(scratch);
  parallel_ranges(blocks_.count, 1, [&](int64_t b, int64_t) {
    shifted_row_sums(x + blocks_.begin(b) * channels, blocks_.begin(b + 1) - blocks_.begin(b), channels, sums + b * 2 * channels,
                     sums + (b * 2 + 1) * channels);
  });
  parallel_for((channels + kLanes - 1) / kLanes, 4, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) combine(x, sums, task * kLanes, std::min(kLanes, channels - task * kLanes), mean, var);
  });
}

/// Chan et al. 1979: blocks' means and squares about them, combined one after the other in block order.
template <class T>
void Statistics<T>::combine(const T* x, const float* sums, int64_t first, int64_t lanes, float* mean_out, float* var_out) const {
  const int64_t channels = rows_.channels;
  double mean[kLanes] = {}, m2[kLanes] = {}, n = 0;
  for (int64_t b = 0; b < blocks_.count; ++b) {
    const T* row = x + blocks_.begin(b) * channels + first;
    const float* sum = sums + b * 2 * channels + first;
    const float* squares = sum + channels;
    const double k = static_cast<double>(blocks_.begin(b + 1) - blocks_.begin(b)), inverse = 1 / k, part = k / (n + k), weight = n * part;
    for (int64_t c = 0; c < lanes; ++c) {
      const double s = static_cast<double>(sum[c]), delta = static_cast<double>(static_cast<float>(row[c])) + s * inverse - mean[c];
      m2[c] += std::max(0.0, static_cast<double>(squares[c]) - s * s * inverse) + delta * delta * weight;
      mean[c] += delta * part;
    }
    n += k;
  }
  for (int64_t c = 0; c < lanes; ++c) {
    mean_out[first + c] = static_cast<float>(mean[c]);
    var_out[first + c] = static_cast<float>(m2[c] / static_cast<double>(rows_.pixels));
  }
}

template class Statistics<float>;
template class Statistics<BFloat16>;

}  // namespace galley::batchnorm
#endif  // HWY_ONCE
