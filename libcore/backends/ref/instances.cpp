// What detectors of instances compute besides layers: targets of masks and key points, and key points from heat maps.

#include "libcore/ops/instances.h"

#include <algorithm>
#include <cmath>

#include "libcore/backends/ref/instances.h"
#include "libcore/ops/roi_align.h"

namespace galley {
namespace {

/// The mean of the samples of a cell of a region of an image.
double cell_mean(const double* image, int64_t height, int64_t width, const RoiAxis& down, const RoiAxis& across, int64_t i, int64_t j) {
  double total = 0;
  for (int64_t s = 0; s < down.samples; ++s) {
    for (int64_t t = 0; t < across.samples; ++t) {
      const RoiSample row = roi_sample(down.at(i, s), height), column = roi_sample(across.at(j, t), width);
      if (!row.inside || !column.inside) continue;
      const auto between = [&](int64_t y) {
        return image[y * width + column.low] * (1 - column.fraction) + image[y * width + column.high] * column.fraction;
      };
      total += between(row.low) * (1 - row.fraction) + between(row.high) * row.fraction;
    }
  }
  return total / static_cast<double>(std::max<int64_t>(down.samples * across.samples, 1));
}

void mask_targets_ref(RefCall& call) {
  const RefArray &masks = call.in(0), &boxes = call.in(1), &object = call.in(2);
  const int64_t size = call.attrs<MaskTargetsAttrs>().size, height = masks.shape[1], width = masks.shape[2];
  for (int64_t r = 0; r < object.shape.elements(); ++r) {
    const auto of = static_cast<int64_t>(object[r]);
    if (of < 0 || of >= masks.shape[0]) continue;
    const double* box = boxes.v.data() + r * 4;
    const RoiAxis across = roi_axis(box[0], box[2], size, 1, 0, false), down = roi_axis(box[1], box[3], size, 1, 0, false);
    for (int64_t cell = 0; cell < size * size; ++cell)
      call.out()[r * size * size + cell] =
          cell_mean(masks.v.data() + of * height * width, height, width, down, across, cell / size, cell % size);
  }
}

void keypoint_cells_ref(RefCall& call) {
  const RefArray &points = call.in(0), &boxes = call.in(1), &object = call.in(2);
  const int64_t size = call.attrs<KeypointCellsAttrs>().size, count = points.shape[1];
  for (int64_t r = 0; r < object.shape.elements(); ++r) {
    const auto of = static_cast<int64_t>(object[r]);
    const double* box = boxes.v.data() + r * 4;
    const auto cell = [&](double at, double low, double high) {
      if (at == high) return size - 1;
      const double place = std::floor((at - low) * (static_cast<double>(size) / (high - low)));
      return place >= 0 && place < static_cast<double>(size) ? static_cast<int64_t>(place) : -1;
    };
    for (int64_t k = 0; k < count; ++k) {
      double& out = call.out()[r * count + k];
      out = static_cast<double>(kNoCell);
      if (of < 0 || of >= points.shape[0]) continue;
      const double* point = points.v.data() + (of * count + k) * 3;
      const int64_t column = cell(point[0], box[0], box[2]), row = cell(point[1], box[1], box[3]);
      if (point[2] > 0 && row >= 0 && column >= 0) out = static_cast<double>(row * size + column);
    }
  }
}

void locate_keypoints_ref(RefCall& call) {
  const RefArray &heat = call.in(0), &boxes = call.in(1), &count = call.in(2);
  const int64_t rows = heat.shape[1], points = heat.shape[2], h = heat.shape[3], w = heat.shape[4];
  const auto source = [](int64_t i, int64_t in, int64_t out) {
    return (static_cast<double>(i) + 0.5) * (static_cast<double>(in) / static_cast<double>(out)) - 0.5;
  };
  for (int64_t r = 0; r < heat.shape[0] * rows; ++r) {
    if (static_cast<double>(r % rows) >= count[r / rows]) continue;
    const double* box = boxes.v.data() + r * 4;
    const double box_width = std::max(box[2] - box[0], 1.0), box_height = std::max(box[3] - box[1], 1.0);
    const auto width = static_cast<int64_t>(std::ceil(box_width)), height = static_cast<int64_t>(std::ceil(box_height));
    for (int64_t k = 0; k < points; ++k) {
      const double* map = heat.v.data() + (r * points + k) * h * w;
      double best = 0;
      int64_t at = -1;
      for (int64_t pixel = 0; pixel < width * height; ++pixel) {
        const double y = source(pixel / width, h, height), x = source(pixel % width, w, width);
        const auto row = static_cast<int64_t>(std::floor(y)), column = static_cast<int64_t>(std::floor(x));
        const CubicWeights down(y - std::floor(y)), across(x - std::floor(x));
        double value = 0;
        for (int64_t i = 0; i < 4; ++i) {
          const double* line = map + std::clamp<int64_t>(row - 1 + i, 0, h - 1) * w;
          for (int64_t j = 0; j < 4; ++j) value += down.at[i] * across.at[j] * line[std::clamp<int64_t>(column - 1 + j, 0, w - 1)];
        }
        if (at >= 0 && value <= best) continue;
        best = value;
        at = pixel;
      }
      double* out = &call.out()[(r * points + k) * 3];
      out[0] = (static_cast<double>(at % width) + 0.5) * (box_width / static_cast<double>(width)) + box[0];
      out[1] = (static_cast<double>(at / width) + 0.5) * (box_height / static_cast<double>(height)) + box[1];
      out[2] = best;
    }
  }
}

constexpr RefEntry kEntries[] = {
    {"mask_targets", mask_targets_ref}, {"keypoint_cells", keypoint_cells_ref}, {"locate_keypoints", locate_keypoints_ref}};

}  // namespace

std::span<const RefEntry> ref_instances() { return kEntries; }

}  // namespace galley
