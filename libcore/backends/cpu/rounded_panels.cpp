// int8_panels_gemm: matrix products of many rows of activations that are rounded to 8 bits with weights that are stored as integers of 8
// or 4 bits, for prompts of quantized language models. 2 rows columns depth operations; bound by the products, of which vpdpbusd computes
// four times as many as a float instruction.
//
// Each kRoundedGroup values of x become integers with a scale. A task takes some panels of 16 columns and packs their integers once, made
// unsigned by adding 128, as vpdpbusd needs: [quads of the depth][16][4]. What this adds to a sum, 128 times the sum of the integers of x,
// is known beforehand, and the sum of a group starts with its negative. A register tile is 6 rows by 2 panels; the sum of a group becomes a
// float and is multiplied by the scale of x, and by those of the weights where they have groups, else at the end.
//
// Each element is summed in one order in every tile, so the bits depend neither on the threads nor on the other rows.

#include "libcore/backends/cpu/rounded_panels.h"

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/rounded_panels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/quantized_epilogue-inl.h"

#ifndef GALLEY_ROUNDED_PANELS_ONCE
#define GALLEY_ROUNDED_PANELS_ONCE

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "libcore/backends/cpu/activate.h"
#include "libcore/backends/cpu/conv_thresholds.h"
#include "libcore/backends/cpu/quantized_paths.h"
#include "libcore/backends/weight_only.h"
#include "libcore/base/parallel.h"

namespace galley::rounded_panels {

constexpr int64_t kColumns = 16;               // of a panel
constexpr int64_t kQuads = kRoundedGroup / 4;  // of a group

/// A group of a rounded row. The last one is filled up with zeros.
struct Group {
  int8_t code[kRoundedGroup];
  int32_t start;  // of its sum
  float scale;
};

/// An even number of packed panels, times all rows.
struct Task {
  const Group* x;  // [rows][groups]
  int64_t rows, groups, panels, columns;
  const uint8_t* weight;  // [panels][groups][kQuads][kColumns][4]
  const float* scale;     // [panels][scales][kColumns]
  int64_t scales, per;    // per: groups of x that share a scale of the weights, where these have several
  const float* bias;      // [panels][kColumns]
  float* y;
  int64_t y_step;
};

}  // namespace galley::rounded_panels

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::rounded_panels {
namespace HWY_NAMESPACE {

#if HWY_TARGET > HWY_AVX3
void round_row(const float*, int64_t, Group*) {}  // never called: supports
void multiply(const Task&) {}
#else

namespace hn = hwy::HWY_NAMESPACE;
using quantized::HWY_NAMESPACE::D32;
using quantized::HWY_NAMESPACE::DF;
using quantized::HWY_NAMESPACE::DI8;
using quantized::HWY_NAMESPACE::dot_quads;
using quantized::HWY_NAMESPACE::DU8;
using quantized::HWY_NAMESPACE::V32;
using VF = hn::Vec<DF>;

HWY_INLINE void round_group(const float* from, Group& to) {
  const DF d;
  const hn::Rebind<int8_t, D32> code;
  const VF a = hn::LoadU(d, from), b = hn::LoadU(d, from + kColumns);
  const float largest = hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Abs(a), hn::Abs(b))));
  // NaN if a value is not finite.
  const bool finite = hn::GetLane(hn::SumOfLanes(d, hn::MulAdd(a, hn::Zero(d), hn::Mul(b, hn::Zero(d))))) == 0;
  const auto inverse = hn::Set(d, finite && largest > 0 ? 127.0f / largest : 0.0f);
  const V32 first = hn::NearestInt(finite ? hn::Mul(a, inverse) : hn::Zero(d)),
            second = hn::NearestInt(finite ? hn::Mul(b, inverse) : hn::Zero(d));
  hn::StoreU(hn::DemoteTo(code, first), code, to.code);
  hn::StoreU(hn::DemoteTo(code, second), code, to.code + kColumns);
  to.start = -128 * hn::GetLane(hn::SumOfLanes(D32(), hn::Add(first, second)));
  to.scale = finite ? largest / 127.0f : std::numeric_limits<float>::quiet_NaN();
}

