// Semantic segmentation: FCN (Long et al. 2015), DeepLabV3 (Chen et al. 2017) and Lite R-ASPP (Howard et al. 2019), as in torchvision. The
// last resize gives scores for every pixel of the input.

#include "libcore/nn/capture.h"
#include "libcore/nn/zoo.h"
#include "libcore/nn/zoo_backbones.h"

namespace galley {
namespace {

struct SegmentationParams : OptionsOf<SegmentationParams> {
  int64_t num_classes = 21;
  bool aux_loss = false;
  double aux_loss_weight = 0.5;
  std::optional<double> dropout;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_classes", .doc = "classes, the background included", .min = 1, .main = true}, num_classes);
    v.option({.name = "aux_loss", .doc = "add a second classifier on earlier features; its result is `aux`, and its loss is trained too"},
             aux_loss);
    v.option({.name = "aux_loss_weight", .doc = "weight of the loss of `aux`", .min = 0}, aux_loss_weight);
    v.option({.name = "dropout", .doc = "dropout in the heads; default: 0.5 after DeepLab's pyramid, 0.1 in FCN heads", .min = 0, .max = 1},
             dropout);
  }
};

struct LrasppParams : OptionsOf<LrasppParams> {
  int64_t num_classes = 21;
  int64_t inter_channels = 128;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_classes", .doc = "classes, the background included", .min = 1, .main = true}, num_classes);
    v.option({.name = "inter_channels", .doc = "channels of the head", .min = 1}, inter_channels);
  }
};

/// Features of an eighth (ResNet) or a sixteenth (MobileNetV3) of the input's resolution, and earlier ones.
struct Features {
  Value last, early;
};

enum class Backbone { kResNet50, kResNet101, kMobileNetV3 };
Features features_of(Builder& b, Backbone backbone, Value x) {
  const auto module = b.scope("backbone");
  if (backbone == Backbone::kMobileNetV3) {
    const std::vector<Value> results = mobilenet_v3_large_features(b, true, x);
    return {results[16], results[4]};
  }
  const std::vector<Value> stages = resnet_stages(b, backbone == Backbone::kResNet50 ? ResNetDepth::k50 : ResNetDepth::k101, {0, 1, 1}, x);
  return {stages[3], stages[2]};
}

Value resized_as(Value x, Value like) {
  ResizeAttrs attrs;
  attrs.size = {like.shape()[2], like.shape()[3]};
  return resize(x, attrs);
}

/// A 3x3 convolution to a quarter of the channels, and a 1x1 convolution to scores: torchvision's FCNHead.
Value fcn_head(Builder& b, std::string_view name, Value x, const SegmentationParams& params) {
  const auto module = b.scope(name);
  x = b.conv2d("0", x, {.out_channels = x.channels() / 4, .kernel_size = 3, .padding = 1, .bias = false});
  x = b.dropout("3", relu(b.batch_norm("1", x)), params.dropout.value_or(0.1));
  return b.conv2d("4", x, {.out_channels = params.num_classes});
}

/// Atrous spatial pyramid pooling: a 1x1 convolution, three dilated ones and the mean of each channel, concatenated and projected.
Value spatial_pyramid(Builder& b, Value x, double dropout) {
  constexpr int64_t kChannels = 256, kRates[] = {12, 24, 36};
  const auto module = b.scope("0");
  std::vector<Value> branches;
  {
    const auto convs = b.scope("convs");
    const auto branch = [&](int64_t kernel, int64_t dilation) {
      const ConvNormOptions options{.channels = kChannels, .kernel = kernel, .dilation = dilation, .activation = ActivationKind::kRelu};
      branches.push_back(conv_norm(b, std::to_string(branches.size()), x, options));
    };
    branch(1, 1);
    for (const int64_t rate : kRates) branch(3, rate);
    const auto pooling = b.scope(std::to_string(branches.size()));
    Value mean = b.conv2d("1", global_avg_pool(x), {.out_channels = kChannels, .bias = false});
    mean = relu(b.batch_norm("2", mean));
    branches.push_back(resized_as(mean, x));
  }
  Value y = concat(branches);
  {
    const auto project = b.scope("project");
    y = relu(b.batch_norm("1", b.conv2d("0", y, {.out_channels = kChannels, .bias = false})));
    y = b.dropout("3", y, dropout);
  }
  return y;
}

