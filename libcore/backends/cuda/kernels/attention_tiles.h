#pragma once
// Attention in tiles with the softmax of a row corrected as its keys arrive (Dao et al. 2022), and its gradients, which compute the scores
// again. The scores are never stored.
//
// A block owns a tile of rows: queries of a head for the output and for dq, keys of a key head for dk and dv; it walks the tiles of the
// other side in their order and adds up in registers, so that the bits do not depend on the GPU. A thread has kOwn rows and 4 columns of
// the scores, kOwn rows and 4 * kWide columns of a result. Arithmetic is f32, without tensor cores, which bounds it.

#include "libcore/backends/cuda/kernels/functions.h"
#include "libcore/backends/cuda/kernels/random.h"

namespace galley::device {

inline constexpr int kOther = 64;                             // rows of a tile of the other side
inline constexpr int kLanes = 16;                             // threads that share rows of the scores
inline constexpr int kDepth = 16;                             // elements of rows in shared memory at once
inline constexpr int kScoreLine = kOther + 4;                 // places between rows of shared arrays: other banks
inline constexpr int kSliceFloats = 2 * kDepth * kScoreLine;  // of both sides

/// Rows of a head in an array: row r begins at element begin + r * step. Rows from `rows` on, and elements from `width` on, are 0.
struct HeadRows {
  const void* array;
  int64_t begin;
  int step, rows, width;
  Type type;
};
GALLEY_DEVICE int narrow(int64_t size) { return static_cast<int>(size); }

/// Of a head of an array [batch,positions,heads,width], from position `first`.
GALLEY_DEVICE HeadRows rows_of(const AttentionCall& c, const void* array, int64_t positions, int64_t sample, int64_t head, int64_t first,
                               int64_t heads, int64_t width) {
  return {array, ((sample * positions + first) * heads + head) * width, narrow(heads * width), narrow(positions - first), narrow(width),
          c.type};
}
GALLEY_DEVICE HeadRows queries_of(const AttentionCall& c, const void* array, int64_t sample, int64_t head, int64_t first, int64_t heads,
                                  int64_t width) {
  return rows_of(c, array, c.queries, sample, head, first, heads, width);
}
GALLEY_DEVICE HeadRows q_rows(const AttentionCall& c, int64_t sample, int64_t head, int64_t first) {
  return queries_of(c, c.q, sample, head, first, c.q_heads, c.width);
}
GALLEY_DEVICE HeadRows grad_rows(const AttentionCall& c, int64_t sample, int64_t head, int64_t first) {
  return queries_of(c, c.grad, sample, head, first, c.heads, c.value_width);
}
GALLEY_DEVICE HeadRows k_rows(const AttentionCall& c, int64_t sample, int64_t head, int64_t first) {
  return rows_of(c, c.k, c.keys, sample, c.first_key + head, first, c.k_heads, c.width);
}
GALLEY_DEVICE HeadRows v_rows(const AttentionCall& c, int64_t sample, int64_t head, int64_t first) {
  return rows_of(c, c.v, c.keys, sample, c.first_value + head, first, c.v_heads, c.value_width);
}

/// Elements first .. first + kDepth - 1 of kRows rows, as columns of `to`, kLine places apart.
template <Type kType, int kRows, int kLine>
GALLEY_DEVICE void load_turned(const HeadRows& from, int first, float* to) {
  for (int i = static_cast<int>(threadIdx.x); i < kDepth * kRows; i += kThreads) {
    const int s = i % kDepth, r = i / kDepth;
    const bool inside = r < from.rows && first + s < from.width;
    to[s * kLine + r] = inside ? load<float>(from.array, from.begin + int64_t{r} * from.step + first + s, kType) : 0.0f;
  }
}
/// Rows first .. first + kDepth - 1, kColumns places apart.
template <Type kType, int kColumns>
GALLEY_DEVICE void load_rows(const HeadRows& from, int first, float* to) {
  for (int i = static_cast<int>(threadIdx.x); i < kDepth * kColumns; i += kThreads) {
    const int r = first + i / kColumns, d = i % kColumns;
    to[i] = r < from.rows && d < from.width ? load<float>(from.array, from.begin + int64_t{r} * from.step + d, kType) : 0.0f;
  }
}
// The type is a branch around the loops, which all threads take alike.
template <int kRows, int kLine>
GALLEY_DEVICE void load_turned(const HeadRows& from, int first, float* to) {
  if (from.type == kF32) load_turned<kF32, kRows, kLine>(from, first, to);
  if (from.type == kBF16) load_turned<kBF16, kRows, kLine>(from, first, to);
  if (from.type == kF16) load_turned<kF16, kRows, kLine>(from, first, to);
}
template <int kColumns>
GALLEY_DEVICE void load_rows(const HeadRows& from, int first, float* to) {
  if (from.type == kF32) load_rows<kF32, kColumns>(from, first, to);
  if (from.type == kBF16) load_rows<kBF16, kColumns>(from, first, to);
  if (from.type == kF16) load_rows<kF16, kColumns>(from, first, to);
}

/// sums = own other^T of kOwn * kLanes and kOther rows, the part of this thread. slice: kSliceFloats in shared memory.
template <int kOwn>
GALLEY_DEVICE void multiply_rows(const HeadRows& own, const HeadRows& other, float* slice, float (&sums)[kOwn][4]) {
  constexpr int kRows = kOwn * kLanes, kLine = kRows + 4;
  const int thread = static_cast<int>(threadIdx.x), row = thread / kLanes * kOwn, column = thread % kLanes * 4;
  float *a = slice, *b = slice + kDepth * kScoreLine;
  GALLEY_UNROLL
  for (int i = 0; i < kOwn; ++i) {
    GALLEY_UNROLL
    for (int j = 0; j < 4; ++j) sums[i][j] = 0;
  }
  for (int d = 0; d < own.width; d += kDepth) {
    load_turned<kRows, kLine>(own, d, a);
    load_turned<kOther, kScoreLine>(other, d, b);
    __syncthreads();
    GALLEY_UNROLL_BY_4
    for (int s = 0; s < kDepth; ++s) {
      GALLEY_UNROLL
      for (int i = 0; i < kOwn; ++i) {
        GALLEY_UNROLL
        for (int j = 0; j < 4; ++j) sums[i][j] += a[s * kLine + row + i] * b[s * kScoreLine + column + j];
      }
    }
    __syncthreads();
  }
}

/// sums += weights other, where weights [kOwn * kLanes, kScoreLine] in shared memory has a column for each of the other rows. What the
/// caller wrote there is read after a barrier.
template <int kOwn, int kWide>
GALLEY_DEVICE void add_products(const float* weights, const HeadRows& other, float* slice, float (&sums)[kOwn][4 * kWide]) {
  constexpr int kColumns = 64 * kWide;
  const int thread = static_cast<int>(threadIdx.x), row = thread / kLanes * kOwn, column = thread % kLanes * 4;
  for (int first = 0; first < kOther; first += kDepth) {
    load_rows<kColumns>(other, first, slice);
    __syncthreads();
    GALLEY_UNROLL_BY_4
    for (int s = 0; s < kDepth; ++s) {
      GALLEY_UNROLL
      for (int i = 0; i < kOwn; ++i) {
        const float weight = weights[(row + i) * kScoreLine + first + s];
        GALLEY_UNROLL
        for (int j = 0; j < 4 * kWide; ++j) sums[i][j] += weight * slice[s * kColumns + j / 4 * 64 + column + j % 4];
      }
    }
    __syncthreads();
  }
}

/// Writes rows of a head, the part of this thread.
template <Type kType, int kOwn, int kWide>
GALLEY_DEVICE void store_rows(const float (&sums)[kOwn][4 * kWide], float factor, const HeadRows& to, void* array) {
  const int thread = static_cast<int>(threadIdx.x), row = thread / kLanes * kOwn, column = thread % kLanes * 4;
  GALLEY_UNROLL
  for (int i = 0; i < kOwn; ++i) {
    GALLEY_UNROLL
    for (int j = 0; j < 4 * kWide; ++j) {
      const int d = j / 4 * 64 + column + j % 4;
      if (row + i < to.rows && d < to.width) store(factor * sums[i][j], array, to.begin + int64_t{row + i} * to.step + d, kType);
    }
  }
}
template <int kOwn, int kWide>
GALLEY_DEVICE void store_rows(const float (&sums)[kOwn][4 * kWide], float factor, const HeadRows& to, void* array) {
  if (to.type == kF32) store_rows<kF32, kOwn, kWide>(sums, factor, to, array);
  if (to.type == kBF16) store_rows<kBF16, kOwn, kWide>(sums, factor, to, array);
  if (to.type == kF16) store_rows<kF16, kOwn, kWide>(sums, factor, to, array);
}

/// What the masks of a head of a sample need. Sequences have less than 2^30 positions.
struct HeadMask {
  int64_t sample, head;
  int queries, keys, start, length, window;  // start: position of query 0; keys from `length` on are padding
  uint64_t key, random_sample;               // of dropout
};
GALLEY_DEVICE int position_of(int64_t value) {
  constexpr int64_t kMost = int64_t{1} << 30;
  return narrow(value > kMost ? kMost : value < -kMost ? -kMost : value);
}
GALLEY_DEVICE HeadMask mask_of(const AttentionCall& c, int64_t sample, int64_t head) {
  HeadMask mask{sample, head, narrow(c.queries), narrow(c.keys), 0, narrow(c.keys), position_of(c.window), 0, 0};
  if (c.position != nullptr) mask.start = position_of(c.position[sample]);
  if (c.lengths != nullptr) mask.length = position_of(c.lengths[sample]);
  if (c.drops != 0) {
    mask.key =
        mix_bits(mix_bits(mix_bits(static_cast<uint64_t>(c.rng[0])) ^ static_cast<uint64_t>(c.stream)) ^ static_cast<uint64_t>(c.rng[1]));
    mask.random_sample = static_cast<uint64_t>(c.rng[2] + sample);
  }
  return mask;
}
/// Whether query i reads key j.
GALLEY_DEVICE bool reads(const AttentionCall& c, const HeadMask& mask, int i, int j) {
  const int at = i + mask.start;
  bool read = i < mask.queries && j < mask.keys && (c.lengths == nullptr || (j < mask.length && (c.pad_queries == 0 || at < mask.length)));
  if (c.causal != 0) read = read && j <= at;
  if (mask.window > 0) read = read && j > at - mask.window && (c.causal != 0 || j - mask.window < at);
  return read;
}
/// Whether some query of a tile may read some key of another: tiles without such a pair are passed over.
GALLEY_DEVICE bool tiles_meet(const AttentionCall& c, const HeadMask& mask, int query, int queries, int key, int keys) {
  const int first = query + mask.start, last = (query + queries < mask.queries ? query + queries : mask.queries) - 1 + mask.start;
  const int last_key = (key + keys < mask.keys ? key + keys : mask.keys) - 1;
  bool meet = c.lengths == nullptr || (key < mask.length && (c.pad_queries == 0 || first < mask.length));
  if (c.causal != 0) meet = meet && key <= last;
  if (mask.window > 0) meet = meet && last_key > first - mask.window && (c.causal != 0 || key - mask.window < last);
  return meet;
}

/// Whether dropout keeps the weight of a pair.
GALLEY_DEVICE bool is_kept(const AttentionCall& c, const HeadMask& mask, int i, int j) {
  if (c.drops == 0) return true;
  const uint64_t element = static_cast<uint64_t>(((c.first_head + mask.head) * c.queries + i) * c.keys + j);
  return philox_word(mask.key, element / 4, mask.random_sample, static_cast<int>(element % 4)) >> 8 >= c.least;
}

GALLEY_DEVICE int64_t bias_place(const AttentionCall& c, const HeadMask& mask, int i, int j) {
  const int64_t head = c.bias_heads > 1 ? mask.head : 0, row = c.bias_rows > 1 ? i : 0;
  return ((mask.sample % c.bias_samples * c.bias_heads + head) * c.bias_rows + row) * c.keys + j;
}
GALLEY_DEVICE float never() {
  Bits infinite;
  infinite.bits = 0xff800000u;
  return infinite.number;
}
GALLEY_DEVICE bool is_none(float score) { return score == never(); }
GALLEY_DEVICE float larger(float a, float b) { return b > a || is_nan(b) ? b : a; }

/// The score of a pair from the product of its rows. slope: its derivative after that of the scale.
GALLEY_DEVICE float score_of(const AttentionCall& c, const HeadMask& mask, int i, int j, float product, float& slope) {
  slope = 1;
  if (!reads(c, mask, i, j)) return never();
  float score = product * c.scale;
  if (c.softcap > 0) {
    const float bent = tanh(score / c.softcap);
    slope = 1 - bent * bent;
    score = c.softcap * bent;
  }
  if (c.bias != nullptr) score += load<float>(c.bias, bias_place(c, mask, i, j), c.bias_type);
  return score;
}

// A thread's part of a tile passes through shared memory where the code of an element is long: the loops over it are not unrolled.
template <int kOwn>
GALLEY_DEVICE void store_part(const float (&part)[kOwn][4], float* tile) {
  const int thread = static_cast<int>(threadIdx.x), row = thread / kLanes * kOwn, column = thread % kLanes * 4;
  GALLEY_UNROLL
  for (int i = 0; i < kOwn; ++i) {
    GALLEY_UNROLL
    for (int j = 0; j < 4; ++j) tile[(row + i) * kScoreLine + column + j] = part[i][j];
  }
}
/// Calls element(e, place, row, column) for each element of this thread's part.
template <int kOwn, class F>
GALLEY_DEVICE void each_element(const F& element) {
  const int thread = static_cast<int>(threadIdx.x), row = thread / kLanes * kOwn, column = thread % kLanes * 4;
  GALLEY_NO_UNROLL
  for (int e = 0; e < kOwn * 4; ++e) element(e, (row + e / 4) * kScoreLine + column + e % 4, row + e / 4, column + e % 4);
}

/// The softmax of a tile's scores goes on: `weights` has the products of its rows, and becomes their weights.
template <int kOwn, int kColumns>
GALLEY_DEVICE void add_scores(const AttentionCall& c, const HeadMask& mask, int query, int key, float* weights, float (&largest)[kOwn],
                              float (&total)[kOwn], float (&sums)[kOwn][kColumns]) {
  const int thread = static_cast<int>(threadIdx.x), row = thread / kLanes * kOwn, column = thread % kLanes * 4;
  uint32_t kept = 0;  // a bit for each element
  each_element<kOwn>([&](int e, int place, int at, int of) {
    float slope = 0;
    weights[place] = score_of(c, mask, query + at, key + of, weights[place], slope);
    if (is_kept(c, mask, query + at, key + of)) kept |= 1u << e;
  });
  GALLEY_UNROLL
  for (int i = 0; i < kOwn; ++i) {
    float* line = weights + (row + i) * kScoreLine + column;
    float most = largest[i];
    GALLEY_UNROLL
    for (int j = 0; j < 4; ++j) most = larger(most, line[j]);
    GALLEY_UNROLL
    for (int half = kLanes / 2; half > 0; half /= 2) most = larger(most, __shfl_xor_sync(0xffffffffu, most, half));
    const float shift = is_none(most) ? 0.0f : most, factor = exp(largest[i] - shift);
    float sum = 0;
    GALLEY_UNROLL
    for (int j = 0; j < 4; ++j) {
      const float weight = exp(line[j] - shift);
      sum += weight;
      line[j] = c.drops == 0 ? weight : (kept >> (4 * i + j) & 1u) != 0 ? weight * c.kept : 0.0f;
    }
    GALLEY_UNROLL
    for (int half = kLanes / 2; half > 0; half /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, half);
    largest[i] = most;
    total[i] = total[i] * factor + sum;
    GALLEY_UNROLL
    for (int j = 0; j < kColumns; ++j) sums[i][j] *= factor;
  }
}

/// o and lse. weights: kOwn * kLanes * kScoreLine, slice: kSliceFloats and kDepth * 64 * kWide, in shared memory.
template <int kOwn, int kWide>
GALLEY_DEVICE void attend_tiles(const AttentionCall& c, float* weights, float* slice) {
  constexpr int kRows = kOwn * kLanes;
  const int row = static_cast<int>(threadIdx.x) / kLanes * kOwn;
  const int64_t tiles = (c.queries + kRows - 1) / kRows;
  for (int64_t task = blockIdx.x; task < c.batch * c.heads * tiles; task += gridDim.x) {
    const int query = narrow((tiles - 1 - task % tiles) * kRows);
    const int64_t head = task / tiles % c.heads, sample = task / tiles / c.heads;
    const int64_t key_head = head / (c.heads / c.kv_heads);
    const HeadMask mask = mask_of(c, sample, head);
    float sums[kOwn][4 * kWide], largest[kOwn], total[kOwn];
    GALLEY_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      largest[i] = never();
      total[i] = 0;
      GALLEY_UNROLL
      for (int j = 0; j < 4 * kWide; ++j) sums[i][j] = 0;
    }
    for (int key = 0; key < mask.keys; key += kOther) {
      if (!tiles_meet(c, mask, query, kRows, key, kOther)) continue;  // the same for all threads of the block
      float products[kOwn][4];
      multiply_rows<kOwn>(q_rows(c, sample, head, query), k_rows(c, sample, key_head, key), slice, products);
      store_part<kOwn>(products, weights);
      add_scores(c, mask, query, key, weights, largest, total, sums);
      add_products<kOwn, kWide>(weights, v_rows(c, sample, key_head, key), slice, sums);
    }
    GALLEY_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      const float inverse = total[i] == 0 ? 0.0f : 1 / total[i];
      GALLEY_UNROLL
      for (int j = 0; j < 4 * kWide; ++j) sums[i][j] *= inverse;
      if (threadIdx.x % kLanes == 0 && query + row + i < c.queries)
        c.lse_to[(sample * c.heads + head) * c.queries + query + row + i] = (is_none(largest[i]) ? 0.0f : largest[i]) + log(total[i]);
    }
    store_rows<kOwn, kWide>(sums, 1.0f, queries_of(c, nullptr, sample, head, query, c.heads, c.value_width), c.to);
  }
}

