// Sums and means over any axes, sums of products of two images, and sums of squares.
//
// Reductions run in stages (reduce_stages.h), each over an array outer x reduced x inner: the bias gradient (reduced x inner), global
// pooling of channels_last images (all three) and row sums (outer x reduced) are one stage. A task sums blocks of 64 columns row by row.
// O(elements), bound by memory. Runs of 64 values are added in float, the runs in double in one order: bits depend on the instruction set,
// not on the threads.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/reduce.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef GALLEY_REDUCE_ONCE
#define GALLEY_REDUCE_ONCE

#include <algorithm>
#include <array>
#include <vector>

#include "libcore/backends/cpu/bfloat16.h"
#include "libcore/backends/cpu/reduce_stages.h"
#include "libcore/backends/cpu/table.h"
#include "libcore/backends/cpu/vector_math.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/rules.h"

namespace galley::reductions {

constexpr int64_t kRun = 64;       // values added in float
constexpr int64_t kWidest = 1024;  // columns of products

}  // namespace galley::reductions

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::reductions {
namespace HWY_NAMESPACE {

/// Adds `rows` rows of `columns` values, `step` apart, to `total`; at most 64 columns.
void sum_rows(const float* x, int64_t rows, int64_t step, int64_t columns, double* total) {
  float run[kColumns];
  for (int64_t begin = 0; begin < rows; begin += kRun) {
    const int64_t end = std::min(rows, begin + kRun);
    for (int64_t c = 0; c < columns; ++c) run[c] = 0;
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t c = 0; c < columns; ++c) run[c] += x[r * step + c];
    }
    for (int64_t c = 0; c < columns; ++c) total[c] += static_cast<double>(run[c]);
  }
}

/// total = the sums of a b over rows of `columns` columns, at most kWidest.
template <class T>
GALLEY_INLINE void product_columns(const T* __restrict a, const T* __restrict b, int64_t rows, int64_t step, int64_t columns,
                                   double* __restrict total) {
  float run[kWidest];
  for (int64_t c = 0; c < columns; ++c) total[c] = 0;
  for (int64_t begin = 0; begin < rows; begin += kRun) {
    const int64_t end = std::min(rows, begin + kRun);
    for (int64_t c = 0; c < columns; ++c) run[c] = 0;
    int64_t r = begin;
    for (; r + 4 <= end; r += 4) {
      const T *p = a + r * step, *q = b + r * step;
      GALLEY_ELEMENTWISE
      for (int64_t c = 0; c < columns; ++c) {
        run[c] += static_cast<float>(p[c]) * static_cast<float>(q[c]) + static_cast<float>(p[step + c]) * static_cast<float>(q[step + c]) +
                  (static_cast<float>(p[2 * step + c]) * static_cast<float>(q[2 * step + c]) +
                   static_cast<float>(p[3 * step + c]) * static_cast<float>(q[3 * step + c]));
      }
    }
    for (; r < end; ++r) {
      for (int64_t c = 0; c < columns; ++c) run[c] += static_cast<float>(a[r * step + c]) * static_cast<float>(b[r * step + c]);
    }
    for (int64_t c = 0; c < columns; ++c) total[c] += static_cast<double>(run[c]);
  }
}
void product_columns_f32(const float* a, const float* b, int64_t rows, int64_t step, int64_t columns, double* total) {
  product_columns(a, b, rows, step, columns, total);
}
void product_columns_bf16(const BFloat16* a, const BFloat16* b, int64_t rows, int64_t step, int64_t columns, double* total) {
  product_columns(a, b, rows, step, columns, total);
}

