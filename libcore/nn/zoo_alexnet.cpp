// AlexNet (Krizhevsky 2014, "One weird trick for parallelizing convolutional neural networks"), as in torchvision.

#include "libcore/nn/capture.h"
#include "libcore/nn/zoo.h"

namespace galley {
namespace {

struct AlexNetParams : OptionsOf<AlexNetParams> {
  int64_t num_classes = 1000;
  double dropout = 0.5;
  int64_t hidden_features = 4096;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_classes", .doc = "classes", .min = 1, .main = true}, num_classes);
    v.option({.name = "dropout", .doc = "dropout before the first and second layer of the classifier", .min = 0, .max = 1}, dropout);
    v.option({.name = "hidden_features", .doc = "width of the classifier; torchvision's weights have 4096", .min = 1}, hidden_features);
  }
};

NamedValues alexnet(Builder& b, const Options& options, Value x) {
  const auto& params = params_of<AlexNetParams>(options);
  const PoolOptions pool{.kernel_size = 3, .stride = 2};
  {
    const auto features = b.scope("features");
    x = relu(b.conv2d("0", x, {.out_channels = 64, .kernel_size = 11, .stride = 4, .padding = 2}));
    x = relu(b.conv2d("3", max_pool(x, pool), {.out_channels = 192, .kernel_size = 5, .padding = 2}));
    x = relu(b.conv2d("6", max_pool(x, pool), {.out_channels = 384, .kernel_size = 3, .padding = 1}));
    x = relu(b.conv2d("8", x, {.out_channels = 256, .kernel_size = 3, .padding = 1}));
    x = relu(b.conv2d("10", x, {.out_channels = 256, .kernel_size = 3, .padding = 1}));
  }
  x = flatten(adaptive_avg_pool(max_pool(x, pool), 6));
  const auto classifier = b.scope("classifier");
  x = b.dropout("0", x, params.dropout);
  x = relu(b.linear("1", x, {.out_features = params.hidden_features}));
  x = b.dropout("3", x, params.dropout);
  x = relu(b.linear("4", x, {.out_features = params.hidden_features}));
  return {{"logits", b.linear("6", x, {.out_features = params.num_classes})}};
}

ModelInfo info(const Options&) { return {"alexnet", ModelOutput::kClasses, {3, 224, 224}, image_names()}; }

}  // namespace

ModelTable alexnet_models() {
  return {{{"alexnet", "AlexNet (Krizhevsky 2014), 61.1 M parameters", make_options<AlexNetParams>}, alexnet, info}};
}

}  // namespace galley
