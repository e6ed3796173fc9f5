// Boxes in f32: nms, roi_align with its gradient, and roi_pool.
//
// nms visits candidates by falling score from a heap over those above the threshold, so it orders no more of them than it visits; a
// candidate is compared only with the chosen boxes of its class. One thread per sample. Each comparison rounds as torchvision's do.
//
// roi_align computes the four pixels and weights of a sample once and applies them to all channels, in vectors where the image is
// channels_last. Threads take regions in turn. Its gradient gives each task some channels of a sample, so that no two tasks add to one
// pixel and every sum keeps its order.

#include <algorithm>
#include <array>

#include "libcore/backends/cpu/table.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/nms.h"
#include "libcore/ops/roi_align.h"
#include "libcore/ops/roi_pool.h"

namespace galley {
namespace {

/// The rows of sample n that are valid.
int64_t valid_rows(const KernelArgs& args, int64_t n, int64_t rows) {
  const auto* count = args.in<int64_t>(2);
  return count == nullptr ? rows : std::clamp<int64_t>(count[n], 0, rows);
}

struct Box {
  float x1, y1, x2, y2;
  float area() const { return (x2 - x1) * (y2 - y1); }
};

/// Whether the intersection over union of two boxes exceeds the threshold.
bool overlaps(const Box& a, const Box& b, double threshold) {
  const float width = std::max(std::min(a.x2, b.x2) - std::max(a.x1, b.x1), 0.0f);
  const float height = std::max(std::min(a.y2, b.y2) - std::max(a.y1, b.y1), 0.0f);
  const float both = width * height;
  return static_cast<double>(both / (a.area() + b.area() - both)) > threshold;
}

class NonMaximumSuppression : public PreparedKernel {
 public:
  explicit NonMaximumSuppression(const KernelQuery& q)
      : attrs_(q.attrs<NmsAttrs>()),
        samples_(q.in(1).shape[0]),
        rows_(q.in(1).shape[1]),
        classes_(q.in(1).shape[2]),
        own_boxes_(q.in(0).shape.rank() == 4) {}

  int64_t scratch_bytes() const override { return samples_ * words() * 4; }

  void run(Stream&, const KernelArgs& args) const override {
    parallel_for(samples_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) select(args, n);
    });
  }

 private:
  /// Scratch words of a sample: candidates; of each class the number of visited candidates and the last chosen one; of each chosen box
  /// the one that was chosen before in its class.
  int64_t words() const { return rows_ * classes_ + 2 * classes_ + attrs_.max_output; }

  void select(const KernelArgs& args, int64_t n) const {
    const float* score = args.in<float>(1) + n * rows_ * classes_;
    const auto* boxes = reinterpret_cast<const Box*>(args.in<float>(0)) + n * rows_ * (own_boxes_ ? classes_ : 1);
    const auto box_of = [&](int64_t candidate) -> const Box& { return boxes[own_boxes_ ? candidate : candidate / classes_]; };
    auto* candidates = static_cast<int32_t*>(args.scratch) + n * words();
    int32_t* visited = candidates + rows_ * classes_;
    int32_t* last = visited + classes_;
    int32_t* before = last + classes_;
    std::fill_n(visited, classes_, 0);
    std::fill_n(last, classes_, -1);
    const auto threshold = static_cast<float>(attrs_.score_threshold);
    int64_t size = 0;
    for (int64_t i = 0; i < valid_rows(args, n, rows_) * classes_; ++i) {
      if (score[i] > threshold) candidates[size++] = static_cast<int32_t>(i);
    }
    const auto worse = [&](int32_t a, int32_t b) { return score[a] < score[b] || (score[a] == score[b] && a > b); };
    std::make_heap(candidates, candidates + size, worse);
    int64_t* chosen = args.out<int64_t>(0) + n * attrs_.max_output;
    int64_t count = 0;
    while (size > 0 && count < attrs_.max_output) {
      std::pop_heap(candidates, candidates + size, worse);
      const int32_t candidate = candidates[--size];
      const auto kind = candidate % classes_;
      if (attrs_.per_class > 0 && visited[kind]++ >= attrs_.per_class) continue;
      bool free = true;
      for (int32_t other = last[kind]; other >= 0 && free; other = before[other])
        free = !overlaps(box_of(candidate), box_of(chosen[other]), attrs_.iou_threshold);
      if (!free) continue;
      chosen[count] = candidate;
      before[count] = last[kind];
      last[kind] = static_cast<int32_t>(count++);
    }
    std::fill(chosen + count, chosen + attrs_.max_output, 0);
    args.out<int64_t>(1)[n] = count;
  }

