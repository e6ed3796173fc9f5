// Largest and smallest values and their positions: amax, amin (in stages, as sums: reduce_stages.h), argmax, topk. NaN counts as both the
// largest and the smallest; of equal ones the first is found. One pass over x with 64 columns in vectors, bound by memory; topk inserts
// into the k best so far, O(n) where most elements fail the comparison with the last of these, O(n k) at worst; many are kept in a heap,
// O(n log k) at worst.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/extremum.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstdint>

#include "libcore/backends/cpu/reduce_stages.h"
#include "libcore/backends/cpu/softmax_lines.h"
#include "libcore/backends/cpu/vector_math.h"

#ifndef GALLEY_EXTREMUM_ONCE
#define GALLEY_EXTREMUM_ONCE

namespace galley::extremum_loops {

/// The better of the two; NaN once seen stays.
template <bool kLargest>
GALLEY_INLINE float better(float x, float best) {
  const bool beats = kLargest ? x > best : x < best;
  const float of_numbers = beats ? x : best;
  return x == x ? of_numbers : x;
}

}  // namespace galley::extremum_loops

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::extremum_loops {
namespace HWY_NAMESPACE {

template <bool kLargest>
GALLEY_INLINE void best_columns(const float* x, int64_t rows, int64_t step, int64_t columns, double* result) {
  float best[kColumns];
  for (int64_t c = 0; c < columns; ++c) best[c] = x[c];
  for (int64_t r = 1; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) best[c] = better<kLargest>(x[r * step + c], best[c]);
  }
  for (int64_t c = 0; c < columns; ++c) result[c] = static_cast<double>(best[c]);
}
void largest_columns(const float* x, int64_t rows, int64_t step, int64_t columns, double* result) {
  best_columns<true>(x, rows, step, columns, result);
}
void smallest_columns(const float* x, int64_t rows, int64_t step, int64_t columns, double* result) {
  best_columns<false>(x, rows, step, columns, result);
}

/// index[l]: the position of the first largest element of line l, for `count` neighboring lines whose elements are `step` apart.
void first_largest_bundle(const float* x, int64_t length, int64_t step, int64_t count, int64_t* index) {
  float best[kBundle];
  int32_t at[kBundle];
  for (int64_t l = 0; l < count; ++l) {
    best[l] = x[l];
    at[l] = 0;
  }
  for (int64_t i = 1; i < length; ++i) {
    const float* row = x + i * step;
    for (int64_t l = 0; l < count; ++l) {
      const bool beats = (row[l] > best[l]) | ((row[l] != row[l]) & (best[l] == best[l]));
      best[l] = beats ? row[l] : best[l];
      at[l] = beats ? static_cast<int32_t>(i) : at[l];
    }
  }
  for (int64_t l = 0; l < count; ++l) index[l] = at[l];
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::extremum_loops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <array>
#include <cmath>

#include "libcore/backends/cpu/table.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace extremum_loops {

HWY_EXPORT(largest_columns);
HWY_EXPORT(smallest_columns);
HWY_EXPORT(first_largest_bundle);

}  // namespace extremum_loops

namespace {

void largest_columns(const float* x, int64_t rows, int64_t step, int64_t columns, double* result) {
  HWY_DYNAMIC_DISPATCH(extremum_loops::largest_columns)(x, rows, step, columns, result);
}
void smallest_columns(const float* x, int64_t rows, int64_t step, int64_t columns, double* result) {
  HWY_DYNAMIC_DISPATCH(extremum_loops::smallest_columns)(x, rows, step, columns, result);
}

/// A run of numbers as rows of kColumns, then those.
template <bool kLargest>
double best_of(const float* x, int64_t count) {
  const auto columns = kLargest ? largest_columns : smallest_columns;
  const int64_t rows = count / kColumns, rest = count - rows * kColumns;
  double result[2 * kColumns] = {static_cast<double>(x[0])};
  if (rows > 0) columns(x, rows, kColumns, kColumns, result);
  const int64_t whole = rows > 0 ? kColumns : 0;
  if (rest > 0) columns(x + rows * kColumns, 1, kColumns, rest, result + whole);
  auto best = static_cast<float>(result[0]);
  for (int64_t c = 1; c < whole + rest; ++c) best = extremum_loops::better<kLargest>(static_cast<float>(result[c]), best);
  return static_cast<double>(best);
}

constexpr Reducer kLargestOf{best_of<true>, largest_columns};
constexpr Reducer kSmallestOf{best_of<false>, smallest_columns};

template <const Reducer& kReducer>
std::unique_ptr<PreparedKernel> prepare_extremum(const KernelQuery& q) {
  return std::make_unique<StagedReduction>(stages_of(q.in(0), axes_of(q.attrs<ReduceAttrs>().axes, q.in(0))), kReducer, 1.0);
}

/// The first index of a line's largest element.
int64_t first_largest(const float* x, int64_t length) {
  const auto largest = static_cast<float>(best_of<true>(x, length));
  if (std::isnan(largest)) return std::find_if(x, x + length, [](float v) { return std::isnan(v); }) - x;
  return std::find(x, x + length, largest) - x;
}

class Argmax : public PreparedKernel {
 public:
  explicit Argmax(const KernelQuery& q) : lines_(lines_of(q.in(0), axis_of(q.attrs<ArgmaxAttrs>().axis, q.in(0)))) {}
  void run(Stream&, const KernelArgs& args) const override {
    const float* x = args.in<float>(0);
    auto* index = args.out<int64_t>(0);
    const Lines s = lines_;
    if (s.inner == 1) {
      parallel_for(s.outer, std::max<int64_t>(1, 16384 / s.length), [&](int64_t begin, int64_t end) {
        for (int64_t o = begin; o < end; ++o) index[o] = first_largest(x + o * s.length, s.length);
      });
      return;
    }
    const int64_t bundles = bundles_of(s);
    parallel_for(s.outer * bundles, std::max<int64_t>(1, 16384 / (s.length * std::min(kBundle, s.inner))), [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const int64_t o = b / bundles, first = b % bundles * kBundle;
        HWY_DYNAMIC_DISPATCH(extremum_loops::first_largest_bundle)(x + o * s.length * s.inner + first, s.length, s.inner,
                                                                   std::min(kBundle, s.inner - first), index + o * s.inner + first);
      }
    });
  }

 private:
  Lines lines_;
};

Support supports_argmax(const KernelQuery& q) {
  const auto& a = q.attrs<ArgmaxAttrs>();
  const TensorType& x = q.in(0);
  if (x.dtype != DType::kF32) return Support::no(cat("dtype ", x.dtype));
  if (x.format.is_blocked() || q.out(0).format.is_blocked()) return Support::no(cat("format ", x.format));
  const int axis = axis_of(a.axis, x);
  if (x.shape[axis] > (int64_t{1} << 30)) return Support::no("the axis has more than 2^30 elements");
  if (!keeps_order(x, {axis}, q.out(0), a.keepdim)) return Support::no("the output's format has another order of dimensions");
  return Support::yes();
}

constexpr int64_t kMostKept = 128;

/// Of equal values, the earlier one stays.
bool precedes(float later, float earlier) { return later > earlier || (std::isnan(later) && !std::isnan(earlier)); }

/// Keeps the k best in order; most elements fail the one comparison with the last kept.
class Topk : public PreparedKernel {
 public:
  explicit Topk(const KernelQuery& q)
      : lines_(lines_of(q.in(0), axis_of(q.attrs<TopkAttrs>().axis, q.in(0)))), k_(q.attrs<TopkAttrs>().k) {}
  void run(Stream&, const KernelArgs& args) const override {
    const Lines s = lines_;
    parallel_for(s.outer * s.inner, std::max<int64_t>(1, 4096 / s.length), [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const int64_t o = line / s.inner, i = line % s.inner;
        const float* x = args.in<float>(0) + o * s.length * s.inner + i;
        float values[kMostKept];
        int64_t indices[kMostKept];
        int64_t kept = 0;
        for (int64_t j = 0; j < s.length; ++j) {
          const float value = x[j * s.inner];
          if (kept == k_ && !precedes(value, values[k_ - 1])) continue;
          int64_t place = kept < k_ ? kept++ : k_ - 1;
          for (; place > 0 && precedes(value, values[place - 1]); --place) {
            values[place] = values[place - 1];
            indices[place] = indices[place - 1];
          }
          values[place] = value;
          indices[place] = j;
        }
        for (int64_t j = 0; j < k_; ++j) {
          args.out<float>(0)[(o * k_ + j) * s.inner + i] = values[j];
          args.out<int64_t>(1)[(o * k_ + j) * s.inner + i] = indices[j];
        }
      }
    });
  }

 private:
  Lines lines_;
  int64_t k_;
};

