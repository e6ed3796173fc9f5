// Attention of few queries, as in decoding: keys and values are read once, and their bytes bound the time. A task takes a range of keys of
// one sample and all of its heads, so that it reads whole rows of the cache one after the other. It keeps the maximum and the sum of each
// query and head as in flash attention; the ranges are then joined. Ranges depend on the shapes alone, and so do the bits.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/attention_decode.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/bfloat16-inl.h"
#include "libcore/backends/cpu/floats-inl.h"

#ifndef GALLEY_ATTENTION_DECODE_ONCE
#define GALLEY_ATTENTION_DECODE_ONCE

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/attention.h"

namespace galley::decode {

constexpr int64_t kBlock = 32;  // keys whose scores are stored
constexpr float kNever = -std::numeric_limits<float>::infinity();

/// Keys [first, last) that a query reads.
struct Reach {
  int64_t first, last;
};

/// One range of keys of one sample. Row r of `queries * heads` rows is head r % heads of query r / heads.
template <class T>
struct Range {
  const T *q, *k, *v;            // of the sample: query 0; key 0 and value 0 of head 0
  int64_t key_step, value_step;  // from a key to the next
  int64_t queries, heads, group, width, value_width;
  float scale;
  int64_t first, last;           // keys
  const Reach* reach;            // of each query
  float *query, *scores;         // scratch: [rows][width], [rows][kBlock]
  float *largest, *total, *sum;  // of each row: the maximum of its scores, the sum of exponentials, [value_width] values
};

}  // namespace galley::decode

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::decode {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if !GALLEY_WIDE_TARGET
// Never called: supports.
template <class T>
void run_range(const Range<T>&) {}
#else

using galley::HWY_NAMESPACE::load_floats;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(D()));

HWY_INLINE V exp(V x) { return elementwise::HWY_NAMESPACE::exp(elementwise::HWY_NAMESPACE::Floats(x)).v; }

template <class T>
HWY_INLINE float dot(const float* HWY_RESTRICT a, const T* HWY_RESTRICT b, int64_t width) {
  const D d;
  V even = hn::Zero(d), odd = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * kLanes <= width; i += 2 * kLanes) {
    even = hn::MulAdd(hn::LoadU(d, a + i), load_floats(d, b + i), even);
    odd = hn::MulAdd(hn::LoadU(d, a + i + kLanes), load_floats(d, b + i + kLanes), odd);
  }
  if (i < width) even = hn::MulAdd(hn::LoadU(d, a + i), load_floats(d, b + i), even);
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
}

/// The scores of keys [key, key + count); kNever for those that a query does not read, and up to kBlock.
template <class T>
HWY_INLINE void score(const Range<T>& r, int64_t key, int64_t count) {
  for (int64_t j = 0; j < count; ++j) {
    const T* row = r.k + (key + j) * r.key_step;
    for (int64_t i = 0; i < r.queries; ++i) {
      const bool reads = key + j >= r.reach[i].first && key + j < r.reach[i].last;
      for (int64_t h = 0; h < r.heads; ++h) {
        const int64_t at = i * r.heads + h;
        r.scores[at * kBlock + j] = reads ? dot(r.query + at * r.width, row + h / r.group * r.width, r.width) : kNever;
      }
    }
  }
  for (int64_t at = 0; at < r.queries * r.heads; ++at) std::fill(r.scores + at * kBlock + count, r.scores + (at + 1) * kBlock, kNever);
}