/// A warp adds up grad o of a row.
GALLEY_KERNEL(attention_along, (const AttentionCall c)) {
  const int64_t rows = c.batch * c.queries * c.heads;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t r = first_element() / kWarp; r < rows; r += all_threads() / kWarp) {
    float sum = 0;
    for (int64_t d = lane; d < c.value_width; d += kWarp)
      sum += load<float>(c.grad, r * c.value_width + d, c.type) * load<float>(c.o, r * c.value_width + d, c.type);
    for (int half = kWarp / 2; half > 0; half /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, half);
    const int64_t place = (r / c.heads / c.queries * c.heads + r % c.heads) * c.queries + r / c.heads % c.queries;
    if (lane == 0) c.along[place] = c.grad_lse != nullptr ? sum - c.grad_lse[place] : sum;
  }
}

/// A row's statistics: lse, 0 where it has no key, and `along`.
struct RowStatistics {
  float lse, along;
};
GALLEY_DEVICE RowStatistics statistics_of(const AttentionCall& c, const HeadMask& mask, int i) {
  if (i >= mask.queries) return {0, 0};
  const int64_t place = (mask.sample * c.heads + mask.head) * c.queries + i;
  return {is_none(c.lse[place]) ? 0.0f : c.lse[place], c.along[place]};
}

