// Detectors with regions of interest: Faster R-CNN (Ren et al. 2015) on feature pyramids, and with heads for masks and key points Mask
// R-CNN and Keypoint R-CNN (He et al. 2017), as in torchvision.
//
// A region proposal network scores anchors and moves them; the best are proposals, whose number depends on the image. The heads read the
// features of each proposal. In training they see a sample of the proposals and of the objects' own boxes.

#include <algorithm>
#include <cmath>

#include "libcore/nn/capture.h"
#include "libcore/nn/detection.h"
#include "libcore/nn/detection_parts.h"
#include "libcore/nn/instance_heads.h"
#include "libcore/ops/index.h"
#include "libcore/ops/linear_rows.h"
#include "libcore/ops/loss.h"
#include "libcore/ops/proposals.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/roi_align.h"
#include "libcore/ops/softmax.h"

namespace galley {
namespace {

enum class Sampling { kRandom, kFirst };
constexpr std::array<std::string_view, 2> kSamplingNames{"random", "first"};

struct RpnParams {
  int64_t pre_nms_top_n_train = 2000, pre_nms_top_n_test = 1000, post_nms_top_n_train = 2000, post_nms_top_n_test = 1000;
  double nms_thresh = 0.7, fg_iou_thresh = 0.7, bg_iou_thresh = 0.3, positive_fraction = 0.5, score_thresh = 0;
  int64_t batch_size_per_image = 256;
  void options(OptionVisitor& v) {
    v.option({.name = "rpn_pre_nms_top_n_train", .doc = "anchors of a level that become candidates in training", .min = 1},
             pre_nms_top_n_train);
    v.option({.name = "rpn_pre_nms_top_n_test", .doc = "anchors of a level that become candidates", .min = 1}, pre_nms_top_n_test);
    v.option({.name = "rpn_post_nms_top_n_train", .doc = "largest number of proposals of an image in training", .min = 1},
             post_nms_top_n_train);
    v.option({.name = "rpn_post_nms_top_n_test", .doc = "largest number of proposals of an image", .min = 1}, post_nms_top_n_test);
    v.option({.name = "rpn_nms_thresh", .doc = "of candidates of a level that overlap by more, the best is kept", .min = 0, .max = 1},
             nms_thresh);
    v.option({.name = "rpn_fg_iou_thresh", .doc = "overlap from which on an anchor is trained on an object", .min = 0, .max = 1},
             fg_iou_thresh);
    v.option({.name = "rpn_bg_iou_thresh", .doc = "overlap below which an anchor is trained as background", .min = 0, .max = 1},
             bg_iou_thresh);
    v.option({.name = "rpn_batch_size_per_image", .doc = "anchors of an image in the loss", .min = 1}, batch_size_per_image);
    v.option({.name = "rpn_positive_fraction", .doc = "largest share of anchors with objects in the loss", .min = 0, .max = 1},
             positive_fraction);
    v.option({.name = "rpn_score_thresh", .doc = "proposals have at least this score; fewer proposals cost less", .min = 0, .max = 1},
             score_thresh);
  }
};

struct BoxParams {
  double score_thresh = 0.05, nms_thresh = 0.5, fg_iou_thresh = 0.5, bg_iou_thresh = 0.5, positive_fraction = 0.25;
  int64_t detections_per_img = 100, batch_size_per_image = 512;
  void options(OptionVisitor& v) {
    v.option({.name = "box_score_thresh", .doc = "detections have a higher score", .min = 0, .max = 1}, score_thresh);
    v.option({.name = "box_nms_thresh", .doc = "of detections of a class that overlap by more, the best is kept", .min = 0, .max = 1},
             nms_thresh);
    v.option({.name = "box_detections_per_img", .doc = "largest number of detections of an image", .min = 1}, detections_per_img);
    v.option({.name = "box_fg_iou_thresh", .doc = "overlap from which on a proposal is trained on an object", .min = 0, .max = 1},
             fg_iou_thresh);
    v.option({.name = "box_bg_iou_thresh", .doc = "overlap below which a proposal is trained as background", .min = 0, .max = 1},
             bg_iou_thresh);
    v.option({.name = "box_batch_size_per_image", .doc = "proposals of an image in the loss", .min = 1}, batch_size_per_image);
    v.option({.name = "box_positive_fraction", .doc = "largest share of proposals with objects in the loss", .min = 0, .max = 1},
             positive_fraction);
  }
};

struct RcnnParams : Options {
  int64_t num_classes = 91;
  RpnParams rpn;
  BoxParams box;
  BackboneParams backbone;
  Sampling sampling = Sampling::kRandom;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_classes", .doc = "classes, the background included", .min = 2, .main = true}, num_classes);
    rpn.options(v);
    box.options(v);
    backbone.options(v);
    v.choice({.name = "sampling",
              .doc = "which anchors and proposals count in the loss: drawn by the recipe's seed, or the first, for comparisons"},
             sampling, kSamplingNames);
  }
  std::unique_ptr<Options> clone() const override { return std::make_unique<RcnnParams>(*this); }
};
struct KeypointRcnnParams : RcnnParams {
  KeypointRcnnParams() { num_classes = 2; }
  int64_t num_keypoints = 17;
  void options(OptionVisitor& v) override {
    RcnnParams::options(v);
    v.option({.name = "num_keypoints", .doc = "key points of an object", .min = 1}, num_keypoints);
  }
  std::unique_ptr<Options> clone() const override { return std::make_unique<KeypointRcnnParams>(*this); }
};

using Levels = std::vector<Value>;
constexpr double kSmoothL1Beta = 1.0 / 9;
const Init kRpnWeight = Init::normal(0.01);
const BoxCoder kRegionCoder{.xy = 10, .wh = 5};

Value as_labels(Value values) { return cast(values, DType::kI64); }
Value as_scores(Value labels) { return unsqueeze(cast(labels, DType::kF32), 2); }

/// A sample of the rows with these labels, true in the mask. In evaluation it depends on the row only, so that it does not depend on the
/// batch.
Value sample(Builder& b, Sampling sampling, Value labels, Value count, int64_t size, double positive_fraction) {
  SampleLabelsAttrs attrs;
  attrs.size = size;
  attrs.positive_fraction = positive_fraction;
  attrs.random = sampling == Sampling::kRandom;
  if (attrs.random) attrs.stream = b.random_stream("sample");
  return sample_labels(labels, count, attrs.random && b.training() ? b.rng() : Value(), attrs);
}

/// Adds a part of the objective: the sum of x [N,R] or [N,R,4] where `mask` is true, over the number of rows of `counted`.
void add_part(NamedValues& results, std::string_view name, Value x, Value mask, Value counted) {
  results.emplace_back(cat(name, kLossSum), masked_sum(x, mask));
  results.emplace_back(cat(name, kLossCount), count_true(counted));
}

/// Codes [N,R,4] of boxes where the mask [N,R] is true, and 0 elsewhere, also of rows without a size, which would give NaN.
Value codes_where(Value mask, const BoxCoder& coder, Value boxes, Value from) {
  const Value place = cast(iota(mask.graph(), DType::kI64, {4}, 0), boxes.dtype());
  const Value unit = cast(greater(place, constant_like(place, 1.5)), boxes.dtype());  // the box (0, 0, 1, 1)
  const Value valid = unsqueeze(mask, 2);
  return coder.encode(where(valid, boxes, unit), where(valid, from, unit));
}

// ---- Region proposal network

/// What the network predicts at the anchors of each level.
struct AnchorPredictions {
  Levels logits, codes;  // [N,A,1], [N,A,4]
  Anchors anchors;
};

AnchorPredictions predict_anchors(Builder& b, int depth, const AnchorRule& rule, const Levels& features, const ImageSize& image,
                                  const std::vector<int64_t>& strides) {
  const auto module = b.scope("rpn");
  AnchorPredictions all{.logits = {}, .codes = {}, .anchors = Anchors(b.graph(), rule, image, features, strides)};
  {
    const auto head = b.scope("head");
    const int64_t channels = features[0].channels();
    std::vector<SharedConv> tower;
    for (int i = 0; i < depth; ++i)
      tower.emplace_back(b, cat("conv.", i, ".0"), channels, Conv2dOptions{.out_channels = channels, .kernel_size = 3, .padding = 1},
                         kRpnWeight, Init::zeros());
    const SharedConv scores(b, "cls_logits", channels, {.out_channels = rule.per_cell()}, kRpnWeight, Init::zeros());
    const SharedConv codes(b, "bbox_pred", channels, {.out_channels = 4 * rule.per_cell()}, kRpnWeight, Init::zeros());
    for (size_t level = 0; level < features.size(); ++level) {
      Value x = features[level];
      for (const SharedConv& conv : tower) x = relu(conv(x));
      all.logits.push_back(by_anchor(all.anchors.logits(level, scores(x)), 1));
      all.codes.push_back(by_anchor(codes(x), 4));
    }
  }
  return all;
}

/// The best anchors of each level, moved, without those that overlap a better one.
CountedBoxes propose(Builder& b, const RpnParams& params, const AnchorPredictions& predicted, const ImageSize& image) {
  const auto module = b.scope("rpn");
  Levels boxes, scores;
  const auto levels = std::ssize(predicted.logits);
  for (size_t level = 0; level < predicted.logits.size(); ++level) {
    const Value logits = predicted.logits[level];
    const int64_t samples = logits.shape()[0], rows = logits.shape()[1];
    TopkAttrs attrs;
    attrs.k = std::min(b.training() ? params.pre_nms_top_n_train : params.pre_nms_top_n_test, rows);
    const TopK best = topk(reshape(logits, {samples, rows}), attrs);
    const TensorType integers{.dtype = DType::kI64, .shape = {samples}};
    const Value all = full(b.graph(), integers, static_cast<double>(attrs.k));
    const TakenBoxes codes = take_boxes(predicted.codes[level], logits, best.indices, all);
    const Value each = predicted.anchors.boxes[level];
    const Value anchors = broadcast_to(each.shape().rank() == 3 ? each : unsqueeze(each, 0), Shape{samples, rows, 4});
    const Value from = take_boxes(anchors, logits, best.indices, all).boxes;
    boxes.push_back(clip_boxes(BoxCoder().decode(codes.boxes, from), image));
    Value score = sigmoid(codes.scores);
    score = where(less(score, constant_like(score, params.score_thresh)), constant_like(score, -1), score);
    if (!predicted.anchors.grids.empty())
      score = where(less(codes.scores, constant_like(score, Anchors::kNever / 2)), constant_like(score, -1), score);
    const Value own = full(b.graph(), {.dtype = DType::kI64, .shape = {samples, attrs.k}}, static_cast<double>(level));
    scores.push_back(in_columns(without_small(boxes.back(), score, 1e-3), own, levels));
  }
  NmsAttrs attrs;
  attrs.score_threshold = -0.5;
  attrs.iou_threshold = params.nms_thresh;
  attrs.max_output = b.training() ? params.post_nms_top_n_train : params.post_nms_top_n_test;
  const Value all = join(boxes, 1), candidates = join(scores, 1);
  const Nms chosen = nms(all, candidates, attrs);
  return {take_boxes(all, candidates, chosen.index, chosen.count).boxes, chosen.count};
}

void add_rpn_losses(Builder& b, NamedValues& results, const RcnnParams& params, const AnchorPredictions& predicted,
                    const Objects& objects) {
  const auto module = b.scope("rpn.loss");
  const RpnParams& rpn = params.rpn;
  MatchBoxesAttrs attrs = matching("rpn_", rpn.fg_iou_thresh, rpn.bg_iou_thresh);
  attrs.best = MatchBest::kLowQuality;
  const Value anchors = predicted.anchors.joined(), logits = squeeze(join(predicted.logits, 1), 2), codes = join(predicted.codes, 1);
  MatchedBoxes matched = match_boxes(anchors, objects.boxes, objects.labels, objects.offsets, attrs);
  matched.labels = predicted.anchors.own(matched.labels);
  const Value sampled = sample(b, params.sampling, matched.labels, {}, rpn.batch_size_per_image, rpn.positive_fraction);
  const Value found = cast(matched.labels, DType::kF32);
  const Value positive = foreground(as_labels(where(sampled, found, constant_like(found, 0))));
  LossAttrs each;
  each.reduction = Reduction::kNone;
  const Value target = where(positive, constant_like(logits, 1), constant_like(logits, 0));
  add_part(results, "loss_objectness", bce_with_logits(logits, target, {}, each), sampled, sampled);
  add_part(results, "loss_rpn_box_reg", smooth_l1(codes, BoxCoder().encode(matched.boxes, anchors), kSmoothL1Beta), positive, sampled);
}

// ---- Regions

/// Rows that the heads read.
struct Regions {
  Value boxes, count;              // [N,R,4], i64 [N]
  Value labels, matched, sampled;  // i64 [N,R], [N,R,4], bool [N,R]: the objects of the losses; absent without objects
};

MatchedBoxes match_regions(const BoxParams& params, Value boxes, const Objects& objects) {
  const MatchBoxesAttrs attrs = matching("box_", params.fg_iou_thresh, params.bg_iou_thresh);
  return match_boxes(boxes, objects.boxes, objects.labels, objects.offsets, attrs);
}

/// In training, a sample of the proposals and of the objects' own boxes.
Regions sampled_regions(Builder& b, const RcnnParams& params, const CountedBoxes& proposals, const Objects& objects) {
  const BoxParams& box = params.box;
  const CountedBoxes all = append_objects(proposals.boxes, proposals.count, objects.boxes, objects.offsets);
  const MatchedBoxes matched = match_regions(box, all.boxes, objects);
  const Value mask = sample(b, params.sampling, matched.labels, all.count, box.batch_size_per_image, box.positive_fraction);
  const TrueRows rows = true_rows(mask, box.batch_size_per_image);
  const Value labels = as_scores(matched.labels);
  const TakenBoxes taken = take_boxes(all.boxes, labels, rows.index, rows.count);
  return {.boxes = taken.boxes,
          .count = rows.count,
          .labels = as_labels(taken.scores),
          .matched = take_boxes(matched.boxes, labels, rows.index, rows.count).boxes,
          .sampled = first_rows(rows.count, box.batch_size_per_image)};
}

/// In evaluation, all proposals; a sample of them counts in the losses.
Regions all_regions(Builder& b, const RcnnParams& params, const CountedBoxes& proposals, const Objects& objects) {
  Regions regions{.boxes = proposals.boxes, .count = proposals.count, .labels = {}, .matched = {}, .sampled = {}};
  if (!objects) return regions;
  const BoxParams& box = params.box;
  const MatchedBoxes matched = match_regions(box, proposals.boxes, objects);
  regions.labels = matched.labels;
  regions.matched = matched.boxes;
  regions.sampled = sample(b, params.sampling, matched.labels, proposals.count, box.batch_size_per_image, box.positive_fraction);
  return regions;
}

/// The regions of objects among those that count in the losses, as many as training samples.
InstanceRows regions_of_objects(const BoxParams& params, const Regions& regions, const Objects& objects) {
  const Value values = cast(regions.labels, DType::kF32);
  const Value positive = foreground(as_labels(where(regions.sampled, values, constant_like(values, 0))));
  const auto most = static_cast<int64_t>(static_cast<double>(params.batch_size_per_image) * params.positive_fraction);
  const TrueRows rows = true_rows(positive, std::max<int64_t>(1, most));
  const TakenBoxes taken = take_boxes(regions.boxes, as_scores(regions.labels), rows.index, rows.count);
  // Matched with the objects' numbers, from 1, in place of their labels, regions have the numbers of their objects.
  const Value numbers = affine(iota(objects.boxes.graph(), DType::kF32, {objects.boxes.shape()[0]}, 0), 1, 1);
  const MatchedBoxes matched = match_regions(params, taken.boxes, {objects.boxes, as_labels(numbers), objects.offsets});
  return {.boxes = taken.boxes,
          .labels = as_labels(taken.scores),
          .count = rows.count,
          .object = as_labels(affine(cast(matched.labels, DType::kF32), 1, -1))};
}

/// Features of the regions, [N,R,C,side,side], of the levels of a pyramid.
Value region_features(const Levels& levels, const Shape& image, Value boxes, Value count, int64_t side) {
  RoiAlignAttrs attrs;
  attrs.output_size = {side, side};
  attrs.sampling_ratio = 2;
  attrs.spatial_scale.clear();
  for (const Value& level : levels)
    attrs.spatial_scale.push_back(std::exp2(std::round(std::log2(static_cast<double>(level.shape()[2]) / static_cast<double>(image[2])))));
  return roi_align(levels[0], boxes, attrs, count, Levels(levels.begin() + 1, levels.end()));
}

/// A linear layer of the regions [N,R,I]. In evaluation rows from the count on cost nothing.
Value region_linear(Builder& b, std::string_view name, Value x, Value count, int64_t features, Activation activation = Activation::kNone) {
  if (b.training()) {
    x = b.linear(name, x, {.out_features = features});
    return activation == Activation::kRelu ? relu(x) : x;
  }
  const auto module = b.scope(name);
  const LinearParameters layer = b.linear_parameters(x.shape()[2], {.out_features = features});
  LinearAttrs attrs;
  attrs.activation = activation;
  return linear_rows(x, layer.weight, layer.bias, count, attrs);
}

constexpr int64_t kRepresentation = 1024;  // features of a region

/// torchvision's TwoMLPHead.
Value two_linear_head(Builder& b, Value x, Value count) {
  const auto module = b.scope("box_head");
  const Shape& s = x.shape();
  x = reshape(x, {s[0], s[1], s[2] * s[3] * s[4]});
  x = region_linear(b, "fc6", x, count, kRepresentation, Activation::kRelu);
  return region_linear(b, "fc7", x, count, kRepresentation, Activation::kRelu);
}

/// torchvision's FastRCNNConvFCHead: four convolutions with batch norms and a linear layer.
Value convolution_head(Builder& b, Value x, Value count) {
  const auto module = b.scope("box_head");
  const auto init = b.use_init({.conv_weight = Init::kaiming_normal(Init::Fan::kOut)});
  const Shape s = x.shape();
  x = reshape(x, {s[0] * s[1], s[2], s[3], s[4]});
  for (int i = 0; i < 4; ++i) x = conv_norm(b, std::to_string(i), x, {.channels = s[2], .kernel = 3, .activation = ActivationKind::kRelu});
  return region_linear(b, "5", reshape(x, {s[0], s[1], s[2] * s[3] * s[4]}), count, kRepresentation, Activation::kRelu);
}

/// What the heads predict for regions.
struct RegionPredictions {
  Value logits, codes;  // [N,R,K], [N,R,K,4]
};

void add_region_losses(NamedValues& results, const Regions& regions, const RegionPredictions& predicted) {
  const Shape& s = predicted.logits.shape();
  const Value values = cast(regions.labels, DType::kF32);
  const Value labels = as_labels(where(regions.sampled, values, constant_like(values, 0)));
  const Value positive = foreground(labels);
  CrossEntropyAttrs each;
  each.reduction = Reduction::kNone;
  const Value rows = cross_entropy(reshape(predicted.logits, {s[0] * s[1], s[2]}), reshape(labels, {s[0] * s[1]}), {}, each);
  add_part(results, "loss_classifier", reshape(rows, {s[0], s[1]}), regions.sampled, regions.sampled);
  const Value own = sum(mul(predicted.codes, unsqueeze(cast(one_hot(labels, s[2]), predicted.codes.dtype()), 3)), {2});
  const Value target = codes_where(positive, kRegionCoder, regions.matched, regions.boxes);
  add_part(results, "loss_box_reg", smooth_l1(own, target, kSmoothL1Beta), positive, regions.sampled);
}

void add_region_detections(NamedValues& results, const BoxParams& params, const Regions& regions, const RegionPredictions& predicted,
                           const ImageSize& image) {
  // Without the background.
  const Value codes = slice(predicted.codes, 2, 1), scores = slice(softmax(predicted.logits), 2, 1);
  const Value boxes = clip_boxes(kRegionCoder.decode(codes, unsqueeze(regions.boxes, 2)), image);
  NmsAttrs attrs;
  attrs.score_threshold = params.score_thresh;
  attrs.iou_threshold = params.nms_thresh;
  attrs.max_output = params.detections_per_img;
  add_detections(results, boxes, without_small(boxes, scores, 1e-2), attrs, 1, regions.count);
}

/// The parts in which the models differ.
struct Architecture {
  AnchorRule anchors;
  std::vector<int64_t> strides;  // of the levels of the pyramid
  int rpn_depth;
  Value (*box_head)(Builder& b, Value x, Value count);
  void (*instances)(Builder& b, const RcnnParams& params, NamedValues& results, const InstanceHead& head,
                    const NamedValues& inputs) = nullptr;
};

/// The masks or key points of objects. Their absence is an error where rows are trained.
Value objects_field(Builder& b, const NamedValues& inputs, std::string_view name, std::string_view field) {
  const Value found = value_of(inputs, name);
  if (b.training() && !found) {
    throw Error(ErrorCode::kRecipe, cat("training this detector needs the field `", field, "`, which the data do not have"))
        .key("data.train.source")
        .suggest(cat("a coco source with ", field, ": true"));
  }
  return found;
}

template <bool kNorm>
void mask_instances(Builder& b, const RcnnParams& params, NamedValues& results, const InstanceHead& head, const NamedValues& inputs) {
  InstanceHead given = head;
  const Value masks = objects_field(b, inputs, kObjectMasks, "masks");
  if (!masks) given.trained = {};
  add_masks(b, results, given, masks, params.num_classes, kNorm);
}

void keypoint_instances(Builder& b, const RcnnParams& params, NamedValues& results, const InstanceHead& head, const NamedValues& inputs) {
  InstanceHead given = head;
  const Value keypoints = objects_field(b, inputs, kObjectKeypoints, "keypoints");
  if (!keypoints) given.trained = {};
  add_keypoints(b, results, given, keypoints, params_of<KeypointRcnnParams>(params).num_keypoints);
}

NamedValues faster_rcnn(Builder& b, const RcnnParams& params, const Architecture& architecture, const Levels& features,
                        const NamedValues& inputs) {
  const Shape& image = inputs.front().second.shape();
  const Objects objects = objects_of(b, inputs);
  NamedValues results;
  const AnchorPredictions predicted =
      predict_anchors(b, architecture.rpn_depth, architecture.anchors, features, ImageSize(inputs), architecture.strides);
  const CountedBoxes proposals = propose(b, params.rpn, predicted, ImageSize(inputs));
  if (objects) add_rpn_losses(b, results, params, predicted, objects);
  const auto module = b.scope("roi_heads");
  const Regions regions = b.training() ? sampled_regions(b, params, proposals, objects) : all_regions(b, params, proposals, objects);
  const Levels pooled(features.begin(), features.end() - 1);  // without the extra level
  const Value x = architecture.box_head(b, region_features(pooled, image, regions.boxes, regions.count, 7), regions.count);
  RegionPredictions heads;
  {
    const auto predictor = b.scope("box_predictor");
    heads.logits = region_linear(b, "cls_score", x, regions.count, params.num_classes);
    const Shape& s = heads.logits.shape();
    heads.codes = reshape(region_linear(b, "bbox_pred", x, regions.count, 4 * params.num_classes), {s[0], s[1], s[2], 4});
  }
  if (objects) {
    const auto loss = b.scope("loss");
    add_region_losses(results, regions, heads);
  }
  if (!b.training()) {
    const auto postprocess = b.scope("postprocess");
    add_region_detections(results, params.box, regions, heads, ImageSize(inputs));
  }
  if (architecture.instances == nullptr) return results;
  InstanceHead head{
      .pool = [&](Value boxes, Value count) { return region_features(pooled, image, boxes, count, 14); },
      .trained = {},
      .detected = {value_of(results, kDetectedBoxes), value_of(results, kDetectedLabels), value_of(results, kDetectedCount), {}}};
  if (objects) head.trained = regions_of_objects(params.box, regions, objects);
  architecture.instances(b, params, results, head, inputs);
  return results;
}

const std::vector<double> kRatios{0.5, 1, 2};

/// What a model with regions detects.
enum class Finds { kBoxes, kMasks, kKeypoints };

template <bool kSecondVersion, Finds kFinds = Finds::kBoxes>
NamedValues resnet50_rcnn(Builder& b, const Options& options, const NamedValues& inputs) {
  const auto& params = params_of<RcnnParams>(options);
  const Levels features = resnet50_pyramid(b, params.backbone, {0, 1, 2, 3}, ExtraLevels::kPool, inputs.front().second, kSecondVersion);
  const AnchorRule anchors{.sizes = {{32}, {64}, {128}, {256}, {512}}, .ratios = kRatios};
  Architecture architecture{anchors, {4, 8, 16, 32, 64}, kSecondVersion ? 2 : 1, kSecondVersion ? convolution_head : two_linear_head};
  if (kFinds == Finds::kMasks) architecture.instances = mask_instances<kSecondVersion>;
  if (kFinds == Finds::kKeypoints) architecture.instances = keypoint_instances;
  return faster_rcnn(b, params, architecture, features, inputs);
}

NamedValues mobilenet_rcnn(Builder& b, const Options& options, const NamedValues& inputs) {
  const auto& params = params_of<RcnnParams>(options);
  const Levels features = mobilenet_v3_large_pyramid(b, params.backbone, inputs.front().second);
  const AnchorRule anchors{.sizes = std::vector<std::vector<double>>(3, {32, 64, 128, 256, 512}), .ratios = kRatios};
  return faster_rcnn(b, params, {anchors, {32, 32, 64}, 1, two_linear_head}, features, inputs);
}

template <int64_t kHeight, int64_t kWidth, Finds kFinds = Finds::kBoxes>
ModelInfo info(const Options& options) {
  ModelInfo info{"rcnn", ModelOutput::kDetections, {3, kHeight, kWidth}, image_names()};
  info.inputs = detector_inputs(kHeight, kWidth);
  if (kFinds == Finds::kMasks) info.inputs.push_back(masks_input(kHeight, kWidth));
  if (kFinds == Finds::kKeypoints) info.inputs.push_back(keypoints_input(params_of<KeypointRcnnParams>(options).num_keypoints));
  info.named_outputs = true;
  info.classes = params_of<RcnnParams>(options).num_classes;
  return info;
}

std::unique_ptr<Options> make_mobilenet() {
  auto params = std::make_unique<RcnnParams>();
  params->rpn.score_thresh = 0.05;
  return params;
}
std::unique_ptr<Options> make_mobilenet_320() {
  auto params = std::make_unique<RcnnParams>();
  params->rpn.score_thresh = 0.05;
  params->rpn.pre_nms_top_n_test = params->rpn.post_nms_top_n_test = 150;
  return params;
}

}  // namespace

