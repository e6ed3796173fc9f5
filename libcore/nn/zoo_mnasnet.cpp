// MNASNet-B1 (Tan et al. 2018), as in torchvision.

#include <array>
#include <cmath>

#include "libcore/nn/capture.h"
#include "libcore/nn/zoo.h"

namespace galley {
namespace {

struct MnasNetParams : OptionsOf<MnasNetParams> {
  int64_t num_classes = 1000;
  double alpha = 1;
  double dropout = 0.2;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_classes", .doc = "classes", .min = 1, .main = true}, num_classes);
    v.option({.name = "alpha", .doc = "multiplies the channels of every layer (rounded to multiples of 8)", .min = 0.01, .max = 16}, alpha);
    v.option({.name = "dropout", .doc = "dropout before the classifier", .min = 0, .max = 1}, dropout);
  }
};

/// A stack of inverted residuals; the first one has the stride.
struct Stack {
  int64_t kernel, stride, expand, channels, repeats;
};
constexpr std::array kStacks{Stack{3, 2, 3, 24, 3}, Stack{5, 2, 3, 40, 3},  Stack{5, 2, 6, 80, 3},
                             Stack{3, 1, 6, 96, 2}, Stack{5, 2, 6, 192, 4}, Stack{3, 1, 6, 320, 1}};

const BatchNormOptions kNorm{.momentum = 1 - 0.9997};

Value inverted_residual(Builder& b, std::string_view name, Value x, const Stack& stack, int64_t channels, int64_t stride) {
  const auto module = b.scope(name);
  const int64_t hidden = x.channels() * stack.expand;
  Value y = x;
  {
    const auto layers = b.scope("layers");
    y = relu(b.batch_norm("1", b.conv2d("0", y, {.out_channels = hidden, .bias = false}), kNorm));
    y = b.conv2d("3", y,
                 {.out_channels = hidden,
                  .kernel_size = stack.kernel,
                  .stride = stride,
                  .padding = stack.kernel / 2,
                  .groups = hidden,
                  .bias = false});
    y = relu(b.batch_norm("4", y, kNorm));
    y = b.batch_norm("7", b.conv2d("6", y, {.out_channels = channels, .bias = false}), kNorm);
  }
  return stride == 1 && x.channels() == channels ? add(y, x) : y;
}

NamedValues mnasnet(Builder& b, const Options& options, Value x) {
  const auto& params = params_of<MnasNetParams>(options);
  // torchvision uses kaiming_uniform with the fan out, which is the number of classes, and a gain of 1.
  const auto init = b.use_init({.conv_weight = Init::kaiming_normal(Init::Fan::kOut),
                                .linear_weight = Init::uniform(std::sqrt(3.0 / static_cast<double>(params.num_classes))),
                                .linear_bias = Init::zeros()});
  const auto scaled = [&](int64_t channels) { return make_divisible(static_cast<double>(channels) * params.alpha, 8); };
  {
    const auto layers = b.scope("layers");
    x = b.conv2d("0", x, {.out_channels = scaled(32), .kernel_size = 3, .stride = 2, .padding = 1, .bias = false});
    x = relu(b.batch_norm("1", x, kNorm));
    x = b.conv2d("3", x, {.out_channels = scaled(32), .kernel_size = 3, .padding = 1, .groups = scaled(32), .bias = false});
    x = relu(b.batch_norm("4", x, kNorm));
    x = b.batch_norm("7", b.conv2d("6", x, {.out_channels = scaled(16), .bias = false}), kNorm);
    int index = 8;
    for (const Stack& stack : kStacks) {
      const auto module = b.scope(std::to_string(index++));
      for (int64_t i = 0; i < stack.repeats; ++i)
        x = inverted_residual(b, std::to_string(i), x, stack, scaled(stack.channels), i == 0 ? stack.stride : 1);
    }
    x = relu(b.batch_norm("15", b.conv2d("14", x, {.out_channels = 1280, .bias = false}), kNorm));
  }
  x = flatten(global_avg_pool(x));
  const auto classifier = b.scope("classifier");
  x = b.dropout("0", x, params.dropout);
  return {{"logits", b.linear("1", x, {.out_features = params.num_classes})}};
}

template <int64_t kAlphaPercent>
std::unique_ptr<Options> make() {
  auto params = std::make_unique<MnasNetParams>();
  params->alpha = static_cast<double>(kAlphaPercent) / 100;
  return params;
}

ModelInfo info(const Options&) { return {"mnasnet", ModelOutput::kClasses, {3, 224, 224}, image_names()}; }

}  // namespace

ModelTable mnasnet_models() {
  return {
      {{"mnasnet0_5", "MNASNet-B1 (Tan et al. 2018) of half width, 2.2 M parameters", make<50>}, mnasnet, info},
      {{"mnasnet0_75", "MNASNet-B1 of width 0.75, 3.2 M parameters", make<75>}, mnasnet, info},
      {{"mnasnet1_0", "MNASNet-B1, 4.4 M parameters", make<100>}, mnasnet, info},
      {{"mnasnet1_3", "MNASNet-B1 of width 1.3, 6.3 M parameters", make<130>}, mnasnet, info},
  };
}

}  // namespace galley
