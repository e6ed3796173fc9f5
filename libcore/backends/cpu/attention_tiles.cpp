// Attention in tiles (Dao et al. 2022, "FlashAttention"; Rabe, Staats 2021, "Self-attention does not need O(n^2) memory"): the scores of a
// block of query rows and a block of keys are computed, used and overwritten, so that memory is linear in the sequence.
//
// A tile of scores is stored with a row for each key, and vectors run along the queries. So maxima and sums of the softmax need no
// operation across lanes, a mask is two comparisons of the queries' numbers, and neither keys nor values are transposed: keys are the
// broadcast operand of k q^T, values the vector operand of p v. Only the block of queries (backward: and of the output's gradient) is
// transposed, once for all keys. Blocks of keys are copied to consecutive rows of floats.
//
// Forward 4 and backward 10 operations for each query, key that it may read, and element of a head; bound by the products, and by the
// exponentials in heads of fewer than 64 elements. All sums are in an order that depends on the shapes alone.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/attention_tiles.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "libcore/backends/cpu/attention_blocks.h"
#include "libcore/backends/cpu/attention_products-inl.h"
#include "libcore/ops/random_mask.h"

HWY_BEFORE_NAMESPACE();
namespace galley::attention_tiles {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if !GALLEY_WIDE_TARGET
// Never called: has_wide_vectors.
Sizes sizes(const Problem&) { return {}; }
template <class T>
void forward_rows(const Problem&, const Arrays<T>&, const Rows&, float*) {}
template <class T>
void backward_rows(const Problem&, const Arrays<T>&, const Rows&, float*, float*) {}
template <class T>
void bias_backward_rows(const Problem&, const Arrays<T>&, const Rows&, float*) {}
template <class T>
void write_all(const Problem&, const Arrays<T>&, int64_t, int64_t, const float*, int64_t) {}
#else

/// Takes arrays from a thread's memory, each on a line of the cache.
struct Pool {
  float* next;
  int64_t used = 0;
  float* take(int64_t floats) {
    float* at = next == nullptr ? nullptr : next + used;
    used += rounded_up(floats, 16);
    return at;
  }
};

/// The memory of a thread. Strides are multiples of a vector.
struct Memory {
  Memory(const Problem& p, float* memory, bool with_gradient)
      : width(rounded_up(p.width, kLanes)), value_width(rounded_up(p.value_width, kLanes)) {
    Pool pool{memory};
    q = pool.take(kRows * width);
    q_columns = pool.take(width * kRows);
    k = pool.take(kKeys * width);
    v = pool.take(kKeys * value_width);
    scores = pool.take(kKeys * kRows);
    if (p.bias_sample >= 0) bias = pool.take(kKeys * kRows);
    if (p.drops) mask = pool.take(kKeys * kRows);
    if (with_gradient) {
      grad = pool.take(kRows * value_width);
      grad_columns = pool.take(value_width * kRows);
      slopes = pool.take(kKeys * kRows);
      sums = pool.take(kRows * width);
    } else {
      sums = pool.take(kRows * value_width);
    }
    first = pool.take(kRows);
    second = pool.take(kRows);
    third = pool.take(kRows);
    floats = pool.used;
  }
  int64_t width, value_width;
  float *q, *q_columns, *k, *v, *scores;  // scores, slopes, bias, mask: [key][row]
  float *bias = nullptr, *mask = nullptr, *grad = nullptr, *grad_columns = nullptr, *slopes = nullptr;
  float* sums;                    // forward: of p v; backward: of ds k
  float *first, *second, *third;  // a number for each row
  int64_t floats;
};

/// Floats of the sums of dk and dv: a register tile may add zeros to rows past the last.
int64_t key_sums(const Problem& p) { return rounded_up((p.keys + kTall) * rounded_up(p.width, kLanes), 16); }
int64_t value_sums(const Problem& p) { return rounded_up((p.keys + kTall) * rounded_up(p.value_width, kLanes), 16); }

Sizes sizes(const Problem& p) {
  Sizes sizes;
  sizes.rows = kRows;
  sizes.forward = Memory(p, nullptr, false).floats;
  sizes.backward = sizes.bias = Memory(p, nullptr, true).floats;
  sizes.sums = key_sums(p) + value_sums(p);
  return sizes;
}

/// A tile of scores: block.rows rows, `keys` keys from `key`.
struct Tile {
  int64_t key, keys;
  int64_t diagonal;  // see Triangle; kUnlimited without a causal mask
  bool edge;         // has pairs that causal or window forbid
};

/// The tile of keys from `key` on.
Tile tile_at(const Problem& p, const Block& block, int64_t key) {
  Tile t{key, std::min(kKeys, block.last_key - key), kUnlimited, false};
  const int64_t last_key = t.key + t.keys - 1, last_position = block.position + block.rows - 1;
  if (p.causal) {
    t.diagonal = block.position - key;
    t.edge = last_key > block.position;
  }
  if (p.window > 0) t.edge |= key <= last_position - p.window || (!p.causal && last_key >= block.position + p.window);
  return t;
}

/// Keys that the vector of rows from `row` on may read; scores of later ones are not computed.
HWY_INLINE int64_t keys_for(const Tile& t, int64_t row) { return std::clamp<int64_t>(row + kLanes + t.diagonal, 0, t.keys); }

/// The bias of a tile, transposed.
void load_bias(const Problem& p, const float* bias, const Block& block, const Tile& t, int64_t rows, float* to) {
  const float* from = bias + block.b % p.biases * p.bias_sample + block.h * p.bias_head + block.row * p.bias_row + t.key;
  if (p.bias_row == 0) {
    for (int64_t j = 0; j < t.keys; ++j) std::fill_n(to + j * kRows, rows, from[j]);
    return;
  }
  transpose<false>(from, p.bias_row, block.rows, t.keys, to, kRows);
  for (int64_t j = 0; j < t.keys; ++j) std::fill(to + j * kRows + block.rows, to + j * kRows + rows, 0.0f);
}

/// The factors of a tile's probabilities, 0 or 1 / (1 - p).
void draw_mask(const Problem& p, uint64_t key, uint64_t sample, const Block& block, const Tile& t, int64_t rows, float* to) {
  uint32_t words[kKeys + 8];
  for (int64_t r = 0; r < block.rows; ++r) {
    const int64_t first = ((p.first_head + block.h) * p.queries + block.row + r) * p.keys + t.key, begin = first / 4,
                  end = (first + t.keys + 3) / 4;
    for (int64_t i = begin; i < end; ++i) {
      const PhiloxBlock four = mask_block(key, sample, static_cast<uint64_t>(i));
      std::copy(four.begin(), four.end(), words + 4 * (i - begin));
    }
    for (int64_t j = 0; j < t.keys; ++j) to[j * kRows + r] = static_cast<int32_t>(words[first % 4 + j] >> 8) >= p.threshold ? p.kept : 0.0f;
  }
  for (int64_t j = 0; j < t.keys; ++j) std::fill(to + j * kRows + block.rows, to + j * kRows + rows, 0.0f);
}

/// The scores that the masks leave of a vector of rows, given their numbers; -inf for others.
struct Mask {
  Mask(const Problem& p, const Block& block, const Tile& t, int64_t row)
      : numbers(hn::Iota(DI(), static_cast<int32_t>(row))),
        offset(t.key - block.position),
        causal(p.causal),
        window(static_cast<int64_t>(p.window)) {}
  HWY_INLINE V operator()(V score, int64_t j) const {
    const DI di;
    const D d;
    // Row r has the position r, the key offset + j.
    const int64_t key = offset + j;
    auto reads = hn::Eq(numbers, numbers);
    if (causal || window > 0) {
      const int64_t low = causal ? key : key - window + 1;
      reads = hn::Gt(numbers, hn::Set(di, clipped(low - 1)));
    }
    if (window > 0) reads = hn::And(reads, hn::Lt(numbers, hn::Set(di, clipped(key + window))));
    return hn::IfThenElse(hn::RebindMask(d, reads), score, hn::Neg(hn::Inf(d)));
  }
  static int32_t clipped(int64_t x) { return static_cast<int32_t>(std::clamp<int64_t>(x, -1000000, 1000000)); }

