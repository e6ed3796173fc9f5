// SSD (Liu et al. 2015) on VGG-16 and SSDlite (Sandler et al. 2018) on MobileNetV3-Large, as in torchvision.

#include <cmath>

#include "libcore/nn/capture.h"
#include "libcore/nn/detection.h"
#include "libcore/nn/zoo_backbones.h"
#include "libcore/ops/loss.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/softmax.h"

namespace galley {
namespace {

struct SsdParams : OptionsOf<SsdParams> {
  int64_t num_classes = 91;
  double score_thresh = 0.01, nms_thresh = 0.45, iou_thresh = 0.5, positive_fraction = 0.25;
  int64_t detections_per_img = 200, topk_candidates = 400;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_classes", .doc = "classes, the background included", .min = 2, .main = true}, num_classes);
    v.option({.name = "score_thresh", .doc = "detections have a higher score", .min = 0, .max = 1}, score_thresh);
    v.option({.name = "nms_thresh", .doc = "of detections of a class that overlap by more, the best is kept", .min = 0, .max = 1},
             nms_thresh);
    v.option({.name = "detections_per_img", .doc = "largest number of detections of an image", .min = 1}, detections_per_img);
    v.option({.name = "iou_thresh", .doc = "overlap from which on a default box is trained on an object", .min = 0, .max = 1}, iou_thresh);
    v.option({.name = "topk_candidates", .doc = "largest number of candidates of a class", .min = 1}, topk_candidates);
    v.option({.name = "positive_fraction", .doc = "share of default boxes with objects in the loss of classes", .min = 0.001, .max = 1},
             positive_fraction);
  }
};

struct SsdliteParams : OptionsOf<SsdliteParams> {
  SsdParams ssd;
  bool reduced_tail = true;
  SsdliteParams() {
    ssd.score_thresh = 0.001;
    ssd.nms_thresh = 0.55;
    ssd.detections_per_img = 300;
    ssd.topk_candidates = 300;
  }
  void options(OptionVisitor& v) override {
    ssd.options(v);
    v.option({.name = "reduced_tail",
              .doc = "halve the channels of the backbone's last blocks; torchvision does unless the backbone begins with its own weights"},
             reduced_tail);
  }
};

/// The default boxes of a cell of each level: two squares, and two boxes for each ratio of sides.
struct DefaultBoxRule {
  std::vector<std::vector<double>> ratios;
  std::vector<double> scales;  // of each level, and one more
  std::vector<double> steps;   // in pixels; empty: by the grids