/// Rounds `depth` values to groups.
void round_row(const float* from, int64_t depth, Group* to) {
  for (; depth >= kRoundedGroup; depth -= kRoundedGroup, from += kRoundedGroup) round_group(from, *to++);
  if (depth <= 0) return;
  float rest[kRoundedGroup] = {};
  std::copy_n(from, depth, rest);
  round_group(rest, *to);
}

/// kRows rows by two panels, as nested members: GCC 12 would keep arrays of vectors in memory.
template <int kRows>
struct Tile {
  const Group* x;
  V32 part[2];  // of the group
  VF sum[2];
  Tile<kRows - 1> below;

  HWY_INLINE void begin(const Group* row, int64_t groups) {
    x = row;
    sum[0] = sum[1] = hn::Zero(DF());
    below.begin(row + groups, groups);
  }
  HWY_INLINE void begin_group() {
    part[0] = part[1] = hn::Set(D32(), x->start);
    below.begin_group();
  }
  HWY_INLINE void add(int64_t quad, hn::Vec<DU8> first, hn::Vec<DU8> second) {
    int32_t four;
    std::memcpy(&four, x->code + 4 * quad, sizeof four);
    const auto values = hn::BitCast(DI8(), hn::Set(D32(), four));
    part[0] = dot_quads(first, values, part[0]);
    part[1] = dot_quads(second, values, part[1]);
    below.add(quad, first, second);
  }
  /// The scales of the weights of both panels, where these have groups.
  template <bool kGrouped>
  HWY_INLINE void end_group(VF first, VF second) {
    const VF factor = hn::Set(DF(), x->scale);
    ++x;
    sum[0] = hn::MulAdd(hn::ConvertTo(DF(), part[0]), kGrouped ? hn::Mul(factor, first) : factor, sum[0]);
    sum[1] = hn::MulAdd(hn::ConvertTo(DF(), part[1]), kGrouped ? hn::Mul(factor, second) : factor, sum[1]);
    below.template end_group<kGrouped>(first, second);
  }
  /// Scales the sums, adds the bias and stores `count` columns of each row.
  HWY_INLINE void store(VF first, VF second, const float* bias, float* y, int64_t step, int64_t count) const {
    HWY_ALIGN float result[2 * kColumns];
    hn::Store(hn::MulAdd(sum[0], first, hn::LoadU(DF(), bias)), DF(), result);
    hn::Store(hn::MulAdd(sum[1], second, hn::LoadU(DF(), bias + kColumns)), DF(), result + kColumns);
    std::copy_n(result, count, y);
    below.store(first, second, bias, y + step, step, count);
  }
};
template <>
struct Tile<0> {
  HWY_INLINE void begin(const Group*, int64_t) {}
  HWY_INLINE void begin_group() {}
  HWY_INLINE void add(int64_t, hn::Vec<DU8>, hn::Vec<DU8>) {}
  template <bool kGrouped>
  HWY_INLINE void end_group(VF, VF) {}
  HWY_INLINE void store(VF, VF, const float*, float*, int64_t, int64_t) const {}
};

/// kRows rows by two panels. kGrouped: weights have several scales.
template <int kRows, bool kGrouped>
HWY_NOINLINE void multiply_tile(const Task& t, int64_t row, int64_t panel) {
  const DF df;
  const int64_t step = t.groups * kRoundedGroup * kColumns, second = t.scales * kColumns;
  const uint8_t* weight = t.weight + panel * step;
  const float* scale = t.scale + panel * second;
  Tile<kRows> tile;
  tile.begin(t.x + row * t.groups, t.groups);
  for (int64_t g = 0; g < t.groups; ++g, weight += kRoundedGroup * kColumns) {
    tile.begin_group();
#pragma GCC unroll 8
    for (int64_t q = 0; q < kQuads; ++q)
      tile.add(q, hn::LoadU(DU8(), weight + q * 4 * kColumns), hn::LoadU(DU8(), weight + q * 4 * kColumns + step));
    const float* of_group = scale + (kGrouped ? g / t.per * kColumns : 0);
    tile.template end_group<kGrouped>(hn::LoadU(df, of_group), hn::LoadU(df, of_group + second));
  }
  const VF one = hn::Set(df, 1.0f);
  tile.store(kGrouped ? one : hn::LoadU(df, scale), kGrouped ? one : hn::LoadU(df, scale + second), t.bias + panel * kColumns,
             t.y + row * t.y_step + panel * kColumns, t.y_step, std::min(2 * kColumns, t.columns - panel * kColumns));
}