  hn::Vec<DI> numbers;
  int64_t offset;
  bool causal;
  int64_t window;
};

/// `count` heads of K, `step` elements apart, as rows of floats.
template <class K>
void copy_heads(const K* from, int64_t step, const float*, int64_t, int64_t count, int64_t width, float* to, int64_t stride) {
  copy_rows(from, step, count, width, 1.0f, to, stride, count);
}
void copy_heads(const int8_t* from, int64_t step, const float* scales, int64_t scale_step, int64_t count, int64_t width, float* to,
                int64_t stride) {
  const D d;
  const hn::Rebind<int8_t, D> code;
  const int64_t whole = width - width % kLanes;
  for (int64_t r = 0; r < count; ++r, from += step, scales += scale_step, to += stride) {
    for (int64_t i = 0; i < whole; i += kLanes)
      hn::StoreU(hn::Mul(hn::ConvertTo(d, hn::PromoteTo(DI(), hn::LoadU(code, from + i))), hn::Set(d, *scales)), d, to + i);
    if (whole < stride) hn::StoreU(hn::Zero(d), d, to + whole);
    for (int64_t i = whole; i < width; ++i) to[i] = static_cast<float>(from[i]) * *scales;
  }
}

/// Keys and values of a tile from the rows of a cache, which end at its last row and go on at its first, and from the new tokens.
template <class K>
void copy_cached(const Problem& p, const CachedRows& c, int64_t start, int64_t b, const Tile& t, int64_t kv_head, const Memory& m) {
  const int64_t width = p.width, row = 2 * c.first_value * width;
  for (int64_t j = 0; j < t.keys;) {
    const int64_t position = t.key + j;
    int64_t count = t.keys - j;
    const K *k = nullptr, *v = nullptr;
    const float* scales = nullptr;
    int64_t step = c.row;
    if (position >= start) {
      const int64_t at = b * c.tokens + position - start;
      k = static_cast<const K*>(c.k) + at * c.row + kv_head * width;
      v = static_cast<const K*>(c.v) + at * c.row + kv_head * width;
      if (c.scales != nullptr) scales = c.new_scales + at * 2 * c.first_value + kv_head;
    } else {
      const int64_t slot = position % c.capacity, at = b * c.capacity + slot;
      count = std::min({count, start - position, c.capacity - slot});
      step = row;
      k = static_cast<const K*>(c.cache) + at * row + kv_head * width;
      v = k + c.first_value * width;
      if (c.scales != nullptr) scales = c.scales + at * 2 * c.first_value + kv_head;
    }
    copy_heads(k, step, scales, 2 * c.first_value, count, width, m.k + j * m.width, m.width);
    copy_heads(v, step, scales == nullptr ? nullptr : scales + c.first_value, 2 * c.first_value, count, width, m.v + j * m.value_width,
               m.value_width);
    j += count;
  }
  const int64_t padded = rounded_up(t.keys, kTall) - t.keys;
  std::memset(m.k + t.keys * m.width, 0, static_cast<size_t>(padded * m.width) * sizeof(float));
  std::memset(m.v + t.keys * m.value_width, 0, static_cast<size_t>(padded * m.value_width) * sizeof(float));
}
void copy_cached(const Problem& p, const CachedRows& c, int64_t start, int64_t b, const Tile& t, int64_t kv_head, const Memory& m) {
  switch (c.dtype) {
    case DType::kI8: return copy_cached<int8_t>(p, c, start, b, t, kv_head, m);
    case DType::kBF16: return copy_cached<BFloat16>(p, c, start, b, t, kv_head, m);
    default: return copy_cached<float>(p, c, start, b, t, kv_head, m);
  }
}

/// k q^T of a tile, with its mask and bias loaded.
template <class T>
HWY_INLINE void raw_scores(const Problem& p, const Arrays<T>& a, const Block& block, const Tile& t, int64_t rows, const Memory& m) {
  const int64_t kv_head = block.h / p.group, padded = rounded_up(t.keys, kTall);
  if (a.cached != nullptr) {
    copy_cached(p, *a.cached, a.position[block.b], block.b, t, kv_head, m);
  } else {
    copy_rows(a.k.at(block.b, t.key, kv_head, p.width), a.k.row, t.keys, p.width, 1.0f, m.k, m.width, padded);
    copy_rows(a.v.at(block.b, t.key, kv_head, p.value_width), a.v.row, t.keys, p.value_width, 1.0f, m.v, m.value_width, padded);
  }
  product<false, false, Triangle::kKeysByRows>(m.k, m.width, m.q_columns, kRows, m.scores, kRows, t.keys, rows, p.width, t.diagonal);
  if (a.bias != nullptr) load_bias(p, a.bias, block, t, rows, m.bias);
  if (p.drops) draw_mask(p, a.key, a.first_sample + static_cast<uint64_t>(block.b), block, t, rows, m.mask);
}

/// Scores -> probabilities times e^(true maximum - running maximum), for all rows; rescales the sums before.
void online_softmax(const Problem& p, const Block& block, const Tile& t, int64_t rows, bool biased, const Memory& m) {
  const D d;
  for (int64_t r = 0; r < rows; r += kLanes) {
    const int64_t keys = keys_for(t, r);
    float* scores = m.scores + r;
    const Mask masked(p, block, t, r);
    const V before = hn::LoadU(d, m.first + r);
    V largest = before;
    if (p.softcap != 0 || biased || t.edge) {
      const V cap = hn::Set(d, p.softcap), inverse = hn::Set(d, p.softcap != 0 ? 1 / p.softcap : 0.0f);
      for (int64_t j = 0; j < keys; ++j) {
        V s = hn::LoadU(d, scores + j * kRows);
        if (p.softcap != 0) s = hn::Mul(cap, tanh_of(hn::Mul(s, inverse)));
        if (biased) s = hn::Add(s, hn::LoadU(d, m.bias + j * kRows + r));
        if (t.edge) s = masked(s, j);
        hn::StoreU(s, d, scores + j * kRows);
        largest = hn::Max(s, largest);  // x86 gives the second where the first is NaN
      }
    } else {
      V other = before;
      int64_t j = 0;
      for (; j + 2 <= keys; j += 2) {
        largest = hn::Max(hn::LoadU(d, scores + j * kRows), largest);
        other = hn::Max(hn::LoadU(d, scores + (j + 1) * kRows), other);
      }
      if (j < keys) largest = hn::Max(hn::LoadU(d, scores + j * kRows), largest);
      largest = hn::Max(largest, other);
    }
    // Of rows without a key yet the maximum is -inf.
    const V shift = hn::IfThenElse(hn::Eq(largest, hn::Neg(hn::Inf(d))), hn::Zero(d), largest);
    V sum = hn::Zero(d), other = hn::Zero(d);
    int64_t j = 0;
    for (; j + 2 <= keys; j += 2) {
      const V x = exp_below(hn::Sub(hn::LoadU(d, scores + j * kRows), shift));
      const V y = exp_below(hn::Sub(hn::LoadU(d, scores + (j + 1) * kRows), shift));
      hn::StoreU(x, d, scores + j * kRows);
      hn::StoreU(y, d, scores + (j + 1) * kRows);
      sum = hn::Add(sum, x);
      other = hn::Add(other, y);
    }
    if (j < keys) {
      const V x = exp_below(hn::Sub(hn::LoadU(d, scores + j * kRows), shift));
      hn::StoreU(x, d, scores + j * kRows);
      sum = hn::Add(sum, x);
    }
    for (j = keys; j < t.keys; ++j) hn::StoreU(hn::Zero(d), d, scores + j * kRows);
    if (p.drops) {
      for (j = 0; j < keys; ++j)
        hn::StoreU(hn::Mul(hn::LoadU(d, scores + j * kRows), hn::LoadU(d, m.mask + j * kRows + r)), d, scores + j * kRows);
    }
    const V factor = exp_below(hn::Sub(before, shift));
    hn::StoreU(largest, d, m.first + r);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, m.second + r), factor, hn::Add(sum, other)), d, m.second + r);
    if (t.key == block.first_key || hn::AllTrue(d, hn::Eq(factor, hn::Set(d, 1.0f)))) continue;
    HWY_ALIGN float factors[kLanes];
    hn::StoreU(factor, d, factors);
    for (int64_t i = 0; i < kLanes; ++i) {
      float* row = m.sums + (r + i) * m.value_width;
      const V times = hn::Set(d, factors[i]);
      for (int64_t c = 0; c < m.value_width; c += kLanes) hn::StoreU(hn::Mul(hn::LoadU(d, row + c), times), d, row + c);
    }
  }
}

