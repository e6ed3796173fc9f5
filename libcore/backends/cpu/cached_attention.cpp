// Attention with a cache. One token for each sequence: a task takes a range of rows of a sample and all of its heads, so that it reads
// whole rows of the cache one after the other; the ranges are then joined. Ranges depend on the shapes alone, and so do the bits. Several
// tokens: the tiles of flash attention, which read new tokens and rows of the cache.

#include "libcore/ops/cached_attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/attention_tiles.h"
#include "libcore/backends/cpu/cached_keys.h"
#include "libcore/backends/cpu/table.h"
#include "libcore/base/parallel.h"

namespace galley {
namespace {

using namespace cached_attention_port;

constexpr int64_t kGrainBytes = 16384;  // of a task that stores rows
/// Ranges of all samples, if they are long enough: more than there are threads, since only the ranges before a query's position have work.
constexpr int64_t kRanges = 32;
constexpr int64_t kLeastRows = 64;  // of a range

int64_t rounded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// What both kernels need: sizes, and how new tokens are stored.
struct Plan {
  explicit Plan(const KernelQuery& q)
      : attrs(q.attrs<CachedAttentionAttrs>()), shape(cached_attention_shape(q.context)), dtype(q.in(kCache).dtype), threads(q.threads) {
    row_values = 2 * shape.kv_heads * shape.width;
    row_bytes = row_values * dtype_size(dtype);
    scale_bytes = dtype == DType::kI8 ? 2 * shape.kv_heads * 4 : 0;
    new_row = shape.new_heads * shape.width;
  }
  int64_t position(const KernelArgs& args, int64_t b) const { return args.in<int64_t>(kPosition)[b]; }
  /// New tokens of a sequence that are not padding.
  int64_t count(const KernelArgs& args, int64_t b) const {
    if (position(args, b) < 0) return 0;
    const auto* last = args.in<int64_t>(kLast);
    return last == nullptr ? shape.tokens : std::clamp<int64_t>(last[b] + 1, 0, shape.tokens);
  }
  const float* keys(const KernelArgs& args) const { return args.in<float>(shape.packed ? kQ : kK) + shape.first_key * shape.width; }
  const float* values(const KernelArgs& args) const { return args.in<float>(shape.packed ? kQ : kV) + shape.first_value * shape.width; }
  /// Writes token t of sample b as the cache stores it.
  void store(const KernelArgs& args, int64_t b, int64_t t, void* row, float* scales) const {
    const int64_t at = (b * shape.tokens + t) * new_row, half = shape.kv_heads * shape.width;
    const float *k = keys(args) + at, *v = values(args) + at;
    if (dtype == DType::kI8) {
      auto* to = static_cast<int8_t*>(row);
      cached_keys::store(k, shape.kv_heads, shape.width, to, scales);
      cached_keys::store(v, shape.kv_heads, shape.width, to + half, scales + shape.kv_heads);
    } else if (dtype == DType::kBF16) {
      auto* to = static_cast<BFloat16*>(row);
      cached_keys::store(k, shape.kv_heads, shape.width, to);
      cached_keys::store(v, shape.kv_heads, shape.width, to + half);
    } else {
      auto* to = static_cast<float*>(row);
      std::memcpy(to, k, static_cast<size_t>(half) * sizeof(float));
      std::memcpy(to + half, v, static_cast<size_t>(half) * sizeof(float));
    }
  }
  char* row_at(const KernelArgs& args, int64_t b, int64_t slot) const {
    return args.out<char>(1) + (b * shape.capacity + slot) * row_bytes;
  }
  float* scales_at(const KernelArgs& args, int64_t b, int64_t slot) const {
    return scale_bytes == 0 ? nullptr : args.out<float>(2) + (b * shape.capacity + slot) * 2 * shape.kv_heads;
  }
  /// Where the outputs are not the memory of the inputs.
  void copy_state(const KernelArgs& args) const {
    const int64_t rows = shape.batch * shape.capacity;
    if (args.in<char>(kCache) != args.out<char>(1))
      std::memcpy(args.out<char>(1), args.in<char>(kCache), static_cast<size_t>(rows * row_bytes));
    if (scale_bytes > 0 && args.in<char>(kScales) != args.out<char>(2))
      std::memcpy(args.out<char>(2), args.in<char>(kScales), static_cast<size_t>(rows * scale_bytes));
  }