ModelTable rcnn_models() {
  return {
      {{"fasterrcnn_resnet50_fpn", "Faster R-CNN (Ren et al. 2015) on ResNet-50, 41.8 M parameters", make_options<RcnnParams>},
       nullptr,
       info<800, 1088>,
       resnet50_rcnn<false>},
      {{"fasterrcnn_resnet50_fpn_v2", "Faster R-CNN on ResNet-50 with batch norms in its heads, 43.7 M parameters",
        make_options<RcnnParams>},
       nullptr,
       info<800, 1088>,
       resnet50_rcnn<true>},
      {{"fasterrcnn_mobilenet_v3_large_fpn", "Faster R-CNN on MobileNetV3-Large, 19.4 M parameters", make_mobilenet},
       nullptr,
       info<800, 1088>,
       mobilenet_rcnn},
      {{"fasterrcnn_mobilenet_v3_large_320_fpn", "Faster R-CNN on MobileNetV3-Large for small images, 19.4 M parameters",
        make_mobilenet_320},
       nullptr,
       info<320, 448>,
       mobilenet_rcnn},
      {{"maskrcnn_resnet50_fpn", "Mask R-CNN (He et al. 2017) on ResNet-50, 44.5 M parameters", make_options<RcnnParams>},
       nullptr,
       info<800, 1088, Finds::kMasks>,
       resnet50_rcnn<false, Finds::kMasks>},
      {{"maskrcnn_resnet50_fpn_v2", "Mask R-CNN on ResNet-50 with batch norms in its heads, 46.4 M parameters", make_options<RcnnParams>},
       nullptr,
       info<800, 1088, Finds::kMasks>,
       resnet50_rcnn<true, Finds::kMasks>},
      {{"keypointrcnn_resnet50_fpn", "Keypoint R-CNN (He et al. 2017) on ResNet-50, 59.2 M parameters", make_options<KeypointRcnnParams>},
       nullptr,
       info<800, 1088, Finds::kKeypoints>,
       resnet50_rcnn<false, Finds::kKeypoints>},
  };
}

}  // namespace galley
