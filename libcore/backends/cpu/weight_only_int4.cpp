// int8_dot_gemm: matrix products of few rows of activations that are rounded to 8 bits with weights of 4 bits, for decoding of quantized
// language models. 2 rows columns depth operations; bound by memory, which has half a byte per weight and a scale per group.
//
// Rows of the weight are read where they are: a byte holds two neighbors of the depth, the lower first. Each kRoundedGroup values of x
// become integers with a scale, even and odd elements apart, so that the low halves of a vector of bytes multiply one array and the high
// halves the other. Halves are made unsigned by adding 8, which vpdpbusd needs; the sum that this adds, 8 times that of the integers of x,
// is known beforehand and subtracted where the sum of a lane begins. A lane sums 8 products of a group; it becomes a float and is
// multiplied by the two scales. 4 columns share what is loaded of x.
//
// Each element is summed in one order in every tile, so the bits depend neither on the threads nor on the other rows.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_SSSE3_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/weight_only_int4.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/quantized_epilogue-inl.h"
#include "libcore/backends/cpu/unrolled-inl.h"

#ifndef GALLEY_WEIGHT_ONLY_INT4_ONCE
#define GALLEY_WEIGHT_ONLY_INT4_ONCE

#include <algorithm>
#include <limits>

#include "libcore/backends/cpu/activate.h"
#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/conv_thresholds.h"
#include "libcore/backends/cpu/quantized_paths.h"
#include "libcore/backends/weight_only.h"
#include "libcore/base/parallel.h"