template <class T>
void forward_rows(const Problem& p, const Arrays<T>& a, const Rows& task, float* memory) {
  const Memory m(p, memory, false);
  const Block block = block_of(p, a, task, kRows);
  const int64_t rows = rounded_up(block.rows, kLanes);
  copy_rows(a.q.at(block.b, block.row, block.h, p.width), a.q.row, block.rows, p.width, p.scale, m.q, m.width, rows);
  transpose<false>(m.q, m.width, rows, p.width, m.q_columns, kRows);
  std::memset(m.sums, 0, static_cast<size_t>(kRows * m.value_width) * sizeof(float));
  std::fill_n(m.first, kRows, -std::numeric_limits<float>::infinity());
  std::fill_n(m.second, kRows, 0.0f);
  for (int64_t key = block.first_key; key < block.last_key; key += kKeys) {
    const Tile t = tile_at(p, block, key);
    raw_scores(p, a, block, t, rows, m);
    online_softmax(p, block, t, rows, a.bias != nullptr, m);
    product<true, true, Triangle::kRowsOverKeys>(m.scores, kRows, m.v, m.value_width, m.sums, m.value_width, block.rows, m.value_width,
                                                 t.keys, t.diagonal);
  }
  for (int64_t r = 0; r < block.written; ++r) {
    const bool none = r >= block.rows || m.second[r] == 0;
    T* out = a.out.at(block.b, block.row + r, block.h, p.value_width);
    if (none) {
      write_zeros(p.value_width, out);
    } else {
      write_row(m.sums + r * m.value_width, 1 / m.second[r], p.value_width, out);
    }
    a.lse_out[(block.b * p.heads + block.h) * p.queries + block.row + r] =
        none ? -std::numeric_limits<float>::infinity() : m.first[r] + std::log(m.second[r]);
  }
}