/// Squares summed in double, in which products of floats are exact: 32 partial sums.
double sum_of_squares(const float* x, int64_t count) {
  constexpr int64_t kLanes = 32;
  double lanes[kLanes] = {};
  const int64_t whole = count - count % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t c = 0; c < kLanes; ++c) lanes[c] += static_cast<double>(x[i + c]) * static_cast<double>(x[i + c]);
  }
  for (int64_t c = 0; c < count - whole; ++c) lanes[c] += static_cast<double>(x[whole + c]) * static_cast<double>(x[whole + c]);
  double total = 0;
  for (const double lane : lanes) total += lane;
  return total;
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::reductions
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace galley {
namespace reductions {
HWY_EXPORT(sum_rows);
HWY_EXPORT(product_columns_f32);
HWY_EXPORT(product_columns_bf16);
HWY_EXPORT(sum_of_squares);

namespace {

void sum_rows(const float* x, int64_t rows, int64_t step, int64_t columns, double* total) {
  HWY_DYNAMIC_DISPATCH(sum_rows)(x, rows, step, columns, total);
}
void product_columns(const float* a, const float* b, int64_t rows, int64_t step, int64_t columns, double* total) {
  HWY_DYNAMIC_DISPATCH(product_columns_f32)(a, b, rows, step, columns, total);
}
void product_columns(const BFloat16* a, const BFloat16* b, int64_t rows, int64_t step, int64_t columns, double* total) {
  HWY_DYNAMIC_DISPATCH(product_columns_bf16)(a, b, rows, step, columns, total);
}

/// Sum of consecutive values: the columns of a matrix of 64 columns, then the sum of these.
double sum_run(const float* x, int64_t count) {
  double columns[kColumns] = {};
  const int64_t rows = count / kColumns;
  sum_rows(x, rows, kColumns, kColumns, columns);
  sum_rows(x + rows * kColumns, 1, kColumns, count - rows * kColumns, columns);
  double total = 0;
  for (const double column : columns) total += column;
  return total;
}

void sum_columns(const float* x, int64_t rows, int64_t step, int64_t columns, double* total) {
  std::fill_n(total, columns, 0.0);
  sum_rows(x, rows, step, columns, total);
}

constexpr Reducer kSum{sum_run, sum_columns};

template <bool kMean>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  const TensorType& x = q.in(0);
  const double count = static_cast<double>(x.elements()) / static_cast<double>(q.out(0).elements());
  return std::make_unique<StagedReduction>(stages_of(x, axes_of(q.attrs<ReduceAttrs>().axes, x)), kSum, kMean ? 1 / count : 1.0);
}

/// The axes along which broadcasting from the shape of y to that of x repeats.
std::vector<int> repeated_axes(const TensorType& x, const TensorType& y) {
  std::vector<int> axes;
  const int missing = x.shape.rank() - y.shape.rank();
  for (int d = 0; d < x.shape.rank(); ++d) {
    if (d < missing || (y.shape[d - missing] == 1 && x.shape[d] != 1)) axes.push_back(d);
  }
  return axes;
}

Support supports_sum_to(const KernelQuery& q) {
  const TensorType& x = q.in(0);
  if (x.dtype != DType::kF32) return Support::no(cat("dtype ", x.dtype, " is not f32"));
  if (x.format.is_blocked() || q.out(0).format.is_blocked())
    return Support::no(cat("format ", x.format, " of the input or ", q.out(0).format, " of the output is blocked"));
  if (x.elements() == 0) return Support::no("the input has no elements");
  const std::vector<int> axes = repeated_axes(x, q.out(0));
  // The result's dimensions are those of x, aligned at the last.
  std::vector<int> kept = kept_in_memory(x, axes);
  for (int& d : kept) d -= x.shape.rank() - q.out(0).shape.rank();
  if (kept != kept_in_memory(q.out(0), {}))
    return Support::no(cat("the output's format ", q.out(0).format, " has the dimensions in another order than the input's"));
  return Support::yes();
}

std::unique_ptr<PreparedKernel> prepare_sum_to(const KernelQuery& q) {
  return std::make_unique<StagedReduction>(stages_of(q.in(0), repeated_axes(q.in(0), q.out(0))), kSum, 1.0);
}

/// Over the pixels of channels_last images.
template <class T>
class SumProducts : public PreparedKernel {
 public:
  explicit SumProducts(const KernelQuery& q)
      : images_(q.in(0).shape[0]), channels_(q.in(0).shape[1]), pixels_(q.in(0).elements() / (images_ * channels_)) {}
  void run(Stream&, const KernelArgs& args) const override {
    // With enough images for the threads, whole rows: memory streams them faster.
    const int64_t width = images_ >= 16 ? kWidest : kColumns, blocks = (channels_ + width - 1) / width;
    parallel_for(images_ * blocks, std::max<int64_t>(1, 16384 / (pixels_ * std::min(width, channels_))), [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t image = task / blocks, first = task % blocks * width, columns = std::min(width, channels_ - first),
                      at = image * pixels_ * channels_ + first;
        double total[kWidest];
        product_columns(args.in<T>(0) + at, args.in<T>(1) + at, pixels_, channels_, columns, total);
        T* to = args.out<T>(0) + image * channels_ + first;
        for (int64_t c = 0; c < columns; ++c) to[c] = static_cast<float>(total[c]);
      }
    });
  }

 private:
  int64_t images_, channels_, pixels_;
};

Support supports_products(const KernelQuery& q) {
  const TensorType &a = q.in(0), &y = q.out(0);
  if (a.dtype != DType::kF32 && a.dtype != DType::kBF16) return Support::no(cat("dtype ", a.dtype, " is neither f32 nor bf16"));
  if (a.elements() == 0) return Support::no("the input has no elements");
  for (int i : {0, 1}) {
    if (!q.in(i).format.is_channels_last()) return Support::no(cat("input ", i, " has format ", q.in(i).format, ", not channels_last"));
  }
  Shape channels = a.shape;
  for (int d = 2; d < channels.rank(); ++d) channels[d] = 1;
  if (y.shape != channels) return Support::no(cat("the output has shape ", y.shape, "; only sums over the pixels of each image"));
  if (y.format.is_blocked()) return Support::no(cat("the output has the blocked format ", y.format));
  return Support::yes();
}

std::unique_ptr<PreparedKernel> prepare_products(const KernelQuery& q) {
  if (q.in(0).dtype == DType::kBF16) return std::make_unique<SumProducts<BFloat16>>(q);
  return std::make_unique<SumProducts<float>>(q);
}

/// Sums squares in the order of memory, in any format, since the padding of blocked formats is zero. Pieces of 64 KiB are added in order.
class SumSquares : public PreparedKernel {
 public:
  explicit SumSquares(const KernelQuery& q) {
    constexpr int64_t kPiece = 16384;
    for (size_t i = 0; i < q.context.inputs.size(); ++i) {
      const int64_t count = q.context.inputs[i]->format.padded_elements(q.context.inputs[i]->shape);
      for (int64_t begin = 0; begin < count; begin += kPiece) pieces_.push_back({i, begin, std::min(kPiece, count - begin)});
    }
  }
  int64_t scratch_bytes() const override { return static_cast<int64_t>(pieces_.size() * sizeof(double)); }
  void run(Stream&, const KernelArgs& args) const override {
    auto* parts = static_cast<double*>(args.scratch);
    parallel_for(static_cast<int64_t>(pieces_.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const Piece& piece = pieces_[static_cast<size_t>(p)];
        parts[p] = HWY_DYNAMIC_DISPATCH(sum_of_squares)(args.in<float>(piece.input) + piece.begin, piece.count);
      }
    });
    double total = 0;
    for (size_t p = 0; p < pieces_.size(); ++p) total += parts[p];
    *args.out<float>(0) = static_cast<float>(total);
  }

 private:
  struct Piece {
    size_t input;
    int64_t begin, count;
  };
  std::vector<Piece> pieces_;
};

