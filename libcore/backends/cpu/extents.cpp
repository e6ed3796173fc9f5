// Images that are smaller than their arrays (ops/extents.h): the pixels outside of one value, and means of the pixels inside. An array in
// place is written only outside, and not at all where all images fill it. Bound by memory.

#include "libcore/backends/cpu/extents.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/extents.h"
#include "libcore/ops/pool.h"
#include "libcore/tensor/tensor.h"

namespace galley {
namespace {

constexpr int64_t kGrain = 32768;  // bytes that are worth a second thread

int64_t along(const std::vector<int64_t>& list, size_t axis) { return list.size() == 1 ? list[0] : list[axis]; }

/// [N,C,H,W] as planes [rows, columns] of pixels of `depth` values.
struct Planes {
  explicit Planes(const TensorType& x)
      : depth(x.format.is_channels_last() ? x.shape[1] : 1),
        per_sample(x.shape[1] / depth),
        count(x.shape[0] * per_sample),
        rows(x.shape[2]),
        columns(x.shape[3]) {}
  int64_t depth, per_sample, count, rows, columns;
  int64_t rows_inside(const int64_t* extents, int64_t sample) const { return std::clamp<int64_t>(extents[2 * sample], 0, rows); }
  int64_t columns_inside(const int64_t* extents, int64_t sample) const { return std::clamp<int64_t>(extents[2 * sample + 1], 0, columns); }
};

class FillOutside : public PreparedKernel {
 public:
  explicit FillOutside(const KernelQuery& q)
      : planes_(q.in(0)), pixel_(planes_.depth * dtype_size(q.in(0).dtype)), bytes_(q.in(0).bytes()) {
    Tensor one(q.in(0).dtype, {1});
    one.from_doubles({q.attrs<FillOutsideAttrs>().value});
    const auto element = static_cast<size_t>(one.bytes());
    line_.resize(static_cast<size_t>(planes_.columns * pixel_));
    for (size_t i = 0; i < line_.size(); i += element) std::memcpy(line_.data() + i, one.data(), element);
  }
  void run(Stream&, const KernelArgs& args) const override {
    const auto* x = args.in<std::byte>(0);
    auto* y = args.out<std::byte>(0);
    if (x != y) {
      parallel_for(bytes_, kGrain,
                   [&](int64_t begin, int64_t end) { std::memcpy(y + begin, x + begin, static_cast<size_t>(end - begin)); });
    }
    const int64_t* extents = args.in<int64_t>(1);
    const int64_t samples = planes_.count / planes_.per_sample;
    const auto full = [&](int64_t n) {
      return planes_.rows_inside(extents, n) == planes_.rows && planes_.columns_inside(extents, n) == planes_.columns;
    };
    for (int64_t n = 0; n < samples; ++n) {
      if (full(n)) continue;
      const int64_t first = n * planes_.per_sample * planes_.rows, lines = planes_.per_sample * planes_.rows;
      const int64_t least = std::max<int64_t>(1, kGrain / (planes_.columns * pixel_));
      parallel_for(lines, least, [&](int64_t begin, int64_t end) {
        for (int64_t line = begin; line < end; ++line) {
          const int64_t inside = line % planes_.rows < planes_.rows_inside(extents, n) ? planes_.columns_inside(extents, n) : 0;
          std::memcpy(y + ((first + line) * planes_.columns + inside) * pixel_, line_.data(),
                      static_cast<size_t>((planes_.columns - inside) * pixel_));
        }
      });
    }
  }

 private:
  Planes planes_;
  int64_t pixel_, bytes_;  // bytes of a pixel, of the array
  std::vector<std::byte> line_;
};

class ExtentsAfter : public PreparedKernel {
 public:
  explicit ExtentsAfter(const KernelQuery& q) : attrs_(q.attrs<ExtentsAfterAttrs>()), samples_(q.in(0).shape[0]) {}
  void run(Stream&, const KernelArgs& args) const override {
    for (int64_t i = 0; i < 2 * samples_; ++i) {
      const auto axis = static_cast<size_t>(i % 2);
      const int64_t room = args.in<int64_t>(0)[i] * along(attrs_.factor, axis) + 2 * along(attrs_.padding, axis) -
                           along(attrs_.dilation, axis) * (along(attrs_.kernel_size, axis) - 1) - 1;
      args.out<int64_t>(0)[i] = room < 0 ? 0 : room / along(attrs_.stride, axis) + 1;
    }
  }