/// gradients = the gradients of a tile's scores, or with kOfProducts of the products before softcap. weights, gradients: kOwn * kLanes *
/// kScoreLine each.
template <int kOwn, bool kOfProducts>
GALLEY_DEVICE void score_gradients(const AttentionCall& c, const HeadMask& mask, int query, int key, int64_t key_head, float* weights,
                                   float* gradients, float* slice) {
  float products[kOwn][4];
  multiply_rows<kOwn>(q_rows(c, mask.sample, mask.head, query), k_rows(c, mask.sample, key_head, key), slice, products);
  store_part<kOwn>(products, weights);
  multiply_rows<kOwn>(grad_rows(c, mask.sample, mask.head, query), v_rows(c, mask.sample, key_head, key), slice, products);
  store_part<kOwn>(products, gradients);
  each_element<kOwn>([&](int, int place, int at, int of) {
    const RowStatistics statistics = statistics_of(c, mask, query + at);
    float slope = 0;
    const float weight = exp(score_of(c, mask, query + at, key + of, weights[place], slope) - statistics.lse);
    const float keep = c.drops == 0 ? 1.0f : is_kept(c, mask, query + at, key + of) ? c.kept : 0.0f;
    gradients[place] = weight * (gradients[place] * keep - statistics.along) * (kOfProducts ? slope : 1.0f);
  });
}

