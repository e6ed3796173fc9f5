// U-Net (Ronneberger et al. 2015) with padded convolutions and batch norm, as it is in common use: an encoder that halves the resolution, a
// decoder that doubles it and concatenates the encoder's features.

#include "libcore/nn/capture.h"
#include "libcore/nn/zoo.h"

namespace galley {
namespace {

struct UNetParams : OptionsOf<UNetParams> {
  int64_t num_classes = 2;
  int64_t base_channels = 64;
  int64_t depth = 4;
  int64_t in_channels = 3;
  std::vector<int64_t> image_size{256, 256};
  void options(OptionVisitor& v) override {
    v.option({.name = "num_classes", .doc = "classes, the background included", .min = 1, .main = true}, num_classes);
    v.option({.name = "base_channels", .doc = "channels at full resolution; each level has twice as many", .min = 1}, base_channels);
    v.option({.name = "depth", .doc = "number of times that the resolution is halved", .min = 1, .max = 8}, depth);
    v.option({.name = "in_channels", .doc = "channels of the image", .min = 1}, in_channels);
    v.option({.name = "image_size", .doc = "height and width where no data say them: benchmarks, shapes", .min = 1}, image_size);
  }
};

/// Two 3x3 convolutions with batch norm and ReLU.
Value double_conv(Builder& b, Value x, int64_t channels, int64_t middle) {
  const auto module = b.scope("double_conv");
  x = b.conv2d("0", x, {.out_channels = middle, .kernel_size = 3, .padding = 1, .bias = false});
  x = relu(b.batch_norm("1", x));
  x = b.conv2d("3", x, {.out_channels = channels, .kernel_size = 3, .padding = 1, .bias = false});
  return relu(b.batch_norm("4", x));
}

Value down(Builder& b, int64_t level, Value x, int64_t channels) {
  const auto module = b.scope(cat("down", level));
  const auto inner = b.scope("maxpool_conv");
  const auto second = b.scope("1");
  return double_conv(b, max_pool(x, {.kernel_size = 2}), channels, channels);
}

/// Doubles the resolution of x to that of `skip`, and joins both.
Value up(Builder& b, int64_t level, Value x, Value skip, int64_t channels, int64_t middle) {
  const auto module = b.scope(cat("up", level));
  ResizeAttrs attrs;
  attrs.size = {skip.shape()[2], skip.shape()[3]};
  attrs.align_corners = true;
  x = concat({skip, resize(x, attrs)});
  const auto conv = b.scope("conv");
  return double_conv(b, x, channels, middle);
}

NamedValues unet(Builder& b, const Options& options, Value x) {
  const auto& params = params_of<UNetParams>(options);
  const int64_t smallest = int64_t{1} << params.depth;
  GALLEY_CHECK(x.shape()[2] >= smallest && x.shape()[3] >= smallest, "[unet] depth ", params.depth, " needs images of at least ", smallest,
               " pixels, the input is ", x.type());
  const auto channels = [&](int64_t level) { return params.base_channels << level; };
  std::vector<Value> levels;
  {
    const auto module = b.scope("inc");
    levels.push_back(double_conv(b, x, channels(0), channels(0)));
  }
  for (int64_t level = 1; level <= params.depth; ++level) {
    levels.push_back(down(b, level, levels.back(), level == params.depth ? channels(level) / 2 : channels(level)));
  }
  Value y = levels.back();
  for (int64_t step = 1; step <= params.depth; ++step) {
    const int64_t level = params.depth - step;
    const Value skip = levels[static_cast<size_t>(level)];
    y = up(b, step, y, skip, level == 0 ? channels(0) : channels(level) / 2, (y.channels() + skip.channels()) / 2);
  }
  const auto module = b.scope("outc");
  return {{"out", b.conv2d("conv", y, {.out_channels = params.num_classes})}};
}

ModelInfo info(const Options& options) {
  const auto& params = params_of<UNetParams>(options);
  GALLEY_CHECK(params.image_size.size() == 2, "[unet] image_size needs a height and a width, but has ", params.image_size.size(),
               " values");
  ModelInfo info{"unet", ModelOutput::kPixelClasses, {params.in_channels, params.image_size[0], params.image_size[1]}, image_names()};
  info.named_outputs = true;
  return info;
}

}  // namespace

ModelTable unet_models() {
  return {{{"unet", "U-Net (Ronneberger et al. 2015) with bilinear upsampling, 17.3 M parameters", make_options<UNetParams>}, unet, info}};
}

}  // namespace galley