/// Scores become exponentials; maximum, total and sum follow a new maximum.
template <class T>
HWY_INLINE void weigh(const Range<T>& r) {
  const D d;
  for (int64_t at = 0; at < r.queries * r.heads; ++at) {
    float* scores = r.scores + at * kBlock;
    V top = hn::LoadU(d, scores);
    for (int64_t j = kLanes; j < kBlock; j += kLanes) top = hn::Max(top, hn::LoadU(d, scores + j));
    const float before = r.largest[at], largest = std::max(before, hn::GetLane(hn::MaxOfLanes(d, top)));
    const V shift = hn::Set(d, largest == kNever ? 0.0f : largest);
    V total = hn::Zero(d);
    for (int64_t j = 0; j < kBlock; j += kLanes) {
      const V p = exp(hn::Sub(hn::LoadU(d, scores + j), shift));
      hn::StoreU(p, d, scores + j);
      total = hn::Add(total, p);
    }
    const float factor = before == largest ? 1.0f : std::exp(before - largest);
    r.largest[at] = largest;
    r.total[at] = r.total[at] * factor + hn::GetLane(hn::SumOfLanes(d, total));
    if (factor == 1.0f) continue;  // also of rows without a key yet
    float* sum = r.sum + at * r.value_width;
    for (int64_t c = 0; c < r.value_width; c += kLanes) hn::StoreU(hn::Mul(hn::LoadU(d, sum + c), hn::Set(d, factor)), d, sum + c);
  }
}

/// Adds kKeys values from key `key` on, the scores from `j` on.
template <int kKeys, class T>
HWY_INLINE void add_values(const Range<T>& r, int64_t key, int64_t j) {
  const D d;
  const T* row = r.v + key * r.value_step;
  for (int64_t at = 0; at < r.queries * r.heads; ++at) {
    const float* p = r.scores + at * kBlock + j;
    const T* values = row + at % r.heads / r.group * r.value_width;
    float* sum = r.sum + at * r.value_width;
    for (int64_t c = 0; c < r.value_width; c += kLanes) {
      V x = hn::LoadU(d, sum + c);
      for (int n = 0; n < kKeys; ++n) x = hn::MulAdd(hn::Set(d, p[n]), load_floats(d, values + n * r.value_step + c), x);
      hn::StoreU(x, d, sum + c);
    }
  }
}

template <class T>
void run_range(const Range<T>& r) {
  const D d;
  const int64_t rows = r.queries * r.heads;
  for (int64_t i = 0; i < rows * r.width; i += kLanes) hn::StoreU(hn::Mul(load_floats(d, r.q + i), hn::Set(d, r.scale)), d, r.query + i);
  std::fill_n(r.largest, rows, kNever);
  std::fill_n(r.total, rows, 0.0f);
  std::fill_n(r.sum, rows * r.value_width, 0.0f);
  for (int64_t key = r.first; key < r.last; key += kBlock) {
    const int64_t count = std::min(kBlock, r.last - key);
    score(r, key, count);
    weigh(r);
    int64_t j = 0;
    for (; j + 4 <= count; j += 4) add_values<4>(r, key + j, j);
    for (; j < count; ++j) add_values<1>(r, key + j, j);
  }
}

#endif  // GALLEY_WIDE_TARGET