/// dq.
template <int kOwn, int kWide>
GALLEY_DEVICE void query_gradients(const AttentionCall& c, float* weights, float* gradients, float* slice) {
  constexpr int kRows = kOwn * kLanes;
  const int64_t tiles = (c.queries + kRows - 1) / kRows;
  for (int64_t task = blockIdx.x; task < c.batch * c.heads * tiles; task += gridDim.x) {
    const int query = narrow((tiles - 1 - task % tiles) * kRows);
    const int64_t head = task / tiles % c.heads, sample = task / tiles / c.heads;
    const int64_t key_head = head / (c.heads / c.kv_heads);
    const HeadMask mask = mask_of(c, sample, head);
    float sums[kOwn][4 * kWide] = {};
    for (int key = 0; key < mask.keys; key += kOther) {
      if (!tiles_meet(c, mask, query, kRows, key, kOther)) continue;
      score_gradients<kOwn, true>(c, mask, query, key, key_head, weights, gradients, slice);
      add_products<kOwn, kWide>(gradients, k_rows(c, sample, key_head, key), slice, sums);
    }
    store_rows<kOwn, kWide>(sums, c.scale, q_rows(c, sample, head, query), c.dq);
  }
}

/// dk and dv: sums over the queries of all heads that read a key head. slopes: as weights.
template <int kOwn, int kWide>
GALLEY_DEVICE void key_gradients(const AttentionCall& c, float* weights, float* slopes, float* slice) {
  constexpr int kRows = kOwn * kLanes;
  const int thread = static_cast<int>(threadIdx.x), row = thread / kLanes * kOwn, column = thread % kLanes * 4;
  const int64_t tiles = (c.keys + kRows - 1) / kRows, group = c.heads / c.kv_heads;
  for (int64_t task = blockIdx.x; task < c.batch * c.kv_heads * tiles; task += gridDim.x) {
    const int key = narrow(task % tiles * kRows);
    const int64_t key_head = task / tiles % c.kv_heads, sample = task / tiles / c.kv_heads;
    const HeadRows keys = k_rows(c, sample, key_head, key), values = v_rows(c, sample, key_head, key);
    float dk[kOwn][4 * kWide] = {}, dv[kOwn][4 * kWide] = {};
    for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
      const HeadMask mask = mask_of(c, sample, head);
      for (int query = 0; query < mask.queries; query += kOther) {
        if (!tiles_meet(c, mask, query, kOther, key, kRows)) continue;
        float products[kOwn][4];
        multiply_rows<kOwn>(keys, q_rows(c, sample, head, query), slice, products);
        store_part<kOwn>(products, weights);
        uint32_t kept = 0;
        each_element<kOwn>([&](int e, int place, int of, int at) {
          float slope = 0;
          const float score = score_of(c, mask, query + at, key + of, weights[place], slope);
          const float weight = exp(score - statistics_of(c, mask, query + at).lse);
          const bool keep = is_kept(c, mask, query + at, key + of);
          if (keep) kept |= 1u << e;
          weights[place] = c.drops == 0 ? weight : keep ? weight * c.kept : 0.0f;
          slopes[place] = weight * slope;
        });
        add_products<kOwn, kWide>(weights, grad_rows(c, sample, head, query), slice, dv);
        multiply_rows<kOwn>(values, grad_rows(c, sample, head, query), slice, products);
        GALLEY_UNROLL
        for (int j = 0; j < 4; ++j) {
          const float along = statistics_of(c, mask, query + column + j).along;
          GALLEY_UNROLL
          for (int i = 0; i < kOwn; ++i) {
            const int place = (row + i) * kScoreLine + column + j;
            const float keep = c.drops == 0 ? 1.0f : (kept >> (4 * i + j) & 1u) != 0 ? c.kept : 0.0f;
            slopes[place] *= products[i][j] * keep - along;
          }
        }
        add_products<kOwn, kWide>(slopes, q_rows(c, sample, head, query), slice, dk);
      }
    }
    store_rows<kOwn, kWide>(dk, c.scale, keys, c.dk);
    store_rows<kOwn, kWide>(dv, 1.0f, values, c.dv);
  }
}

