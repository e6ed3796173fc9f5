// Detectors that predict at every place of a feature pyramid: RetinaNet (Lin et al. 2017) and FCOS (Tian et al. 2019), as in torchvision.

#include <cmath>

#include "libcore/nn/capture.h"
#include "libcore/nn/detection.h"
#include "libcore/nn/detection_parts.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/index.h"
#include "libcore/ops/loss.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/reduce.h"

namespace galley {
namespace {

struct DenseParams : OptionsOf<DenseParams> {
  int64_t num_classes = 91;
  double score_thresh = 0.05, nms_thresh = 0.5;
  int64_t detections_per_img = 300, topk_candidates = 1000;
  BackboneParams backbone;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_classes", .doc = "classes, the background included", .min = 2, .main = true}, num_classes);
    v.option({.name = "score_thresh", .doc = "detections have a higher score", .min = 0, .max = 1}, score_thresh);
    v.option({.name = "nms_thresh", .doc = "of detections of a class that overlap by more, the best is kept", .min = 0, .max = 1},
             nms_thresh);
    v.option({.name = "detections_per_img", .doc = "largest number of detections of an image", .min = 1}, detections_per_img);
    v.option({.name = "topk_candidates", .doc = "largest number of candidates of a level of the pyramid", .min = 1}, topk_candidates);
    backbone.options(v);
  }
};

struct RetinaNetParams : OptionsOf<RetinaNetParams> {
  DenseParams dense;
  double fg_iou_thresh = 0.5, bg_iou_thresh = 0.4;
  void options(OptionVisitor& v) override {
    dense.options(v);
    v.option({.name = "fg_iou_thresh", .doc = "overlap from which on an anchor is trained on an object", .min = 0, .max = 1},
             fg_iou_thresh);
    v.option({.name = "bg_iou_thresh", .doc = "overlap below which an anchor is trained as background", .min = 0, .max = 1}, bg_iou_thresh);
  }
};

struct FcosParams : OptionsOf<FcosParams> {
  DenseParams dense;
  double center_sampling_radius = 1.5;
  FcosParams() {
    dense.score_thresh = 0.2;
    dense.nms_thresh = 0.6;
    dense.detections_per_img = 100;
  }
  void options(OptionVisitor& v) override {
    dense.options(v);
    v.option({.name = "center_sampling_radius",
              .doc = "places within this distance of an object's center are trained on it, in sizes of the place",
              .min = 0},
             center_sampling_radius);
  }
};

const std::vector<int64_t> kStrides{8, 16, 32, 64, 128};  // of the levels of the pyramid
constexpr double kPrior = 0.01;                           // probability of an object in the untrained model
const Init kHeadWeight = Init::normal(0.01);

/// Layers that all levels of the pyramid share: `count` convolutions with relu.
class Tower {
 public:
  enum class Norm { kNone, kGroup, kGroupNested };  // kGroupNested: convolution and norm are a module

  Tower(Builder& b, Norm norm, int64_t channels, int count = 4) : norm_(norm) {
    const auto module = b.scope("conv");
    for (int i = 0; i < count; ++i) {
      const bool nested = norm != Norm::kGroup;
      const int64_t step = nested ? 1 : 3;  // torchvision numbers norms and activations too
      const std::string name = std::to_string(i * step);
      const Conv2dOptions options{.out_channels = channels, .kernel_size = 3, .padding = 1, .bias = norm != Norm::kGroupNested};
      convs_.emplace_back(b, nested ? name + ".0" : name, channels, options, kHeadWeight, Init::zeros());
      if (norm == Norm::kNone) continue;
      const auto inner = b.scope(nested ? name + ".1" : std::to_string(i * step + 1));
      scales_.push_back(b.parameter("weight", {channels}, Init::ones(), "group_norm"));
      shifts_.push_back(b.parameter("bias", {channels}, Init::zeros(), "group_norm"));
    }
  }
  Value operator()(Value x) const {
    GroupNormAttrs attrs;
    attrs.groups = 32;
    for (size_t i = 0; i < convs_.size(); ++i) {
      x = convs_[i](x);
      if (norm_ != Norm::kNone) x = emit("group_norm", {x, scales_[i], shifts_[i]}, attrs);
      x = relu(x);
    }
    return x;
  }