 private:
  ExtentsAfterAttrs attrs_;
  int64_t samples_;
};

/// Sums of lines in float, of their sums in double: the bits depend on the width of a line, not on threads.
class MeanInside : public PreparedKernel {
 public:
  explicit MeanInside(const KernelQuery& q) : planes_(q.in(0)) {}
  void run(Stream&, const KernelArgs& args) const override {
    const int64_t blocks = (planes_.depth + kBlock - 1) / kBlock;
    const int64_t bytes = planes_.rows * planes_.columns * std::min(planes_.depth, kBlock) * 4;
    parallel_for(planes_.count * blocks, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, bytes)), [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task % blocks * kBlock;
        mean(args, task / blocks, first, std::min(kBlock, planes_.depth - first));
      }
    });
  }

 private:
  static constexpr int64_t kBlock = 64;  // channels of a task

  void mean(const KernelArgs& args, int64_t plane, int64_t first, int64_t channels) const {
    const int64_t* extents = args.in<int64_t>(1);
    const int64_t sample = plane / planes_.per_sample;
    const int64_t rows = planes_.rows_inside(extents, sample), columns = planes_.columns_inside(extents, sample);
    const float* x = args.in<float>(0) + plane * planes_.rows * planes_.columns * planes_.depth + first;
    std::array<double, kBlock> total{};
    for (int64_t r = 0; r < rows; ++r) {
      const float* line = x + r * planes_.columns * planes_.depth;
      if (planes_.depth == 1) {
        total[0] += static_cast<double>(line_sum(line, columns));
        continue;
      }
      std::array<float, kBlock> sums{};
      for (int64_t w = 0; w < columns; ++w) {
        for (int64_t c = 0; c < channels; ++c) sums[static_cast<size_t>(c)] += line[w * planes_.depth + c];
      }
      for (size_t c = 0; c < static_cast<size_t>(channels); ++c) total[c] += static_cast<double>(sums[c]);
    }
    const auto pixels = static_cast<double>(std::max<int64_t>(1, rows * columns));
    float* y = args.out<float>(0) + plane * planes_.depth + first;
    for (size_t c = 0; c < static_cast<size_t>(channels); ++c) y[c] = static_cast<float>(total[c] / pixels);
  }
  static float line_sum(const float* line, int64_t count) {
    constexpr int64_t kLanes = 16;
    std::array<float, kLanes> sums{};
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) sums[static_cast<size_t>(lane)] += line[i + lane];
    }
    float sum = 0;
    for (; i < count; ++i) sum += line[i];
    for (const float lane : sums) sum += lane;
    return sum;
  }

  Planes planes_;
};

Support supports_fill(const KernelQuery& q) {
  const TensorType& x = q.in(0);
  if (x.format.is_blocked() || !(x.format == q.out(0).format)) return Support::no(cat("format ", x.format));
  if (x.elements() == 0) return Support::no("empty array");
  return Support::yes();
}
Support supports_always(const KernelQuery&) { return Support::yes(); }
Support supports_mean(const KernelQuery& q) {
  if (!q.has(1)) return Support::no("images that fill their arrays");
  if (q.in(0).dtype != DType::kF32) return Support::no(cat("dtype ", q.in(0).dtype));
  return supports_fill(q);
}

template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<T>(q);
}

constexpr Kernel kKernels[] = {{"fill_outside", "lines", supports_fill, prepare<FillOutside>},
                               {"extents_after", "numbers", supports_always, prepare<ExtentsAfter>}};

}  // namespace

const Algorithm algorithm::kAdaptiveAvgPoolInside{supports_mean, prepare<MeanInside>};

std::span<const Kernel> cpu_extents() { return kKernels; }

}  // namespace galley
