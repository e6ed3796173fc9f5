// Rotary position embedding: each head of a row by the table's row of its position. Storage f32 or bf16, arithmetic f32. Bound by memory.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/rotary.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/bfloat16-inl.h"

#ifndef GALLEY_ROTARY_ONCE
#define GALLEY_ROTARY_ONCE

#include <algorithm>
#include <array>
#include <cmath>

#include "libcore/backends/cpu/table.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/rotary.h"

namespace galley::rotary_rows {

/// One position: `heads` heads of `width` values, of which `turned` are rotated by a row of the table.
template <class T>
struct Row {
  const T* x;
  T* y;
  const float *cosine, *sine;
  int64_t heads, turned, width, pairs;
  float sign;  // -1: rotate by the negative angle
};

/// (a, b) turned by the angle.
template <class T>
inline void turn_one(const Row<T>& r, int64_t i, const T& left, const T& right, T& to_left, T& to_right) {
  const float a = static_cast<float>(left), b = static_cast<float>(right), c = r.cosine[i], s = r.sine[i] * r.sign;
  to_left = a * c - b * s;
  to_right = b * c + a * s;
}

}  // namespace galley::rotary_rows

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::rotary_rows {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <bool kHalves, class T>
void turn(const Row<T>& r) {
  for (int64_t h = 0; h < r.heads; ++h) {
    const T* x = r.x + h * r.width;
    T* y = r.y + h * r.width;
    const int64_t turned = h < r.turned ? 2 * r.pairs : 0;
    int64_t i = 0;
#if GALLEY_WIDE_TARGET
    using galley::HWY_NAMESPACE::load_floats;
    using galley::HWY_NAMESPACE::store_floats;
    const hn::ScalableTag<float> d;
    constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(d));
    if constexpr (kHalves) {
      const auto sign = hn::Set(d, r.sign);
      for (; turned > 0 && i + kLanes <= r.pairs; i += kLanes) {
        const auto a = load_floats(d, x + i), b = load_floats(d, x + r.pairs + i), c = hn::LoadU(d, r.cosine + i),
                   s = hn::Mul(hn::LoadU(d, r.sine + i), sign);
        store_floats(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, y + i);
        store_floats(hn::MulAdd(a, s, hn::Mul(b, c)), d, y + r.pairs + i);
      }
    }
#endif
    for (; turned > 0 && i < r.pairs; ++i) {
      const int64_t left = kHalves ? i : 2 * i, right = kHalves ? i + r.pairs : 2 * i + 1;
      turn_one(r, i, x[left], x[right], y[left], y[right]);
    }
    if (x != y) std::copy(x + turned, x + r.width, y + turned);
  }
}

void halves_floats(const Row<float>& r) { turn<true>(r); }
void halves_bfloats(const Row<BFloat16>& r) { turn<true>(r); }
void interleaved_floats(const Row<float>& r) { turn<false>(r); }
void interleaved_bfloats(const Row<BFloat16>& r) { turn<false>(r); }

}  // namespace HWY_NAMESPACE
}  // namespace galley::rotary_rows
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley {
namespace rotary_rows {
HWY_EXPORT(halves_floats);
HWY_EXPORT(halves_bfloats);
HWY_EXPORT(interleaved_floats);
HWY_EXPORT(interleaved_bfloats);

void run(bool halves, const Row<float>& r) {
  halves ? HWY_DYNAMIC_DISPATCH(halves_floats)(r) : HWY_DYNAMIC_DISPATCH(interleaved_floats)(r);
}
void run(bool halves, const Row<BFloat16>& r) {
  halves ? HWY_DYNAMIC_DISPATCH(halves_bfloats)(r) : HWY_DYNAMIC_DISPATCH(interleaved_bfloats)(r);
}
}  // namespace rotary_rows

namespace {

template <class T>
class Rotary : public PreparedKernel {
 public:
  explicit Rotary(const KernelQuery& q) : attrs_(q.attrs<RotaryAttrs>()), x_(q.in(0).shape), table_(q.in(1).shape) {}
  void run(Stream&, const KernelArgs& args) const override {
    const int64_t size = x_[2] * x_[3], dims = table_[1];
    const auto* position = args.in<int64_t>(2);
    parallel_for(x_[0] * x_[1], std::max<int64_t>(1, 16384 / size), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t at = row % x_[1] + (position == nullptr ? 0 : position[row / x_[1]]);
        GALLEY_CHECK_INPUT(at >= 0 && at < table_[0], "[rotary] position ", at, " is outside the table of ", table_[0], " positions");
        const float* cosine = args.in<float>(1) + at * dims;
        rotary_rows::run(attrs_.layout == RotaryLayout::kHalves,
                         rotary_rows::Row<T>{args.in<T>(0) + row * size, args.out<T>(0) + row * size, cosine, cosine + dims / 2, x_[2],
                                             attrs_.heads == 0 ? x_[2] : attrs_.heads, x_[3], dims / 2, attrs_.inverse ? -1.0f : 1.0f});
      }
    });
  }

 private:
  RotaryAttrs attrs_;
  Shape x_, table_;
};

