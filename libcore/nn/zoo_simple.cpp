// Small models: a multilayer perceptron, and a convolutional network for images such as Fashion-MNIST's.

#include "libcore/nn/capture.h"
#include "libcore/nn/zoo.h"

namespace galley {
namespace {

struct MlpParams : OptionsOf<MlpParams> {
  int64_t num_classes = 10;
  std::vector<int64_t> hidden{512, 256};
  double dropout = 0;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_classes", .doc = "classes (outputs)", .min = 1, .main = true}, num_classes);
    v.option({.name = "hidden", .doc = "width of each hidden layer", .min = 1}, hidden);
    v.option({.name = "dropout", .doc = "dropout after each hidden layer", .min = 0, .max = 1}, dropout);
  }
};

NamedValues mlp(Builder& b, const Options& options, Value x) {
  const auto& params = params_of<MlpParams>(options);
  const auto init = b.use_init({.linear_weight = Init::kaiming_normal(Init::Fan::kIn), .linear_bias = Init::zeros()});
  if (x.shape().rank() > 2) x = flatten(x);
  int index = 1;
  for (const int64_t width : params.hidden) {
    x = relu(b.linear(cat("fc", index), x, {.out_features = width}));
    x = b.dropout(cat("dropout", index++), x, params.dropout);
  }
  return {{"logits", b.linear(cat("fc", index), x, {.out_features = params.num_classes})}};
}

struct CnnParams : OptionsOf<CnnParams> {
  int64_t num_classes = 10;
  std::vector<int64_t> channels{32, 64, 128};
  double dropout = 0.2;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_classes", .doc = "classes", .min = 1, .main = true}, num_classes);
    v.option({.name = "channels", .doc = "channels of each block: 3x3 convolution, batch norm, relu; max pooling between blocks", .min = 1},
             channels);
    v.option({.name = "dropout", .doc = "dropout before the classifier", .min = 0, .max = 1}, dropout);
  }
};

NamedValues cnn(Builder& b, const Options& options, Value x) {
  const auto& params = params_of<CnnParams>(options);
  GALLEY_CHECK(!params.channels.empty(), "[cnn] channels must not be empty");
  const auto init = b.use_init({.conv_weight = Init::kaiming_normal(Init::Fan::kOut)});
  int index = 1;
  for (const int64_t channels : params.channels) {
    if (index > 1) x = max_pool(x, {.kernel_size = 2});
    x = b.conv2d(cat("conv", index), x, {.out_channels = channels, .kernel_size = 3, .padding = 1, .bias = false});
    x = relu(b.batch_norm(cat("bn", index++), x));
  }
  x = flatten(max_pool(x, {.kernel_size = 2}));
  x = b.dropout("dropout", x, params.dropout);
  return {{"logits", b.linear("fc", x, {.out_features = params.num_classes})}};
}

ModelInfo mlp_info(const Options&) { return {"mlp", ModelOutput::kClasses, {1, 28, 28}, image_names()}; }
ModelInfo cnn_info(const Options&) { return {"cnn", ModelOutput::kClasses, {1, 28, 28}, image_names()}; }

}  // namespace

ModelTable simple_models() {
  return {
      {{"mlp", "multilayer perceptron with relu on the flattened sample", make_options<MlpParams>}, mlp, mlp_info},
      {{"cnn", "small convolutional network with batch norm, for 28x28 images", make_options<CnnParams>}, cnn, cnn_info},
  };
}

}  // namespace galley
