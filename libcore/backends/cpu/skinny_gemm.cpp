// Matrix products with few rows (skinny GEMM), in f32 or bf16: linear layers at small batches, and convolutions of one-pixel images
// (squeeze-and-excitation). y[row][column] = bias[column] + sum over k of x[row][k] weight[column][k].
//
// Neither operand is packed: rows of x and of the weight [columns][depth] are read where they are. Vectors run along the depth; a register
// tile of 4 rows (8 with AVX-512) by 3 columns, or 1 by 8, is accumulated over the whole depth and then summed across lanes. 2 rows columns
// depth operations. Each weight is read once, so memory bounds the layer, as it bounds a GEMV.
//
// Each element is summed in one order in every tile, so the bits depend neither on the threads nor on the other rows.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_SSSE3_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/skinny_gemm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/bfloat16-inl.h"

#ifndef GALLEY_SKINNY_GEMM_ONCE
#define GALLEY_SKINNY_GEMM_ONCE

#include <algorithm>
#include <array>
#include <type_traits>

#include "libcore/backends/cpu/activate.h"
#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/conv_thresholds.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/conv.h"
#include "libcore/ops/matmul.h"

namespace galley::skinny_gemm {

/// y[row][column] = bias[column] + sum over k of x[row][k] weight[column][k], for a range of rows and of columns.
template <class T>
struct Task {
  const T* x;
  const T* weight;
  const float* bias;  // or nullptr
  float* y;
  int64_t depth, columns;  // of the whole layer: floats between rows of x and of the weight, and of y
  int64_t first_row, last_row, first_column, last_column;
};

}  // namespace galley::skinny_gemm

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::skinny_gemm {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_HAVE_SCALABLE || HWY_TARGET == HWY_SCALAR

constexpr int64_t kRows = 4, kColumns = 2, kSingle = 4;

template <int kTall, int kBroad, class T>
void tile(const Task<T>& t, int64_t row, int64_t column) {
  for (int r = 0; r < kTall; ++r) {
    for (int c = 0; c < kBroad; ++c) {
      float sum = 0;
      for (int64_t k = 0; k < t.depth; ++k)
        sum += static_cast<float>(t.x[(row + r) * t.depth + k]) * static_cast<float>(t.weight[(column + c) * t.depth + k]);
      t.y[(row + r) * t.columns + column + c] = sum + (t.bias != nullptr ? t.bias[column + c] : 0.0f);
    }
  }
}

#else

using Floats = hn::CappedTag<float, 16>;
// The sums, a vector of each column and one of a row fill 16 registers, or most of 32. A single row takes more columns, for more loads in
// flight.
constexpr int kWide = static_cast<int>(hn::MaxLanes(Floats()));
constexpr int64_t kRows = kWide == 16 ? 8 : 4, kColumns = 3, kSingle = 8;

template <int kTall, int kBroad, class T>
HWY_INLINE void tile(const Task<T>& t, int64_t row, int64_t column) {
  using galley::HWY_NAMESPACE::load_floats;
  const Floats d;
  const int64_t depth = t.depth, whole = depth / kWide * kWide;
  const T* HWY_RESTRICT x = t.x + row * depth;
  const T* HWY_RESTRICT w = t.weight + column * depth;
  hn::Vec<Floats> sum[kTall][kBroad];
  for (int r = 0; r < kTall; ++r) {
    for (int c = 0; c < kBroad; ++c) sum[r][c] = hn::Zero(d);
  }
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  const T* ahead = w + conv_threshold::kSkinnyAhead.value / static_cast<int64_t>(sizeof(T));
  for (int64_t k = 0; k < whole; k += kWide) {
    // One row reads its weights from memory: lines in the order of their addresses, to the second-level cache.
    if constexpr (kTall == 1 && kBroad == kSingle) {
      if (k % kLine == 0) {
        for (int c = 0; c < kBroad; ++c) __builtin_prefetch(ahead + k * kBroad + c * kLine, 0, 2);
      }
    }
    hn::Vec<Floats> weight[kBroad];
    for (int c = 0; c < kBroad; ++c) weight[c] = load_floats(d, w + c * depth + k);
    for (int r = 0; r < kTall; ++r) {
      const auto value = load_floats(d, x + r * depth + k);
      for (int c = 0; c < kBroad; ++c) sum[r][c] = hn::MulAdd(value, weight[c], sum[r][c]);
    }
  }
  for (int r = 0; r < kTall; ++r) {
    for (int c = 0; c < kBroad; ++c) {
      float total = hn::GetLane(hn::SumOfLanes(d, sum[r][c]));
      for (int64_t k = whole; k < depth; ++k) total += static_cast<float>(x[r * depth + k]) * static_cast<float>(w[c * depth + k]);
      t.y[(row + r) * t.columns + column + c] = total + (t.bias != nullptr ? t.bias[column + c] : 0.0f);
    }
  }
}

#endif

/// `rows` rows, at most kTall, by kBroad columns.
template <int kTall, int kBroad, class T>
HWY_INLINE void some_rows(const Task<T>& t, int64_t row, int64_t rows, int64_t column) {
  if constexpr (kTall > 1) {
    if (rows < kTall) return some_rows<kTall - 1, kBroad>(t, row, rows, column);
  }
  tile<kTall, kBroad>(t, row, column);
}

template <class T>
void multiply(const Task<T>& t) {
  const int64_t block = std::max<int64_t>(kRows, conv_threshold::kSkinnyRowBytes.value / 4 / t.depth / kRows * kRows);
  for (int64_t begin = t.first_row; begin < t.last_row; begin += block) {
    const int64_t end = std::min(t.last_row, begin + block);
    int64_t column = t.first_column;
    if (end - begin == 1) {
      for (; column + kSingle <= t.last_column; column += kSingle) tile<1, kSingle>(t, begin, column);
    }
    for (; column + kColumns <= t.last_column; column += kColumns) {
      for (int64_t row = begin; row < end; row += kRows) some_rows<kRows, kColumns>(t, row, end - row, column);
    }
    for (; column < t.last_column; ++column) {
      for (int64_t row = begin; row < end; row += kRows) some_rows<kRows, 1>(t, row, end - row, column);
    }
  }
}

void multiply_floats(const Task<float>& t) { multiply(t); }
void multiply_bfloats(const Task<BFloat16>& t) { multiply(t); }

}  // namespace HWY_NAMESPACE
}  // namespace galley::skinny_gemm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley {
namespace skinny_gemm {
HWY_EXPORT(multiply_floats);
HWY_EXPORT(multiply_bfloats);

void multiply(const Task<float>& t) { HWY_DYNAMIC_DISPATCH(multiply_floats)(t); }
void multiply(const Task<BFloat16>& t) { HWY_DYNAMIC_DISPATCH(multiply_bfloats)(t); }
}  // namespace skinny_gemm

