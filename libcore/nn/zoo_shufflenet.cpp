// ShuffleNetV2 (Ma et al. 2018), as in torchvision.

#include "libcore/nn/capture.h"
#include "libcore/nn/zoo.h"
#include "libcore/ops/shuffle.h"

namespace galley {
namespace {

struct ShuffleNetParams : OptionsOf<ShuffleNetParams> {
  int64_t num_classes = 1000;
  std::vector<int64_t> stages_repeats{4, 8, 4};
  std::vector<int64_t> stages_out_channels{24, 116, 232, 464, 1024};
  void options(OptionVisitor& v) override {
    v.option({.name = "num_classes", .doc = "classes", .min = 1, .main = true}, num_classes);
    v.option({.name = "stages_repeats", .doc = "blocks of each of three stages", .min = 1}, stages_repeats);
    v.option({.name = "stages_out_channels",
              .doc = "channels of the first convolution, the three stages (even), the last convolution",
              .min = 1},
             stages_out_channels);
  }
};

/// Depthwise 3x3 convolution, named `name`, and batch norm, named by the next number.
Value depthwise(Builder& b, int name, Value x, int64_t stride) {
  x = b.conv2d(std::to_string(name), x,
               {.out_channels = x.channels(), .kernel_size = 3, .stride = stride, .padding = 1, .groups = x.channels(), .bias = false});
  return b.batch_norm(std::to_string(name + 1), x);
}
/// 1x1 convolution, batch norm and relu.
Value pointwise(Builder& b, int name, Value x, int64_t channels) {
  x = b.conv2d(std::to_string(name), x, {.out_channels = channels, .bias = false});
  return relu(b.batch_norm(std::to_string(name + 1), x));
}

Value block(Builder& b, std::string_view name, Value x, int64_t channels, int64_t stride) {
  const auto module = b.scope(name);
  Value left = x, right = x;
  if (stride == 1) {
    const std::vector<Value> halves = chunk(x, 2);
    left = halves[0];
    right = halves[1];
  } else {
    const auto branch = b.scope("branch1");
    left = pointwise(b, 2, depthwise(b, 0, x, stride), channels / 2);
  }
  {
    const auto branch = b.scope("branch2");
    right = pointwise(b, 5, depthwise(b, 3, pointwise(b, 0, right, channels / 2), stride), channels / 2);
  }
  return channel_shuffle(concat({left, right}), 2);
}

NamedValues shufflenet(Builder& b, const Options& options, Value x) {
  const auto& params = params_of<ShuffleNetParams>(options);
  const std::vector<int64_t>& channels = params.stages_out_channels;
  GALLEY_CHECK(params.stages_repeats.size() == 3 && channels.size() == 5,
               "[shufflenet] stages_repeats needs 3 values and stages_out_channels 5, but they have ", params.stages_repeats.size(),
               " and ", channels.size());
  {
    const auto module = b.scope("conv1");
    x = b.conv2d("0", x, {.out_channels = channels[0], .kernel_size = 3, .stride = 2, .padding = 1, .bias = false});
    x = relu(b.batch_norm("1", x));
  }
  x = max_pool(x, {.kernel_size = 3, .stride = 2, .padding = 1});
  for (size_t stage = 0; stage < 3; ++stage) {
    const auto module = b.scope(cat("stage", stage + 2));
    const int64_t width = channels[stage + 1];
    GALLEY_CHECK(width % 2 == 0, "[shufflenet] stages_out_channels of the stages must be even, not ", width);
    for (int64_t i = 0; i < params.stages_repeats[stage]; ++i) x = block(b, std::to_string(i), x, width, i == 0 ? 2 : 1);
  }
  {
    const auto module = b.scope("conv5");
    x = pointwise(b, 0, x, channels[4]);
  }
  return {{"logits", b.linear("fc", flatten(global_avg_pool(x)), {.out_features = params.num_classes})}};
}

template <int64_t... kChannels>
std::unique_ptr<Options> make() {
  auto params = std::make_unique<ShuffleNetParams>();
  params->stages_out_channels = {kChannels...};
  return params;
}

ModelInfo info(const Options&) { return {"shufflenet", ModelOutput::kClasses, {3, 224, 224}, image_names()}; }

}  // namespace

ModelTable shufflenet_models() {
  return {
      {{"shufflenet_v2_x0_5", "ShuffleNetV2 (Ma et al. 2018) of half width, 1.4 M parameters", make<24, 48, 96, 192, 1024>},
       shufflenet,
       info},
      {{"shufflenet_v2_x1_0", "ShuffleNetV2, 2.3 M parameters", make<24, 116, 232, 464, 1024>}, shufflenet, info},
      {{"shufflenet_v2_x1_5", "ShuffleNetV2 of width 1.5, 3.5 M parameters", make<24, 176, 352, 704, 1024>}, shufflenet, info},
      {{"shufflenet_v2_x2_0", "ShuffleNetV2 of width 2, 7.4 M parameters", make<24, 244, 488, 976, 2048>}, shufflenet, info},
  };
}

}  // namespace galley