Support supports_squares(const KernelQuery& q) {
  for (const TensorType* x : q.context.inputs) {
    if (x->dtype != DType::kF32) return Support::no(cat("dtype ", x->dtype, " is not f32"));
  }
  return Support::yes();
}

const std::array<Kernel, 5> kKernels{
    {{"sum_to", "stages", supports_sum_to, prepare_sum_to},
     {"sum_products", "pixel_rows", supports_products, prepare_products},
     {"sum", "stages", supports_staged, prepare<false>},
     {"mean", "stages", supports_staged, prepare<true>},
     {"sum_squares", "pieces", supports_squares,
      [](const KernelQuery& q) -> std::unique_ptr<PreparedKernel> { return std::make_unique<SumSquares>(q); }}}};

}  // namespace
}  // namespace reductions

Support supports_staged(const KernelQuery& q) {
  const auto& a = q.attrs<ReduceAttrs>();
  const TensorType& x = q.in(0);
  if (x.dtype != DType::kF32) return Support::no(cat("dtype ", x.dtype, " is not f32"));
  if (x.format.is_blocked() || q.out(0).format.is_blocked())
    return Support::no(cat("format ", x.format, " of the input or ", q.out(0).format, " of the output is blocked"));
  if (x.elements() == 0) return Support::no("the input has no elements");
  if (!keeps_order(x, axes_of(a.axes, x), q.out(0), a.keepdim))
    return Support::no(cat("the output's format ", q.out(0).format, " has the dimensions in another order than the input's"));
  return Support::yes();
}

std::span<const Kernel> cpu_reduce() { return reductions::kKernels; }

