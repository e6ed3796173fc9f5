// Operators on boxes: nms, roi_align and its gradient, roi_pool.

#include <algorithm>
#include <numeric>

#include "libcore/backends/ref/ref.h"
#include "libcore/ops/nms.h"
#include "libcore/ops/roi_align.h"
#include "libcore/ops/roi_pool.h"

namespace galley {
namespace {

/// The rows of sample n that are valid.
int64_t valid_rows(RefCall& call, size_t input, int64_t n, int64_t rows) {
  if (!call.has(input)) return rows;
  return std::clamp<int64_t>(static_cast<int64_t>(call.in(input)[n]), 0, rows);
}

/// Intersection over union, in the order of torchvision's operations.
double overlap(const double* a, const double* b) {
  const double width = std::max(std::min(a[2], b[2]) - std::max(a[0], b[0]), 0.0);
  const double height = std::max(std::min(a[3], b[3]) - std::max(a[1], b[1]), 0.0);
  const double both = width * height;
  return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both);
}

void nms_ref(RefCall& call) {
  const auto& attrs = call.attrs<NmsAttrs>();
  const RefArray &boxes = call.in(0), &scores = call.in(1);
  const int64_t samples = scores.shape[0], rows = scores.shape[1], classes = scores.shape[2];
  const int64_t boxes_per_row = boxes.shape.rank() == 4 ? classes : 1;
  for (int64_t n = 0; n < samples; ++n) {
    const double* score = scores.v.data() + n * rows * classes;
    const auto box_of = [&](int64_t candidate) {
      return boxes.v.data() + 4 * (boxes_per_row == 1 ? n * rows + candidate / classes : n * rows * classes + candidate);
    };
    std::vector<int64_t> order;
    for (int64_t i = 0; i < valid_rows(call, 2, n, rows) * classes; ++i) {
      if (score[i] > attrs.score_threshold) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return score[a] > score[b]; });
    std::vector<int64_t> visited(static_cast<size_t>(classes)), chosen;
    for (const int64_t candidate : order) {
      if (static_cast<int64_t>(chosen.size()) == attrs.max_output) break;
      const int64_t kind = candidate % classes;
      if (attrs.per_class > 0 && visited[static_cast<size_t>(kind)]++ >= attrs.per_class) continue;
      const bool free = std::none_of(chosen.begin(), chosen.end(), [&](int64_t other) {
        return other % classes == kind && overlap(box_of(candidate), box_of(other)) > attrs.iou_threshold;
      });
      if (free) chosen.push_back(candidate);
    }
    for (size_t i = 0; i < chosen.size(); ++i) call.out(0)[n * attrs.max_output + static_cast<int64_t>(i)] = static_cast<double>(chosen[i]);
    call.out(1)[n] = static_cast<double>(chosen.size());
  }
}