/// Keeps the k best in a heap whose first element is the last in order, and sorts them at the end. The heap of each line is scratch memory.
class TopkHeap : public PreparedKernel {
 public:
  explicit TopkHeap(const KernelQuery& q)
      : lines_(lines_of(q.in(0), axis_of(q.attrs<TopkAttrs>().axis, q.in(0)))), k_(q.attrs<TopkAttrs>().k) {}
  int64_t scratch_bytes() const override { return lines_.outer * lines_.inner * k_ * static_cast<int64_t>(sizeof(Kept)); }
  void run(Stream&, const KernelArgs& args) const override {
    const Lines s = lines_;
    parallel_for(s.outer * s.inner, std::max<int64_t>(1, 4096 / s.length), [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const int64_t o = line / s.inner, i = line % s.inner;
        const float* x = args.in<float>(0) + o * s.length * s.inner + i;
        Kept* heap = static_cast<Kept*>(args.scratch) + line * k_;
        for (int64_t j = 0; j < k_; ++j) heap[j] = {x[j * s.inner], j};
        std::make_heap(heap, heap + k_, comes_first);
        for (int64_t j = k_; j < s.length; ++j) {
          const float value = x[j * s.inner];
          if (!precedes(value, heap[0].value)) continue;
          std::pop_heap(heap, heap + k_, comes_first);
          heap[k_ - 1] = {value, j};
          std::push_heap(heap, heap + k_, comes_first);
        }
        std::sort_heap(heap, heap + k_, comes_first);
        for (int64_t j = 0; j < k_; ++j) {
          args.out<float>(0)[(o * k_ + j) * s.inner + i] = heap[j].value;
          args.out<int64_t>(1)[(o * k_ + j) * s.inner + i] = heap[j].index;
        }
      }
    });
  }

 private:
  struct Kept {
    float value;
    int64_t index;
  };
  static bool comes_first(const Kept& a, const Kept& b) {
    return precedes(a.value, b.value) || (!precedes(b.value, a.value) && a.index < b.index);
  }
  Lines lines_;
  int64_t k_;
};

Support supports_topk_heap(const KernelQuery& q) {
  const TensorType& x = q.in(0);
  if (x.dtype != DType::kF32) return Support::no(cat("dtype ", x.dtype));
  if (!x.format.is_contiguous() || !q.out(0).format.is_contiguous() || !q.out(1).format.is_contiguous())
    return Support::no(cat("format ", x.format));
  return Support::yes();
}

Support supports_topk(const KernelQuery& q) {
  if (q.attrs<TopkAttrs>().k > kMostKept) return Support::no(cat("k is larger than ", kMostKept));
  return supports_topk_heap(q);
}

template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<T>(q);
}

const std::array<Kernel, 5> kKernels{{{"amax", "stages", supports_staged, prepare_extremum<kLargestOf>},
                                      {"amin", "stages", supports_staged, prepare_extremum<kSmallestOf>},
                                      {"argmax", "bundles", supports_argmax, prepare<Argmax>},
                                      {"topk", "insertion", supports_topk, prepare<Topk>},
                                      {"topk", "heap", supports_topk_heap, prepare<TopkHeap>}}};

}  // namespace

std::span<const Kernel> cpu_extremum() { return kKernels; }

}  // namespace galley

#endif  // HWY_ONCE