 private:
  Norm norm_;
  std::vector<SharedConv> convs_;
  std::vector<Value> scales_, shifts_;
};

SharedConv predictor(Builder& b, std::string_view name, int64_t channels, int64_t out, double bias = 0) {
  return SharedConv(b, name, channels, {.out_channels = out, .kernel_size = 3, .padding = 1}, kHeadWeight, Init::constant(bias));
}

/// The results of a head on each level.
using Levels = std::vector<Value>;

/// The best candidates of each level, then the best of each class over all levels.
void add_dense_detections(NamedValues& results, const DenseParams& params, const Levels& boxes, const Levels& scores) {
  Levels taken_boxes, taken_scores;
  const int64_t classes = scores[0].shape()[2];
  for (size_t level = 0; level < boxes.size(); ++level) {
    const Shape& s = scores[level].shape();
    const int64_t count = std::min(params.topk_candidates, s[1] * s[2]);
    TopkAttrs attrs;
    attrs.k = count;
    const TopK best = topk(reshape(scores[level], {s[0], s[1] * s[2]}), attrs);
    const Value all = full(scores[level].graph(), {.dtype = DType::kI64, .shape = {s[0]}}, static_cast<double>(count));
    const TakenBoxes taken = take_boxes(boxes[level], scores[level], best.indices, all);
    taken_boxes.push_back(taken.boxes);
    taken_scores.push_back(in_columns(taken.scores, taken.labels, classes));
  }
  NmsAttrs attrs;
  attrs.score_threshold = params.score_thresh;
  attrs.iou_threshold = params.nms_thresh;
  attrs.max_output = params.detections_per_img;
  add_detections(results, join(taken_boxes, 1), join(taken_scores, 1), attrs, 0);
}

/// Focal loss (Lin et al. 2017) of logits [N,A,K] summed over each sample: [N]. `labels` [N,A]: the class of each anchor,
/// 0 for background, -1 for anchors that do not count.
Value focal_sum(Value logits, Value labels) {
  constexpr double kAlpha = 0.25;
  const Value values = cast(labels, DType::kF32);
  const Value index = cast(clamp(values, 0, std::numeric_limits<double>::infinity()), DType::kI64);
  const Value positive = unsqueeze(greater(values, constant_like(values, 0)), 2);
  const Value target = where(positive, cast(one_hot(index, logits.shape()[2]), logits.dtype()), constant_like(logits, 0));
  LossAttrs each;
  each.reduction = Reduction::kNone;
  const Value weight = mul(affine(target, 2 * kAlpha - 1, 1 - kAlpha), square(sub(target, sigmoid(logits))));
  const Value losses = mul(weight, bce_with_logits(logits, target, {}, each));
  const Value counts = greater(values, constant_like(values, -0.5));
  return sum(where(unsqueeze(counts, 2), losses, constant_like(losses, 0)), {1, 2});
}

/// The results of a dense detector: detections unless the builder captures training, losses where there are objects. decode(level) gives
/// the boxes of a level, score(level) their scores; losses(results, objects) adds the losses.
template <class Decode, class Score, class Losses>
NamedValues finish(Builder& b, const DenseParams& params, const NamedValues& inputs, const Anchors& anchors, const Decode& decode,
                   const Score& score, const Losses& losses) {
  NamedValues results;
  const Objects objects = objects_of(b, inputs);
  if (!b.training()) {
    const auto module = b.scope("postprocess");
    Levels boxes, scores;
    for (size_t level = 0; level < anchors.boxes.size(); ++level) {
      boxes.push_back(clip_boxes(decode(level), ImageSize(inputs)));
      scores.push_back(score(level));
    }
    add_dense_detections(results, params, boxes, scores);
  }
  if (objects) {
    const auto module = b.scope("loss");
    losses(results, objects);
  }
  return results;
}

Value at_least_one(Value count) { return clamp(count, 1, std::numeric_limits<double>::infinity()); }

// ---- RetinaNet

AnchorRule retinanet_anchors() {
  AnchorRule rule{.sizes = {}, .ratios = {0.5, 1, 2}};
  for (const double size : {32.0, 64.0, 128.0, 256.0, 512.0})
    rule.sizes.push_back({size, std::floor(size * std::pow(2, 1.0 / 3)), std::floor(size * std::pow(2, 2.0 / 3))});
  return rule;
}

void add_retinanet_losses(NamedValues& results, const RetinaNetParams& params, bool giou, const Anchors& all, Value codes, Value logits,
                          const Objects& objects) {
  MatchBoxesAttrs attrs = matching("", params.fg_iou_thresh, params.bg_iou_thresh);
  attrs.best = MatchBest::kLowQuality;
  const Value anchors = all.joined();
  MatchedBoxes matched = match_boxes(anchors, objects.boxes, objects.labels, objects.offsets, attrs);
  matched.labels = all.own(matched.labels);
  const Value positive = foreground(matched.labels), positives = at_least_one(count_true(positive));
  const BoxCoder coder;
  Value box_losses;
  if (giou) {
    box_losses = masked_sum(giou_loss(coder.decode(codes, anchors), matched.boxes), positive);
  } else {
    box_losses = masked_sum(abs(sub(codes, coder.encode(matched.boxes, anchors))), positive);
  }
  const Value one = affine(positives, 0, 1);  // a mean over images
  results.emplace_back("classification.sum", div(focal_sum(logits, matched.labels), positives));
  results.emplace_back("classification.count", one);
  results.emplace_back("bbox_regression.sum", div(box_losses, positives));
  results.emplace_back("bbox_regression.count", one);
}

template <bool kSecondVersion>
NamedValues retinanet(Builder& b, const Options& options, const NamedValues& inputs) {
  const auto& params = params_of<RetinaNetParams>(options);
  const Levels features = resnet50_pyramid(b, params.dense.backbone, {1, 2, 3},
                                           kSecondVersion ? ExtraLevels::kFromC5 : ExtraLevels::kFromP5, inputs.front().second);
  const AnchorRule rule = retinanet_anchors();
  const Anchors anchors(b.graph(), rule, ImageSize(inputs), features, kStrides);
  Levels codes, logits;
  {
    const auto head = b.scope("head");
    const auto norm = kSecondVersion ? Tower::Norm::kGroupNested : Tower::Norm::kNone;
    const int64_t per_cell = 9, channels = features[0].channels();
    const auto apply = [&](std::string_view name, std::string_view leaf, int64_t each, double bias) {
      const auto module = b.scope(name);
      const Tower tower(b, norm, channels);
      const SharedConv last = predictor(b, leaf, channels, per_cell * each, bias);
      Levels levels;
      for (size_t level = 0; level < features.size(); ++level) {
        const Value x = last(tower(features[level]));
        levels.push_back(by_anchor(name == "classification_head" ? anchors.logits(level, x) : x, each));
      }
      return levels;
    };
    logits = apply("classification_head", "cls_logits", params.dense.num_classes, -std::log((1 - kPrior) / kPrior));
    codes = apply("regression_head", "bbox_reg", 4, 0);
  }
  return finish(
      b, params.dense, inputs, anchors, [&](size_t level) { return BoxCoder().decode(codes[level], anchors.boxes[level]); },
      [&](size_t level) { return sigmoid(logits[level]); },
      [&](NamedValues& results, const Objects& objects) {
        add_retinanet_losses(results, params, kSecondVersion, anchors, join(codes, 1), join(logits, 1), objects);
      });
}

// ---- FCOS

/// Boxes of codes, the distances of their sides from the centers of anchors in sizes of the anchor: torchvision's BoxLinearCoder.
Value decode_distances(Value codes, Value anchors) {
  const Value w = sub(column(anchors, 2), column(anchors, 0)), h = sub(column(anchors, 3), column(anchors, 1));
  const Value x = affine(add(column(anchors, 0), column(anchors, 2)), 0.5), y = affine(add(column(anchors, 1), column(anchors, 3)), 0.5);
  return concat({sub(x, mul(column(codes, 0), w)), sub(y, mul(column(codes, 1), h)), add(x, mul(column(codes, 2), w)),
                 add(y, mul(column(codes, 3), h))},
                codes.shape().rank() - 1);
}

/// How central anchors [A,4] are in boxes [N,A,4]: [N,A].
Value centerness(Value boxes, Value anchors) {
  const Value x = affine(add(column(anchors, 0), column(anchors, 2)), 0.5), y = affine(add(column(anchors, 1), column(anchors, 3)), 0.5);
  const Value left = sub(x, column(boxes, 0)), right = sub(column(boxes, 2), x), top = sub(y, column(boxes, 1)),
              bottom = sub(column(boxes, 3), y);
  const auto ratio = [](Value a, Value b) { return div(minimum(a, b), maximum(a, b)); };
  return squeeze(sqrt(mul(ratio(left, right), ratio(top, bottom))), 2);
}

void add_fcos_losses(NamedValues& results, double radius, const Anchors& anchors, Value codes, Value logits, Value centers,
                     const Objects& objects) {
  MatchCentersAttrs attrs;
  attrs.radius = radius;
  attrs.first = anchors.boxes.front().shape()[-2];
  attrs.last = anchors.boxes.back().shape()[-2];
  const Value all = anchors.joined();
  MatchedBoxes matched = match_centers(all, objects.boxes, objects.labels, objects.offsets, attrs);
  matched.labels = anchors.own(matched.labels);
  const Value positive = foreground(matched.labels), positives = count_true(positive);
  LossAttrs each;
  each.reduction = Reduction::kNone;
  const Value central = bce_with_logits(squeeze(centers, 2), centerness(matched.boxes, all), {}, each);
  results.emplace_back("classification.sum", focal_sum(logits, matched.labels));
  results.emplace_back("classification.count", positives);
  results.emplace_back("bbox_regression.sum", masked_sum(giou_loss(decode_distances(codes, all), matched.boxes), positive));
  results.emplace_back("bbox_regression.count", positives);
  results.emplace_back("bbox_ctrness.sum", masked_sum(central, positive));
  results.emplace_back("bbox_ctrness.count", positives);
}

NamedValues fcos(Builder& b, const Options& options, const NamedValues& inputs) {
  const auto& params = params_of<FcosParams>(options);
  const Levels features = resnet50_pyramid(b, params.dense.backbone, {1, 2, 3}, ExtraLevels::kFromP5, inputs.front().second);
  const AnchorRule rule{.sizes = {{8}, {16}, {32}, {64}, {128}}, .ratios = {1}};
  const Anchors anchors(b.graph(), rule, ImageSize(inputs), features, kStrides);
  Levels codes, logits, centers;
  {
    const auto head = b.scope("head");
    const int64_t channels = features[0].channels(), classes = params.dense.num_classes;
    {
      const auto module = b.scope("classification_head");
      const Tower tower(b, Tower::Norm::kGroup, channels);
      const SharedConv last = predictor(b, "cls_logits", channels, classes, -std::log((1 - kPrior) / kPrior));
      for (size_t level = 0; level < features.size(); ++level)
        logits.push_back(by_anchor(anchors.logits(level, last(tower(features[level]))), classes));
    }
    const auto module = b.scope("regression_head");
    const Tower tower(b, Tower::Norm::kGroup, channels);
    const SharedConv sides = predictor(b, "bbox_reg", channels, 4), central = predictor(b, "bbox_ctrness", channels, 1);
    for (const Value& feature : features) {
      const Value x = tower(feature);
      codes.push_back(by_anchor(relu(sides(x)), 4));
      centers.push_back(by_anchor(central(x), 1));
    }
  }
  return finish(
      b, params.dense, inputs, anchors, [&](size_t level) { return decode_distances(codes[level], anchors.boxes[level]); },
      [&](size_t level) { return sqrt(mul(sigmoid(logits[level]), sigmoid(centers[level]))); },
      [&](NamedValues& results, const Objects& objects) {
        add_fcos_losses(results, params.center_sampling_radius, anchors, join(codes, 1), join(logits, 1), join(centers, 1), objects);
      });
}

template <class Params>
ModelInfo info(const Options& options) {
  constexpr int64_t kHeight = 800, kWidth = 1088;
  ModelInfo info{"retinanet", ModelOutput::kDetections, {3, kHeight, kWidth}, image_names()};
  info.inputs = detector_inputs(kHeight, kWidth);
  info.named_outputs = true;
  info.classes = params_of<Params>(options).dense.num_classes;
  return info;
}

}  // namespace

ModelTable retinanet_models() {
  return {
      {{"retinanet_resnet50_fpn", "RetinaNet (Lin et al. 2017) on ResNet-50, 34.0 M parameters", make_options<RetinaNetParams>},
       nullptr,
       info<RetinaNetParams>,
       retinanet<false>},
      {{"retinanet_resnet50_fpn_v2", "RetinaNet on ResNet-50 with group norms, 38.2 M parameters", make_options<RetinaNetParams>},
       nullptr,
       info<RetinaNetParams>,
       retinanet<true>},
      {{"fcos_resnet50_fpn", "FCOS (Tian et al. 2019) on ResNet-50, 32.3 M parameters", make_options<FcosParams>},
       nullptr,
       info<FcosParams>,
       fcos},
  };
}

}  // namespace galley
