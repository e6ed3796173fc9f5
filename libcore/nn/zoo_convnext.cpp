// ConvNeXt (Liu et al. 2022), as in torchvision.

#include "libcore/nn/capture.h"
#include "libcore/nn/zoo.h"

namespace galley {
namespace {

struct ConvNextParams : OptionsOf<ConvNextParams> {
  int64_t num_classes = 1000;
  std::vector<int64_t> channels{96, 192, 384, 768};
  std::vector<int64_t> num_layers{3, 3, 9, 3};
  double stochastic_depth_prob = 0.1;
  double layer_scale = 1e-6;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_classes", .doc = "classes", .min = 1, .main = true}, num_classes);
    v.option({.name = "channels", .doc = "channels of each stage", .min = 1}, channels);
    v.option({.name = "num_layers", .doc = "blocks of each stage", .min = 1}, num_layers);
    v.option({.name = "stochastic_depth_prob",
              .doc = "probability of skipping the last block; it increases linearly from 0 at the first block",
              .min = 0,
              .max = 1},
             stochastic_depth_prob);
    v.option({.name = "layer_scale", .doc = "initial value of the learned scales of blocks", .min = 0}, layer_scale);
  }
};

const LayerNormOptions kNorm{.eps = 1e-6};

/// Layer norm over the channels of each pixel of x [N,C,H,W].
Value layer_norm_2d(Builder& b, std::string_view name, Value x) {
  return permute(b.layer_norm(name, permute(x, {0, 2, 3, 1}), kNorm), {0, 3, 1, 2});
}

Value block(Builder& b, std::string_view name, Value x, double layer_scale, double drop) {
  const auto module = b.scope(name);
  const int64_t channels = x.channels();
  const Value scale = b.parameter("layer_scale", {channels, 1, 1}, Init::constant(layer_scale), "convnext");
  Value y = x;
  {
    const auto inner = b.scope("block");
    y = b.conv2d("0", y, {.out_channels = channels, .kernel_size = 7, .padding = 3, .groups = channels});
    y = b.layer_norm("2", permute(y, {0, 2, 3, 1}), kNorm);
    y = gelu(b.linear("3", y, {.out_features = 4 * channels}));
    y = permute(b.linear("5", y, {.out_features = channels}), {0, 3, 1, 2});
  }
  return add(b.stochastic_depth("stochastic_depth", mul(scale, y), drop), x);
}

NamedValues convnext(Builder& b, const Options& options, Value x) {
  const auto& params = params_of<ConvNextParams>(options);
  GALLEY_CHECK(!params.channels.empty() && params.channels.size() == params.num_layers.size(),
               "[convnext] channels and num_layers need one value per stage, but have ", params.channels.size(), " and ",
               params.num_layers.size());
  const Init weight = Init::truncated_normal(0.02);
  const auto init = b.use_init({.conv_weight = weight, .conv_bias = Init::zeros(), .linear_weight = weight, .linear_bias = Init::zeros()});
  int64_t blocks = 0, done = 0;
  for (const int64_t count : params.num_layers) blocks += count;
  {
    const auto features = b.scope("features");
    for (size_t stage = 0; stage < params.channels.size(); ++stage) {
      {
        const auto module = b.scope(std::to_string(2 * stage));
        const int64_t channels = params.channels[stage];
        if (stage == 0) {
          x = layer_norm_2d(b, "1", b.conv2d("0", x, {.out_channels = channels, .kernel_size = 4, .stride = 4}));
        } else {
          x = b.conv2d("1", layer_norm_2d(b, "0", x), {.out_channels = channels, .kernel_size = 2, .stride = 2});
        }
      }
      const auto module = b.scope(std::to_string(2 * stage + 1));
      for (int64_t i = 0; i < params.num_layers[stage]; ++i) {
        const double drop = blocks > 1 ? params.stochastic_depth_prob * static_cast<double>(done++) / static_cast<double>(blocks - 1) : 0;
        x = block(b, std::to_string(i), x, params.layer_scale, drop);
      }
    }
  }
  const auto classifier = b.scope("classifier");
  x = b.layer_norm("0", flatten(global_avg_pool(x)), kNorm);
  return {{"logits", b.linear("2", x, {.out_features = params.num_classes})}};
}

/// Channels of the first stage (they double per stage), blocks of the third stage, and drop probability in hundredths.
template <int64_t kChannels, int64_t kLayers, int64_t kDrop>
std::unique_ptr<Options> make() {
  auto params = std::make_unique<ConvNextParams>();
  params->channels = {kChannels, 2 * kChannels, 4 * kChannels, 8 * kChannels};
  params->num_layers = {3, 3, kLayers, 3};
  params->stochastic_depth_prob = static_cast<double>(kDrop) / 100;
  return params;
}

ModelInfo info(const Options&) { return {"convnext", ModelOutput::kClasses, {3, 224, 224}, image_names()}; }

}  // namespace

ModelTable convnext_models() {
  return {
      {{"convnext_tiny", "ConvNeXt-T (Liu et al. 2022), 28.6 M parameters", make<96, 9, 10>}, convnext, info},
      {{"convnext_small", "ConvNeXt-S, 50.2 M parameters", make<96, 27, 40>}, convnext, info},
      {{"convnext_base", "ConvNeXt-B, 88.6 M parameters", make<128, 27, 50>}, convnext, info},
      {{"convnext_large", "ConvNeXt-L, 197.8 M parameters", make<192, 27, 50>}, convnext, info},
  };
}

}  // namespace galley