namespace {

template <class T>
class SkinnyGemm : public PreparedKernel {
 public:
  /// Weight [columns, depth] and x [rows, depth], both contiguous.
  SkinnyGemm(const Shape& weight, int64_t rows, Activation activation)
      : depth_(weight[1]), columns_(weight[0]), rows_(rows), activation_(activation) {}
  int64_t scratch_bytes() const override { return kDirect ? 0 : rows_ * columns_ * 4; }
  void run(Stream&, const KernelArgs& args) const override {
    auto* y = kDirect ? args.out<float>(0) : static_cast<float*>(args.scratch);
    parallel_for(columns_, 16, [&](int64_t begin, int64_t end) {
      skinny_gemm::multiply(
          skinny_gemm::Task<T>{args.in<T>(0), args.in<T>(1), args.in<float>(2), y, depth_, columns_, 0, rows_, begin, end});
      for (int64_t row = 0; row < rows_; ++row) {
        activate(activation_, y + row * columns_ + begin, end - begin);
        if constexpr (!kDirect) std::copy(y + row * columns_ + begin, y + row * columns_ + end, args.out<T>(0) + row * columns_ + begin);
      }
    });
  }

 private:
  static constexpr bool kDirect = std::is_same_v<T, float>;  // sums are written to the result
  int64_t depth_, columns_, rows_;
  Activation activation_;
};

std::unique_ptr<PreparedKernel> prepare_rows(const KernelQuery& q, int64_t rows, Activation activation) {
  if (q.in(0).dtype == DType::kBF16) return std::make_unique<SkinnyGemm<BFloat16>>(q.in(1).shape, rows, activation);
  return std::make_unique<SkinnyGemm<float>>(q.in(1).shape, rows, activation);
}

int64_t rows_of(const KernelQuery& q) { return q.in(0).elements() / q.in(1).shape[1]; }

Support supports_arrays(const KernelQuery& q) {
  for (const TensorType* type : {&q.in(0), &q.in(1), &q.out(0)}) {
    if ((type->dtype != DType::kF32 && type->dtype != DType::kBF16) || type->dtype != q.in(0).dtype)
      return Support::no(cat("dtype ", type->dtype));
    if (type->elements() == 0) return Support::no("empty array");
  }
  if (!q.in(1).format.is_contiguous()) return Support::no(cat("weight format ", q.in(1).format));
  if (q.has(2) && q.in(2).dtype != DType::kF32) return Support::no("bias dtype");
  return Support::yes();
}

Support supports_linear(const KernelQuery& q) {
  if (const Support arrays = supports_arrays(q); !arrays) return arrays;
  if (!q.in(0).format.is_contiguous()) return Support::no(cat("format ", q.in(0).format));
  const int64_t most = (q.in(0).dtype == DType::kBF16 ? conv_threshold::kSkinnyRowsBf16 : conv_threshold::kSkinnyRows).value;
  if (rows_of(q) > most) return Support::no(cat(rows_of(q), " rows: made for at most ", most));
  return Support::yes();
}

/// One pixel in, one pixel of the kernel: the formats of activations are the same then.
Support supports_conv(const KernelQuery& q) {
  const Shape &x = q.in(0).shape, &w = q.in(1).shape;
  const auto& a = q.attrs<Conv2dAttrs>();
  if (x[2] * x[3] * w[2] * w[3] != 1 || a.groups != 1 || pair(a.padding) != std::array<int64_t, 2>{0, 0})
    return Support::no("more than one pixel, or groups");
  if (const Support arrays = supports_arrays(q); !arrays) return arrays;
  if (q.has(3)) return Support::no("residual");
  // A training's batch is left to oneDNN, whose backward pass reads the weight in the format of its forward pass.
  const int64_t most = conv_threshold::kSkinnyImages.value;
  if (x[0] > most) return Support::no(cat(x[0], " images: made for at most ", most));
  return Support::yes();
}

}  // namespace

const Algorithm algorithm::kSkinnyGemmLinear{
    supports_linear, [](const KernelQuery& q) { return prepare_rows(q, rows_of(q), q.attrs<LinearAttrs>().activation); }};
const Algorithm algorithm::kSkinnyGemmConv{
    supports_conv, [](const KernelQuery& q) { return prepare_rows(q, q.in(0).shape[0], q.attrs<Conv2dAttrs>().activation); }};

}  // namespace galley

#endif  // HWY_ONCE