/// visit(element of the bins, element of x, weight) for all samples of the valid regions that read the level x.
template <class Attrs, class Visit>
void walk_bins(RefCall& call, const Shape& bins, const Shape& x, const Attrs& attrs, size_t level, Visit visit) {
  const int64_t rows = bins[1], channels = bins[2];
  const double scale = attrs.spatial_scale[level];
  for (int64_t n = 0; n < bins[0]; ++n) {
    const auto own = [&](size_t axis) {  // of the image's own pixels
      const size_t at = (static_cast<size_t>(n) * attrs.spatial_scale.size() + level) * 2 + axis;
      return call.has(3) ? static_cast<int64_t>(call.in(3).v[at]) : x[2 + static_cast<int>(axis)];
    };
    const int64_t height = own(0), width = own(1);
    for (int64_t r = 0; r < valid_rows(call, 2, n, rows); ++r) {
      const double* box = call.in(1).v.data() + (n * rows + r) * 4;
      if (roi_level((box[2] - box[0]) * (box[3] - box[1]), attrs.spatial_scale) != level) continue;
      const RoiAxis across = roi_axis(box[0], box[2], bins[4], scale, attrs.sampling_ratio, attrs.aligned);
      const RoiAxis down = roi_axis(box[1], box[3], bins[3], scale, attrs.sampling_ratio, attrs.aligned);
      const double share = 1.0 / static_cast<double>(std::max<int64_t>(across.samples * down.samples, 1));
      const auto sample = [&](int64_t bin_row, int64_t bin_column, int64_t s, int64_t t) {
        const RoiSample row = roi_sample(down.at(bin_row, s), height), column = roi_sample(across.at(bin_column, t), width);
        if (!row.inside || !column.inside) return;
        for (int64_t c = 0; c < channels; ++c) {
          const int64_t bin = (((n * rows + r) * channels + c) * bins[3] + bin_row) * bins[4] + bin_column,
                        image = (n * channels + c) * x[2];
          visit(bin, (image + row.low) * x[3] + column.low, share * (1 - row.fraction) * (1 - column.fraction));
          visit(bin, (image + row.low) * x[3] + column.high, share * (1 - row.fraction) * column.fraction);
          visit(bin, (image + row.high) * x[3] + column.low, share * row.fraction * (1 - column.fraction));
          visit(bin, (image + row.high) * x[3] + column.high, share * row.fraction * column.fraction);
        }
      };
      for (int64_t i = 0; i < bins[3] * bins[4]; ++i) {
        for (int64_t s = 0; s < down.samples * across.samples; ++s)
          sample(i / bins[4], i % bins[4], s / across.samples, s % across.samples);
      }
    }
  }
}

void roi_align_ref(RefCall& call) {
  const auto& attrs = call.attrs<RoiAlignAttrs>();
  for (size_t level = 0; level < attrs.spatial_scale.size(); ++level) {
    const RefArray& x = call.in(level == 0 ? 0 : 3 + level);
    walk_bins(call, call.out().shape, x.shape, attrs, level,
              [&](int64_t bin, int64_t pixel, double weight) { call.out()[bin] += weight * x[pixel]; });
  }
}

void roi_align_backward_ref(RefCall& call) {
  const auto& attrs = call.attrs<RoiAlignBackwardAttrs>();
  walk_bins(call, call.in(0).shape, call.out().shape, attrs, static_cast<size_t>(attrs.level),
            [&](int64_t bin, int64_t pixel, double weight) { call.out()[pixel] += weight * call.in(0)[bin]; });
}

void roi_pool_ref(RefCall& call) {
  const auto& attrs = call.attrs<RoiPoolAttrs>();
  const RefArray& x = call.in(0);
  const Shape &image = x.shape, &y = call.out(0).shape;
  for (int64_t i = 0; i < y.elements(); ++i) {
    const int64_t column = i % y[4], row = i / y[4] % y[3], c = i / (y[4] * y[3]) % y[2], region = i / (y[4] * y[3] * y[2]);
    const double* box = call.in(1).v.data() + region * 4;
    const RoiPixels rows = roi_pixels(box[1], box[3], attrs.spatial_scale, row, y[3], image[2]),
                    columns = roi_pixels(box[0], box[2], attrs.spatial_scale, column, y[4], image[3]);
    const int64_t plane = (region / y[1] * image[1] + c) * image[2] * image[3];
    int64_t best = -1;
    for (int64_t h = rows.begin; h < rows.end; ++h) {
      for (int64_t w = columns.begin; w < columns.end; ++w) {
        const int64_t pixel = h * image[3] + w;
        if (best < 0 || x[plane + pixel] > x[plane + best]) best = pixel;
      }
    }
    call.out(0)[i] = best < 0 ? 0 : x[plane + best];
    call.out(1)[i] = static_cast<double>(best);
  }
}

constexpr RefEntry kEntries[] = {
    {"nms", nms_ref}, {"roi_align", roi_align_ref}, {"roi_align_backward", roi_align_backward_ref}, {"roi_pool", roi_pool_ref}};

}  // namespace

std::span<const RefEntry> ref_boxes() { return kEntries; }

}  // namespace galley
