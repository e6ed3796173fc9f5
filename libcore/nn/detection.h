#pragma once
// What detectors share: the names of their inputs and results, codes of boxes, losses, post-processing.
//
// A detector's inputs are the image and, in training and evaluation, the objects: the jagged fields `boxes` and `labels` of a batch. Its
// results in evaluation are `boxes` [N,D,4], `scores` [N,D], `labels` i64 [N,D] and `count` i64 [N], best first; rows from the count on are
// 0. With objects, each part of the objective is two results, "NAME.sum" [N] and "NAME.count" [N]: the part is the total of the sums over
// max(1, the total of the counts), of a batch in training and of all samples in an evaluation.

#include <string>
#include <vector>

#include "libcore/nn/builder.h"
#include "libcore/nn/zoo.h"
#include "libcore/ops/detection.h"
#include "libcore/ops/nms.h"
#include "libcore/tensor/field_names.h"

namespace galley {

/// The tensors of a batch that hold the objects.
inline constexpr std::string_view kObjectBoxes = "boxes.values", kObjectOffsets = "boxes.offsets", kObjectLabels = "labels.values";
/// Results of a detector.
inline constexpr std::string_view kDetectedBoxes = "boxes", kDetectedScores = "scores", kDetectedLabels = "labels",
                                  kDetectedCount = "count";
inline constexpr std::string_view kLossSum = ".sum", kLossCount = ".count";

/// The inputs of a detector for images of that size. `extents`: it takes images that are smaller than their array.
std::vector<ModelInput> detector_inputs(int64_t height, int64_t width, bool extents = true);

/// The objects among a detector's inputs. Invalid values where the data have none.
struct Objects {
  Value boxes, labels, offsets;
  explicit operator bool() const { return static_cast<bool>(boxes); }
};
/// Throws Error (exit 3) if the builder captures training and the data have no objects.
Objects objects_of(const Builder& b, const NamedValues& inputs);

/// Weights of the four numbers of a code.
struct BoxCoder {
  double xy = 1, wh = 1;
  /// Codes [..,4] of boxes [..,4] relative to anchors, which broadcast: offsets of the centers in sizes of the anchor, logarithms of the
  /// ratios of sizes.
  Value encode(Value boxes, Value anchors) const;
  /// The boxes of codes. Sizes grow at most by 1000 / 16.
  Value decode(Value codes, Value anchors) const;
};

/// The sizes of the images [N,C,H,W] among a detector's inputs: H x W pixels, or less where images are on a larger canvas.
struct ImageSize {
  explicit ImageSize(const NamedValues& inputs);
  ImageSize(int64_t rows, int64_t columns) : height(rows), width(columns) {}
  int64_t height, width;
  Value each;     // f32 [N,2], or absent
  Value extents;  // i64 [N,2], or absent: pixels beyond count
};

/// Boxes [N,..,4] without what lies outside their image.
Value clip_boxes(Value boxes, const ImageSize& size);

/// |d| - beta / 2 for |d| > beta, else d^2 / (2 beta).
Value smooth_l1(Value x, Value target, double beta);

/// The value of that name; absent where there is none.
Value value_of(const NamedValues& values, std::string_view name);
/// Coordinate i of boxes [..,4], as [..,1].
Value column(Value boxes, int64_t i);
/// A constant of x's dtype, which broadcasts.
Value constant_like(Value x, double value);
/// The mask of labels [N,A] above 0, and how many of each sample are: [N].
Value foreground(Value labels);
Value count_true(Value mask);
/// Sums x [N,A] or [N,A,4], where the mask [N,A] is true, over each sample: [N].
Value masked_sum(Value x, Value mask);

/// Logits [N,A*K,H,W] -> [N,H*W*A,K]: torchvision's order, cell by cell.
Value by_anchor(Value logits, int64_t per_anchor);

/// Appends the results of post-processing. `count` (optional, i64 [N]): the number of valid rows of boxes and scores.
void add_detections(NamedValues& results, Value boxes, Value scores, const NmsAttrs& attrs, int64_t first_label, Value count = {});

/// The scores [..] of boxes [..,4] whose sides are at least that long, and -1 for the others.
Value without_small(Value boxes, Value scores, double side);
/// The mask [N,rows] of the first count[n] rows of each sample.
Value first_rows(Value count, int64_t rows);

}  // namespace galley