template <bool kGrouped>
void multiply_as(const Task& t) {
  constexpr int64_t kTall = 6;
  for (int64_t panel = 0; panel < t.panels; panel += 2) {
    int64_t row = 0;
    for (; row + kTall <= t.rows; row += kTall) multiply_tile<kTall, kGrouped>(t, row, panel);
    if (t.rows - row >= 3) multiply_tile<3, kGrouped>(t, std::exchange(row, row + 3), panel);
    for (; row < t.rows; ++row) multiply_tile<1, kGrouped>(t, row, panel);
  }
}

void multiply(const Task& t) { t.scales > 1 ? multiply_as<true>(t) : multiply_as<false>(t); }

#endif  // HWY_TARGET > HWY_AVX3

}  // namespace HWY_NAMESPACE
}  // namespace galley::rounded_panels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley {
namespace rounded_panels {
HWY_EXPORT(multiply);
HWY_EXPORT(round_row);
void run(const Task& task) { HWY_DYNAMIC_DISPATCH(multiply)(task); }
void round(const float* from, int64_t depth, Group* to) { HWY_DYNAMIC_DISPATCH(round_row)(from, depth, to); }
}  // namespace rounded_panels

namespace {

using rounded_panels::Group;
using rounded_panels::kColumns;

/// Four weights of 8 bits, or of two bytes of two each, plus 128.
uint32_t unsigned_bytes(uint32_t four) { return four ^ 0x80808080u; }
uint32_t unsigned_halves(uint32_t two) {
  const uint32_t halves = (two & 0xFu) | (two & 0xF0u) << 4 | (two & 0xF00u) << 8 | (two & 0xF000u) << 12;
  return (halves ^ 0x08080808u) + 0x78787878u;  // a half h is (h ^ 8) - 8
}

class RoundedPanels : public PreparedKernel {
 public:
  explicit RoundedPanels(const KernelQuery& q)
      : depth_(q.in(0).shape[-1]),
        columns_(q.in(1).shape[0]),
        rows_(q.in(0).elements() / depth_),
        bytes_(q.in(1).shape[1]),
        groups_((depth_ + kRoundedGroup - 1) / kRoundedGroup) {
    const auto& a = q.attrs<WeightOnlyLinearAttrs>();
    halves_ = a.bits == 4;
    activation_ = a.activation;
    scales_ = a.group_size > 0 ? q.in(2).shape[1] : 1;
    per_ = a.group_size / kRoundedGroup;
    tasks_ = (columns_ + kTaken * kColumns - 1) / (kTaken * kColumns);
    slots_ = std::min<int64_t>(q.threads, tasks_);
    bias_ = tasks_ * kTaken * kColumns * 4;
    rows_at_ = bias_;
    slots_at_ = rows_at_ + aligned(rows_ * groups_ * static_cast<int64_t>(sizeof(Group)));
    slot_bytes_ = kTaken * kColumns * (groups_ * kRoundedGroup + aligned(scales_ * 4));
  }
  int64_t scratch_bytes() const override { return slots_at_ + slots_ * slot_bytes_; }

