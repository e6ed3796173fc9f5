// DenseNet-BC (Huang et al. 2016), as in torchvision.

#include "libcore/nn/capture.h"
#include "libcore/nn/zoo.h"

namespace galley {
namespace {

struct DenseNetParams : OptionsOf<DenseNetParams> {
  int64_t num_classes = 1000;
  int64_t growth_rate = 32;
  std::vector<int64_t> block_config{6, 12, 24, 16};
  int64_t num_init_features = 64;
  int64_t bn_size = 4;
  double drop_rate = 0;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_classes", .doc = "classes", .min = 1, .main = true}, num_classes);
    v.option({.name = "growth_rate", .doc = "channels added by each layer", .min = 1}, growth_rate);
    v.option({.name = "block_config", .doc = "layers of each dense block", .min = 1}, block_config);
    v.option({.name = "num_init_features", .doc = "channels of the first convolution", .min = 1}, num_init_features);
    v.option({.name = "bn_size", .doc = "channels of a layer's bottleneck, as a multiple of growth_rate", .min = 1}, bn_size);
    v.option({.name = "drop_rate", .doc = "dropout after each layer", .min = 0, .max = 1}, drop_rate);
  }
};

/// The channels that a layer adds to its input features x.
Value dense_layer(Builder& b, std::string_view name, Value x, const DenseNetParams& params) {
  const auto module = b.scope(name);
  Value y = relu(b.batch_norm("norm1", x));
  y = b.conv2d("conv1", y, {.out_channels = params.bn_size * params.growth_rate, .bias = false});
  y = relu(b.batch_norm("norm2", y));
  y = b.conv2d("conv2", y, {.out_channels = params.growth_rate, .kernel_size = 3, .padding = 1, .bias = false});
  return b.dropout("dropout", y, params.drop_rate);
}

/// Halves the channels, rows and columns.
Value transition(Builder& b, std::string_view name, Value x) {
  const auto module = b.scope(name);
  x = relu(b.batch_norm("norm", x));
  x = b.conv2d("conv", x, {.out_channels = x.channels() / 2, .bias = false});
  return avg_pool(x, {.kernel_size = 2});
}

NamedValues densenet(Builder& b, const Options& options, Value x) {
  const auto& params = params_of<DenseNetParams>(options);
  GALLEY_CHECK(!params.block_config.empty(), "[densenet] block_config must not be empty");
  const auto init = b.use_init({.conv_weight = Init::kaiming_normal(Init::Fan::kIn), .linear_bias = Init::zeros()});
  {
    const auto features = b.scope("features");
    x = b.conv2d("conv0", x, {.out_channels = params.num_init_features, .kernel_size = 7, .stride = 2, .padding = 3, .bias = false});
    x = max_pool(relu(b.batch_norm("norm0", x)), {.kernel_size = 3, .stride = 2, .padding = 1});
    for (size_t block = 1; block <= params.block_config.size(); ++block) {
      if (block > 1) x = transition(b, cat("transition", block - 1), x);
      const auto module = b.scope(cat("denseblock", block));
      for (int64_t layer = 1; layer <= params.block_config[block - 1]; ++layer)
        x = concat({x, dense_layer(b, cat("denselayer", layer), x, params)});
    }
    x = relu(b.batch_norm("norm5", x));
  }
  return {{"logits", b.linear("classifier", flatten(global_avg_pool(x)), {.out_features = params.num_classes})}};
}

template <int64_t kGrowth, int64_t kFirst, int64_t... kLayers>
std::unique_ptr<Options> make() {
  auto params = std::make_unique<DenseNetParams>();
  params->growth_rate = kGrowth;
  params->num_init_features = kFirst;
  params->block_config = {kLayers...};
  return params;
}

ModelInfo info(const Options&) { return {"densenet", ModelOutput::kClasses, {3, 224, 224}, image_names()}; }

}  // namespace

ModelTable densenet_models() {
  return {
      {{"densenet121", "DenseNet-121 (Huang et al. 2016), 8.0 M parameters", make<32, 64, 6, 12, 24, 16>}, densenet, info},
      {{"densenet161", "DenseNet-161, 28.7 M parameters", make<48, 96, 6, 12, 36, 24>}, densenet, info},
      {{"densenet169", "DenseNet-169, 14.1 M parameters", make<32, 64, 6, 12, 32, 32>}, densenet, info},
      {{"densenet201", "DenseNet-201, 20.0 M parameters", make<32, 64, 6, 12, 48, 32>}, densenet, info},
  };
}

}  // namespace galley
