#include "libcore/ops/shape.h"

#include <algorithm>
#include <cmath>

#include "libcore/backends/axis_view.h"
#include "libcore/backends/ref/memory.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/pixels.h"
#include "libcore/ops/resize.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

void concat_ref(RefCall& call) {
  const int axis = axis_of(call.attrs<ConcatAttrs>().axis, call.context().in(0));
  const AxisView to(call.out().shape, axis);
  int64_t start = 0;
  for (size_t x = 0; x < call.input_count(); ++x) {
    const AxisView from(call.in(x).shape, axis);
    for (int64_t o = 0; o < from.outer; ++o) {
      for (int64_t s = 0; s < from.size; ++s) {
        for (int64_t i = 0; i < from.inner; ++i) call.out()[to.at(o, start + s, i)] = call.in(x)[from.at(o, s, i)];
      }
    }
    start += from.size;
  }
}

/// visit(index in the whole array, index in the cut).
template <class Visit>
void walk_slice(const Shape& whole_shape, const Shape& cut_shape, const SliceAttrs& attrs, int axis, Visit visit) {
  const AxisView whole(whole_shape, axis), cut(cut_shape, axis);
  const int64_t start = attrs.range(whole.size)[0];
  for (int64_t o = 0; o < cut.outer; ++o) {
    for (int64_t s = 0; s < cut.size; ++s) {
      for (int64_t i = 0; i < cut.inner; ++i) visit(whole.at(o, start + s * attrs.step, i), cut.at(o, s, i));
    }
  }
}

void slice_ref(RefCall& call) {
  const auto& attrs = call.attrs<SliceAttrs>();
  walk_slice(call.in(0).shape, call.out().shape, attrs, axis_of(attrs.axis, call.context().in(0)),
             [&](int64_t whole, int64_t cut) { call.out()[cut] = call.in(0)[whole]; });
}

void slice_backward_ref(RefCall& call) {
  const auto& attrs = call.attrs<SliceBackwardAttrs>();
  walk_slice(call.out().shape, call.in(0).shape, attrs.slice(), axis_of(attrs.axis, call.context().in(0)),
             [&](int64_t whole, int64_t cut) { call.out()[whole] = call.in(0)[cut]; });
}

/// The index of element i along each dimension.
Shape unravel(int64_t i, const Shape& shape) {
  Shape index = shape;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    index[d] = i % shape[d];
    i /= shape[d];
  }
  return index;
}

void pad_ref(RefCall& call) {
  const auto& attrs = call.attrs<PadAttrs>();
  std::fill(call.out().v.begin(), call.out().v.end(), attrs.value);
  const Shape strides = call.out().shape.contiguous_strides();
  for (int64_t i = 0; i < call.in(0).shape.elements(); ++i) {
    const Shape index = unravel(i, call.in(0).shape);
    int64_t target = 0;
    for (int d = 0; d < index.rank(); ++d) target += (index[d] + attrs.padding[static_cast<size_t>(2 * d)]) * strides[d];
    call.out()[target] = call.in(0)[i];
  }
}

void permute_ref(RefCall& call) {
  const std::vector<int64_t>& order = call.attrs<PermuteAttrs>().order;
  const Shape strides = call.in(0).shape.contiguous_strides();
  for (int64_t i = 0; i < call.out().shape.elements(); ++i) {
    const Shape index = unravel(i, call.out().shape);
    int64_t source = 0;
    for (int d = 0; d < index.rank(); ++d) source += index[d] * strides[static_cast<int>(order[static_cast<size_t>(d)])];
    call.out()[i] = call.in(0)[source];
  }
}

/// Reshape and reorder keep logical order.
void copy_ref(RefCall& call) { call.out().v = call.in(0).v; }

void cast_ref(RefCall& call) {
  const DType dtype = call.attrs<CastAttrs>().dtype;
  for (int64_t i = 0; i < call.in(0).shape.elements(); ++i) {
    const double x = call.in(0)[i];
    call.out()[i] = is_floating(dtype)        ? x
                    : dtype == DType::kF8E4M3 ? static_cast<double>(rounded_to_f8(static_cast<float>(x)))
                    : dtype == DType::kBool   ? (x != 0 ? 1 : 0)
                                              : std::trunc(x);
  }
}

void reduce_precision_ref(RefCall& call) {
  call.out().v = call.in(0).v;
  round_array(call.attrs<ReducePrecisionAttrs>().dtype, call.out());
}

/// visit(index of the output pixel, index of an input pixel, its weight), for every pixel that an output pixel is made of.
template <class Visit>
void walk_resize(const Shape& in, const Shape& out, ResizeMode mode, bool align_corners, Visit visit) {
  for (int64_t plane = 0; plane < in[0] * in[1]; ++plane) {
    for (int64_t h = 0; h < out[2]; ++h) {
      const ResizeSource row = resize_source(h, in[2], out[2], mode, align_corners);
      for (int64_t w = 0; w < out[3]; ++w) {
        const ResizeSource column = resize_source(w, in[3], out[3], mode, align_corners);
        const int64_t target = (plane * out[2] + h) * out[3] + w;
        const auto source = [&](int64_t y, int64_t x) { return (plane * in[2] + y) * in[3] + x; };
        visit(target, source(row.low, column.low), (1 - row.fraction) * (1 - column.fraction));
        visit(target, source(row.low, column.high), (1 - row.fraction) * column.fraction);
        visit(target, source(row.high, column.low), row.fraction * (1 - column.fraction));
        visit(target, source(row.high, column.high), row.fraction * column.fraction);
      }
    }
  }
}

void resize_ref(RefCall& call) {
  const auto& attrs = call.attrs<ResizeAttrs>();
  walk_resize(call.in(0).shape, call.out().shape, attrs.mode, attrs.align_corners,
              [&](int64_t out, int64_t in, double weight) { call.out()[out] += weight * call.in(0)[in]; });
}

void resize_backward_ref(RefCall& call) {
  const auto& attrs = call.attrs<ResizeBackwardAttrs>();
  walk_resize(call.out().shape, call.in(0).shape, attrs.mode, attrs.align_corners,
              [&](int64_t out, int64_t in, double weight) { call.out()[in] += weight * call.in(0)[out]; });
}

void full_ref(RefCall& call) { std::fill(call.out().v.begin(), call.out().v.end(), call.attrs<FullAttrs>().value); }

/// In f32, as the host's pipeline computes: the result is the same whichever of the two normalizes.
void normalize_pixels_ref(RefCall& call) {
  const auto& attrs = call.attrs<NormalizePixelsAttrs>();
  const Shape& shape = call.in(0).shape;
  const int64_t elements = shape.elements(), channels = shape[1], inner = elements == 0 ? 1 : elements / (shape[0] * channels);
  for (int64_t i = 0; i < elements; ++i) call.out()[i] = normalized_pixel(attrs, i / inner % channels, static_cast<int>(call.in(0)[i]));
}

constexpr RefEntry kEntries[] = {
    {"concat", concat_ref},
    {"slice", slice_ref},
    {"slice_backward", slice_backward_ref},
    {"pad", pad_ref},
    {"permute", permute_ref},
    {"reshape", copy_ref},
    {"cast", cast_ref},
    {"reorder", copy_ref},
    {"reduce_precision", reduce_precision_ref},
    {"resize", resize_ref},
    {"resize_backward", resize_backward_ref},
    {"full", full_ref},
    {"normalize_pixels", normalize_pixels_ref},
};

}  // namespace

std::span<const RefEntry> ref_shape() { return kEntries; }

}  // namespace galley
