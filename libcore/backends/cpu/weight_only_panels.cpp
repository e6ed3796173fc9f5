// dequantized_gemm: matrix products of many rows with weights that are stored as integers of 8 or 4 bits, for prompts of quantized language
// models. 2 rows columns depth operations and a conversion per weight; bound by the products.
//
// A task takes some panels of columns (packed_product.h): it makes floats of their integers, in the form of a packed operand, and
// multiplies all rows by them while they are in the second-level cache. So no float copy of the weights is kept, and their integers are
// read once.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/weight_only_panels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/attention_products-inl.h"

#ifndef GALLEY_WEIGHT_ONLY_PANELS_ONCE
#define GALLEY_WEIGHT_ONLY_PANELS_ONCE

#include <algorithm>

#include "libcore/backends/cpu/activate.h"
#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/conv_thresholds.h"
#include "libcore/backends/cpu/packed_product.h"
#include "libcore/backends/weight_only.h"
#include "libcore/base/parallel.h"

namespace galley::stored_panel {

/// Up to kPanel columns of a weight. An element is a byte: one value, or two of 4 bits.
struct Source {
  const int8_t* weight;  // of the first column: [columns][elements]
  const float* scale;    // [columns][groups]
  const int8_t* zero;    // [columns][groups], or nullptr
  int64_t columns, elements, depth;
  int64_t group, groups;  // group: elements that share a scale
  bool halves;            // 4 bits
};

}  // namespace galley::stored_panel

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::stored_panel {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if !GALLEY_WIDE_TARGET
void unpack(const Source&, float*, float*) {}  // never called: supports
#else

using D = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<D>;
using Bytes = hn::Rebind<int8_t, D>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(D()));

/// Elements [begin, end) of a column, of one group, as floats; `to` is that of element 0.
template <bool kHalves>
HWY_INLINE void unpack_group(const int8_t* weight, int64_t begin, int64_t end, float scale, float zero, float* to) {
  const D d;
  const auto factor = hn::Set(d, scale), offset = hn::Set(d, -zero * scale);
  const auto real = [&](hn::Vec<DI> x) HWY_ATTR { return hn::MulAdd(hn::ConvertTo(d, x), factor, offset); };
  int64_t k = begin;
  for (; k + kLanes <= end; k += kLanes) {
    const auto stored = hn::PromoteTo(DI(), hn::LoadU(Bytes(), weight + k));
    if constexpr (kHalves) {
      hn::StoreInterleaved2(real(hn::ShiftRight<28>(hn::ShiftLeft<28>(stored))), real(hn::ShiftRight<4>(stored)), d, to + 2 * k);
    } else {
      hn::StoreU(real(stored), d, to + k);
    }
  }
  for (; k < end; ++k) {
    if constexpr (kHalves) {
      to[2 * k] = static_cast<float>(static_cast<int8_t>(static_cast<uint8_t>(weight[k]) << 4) >> 4) * scale - zero * scale;
      to[2 * k + 1] = static_cast<float>(weight[k] >> 4) * scale - zero * scale;
    } else {
      to[k] = static_cast<float>(weight[k]) * scale - zero * scale;
    }
  }
}

/// The columns as a panel [depth][kPanel], filled up with zeros. `rows`: memory for kPanel rows of `elements` (halves: twice as many).
void unpack(const Source& s, float* rows, float* panel) {
  const int64_t step = s.halves ? 2 * s.elements : s.elements;
  for (int64_t c = 0; c < s.columns; ++c) {
    const int8_t* weight = s.weight + c * s.elements;
    for (int64_t g = 0; g < s.groups; ++g) {
      const int64_t begin = g * s.group, end = std::min(s.elements, begin + s.group);
      const float scale = s.scale[c * s.groups + g], zero = s.zero == nullptr ? 0.0f : static_cast<float>(s.zero[c * s.groups + g]);
      if (s.halves) {
        unpack_group<true>(weight, begin, end, scale, zero, rows + c * step);
      } else {
        unpack_group<false>(weight, begin, end, scale, zero, rows + c * step);
      }
    }
  }
  std::fill(rows + s.columns * step, rows + kPanel * step, 0.0f);
  attention_tiles::HWY_NAMESPACE::transpose<false>(rows, step, kPanel, s.depth, panel, kPanel);
}

#endif  // GALLEY_WIDE_TARGET

}  // namespace HWY_NAMESPACE
}  // namespace galley::stored_panel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley {
namespace stored_panel {
HWY_EXPORT(unpack);
void make(const Source& source, float* rows, float* panel) { HWY_DYNAMIC_DISPATCH(unpack)(source, rows, panel); }
}  // namespace stored_panel

