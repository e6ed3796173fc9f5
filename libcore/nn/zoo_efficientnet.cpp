// EfficientNet (Tan, Le 2019) and EfficientNetV2 (Tan, Le 2021), as in torchvision; EfficientNet-Lite as in TensorFlow.

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "libcore/nn/capture.h"
#include "libcore/nn/zoo.h"

namespace galley {
namespace {

struct EfficientNetParams : OptionsOf<EfficientNetParams> {
  int64_t num_classes = 1000;
  double width_mult = 1;
  double depth_mult = 1;
  double dropout = 0.2;
  double stochastic_depth_prob = 0.2;
  int64_t image_size = 224;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_classes", .doc = "classes", .min = 1, .main = true}, num_classes);
    v.option({.name = "width_mult", .doc = "multiplies the channels of every block (rounded to multiples of 8)", .min = 0.01, .max = 16},
             width_mult);
    v.option({.name = "depth_mult", .doc = "multiplies the blocks of every stage (rounded up)", .min = 0.01, .max = 16}, depth_mult);
    v.option({.name = "dropout", .doc = "dropout before the classifier", .min = 0, .max = 1}, dropout);
    v.option({.name = "stochastic_depth_prob",
              .doc = "probability of skipping the last block; it increases linearly from 0 at the first block",
              .min = 0,
              .max = 1},
             stochastic_depth_prob);
    v.option({.name = "image_size", .doc = "default rows and columns of the input; other sizes are possible", .min = 1}, image_size);
  }
};

/// A row of table 1 of the first paper, or of table 4 of the second. A fused block has one full convolution instead of a pointwise and a
/// depthwise one.
struct Stage {
  bool fused;
  int64_t expand, kernel, stride, channels, repeats;
};
struct Architecture {
  std::span<const Stage> stages;
  int64_t stem_channels;
  int64_t last_channels;  // 0: four times the channels of the last stage
  BatchNormOptions norm;
  bool lite = false;  // without squeeze-excite, with relu6 and TensorFlow's padding
};

constexpr std::array kV1{Stage{false, 1, 3, 1, 16, 1}, Stage{false, 6, 3, 2, 24, 2},  Stage{false, 6, 5, 2, 40, 2},
                         Stage{false, 6, 3, 2, 80, 3}, Stage{false, 6, 5, 1, 112, 3}, Stage{false, 6, 5, 2, 192, 4},
                         Stage{false, 6, 3, 1, 320, 1}};
constexpr std::array kV2Small{Stage{true, 1, 3, 1, 24, 2},   Stage{true, 4, 3, 2, 48, 4},   Stage{true, 4, 3, 2, 64, 4},
                              Stage{false, 4, 3, 2, 128, 6}, Stage{false, 6, 3, 1, 160, 9}, Stage{false, 6, 3, 2, 256, 15}};
constexpr std::array kV2Medium{Stage{true, 1, 3, 1, 24, 3},   Stage{true, 4, 3, 2, 48, 5},    Stage{true, 4, 3, 2, 80, 5},
                               Stage{false, 4, 3, 2, 160, 7}, Stage{false, 6, 3, 1, 176, 14}, Stage{false, 6, 3, 2, 304, 18},
                               Stage{false, 6, 3, 1, 512, 5}};
constexpr std::array kV2Large{Stage{true, 1, 3, 1, 32, 4},    Stage{true, 4, 3, 2, 64, 7},    Stage{true, 4, 3, 2, 96, 7},
                              Stage{false, 4, 3, 2, 192, 10}, Stage{false, 6, 3, 1, 224, 19}, Stage{false, 6, 3, 2, 384, 25},
                              Stage{false, 6, 3, 1, 640, 7}};

struct Block {
  Stage stage;  // with the stride and channels of this block
  double drop;  // probability that the block is skipped
  BatchNormOptions norm;
  bool lite;
};

Value inverted_residual(Builder& b, std::string_view name, Value x, const Block& block) {
  const auto module = b.scope(name);
  const Stage& stage = block.stage;
  const int64_t expanded = make_divisible(static_cast<double>(x.channels() * stage.expand), 8);
  const ActivationKind activation = block.lite ? ActivationKind::kRelu6 : ActivationKind::kSilu;
  Value y = x;
  {
    const auto inner = b.scope("block");
    int index = 0;
    const auto next = [&index] { return std::to_string(index++); };
    const bool expands = expanded != x.channels();
    if (stage.fused) {
      y = conv_norm(b, next(), y,
                    {.channels = expands ? expanded : stage.channels,
                     .kernel = stage.kernel,
                     .stride = stage.stride,
                     .activation = activation,
                     .norm = block.norm});
    } else {
      if (expands) y = conv_norm(b, next(), y, {.channels = expanded, .activation = activation, .norm = block.norm});
      y = conv_norm(b, next(), y,
                    {.channels = expanded,
                     .kernel = stage.kernel,
                     .stride = stage.stride,
                     .groups = expanded,
                     .activation = activation,
                     .norm = block.norm,
                     .same_padding = block.lite});
      if (!block.lite) y = squeeze_excite(b, next(), y, {.squeeze_channels = std::max<int64_t>(1, x.channels() / 4), .activation = silu});
    }
    if (!stage.fused || expands) y = conv_norm(b, next(), y, {.channels = stage.channels, .norm = block.norm});
  }
  if (stage.stride != 1 || x.channels() != stage.channels) return y;
  return add(b.stochastic_depth("stochastic_depth", y, block.drop), x);
}

NamedValues efficientnet(Builder& b, const EfficientNetParams& params, const Architecture& architecture, Value x) {
  const auto init = b.use_init({.conv_weight = Init::kaiming_normal(Init::Fan::kOut),
                                .conv_bias = Init::zeros(),
                                .linear_weight = Init::uniform(1 / std::sqrt(static_cast<double>(params.num_classes))),
                                .linear_bias = Init::zeros()});
  const auto scaled = [&](int64_t channels) { return make_divisible(static_cast<double>(channels) * params.width_mult, 8); };
  const auto repeats = [&](const Stage& stage) {
    return static_cast<int64_t>(std::ceil(static_cast<double>(stage.repeats) * params.depth_mult));
  };
  int64_t blocks = 0, done = 0;
  for (const Stage& stage : architecture.stages) blocks += repeats(stage);
  {
    const auto features = b.scope("features");
    int index = 0;
    const auto ends = [&](int64_t channels, int64_t kernel, int64_t stride) {
      return conv_norm(b, std::to_string(index++), x,
                       {.channels = channels,
                        .kernel = kernel,
                        .stride = stride,
                        .activation = architecture.lite ? ActivationKind::kRelu6 : ActivationKind::kSilu,
                        .norm = architecture.norm,
                        .same_padding = architecture.lite});
    };
    x = ends(scaled(architecture.stem_channels), 3, 2);
    for (const Stage& stage : architecture.stages) {
      const auto module = b.scope(std::to_string(index++));
      for (int64_t i = 0; i < repeats(stage); ++i) {
        Block block{stage, params.stochastic_depth_prob * static_cast<double>(done++) / static_cast<double>(blocks), architecture.norm,
                    architecture.lite};
        block.stage.channels = scaled(stage.channels);
        if (i > 0) block.stage.stride = 1;
        x = inverted_residual(b, std::to_string(i), x, block);
      }
    }
    x = ends(architecture.last_channels > 0 ? architecture.last_channels : 4 * x.channels(), 1, 1);
  }
  x = flatten(global_avg_pool(x));
  const auto classifier = b.scope("classifier");
  x = b.dropout("0", x, params.dropout);
  return {{"logits", b.linear("1", x, {.out_features = params.num_classes})}};
}

// B5 to B7 use other batch norm options than B0 to B4 in torchvision.
NamedValues v1(Builder& b, const Options& params, Value input) {
  return efficientnet(b, params_of<EfficientNetParams>(params), {kV1, 32, 0, {}}, input);
}
NamedValues v1_large(Builder& b, const Options& params, Value input) {
  return efficientnet(b, params_of<EfficientNetParams>(params), {kV1, 32, 0, {.eps = 1e-3, .momentum = 0.01}}, input);
}
NamedValues lite(Builder& b, const Options& params, Value input) {
  return efficientnet(b, params_of<EfficientNetParams>(params), {kV1, 32, 1280, {.eps = 1e-3, .momentum = 0.01}, /*lite=*/true}, input);
}
template <const auto& kStages, int64_t kStem>
NamedValues v2(Builder& b, const Options& params, Value input) {
  return efficientnet(b, params_of<EfficientNetParams>(params), {kStages, kStem, 1280, {.eps = 1e-3}}, input);
}

/// Multipliers and dropout in hundredths.
template <int64_t kWidth, int64_t kDepth, int64_t kDropout, int64_t kImage>
std::unique_ptr<Options> make() {
  auto params = std::make_unique<EfficientNetParams>();
  params->width_mult = static_cast<double>(kWidth) / 100;
  params->depth_mult = static_cast<double>(kDepth) / 100;
  params->dropout = static_cast<double>(kDropout) / 100;
  params->image_size = kImage;
  return params;
}

ModelInfo info(const Options& options) {
  const int64_t size = params_of<EfficientNetParams>(options).image_size;
  return {"efficientnet", ModelOutput::kClasses, {3, size, size}, image_names()};
}

}  // namespace

