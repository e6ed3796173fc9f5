#pragma once
// The arguments of kernels on boxes, regions of images, and flow.

#include <cstdint>

namespace galley::device {

// Operators on boxes: f32 [rows, 4], in samples. Indices, labels and counts are i64.

/// Scratch: keys [samples, padded], visited [samples, classes]; padded: a power of two, at least rows * classes.
struct NmsCall {
  const float *boxes, *scores;
  const int64_t* count;  // or null: all rows
  int64_t *index, *chosen;
  uint64_t* keys;
  int* visited;
  int64_t samples, rows, classes, boxes_per_row, most, per_class, padded;
  float iou_threshold, score_threshold;
};

inline constexpr int kMostLevels = 8, kMostCellBoxes = 64;
struct GridBoxesCall {
  float* to;
  int64_t boxes;
  int levels;
  int64_t rows[kMostLevels], columns[kMostLevels], per_cell[kMostLevels];
  double row_strides[kMostLevels], column_strides[kMostLevels], corners[4 * kMostCellBoxes];
};

enum BestMatch : int { kNoBest, kLowQuality, kEveryBox };
/// Scratch: best_share, best_anchor [objects].
struct MatchCall {
  const float *anchors, *boxes;
  const int64_t *labels, *offsets;
  float* to;
  int64_t* labels_to;
  float* best_share;
  int64_t* best_anchor;
  int shared;  // anchors are those of all samples
  BestMatch best;
  int64_t samples, count, objects, first, last;
  float high, low, radius;
};
struct TopMaskCall {
  const float *values, *count;
  uint8_t* to;
  int64_t samples, rows;
};
struct TakeBoxesCall {
  const float *boxes, *scores;
  const int64_t *index, *count;
  float *boxes_to, *scores_to;
  int64_t* labels_to;
  int64_t samples, rows, classes, chosen, boxes_per_row, first_label;
};
struct AppendObjectsCall {
  const float *boxes, *object_boxes;
  const int64_t *count, *offsets;
  float* to;
  int64_t* count_to;
  int64_t samples, rows, objects;
};
struct SampleLabelsCall {
  const int64_t *labels, *count, *rng;  // count, rng: or null
  uint8_t* to;
  int random;
  int64_t samples, rows, size, positive, stream;
};
struct TrueRowsCall {
  const uint8_t* mask;
  int64_t *index, *found;
  int64_t samples, rows, size;
};

/// The largest pixels of regions: x [samples, channels, size] -> y, index [samples, rows, channels, bins].
struct RoiPoolCall {
  const float *x, *boxes;
  float* y;
  int64_t* index;
  int64_t samples, rows, channels, bins[2], size[2], steps[4];  // steps: of x
  float scale;
};

/// Masks u8 [objects, height, width] and key points [objects, points, 3] in regions divided into size x size cells; `object`: of each
/// region. Or heat maps [samples * rows, points, height, width], of which the first `count` of each sample are read.
struct InstanceCall {
  const uint8_t* masks;
  const float *keypoints, *heat, *boxes;
  const int64_t *object, *count;
  float* to;
  int64_t* cells;
  int64_t regions, rows, objects, points, size, height, width;
};

/// Features of regions, of levels of a pyramid. Forward: levels to `to` [samples, rows, channels, bins]. Backward: `grad` of the bins to
/// `to`, the gradient of one level.
struct RoiCall {
  const float *levels[kMostLevels], *boxes, *grad;
  const int64_t *count, *extents;  // or null: all rows; all pixels
  float* to;
  int level_count, level, aligned;  // level: of the gradient
  int64_t first_level, last_level;  // of the published pyramid
  double scales[kMostLevels];
  int64_t sizes[kMostLevels][2], steps[kMostLevels][4];
  int64_t samples, rows, channels, bins[2], sampling_ratio;
};

enum GridMode : int { kGridBilinear, kGridNearest };
enum GridEdge : int { kGridZeros, kGridBorder, kGridReflection };
/// Images [samples, channels, in_size] at the points of a grid [samples, out_size, 2], in floats. Backward: grad is read; `to` is the
/// gradient of the grid, or `sums` that of the images.
struct GridSampleCall {
  const float *x, *grid, *grad;
  float* to;
  unsigned long long* sums;
  const float* largest;
  GridMode mode;
  GridEdge edge;
  int align_corners;
  int64_t samples, channels, in_size[2], out_size[2];
};

/// The strides of an image [samples, channels, rows, columns] in elements, contiguous or channels_last: `pixel` is that of columns, and
/// of rows as many as columns.
struct ImageSteps {
  int64_t sample, channel, pixel;
};

/// Dot products of features around the points to which pixels move. Backward: grad is read; `to` or `sums` is written, which have
/// to_steps.
struct CorrelationCall {
  const float *flow, *first, *grad, *levels[kMostLevels];
  float* to;
  unsigned long long* sums;
  const float* largest;
  int level_count, level;
  ImageSteps flow_steps, first_steps, grad_steps, to_steps, level_steps[kMostLevels];
  int64_t sizes[kMostLevels][2];
  int64_t samples, channels, rows, columns, radius;
};
/// A finer image as convex combinations of the nine pixels around each. Backward: grad is read.
struct ConvexCall {
  const float *flow, *mask, *grad;
  float *to, *mask_to;
  ImageSteps flow_steps, mask_steps, grad_steps, to_steps, mask_to_steps;
  int64_t samples, channels, rows, columns, factor;
};
/// Orthonormal columns in place, f32 [rows, columns].
struct ColumnsCall {
  const float* from;
  float* to;
  int64_t rows, columns;
};

}  // namespace galley::device