namespace {

constexpr int64_t kPanels = 4;  // of a task: a multiple of those of a register tile; 1 MiB of floats at a depth of 4096

class WeightOnlyPanels : public PreparedKernel {
 public:
  explicit WeightOnlyPanels(const KernelQuery& q)
      : depth_(q.in(0).shape[-1]), columns_(q.in(1).shape[0]), rows_(q.in(0).elements() / depth_), threads_(q.threads) {
    const auto& a = q.attrs<WeightOnlyLinearAttrs>();
    activation_ = a.activation;
    source_.halves = a.bits == 4;
    source_.elements = q.in(1).shape[1];
    source_.depth = depth_;
    source_.groups = a.group_size > 0 ? q.in(2).shape[1] : 1;
    source_.group = a.group_size > 0 ? a.group_size / (source_.halves ? 2 : 1) : source_.elements;
    row_floats_ = rounded(kPanel * source_.elements * (source_.halves ? 2 : 1));
    panel_floats_ = packed_floats(kPanels * kPanel, depth_);
    tasks_ = (columns_ + kPanels * kPanel - 1) / (kPanels * kPanel);
  }
  int64_t scratch_bytes() const override { return (bias_floats() + slots() * (row_floats_ + panel_floats_)) * 4; }
  void run(Stream&, const KernelArgs& args) const override {
    auto* bias = static_cast<float*>(args.scratch);
    std::fill_n(bias, bias_floats(), 0.0f);
    if (const auto* given = args.in<float>(4)) std::copy_n(given, columns_, bias);
    parallel_tasks(tasks_, slots(), [&](int64_t task, int64_t slot) {
      float* memory = bias + bias_floats() + slot * (row_floats_ + panel_floats_);
      run_task(args, task * kPanels * kPanel, bias, memory);
    });
  }

 private:
  static int64_t rounded(int64_t floats) { return (floats + 15) / 16 * 16; }
  int64_t bias_floats() const { return panels_of(columns_) * kPanel; }
  int64_t slots() const { return std::min<int64_t>(threads_, tasks_); }

  void run_task(const KernelArgs& args, int64_t first, const float* bias, float* memory) const {
    const int64_t count = std::min(kPanels * kPanel, columns_ - first);
    float* panels = memory + row_floats_;
    for (int64_t c = 0; c < count; c += kPanel) {
      stored_panel::Source source = source_;
      source.columns = std::min(kPanel, count - c);
      source.weight = args.in<int8_t>(1) + (first + c) * source.elements;
      source.scale = args.in<float>(2) + (first + c) * source.groups;
      source.zero = args.in<int8_t>(3) == nullptr ? nullptr : args.in<int8_t>(3) + (first + c) * source.groups;
      stored_panel::make(source, memory, panels + c * depth_);
    }
    PackedProduct product{.a = args.in<float>(0), .a_step = depth_, .rows = rows_, .depth = depth_, .packed = panels};
    product.c = args.out<float>(0) + first;
    product.c_step = columns_;
    product.columns = count;
    product.initial = bias + first;
    product.last = panels_of(count);
    multiply_packed(product);
    if (activation_ == Activation::kNone) return;
    for (int64_t row = 0; row < rows_; ++row) activate(activation_, product.c + row * columns_, count);
  }

  int64_t depth_, columns_, rows_;
  int threads_;
  stored_panel::Source source_{};
  int64_t row_floats_ = 0, panel_floats_ = 0, tasks_ = 0;
  Activation activation_ = Activation::kNone;
};

Support supports(const KernelQuery& q) {
  if ((hwy::SupportedTargets() & (HWY_AVX3 | HWY_AVX2)) == 0) return Support::no("made for AVX2 or wider vectors");
  for (const TensorType* type : {&q.in(0), &q.in(1), &q.out(0)}) {
    if (type->elements() == 0) return Support::no("empty array");
    if (!type->format.is_contiguous()) return Support::no(cat("format ", type->format));
  }
  if (q.has(4) && q.in(4).dtype != DType::kF32) return Support::no("bias dtype");
  const auto& a = q.attrs<WeightOnlyLinearAttrs>();
  if (a.rounded) return Support::no("the activations are rounded");
  if (a.bits == 4 && a.group_size % 2 != 0) return Support::no("groups that share bytes");
  return Support::yes();
}

}  // namespace

const Algorithm algorithm::kWeightOnlyPanels{supports, prepare_as<WeightOnlyPanels>};

}  // namespace galley

#endif  // HWY_ONCE
