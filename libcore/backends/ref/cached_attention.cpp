// Attention of new tokens with a cache.

#include "libcore/ops/cached_attention.h"

#include <algorithm>
#include <cmath>

#include "libcore/backends/ref/table.h"

namespace galley {
namespace {

using namespace cached_attention_port;

/// One head of a token as the cache stores it. Codes and scales are computed in float32, by their definition.
struct StoredHead {
  std::vector<double> stored, values;  // values: what is attended to
  double scale = 1;
};

StoredHead store(DType dtype, const double* head, int64_t width) {
  StoredHead made{{head, head + width}, {head, head + width}};
  if (dtype == DType::kBF16) {
    for (double& x : made.stored) x = float_from_bf16(bf16_from_float(static_cast<float>(x)));
    made.values = made.stored;
  } else if (dtype == DType::kI8) {
    float largest = 0;
    bool finite = true;
    for (const double x : made.stored) {
      largest = std::max(largest, std::abs(static_cast<float>(x)));
      finite &= std::isfinite(static_cast<float>(x));
    }
    const float inverse = largest > 0 && finite ? 127.0f / largest : 0.0f, scale = finite ? largest / 127.0f : NAN;
    made.scale = scale;
    for (int64_t i = 0; i < width; ++i) {
      const auto n = static_cast<size_t>(i);
      made.stored[n] = finite ? std::nearbyint(static_cast<float>(head[i]) * inverse) : 0;
      made.values[n] = made.stored[n] * made.scale;
    }
  }
  return made;
}

/// The new tokens of one sample, and its rows of the cache before the run.
struct Sample {
  Sample(RefCall& call, const CachedAttentionShape& shape, int64_t index) : call_(call), s(shape), b(index) {
    start = static_cast<int64_t>(call.in(kPosition)[b]);
    count = start < 0 ? 0 : call.has(kLast) ? std::min(s.tokens, static_cast<int64_t>(call.in(kLast)[b]) + 1) : s.tokens;
    const RefArray &k = s.packed ? call.in(kQ) : call.in(kK), &v = s.packed ? call.in(kQ) : call.in(kV);
    for (int64_t t = 0; t < count; ++t) {
      for (int64_t h = 0; h < 2 * s.kv_heads; ++h) {
        const int64_t head = h < s.kv_heads ? s.first_key + h : s.first_value + h - s.kv_heads;
        const RefArray& from = h < s.kv_heads ? k : v;
        added.push_back(store(call.context().in(kCache).dtype,
                              &from.v[static_cast<size_t>(((b * s.tokens + t) * s.new_heads + head) * s.width)], s.width));
      }
    }
  }
  /// Element i of head h (keys, then values) of the token at a position.
  double at(int64_t position, int64_t h, int64_t i) const {
    if (position >= start) return added[static_cast<size_t>((position - start) * 2 * s.kv_heads + h)].values[static_cast<size_t>(i)];
    const int64_t row = (b * s.capacity + position % s.capacity) * 2 * s.kv_heads + h;
    return call_.in(kCache)[row * s.width + i] * (call_.has(kScales) ? call_.in(kScales)[row] : 1.0);
  }
  void write() const {
    for (int64_t t = 0; t < count; ++t) {
      for (int64_t h = 0; h < 2 * s.kv_heads; ++h) {
        const StoredHead& head = added[static_cast<size_t>(t * 2 * s.kv_heads + h)];
        const int64_t row = (b * s.capacity + (start + t) % s.capacity) * 2 * s.kv_heads + h;
        for (int64_t i = 0; i < s.width; ++i) call_.out(1)[row * s.width + i] = head.stored[static_cast<size_t>(i)];
        if (call_.has(kScales)) call_.out(2)[row] = head.scale;
      }
    }
  }

  RefCall& call_;
  const CachedAttentionShape& s;
  int64_t b, start = 0, count = 0;
  std::vector<StoredHead> added;  // of each token: heads of keys, then of values
};

void cached_attention_ref(RefCall& call) {
  const auto& attrs = call.attrs<CachedAttentionAttrs>();
  const CachedAttentionShape s = cached_attention_shape(call.context());
  call.out(1).v = call.in(kCache).v;
  if (call.has(kScales)) call.out(2).v = call.in(kScales).v;
  for (int64_t b = 0; b < s.batch; ++b) {
    const Sample sample(call, s, b);
    for (int64_t t = 0; t < sample.count; ++t) {
      const int64_t position = sample.start + t, first = std::max<int64_t>(0, position - s.reach(attrs) + 1);
      for (int64_t h = 0; h < s.heads; ++h) {
        const double* q = &call.in(kQ).v[static_cast<size_t>(((b * s.tokens + t) * s.q_heads + h) * s.width)];
        std::vector<double> p;
        for (int64_t key = first; key <= position; ++key) {
          double score = 0;
          for (int64_t i = 0; i < s.width; ++i) score += q[i] * sample.at(key, h / s.group(), i);
          p.push_back(score * s.scale(attrs));
        }
        const double largest = *std::max_element(p.begin(), p.end());
        double total = 0;
        for (double& x : p) total += x = std::exp(x - largest);
        for (int64_t i = 0; i < s.width; ++i) {
          double sum = 0;
          for (int64_t key = first; key <= position; ++key)
            sum += p[static_cast<size_t>(key - first)] * sample.at(key, s.kv_heads + h / s.group(), i);
          call.out()[((b * s.tokens + t) * s.heads + h) * s.width + i] = sum / total;
        }
      }
    }
    sample.write();
  }
}

constexpr RefEntry kEntries[] = {{"cached_attention", cached_attention_ref}};

}  // namespace

std::span<const RefEntry> ref_cache() { return kEntries; }

}  // namespace galley