namespace galley::int4 {

constexpr int64_t kBytes = kRoundedGroup / 2;  // of a group of x, in the weight
// Columns that are read side by side are streams too short for the processor's own prefetch. Lines are prefetched in the order of their
// addresses, which is twice as fast as column by column.
constexpr int64_t kAhead = conv_threshold::kWeightOnlyInt4Ahead.value;
constexpr int64_t kPadding = 64;  // bytes to whose multiple rows of x are filled up with zeros

/// A row of x. Of each 4 bytes of the weight: 4 even and 4 odd elements, the start of their sum, their scale.
struct RoundedRow {
  int8_t *even, *odd;  // [padded]
  int32_t* start;      // [padded / 4]
  float* scale;        // [padded / 4]
};
constexpr int64_t kRowBytes = 4;  // of memory for each byte of `padded`
inline RoundedRow row_at(char* memory, int64_t padded, int64_t row) {
  char* at = memory + row * kRowBytes * padded;
  return {reinterpret_cast<int8_t*>(at), reinterpret_cast<int8_t*>(at + padded), reinterpret_cast<int32_t*>(at + 2 * padded),
          reinterpret_cast<float*>(at + 3 * padded)};
}

/// A range of columns of all rows.
struct Task {
  char* x;                // rows as row_at
  const uint8_t* weight;  // [columns][bytes]
  const float* scale;     // [columns][groups]
  const float* bias;      // or nullptr
  float* y;               // [rows][columns]
  int64_t rows, columns, bytes, padded;
  int64_t group, groups;  // bytes that share a scale
  int64_t first_column, last_column;
  bool vnni;
};

}  // namespace galley::int4

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::int4 {
namespace HWY_NAMESPACE {

#if !GALLEY_QUANTIZED_VECTORS
void round_row(const float*, int64_t, int64_t, const RoundedRow&) {}  // never called: supports
void multiply(const Task&) {}
#else

namespace hn = hwy::HWY_NAMESPACE;
using galley::HWY_NAMESPACE::each;
using quantized::HWY_NAMESPACE::D32;
using quantized::HWY_NAMESPACE::DF;
using quantized::HWY_NAMESPACE::DI8;
using quantized::HWY_NAMESPACE::DU8;
using quantized::HWY_NAMESPACE::kLanes;
using VF = hn::Vec<DF>;

/// Rounds a group of x to the integers and scales of kBytes bytes from `at` on.
HWY_INLINE void round_group(const float* x, int64_t at, const RoundedRow& row) {
  const DF d;
  const hn::Rebind<int8_t, D32> code;
  VF top = hn::Zero(d), poison = hn::Zero(d);  // poison: NaN if a value is not finite
  for (int64_t i = 0; i < kRoundedGroup; i += kLanes) {
    const VF v = hn::LoadU(d, x + i);
    top = hn::Max(top, hn::Abs(v));
    poison = hn::MulAdd(v, hn::Zero(d), poison);
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(d, top));
  const bool finite = hn::GetLane(hn::SumOfLanes(d, poison)) == 0;
  const auto inverse = hn::Set(d, finite && largest > 0 ? 127.0f / largest : 0.0f);
  HWY_ALIGN int32_t sums[kBytes];
  for (int64_t i = 0; i < kRoundedGroup; i += 2 * kLanes) {
    const auto rounded = [&](const float* from) HWY_ATTR {
      const VF v = hn::Mul(hn::LoadU(d, from), inverse);
      return hn::NearestInt(finite ? v : hn::Zero(d));
    };
    const auto first = rounded(x + i), second = rounded(x + i + kLanes);
    const auto even = hn::ConcatEven(D32(), second, first), odd = hn::ConcatOdd(D32(), second, first);
    hn::StoreU(hn::DemoteTo(code, even), code, row.even + at + i / 2);
    hn::StoreU(hn::DemoteTo(code, odd), code, row.odd + at + i / 2);
    hn::Store(hn::Add(even, odd), D32(), sums + i / 2);
  }
  for (int64_t i = 0; i < kBytes / 4; ++i) {
    row.start[at / 4 + i] = -8 * (sums[4 * i] + sums[4 * i + 1] + sums[4 * i + 2] + sums[4 * i + 3]);
    row.scale[at / 4 + i] = finite ? largest / 127.0f : std::numeric_limits<float>::quiet_NaN();
  }
}

/// Rounds `depth` values of a row, and fills it up with zeros.
void round_row(const float* x, int64_t depth, int64_t padded, const RoundedRow& row) {
  for (int64_t at = 0; at < padded; at += kBytes, x += kRoundedGroup, depth -= kRoundedGroup) {
    if (depth >= kRoundedGroup) {
      round_group(x, at, row);
    } else {
      float rest[kRoundedGroup] = {};
      std::copy_n(x, std::max<int64_t>(0, depth), rest);
      round_group(rest, at, row);
    }
  }
}

constexpr int64_t kVector = 4 * kLanes;  // bytes of the weight
constexpr int kColumns = kLanes == 16 ? 4 : 2;

/// What one vector of bytes gives: the scales of a column that it needs, four at most, in each lane.
struct Scales {
  explicit Scales(int64_t group) {
    // Lanes of 4 bytes; groups of a whole number of vectors, or of a part of one.
    HWY_ALIGN int32_t lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = group >= kVector ? 0 : static_cast<int32_t>(i * 4 / group);
    index = hn::SetTableIndices(DF(), lanes);
  }
  HWY_INLINE VF operator()(const float* scale) const { return hn::TableLookupLanes(hn::LoadDup128(DF(), scale), index); }
  decltype(hn::SetTableIndices(DF(), static_cast<const int32_t*>(nullptr))) index;
};

template <bool kVnni>
HWY_INLINE quantized::HWY_NAMESPACE::V32 dot(hn::Vec<DU8> weights, const int8_t* x, quantized::HWY_NAMESPACE::V32 sum) {
  const auto values = hn::Load(DI8(), x);
  if constexpr (kVnni) return quantized::HWY_NAMESPACE::dot_quads(weights, values, sum);
  return quantized::HWY_NAMESPACE::dot_quads_reduced(weights, values, sum);  // 2 x 15 x 127 fits 16 bits
}

/// Adds the products of a vector of bytes of kWide columns, `step` bytes apart. Prefetches as much from `ahead` on.
template <bool kVnni, int kWide>
HWY_INLINE void add_vector(const RoundedRow& x, int64_t at, const uint8_t* weight, int64_t step, const uint8_t* ahead, const float* scale,
                           int64_t scale_step, const Scales& scales, VF (&sum)[kWide]) {
  const DU8 du;
  const auto half = hn::Set(du, 0x0F), flip = hn::Set(du, 0x08);
  const auto start = hn::Load(D32(), x.start + at / 4);
  const VF x_scale = hn::Load(DF(), x.scale + at / 4);
  each<kWide>([&](auto c) GALLEY_LOOP {
    const auto bytes = hn::LoadU(du, weight + c * step);
    __builtin_prefetch(ahead + c * kVector);
    const hn::Repartition<uint16_t, DU8> d16;
    const auto low = hn::Xor(hn::And(bytes, half), flip);
    const auto high = hn::Xor(hn::And(hn::BitCast(du, hn::ShiftRight<4>(hn::BitCast(d16, bytes))), half), flip);
    const auto products = dot<kVnni>(high, x.odd + at, dot<kVnni>(low, x.even + at, start));
    sum[c] = hn::MulAdd(hn::ConvertTo(DF(), products), hn::Mul(scales(scale + c * scale_step), x_scale), sum[c]);
  });
}

template <bool kVnni, int kWide>
HWY_INLINE void columns(const Task& t, int64_t column, const Scales& scales) {
  // Whole vectors of a row of the weight; the four scales that they load lie in the array of all scales.
  const int64_t scales_left = (t.columns - column - kWide + 1) * t.groups;
  const int64_t most = scales_left < 4 ? 0 : (scales_left - 4) * t.group + kVector;
  const int64_t whole = std::min(t.bytes, most) / kVector * kVector;
  const int64_t step = std::max<int64_t>(1, kVector / t.group);
  const uint8_t* weight = t.weight + column * t.bytes;
  const float* scale = t.scale + column * t.groups;
  for (int64_t row = 0; row < t.rows; ++row) {
    const RoundedRow x = row_at(t.x, t.padded, row);
    VF sum[kWide];
    each<kWide>([&](auto c) GALLEY_LOOP { sum[c] = hn::Zero(DF()); });
    int64_t first = 0;  // group
    for (int64_t at = 0; at < whole; first += step) {
      for (const int64_t end = std::min(whole, at + std::max(t.group, kVector)); at < end; at += kVector)
        add_vector<kVnni, kWide>(x, at, weight + at, t.bytes, weight + at * kWide + kAhead, scale + first, t.groups, scales, sum);
    }
    for (int64_t at = whole; at < t.bytes; at += kVector) {
      uint8_t bytes[kWide * kVector] = {};
      float four[kWide * 4] = {};
      first = at / t.group;
      for (int64_t c = 0; c < kWide; ++c) {
        std::copy_n(weight + c * t.bytes + at, std::min(kVector, t.bytes - at), bytes + c * kVector);
        std::copy_n(scale + c * t.groups + first, std::min<int64_t>(4, t.groups - first), four + c * 4);
      }
      add_vector<kVnni, kWide>(x, at, bytes, kVector, weight + at * kWide + kAhead, four, 4, scales, sum);
    }
    each<kWide>([&](auto c) GALLEY_LOOP {
      const float bias = t.bias != nullptr ? t.bias[column + c] : 0.0f;
      t.y[row * t.columns + column + c] = hn::GetLane(hn::SumOfLanes(DF(), sum[c])) + bias;
    });
  }
}

template <bool kVnni>
void multiply_as(const Task& t) {
  const Scales scales(t.group);
  int64_t column = t.first_column;
  for (; column + kColumns <= t.last_column; column += kColumns) columns<kVnni, kColumns>(t, column, scales);
  for (; column < t.last_column; ++column) columns<kVnni, 1>(t, column, scales);
}

void multiply(const Task& t) { t.vnni&& HWY_TARGET <= HWY_AVX3 ? multiply_as<true>(t) : multiply_as<false>(t); }

#endif  // GALLEY_QUANTIZED_VECTORS

}  // namespace HWY_NAMESPACE
}  // namespace galley::int4
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley {
namespace int4 {
HWY_EXPORT(multiply);
HWY_EXPORT(round_row);
void round(const float* x, int64_t depth, int64_t padded, const RoundedRow& row) { HWY_DYNAMIC_DISPATCH(round_row)(x, depth, padded, row); }
void run(const Task& task) { HWY_DYNAMIC_DISPATCH(multiply)(task); }
}  // namespace int4

namespace {

class WeightOnlyInt4 : public PreparedKernel {
 public:
  explicit WeightOnlyInt4(const KernelQuery& q)
      : depth_(q.in(0).shape[-1]), columns_(q.in(1).shape[0]), rows_(q.in(0).elements() / depth_), bytes_(q.in(1).shape[1]) {
    const auto& a = q.attrs<WeightOnlyLinearAttrs>();
    activation_ = a.activation;
    groups_ = a.group_size > 0 ? q.in(2).shape[1] : 1;
    group_ = a.group_size > 0 ? a.group_size / 2 : (bytes_ + int4::kPadding - 1) / int4::kPadding * int4::kPadding;
    padded_ = (bytes_ + int4::kPadding - 1) / int4::kPadding * int4::kPadding;
    vnni_ = quantized::offers(quantized::Path::kVnni);
  }
  int64_t scratch_bytes() const override { return rows_ * int4::kRowBytes * padded_; }
  void run(Stream&, const KernelArgs& args) const override {
    auto* memory = static_cast<char*>(args.scratch);
    for (int64_t row = 0; row < rows_; ++row)
      int4::round(args.in<float>(0) + row * depth_, depth_, padded_, int4::row_at(memory, padded_, row));
    const int4::Task task{.x = memory,
                          .weight = args.in<uint8_t>(1),
                          .scale = args.in<float>(2),
                          .bias = args.in<float>(4),
                          .y = args.out<float>(0),
                          .rows = rows_,
                          .columns = columns_,
                          .bytes = bytes_,
                          .padded = padded_,
                          .group = group_,
                          .groups = groups_,
                          .first_column = 0,
                          .last_column = 0,
                          .vnni = vnni_};
    parallel_for(columns_, 16, [&](int64_t begin, int64_t end) {
      int4::Task part = task;
      part.first_column = begin;
      part.last_column = end;
      int4::run(part);
      for (int64_t row = 0; row < rows_; ++row) activate(activation_, task.y + row * columns_ + begin, end - begin);
    });
  }

 private:
  int64_t depth_, columns_, rows_, bytes_, padded_ = 0, group_ = 0, groups_ = 1;
  bool vnni_ = false;
  Activation activation_ = Activation::kNone;
};

Support supports(const KernelQuery& q) {
  const auto& a = q.attrs<WeightOnlyLinearAttrs>();
  if (!a.rounded) return Support::no("the activations are not rounded");
  if (a.bits != 4) return Support::no("made for weights of 4 bits");
  if (!quantized::available()) return Support::no("made for vectors of 128 bits or more");
  for (const TensorType* type : {&q.in(0), &q.in(1), &q.out(0)}) {
    if (type->elements() == 0) return Support::no("empty array");
    if (!type->format.is_contiguous()) return Support::no(cat("format ", type->format));
  }
  if (q.has(4) && q.in(4).dtype != DType::kF32) return Support::no("bias dtype");
  const int64_t rows = q.in(0).elements() / q.in(0).shape[-1], most = conv_threshold::kWeightOnlyRows.value;
  if (rows > most) return Support::no(cat(rows, " rows: made for at most ", most));
  return Support::yes();
}

}  // namespace

const Algorithm algorithm::kWeightOnlyInt4{supports, prepare_as<WeightOnlyInt4>};

}  // namespace galley

#endif  // HWY_ONCE
