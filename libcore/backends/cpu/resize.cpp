// Resampling of images and its gradient (nearest, bilinear), contiguous or channels_last. Sources and weights of rows and columns are
// computed once; a line of the output is then blended from two lines of the input. The gradient gathers: each input pixel adds up the
// output pixels that it went into, in one order whatever the threads. channels_last: channels fill the vectors, bound by memory;
// contiguous: bound by the gathers.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/resize.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#ifndef GALLEY_RESIZE_ONCE
#define GALLEY_RESIZE_ONCE

namespace galley::resize_loops {

/// One line of `count` output pixels: the lines of the input above and below it, which columns each pixel lies between, and how far from
/// the first of two.
struct Line {
  const float *top, *bottom;
  const int64_t *low, *high;
  const float* fraction;
  float down;
  int64_t count, depth;
};

/// A line of the output's gradient and how it goes into a line of `width` input pixels: entries first[w] .. first[w + 1] of columns and
/// weights.
struct GradientLine {
  const float* grad;
  const size_t* first;
  const int64_t* out;
  const float* weight;
  float row_weight;
  int64_t width, depth;
};

}  // namespace galley::resize_loops

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::resize_loops {
namespace HWY_NAMESPACE {

/// Pixels of `depth` values from the four around each: one line of the output.
void blend_pixels(Line line, float* out) {
  const int64_t depth = line.depth;
  for (int64_t w = 0; w < line.count; ++w, out += depth) {
    const int64_t left = line.low[w] * depth, right = line.high[w] * depth;
    const float down = line.down, along = line.fraction[w];
    const float wa = (1 - down) * (1 - along), wb = (1 - down) * along, wc = down * (1 - along), wd = down * along;
    const float *a = line.top + left, *b = line.top + right, *c = line.bottom + left, *d = line.bottom + right;
    for (int64_t i = 0; i < depth; ++i) out[i] = (a[i] * wa + b[i] * wb) + (c[i] * wc + d[i] * wd);
  }
}

/// Blends a line of pixels of one value, which the compiler gathers.
void blend_values(Line line, float* out) {
  const float *top = line.top, *bottom = line.bottom, *fraction = line.fraction;
  const int64_t *low = line.low, *high = line.high, count = line.count;
  const float down = line.down;
  for (int64_t w = 0; w < count; ++w) {
    const float f = fraction[w];
    const float above = top[low[w]] * (1 - f) + top[high[w]] * f, below = bottom[low[w]] * (1 - f) + bottom[high[w]] * f;
    out[w] = above * (1 - down) + below * down;
  }
}

/// Adds what a line of the gradient gives to the pixels of a line of the input.
void add_line(GradientLine line, float* dx) {
  const int64_t depth = line.depth;
  for (size_t w = 0; w < static_cast<size_t>(line.width); ++w, dx += depth) {
    for (size_t c = line.first[w]; c < line.first[w + 1]; ++c) {
      const float* grad = line.grad + line.out[c] * depth;
      const float weight = line.row_weight * line.weight[c];
      if (depth == 1) {
        *dx += *grad * weight;
      } else {
        for (int64_t i = 0; i < depth; ++i) dx[i] += grad[i] * weight;
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::resize_loops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <array>
#include <cstring>
#include <vector>

#include "libcore/backends/cpu/strided_copy.h"
#include "libcore/backends/cpu/table.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/resize.h"

namespace galley {
namespace resize_loops {

HWY_EXPORT(blend_pixels);
HWY_EXPORT(blend_values);
HWY_EXPORT(add_line);

}  // namespace resize_loops

namespace {

/// Where the outputs along one axis come from.
struct Sources {
  std::vector<int64_t> low, high;
  std::vector<float> fraction;
  Sources(int64_t in, int64_t out, ResizeMode mode, bool align_corners) {
    for (int64_t o = 0; o < out; ++o) {
      const ResizeSource source = resize_source(o, in, out, mode, align_corners);
      low.push_back(source.low);
      high.push_back(source.high);
      fraction.push_back(static_cast<float>(source.fraction));
    }
  }
};

/// [N,C,H,W] as planes of pixels that hold `depth` values: all channels of a sample, or one.
struct Images {
  Images(const TensorType& in, const TensorType& out)
      : depth(in.format.is_channels_last() ? in.shape[1] : 1), planes(in.shape[0] * in.shape[1] / depth), from(in.shape), to(out.shape) {}
  int64_t depth, planes;
  Shape from, to;
};

/// Nearest: pixels are copied, whatever their dtype.
class CopyPixels : public PreparedKernel {
 public:
  explicit CopyPixels(const KernelQuery& q)
      : images_(q.in(0), q.out(0)),
        pixel_(images_.depth * dtype_size(q.in(0).dtype)),
        rows_(images_.from[2], images_.to[2], ResizeMode::kNearest, false),
        columns_(images_.from[3], images_.to[3], ResizeMode::kNearest, false) {}
  void run(Stream&, const KernelArgs& args) const override {
    const int64_t width = images_.from[3], out_height = images_.to[2], out_width = images_.to[3];
    parallel_for(images_.planes * out_height, std::max<int64_t>(1, 16384 / (out_width * pixel_)), [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const auto h = static_cast<size_t>(line % out_height);
        const std::byte* row = args.in<std::byte>(0) + (line / out_height * images_.from[2] + rows_.low[h]) * width * pixel_;
        std::byte* out = args.out<std::byte>(0) + line * out_width * pixel_;
        for (size_t w = 0; w < static_cast<size_t>(out_width); ++w, out += pixel_) copy_run(out, row + columns_.low[w] * pixel_, pixel_);
      }
    });
  }

 private:
  Images images_;
  int64_t pixel_;  // bytes
  Sources rows_, columns_;
};

class Resize : public PreparedKernel {
 public:
  explicit Resize(const KernelQuery& q)
      : images_(q.in(0), q.out(0)),
        rows_(images_.from[2], images_.to[2], q.attrs<ResizeAttrs>().mode, q.attrs<ResizeAttrs>().align_corners),
        columns_(images_.from[3], images_.to[3], q.attrs<ResizeAttrs>().mode, q.attrs<ResizeAttrs>().align_corners) {}
  void run(Stream&, const KernelArgs& args) const override {
    const int64_t depth = images_.depth, width = images_.from[3], out_height = images_.to[2], out_width = images_.to[3];
    parallel_for(images_.planes * out_height, std::max<int64_t>(1, 4096 / (out_width * depth)), [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const auto h = static_cast<size_t>(line % out_height);
        const float* plane = args.in<float>(0) + line / out_height * images_.from[2] * width * depth;
        const float *top = plane + rows_.low[h] * width * depth, *bottom = plane + rows_.high[h] * width * depth;
        float* out = args.out<float>(0) + line * out_width * depth;
        const resize_loops::Line blended{.top = top,
                                         .bottom = bottom,
                                         .low = columns_.low.data(),
                                         .high = columns_.high.data(),
                                         .fraction = columns_.fraction.data(),
                                         .down = rows_.fraction[h],
                                         .count = out_width,
                                         .depth = depth};
        if (depth == 1) {
          HWY_DYNAMIC_DISPATCH(resize_loops::blend_values)(blended, out);
        } else {
          HWY_DYNAMIC_DISPATCH(resize_loops::blend_pixels)(blended, out);
        }
      }
    });
  }

 private:
  Images images_;
  Sources rows_, columns_;
};

/// For each input index along an axis, the outputs it went into and with what weight: entries first[i] .. first[i + 1].
struct Targets {
  std::vector<size_t> first{0};
  std::vector<int64_t> out;
  std::vector<float> weight;
  Targets(int64_t in_size, int64_t out_size, ResizeMode mode, bool align_corners) {
    const Sources sources(in_size, out_size, mode, align_corners);
    std::vector<std::vector<std::pair<int64_t, float>>> of(static_cast<size_t>(in_size));
    for (size_t o = 0; o < sources.low.size(); ++o) {
      const float fraction = sources.fraction[o];
      of[static_cast<size_t>(sources.low[o])].emplace_back(static_cast<int64_t>(o), 1 - fraction);
      if (fraction != 0) of[static_cast<size_t>(sources.high[o])].emplace_back(static_cast<int64_t>(o), fraction);
    }
    for (const auto& list : of) {
      for (const auto& [o, w] : list) {
        out.push_back(o);
        weight.push_back(w);
      }
      first.push_back(out.size());
    }
  }
};

class ResizeBackward : public PreparedKernel {
 public:
  explicit ResizeBackward(const KernelQuery& q)
      : images_(q.out(0), q.in(0)),
        rows_(images_.from[2], images_.to[2], q.attrs<ResizeBackwardAttrs>().mode, q.attrs<ResizeBackwardAttrs>().align_corners),
        columns_(images_.from[3], images_.to[3], q.attrs<ResizeBackwardAttrs>().mode, q.attrs<ResizeBackwardAttrs>().align_corners) {}
  void run(Stream&, const KernelArgs& args) const override {
    const int64_t depth = images_.depth, height = images_.from[2], width = images_.from[3], out_width = images_.to[3];
    parallel_for(images_.planes * height, std::max<int64_t>(1, 1024 / (width * depth)), [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const auto h = static_cast<size_t>(line % height);
        const float* grad = args.in<float>(0) + line / height * images_.to[2] * out_width * depth;
        float* dx = args.out<float>(0) + line * width * depth;
        std::memset(dx, 0, static_cast<size_t>(width * depth) * 4);
        for (size_t r = rows_.first[h]; r < rows_.first[h + 1]; ++r) {
          HWY_DYNAMIC_DISPATCH(resize_loops::add_line)
          ({.grad = grad + rows_.out[r] * out_width * depth,
            .first = columns_.first.data(),
            .out = columns_.out.data(),
            .weight = columns_.weight.data(),
            .row_weight = rows_.weight[r],
            .width = width,
            .depth = depth},
           dx);
        }
      }
    });
  }

 private:
  Images images_;
  Targets rows_, columns_;
};

Support supports_formats(const KernelQuery& q) {
  const TensorType& x = q.in(0);
  if (x.format.is_blocked() || !(x.format == q.out(0).format)) return Support::no(cat("format ", x.format));
  if (x.elements() == 0) return Support::no("empty array");
  return Support::yes();
}
Support supports(const KernelQuery& q) {
  if (q.in(0).dtype != DType::kF32) return Support::no(cat("dtype ", q.in(0).dtype));
  return supports_formats(q);
}
Support supports_resize(const KernelQuery& q) {
  return q.attrs<ResizeAttrs>().mode == ResizeMode::kNearest ? supports_formats(q) : supports(q);
}

std::unique_ptr<PreparedKernel> prepare_resize(const KernelQuery& q) {
  if (q.attrs<ResizeAttrs>().mode == ResizeMode::kNearest) return std::make_unique<CopyPixels>(q);
  return std::make_unique<Resize>(q);
}
template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<T>(q);
}

const std::array<Kernel, 2> kKernels{{{"resize", "source_lines", supports_resize, prepare_resize},
                                      {"resize_backward", "gathered_lines", supports, prepare<ResizeBackward>}}};

}  // namespace

std::span<const Kernel> cpu_resize() { return kKernels; }

}  // namespace galley

#endif  // HWY_ONCE