Support supports(const KernelQuery& q) {
  const DType dtype = q.in(0).dtype;
  if (dtype != DType::kF32 && dtype != DType::kBF16) return Support::no(cat("dtype ", dtype));
  if (q.in(1).dtype != DType::kF32) return Support::no(cat("table of dtype ", q.in(1).dtype));
  if (!q.in(0).format.is_contiguous() || !q.out(0).format.is_contiguous()) return Support::no(cat("format ", q.in(0).format));
  if (q.in(0).elements() == 0) return Support::no("empty array");
  return Support::yes();
}

std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  if (q.in(0).dtype == DType::kBF16) return std::make_unique<Rotary<BFloat16>>(q);
  return std::make_unique<Rotary<float>>(q);
}

/// Without positions it runs once where the table is at most 1 MiB (passes/hoist_prepare.cpp).
class RotaryTable : public PreparedKernel {
 public:
  explicit RotaryTable(const KernelQuery& q)
      : attrs_(q.attrs<RotaryTableAttrs>()), rows_(q.out(0).shape[0]), sequences_(q.has(1) ? q.in(0).shape[0] : 0), given_(q.has(0)) {}
  void run(Stream&, const KernelArgs& args) const override {
    const auto pairs = static_cast<int64_t>(attrs_.frequencies.size());
    const auto* given = given_ ? args.in<int64_t>(0) : nullptr;
    const auto* lengths = sequences_ > 0 ? args.in<int64_t>(1) : nullptr;
    parallel_for(rows_, std::max<int64_t>(1, 256 / pairs), [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        float* row = args.out<float>(0) + p * 2 * pairs;
        const auto position = static_cast<double>(given == nullptr ? p : given[p]);
        const int64_t length = lengths == nullptr ? 0 : lengths[p / (rows_ / sequences_)];
        for (int64_t i = 0; i < pairs; ++i) {
          const double angle = position * attrs_.frequencies[static_cast<size_t>(i)] * dynamic_stretch(attrs_, length, i);
          row[i] = static_cast<float>(attrs_.factor * std::cos(angle));
          row[pairs + i] = static_cast<float>(attrs_.factor * std::sin(angle));
        }
      }
    });
  }

 private:
  RotaryTableAttrs attrs_;
  int64_t rows_, sequences_;  // sequences_: with lengths
  bool given_;
};

const std::array<Kernel, 2> kKernels{
    {{"rotary", "heads", supports, prepare},
     {"rotary_table", "table", [](const KernelQuery&) { return Support::yes(); },
      [](const KernelQuery& q) -> std::unique_ptr<PreparedKernel> { return std::make_unique<RotaryTable>(q); }}}};

}  // namespace

std::span<const Kernel> cpu_rotary() { return kKernels; }

}  // namespace galley

#endif  // HWY_ONCE