ModelTable efficientnet_models() {
  return {
      {{"efficientnet_b0", "EfficientNet-B0 (Tan, Le 2019), 5.3 M parameters", make<100, 100, 20, 224>}, v1, info},
      {{"efficientnet_b1", "EfficientNet-B1, 7.8 M parameters", make<100, 110, 20, 240>}, v1, info},
      {{"efficientnet_b2", "EfficientNet-B2, 9.1 M parameters", make<110, 120, 30, 288>}, v1, info},
      {{"efficientnet_b3", "EfficientNet-B3, 12.2 M parameters", make<120, 140, 30, 300>}, v1, info},
      {{"efficientnet_b4", "EfficientNet-B4, 19.3 M parameters", make<140, 180, 40, 380>}, v1, info},
      {{"efficientnet_b5", "EfficientNet-B5, 30.4 M parameters", make<160, 220, 40, 456>}, v1_large, info},
      {{"efficientnet_b6", "EfficientNet-B6, 43.0 M parameters", make<180, 260, 50, 528>}, v1_large, info},
      {{"efficientnet_b7", "EfficientNet-B7, 66.3 M parameters", make<200, 310, 50, 600>}, v1_large, info},
      {{"efficientnet_lite0", "EfficientNet-Lite0 (Liu 2020): B0 for integer devices, 4.7 M parameters", make<100, 100, 20, 224>},
       lite,
       info},
      {{"efficientnet_v2_s", "EfficientNetV2-S (Tan, Le 2021), 21.5 M parameters", make<100, 100, 20, 384>}, v2<kV2Small, 24>, info},
      {{"efficientnet_v2_m", "EfficientNetV2-M, 54.1 M parameters", make<100, 100, 30, 480>}, v2<kV2Medium, 24>, info},
      {{"efficientnet_v2_l", "EfficientNetV2-L, 118.5 M parameters", make<100, 100, 40, 480>}, v2<kV2Large, 32>, info},
  };
}

}  // namespace galley