  CachedAttentionAttrs attrs;
  CachedAttentionShape shape;
  DType dtype;
  int threads;
  int64_t row_values, row_bytes, scale_bytes;  // of the cache
  int64_t new_row;                             // values from a new token to the next
};

template <class K>
class Decode : public PreparedKernel {
 public:
  explicit Decode(const KernelQuery& q) : plan_(q), s_(plan_.shape) {
    rows_ = std::max(kLeastRows, (s_.capacity * s_.batch + kRanges - 1) / kRanges);
    rows_ = (rows_ + cached_keys::kBlock - 1) / cached_keys::kBlock * cached_keys::kBlock;
    ranges_ = (s_.capacity + rows_ - 1) / rows_;
    result_ = floats(s_.heads * (s_.width + 2));
  }
  int64_t scratch_bytes() const override { return (slots() * slot_floats() + s_.batch * ranges_ * result_) * 4; }

  void run(Stream&, const KernelArgs& args) const override {
    plan_.copy_state(args);
    for (int64_t b = 0; b < s_.batch; ++b) {
      if (plan_.count(args, b) == 0) continue;
      const int64_t slot = plan_.position(args, b) % s_.capacity;
      plan_.store(args, b, 0, plan_.row_at(args, b, slot), plan_.scales_at(args, b, slot));
    }
    auto* memory = static_cast<float*>(args.scratch);
    float* results = memory + slots() * slot_floats();
    parallel_tasks(s_.batch * ranges_, slots(), [&](int64_t task, int64_t slot) {
      run_range(args, task / ranges_, task % ranges_, memory + slot * slot_floats(), results + task * result_);
    });
    parallel_for(s_.batch * s_.heads, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) join(args, i, i % s_.heads, results + i / s_.heads * ranges_ * result_);
    });
  }

 private:
  static int64_t floats(int64_t count) { return (count + 15) / 16 * 16; }
  int64_t slots() const { return std::min<int64_t>(plan_.threads, s_.batch * ranges_); }
  int64_t slot_floats() const { return floats(s_.heads * (s_.width + cached_keys::kBlock)); }

  /// The rows of the cache that the token reads, its own among them.
  std::array<cached_keys::Part, 2> parts(const KernelArgs& args, int64_t b) const {
    if (plan_.count(args, b) == 0) return {};
    const int64_t position = plan_.position(args, b), first = std::max<int64_t>(0, position - s_.reach(plan_.attrs) + 1);
    const int64_t begin = first % s_.capacity, end = position % s_.capacity;
    if (position - first + 1 == s_.capacity) return {cached_keys::Part{0, s_.capacity}, {}};
    if (begin <= end) return {cached_keys::Part{begin, end + 1}, {}};
    return {cached_keys::Part{0, end + 1}, {begin, s_.capacity}};
  }

  void run_range(const KernelArgs& args, int64_t b, int64_t range, float* scratch, float* result) const {
    cached_keys::Range<K> r{};
    r.q = args.in<float>(kQ) + b * s_.q_heads * s_.width;
    r.step = plan_.row_values;
    r.k = reinterpret_cast<const K*>(plan_.row_at(args, b, 0));
    r.v = r.k + s_.kv_heads * s_.width;
    if (const float* scales = plan_.scales_at(args, b, 0)) {
      r.k_scales = scales;
      r.v_scales = scales + s_.kv_heads;
      r.scale_step = 2 * s_.kv_heads;
    }
    r.heads = s_.heads;
    r.group = s_.group();
    r.width = s_.width;
    r.scale = static_cast<float>(s_.scale(plan_.attrs));
    r.query = scratch;
    r.scores = scratch + s_.heads * s_.width;
    r.largest = result;
    r.total = result + s_.heads;
    r.sum = result + 2 * s_.heads;
    r.parts = parts(args, b);
    bool any = false;
    for (cached_keys::Part& part : r.parts) {
      part.first = std::max(part.first, range * rows_);
      part.last = std::min(part.last, (range + 1) * rows_);
      any |= part.first < part.last;
    }
    if (any) return cached_keys::run(r);
    std::fill_n(r.largest, s_.heads, cached_keys::kNever);
    std::fill_n(r.total, s_.heads, 0.0f);
  }

