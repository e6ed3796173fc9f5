// Sums and means whose reduced dimensions lie together in memory: an array is outer x reduced x inner, as in the bias gradient (reduced x
// inner), global pooling of channels_last images (all three) and row sums (outer x reduced). Sums run over fixed runs of 64 in float,
// which are added in double in one order: the bits do not depend on the thread count. Sums of squares likewise, over memory as it lies.

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "libcore/base/parallel.h"
#include "libcore/kernels/cpu/table.h"
#include "libcore/kernels/cpu/vector_math.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

constexpr int64_t kRun = 64;      // values added in float
constexpr int64_t kColumns = 64;  // inner elements of one task

struct Split {
  int64_t outer = 1, reduced = 1, inner = 1;
};

/// nullopt where kept and reduced dimensions alternate more often.
std::optional<Split> split_of(const TensorType& x, const std::vector<int>& axes) {
  Split split;
  int part = 0;
  for (const int d : x.format.order(x.shape.rank())) {
    if (x.shape[d] == 1) continue;
    const bool gone = std::find(axes.begin(), axes.end(), d) != axes.end();
    if (gone && part == 2) return std::nullopt;
    if (gone) part = 1;
    if (!gone && part == 1) part = 2;
    (part == 0 ? split.outer : part == 1 ? split.reduced : split.inner) *= x.shape[d];
  }
  return split;
}

/// Do the kept dimensions lie in the output in the order in which they lie in x?
bool keeps_order(const TensorType& x, const std::vector<int>& axes, const TensorType& y, bool keepdim) {
  std::vector<int> from_x;
  for (const int d : x.format.order(x.shape.rank())) {
    if (x.shape[d] == 1 || std::find(axes.begin(), axes.end(), d) != axes.end()) continue;
    const auto before = std::count_if(axes.begin(), axes.end(), [&](int axis) { return axis < d; });
    from_x.push_back(keepdim ? d : d - static_cast<int>(before));
  }
  std::vector<int> from_y;
  for (const int d : y.format.order(y.shape.rank())) {
    if (y.shape[d] != 1) from_y.push_back(d);
  }
  return from_x == from_y;
}

/// Adds `rows` rows of `columns` values, `step` apart, to `total`; at most 64 columns.
GALLEY_CLONES void sum_rows(const float* x, int64_t rows, int64_t step, int64_t columns, double* total) {
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

/// Sum of a run of values: 64 columns of a matrix, then those.
double sum_run(const float* x, int64_t count) {
  double columns[kColumns] = {};
  const int64_t rows = count / kColumns;
  sum_rows(x, rows, kColumns, kColumns, columns);
  sum_rows(x + rows * kColumns, 1, kColumns, count - rows * kColumns, columns);
  double total = 0;
  for (const double column : columns) total += column;
  return total;
}

class Sum : public PreparedKernel {
 public:
  Sum(Split split, double scale) : split_(split), scale_(scale) {}
  void run(const KernelArgs& args) const override {
    const float* x = args.in<float>(0);
    float* y = args.out<float>(0);
    const Split s = split_;
    if (s.inner == 1) {
      parallel_for(s.outer, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, s.reduced)), [&](int64_t begin, int64_t end) {
        for (int64_t o = begin; o < end; ++o) y[o] = static_cast<float>(sum_run(x + o * s.reduced, s.reduced) * scale_);
      });
      return;
    }
    const int64_t tasks = (s.inner + kColumns - 1) / kColumns;
    parallel_for(s.outer * tasks, std::max<int64_t>(1, 16384 / (kColumns * std::max<int64_t>(1, s.reduced))), [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t o = task / tasks, first = task % tasks * kColumns, columns = std::min(kColumns, s.inner - first);
        double total[kColumns] = {};
        sum_rows(x + o * s.reduced * s.inner + first, s.reduced, s.inner, columns, total);
        for (int64_t c = 0; c < columns; ++c) y[o * s.inner + first + c] = static_cast<float>(total[c] * scale_);
      }
    });
  }

 private:
  Split split_;
  double scale_;
};

Support supports(const KernelQuery& q) {
  const auto& a = q.attrs<ReduceAttrs>();
  const TensorType& x = q.in(0);
  if (x.dtype != DType::kF32) return Support::no(cat("dtype ", x.dtype));
  if (x.format.is_blocked() || q.out(0).format.is_blocked()) return Support::no(cat("format ", x.format));
  if (x.elements() == 0) return Support::no("empty array");
  const std::vector<int> axes = axes_of(a.axes, x);
  if (!split_of(x, axes)) return Support::no("reduced dimensions lie apart in memory");
  if (!keeps_order(x, axes, q.out(0), a.keepdim)) return Support::no("the output's format orders the dimensions otherwise");
  return Support::yes();
}

template <bool kMean>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  const Split split = *split_of(q.in(0), axes_of(q.attrs<ReduceAttrs>().axes, q.in(0)));
  return std::make_unique<Sum>(split, kMean ? 1 / static_cast<double>(split.reduced) : 1.0);
}

/// The axes along which broadcasting from y's shape to x's would repeat.
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
  if (x.dtype != DType::kF32) return Support::no(cat("dtype ", x.dtype));
  if (x.format.is_blocked() || q.out(0).format.is_blocked()) return Support::no(cat("format ", x.format));
  if (x.elements() == 0) return Support::no("empty array");
  const std::vector<int> axes = repeated_axes(x, q.out(0));
  if (!split_of(x, axes)) return Support::no("reduced dimensions lie apart in memory");
  const bool same_rank = x.shape.rank() == q.out(0).shape.rank();
  const bool only_leading = !axes.empty() && axes.back() == static_cast<int>(axes.size()) - 1 &&
                            static_cast<int>(axes.size()) == x.shape.rank() - q.out(0).shape.rank();
  if (!same_rank && !only_leading) return Support::no("dropped and repeated dimensions are mixed");
  if (!keeps_order(x, axes, q.out(0), same_rank)) return Support::no("the output's format orders the dimensions otherwise");
  return Support::yes();
}

std::unique_ptr<PreparedKernel> prepare_sum_to(const KernelQuery& q) {
  return std::make_unique<Sum>(*split_of(q.in(0), repeated_axes(q.in(0), q.out(0))), 1.0);
}

/// Squares summed in double, 32 columns beside each other: products of floats are exact there.
GALLEY_CLONES double sum_of_squares(const float* x, int64_t count) {
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

/// Over memory as it lies, in any format: the padding of blocked ones is zero. Pieces of 64 KiB, added in order.
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
  void run(const KernelArgs& args) const override {
    auto* parts = static_cast<double*>(args.scratch);
    parallel_for(static_cast<int64_t>(pieces_.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const Piece& piece = pieces_[static_cast<size_t>(p)];
        parts[p] = sum_of_squares(args.in<float>(piece.input) + piece.begin, piece.count);
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
    if (x->dtype != DType::kF32) return Support::no(cat("dtype ", x->dtype));
  }
  return Support::yes();
}

const std::array<Kernel, 4> kKernels{{{"sum_to", "cpu", supports_sum_to, prepare_sum_to},
                                      {"sum", "cpu", supports, prepare<false>},
                                      {"mean", "cpu", supports, prepare<true>},
                                      {"sum_squares", "cpu", supports_squares,
                                       [](const KernelQuery& q) -> std::unique_ptr<PreparedKernel> { return std::make_unique<SumSquares>(q); }}}};

}  // namespace

std::span<const Kernel> cpu_reduce() { return kKernels; }

}  // namespace galley
