// Matrix products of few rows with weights that are stored as integers of 8 or 4 bits: decoding of quantized language models.
// y[row][column] = activation(bias[column] + sum over k of x[row][k] scale[column][k / group] (weight[column][k] - zero[column][k /
// group])).
//
// Rows of the weight are read where they are and become floats in registers, so that memory traffic is a quarter or an eighth of that of
// floats; the layer is bound by memory, as a GEMV is. Vectors run along the depth; each group is summed, then added to the sum of the
// column times its scale. A tile is 1 row by 4 columns, or 4 by 2. Of 4 bits, a byte holds two neighbors of the depth:
// x is first split into its even and its odd elements, which multiply the low and the high halves. 2 rows columns depth operations.
//
// Each element is summed in one order in every tile, so the bits depend neither on the threads nor on the other rows.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_SSSE3_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/weight_only_gemm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef GALLEY_WEIGHT_ONLY_GEMM_ONCE
#define GALLEY_WEIGHT_ONLY_GEMM_ONCE

#include <algorithm>

#include "libcore/backends/cpu/activate.h"
#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/conv_thresholds.h"
#include "libcore/backends/weight_only.h"
#include "libcore/base/parallel.h"

namespace galley::weight_only {

/// A range of columns of all rows. An element is a byte of the weight: one value, or two of 4 bits.
struct Task {
  const float* x;                                  // [rows][depth]; of 4 bits: the even elements, [rows][elements]
  const float* odd;                                // of 4 bits: the odd elements, [rows][elements]
  const int8_t* weight;                            // [columns][elements]
  const float* scale;                              // [columns][groups]
  const int8_t* zero;                              // [columns][groups], or nullptr
  const float* bias;                               // or nullptr
  float* y;                                        // [rows][columns]
  int64_t rows, columns, elements, group, groups;  // group: elements that share a scale
  int64_t first_column, last_column;
};

/// The columns of a tile lie one after the other in memory, but they are read side by side: as many streams as columns, each too short for
/// the processor's own prefetch. Lines are prefetched in the order of their addresses, which is twice as fast as column by column.
constexpr int64_t kLine = 64, kAhead = conv_threshold::kWeightOnlyAhead.value;

}  // namespace galley::weight_only

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::weight_only {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, 16>;
using Integers = hn::RebindToSigned<Floats>;
using Bytes = hn::Rebind<int8_t, Floats>;
constexpr int kWide = static_cast<int>(hn::MaxLanes(Floats()));
constexpr int kSingle = 4, kTall = 4, kBroad = 2;

/// The low and the high half of a byte, as signed numbers.
HWY_INLINE float low_half(int8_t byte) { return static_cast<float>(static_cast<int8_t>(static_cast<uint8_t>(byte) << 4) >> 4); }
HWY_INLINE float high_half(int8_t byte) { return static_cast<float>(byte >> 4); }

/// The sum over elements [begin, end) of row `row` by one column, without the scale: what is left over of a group.
template <bool kHalves>
HWY_INLINE float scalar_sum(const Task& t, int64_t row, int64_t column, int64_t begin, int64_t end, float zero) {
  float sum = 0;
  for (int64_t k = begin; k < end; ++k) {
    const int8_t byte = t.weight[column * t.elements + k];
    const int64_t at = row * t.elements + k;
    if constexpr (kHalves) {
      sum += t.x[at] * (low_half(byte) - zero) + t.odd[at] * (high_half(byte) - zero);
    } else {
      sum += t.x[at] * (static_cast<float>(byte) - zero);
    }
  }
  return sum;
}

template <bool kHalves, bool kZero, int kRows, int kColumns>
HWY_INLINE void tile(const Task& t, int64_t row, int64_t column) {
  const Floats d;
  const Integers integers;
  hn::Vec<Floats> sum[kRows][kColumns];
  float rest[kRows][kColumns] = {};
  for (auto& of_row : sum) {
    for (auto& of_column : of_row) of_column = hn::Zero(d);
  }
  const float* x = t.x + row * t.elements;
  const float* odd = kHalves ? t.odd + row * t.elements : nullptr;
  const int8_t* weight = t.weight + column * t.elements;
  for (int64_t g = 0; g < t.groups; ++g) {
    const int64_t begin = g * t.group, end = std::min(t.elements, begin + t.group), whole = begin + (end - begin) / kWide * kWide;
    hn::Vec<Floats> part[kRows][kColumns];
    for (auto& of_row : part) {
      for (auto& of_column : of_row) of_column = hn::Zero(d);
    }
    for (int64_t k = begin; k < whole; k += kWide) {
      hn::Vec<Floats> first[kRows], second[kRows];
      for (int r = 0; r < kRows; ++r) {
        first[r] = hn::LoadU(d, x + r * t.elements + k);
        if constexpr (kHalves) second[r] = hn::LoadU(d, odd + r * t.elements + k);
      }
      if (k % kLine == 0) {
        for (int c = 0; c < kColumns; ++c) __builtin_prefetch(weight + k * kColumns + c * kLine + kAhead);
      }
      for (int c = 0; c < kColumns; ++c) {
        const auto stored = hn::PromoteTo(integers, hn::LoadU(Bytes(), weight + c * t.elements + k));
        const auto real = [&](hn::Vec<Integers> integer) HWY_ATTR {
          const auto value = hn::ConvertTo(d, integer);
          if constexpr (kZero) return hn::Sub(value, hn::Set(d, static_cast<float>(t.zero[(column + c) * t.groups + g])));
          return value;
        };
        if constexpr (kHalves) {
          const auto low = real(hn::ShiftRight<28>(hn::ShiftLeft<28>(stored))), high = real(hn::ShiftRight<4>(stored));
          for (int r = 0; r < kRows; ++r) part[r][c] = hn::MulAdd(second[r], high, hn::MulAdd(first[r], low, part[r][c]));
        } else {
          const auto value = real(stored);
          for (int r = 0; r < kRows; ++r) part[r][c] = hn::MulAdd(first[r], value, part[r][c]);
        }
      }
    }
    for (int c = 0; c < kColumns; ++c) {
      const auto scale = hn::Set(d, t.scale[(column + c) * t.groups + g]);
      for (int r = 0; r < kRows; ++r) sum[r][c] = hn::MulAdd(part[r][c], scale, sum[r][c]);
    }
    if (whole == end) continue;
    for (int c = 0; c < kColumns; ++c) {
      const int64_t at = (column + c) * t.groups + g;
      for (int r = 0; r < kRows; ++r)
        rest[r][c] += t.scale[at] * scalar_sum<kHalves>(t, row + r, column + c, whole, end, kZero ? static_cast<float>(t.zero[at]) : 0.0f);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      const float bias = t.bias != nullptr ? t.bias[column + c] : 0.0f;
      t.y[(row + r) * t.columns + column + c] = hn::GetLane(hn::SumOfLanes(d, sum[r][c])) + rest[r][c] + bias;
    }
  }
}

/// `rows` rows, at most kRows, by kColumns columns.
template <bool kHalves, bool kZero, int kRows, int kColumns>
HWY_INLINE void some_rows(const Task& t, int64_t row, int64_t rows, int64_t column) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return some_rows<kHalves, kZero, kRows - 1, kColumns>(t, row, rows, column);
  }
  tile<kHalves, kZero, kRows, kColumns>(t, row, column);
}