/// The gradient of the bias: a block adds up a tile of it over the samples, heads and rows that read it.
GALLEY_DEVICE void bias_gradients(const AttentionCall& c, float* weights, float* gradients, float* slice) {
  constexpr int kOwn = 4, kRows = kOwn * kLanes;
  const int thread = static_cast<int>(threadIdx.x), row = thread / kLanes * kOwn, column = thread % kLanes * 4;
  const int64_t rows = (c.queries + kRows - 1) / kRows, tiles = c.bias_rows > 1 ? rows : 1, columns = (c.keys + kOther - 1) / kOther;
  for (int64_t task = blockIdx.x; task < c.bias_samples * c.bias_heads * tiles * columns; task += gridDim.x) {
    const int key = narrow(task % columns * kOther), tile = narrow(task / columns % tiles);
    const int64_t bias_head = task / columns / tiles % c.bias_heads, bias_sample = task / columns / tiles / c.bias_heads;
    float sums[kOwn][4] = {};
    for (int64_t sample = bias_sample; sample < c.batch; sample += c.bias_samples) {
      for (int64_t head = bias_head; head < (c.bias_heads > 1 ? bias_head + 1 : c.heads); ++head) {
        const HeadMask mask = mask_of(c, sample, head);
        for (int query = tile * kRows; query < (c.bias_rows > 1 ? (tile + 1) * kRows : mask.queries); query += kRows) {
          if (!tiles_meet(c, mask, query, kRows, key, kOther)) continue;
          score_gradients<kOwn, false>(c, mask, query, key, head / (c.heads / c.kv_heads), weights, gradients, slice);
          GALLEY_UNROLL
          for (int i = 0; i < kOwn; ++i) {
            GALLEY_UNROLL
            for (int j = 0; j < 4; ++j) sums[i][j] += gradients[(row + i) * kScoreLine + column + j];
          }
        }
      }
    }
    const int64_t begin = ((bias_sample * c.bias_heads + bias_head) * c.bias_rows + tile * kRows) * c.keys;
    if (c.bias_rows > 1) {
      store_part<kOwn>(sums, weights);
      each_element<kOwn>([&](int, int place, int at, int of) {
        if (tile * kRows + at < c.queries && key + of < c.keys) store(weights[place], c.dbias, begin + at * c.keys + key + of, c.bias_type);
      });
      continue;
    }
    __syncthreads();  // other threads have read their parts of the last tile
    // A row of the shared array for each group of threads.
    GALLEY_UNROLL
    for (int j = 0; j < 4; ++j) weights[thread / kLanes * kScoreLine + column + j] = sums[0][j] + sums[1][j] + sums[2][j] + sums[3][j];
    __syncthreads();
    if (thread < kOther && key + thread < c.keys) {
      float sum = 0;
      for (int i = 0; i < kThreads / kLanes; ++i) sum += weights[i * kScoreLine + thread];
      store(sum, c.dbias, begin + key + thread, c.bias_type);
    }
    __syncthreads();  // before the next tile overwrites the sums
  }
}