  /// Joins the results of the ranges that have rows, in order. head: among those of all samples.
  void join(const KernelArgs& args, int64_t row, int64_t head, const float* results) const {
    float largest = cached_keys::kNever;
    for (int64_t i = 0; i < ranges_; ++i) largest = std::max(largest, results[i * result_ + head]);
    float* out = args.out<float>(0) + row * s_.width;
    std::fill_n(out, s_.width, 0.0f);
    const auto weight = [&](const float* result) { return result[head] == largest ? 1.0f : std::exp(result[head] - largest); };
    float total = 0;  // NaN stays NaN
    for (int64_t i = 0; i < ranges_; ++i) total += results[i * result_ + s_.heads + head] * weight(results + i * result_);
    if (total == 0) return;  // no token
    for (int64_t i = 0; i < ranges_; ++i) {
      const float* result = results + i * result_;
      if (result[s_.heads + head] == 0) continue;  // it has no rows
      const float factor = weight(result) / total;
      const float* from = result + 2 * s_.heads + head * s_.width;
      for (int64_t c = 0; c < s_.width; ++c) out[c] += factor * from[c];
    }
  }

  Plan plan_;
  const CachedAttentionShape& s_;
  int64_t rows_, ranges_, result_;  // rows of a range; ranges of a sample; floats of the result of a range
};

/// Several tokens.
class Tiles : public PreparedKernel {
 public:
  explicit Tiles(const KernelQuery& q) : plan_(q), s_(plan_.shape) {
    problem_.batch = s_.batch;
    problem_.queries = s_.tokens;
    problem_.keys = int64_t{1} << 40;
    problem_.heads = s_.heads;
    problem_.group = s_.group();
    problem_.width = problem_.value_width = s_.width;
    problem_.scale = static_cast<float>(s_.scale(plan_.attrs));
    problem_.causal = problem_.pad_queries = true;
    problem_.window = s_.reach(plan_.attrs);
    problem_.bias_sample = -1;
    sizes_ = attention_tiles::sizes_of(problem_);
    blocks_ = (s_.tokens + sizes_.rows - 1) / sizes_.rows;
    count_ = s_.batch * s_.heads * blocks_;
    int64_t used = rounded(slots() * sizes_.forward * 4);
    const auto take = [&](int64_t bytes) { return used += rounded(bytes), used - rounded(bytes); };
    lse_ = take(s_.batch * s_.heads * s_.tokens * 4);
    starts_ = take(s_.batch * 8);
    lengths_ = take(s_.batch * 8);
    if (plan_.dtype != DType::kF32) {
      added_ = take(s_.batch * s_.tokens * plan_.row_bytes);
      added_scales_ = take(s_.batch * s_.tokens * plan_.scale_bytes);
    }
    scratch_ = used;
  }
  int64_t scratch_bytes() const override { return scratch_; }

  void run(Stream&, const KernelArgs& args) const override {
    plan_.copy_state(args);
    auto* memory = static_cast<char*>(args.scratch);
    auto *starts = reinterpret_cast<int64_t*>(memory + starts_), *lengths = reinterpret_cast<int64_t*>(memory + lengths_);
    for (int64_t b = 0; b < s_.batch; ++b) {
      starts[b] = std::max<int64_t>(0, plan_.position(args, b));
      lengths[b] = starts[b] + plan_.count(args, b);
    }
    const attention_tiles::CachedRows rows = cached_rows(args);
    if (plan_.dtype != DType::kF32)
      for_tokens(args, 0, [&](int64_t b, int64_t t) { plan_.store(args, b, t, added_row(args, b, t), added_scales(args, b, t)); });
    attention_tiles::Arrays<float> arrays;
    arrays.q = {args.in<float>(kQ), s_.tokens * s_.q_heads * s_.width, s_.q_heads * s_.width};
    arrays.out = {args.out<float>(0), s_.tokens * s_.heads * s_.width, s_.heads * s_.width};
    arrays.lse_out = reinterpret_cast<float*>(memory + lse_);
    arrays.position = starts;
    arrays.lengths = lengths;
    arrays.cached = &rows;
    parallel_tasks(count_, slots(), [&](int64_t task, int64_t slot) {
      const int64_t head = task / blocks_;
      attention_tiles::forward(problem_, arrays, {head / s_.heads, head % s_.heads, task % blocks_ * sizes_.rows},
                               static_cast<float*>(args.scratch) + slot * sizes_.forward);
    });
    // Queries of this run have read the rows that are now overwritten.
    for_tokens(args, s_.capacity, [&](int64_t b, int64_t t) {
      const int64_t at = (plan_.position(args, b) + t) % s_.capacity;
      char* row = plan_.row_at(args, b, at);
      if (plan_.dtype == DType::kF32) return plan_.store(args, b, t, row, nullptr);
      std::memcpy(row, added_row(args, b, t), static_cast<size_t>(plan_.row_bytes));
      if (plan_.scale_bytes > 0)
        std::memcpy(plan_.scales_at(args, b, at), added_scales(args, b, t), static_cast<size_t>(plan_.scale_bytes));
    });
  }