template <bool kHalves, bool kZero>
void multiply_as(const Task& t) {
  int64_t column = t.first_column;
  if (t.rows == 1) {
    for (; column + kSingle <= t.last_column; column += kSingle) tile<kHalves, kZero, 1, kSingle>(t, 0, column);
  }
  for (; column + kBroad <= t.last_column; column += kBroad) {
    for (int64_t row = 0; row < t.rows; row += kTall) some_rows<kHalves, kZero, kTall, kBroad>(t, row, t.rows - row, column);
  }
  for (; column < t.last_column; ++column) {
    for (int64_t row = 0; row < t.rows; row += kTall) some_rows<kHalves, kZero, kTall, 1>(t, row, t.rows - row, column);
  }
}

void multiply_bytes(const Task& t) { t.zero != nullptr ? multiply_as<false, true>(t) : multiply_as<false, false>(t); }
void multiply_halves(const Task& t) { t.zero != nullptr ? multiply_as<true, true>(t) : multiply_as<true, false>(t); }

}  // namespace HWY_NAMESPACE
}  // namespace galley::weight_only
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley {
namespace weight_only {
HWY_EXPORT(multiply_bytes);
HWY_EXPORT(multiply_halves);

void multiply(const Task& t) {
  if (t.odd != nullptr) {
    HWY_DYNAMIC_DISPATCH(multiply_halves)(t);
  } else {
    HWY_DYNAMIC_DISPATCH(multiply_bytes)(t);
  }
}
}  // namespace weight_only

namespace {

class WeightOnlyGemm : public PreparedKernel {
 public:
  explicit WeightOnlyGemm(const KernelQuery& q)
      : depth_(q.in(0).shape[-1]), columns_(q.in(1).shape[0]), rows_(q.in(0).elements() / depth_), elements_(q.in(1).shape[1]) {
    const auto& a = q.attrs<WeightOnlyLinearAttrs>();
    halves_ = a.bits == 4;
    activation_ = a.activation;
    groups_ = a.group_size > 0 ? q.in(2).shape[1] : 1;
    group_ = a.group_size > 0 ? a.group_size / (halves_ ? 2 : 1) : elements_;
  }
  int64_t scratch_bytes() const override { return halves_ ? 2 * rows_ * elements_ * 4 : 0; }
  void run(Stream&, const KernelArgs& args) const override {
    weight_only::Task task{.x = args.in<float>(0),
                           .odd = nullptr,
                           .weight = static_cast<const int8_t*>(args.inputs[1]),
                           .scale = args.in<float>(2),
                           .zero = args.in<int8_t>(3),
                           .bias = args.in<float>(4),
                           .y = args.out<float>(0),
                           .rows = rows_,
                           .columns = columns_,
                           .elements = elements_,
                           .group = group_,
                           .groups = groups_,
                           .first_column = 0,
                           .last_column = 0};
    if (halves_) {
      auto* even = static_cast<float*>(args.scratch);
      split(task.x, even);
      task.x = even;
      task.odd = even + rows_ * elements_;
    }
    parallel_for(columns_, 16, [&](int64_t begin, int64_t end) {
      weight_only::Task part = task;
      part.first_column = begin;
      part.last_column = end;
      weight_only::multiply(part);
      for (int64_t row = 0; row < rows_; ++row) activate(activation_, task.y + row * columns_ + begin, end - begin);
    });
  }

 private:
  /// Even elements of each row, then odd ones. An odd depth is filled up with zero.
  void split(const float* x, float* even) const {
    float* odd = even + rows_ * elements_;
    for (int64_t row = 0; row < rows_; ++row) {
      const float* from = x + row * depth_;
      for (int64_t k = 0; k < elements_; ++k) {
        even[row * elements_ + k] = from[2 * k];
        odd[row * elements_ + k] = 2 * k + 1 < depth_ ? from[2 * k + 1] : 0.0f;
      }
    }
  }

  int64_t depth_, columns_, rows_, elements_, group_ = 0, groups_ = 1;
  bool halves_ = false;
  Activation activation_ = Activation::kNone;
};

Support supports(const KernelQuery& q) {
  for (const TensorType* type : {&q.in(0), &q.in(1), &q.out(0)}) {
    if (type->elements() == 0) return Support::no("empty array");
    if (!type->format.is_contiguous()) return Support::no(cat("format ", type->format));
  }
  if (q.has(4) && q.in(4).dtype != DType::kF32) return Support::no("bias dtype");
  const auto& a = q.attrs<WeightOnlyLinearAttrs>();
  if (a.rounded) return Support::no("the activations are rounded");
  if (a.bits == 4 && a.group_size % 2 != 0) return Support::no("groups that share bytes");
  const int64_t rows = q.in(0).elements() / q.in(0).shape[-1], most = conv_threshold::kWeightOnlyRows.value;
  if (rows > most) return Support::no(cat(rows, " rows: made for at most ", most));
  return Support::yes();
}

}  // namespace

const Algorithm algorithm::kWeightOnlyGemm{supports, prepare_as<WeightOnlyGemm>};

}  // namespace galley

#endif  // HWY_ONCE
