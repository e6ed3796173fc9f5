// Group normalization, contiguous or channels_last: moments of each channel of a sample (in channels_last of
// fixed blocks of its pixels), combined over the group in one order, then an affine map of each channel. It reads x twice and writes y;
// bound by memory. The bits do not depend on the threads.

#include <algorithm>
#include <array>
#include <cmath>

#include "libcore/backends/cpu/planes.h"
#include "libcore/backends/cpu/table.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/norm.h"

namespace galley {
namespace {

/// How x is cut: tasks are planes where they are contiguous, else blocks of a sample's pixels with all channels.
struct Cut {
  Cut(const TensorType& x, int64_t group_count)
      : batch(x.shape[0]), channels(x.shape[1]), pixels(x.elements() / (x.shape[0] * x.shape[1])), groups(group_count) {
    rows = x.format.is_channels_last() || x.shape.rank() == 2;
    if (rows) blocks = std::clamp<int64_t>(pixels * channels / 16384, 1, std::min<int64_t>(64, pixels));
  }
  int64_t batch, channels, pixels, groups;
  bool rows = false;
  int64_t blocks = 1;
  int64_t width() const { return channels / groups; }
  int64_t first(int64_t block) const {
    return width_of_line > 0 ? pixels / width_of_line * block / blocks * width_of_line : pixels * block / blocks;
  }
  /// Statistics of (sample, block, channel).
  int64_t entries() const { return batch * blocks * channels; }
  /// With extents, blocks are whole lines of an image.
  void set_lines(int64_t lines) {
    if (rows) blocks = std::clamp<int64_t>(blocks, 1, lines);
    width_of_line = pixels / lines;
  }
  int64_t width_of_line = 0;

  /// Calls row_task(sample, index of its first entry, offset in x, rows), or plane_task(entry, offset in x).
  template <class RowTask, class PlaneTask>
  void for_each(RowTask row_task, PlaneTask plane_task) const {
    if (rows) {
      parallel_for(batch * blocks, std::max<int64_t>(1, 16384 * blocks / (pixels * channels)), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t n = i / blocks, from = first(i % blocks);
          row_task(n, i * channels, (n * pixels + from) * channels, first(i % blocks + 1) - from);
        }
      });
      return;
    }
    parallel_for(batch * channels, std::max<int64_t>(1, 16384 / pixels), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) plane_task(i, i * pixels);
    });
  }
};

double value_or(const float* values, int64_t i, double otherwise) { return values != nullptr ? static_cast<double>(values[i]) : otherwise; }

