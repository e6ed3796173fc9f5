#include "libcore/nn/instance_heads.h"

#include <cmath>

#include "libcore/nn/capture.h"
#include "libcore/nn/detection.h"
#include "libcore/nn/detection_parts.h"
#include "libcore/ops/conv.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/instances.h"
#include "libcore/ops/loss.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/reduce.h"

namespace galley {
namespace {

constexpr int64_t kMaskChannels = 256, kKeypointChannels = 512;
const Init kReluWeight = Init::kaiming_normal(Init::Fan::kOut);

/// Features of trained rows, then of detected rows, as images [N*R,C,14,14].
struct HeadInput {
  explicit HeadInput(const InstanceHead& head) {
    std::vector<Value> parts;
    for (const InstanceRows* rows : {&head.trained, &head.detected}) {
      if (!*rows) continue;
      parts.push_back(head.pool(rows->boxes, rows->count));
      (rows == &head.trained ? trained : detected) = rows->boxes.shape()[1];
    }
    const Value all = parts.size() == 1 ? parts[0] : join(parts, 1);
    const Shape& s = all.shape();
    samples = s[0];
    images = reshape(all, {s[0] * s[1], s[2], s[3], s[4]});
  }
  /// The rows of results [N*R,..], by kind.
  Value rows_of(Value results, bool of_detections) const {
    std::vector<int64_t> sizes{samples, trained + detected};
    for (int axis = 1; axis < results.shape().rank(); ++axis) sizes.push_back(results.shape()[axis]);
    const Value rows = reshape(results, Shape(sizes));
    return of_detections ? slice(rows, 1, trained) : slice(rows, 1, 0, trained);
  }
  int64_t samples = 0, trained = 0, detected = 0;
  Value images;
};

/// x [N,C,H,W] -> [N,channels,H',W']: torch's ConvTranspose2d.
Value transposed_conv(Builder& b, std::string_view name, Value x, int64_t channels, int64_t kernel, int64_t padding, const Init& bias) {
  constexpr int64_t kStride = 2;
  const auto module = b.scope(name);
  const Shape& s = x.shape();
  const Value weight = b.parameter("weight", {s[1], channels, kernel, kernel}, kReluWeight, "conv_transpose2d");
  const Value shift = b.parameter("bias", {channels}, bias, "conv_transpose2d");
  Conv2dBackwardDataAttrs attrs;
  attrs.stride = {kStride};
  attrs.padding = {padding};
  attrs.input_size = {(s[2] - 1) * kStride - 2 * padding + kernel, (s[3] - 1) * kStride - 2 * padding + kernel};
  return add(conv2d_backward_data(x, weight, attrs), reshape(shift, {1, channels, 1, 1}));
}

/// Zeros in the rows [N,R,..] of a result from the count on.
Value first_rows_of(Value x, Value count) {
  std::vector<int64_t> sizes{x.shape()[0], x.shape()[1]};
  sizes.resize(static_cast<size_t>(x.shape().rank()), 1);
  return where(reshape(first_rows(count, x.shape()[1]), Shape(sizes)), x, constant_like(x, 0));
}

void add_loss(NamedValues& results, const std::string& name, Value sums, Value counts) {
  results.emplace_back(name + std::string(kLossSum), sums);
  results.emplace_back(name + std::string(kLossCount), counts);
}

/// The logits of one class of each row: features [N,R,C,H,W], labels [N,R] -> [N,R,H*W]. Only this class's row of `weight` [K,C] is
/// multiplied.
Value own_class(Value features, Value labels, Value weight, Value bias) {
  const Shape& s = features.shape();
  const int64_t rows = s[0] * s[1];
  const Value flat = reshape(labels, {rows});
  const Value factors = reshape(embedding(weight, flat), {rows, 1, s[2]});
  const Value products = matmul(factors, reshape(features, {rows, s[2], s[3] * s[4]}));
  const Value shift = embedding(reshape(bias, {bias.shape()[0], 1}), flat);
  return reshape(add(products, reshape(shift, {rows, 1, 1})), {s[0], s[1], s[3] * s[4]});
}

}  // namespace

ModelInput masks_input(int64_t height, int64_t width) {
  return {.name = std::string(kObjectMasks), .shape = {height, width}, .dtype = DType::kU8, .optional = true};
}
ModelInput keypoints_input(int64_t num_keypoints) {
  return {.name = std::string(kObjectKeypoints), .shape = {num_keypoints, 3}, .optional = true};
}

void add_masks(Builder& b, NamedValues& results, const InstanceHead& head, Value masks, int64_t num_classes, bool norm) {
  const HeadInput input(head);
  Value x = input.images;
  {
    const auto module = b.scope("mask_head");
    const auto init = b.use_init({.conv_weight = kReluWeight, .conv_bias = Init::zeros()});
    for (int i = 0; i < 4; ++i) {
      const ConvNormOptions options{.channels = kMaskChannels, .kernel = 3, .activation = ActivationKind::kRelu};
      if (norm) {
        x = conv_norm(b, std::to_string(i), x, options);
      } else {
        const auto block = b.scope(std::to_string(i));
        x = relu(b.conv2d("0", x, {.out_channels = kMaskChannels, .kernel_size = 3, .padding = 1}));
      }
    }
  }
  const auto module = b.scope("mask_predictor");
  const auto usual_bias = [](int64_t fan_in) { return Init::uniform(1 / std::sqrt(static_cast<double>(fan_in))); };
  x = relu(transposed_conv(b, "conv5_mask", x, kMaskChannels, 2, 0, usual_bias(kMaskChannels * 4)));
  Value weight, bias;
  {
    const auto logits = b.scope("mask_fcn_logits");
    weight = reshape(b.parameter("weight", {num_classes, kMaskChannels, 1, 1}, kReluWeight, "conv2d"), {num_classes, kMaskChannels});
    bias = b.parameter("bias", {num_classes}, usual_bias(kMaskChannels), "conv2d");
  }
  const int64_t side = x.shape()[2];
  if (head.trained) {
    const Value logits = own_class(input.rows_of(x, false), head.trained.labels, weight, bias);
    const Value target = reshape(mask_targets(masks, head.trained.boxes, head.trained.object, side), logits.shape());
    LossAttrs each;
    each.reduction = Reduction::kNone;
    const Value valid = first_rows(head.trained.count, input.trained);
    const Value cells = affine(count_true(valid), static_cast<double>(side * side));
    add_loss(results, "loss_mask", masked_sum(bce_with_logits(logits, target, {}, each), valid), cells);
  }
  if (head.detected) {
    const Value logits = own_class(input.rows_of(x, true), head.detected.labels, weight, bias);
    const Value probability = reshape(sigmoid(logits), {input.samples, input.detected, side, side});
    results.emplace_back(kDetectedMasks, first_rows_of(probability, head.detected.count));
  }
}

void add_keypoints(Builder& b, NamedValues& results, const InstanceHead& head, Value keypoints, int64_t num_keypoints) {
  const HeadInput input(head);
  Value x = input.images;
  {
    const auto module = b.scope("keypoint_head");
    const auto init = b.use_init({.conv_weight = kReluWeight, .conv_bias = Init::zeros()});
    for (int i = 0; i < 8; ++i)
      x = relu(b.conv2d(std::to_string(2 * i), x, {.out_channels = kKeypointChannels, .kernel_size = 3, .padding = 1}));
  }
  const auto module = b.scope("keypoint_predictor");
  x = transposed_conv(b, "kps_score_lowres", x, num_keypoints, 4, 1, Init::zeros());
  ResizeAttrs twice;
  twice.size = {2 * x.shape()[2], 2 * x.shape()[3]};
  x = resize(x, twice);
  const int64_t side = x.shape()[2], cells_of_map = side * side;
  if (head.trained) {
    const Value cells = keypoint_cells(keypoints, head.trained.boxes, head.trained.object, side);
    const int64_t rows = input.samples * input.trained * num_keypoints;
    const Shape each_sample{input.samples, input.trained * num_keypoints};
    CrossEntropyAttrs each;
    each.reduction = Reduction::kNone;
    const Value losses = cross_entropy(reshape(input.rows_of(x, false), {rows, cells_of_map}), reshape(cells, {rows}), {}, each);
    const Value found = greater(cast(cells, losses.dtype()), constant_like(losses, -0.5));
    add_loss(results, "loss_keypoint", sum(reshape(losses, each_sample), {1}), count_true(reshape(found, each_sample)));
  }
  if (head.detected)
    results.emplace_back(kDetectedKeypoints, locate_keypoints(input.rows_of(x, true), head.detected.boxes, head.detected.count));
}

}  // namespace galley
