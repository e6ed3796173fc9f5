#include "libcore/nn/instance_heads.h"

#include <cmath>

#include "libcore/nn/capture.h"
#include "libcore/nn/detection.h"
#include "libcore/nn/detection_parts.h"
#include "libcore/ops/conv_rows.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/instances.h"
#include "libcore/ops/loss.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/reduce.h"

namespace galley {
namespace {

constexpr int64_t kMaskChannels = 256, kKeypointChannels = 512;
const Init kReluWeight = Init::kaiming_normal(Init::Fan::kOut);

/// Features of trained rows, then of detected rows, as images [N*R,C,14,14] each, R being the larger number.
struct HeadInput {
  explicit HeadInput(const InstanceHead& head) : samples((head.trained ? head.trained : head.detected).boxes.shape()[0]) {
    if (head.trained) trained = head.trained.boxes.shape()[1];
    if (head.detected) detected = head.detected.boxes.shape()[1];
    const int64_t most = std::max(trained, detected);
    std::vector<Value> parts, counts;
    for (const InstanceRows* rows : {&head.trained, &head.detected}) {
      if (!*rows) continue;
      Value part = head.pool(rows->boxes, rows->count);
      Shape missing = part.shape();
      missing[1] = most - missing[1];
      if (missing[1] > 0) part = join({part, full(part.graph(), {.dtype = part.dtype(), .shape = missing}, 0)}, 1);
      parts.push_back(part);
      counts.push_back(rows->count);
    }
    const Value all = join(parts, 0);
    const Shape& s = all.shape();
    images = reshape(all, {s[0] * s[1], s[2], s[3], s[4]});
    count = join(counts, 0);
  }
  /// The rows of results [N*R,..], by kind.
  Value rows_of(Value results, bool of_detections) const {
    const int64_t most = std::max(trained, detected), first = of_detections && trained > 0 ? samples : 0;
    std::vector<int64_t> sizes{results.shape()[0] / most, most};
    for (int axis = 1; axis < results.shape().rank(); ++axis) sizes.push_back(results.shape()[axis]);
    const Value rows = slice(reshape(results, Shape(sizes)), 0, first, first + samples);
    return slice(rows, 1, 0, of_detections ? detected : trained);
  }
  int64_t samples, trained = 0, detected = 0;
  Value images;
  Value count;  // of each part's samples, the valid images
};

/// relu of a convolution 3x3 with a bias, of the first images. Training computes all.
Value conv_relu(Builder& b, const std::string& name, Value x, Value count, int64_t channels) {
  const Conv2dOptions options{.out_channels = channels, .kernel_size = 3, .padding = 1};
  const SharedConv conv(b, name, x.channels(), options, kReluWeight, Init::zeros());
  return b.training() ? relu(conv(x)) : conv.first_images(x, count, Activation::kRelu);
}

/// The same with a batch norm instead of the bias, as conv_norm.
Value conv_norm_relu(Builder& b, const std::string& name, Value x, Value count, int64_t channels) {
  const auto module = b.scope(name);
  const Conv2dOptions options{.out_channels = channels, .kernel_size = 3, .padding = 1, .bias = false};
  const SharedConv conv(b, "0", x.channels(), options, kReluWeight, Init::zeros());
  return relu(b.batch_norm("1", b.training() ? conv(x) : conv.first_images(x, count, Activation::kNone)));
}

/// x [N,C,H,W] -> [N,channels,H',W']: torch's ConvTranspose2d.
Value transposed_conv(Builder& b, std::string_view name, Value x, Value count, int64_t channels, int64_t kernel, int64_t padding,
                      const Init& bias) {
  constexpr int64_t kStride = 2;
  const auto module = b.scope(name);
  const Shape& s = x.shape();
  const Value weight = b.parameter("weight", {s[1], channels, kernel, kernel}, kReluWeight, "conv_transpose2d");
  const Value shift = b.parameter("bias", {channels}, bias, "conv_transpose2d");
  Conv2dBackwardDataAttrs attrs;
  attrs.stride = {kStride};
  attrs.padding = {padding};
  attrs.input_size = {(s[2] - 1) * kStride - 2 * padding + kernel, (s[3] - 1) * kStride - 2 * padding + kernel};
  const Value y = b.training() ? conv2d_backward_data(x, weight, attrs) : conv2d_backward_data_rows(x, weight, count, attrs);
  return add(y, reshape(shift, {1, channels, 1, 1}));
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
    for (int i = 0; i < 4; ++i)
      x = norm ? conv_norm_relu(b, std::to_string(i), x, input.count, kMaskChannels)
               : conv_relu(b, cat(i, ".0"), x, input.count, kMaskChannels);
  }
  const auto module = b.scope("mask_predictor");
  const auto usual_bias = [](int64_t fan_in) { return Init::uniform(1 / std::sqrt(static_cast<double>(fan_in))); };
  x = relu(transposed_conv(b, "conv5_mask", x, input.count, kMaskChannels, 2, 0, usual_bias(kMaskChannels * 4)));
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
    for (int i = 0; i < 8; ++i) x = conv_relu(b, std::to_string(2 * i), x, input.count, kKeypointChannels);
  }
  const auto module = b.scope("keypoint_predictor");
  x = transposed_conv(b, "kps_score_lowres", x, input.count, num_keypoints, 4, 1, Init::zeros());
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