 private:
  int64_t slots() const { return std::max<int64_t>(1, std::min<int64_t>(plan_.threads, count_)); }
  char* added_row(const KernelArgs& args, int64_t b, int64_t t) const {
    return static_cast<char*>(args.scratch) + added_ + (b * s_.tokens + t) * plan_.row_bytes;
  }
  float* added_scales(const KernelArgs& args, int64_t b, int64_t t) const {
    return reinterpret_cast<float*>(static_cast<char*>(args.scratch) + added_scales_ + (b * s_.tokens + t) * plan_.scale_bytes);
  }
  /// body(b, t) for the new tokens of each sequence; `most` > 0: for the last of them only.
  template <class Body>
  void for_tokens(const KernelArgs& args, int64_t most, const Body& body) const {
    parallel_for(s_.batch * s_.tokens, std::max<int64_t>(1, kGrainBytes / plan_.row_bytes), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t b = i / s_.tokens, t = i % s_.tokens, count = plan_.count(args, b);
        if (t < count && (most == 0 || t >= count - most)) body(b, t);
      }
    });
  }
  attention_tiles::CachedRows cached_rows(const KernelArgs& args) const {
    attention_tiles::CachedRows rows{};
    rows.dtype = plan_.dtype;
    rows.cache = args.out<char>(1);
    rows.scales = plan_.scales_at(args, 0, 0);
    rows.capacity = s_.capacity;
    rows.first_value = s_.kv_heads;
    rows.tokens = s_.tokens;
    if (plan_.dtype == DType::kF32) {
      rows.k = plan_.keys(args);
      rows.v = plan_.values(args);
      rows.row = plan_.new_row;
    } else {
      rows.k = added_row(args, 0, 0);
      rows.v = added_row(args, 0, 0) + plan_.row_bytes / 2;
      rows.new_scales = plan_.scale_bytes == 0 ? nullptr : added_scales(args, 0, 0);
      rows.row = plan_.row_values;
    }
    return rows;
  }

  Plan plan_;
  const CachedAttentionShape& s_;
  attention_tiles::Problem problem_{};
  attention_tiles::Sizes sizes_;
  int64_t blocks_ = 0, count_ = 0;                                                           // blocks of query rows; tasks
  int64_t lse_ = 0, starts_ = 0, lengths_ = 0, added_ = 0, added_scales_ = 0, scratch_ = 0;  // offsets in the scratch memory
};

Support supports(const KernelQuery& q) {
  if (!attention_tiles::has_wide_vectors()) return Support::no("made for AVX2 or wider vectors");
  if (q.in(kQ).dtype != DType::kF32) return Support::no(cat("dtype ", q.in(kQ).dtype));
  for (const auto* types : {&q.context.inputs, &q.context.outputs}) {
    for (const TensorType* type : *types) {
      if (type == nullptr) continue;
      if (!type->format.is_contiguous()) return Support::no(cat("format ", type->format));
      if (type->elements() == 0) return Support::no("empty array");
    }
  }
  return Support::yes();
}

Support supports_decode(const KernelQuery& q) {
  if (q.in(kQ).shape[1] != 1) return Support::no("more than one new token");
  if (q.in(kQ).shape[3] % 16 != 0) return Support::no("the width of a head is not a multiple of 16");
  return supports(q);
}

std::unique_ptr<PreparedKernel> prepare_decode(const KernelQuery& q) {
  switch (q.in(kCache).dtype) {
    case DType::kI8: return std::make_unique<Decode<int8_t>>(q);
    case DType::kBF16: return std::make_unique<Decode<BFloat16>>(q);
    default: return std::make_unique<Decode<float>>(q);
  }
}

/// In the order in which they are tried.
const std::array<Kernel, 2> kKernels{{
    // Divides the rows of the cache among the threads; tiles have too few rows of queries for them.
    {"cached_attention", "decode", supports_decode, prepare_decode},
    {"cached_attention", "flash", supports, prepare_as<Tiles>},
}};

}  // namespace

std::span<const Kernel> cpu_cache() { return kKernels; }

}  // namespace galley