/// Copies q and grad, transposed too. first: lse; second: the sum of grad o, less the gradient of lse.
template <class T>
HWY_INLINE void start_backward(const Problem& p, const Arrays<T>& a, const Block& block, int64_t rows, const Memory& m) {
  const D d;
  copy_rows(a.q.at(block.b, block.row, block.h, p.width), a.q.row, block.rows, p.width, p.scale, m.q, m.width, rows);
  copy_rows(a.grad.at(block.b, block.row, block.h, p.value_width), a.grad.row, block.rows, p.value_width, 1.0f, m.grad, m.value_width,
            rows);
  transpose<false>(m.q, m.width, rows, p.width, m.q_columns, kRows);
  transpose<false>(m.grad, m.value_width, rows, p.value_width, m.grad_columns, kRows);
  std::fill_n(m.first, kRows, std::numeric_limits<float>::infinity());
  std::fill_n(m.second, kRows, 0.0f);
  const int64_t at = (block.b * p.heads + block.h) * p.queries + block.row, whole = p.value_width - p.value_width % kLanes;
  for (int64_t r = 0; r < block.rows; ++r) {
    const T* o = a.o.at(block.b, block.row + r, block.h, p.value_width);
    const float* grad = m.grad + r * m.value_width;
    V sums = hn::Zero(d);
    for (int64_t i = 0; i < whole; i += kLanes) sums = hn::MulAdd(load_floats(d, o + i), hn::LoadU(d, grad + i), sums);
    float sum = hn::GetLane(hn::SumOfLanes(d, sums));
    for (int64_t i = whole; i < p.value_width; ++i) sum += static_cast<float>(o[i]) * grad[i];
    m.second[r] = a.grad_lse == nullptr ? sum : sum - a.grad_lse[at + r];
    // A row without keys gives e^-inf for every key.
    const float lse = a.lse[at + r];
    m.first[r] = lse == -std::numeric_limits<float>::infinity() ? -lse : lse;
  }
}