  void run(Stream&, const KernelArgs& args) const override {
    auto* memory = static_cast<std::byte*>(args.scratch);
    auto* bias = reinterpret_cast<float*>(memory);
    std::fill_n(bias, bias_ / 4, 0.0f);
    if (const auto* given = args.in<float>(4)) std::copy_n(given, columns_, bias);
    auto* x = reinterpret_cast<Group*>(memory + rows_at_);
    parallel_for(rows_, 8, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) rounded_panels::round(args.in<float>(0) + row * depth_, depth_, x + row * groups_);
    });
    parallel_tasks(tasks_, slots_, [&](int64_t task, int64_t slot) {
      run_task(args, task * kTaken * kColumns, x, bias, memory + slots_at_ + slot * slot_bytes_);
    });
  }

 private:
  static constexpr int64_t kTaken = 4;  // panels of a task: 192 KiB at a depth of 3072
  static int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

  void run_task(const KernelArgs& args, int64_t first, const Group* x, const float* bias, std::byte* memory) const {
    const int64_t count = std::min(kTaken * kColumns, columns_ - first);
    auto* weight = reinterpret_cast<uint8_t*>(memory);
    auto* scale = reinterpret_cast<float*>(memory + kTaken * kColumns * groups_ * kRoundedGroup);
    for (int64_t c = 0; c < kTaken * kColumns; ++c) {
      const int64_t panel = c / kColumns, column = c % kColumns;
      const uint8_t* from = c < count ? args.in<uint8_t>(1) + (first + c) * bytes_ : nullptr;
      uint8_t* to = weight + panel * groups_ * kRoundedGroup * kColumns + column * 4;
      halves_ ? pack<true>(from, to) : pack<false>(from, to);
      for (int64_t s = 0; s < scales_; ++s)
        scale[(panel * scales_ + s) * kColumns + column] = c < count ? args.in<float>(2)[(first + c) * scales_ + s] : 0.0f;
    }
    const rounded_panels::Task task{.x = x,
                                    .rows = rows_,
                                    .groups = groups_,
                                    .panels = (count + kColumns - 1) / kColumns,
                                    .columns = count,
                                    .weight = weight,
                                    .scale = scale,
                                    .scales = scales_,
                                    .per = per_,
                                    .bias = bias + first,
                                    .y = args.out<float>(0) + first,
                                    .y_step = columns_};
    rounded_panels::run(task);
    if (activation_ == Activation::kNone) return;
    for (int64_t row = 0; row < rows_; ++row) activate(activation_, task.y + row * columns_, count);
  }

  /// A column's integers, to every kColumns-th group of four bytes. nullptr: none.
  template <bool kHalves>
  void pack(const uint8_t* from, uint8_t* to) const {
    constexpr int64_t kBytes = kHalves ? 2 : 4;
    const auto store = [](uint32_t four, uint8_t* at) {
      four = kHalves ? unsigned_halves(four) : unsigned_bytes(four);
      std::memcpy(at, &four, sizeof four);
    };
    const int64_t quads = groups_ * rounded_panels::kQuads, whole = from == nullptr ? 0 : bytes_ / kBytes;
    for (int64_t q = 0; q < whole; ++q) {
      uint32_t four = 0;
      std::memcpy(&four, from + q * kBytes, kBytes);
      store(four, to + q * 4 * kColumns);
    }
    for (int64_t q = whole; q < quads; ++q) {
      uint32_t four = 0;
      if (from != nullptr && q * kBytes < bytes_) std::memcpy(&four, from + q * kBytes, static_cast<size_t>(bytes_ - q * kBytes));
      store(four, to + q * 4 * kColumns);
    }
  }

  int64_t depth_, columns_, rows_, bytes_, groups_;
  int64_t scales_ = 1, per_ = 0, tasks_ = 0, slots_ = 0;
  int64_t bias_ = 0, rows_at_ = 0, slots_at_ = 0, slot_bytes_ = 0;  // bytes of the scratch memory
  bool halves_ = false;
  Activation activation_ = Activation::kNone;
};

Support supports(const KernelQuery& q) {
  if (!q.attrs<WeightOnlyLinearAttrs>().rounded) return Support::no("the activations are not rounded");
  if ((hwy::SupportedTargets() & HWY_AVX3) == 0 || !quantized::offers(quantized::Path::kVnni)) return Support::no("made for VNNI");
  for (const TensorType* type : {&q.in(0), &q.in(1), &q.out(0)}) {
    if (type->elements() == 0) return Support::no("empty array");
    if (!type->format.is_contiguous()) return Support::no(cat("format ", type->format));
  }
  if (q.has(4) && q.in(4).dtype != DType::kF32) return Support::no("bias dtype");
  const int64_t rows = q.in(0).elements() / q.in(0).shape[-1], most = conv_threshold::kWeightOnlyRows.value;
  if (rows <= most) return Support::no(cat(rows, " rows: made for more than ", most));
  return Support::yes();
}

}  // namespace

const Algorithm algorithm::kRoundedPanels{supports, prepare_as<RoundedPanels>};

}  // namespace galley

#endif  // HWY_ONCE