void range_floats(const Range<float>& r) { run_range(r); }
void range_bfloats(const Range<BFloat16>& r) { run_range(r); }

}  // namespace HWY_NAMESPACE
}  // namespace galley::decode
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley {
namespace decode {
HWY_EXPORT(range_floats);
HWY_EXPORT(range_bfloats);
void dispatch(const Range<float>& r) { HWY_DYNAMIC_DISPATCH(range_floats)(r); }
void dispatch(const Range<BFloat16>& r) { HWY_DYNAMIC_DISPATCH(range_bfloats)(r); }
}  // namespace decode

namespace {

using namespace attention_port;

constexpr int64_t kMostQueries = 4;
/// Ranges of all samples, if they are long enough: more than there are threads, since only the ranges before a query's position have work.
constexpr int64_t kRanges = 32;
constexpr int64_t kLeastKeys = 64;  // of a range

template <class T>
class Decode : public PreparedKernel {
 public:
  explicit Decode(const KernelQuery& q) : attrs_(q.attrs<AttentionAttrs>()), threads_(q.threads) {
    shape_ = attention_shape(attrs_, q.in(kQ), &q.in(kK), q.has(kV) ? &q.in(kV) : nullptr);
    rows_ = shape_.queries * shape_.heads;
    keys_ = std::max(kLeastKeys, (shape_.keys * shape_.batch + kRanges - 1) / kRanges);
    keys_ = (keys_ + decode::kBlock - 1) / decode::kBlock * decode::kBlock;
    ranges_ = (shape_.keys + keys_ - 1) / keys_;
    result_ = rounded(rows_ * (shape_.value_width + 2));
  }
  int64_t scratch_bytes() const override { return (slots() * slot_floats() + shape_.batch * ranges_ * result_) * 4; }

  void run(Stream&, const KernelArgs& args) const override {
    auto* memory = static_cast<float*>(args.scratch);
    float* results = memory + slots() * slot_floats();
    parallel_tasks(shape_.batch * ranges_, slots(), [&](int64_t task, int64_t slot) {
      run_range(args, task / ranges_, task % ranges_, memory + slot * slot_floats(), results + task * result_);
    });
    parallel_for(shape_.batch * rows_, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) join(args, i / rows_, i % rows_, results + i / rows_ * ranges_ * result_);
    });
  }

 private:
  static int64_t rounded(int64_t floats) { return (floats + 15) / 16 * 16; }
  int64_t slots() const { return std::min<int64_t>(threads_, shape_.batch * ranges_); }
  int64_t slot_floats() const { return rounded(rows_ * (shape_.width + decode::kBlock)); }

  decode::Reach reach_of(const KernelArgs& args, int64_t b, int64_t query) const {
    const auto *position = args.in<int64_t>(kPosition), *lengths = args.in<int64_t>(kLengths);
    const int64_t at = query + (position == nullptr ? 0 : position[b]);
    const int64_t length = lengths == nullptr ? shape_.keys : std::clamp<int64_t>(lengths[b], 0, shape_.keys);
    const int64_t last = attrs_.causal ? at + 1 : attrs_.window > 0 ? at + attrs_.window : length;
    return {attrs_.window > 0 ? std::max<int64_t>(0, at - attrs_.window + 1) : 0, std::min(length, last)};
  }

  void run_range(const KernelArgs& args, int64_t b, int64_t range, float* scratch, float* result) const {
    std::array<decode::Reach, kMostQueries> reach{};
    int64_t first = shape_.keys, last = 0;
    for (int64_t i = 0; i < shape_.queries; ++i) {
      reach[static_cast<size_t>(i)] = reach_of(args, b, i);
      first = std::min(first, reach[static_cast<size_t>(i)].first);
      last = std::max(last, reach[static_cast<size_t>(i)].last);
    }
    const T* k = args.in<T>(kK);
    const T* v = shape_.arrays > 2 ? args.in<T>(kV) : k;
    decode::Range<T> r{};
    r.key_step = shape_.k_heads * shape_.width;
    r.value_step = shape_.v_heads * shape_.value_width;
    r.q = args.in<T>(kQ) + b * rows_ * shape_.width;
    r.k = k + b * shape_.keys * r.key_step + shape_.first_key * shape_.width;
    r.v = v + b * shape_.keys * r.value_step + shape_.first_value * shape_.value_width;
    r.queries = shape_.queries;
    r.heads = shape_.heads;
    r.group = shape_.group();
    r.width = shape_.width;
    r.value_width = shape_.value_width;
    r.scale = static_cast<float>(shape_.scale(attrs_));
    r.first = std::max(first, range * keys_);
    r.last = std::min(last, (range + 1) * keys_);
    r.reach = reach.data();
    r.query = scratch;
    r.scores = scratch + rows_ * shape_.width;
    r.largest = result;
    r.total = result + rows_;
    r.sum = result + 2 * rows_;
    if (r.first >= r.last) {
      std::fill_n(r.largest, rows_, decode::kNever);
      std::fill_n(r.total, rows_, 0.0f);
    } else {
      decode::dispatch(r);
    }
  }

  /// Joins the results of the ranges of row `row` of sample b that have keys, in order.
  void join(const KernelArgs& args, int64_t b, int64_t row, const float* results) const {
    float largest = decode::kNever;
    for (int64_t i = 0; i < ranges_; ++i) largest = std::max(largest, results[i * result_ + row]);
    const int64_t width = shape_.value_width, query = row / shape_.heads, head = row % shape_.heads;
    T* out = args.out<T>(0) + (b * rows_ + row) * width;
    const auto weight = [&](const float* result) { return result[row] == largest ? 1.0f : std::exp(result[row] - largest); };
    float total = 0;  // NaN stays NaN
    for (int64_t i = 0; i < ranges_; ++i) total += results[i * result_ + rows_ + row] * weight(results + i * result_);
    args.out<float>(1)[(b * shape_.heads + head) * shape_.queries + query] = total == 0 ? decode::kNever : largest + std::log(total);
    if (total == 0) {
      for (int64_t c = 0; c < width; ++c) out[c] = 0.0f;
      return;
    }
    constexpr int64_t kPart = 256;
    for (int64_t begin = 0; begin < width; begin += kPart) {
      const int64_t count = std::min(kPart, width - begin);
      std::array<float, kPart> sum{};
      for (int64_t i = 0; i < ranges_; ++i) {
        const float* result = results + i * result_;
        if (result[rows_ + row] == 0) continue;  // it has no keys
        const float factor = weight(result) / total;
        const float* from = result + 2 * rows_ + row * width + begin;
        for (int64_t c = 0; c < count; ++c) sum[static_cast<size_t>(c)] += factor * from[c];
      }
      for (int64_t c = 0; c < count; ++c) out[begin + c] = sum[static_cast<size_t>(c)];
    }
  }

  AttentionAttrs attrs_;
  int threads_;
  AttentionShape shape_;
  int64_t rows_, keys_, ranges_, result_;  // keys of a range; ranges of a sample; floats of the result of a range
};

