// ResNet (He et al. 2015), ResNeXt (Xie et al. 2016) and Wide ResNet (Zagoruyko, Komodakis 2016). The 3x3 convolution of a bottleneck has
// the stride, as in torchvision ("v1.5").

#include <array>

#include "libcore/nn/capture.h"
#include "libcore/nn/zoo.h"
#include "libcore/nn/zoo_backbones.h"
#include "libcore/ops/norm.h"

namespace galley {
namespace {

struct ResNetParams : OptionsOf<ResNetParams> {
  int64_t num_classes = 1000;
  int64_t groups = 1;
  int64_t width_per_group = 64;
  bool zero_init_residual = false;
  std::vector<int64_t> replace_stride_with_dilation{0, 0, 0};
  BackboneOptions backbone = {};  // of detectors
  void options(OptionVisitor& v) override {
    v.option({.name = "num_classes", .doc = "classes", .min = 1, .main = true}, num_classes);
    v.option({.name = "groups", .doc = "groups of the 3x3 convolutions of bottlenecks", .min = 1}, groups);
    v.option({.name = "width_per_group", .doc = "channels of a group in the first stage", .min = 1}, width_per_group);
    v.option({.name = "zero_init_residual", .doc = "start the last batch norm of each block at 0, so that blocks start as identities"},
             zero_init_residual);
    v.option(
        {.name = "replace_stride_with_dilation", .doc = "for stages 2, 3 and 4: 1 uses dilation instead of stride", .min = 0, .max = 1},
        replace_stride_with_dilation);
  }
};

enum class Block { kBasic, kBottleneck };
struct Architecture {
  Block block;
  std::array<int64_t, 4> layers;
};

struct BlockSize {
  int64_t planes;
  int64_t out_channels;
  int64_t stride;
  int64_t dilation;
};

Value norm(Builder& b, std::string_view name, Value x, const ResNetParams& params, Init weight = Init::ones()) {
  BatchNormOptions options = params.backbone.norm;
  options.weight_init = weight;
  return b.batch_norm(name, x, options);
}

Value basic_block(Builder& b, Value x, const BlockSize& size, const ResNetParams& params, Init last_norm) {
  Value y = b.conv2d("conv1", x, {.out_channels = size.planes, .kernel_size = 3, .stride = size.stride, .padding = 1, .bias = false});
  y = relu(norm(b, "bn1", y, params));
  y = b.conv2d("conv2", y, {.out_channels = size.planes, .kernel_size = 3, .padding = 1, .bias = false});
  return norm(b, "bn2", y, params, last_norm);
}

Value bottleneck(Builder& b, Value x, const BlockSize& size, const ResNetParams& params, Init last_norm) {
  const int64_t width = size.planes * params.width_per_group / 64 * params.groups;
  Value y = b.conv2d("conv1", x, {.out_channels = width, .bias = false});
  y = relu(norm(b, "bn1", y, params));
  y = b.conv2d("conv2", y,
               {.out_channels = width,
                .kernel_size = 3,
                .stride = size.stride,
                .padding = size.dilation,
                .dilation = size.dilation,
                .groups = params.groups,
                .bias = false});
  y = relu(norm(b, "bn2", y, params));
  y = b.conv2d("conv3", y, {.out_channels = size.out_channels, .bias = false});
  return norm(b, "bn3", y, params, last_norm);
}

Value downsample(Builder& b, Value x, const BlockSize& size, const ResNetParams& params) {
  const auto module = b.scope("downsample");
  x = b.conv2d("0", x, {.out_channels = size.out_channels, .stride = size.stride, .bias = false});
  return norm(b, "1", x, params);
}

/// The results of the four stages.
std::vector<Value> stages_of(Builder& b, const ResNetParams& params, const Architecture& architecture, Value x) {
  const bool basic = architecture.block == Block::kBasic;
  GALLEY_CHECK(!basic || (params.groups == 1 && params.width_per_group == 64),
               "[resnet] only models with bottlenecks (resnet50 and deeper) support groups=", params.groups,
               " and width_per_group=", params.width_per_group);
  GALLEY_CHECK(params.replace_stride_with_dilation.size() == 3, "[resnet] replace_stride_with_dilation needs 3 values, but has ",
               params.replace_stride_with_dilation.size());
  const auto init = b.use_init({.conv_weight = Init::kaiming_normal(Init::Fan::kOut)});
  const Init last_norm = params.zero_init_residual ? Init::zeros() : Init::ones();

  const int64_t trained = params.backbone.trainable_layers;
  {
    const auto stem = b.freeze(trained < 5);
    x = b.conv2d("conv1", x, {.out_channels = 64, .kernel_size = 7, .stride = 2, .padding = 3, .bias = false});
    x = relu(norm(b, "bn1", x, params));
  }
  x = max_pool(x, {.kernel_size = 3, .stride = 2, .padding = 1});
  int64_t dilation = 1;
  std::vector<Value> stages;
  for (int64_t stage = 0; stage < 4; ++stage) {
    const auto layer = b.scope(cat("layer", stage + 1));
    const auto frozen = b.freeze(trained < 4 - stage);
    const bool dilate = stage > 0 && params.replace_stride_with_dilation[static_cast<size_t>(stage - 1)] != 0;
    GALLEY_CHECK(!dilate || !basic, "[resnet] only models with bottlenecks (resnet50 and deeper) support dilation");
    const int64_t stride = stage == 0 || dilate ? 1 : 2;
    for (int64_t i = 0; i < architecture.layers[static_cast<size_t>(stage)]; ++i) {
      const auto block = b.scope(std::to_string(i));
      const int64_t planes = int64_t{64} << stage;
      // The first block of a dilated stage keeps the dilation of the previous stage.
      const BlockSize size{planes, basic ? planes : 4 * planes, i == 0 ? stride : 1, dilation};
      const Value y = basic ? basic_block(b, x, size, params, last_norm) : bottleneck(b, x, size, params, last_norm);
      if (size.stride != 1 || x.channels() != size.out_channels) x = downsample(b, x, size, params);
      x = relu(add(y, x));
      if (i == 0 && dilate) dilation *= 2;
    }
    stages.push_back(x);
  }
  return stages;
}

Value resnet(Builder& b, const ResNetParams& params, const Architecture& architecture, Value x) {
  x = flatten(global_avg_pool(stages_of(b, params, architecture, x).back()));
  return b.linear("fc", x, {.out_features = params.num_classes});
}

template <Block kBlock, int64_t... kLayers>
NamedValues build(Builder& b, const Options& params, Value input) {
  return {{"logits", resnet(b, params_of<ResNetParams>(params), {kBlock, {kLayers...}}, input)}};
}

template <int64_t kGroups, int64_t kWidth>
std::unique_ptr<Options> make() {
  auto params = std::make_unique<ResNetParams>();
  params->groups = kGroups;
  params->width_per_group = kWidth;
  return params;
}

ModelInfo info(const Options&) { return {"resnet", ModelOutput::kClasses, {3, 224, 224}, image_names()}; }

}  // namespace

std::vector<Value> resnet_stages(Builder& b, ResNetDepth depth, const std::vector<int64_t>& replace_stride_with_dilation, Value x,
                                 const BackboneOptions& options) {
  ResNetParams params;
  params.backbone = options;
  params.replace_stride_with_dilation = replace_stride_with_dilation;
  const int64_t third = depth == ResNetDepth::k50 ? 6 : 23;
  return stages_of(b, params, {Block::kBottleneck, {3, 4, third, 3}}, x);
}

ModelTable resnet_models() {
  return {
      {{"resnet18", "ResNet-18 (He et al. 2015), 11.7 M parameters", make<1, 64>}, build<Block::kBasic, 2, 2, 2, 2>, info},
      {{"resnet34", "ResNet-34, 21.8 M parameters", make<1, 64>}, build<Block::kBasic, 3, 4, 6, 3>, info},
      {{"resnet50", "ResNet-50 v1.5, 25.6 M parameters", make<1, 64>}, build<Block::kBottleneck, 3, 4, 6, 3>, info},
      {{"resnet101", "ResNet-101 v1.5, 44.5 M parameters", make<1, 64>}, build<Block::kBottleneck, 3, 4, 23, 3>, info},
      {{"resnet152", "ResNet-152 v1.5, 60.2 M parameters", make<1, 64>}, build<Block::kBottleneck, 3, 8, 36, 3>, info},
      {{"resnext50_32x4d", "ResNeXt-50 32x4d (Xie et al. 2016), 25.0 M parameters", make<32, 4>},
       build<Block::kBottleneck, 3, 4, 6, 3>,
       info},
      {{"resnext101_32x8d", "ResNeXt-101 32x8d, 88.8 M parameters", make<32, 8>}, build<Block::kBottleneck, 3, 4, 23, 3>, info},
      {{"resnext101_64x4d", "ResNeXt-101 64x4d, 83.5 M parameters", make<64, 4>}, build<Block::kBottleneck, 3, 4, 23, 3>, info},
      {{"wide_resnet50_2", "Wide ResNet-50-2 (Zagoruyko, Komodakis 2016), 68.9 M parameters", make<1, 128>},
       build<Block::kBottleneck, 3, 4, 6, 3>,
       info},
      {{"wide_resnet101_2", "Wide ResNet-101-2, 126.9 M parameters", make<1, 128>}, build<Block::kBottleneck, 3, 4, 23, 3>, info},
  };
}

}  // namespace galley