// The kernels, for heads up to a width. Shared memory: tiles of the scores, and a slice of rows. blocks: that a processor holds at once.
#define GALLEY_ATTENTION_KERNEL(blocks, name, own, wide, tiles, ...)                                  \
  GALLEY_KERNEL_OF(blocks, name, (const AttentionCall c)) {                                           \
    constexpr int kSlice = kSliceFloats > kDepth * 64 * (wide) ? kSliceFloats : kDepth * 64 * (wide); \
    constexpr int kScores = (own) * kLanes * kScoreLine;                                              \
    GALLEY_SHARED(float, memory, (tiles) * kScores + kSlice);                                         \
    __VA_ARGS__;                                                                                      \
  }
#define GALLEY_ATTENTION_FORWARD(name, own, wide) \
  GALLEY_ATTENTION_KERNEL((wide) == 4 ? 1 : 2, name, own, wide, 1, attend_tiles<own, wide>(c, memory, memory + kScores))
#define GALLEY_ATTENTION_BACKWARD(name, own, wide, function) \
  GALLEY_ATTENTION_KERNEL((wide) == 1 ? 2 : 1, name, own, wide, 2, function<own, wide>(c, memory, memory + kScores, memory + 2 * kScores))
GALLEY_ATTENTION_FORWARD(attention_64, 4, 1)
GALLEY_ATTENTION_FORWARD(attention_128, 4, 2)
GALLEY_ATTENTION_FORWARD(attention_256, 4, 4)
GALLEY_ATTENTION_BACKWARD(attention_queries_64, 4, 1, query_gradients)
GALLEY_ATTENTION_BACKWARD(attention_queries_128, 4, 2, query_gradients)
GALLEY_ATTENTION_BACKWARD(attention_queries_256, 2, 4, query_gradients)
GALLEY_ATTENTION_BACKWARD(attention_keys_64, 4, 1, key_gradients)
GALLEY_ATTENTION_BACKWARD(attention_keys_128, 4, 2, key_gradients)
GALLEY_ATTENTION_BACKWARD(attention_keys_256, 2, 4, key_gradients)
GALLEY_ATTENTION_KERNEL(2, attention_bias, 4, 1, 2, bias_gradients(c, memory, memory + kScores, memory + 2 * kScores))
#undef GALLEY_ATTENTION_BACKWARD
#undef GALLEY_ATTENTION_FORWARD
#undef GALLEY_ATTENTION_KERNEL

}  // namespace galley::device