/// scores: the probabilities that o was summed with; slopes: the gradients of the scores (kBias), or of q k^T.
template <bool kBias, class T>
HWY_INLINE void gradient_tile(const Problem& p, const Arrays<T>& a, const Block& block, const Tile& t, int64_t rows, const Memory& m) {
  const D d;
  raw_scores(p, a, block, t, rows, m);
  product<false, false, Triangle::kKeysByRows>(m.v, m.value_width, m.grad_columns, kRows, m.slopes, kRows, t.keys, rows, p.value_width,
                                               t.diagonal);
  const V cap = hn::Set(d, p.softcap), inverse = hn::Set(d, p.softcap != 0 ? 1 / p.softcap : 0.0f);
  const bool biased = a.bias != nullptr, special = p.softcap != 0 || biased || t.edge || p.drops;
  const int64_t padded = rounded_up(t.keys, kTall);
  for (int64_t r = 0; r < rows; r += kLanes) {
    const int64_t keys = keys_for(t, r);
    const Mask masked(p, block, t, r);
    const V lse = hn::LoadU(d, m.first + r), along = hn::LoadU(d, m.second + r);
    float *scores = m.scores + r, *slopes = m.slopes + r;
    if (!special) {
      for (int64_t j = 0; j < keys; ++j) {
        const V x = exp_below(hn::Sub(hn::LoadU(d, scores + j * kRows), lse));
        hn::StoreU(x, d, scores + j * kRows);
        hn::StoreU(hn::Mul(x, hn::Sub(hn::LoadU(d, slopes + j * kRows), along)), d, slopes + j * kRows);
      }
    } else {
      for (int64_t j = 0; j < keys; ++j) {
        V s = hn::LoadU(d, scores + j * kRows), slope = hn::LoadU(d, slopes + j * kRows), bent = hn::Zero(d);
        if (p.softcap != 0) {
          bent = tanh_of(hn::Mul(s, inverse));
          s = hn::Mul(cap, bent);
        }
        if (biased) s = hn::Add(s, hn::LoadU(d, m.bias + j * kRows + r));
        if (t.edge) s = masked(s, j);
        const V x = exp_below(hn::Sub(s, lse));
        V dropped = x;
        if (p.drops) {
          const V factor = hn::LoadU(d, m.mask + j * kRows + r);
          slope = hn::Mul(slope, factor);
          dropped = hn::Mul(x, factor);
        }
        slope = hn::Mul(x, hn::Sub(slope, along));
        if (!kBias && p.softcap != 0) slope = hn::Mul(slope, hn::NegMulAdd(bent, bent, hn::Set(d, 1.0f)));
        hn::StoreU(dropped, d, scores + j * kRows);
        hn::StoreU(slope, d, slopes + j * kRows);
      }
    }
    for (int64_t j = keys; j < padded; ++j) {
      hn::StoreU(hn::Zero(d), d, scores + j * kRows);
      hn::StoreU(hn::Zero(d), d, slopes + j * kRows);
    }
  }
}

