#pragma once
// What one thread does for attention with a cache (cached_attention.cpp): rows of a cache, and one query token against them.

#include <array>
#include <cstdint>
#include <limits>

#include "libcore/backends/cpu/bfloat16.h"

namespace galley::cached_keys {

constexpr int64_t kBlock = 32;  // keys whose scores are stored
constexpr float kNever = -std::numeric_limits<float>::infinity();

/// Rows [first, last) of a cache.
struct Part {
  int64_t first = 0, last = 0;
};

/// All heads of one query against rows of a cache of K: float, BFloat16, or int8_t with scales.
template <class K>
struct Range {
  const float* q;                    // [heads][width]
  const K *k, *v;                    // keys and values of row 0, head 0
  const float *k_scales, *v_scales;  // of row 0, head 0; int8_t only
  int64_t step, scale_step;          // from a row to the next
  int64_t heads, group, width;       // width: a multiple of 16
  float scale;
  std::array<Part, 2> parts;     // the rows that are read
  float *query, *scores;         // scratch: [heads][width], [heads][kBlock]
  float *largest, *total, *sum;  // of each head: the maximum of its scores, the sum of exponentials, [width] values
};
void run(const Range<float>& range);
void run(const Range<BFloat16>& range);
void run(const Range<int8_t>& range);

/// Rounds [heads][width] values to their form in a cache.
void store(const float* from, int64_t heads, int64_t width, BFloat16* to);
/// The same; `scales` gets one number for each head.
void store(const float* from, int64_t heads, int64_t width, int8_t* to, float* scales);

}  // namespace galley::cached_keys