/// torchvision's DeepLabHead.
Value deeplab_head(Builder& b, std::string_view name, Value x, const SegmentationParams& params) {
  const auto module = b.scope(name);
  GALLEY_CHECK(
      !b.training() || x.shape()[0] > 1,
      "[deeplabv3] training needs a batch of at least 2: the batch norm after global pooling has one value per channel and sample");
  x = spatial_pyramid(b, x, params.dropout.value_or(0.5));
  x = b.conv2d("1", x, {.out_channels = 256, .kernel_size = 3, .padding = 1, .bias = false});
  x = relu(b.batch_norm("2", x));
  return b.conv2d("4", x, {.out_channels = params.num_classes});
}

template <Backbone kBackbone, auto kHead>
NamedValues build(Builder& b, const Options& options, Value input) {
  const auto& params = params_of<SegmentationParams>(options);
  const Features features = features_of(b, kBackbone, input);
  NamedValues results{{"out", resized_as(kHead(b, "classifier", features.last, params), input)}};
  if (params.aux_loss) {
    results.emplace_back("aux", resized_as(fcn_head(b, "aux_classifier", features.early, params), input));
  }
  return results;
}

NamedValues lraspp(Builder& b, const Options& options, Value input) {
  const auto& params = params_of<LrasppParams>(options);
  const Features features = features_of(b, Backbone::kMobileNetV3, input);
  const auto module = b.scope("classifier");
  Value x, scale;
  {
    const auto cbr = b.scope("cbr");
    x = b.conv2d("0", features.last, {.out_channels = params.inter_channels, .bias = false});
    x = relu(b.batch_norm("1", x));
  }
  {
    const auto pooled = b.scope("scale");
    scale = sigmoid(b.conv2d("1", global_avg_pool(features.last), {.out_channels = params.inter_channels, .bias = false}));
  }
  x = resized_as(mul(x, scale), features.early);
  const Value low = b.conv2d("low_classifier", features.early, {.out_channels = params.num_classes});
  const Value high = b.conv2d("high_classifier", x, {.out_channels = params.num_classes});
  return {{"out", resized_as(add(low, high), input)}};
}

ModelInfo info_of() {
  ModelInfo info{"segmentation", ModelOutput::kPixelClasses, {3, 520, 520}, image_names()};
  info.named_outputs = true;
  return info;
}

ModelInfo info(const Options& options) {
  const auto& params = params_of<SegmentationParams>(options);
  ModelInfo info = info_of();
  if (params.aux_loss) info.loss_weights = {{"aux", params.aux_loss_weight}};
  return info;
}

ModelInfo lraspp_info(const Options&) { return info_of(); }

}  // namespace

ModelTable segmentation_models() {
  const auto params = make_options<SegmentationParams>;
  return {
      {{"fcn_resnet50", "FCN (Long et al. 2015) on ResNet-50, 33.0 M parameters", params}, build<Backbone::kResNet50, fcn_head>, info},
      {{"fcn_resnet101", "FCN on ResNet-101, 51.9 M parameters", params}, build<Backbone::kResNet101, fcn_head>, info},
      {{"fcn_mobilenet_v3_large", "FCN on MobileNetV3-Large, 5.0 M parameters; torchvision has its parts, but no such model", params},
       build<Backbone::kMobileNetV3, fcn_head>,
       info},
      {{"deeplabv3_resnet50", "DeepLabV3 (Chen et al. 2017) on ResNet-50, 39.6 M parameters", params},
       build<Backbone::kResNet50, deeplab_head>,
       info},
      {{"deeplabv3_resnet101", "DeepLabV3 on ResNet-101, 58.6 M parameters", params}, build<Backbone::kResNet101, deeplab_head>, info},
      {{"deeplabv3_mobilenet_v3_large", "DeepLabV3 on MobileNetV3-Large, 11.0 M parameters", params},
       build<Backbone::kMobileNetV3, deeplab_head>,
       info},
      {{"lraspp_mobilenet_v3_large", "Lite R-ASPP (Howard et al. 2019) on MobileNetV3-Large, 3.2 M parameters", make_options<LrasppParams>},
       lraspp,
       lraspp_info},
  };
}

}  // namespace galley