template <class T>
void backward_rows(const Problem& p, const Arrays<T>& a, const Rows& task, float* memory, float* sums) {
  const Memory m(p, memory, true);
  const Block block = block_of(p, a, task, kRows);
  const int64_t rows = rounded_up(block.rows, kLanes);
  start_backward(p, a, block, rows, m);
  std::memset(m.sums, 0, static_cast<size_t>(kRows * m.width) * sizeof(float));
  float *dk = sums, *dv = sums + key_sums(p);
  for (int64_t key = block.first_key; key < block.last_key; key += kKeys) {
    const Tile t = tile_at(p, block, key);
    gradient_tile<false>(p, a, block, t, rows, m);
    product<false, true, Triangle::kKeysOverRows>(m.scores, kRows, m.grad, m.value_width, dv + key * m.value_width, m.value_width, t.keys,
                                                  m.value_width, block.rows, t.diagonal);
    product<false, true, Triangle::kKeysOverRows>(m.slopes, kRows, m.q, m.width, dk + key * m.width, m.width, t.keys, m.width, block.rows,
                                                  t.diagonal);
    product<true, true, Triangle::kRowsOverKeys>(m.slopes, kRows, m.k, m.width, m.sums, m.width, block.rows, m.width, t.keys, t.diagonal);
  }
  for (int64_t r = 0; r < block.written; ++r) {
    T* dq = a.dq.at(block.b, block.row + r, block.h, p.width);
    if (r < block.rows) {
      write_row(m.sums + r * m.width, p.scale, p.width, dq);
    } else {
      write_zeros(p.width, dq);
    }
  }
}

