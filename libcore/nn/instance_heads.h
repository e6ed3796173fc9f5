#pragma once
// The heads of Mask R-CNN and Keypoint R-CNN (He et al. 2017): a mask or key points for each detected box.
//
// In training they read the boxes of objects among the sampled regions, in predictions the detected boxes, and in evaluation with objects
// both. Their inputs are more jagged fields of a batch, with a row for each object: `masks`, u8 [H,W] of 0 and 1 on the model's image, or
// `keypoints`, f32 [K,3] (x, y, visibility). Results are `masks` [N,D,28,28], the probabilities in cells of the detected box, or
// `keypoints` [N,D,K,3] (x, y, logit), with a row for each detection and 0 from the count on, and the parts `loss_mask` or `loss_keypoint`
// of the objective.

#include <functional>
#include <string_view>

#include "libcore/nn/builder.h"
#include "libcore/nn/zoo.h"

namespace galley {

/// The tensors of a batch that hold the masks and the key points of objects.
inline constexpr std::string_view kObjectMasks = "masks.values", kObjectKeypoints = "keypoints.values";
inline constexpr std::string_view kDetectedMasks = "masks", kDetectedKeypoints = "keypoints";

/// Adds the input of that name to a detector's inputs, optional as its objects.
ModelInput masks_input(int64_t height, int64_t width);
ModelInput keypoints_input(int64_t num_keypoints);

/// Boxes that a head reads. Absent values: none.
struct InstanceRows {
  Value boxes;   // [N,R,4]
  Value labels;  // i64 [N,R]
  Value count;   // i64 [N]: the valid rows
  Value object;  // i64 [N,R]: the object of each row, for losses
  explicit operator bool() const { return static_cast<bool>(boxes); }
};

/// Features [N,R,C,14,14] of the first `count` boxes.
using RegionPool = std::function<Value(Value boxes, Value count)>;

struct InstanceHead {
  RegionPool pool;
  InstanceRows trained;   ///< For the loss.
  InstanceRows detected;  ///< For results.
};

/// The mask head, `mask_head` and `mask_predictor` in the builder's scope. `masks`: those of the objects; needed where rows are trained.
void add_masks(Builder& b, NamedValues& results, const InstanceHead& head, Value masks, int64_t num_classes, bool norm);
/// The key point head, `keypoint_head` and `keypoint_predictor`.
void add_keypoints(Builder& b, NamedValues& results, const InstanceHead& head, Value keypoints, int64_t num_keypoints);

}  // namespace galley