  NmsAttrs attrs_;
  int64_t samples_, rows_, classes_;
  bool own_boxes_;
};

/// The four pixels of a sample and their weights.
struct Corners {
  std::array<int64_t, 4> pixel;
  std::array<float, 4> weight;
};

/// The pixels of an image in a level: its own ones, in lines of `stride`.
struct OwnPixels {
  /// Of sample n in an array of that shape. `extents`: input 3, or null.
  OwnPixels(const Shape& x, const int64_t* extents, int64_t n, int64_t levels, size_t level) : height(x[2]), width(x[3]), stride(x[3]) {
    if (extents == nullptr) return;
    height = extents[(n * levels + static_cast<int64_t>(level)) * 2];
    width = extents[(n * levels + static_cast<int64_t>(level)) * 2 + 1];
  }
  int64_t height, width, stride;
};

/// visit(bin, corners) for each sample of a region inside the image, bin by bin.
template <class Attrs, class Visit>
void walk_samples(const float* box, const Shape& bins, const OwnPixels& x, const Attrs& attrs, size_t level, Visit visit) {
  const double scale = attrs.spatial_scale[level];
  const RoiAxis across = roi_axis(box[0], box[2], bins[4], scale, attrs.sampling_ratio, attrs.aligned);
  const RoiAxis down = roi_axis(box[1], box[3], bins[3], scale, attrs.sampling_ratio, attrs.aligned);
  const double share = 1.0 / static_cast<double>(std::max<int64_t>(across.samples * down.samples, 1));
  for (int64_t i = 0; i < bins[3]; ++i) {
    for (int64_t j = 0; j < bins[4]; ++j) {
      for (int64_t s = 0; s < down.samples; ++s) {
        const RoiSample row = roi_sample(down.at(i, s), x.height);
        for (int64_t t = 0; t < across.samples && row.inside; ++t) {
          const RoiSample column = roi_sample(across.at(j, t), x.width);
          if (!column.inside) continue;
          const double top = share * (1 - row.fraction), bottom = share * row.fraction;
          visit(i * bins[4] + j,
                Corners{{row.low * x.stride + column.low, row.low * x.stride + column.high, row.high * x.stride + column.low,
                         row.high * x.stride + column.high},
                        {static_cast<float>(top * (1 - column.fraction)), static_cast<float>(top * column.fraction),
                         static_cast<float>(bottom * (1 - column.fraction)), static_cast<float>(bottom * column.fraction)}});
        }
      }
    }
  }
}

size_t level_of(const float* box, const std::vector<double>& scales) { return roi_level((box[2] - box[0]) * (box[3] - box[1]), scales); }

class RoiAlign : public PreparedKernel {
 public:
  explicit RoiAlign(const KernelQuery& q) : attrs_(q.attrs<RoiAlignAttrs>()), y_(q.out(0).shape), threads_(q.threads) {
    for (size_t level = 0; level < attrs_.spatial_scale.size(); ++level) {
      const TensorType& x = q.in(static_cast<int>(input_of(level)));
      levels_.push_back({x.shape, !x.format.is_contiguous()});
    }
  }
  /// The bins of a region for each thread, channels last.
  int64_t scratch_bytes() const override { return threads_ * 4 * y_[2] * y_[3] * y_[4]; }