template <class T>
void bias_backward_rows(const Problem& p, const Arrays<T>& a, const Rows& task, float* memory) {
  const D d;
  const Memory m(p, memory, true);
  const Block block = block_of(p, a, task, kRows);
  const int64_t rows = rounded_up(block.rows, kLanes);
  start_backward(p, a, block, rows, m);
  for (int64_t key = block.first_key; key < block.last_key; key += kKeys) {
    const Tile t = tile_at(p, block, key);
    gradient_tile<true>(p, a, block, t, rows, m);
    float* to = a.dbias + block.b % p.biases * p.bias_sample + block.h * p.bias_head + block.row * p.bias_row + t.key;
    if (p.bias_row != 0) {
      transpose<true>(m.slopes, kRows, t.keys, block.rows, to, p.bias_row);
      continue;
    }
    for (int64_t j = 0; j < t.keys; ++j) {
      V sum = hn::Zero(d);
      for (int64_t r = 0; r < rows; r += kLanes) sum = hn::Add(sum, hn::LoadU(d, m.slopes + j * kRows + r));  // 0 past the last row
      to[j] += hn::GetLane(hn::SumOfLanes(d, sum));
    }
  }
}

template <class T>
void write_all(const Problem& p, const Arrays<T>& a, int64_t b, int64_t g, const float* sums, int64_t parts) {
  const D d;
  const int64_t step = key_sums(p) + value_sums(p);
  const auto write = [&](const float* from, int64_t width, const Heads<T>& to) HWY_ATTR {
    const int64_t stride = rounded_up(width, kLanes);
    HWY_ALIGN float total[kLanes];
    for (int64_t j = 0; j < p.keys; ++j) {
      T* row = to.at(b, j, g, width);
      if (parts == 1) {
        write_row(from + j * stride, 1.0f, width, row);
        continue;
      }
      for (int64_t i = 0; i < width; i += kLanes) {
        V sum = hn::LoadU(d, from + j * stride + i);
        for (int64_t part = 1; part < parts; ++part) sum = hn::Add(sum, hn::LoadU(d, from + part * step + j * stride + i));
        hn::Store(sum, d, total);
        write_row(total, 1.0f, std::min(kLanes, width - i), row + i);
      }
    }
  };
  write(sums, p.width, a.dk);
  write(sums + key_sums(p), p.value_width, a.dv);
}

