// SqueezeNet (Iandola et al. 2016), versions 1.0 and 1.1, as in torchvision.

#include <array>
#include <span>

#include "libcore/nn/capture.h"
#include "libcore/nn/zoo.h"

namespace galley {
namespace {

struct SqueezeNetParams : OptionsOf<SqueezeNetParams> {
  int64_t num_classes = 1000;
  double dropout = 0.5;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_classes", .doc = "classes", .min = 1, .main = true}, num_classes);
    v.option({.name = "dropout", .doc = "dropout before the last convolution", .min = 0, .max = 1}, dropout);
  }
};

struct Stem {
  int64_t channels, kernel;
};
/// A fire module with its channels, or a max pooling.
struct Step {
  int64_t squeeze, expand;
};
constexpr Step kPool{0, 0};

Value fire(Builder& b, std::string_view name, Value x, const Step& step) {
  const auto module = b.scope(name);
  x = relu(b.conv2d("squeeze", x, {.out_channels = step.squeeze}));
  const Value narrow = relu(b.conv2d("expand1x1", x, {.out_channels = step.expand}));
  const Value wide = relu(b.conv2d("expand3x3", x, {.out_channels = step.expand, .kernel_size = 3, .padding = 1}));
  return concat({narrow, wide});
}

Value squeezenet(Builder& b, const SqueezeNetParams& params, const Stem& stem, std::span<const Step> steps, Value x) {
  const InitRules rules{.conv_weight = Init::kaiming_uniform(0), .conv_bias = Init::zeros()};
  {
    const auto init = b.use_init(rules);
    const auto features = b.scope("features");
    x = relu(b.conv2d("0", x, {.out_channels = stem.channels, .kernel_size = stem.kernel, .stride = 2}));
    int index = 2;  // after the first convolution (0) and its activation (1)
    for (const Step& step : steps) {
      const std::string name = std::to_string(index++);
      x = step.squeeze == 0 ? max_pool(x, {.kernel_size = 3, .stride = 2, .ceil_mode = true}) : fire(b, name, x, step);
    }
  }
  const auto init = b.use_init({.conv_weight = Init::normal(0.01), .conv_bias = Init::zeros()});
  const auto classifier = b.scope("classifier");
  x = b.dropout("0", x, params.dropout);
  x = relu(b.conv2d("1", x, {.out_channels = params.num_classes}));
  return flatten(global_avg_pool(x));
}

NamedValues squeezenet1_0(Builder& b, const Options& params, Value input) {
  static constexpr std::array kSteps{kPool,         Step{16, 64},  Step{16, 64},  Step{32, 128}, kPool,        Step{32, 128},
                                     Step{48, 192}, Step{48, 192}, Step{64, 256}, kPool,         Step{64, 256}};
  return {{"logits", squeezenet(b, params_of<SqueezeNetParams>(params), {96, 7}, kSteps, input)}};
}
NamedValues squeezenet1_1(Builder& b, const Options& params, Value input) {
  static constexpr std::array kSteps{kPool, Step{16, 64},  Step{16, 64},  kPool,         Step{32, 128}, Step{32, 128},
                                     kPool, Step{48, 192}, Step{48, 192}, Step{64, 256}, Step{64, 256}};
  return {{"logits", squeezenet(b, params_of<SqueezeNetParams>(params), {64, 3}, kSteps, input)}};
}

ModelInfo info(const Options&) { return {"squeezenet", ModelOutput::kClasses, {3, 224, 224}, image_names()}; }

}  // namespace

ModelTable squeezenet_models() {
  return {
      {{"squeezenet1_0", "SqueezeNet 1.0 (Iandola et al. 2016), 1.2 M parameters", make_options<SqueezeNetParams>}, squeezenet1_0, info},
      {{"squeezenet1_1", "SqueezeNet 1.1, 1.2 M parameters", make_options<SqueezeNetParams>}, squeezenet1_1, info},
  };
}

}  // namespace galley