std::vector<ReductionStage> stages_of(const TensorType& x, const std::vector<int>& axes) {
  struct Segment {
    int64_t size;
    bool gone;
  };
  std::vector<Segment> segments;  // of memory, neighbors differ
  for (const int d : x.format.order(x.shape.rank())) {
    if (x.shape[d] == 1) continue;
    const bool gone = std::find(axes.begin(), axes.end(), d) != axes.end();
    if (!segments.empty() && segments.back().gone == gone) {
      segments.back().size *= x.shape[d];
    } else {
      segments.push_back({x.shape[d], gone});
    }
  }
  std::vector<ReductionStage> stages;
  while (true) {
    ReductionStage stage;
    size_t at = segments.size();
    while (at > 0 && !segments[at - 1].gone) stage.inner *= segments[--at].size;
    if (at == 0) {
      if (stages.empty()) stages.push_back({.outer = stage.inner});  // nothing is reduced
      return stages;
    }
    stage.reduced = segments[at - 1].size;
    for (size_t i = 0; i + 1 < at; ++i) stage.outer *= segments[i].size;
    constexpr int64_t kEnough = 16, kPiece = 32768;  // tasks that keep threads busy; elements that are worth a task
    const int64_t tasks = stage.outer * ((stage.inner + kColumns - 1) / kColumns);
    if (tasks < kEnough) stage.pieces = std::clamp<int64_t>(stage.reduced * std::min(stage.inner, kColumns) / kPiece, 1, kEnough);
    stages.push_back(stage);
    if (stage.pieces > 1) {
      segments[at - 1].size = stage.pieces;
      continue;
    }
    segments.erase(segments.begin() + static_cast<std::ptrdiff_t>(at - 1));
    if (at - 1 > 0 && at - 1 < segments.size()) {
      segments[at - 2].size *= segments[at - 1].size;
      segments.erase(segments.begin() + static_cast<std::ptrdiff_t>(at - 1));
    }
  }
}

std::vector<int> kept_in_memory(const TensorType& x, const std::vector<int>& axes) {
  std::vector<int> kept;
  for (const int d : x.format.order(x.shape.rank())) {
    if (x.shape[d] != 1 && std::find(axes.begin(), axes.end(), d) == axes.end()) kept.push_back(d);
  }
  return kept;
}

bool keeps_order(const TensorType& x, const std::vector<int>& axes, const TensorType& y, bool keepdim) {
  std::vector<int> kept = kept_in_memory(x, axes);
  for (int& d : kept) {
    if (!keepdim) d -= static_cast<int>(std::count_if(axes.begin(), axes.end(), [d](int axis) { return axis < d; }));
  }
  return kept == kept_in_memory(y, {});
}

int64_t StagedReduction::scratch_bytes() const {
  int64_t bytes = 0;
  for (size_t i = 0; i + 1 < stages_.size(); ++i) bytes += stages_[i].outer * stages_[i].pieces * stages_[i].inner * 4;
  return bytes;
}

void StagedReduction::run(Stream&, const KernelArgs& args) const {
  const float* x = args.in<float>(0);
  auto* next = static_cast<float*>(args.scratch);
  for (size_t i = 0; i < stages_.size(); ++i) {
    const ReductionStage& stage = stages_[i];
    const bool last = i + 1 == stages_.size();
    float* y = last ? args.out<float>(0) : next;
    run_stage(stage, x, y, last ? scale_ : 1.0);
    if (!last) next += stage.outer * stage.pieces * stage.inner;
    x = y;
  }
}

void StagedReduction::run_stage(const ReductionStage& s, const float* x, float* y, double scale) const {
  const int64_t blocks = (s.inner + kColumns - 1) / kColumns;
  const int64_t work = std::max<int64_t>(1, s.reduced / s.pieces) * std::min(kColumns, s.inner);
  parallel_for(s.outer * s.pieces * blocks, std::max<int64_t>(1, 16384 / work), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t o = task / (s.pieces * blocks), piece = task / blocks % s.pieces, first = task % blocks * kColumns,
                    columns = std::min(kColumns, s.inner - first);
      const int64_t row = s.reduced * piece / s.pieces, rows = s.reduced * (piece + 1) / s.pieces - row;
      const float* from = x + (o * s.reduced + row) * s.inner + first;
      float* to = y + (o * s.pieces + piece) * s.inner + first;
      if (s.inner == 1) {
        *to = static_cast<float>(reducer_.run(from, rows) * scale);
        continue;
      }
      double result[kColumns];
      reducer_.columns(from, rows, s.inner, columns, result);
      for (int64_t c = 0; c < columns; ++c) to[c] = static_cast<float>(result[c] * scale);
    }
  });
}

}  // namespace galley
#endif  // HWY_ONCE
