// VGG (Simonyan, Zisserman 2014), with and without batch norm, as in torchvision.

#include <array>

#include "libcore/nn/capture.h"
#include "libcore/nn/zoo.h"

namespace galley {
namespace {

struct VggParams : OptionsOf<VggParams> {
  int64_t num_classes = 1000;
  double dropout = 0.5;
  int64_t hidden_features = 4096;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_classes", .doc = "classes", .min = 1, .main = true}, num_classes);
    v.option({.name = "dropout", .doc = "dropout before the second and third layer of the classifier", .min = 0, .max = 1}, dropout);
    v.option({.name = "hidden_features", .doc = "width of the classifier; torchvision's weights have 4096", .min = 1}, hidden_features);
  }
};

using Convolutions = std::array<int64_t, 5>;  // number of convolutions before each of the five poolings

Value vgg(Builder& b, const VggParams& params, const Convolutions& convolutions, bool norm, Value x) {
  const auto init = b.use_init({.conv_weight = Init::kaiming_normal(Init::Fan::kOut),
                                .conv_bias = Init::zeros(),
                                .linear_weight = Init::normal(0.01),
                                .linear_bias = Init::zeros()});
  {
    const auto features = b.scope("features");
    // torchvision's numbering includes layers without parameters.
    int index = 0;
    int64_t channels = 64;
    for (const int64_t count : convolutions) {
      for (int64_t i = 0; i < count; ++i) {
        x = b.conv2d(std::to_string(index++), x, {.out_channels = channels, .kernel_size = 3, .padding = 1});
        if (norm) x = b.batch_norm(std::to_string(index++), x);
        x = relu(x);
        ++index;
      }
      x = max_pool(x, {.kernel_size = 2});
      ++index;
      channels = channels < 512 ? 2 * channels : 512;
    }
  }
  x = flatten(adaptive_avg_pool(x, 7));
  const auto classifier = b.scope("classifier");
  x = relu(b.linear("0", x, {.out_features = params.hidden_features}));
  x = b.dropout("2", x, params.dropout);
  x = relu(b.linear("3", x, {.out_features = params.hidden_features}));
  x = b.dropout("5", x, params.dropout);
  return b.linear("6", x, {.out_features = params.num_classes});
}

template <bool kNorm, int64_t... kConvolutions>
NamedValues build(Builder& b, const Options& params, Value input) {
  return {{"logits", vgg(b, params_of<VggParams>(params), {kConvolutions...}, kNorm, input)}};
}

ModelInfo info(const Options&) { return {"vgg", ModelOutput::kClasses, {3, 224, 224}, image_names()}; }

}  // namespace

ModelTable vgg_models() {
  return {
      {{"vgg11", "VGG-11 (Simonyan, Zisserman 2014), 132.9 M parameters", make_options<VggParams>}, build<false, 1, 1, 2, 2, 2>, info},
      {{"vgg11_bn", "VGG-11 with batch norm, 132.9 M parameters", make_options<VggParams>}, build<true, 1, 1, 2, 2, 2>, info},
      {{"vgg13", "VGG-13, 133.0 M parameters", make_options<VggParams>}, build<false, 2, 2, 2, 2, 2>, info},
      {{"vgg13_bn", "VGG-13 with batch norm, 133.1 M parameters", make_options<VggParams>}, build<true, 2, 2, 2, 2, 2>, info},
      {{"vgg16", "VGG-16, 138.4 M parameters", make_options<VggParams>}, build<false, 2, 2, 3, 3, 3>, info},
      {{"vgg16_bn", "VGG-16 with batch norm, 138.4 M parameters", make_options<VggParams>}, build<true, 2, 2, 3, 3, 3>, info},
      {{"vgg19", "VGG-19, 143.7 M parameters", make_options<VggParams>}, build<false, 2, 2, 4, 4, 4>, info},
      {{"vgg19_bn", "VGG-19 with batch norm, 143.7 M parameters", make_options<VggParams>}, build<true, 2, 2, 4, 4, 4>, info},
  };
}

}  // namespace galley