  int64_t per_cell(size_t level) const { return 2 + 2 * std::ssize(ratios[level]); }
  /// Boxes around the centers of the cells; torchvision's DefaultBoxGenerator.
  Value boxes(Graph& graph, const Shape& image, const std::vector<Value>& features) const {
    GridBoxesAttrs attrs;
    const auto height = static_cast<double>(image[2]), width = static_cast<double>(image[3]);
    for (size_t level = 0; level < features.size(); ++level) {
      const int64_t rows = features[level].shape()[2], columns = features[level].shape()[3];
      const double down = steps.empty() ? height / static_cast<double>(rows) : steps[level];
      const double across = steps.empty() ? width / static_cast<double>(columns) : steps[level];
      attrs.grid.insert(attrs.grid.end(), {rows, columns});
      attrs.strides.insert(attrs.strides.end(), {down, across});
      attrs.per_cell.push_back(per_cell(level));
      const auto put = [&](double w, double h) {
        w = 0.5 * width * std::min(w, 1.0);
        h = 0.5 * height * std::min(h, 1.0);
        attrs.corners.insert(attrs.corners.end(), {0.5 * across - w, 0.5 * down - h, 0.5 * across + w, 0.5 * down + h});
      };
      const double scale = scales[level], between = std::sqrt(scale * scales[level + 1]);
      put(scale, scale);
      put(between, between);
      for (const double ratio : ratios[level]) {
        const double root = std::sqrt(ratio);
        put(scale * root, scale / root);
        put(scale / root, scale * root);
      }
    }
    return grid_boxes(graph, attrs);
  }
};

constexpr double kSmoothL1Beta = 1;
const BoxCoder kCoder{.xy = 10, .wh = 5};

/// Losses with hard negative mining: of the default boxes without an object, the ones with the largest loss count.
void add_losses(NamedValues& results, const SsdParams& params, Value anchors, Value codes, Value logits, const Objects& objects) {
  MatchBoxesAttrs attrs;
  attrs.high = attrs.low = params.iou_thresh;
  attrs.best = MatchBest::kEveryBox;
  const MatchedBoxes matched = match_boxes(anchors, objects.boxes, objects.labels, objects.offsets, attrs);
  const Value positive = foreground(matched.labels);
  const Shape& s = logits.shape();
  CrossEntropyAttrs each;
  each.reduction = Reduction::kNone;
  const Value rows = cross_entropy(reshape(logits, {s[0] * s[1], s[2]}), reshape(matched.labels, {s[0] * s[1]}), {}, each);
  const Value losses = reshape(rows, {s[0], s[1]});
  const Value positives = count_true(positive);
  const Value negative = where(positive, constant_like(losses, -std::numeric_limits<double>::infinity()), losses);
  const Value hard = top_mask(negative, affine(positives, (1 - params.positive_fraction) / params.positive_fraction));
  results.emplace_back("classification.sum", add(masked_sum(losses, positive), masked_sum(losses, hard)));
  results.emplace_back("classification.count", positives);
  results.emplace_back("bbox_regression.sum", masked_sum(smooth_l1(codes, kCoder.encode(matched.boxes, anchors), kSmoothL1Beta), positive));
  results.emplace_back("bbox_regression.count", positives);
}

/// From the results of the heads, [N,A,4] and [N,A,K], to the model's.
NamedValues finish(Builder& b, const SsdParams& params, Value anchors, Value codes, Value logits, const NamedValues& inputs) {
  NamedValues results;
  const Objects objects = objects_of(b, inputs);
  if (!b.training()) {
    const auto module = b.scope("postprocess");
    NmsAttrs attrs;
    attrs.score_threshold = params.score_thresh;
    attrs.iou_threshold = params.nms_thresh;
    attrs.max_output = params.detections_per_img;
    attrs.per_class = params.topk_candidates;
    const Value scores = slice(softmax(logits), 2, 1);  // without the background
    add_detections(results, clip_boxes(kCoder.decode(codes, anchors), ImageSize(inputs)), scores, attrs, 1);
  }
  if (objects) {
    const auto module = b.scope("loss");
    add_losses(results, params, anchors, codes, logits, objects);
  }
  return results;
}

/// The results of one kind of head on all levels, [N,A,per_anchor].
template <class Layer>
Value heads(Builder& b, std::string_view name, const std::vector<Value>& features, const DefaultBoxRule& rule, int64_t per_anchor,
            const Layer& layer) {
  const auto head = b.scope("head");
  const auto kind = b.scope(name);
  const auto list = b.scope("module_list");
  std::vector<Value> levels;
  for (size_t level = 0; level < features.size(); ++level)
    levels.push_back(by_anchor(layer(std::to_string(level), features[level], per_anchor * rule.per_cell(level)), per_anchor));
  return concat(levels, {});
}

template <class Layer>
NamedValues detect(Builder& b, const SsdParams& params, const std::vector<Value>& features, const DefaultBoxRule& rule,
                   const NamedValues& inputs, const Layer& layer) {
  const Value codes = heads(b, "regression_head", features, rule, 4, layer);
  const Value logits = heads(b, "classification_head", features, rule, params.num_classes, layer);
  const Shape& image = inputs.front().second.shape();
  return finish(b, params, rule.boxes(b.graph(), image, features), codes, logits, inputs);
}

// ---- SSDlite

const BatchNormOptions kLiteNorm{.eps = 0.001, .momentum = 0.03};

Value lite_conv(Builder& b, std::string_view name, Value x, int64_t channels, int64_t kernel = 1, int64_t stride = 1, int64_t groups = 1) {
  return conv_norm(b, name, x,
                   {.channels = channels,
                    .kernel = kernel,
                    .stride = stride,
                    .groups = groups,
                    .activation = ActivationKind::kRelu6,
                    .norm = kLiteNorm});
}

NamedValues ssdlite(Builder& b, const Options& options, const NamedValues& inputs) {
  const auto& params = params_of<SsdliteParams>(options);
  std::vector<Value> features;
  const auto init = b.use_init({.conv_weight = Init::normal(0.03), .conv_bias = Init::zeros()});
  {
    const auto backbone = b.scope("backbone");
    features = mobilenet_v3_large_halves(b, params.reduced_tail, kLiteNorm, inputs.front().second);
    const auto extra = b.scope("extra");
    for (const int64_t channels : {512, 256, 256, 128}) {
      const auto block = b.scope(std::to_string(features.size() - 2));
      Value x = lite_conv(b, "0", features.back(), channels / 2);
      x = lite_conv(b, "1", x, channels / 2, 3, 2, channels / 2);
      features.push_back(lite_conv(b, "2", x, channels));
    }
  }
  DefaultBoxRule rule{.ratios = std::vector<std::vector<double>>(6, {2, 3}), .scales = {}, .steps = {}};
  for (int level = 0; level < 6; ++level) rule.scales.push_back(0.2 + (0.95 - 0.2) * level / 5);
  rule.scales.push_back(1);
  return detect(b, params.ssd, features, rule, inputs, [&](const std::string& name, Value x, int64_t channels) {
    const auto module = b.scope(name);
    x = lite_conv(b, "0", x, x.channels(), 3, 1, x.channels());
    return b.conv2d("1", x, {.out_channels = channels});
  });
}

// ---- SSD300

/// A 3x3 convolution of VGG, with its activation.
Value vgg_conv(Builder& b, int64_t index, Value x, int64_t channels) {
  return relu(b.conv2d(std::to_string(index), x, {.out_channels = channels, .kernel_size = 3, .padding = 1}));
}

/// A convolution with Xavier's initial weights and a bias of 0.
Value xavier_conv(Builder& b, std::string_view name, Value x, const Conv2dOptions& options) {
  const int64_t area = options.kernel_size.h * options.kernel_size.w;
  const auto init =
      b.use_init({.conv_weight = Init::xavier_uniform(x.channels() * area, options.out_channels * area), .conv_bias = Init::zeros()});
  return b.conv2d(name, x, options);
}

/// VGG-16 up to conv4_3, whose result is normalized over channels and scaled, and from there to fc7.
std::vector<Value> ssd_vgg(Builder& b, Value x) {
  std::vector<Value> features;
  const auto vgg_init = b.use_init({.conv_weight = Init::kaiming_normal(Init::Fan::kOut), .conv_bias = Init::zeros()});
  {
    const auto module = b.scope("features");
    int64_t index = 0;
    for (const auto& [channels, count] : {std::pair<int64_t, int>{64, 2}, {128, 2}, {256, 3}, {512, 3}}) {
      for (int i = 0; i < count; ++i, index += 2) x = vgg_conv(b, index, x, channels);
      if (channels < 512) x = max_pool(x, {.kernel_size = 2, .ceil_mode = channels == 256});
      ++index;
    }
  }
  const Value scale = b.parameter("scale_weight", Shape{512}, Init::constant(20), "scale");
  const Value norm = rsqrt(clamp(sum(square(x), {1}, true), 1e-24, std::numeric_limits<double>::infinity()));
  features.push_back(mul(mul(x, norm), reshape(scale, {1, 512, 1, 1})));
  const auto extra = b.scope("extra");
  const auto block = b.scope("0");
  x = max_pool(x, {.kernel_size = 2});
  for (const int64_t index : {1, 3, 5}) x = vgg_conv(b, index, x, 512);
  const auto fc = b.scope("7");
  x = max_pool(x, {.kernel_size = 3, .stride = 1, .padding = 1});
  x = relu(xavier_conv(b, "1", x, {.out_channels = 1024, .kernel_size = 3, .padding = 6, .dilation = 6}));
  features.push_back(relu(xavier_conv(b, "3", x, {.out_channels = 1024})));
  return features;
}

NamedValues ssd300(Builder& b, const Options& options, const NamedValues& inputs) {
  const auto& params = params_of<SsdParams>(options);
  std::vector<Value> features;
  {
    const auto backbone = b.scope("backbone");
    features = ssd_vgg(b, inputs.front().second);
    const auto extra = b.scope("extra");
    struct Block {
      int64_t inner, channels, stride, padding;
    };
    for (const Block& block : {Block{256, 512, 2, 1}, {128, 256, 2, 1}, {128, 256, 1, 0}, {128, 256, 1, 0}}) {
      const auto module = b.scope(std::to_string(features.size() - 1));
      const Value x = relu(xavier_conv(b, "0", features.back(), {.out_channels = block.inner}));
      features.push_back(relu(
          xavier_conv(b, "2", x, {.out_channels = block.channels, .kernel_size = 3, .stride = block.stride, .padding = block.padding})));
    }
  }
  const DefaultBoxRule rule{.ratios = {{2}, {2, 3}, {2, 3}, {2, 3}, {2}, {2}},
                            .scales = {0.07, 0.15, 0.33, 0.51, 0.69, 0.87, 1.05},
                            .steps = {8, 16, 32, 64, 100, 300}};
  return detect(b, params, features, rule, inputs, [&](const std::string& name, Value x, int64_t channels) {
    return xavier_conv(b, name, x, {.out_channels = channels, .kernel_size = 3, .padding = 1});
  });
}

ModelInfo info_of(int64_t side, int64_t classes) {
  ModelInfo info{"ssd", ModelOutput::kDetections, {3, side, side}, image_names()};
  info.inputs = detector_inputs(side, side, /*extents=*/false);
  info.named_outputs = true;
  info.classes = classes;
  return info;
}
ModelInfo ssdlite_info(const Options& options) { return info_of(320, params_of<SsdliteParams>(options).ssd.num_classes); }
ModelInfo ssd300_info(const Options& options) { return info_of(300, params_of<SsdParams>(options).num_classes); }

}  // namespace

ModelTable ssd_models() {
  return {
      {{"ssdlite320_mobilenet_v3_large", "SSDlite (Sandler et al. 2018) on MobileNetV3-Large, 3.4 M parameters",
        make_options<SsdliteParams>},
       nullptr,
       ssdlite_info,
       ssdlite},
      {{"ssd300_vgg16", "SSD (Liu et al. 2015) on VGG-16, 35.6 M parameters", make_options<SsdParams>}, nullptr, ssd300_info, ssd300},
  };
}

}  // namespace galley