class GroupNormForward : public PreparedKernel {
 public:
  explicit GroupNormForward(const KernelQuery& q) : cut_(q.in(0), q.attrs<GroupNormAttrs>().groups), eps_(q.attrs<GroupNormAttrs>().eps) {
    if (q.has(3)) cut_.set_lines(q.in(0).shape[2]);
  }
  int64_t scratch_bytes() const override {
    const int64_t lines = cut_.rows && cut_.width_of_line > 0 ? cut_.batch * cut_.blocks * cut_.channels : 0;  // moments of a line
    return (cut_.entries() + lines) * static_cast<int64_t>(sizeof(Moments)) + cut_.batch * cut_.channels * 8;
  }
  void run(Stream&, const KernelArgs& args) const override {
    const Cut& cut = cut_;
    const float* x = args.in<float>(0);
    float* y = args.out<float>(0);
    auto* moments = static_cast<Moments*>(args.scratch);
    auto* scale = reinterpret_cast<float*>(moments + cut.entries());  // [sample, channel]
    float* shift = scale + cut.batch * cut.channels;
    const int64_t* extents = args.in<int64_t>(3);
    auto* lines = reinterpret_cast<Moments*>(shift + cut.batch * cut.channels);
    cut.for_each(
        [&](int64_t n, int64_t entry, int64_t at, int64_t rows) {
          if (extents == nullptr) return row_moments(x + at, rows, cut.channels, moments + entry);
          lines_inside({x + at, at / cut.channels - n * cut.pixels, rows}, extents + 2 * n, lines + entry, moments + entry);
        },
        [&](int64_t entry, int64_t at) {
          if (extents == nullptr) {
            moments[entry] = plane_moments(x + at, cut.pixels);
          } else {
            moments[entry] = plane_inside(x + at, extents + entry / cut.channels * 2);
          }
        });
    parallel_for(cut.batch * cut.groups, std::max<int64_t>(1, 4096 / (cut.width() * cut.blocks)), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t n = i / cut.groups, from = i % cut.groups * cut.width();
        Moments total;
        for (int64_t b = 0; b < cut.blocks; ++b) {
          for (int64_t c = from; c < from + cut.width(); ++c) total.add(moments[(n * cut.blocks + b) * cut.channels + c]);
        }
        const double rstd = 1 / std::sqrt(total.m2 / std::max(total.count, 1.0) + eps_);
        args.out<float>(1)[i] = static_cast<float>(total.mean);
        args.out<float>(2)[i] = static_cast<float>(rstd);
        for (int64_t c = from; c < from + cut.width(); ++c) {
          const double s = value_or(args.in<float>(1), c, 1) * rstd;
          scale[n * cut.channels + c] = static_cast<float>(s);
          shift[n * cut.channels + c] = static_cast<float>(value_or(args.in<float>(2), c, 0) - total.mean * s);
        }
      }
    });
    cut.for_each([&](int64_t n, int64_t, int64_t at,
                     int64_t rows) { row_affine(x + at, y + at, rows, cut.channels, scale + n * cut.channels, shift + n * cut.channels); },
                 [&](int64_t entry, int64_t at) {
                   plane_affine(x + at, nullptr, y + at, cut.pixels, scale[entry], shift[entry], Activation::kNone);
                 });
  }

 private:
  /// Pixels from number `first` of a sample on, whole lines.
  struct Block {
    const float* x;
    int64_t first, pixels;
  };
  /// Moments of each channel of the pixels inside the extents.
  void lines_inside(const Block& block, const int64_t* extents, Moments* line, Moments* out) const {
    const int64_t width = cut_.width_of_line, begin = block.first / width;
    const int64_t rows = std::clamp<int64_t>(extents[0] - begin, 0, block.pixels / width), columns = std::min(extents[1], width);
    if (columns == width && rows > 0) return row_moments(block.x, rows * width, cut_.channels, out);
    std::fill_n(out, cut_.channels, Moments());
    for (int64_t r = 0; r < rows && columns > 0; ++r) {
      row_moments(block.x + r * width * cut_.channels, columns, cut_.channels, line);
      for (int64_t c = 0; c < cut_.channels; ++c) out[c].add(line[c]);
    }
  }
  Moments plane_inside(const float* x, const int64_t* extents) const {
    const int64_t width = cut_.width_of_line, rows = std::min(extents[0], cut_.pixels / width), columns = std::min(extents[1], width);
    if (columns == width && rows > 0) return plane_moments(x, rows * width);
    Moments total;
    for (int64_t r = 0; r < rows && columns > 0; ++r) total.add(plane_moments(x + r * width, columns));
    return total;
  }

  Cut cut_;
  double eps_;
};