  void run(Stream&, const KernelArgs& args) const override {
    const int64_t rows = y_[1], floats = y_[2] * y_[3] * y_[4];
    parallel_for(threads_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t thread = begin; thread < end; ++thread) {
        float* sums = static_cast<float*>(args.scratch) + thread * floats;
        for (int64_t region = thread; region < y_[0] * rows; region += threads_) {
          float* y = args.out<float>(0) + region * floats;
          std::fill_n(y, floats, 0.0f);
          if (region % rows >= valid_rows(args, region / rows, rows)) continue;
          const float* box = args.in<float>(1) + region * 4;
          const size_t level = level_of(box, attrs_.spatial_scale);
          const Shape& x = levels_[level].shape;
          const float* image = args.in<float>(input_of(level)) + region / rows * x[1] * x[2] * x[3];
          const OwnPixels own(x, args.in<int64_t>(3), region / rows, std::ssize(levels_), level);
          if (levels_[level].channels_last) {
            align_channels_last(box, level, own, image, sums, y);
          } else {
            align_planes(box, level, own, image, y);
          }
        }
      }
    });
  }

 private:
  struct Level {
    Shape shape;
    bool channels_last;
  };
  static size_t input_of(size_t level) { return level == 0 ? 0 : level + 3; }

  void align_planes(const float* box, size_t level, const OwnPixels& own, const float* image, float* y) const {
    const Shape& x = levels_[level].shape;
    const int64_t channels = x[1], bins = y_[3] * y_[4], pixels = x[2] * x[3];
    walk_samples(box, y_, own, attrs_, level, [&](int64_t bin, const Corners& at) {
      for (int64_t c = 0; c < channels; ++c) {
        const float* plane = image + c * pixels;
        y[c * bins + bin] += at.weight[0] * plane[at.pixel[0]] + at.weight[1] * plane[at.pixel[1]] + at.weight[2] * plane[at.pixel[2]] +
                             at.weight[3] * plane[at.pixel[3]];
      }
    });
  }

  void align_channels_last(const float* box, size_t level, const OwnPixels& own, const float* image, float* sums, float* y) const {
    const Shape& x = levels_[level].shape;
    const int64_t channels = x[1], bins = y_[3] * y_[4];
    std::fill_n(sums, bins * channels, 0.0f);
    walk_samples(box, y_, own, attrs_, level, [&](int64_t bin, const Corners& at) {
      float* __restrict to = sums + bin * channels;
      const float *first = image + at.pixel[0] * channels, *second = image + at.pixel[1] * channels,
                  *third = image + at.pixel[2] * channels, *fourth = image + at.pixel[3] * channels;
      for (int64_t c = 0; c < channels; ++c)
        to[c] += at.weight[0] * first[c] + at.weight[1] * second[c] + at.weight[2] * third[c] + at.weight[3] * fourth[c];
    });
    for (int64_t bin = 0; bin < bins; ++bin) {
      for (int64_t c = 0; c < channels; ++c) y[c * bins + bin] = sums[bin * channels + c];
    }
  }

  RoiAlignAttrs attrs_;
  Shape y_;
  std::vector<Level> levels_;
  int64_t threads_;
};

class RoiAlignBackward : public PreparedKernel {
 public:
  explicit RoiAlignBackward(const KernelQuery& q) : attrs_(q.attrs<RoiAlignBackwardAttrs>()), grad_(q.in(0).shape), dx_(q.out(0).shape) {}
  void run(Stream&, const KernelArgs& args) const override {
    constexpr int64_t kChannels = 16;  // of a task: the samples of a region are computed once for them
    const int64_t rows = grad_[1], channels = grad_[2], bins = grad_[3] * grad_[4], pixels = dx_[2] * dx_[3];
    const int64_t blocks = (channels + kChannels - 1) / kChannels;
    const auto level = static_cast<size_t>(attrs_.level);
    parallel_for(grad_[0] * blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t n = task / blocks, first = task % blocks * kChannels, last = std::min(first + kChannels, channels);
        float* dx = args.out<float>(0) + n * channels * pixels;
        std::fill(dx + first * pixels, dx + last * pixels, 0.0f);
        for (int64_t r = 0; r < valid_rows(args, n, rows); ++r) {
          const float* grad = args.in<float>(0) + (n * rows + r) * channels * bins;
          const float* box = args.in<float>(1) + (n * rows + r) * 4;
          if (level_of(box, attrs_.spatial_scale) != level) continue;
          const OwnPixels own(dx_, args.in<int64_t>(3), n, std::ssize(attrs_.spatial_scale), level);
          walk_samples(box, grad_, own, attrs_, level, [&](int64_t bin, const Corners& at) {
            for (int64_t c = first; c < last; ++c) {
              for (size_t corner = 0; corner < 4; ++corner) dx[c * pixels + at.pixel[corner]] += at.weight[corner] * grad[c * bins + bin];
            }
          });
        }
      }
    });
  }

 private:
  RoiAlignBackwardAttrs attrs_;
  Shape grad_, dx_;
};

