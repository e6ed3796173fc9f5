// ResNets for 32x32 images (He et al. 2015, section 4.2): three stages of n blocks with 16, 32 and 64 channels, 6n+2 layers, shortcuts
// without parameters (option A). Parameter names are those of Y. Idelbayev's widely used PyTorch port.

#include "libcore/nn/capture.h"
#include "libcore/nn/zoo.h"

namespace galley {
namespace {

struct CifarResNetParams : OptionsOf<CifarResNetParams> {
  int64_t num_classes = 10;
  void options(OptionVisitor& v) override { v.option({.name = "num_classes", .doc = "classes", .min = 1, .main = true}, num_classes); }
};

/// Option A: takes every second row and column, and adds zeros for the new channels, half of them on each side.
Value shortcut(Value x, int64_t channels, int64_t stride) {
  if (stride != 1) {
    for (const int64_t axis : {2, 3}) {
      SliceAttrs every;
      every.axis = axis;
      every.step = stride;
      x = slice(x, every);
    }
  }
  const int64_t more = channels - x.channels();
  return more == 0 ? x : pad(x, {0, 0, more / 2, more - more / 2, 0, 0, 0, 0});
}

Value block(Builder& b, std::string_view name, Value x, int64_t channels, int64_t stride) {
  const auto module = b.scope(name);
  Value y = b.conv2d("conv1", x, {.out_channels = channels, .kernel_size = 3, .stride = stride, .padding = 1, .bias = false});
  y = relu(b.batch_norm("bn1", y));
  y = b.conv2d("conv2", y, {.out_channels = channels, .kernel_size = 3, .padding = 1, .bias = false});
  y = b.batch_norm("bn2", y);
  return relu(add(y, shortcut(x, channels, stride)));
}

template <int64_t kBlocks>
NamedValues build(Builder& b, const Options& params, Value x) {
  const auto init =
      b.use_init({.conv_weight = Init::kaiming_normal(Init::Fan::kIn), .linear_weight = Init::kaiming_normal(Init::Fan::kIn)});
  x = b.conv2d("conv1", x, {.out_channels = 16, .kernel_size = 3, .padding = 1, .bias = false});
  x = relu(b.batch_norm("bn1", x));
  for (int64_t stage = 0; stage < 3; ++stage) {
    const auto layer = b.scope(cat("layer", stage + 1));
    for (int64_t i = 0; i < kBlocks; ++i) x = block(b, std::to_string(i), x, int64_t{16} << stage, stage > 0 && i == 0 ? 2 : 1);
  }
  x = flatten(global_avg_pool(x));
  return {{"logits", b.linear("linear", x, {.out_features = params_of<CifarResNetParams>(params).num_classes})}};
}

ModelInfo info(const Options&) { return {"cifar_resnet", ModelOutput::kClasses, {3, 32, 32}, image_names()}; }

}  // namespace

ModelTable cifar_resnet_models() {
  return {
      {{"cifar_resnet20", "ResNet-20 for 32x32 images (He et al. 2015), 0.27 M parameters", make_options<CifarResNetParams>},
       build<3>,
       info},
      {{"cifar_resnet32", "ResNet-32 for 32x32 images, 0.46 M parameters", make_options<CifarResNetParams>}, build<5>, info},
      {{"cifar_resnet44", "ResNet-44 for 32x32 images, 0.66 M parameters", make_options<CifarResNetParams>}, build<7>, info},
      {{"cifar_resnet56", "ResNet-56 for 32x32 images, 0.85 M parameters", make_options<CifarResNetParams>}, build<9>, info},
      {{"cifar_resnet110", "ResNet-110 for 32x32 images, 1.7 M parameters", make_options<CifarResNetParams>}, build<18>, info},
  };
}

}  // namespace galley