Support supports(const KernelQuery& q) {
  const auto& attrs = q.attrs<AttentionAttrs>();
  if ((hwy::SupportedTargets() & (HWY_AVX3 | HWY_AVX2)) == 0) return Support::no("made for AVX2 or wider vectors");
  if (attrs.algorithm != AttentionAlgorithm::kAuto && attrs.algorithm != AttentionAlgorithm::kFlash)
    return Support::no(cat("the algorithm is ", kAttentionAlgorithmNames[static_cast<size_t>(attrs.algorithm)]));
  if (!q.has(kK)) return Support::no("for keys in an array of their own");
  if (q.in(kQ).shape[1] > kMostQueries) return Support::no(cat("more than ", kMostQueries, " queries"));
  if (q.has(kBias) || attrs.dropout > 0 || attrs.softcap != 0 || attrs.pad_queries)
    return Support::no("for attention without bias, dropout, softcap and pad_queries");
  const DType dtype = q.in(kQ).dtype;
  if (dtype != DType::kF32 && dtype != DType::kBF16) return Support::no(cat("dtype ", dtype));
  for (const int i : {kQ, kK, kV}) {
    if (q.has(i) && q.in(i).shape[3] % 16 != 0) return Support::no("the width of a head is not a multiple of 16");
  }
  for (const auto* types : {&q.context.inputs, &q.context.outputs}) {
    for (const TensorType* type : *types) {
      if (type == nullptr) continue;
      if (!type->format.is_contiguous()) return Support::no(cat("format ", type->format));
      if (type->elements() == 0) return Support::no("empty array");
    }
  }
  return Support::yes();
}

std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  if (q.in(kQ).dtype == DType::kBF16) return std::make_unique<Decode<BFloat16>>(q);
  return std::make_unique<Decode<float>>(q);
}

}  // namespace

const Algorithm algorithm::kAttentionDecode{supports, prepare};

}  // namespace galley

#endif  // HWY_ONCE