#endif  // GALLEY_WIDE_TARGET

#define GALLEY_ATTENTION_OF(name, T)                                                                                                     \
  void forward_##name(const Problem& p, const Arrays<T>& a, const Rows& r, float* memory) { forward_rows(p, a, r, memory); }             \
  void backward_##name(const Problem& p, const Arrays<T>& a, const Rows& r, float* memory, float* sums) {                                \
    backward_rows(p, a, r, memory, sums);                                                                                                \
  }                                                                                                                                      \
  void bias_backward_##name(const Problem& p, const Arrays<T>& a, const Rows& r, float* memory) { bias_backward_rows(p, a, r, memory); } \
  void write_sums_##name(const Problem& p, const Arrays<T>& a, int64_t b, int64_t g, const float* sums, int64_t parts) {                 \
    write_all(p, a, b, g, sums, parts);                                                                                                  \
  }
GALLEY_ATTENTION_OF(floats, float)
GALLEY_ATTENTION_OF(bfloats, BFloat16)
#undef GALLEY_ATTENTION_OF

}  // namespace HWY_NAMESPACE
}  // namespace galley::attention_tiles
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley::attention_tiles {
HWY_EXPORT(sizes);
HWY_EXPORT(forward_floats);
HWY_EXPORT(forward_bfloats);
HWY_EXPORT(backward_floats);
HWY_EXPORT(backward_bfloats);
HWY_EXPORT(bias_backward_floats);
HWY_EXPORT(bias_backward_bfloats);
HWY_EXPORT(write_sums_floats);
HWY_EXPORT(write_sums_bfloats);

bool has_wide_vectors() { return (hwy::SupportedTargets() & (HWY_AVX2 | HWY_AVX3)) != 0; }
Sizes sizes_of(const Problem& p) { return HWY_DYNAMIC_DISPATCH(sizes)(p); }

template <>
void forward(const Problem& p, const Arrays<float>& a, const Rows& r, float* memory) {
  HWY_DYNAMIC_DISPATCH(forward_floats)(p, a, r, memory);
}
template <>
void forward(const Problem& p, const Arrays<BFloat16>& a, const Rows& r, float* memory) {
  HWY_DYNAMIC_DISPATCH(forward_bfloats)(p, a, r, memory);
}
template <>
void backward(const Problem& p, const Arrays<float>& a, const Rows& r, float* memory, float* sums) {
  HWY_DYNAMIC_DISPATCH(backward_floats)(p, a, r, memory, sums);
}
template <>
void backward(const Problem& p, const Arrays<BFloat16>& a, const Rows& r, float* memory, float* sums) {
  HWY_DYNAMIC_DISPATCH(backward_bfloats)(p, a, r, memory, sums);
}
template <>
void bias_backward(const Problem& p, const Arrays<float>& a, const Rows& r, float* memory) {
  HWY_DYNAMIC_DISPATCH(bias_backward_floats)(p, a, r, memory);
}
template <>
void bias_backward(const Problem& p, const Arrays<BFloat16>& a, const Rows& r, float* memory) {
  HWY_DYNAMIC_DISPATCH(bias_backward_bfloats)(p, a, r, memory);
}
template <>
void write_sums(const Problem& p, const Arrays<float>& a, int64_t b, int64_t g, const float* sums, int64_t parts) {
  HWY_DYNAMIC_DISPATCH(write_sums_floats)(p, a, b, g, sums, parts);
}
template <>
void write_sums(const Problem& p, const Arrays<BFloat16>& a, int64_t b, int64_t g, const float* sums, int64_t parts) {
  HWY_DYNAMIC_DISPATCH(write_sums_bfloats)(p, a, b, g, sums, parts);
}

}  // namespace galley::attention_tiles

#endif  // HWY_ONCE
