// Video classification: R3D-18, MC3-18 and R(2+1)D-18 (Tran et al. 2018, "A Closer Look at Spatiotemporal Convolutions for Action
// Recognition"), with the names of torchvision.models.video. The input is a clip [N,3,T,H,W].

#include "libcore/nn/capture.h"
#include "libcore/nn/zoo.h"
#include "libcore/ops/reduce.h"

namespace galley {
namespace {

struct VideoParams : OptionsOf<VideoParams> {
  int64_t num_classes = 400;
  int64_t width = 64;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_classes", .doc = "classes", .min = 1, .main = true}, num_classes);
    v.option({.name = "width", .doc = "channels of the first stage; each later stage has twice as many", .min = 1}, width);
  }
};

/// How a block convolves: over space and time at once, over space and then over time, or over space only.
enum class Kernel { kJoint, kFactorized, kSpatial };

/// Channels between the two convolutions of a factorized kernel, so that it has as many parameters as a joint one.
int64_t middle_channels(int64_t in, int64_t out) { return in * out * 27 / (in * 9 + 3 * out); }

Value norm_relu(Builder& b, std::string_view norm, Value x) { return relu(b.batch_norm(norm, x)); }

/// The convolution of a block, of size 3.
Value convolution(Builder& b, std::string_view name, Value x, Kernel kernel, int64_t out, int64_t middle, int64_t stride) {
  switch (kernel) {
    case Kernel::kJoint: return b.conv3d(name, x, {.out_channels = out, .kernel_size = 3, .stride = stride, .padding = 1, .bias = false});
    case Kernel::kSpatial:
      return b.conv3d(name, x,
                      {.out_channels = out, .kernel_size = {1, 3, 3}, .stride = {1, stride, stride}, .padding = {0, 1, 1}, .bias = false});
    case Kernel::kFactorized: {
      const auto module = b.scope(name);
      x = b.conv3d("0", x,
                   {.out_channels = middle, .kernel_size = {1, 3, 3}, .stride = {1, stride, stride}, .padding = {0, 1, 1}, .bias = false});
      x = norm_relu(b, "1", x);
      return b.conv3d("3", x,
                      {.out_channels = out, .kernel_size = {3, 1, 1}, .stride = {stride, 1, 1}, .padding = {1, 0, 0}, .bias = false});
    }
  }
  GALLEY_ASSERT(false);
}

Value stem(Builder& b, Value x, bool factorized, int64_t width) {
  const auto module = b.scope("stem");
  const int64_t channels = factorized ? 45 : width, taps = factorized ? 1 : 3;
  x = b.conv3d("0", x,
               {.out_channels = channels, .kernel_size = {taps, 7, 7}, .stride = {1, 2, 2}, .padding = {taps / 2, 3, 3}, .bias = false});
  x = norm_relu(b, "1", x);
  if (!factorized) return x;
  x = b.conv3d("3", x, {.out_channels = width, .kernel_size = {3, 1, 1}, .padding = {1, 0, 0}, .bias = false});
  return norm_relu(b, "4", x);
}

Value block(Builder& b, Value x, Kernel kernel, int64_t planes, int64_t stride) {
  const int64_t middle = middle_channels(x.channels(), planes);
  const Value input = x;
  {
    const auto module = b.scope("conv1");
    x = norm_relu(b, "1", convolution(b, "0", x, kernel, planes, middle, stride));
  }
  {
    const auto module = b.scope("conv2");
    x = b.batch_norm("1", convolution(b, "0", x, kernel, planes, middle, 1));
  }
  if (stride == 1 && input.channels() == planes) return relu(add(x, input));
  const auto module = b.scope("downsample");
  const Size3 strides = kernel == Kernel::kSpatial ? Size3(1, stride, stride) : Size3(stride);
  const Value shortcut = b.conv3d("0", input, {.out_channels = planes, .stride = strides, .bias = false});
  return relu(add(x, b.batch_norm("1", shortcut)));
}

template <Kernel kFirst, Kernel kOthers>
NamedValues build(Builder& b, const Options& options, Value x) {
  const auto& params = params_of<VideoParams>(options);
  GALLEY_CHECK(x.shape().rank() == 5 && x.channels() == 3, "the input must be a clip [N,3,T,H,W], not ", x.type());
  const auto init =
      b.use_init({.conv_weight = Init::kaiming_normal(Init::Fan::kOut), .linear_weight = Init::normal(0.01), .linear_bias = Init::zeros()});
  x = stem(b, x, kFirst == Kernel::kFactorized, params.width);
  for (int64_t stage = 0; stage < 4; ++stage) {
    const auto layer = b.scope(cat("layer", stage + 1));
    for (int64_t i = 0; i < 2; ++i) {
      const auto module = b.scope(std::to_string(i));
      x = block(b, x, stage == 0 ? kFirst : kOthers, params.width << stage, stage > 0 && i == 0 ? 2 : 1);
    }
  }
  return {{"logits", b.linear("fc", mean(x, {2, 3, 4}), {.out_features = params.num_classes})}};
}

ModelInfo info(const Options&) { return {"video_resnet", ModelOutput::kClasses, {3, 16, 112, 112}, {"C", "T", "H", "W"}}; }

}  // namespace

ModelTable video_models() {
  return {
      {{"r3d_18", "ResNet-18 with 3-D convolutions (Tran et al. 2018), 33.4 M parameters", make_options<VideoParams>},
       build<Kernel::kJoint, Kernel::kJoint>,
       info},
      {{"mc3_18", "3-D convolutions in the first stage, 2-D ones after it (Tran et al. 2018), 11.7 M parameters",
        make_options<VideoParams>},
       build<Kernel::kJoint, Kernel::kSpatial>,
       info},
      {{"r2plus1d_18", "convolutions over space, then over time (Tran et al. 2018), 31.5 M parameters", make_options<VideoParams>},
       build<Kernel::kFactorized, Kernel::kFactorized>,
       info},
  };
}

}  // namespace galley