class GroupNormBackward : public PreparedKernel {
 public:
  explicit GroupNormBackward(const KernelQuery& q) : cut_(q.in(1), q.attrs<GroupNormBackwardAttrs>().groups) {}
  int64_t scratch_bytes() const override {
    return cut_.entries() * static_cast<int64_t>(sizeof(GradientSums)) + cut_.batch * cut_.channels * 16;
  }
  void run(Stream&, const KernelArgs& args) const override {
    const Cut& cut = cut_;
    const float *grad = args.in<float>(0), *x = args.in<float>(1), *group_mean = args.in<float>(2), *rstd = args.in<float>(3),
                *gamma = args.in<float>(4);
    float* dx = args.out<float>(0);
    auto* sums = static_cast<GradientSums*>(args.scratch);
    const int64_t planes = cut.batch * cut.channels;
    auto* mean = reinterpret_cast<float*>(sums + cut.entries());  // these four are [sample, channel]
    float *a = mean + planes, *b = a + planes, *offset = b + planes;
    for (int64_t i = 0; i < planes; ++i) mean[i] = group_mean[i / cut.width()];
    cut.for_each([&](int64_t n, int64_t entry, int64_t at,
                     int64_t rows) { row_gradient_sums(grad + at, x + at, rows, cut.channels, mean + n * cut.channels, sums + entry); },
                 [&](int64_t entry, int64_t at) { sums[entry] = plane_gradient_sums(grad + at, x + at, cut.pixels, mean[entry], {}); });
    for (int64_t n = 0; n < cut.batch; ++n) {  // blocks together, in the first one's place
      GradientSums* total = sums + n * cut.blocks * cut.channels;
      for (int64_t i = cut.channels; i < cut.blocks * cut.channels; ++i) {
        total[i % cut.channels].sum += total[i].sum;
        total[i % cut.channels].dot += total[i].dot;
      }
    }
    const auto count = static_cast<double>(cut.width() * cut.pixels);
    for (int64_t i = 0; i < cut.batch * cut.groups; ++i) {
      const int64_t n = i / cut.groups, from = i % cut.groups * cut.width();
      const double r = static_cast<double>(rstd[i]);
      double sum = 0, dot = 0;
      for (int64_t c = from; c < from + cut.width(); ++c) {
        const GradientSums& s = sums[n * cut.blocks * cut.channels + c];
        sum += value_or(gamma, c, 1) * s.sum;
        dot += value_or(gamma, c, 1) * s.dot * r;
      }
      for (int64_t c = from; c < from + cut.width(); ++c) {
        const int64_t at = n * cut.channels + c;
        a[at] = static_cast<float>(value_or(gamma, c, 1) * r);
        b[at] = static_cast<float>(-r * r * dot / count);
        offset[at] = static_cast<float>(-r * sum / count);
      }
    }
    for (int64_t c = 0; c < cut.channels; ++c) {
      double dgamma = 0, dbeta = 0;
      for (int64_t n = 0; n < cut.batch; ++n) {
        const GradientSums& s = sums[n * cut.blocks * cut.channels + c];
        dgamma += s.dot * static_cast<double>(rstd[n * cut.groups + c / cut.width()]);
        dbeta += s.sum;
      }
      args.out<float>(1)[c] = static_cast<float>(dgamma);
      args.out<float>(2)[c] = static_cast<float>(dbeta);
    }
    cut.for_each(
        [&](int64_t n, int64_t, int64_t at, int64_t rows) {
          const int64_t c = n * cut.channels;
          row_gradient(grad + at, x + at, dx + at, rows, cut.channels, mean + c, a + c, b + c, offset + c);
        },
        [&](int64_t entry, int64_t at) {
          plane_gradient(grad + at, x + at, dx + at, nullptr, cut.pixels, {mean[entry], a[entry], b[entry], offset[entry]}, {});
        });
  }

 private:
  Cut cut_;
};

Support supports(const KernelQuery& q) {
  for (const TensorType* type : q.context.inputs) {
    if (type == nullptr || type->dtype == DType::kI64) continue;  // extents
    if (type->dtype != DType::kF32) return Support::no(cat("dtype ", type->dtype));
    if (type->format.is_blocked()) return Support::no(cat("format ", type->format));
    if (type->elements() == 0) return Support::no("empty array");
  }
  if (!(q.in(0).format == q.out(0).format)) return Support::no("output in another format");
  return Support::yes();
}

/// The gradient with extents is that of its definition.
Support supports_backward(const KernelQuery& q) {
  if (q.has(5)) return Support::no("extents");
  return supports(q);
}

template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<T>(q);
}

const std::array<Kernel, 2> kKernels{{{"group_norm", "channel_moments", supports, prepare<GroupNormForward>},
                                      {"group_norm_backward", "channel_moments", supports_backward, prepare<GroupNormBackward>}}};

}  // namespace

std::span<const Kernel> cpu_group_norm() { return kKernels; }

}  // namespace galley