class RoiPooling : public PreparedKernel {
 public:
  explicit RoiPooling(const KernelQuery& q)
      : attrs_(q.attrs<RoiPoolAttrs>()), x_(q.in(0).shape), y_(q.out(0).shape), channels_last_(!q.in(0).format.is_contiguous()) {}
  void run(Stream&, const KernelArgs& args) const override {
    const int64_t channels = y_[2], bins = y_[3] * y_[4];
    const int64_t step = channels_last_ ? channels : 1, next = channels_last_ ? 1 : x_[2] * x_[3];  // of pixels, of channels
    parallel_for(y_[0] * y_[1], 1, [&](int64_t begin, int64_t end) {
      for (int64_t region = begin; region < end; ++region) {
        const float* image = args.in<float>(0) + region / y_[1] * x_[1] * x_[2] * x_[3];
        float* y = args.out<float>(0) + region * channels * bins;
        auto* index = args.out<int64_t>(1) + region * channels * bins;
        for (int64_t bin = 0; bin < bins; ++bin) {
          const Window window = window_of(args.in<float>(1) + region * 4, bin);
          for (int64_t c = 0; c < channels; ++c) {
            const int64_t best = largest(image + c * next, step, window);
            index[c * bins + bin] = best;
            y[c * bins + bin] = best < 0 ? 0 : image[c * next + best * step];
          }
        }
      }
    });
  }

 private:
  struct Window {
    RoiPixels rows, columns;
  };
  Window window_of(const float* box, int64_t bin) const {
    const auto scale = static_cast<float>(attrs_.spatial_scale);
    return {roi_pixels(box[1], box[3], scale, bin / y_[4], y_[3], x_[2]), roi_pixels(box[0], box[2], scale, bin % y_[4], y_[4], x_[3])};
  }
  /// The first of the largest pixels; -1: the window is empty.
  int64_t largest(const float* plane, int64_t step, const Window& window) const {
    int64_t best = -1;
    for (int64_t h = window.rows.begin; h < window.rows.end; ++h) {
      for (int64_t w = window.columns.begin; w < window.columns.end; ++w) {
        const int64_t pixel = h * x_[3] + w;
        if (best < 0 || plane[pixel * step] > plane[best * step]) best = pixel;
      }
    }
    return best;
  }

  RoiPoolAttrs attrs_;
  Shape x_, y_;
  bool channels_last_;
};

Support supports(const KernelQuery& q) {
  for (int i = 0; i < 2; ++i) {
    if (q.in(i).dtype != DType::kF32) return Support::no(cat("dtype ", q.in(i).dtype));
    if (!q.in(i).format.is_contiguous()) return Support::no(cat("format ", q.in(i).format));
  }
  if (!q.out(0).format.is_contiguous()) return Support::no(cat("format ", q.out(0).format));
  return Support::yes();
}

Support supports_roi_align(const KernelQuery& q) {
  if (!q.in(1).format.is_contiguous()) return Support::no(cat("format ", q.in(1).format));
  if (!q.out(0).format.is_contiguous()) return Support::no(cat("format ", q.out(0).format));
  for (int i = 0; i < static_cast<int>(q.node.inputs.size()); ++i) {
    if (i == 2 || i == 3) continue;  // count, extents
    if (q.in(i).dtype != DType::kF32) return Support::no(cat("dtype ", q.in(i).dtype));
    const MemoryFormat& format = q.in(i).format;
    if (!format.is_contiguous() && !format.is_channels_last()) return Support::no(cat("format ", format));
  }
  return Support::yes();
}

Support supports_roi_pool(const KernelQuery& q) {
  if (!q.out(1).format.is_contiguous()) return Support::no(cat("format ", q.out(1).format));
  return supports_roi_align(q);
}

Support supports_nms(const KernelQuery& q) {
  if (q.in(1).elements() >= int64_t{1} << 31) return Support::no("2^31 scores or more");
  return supports(q);
}

template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<T>(q);
}

const std::array<Kernel, 4> kKernels{{{"nms", "heap", supports_nms, prepare<NonMaximumSuppression>},
                                      {"roi_align", "regions", supports_roi_align, prepare<RoiAlign>},
                                      {"roi_align_backward", "channel_parts", supports, prepare<RoiAlignBackward>},
                                      {"roi_pool", "regions", supports_roi_pool, prepare<RoiPooling>}}};

}  // namespace

std::span<const Kernel> cpu_boxes() { return kKernels; }

}  // namespace galley
