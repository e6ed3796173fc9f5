// MobileNetV2 (Sandler et al. 2018) and MobileNetV3 (Howard et al. 2019), as in torchvision.

#include <algorithm>

#include "libcore/nn/capture.h"
#include "libcore/nn/zoo.h"
#include "libcore/nn/zoo_backbones.h"

namespace galley {
namespace {

InitRules mobilenet_init() {
  return {.conv_weight = Init::kaiming_normal(Init::Fan::kOut),
          .conv_bias = Init::zeros(),
          .linear_weight = Init::normal(0.01),
          .linear_bias = Init::zeros()};
}

// ---- MobileNetV2

struct MobileNetV2Params : OptionsOf<MobileNetV2Params> {
  int64_t num_classes = 1000;
  double width_mult = 1;
  int64_t round_nearest = 8;
  std::vector<int64_t> strides{2, 1, 2, 2, 2, 1, 2, 1};
  double dropout = 0.2;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_classes", .doc = "classes", .min = 1, .main = true}, num_classes);
    v.option({.name = "width_mult", .doc = "multiplies the channels of every layer", .min = 0.01, .max = 16}, width_mult);
    v.option({.name = "round_nearest", .doc = "channels are rounded to a multiple of this", .min = 1}, round_nearest);
    v.option({.name = "strides",
              .doc = "strides of the first convolution and of the seven stages; [1,1,2,2,2,1,2,1] suits images of 32 pixels",
              .min = 1},
             strides);
    v.option({.name = "dropout", .doc = "dropout before the classifier", .min = 0, .max = 1}, dropout);
  }
};

Value inverted_residual_v2(Builder& b, std::string_view name, Value x, int64_t channels, int64_t stride, int64_t expand) {
  const auto module = b.scope(name);
  const int64_t hidden = x.channels() * expand;
  Value y = x;
  {
    const auto conv = b.scope("conv");
    int index = 0;
    const auto next = [&index] { return std::to_string(index++); };
    if (expand != 1) y = conv_norm(b, next(), y, {.channels = hidden, .activation = ActivationKind::kRelu6});
    y = conv_norm(b, next(), y,
                  {.channels = hidden, .kernel = 3, .stride = stride, .groups = hidden, .activation = ActivationKind::kRelu6});
    y = b.conv2d(next(), y, {.out_channels = channels, .bias = false});
    y = b.batch_norm(next(), y);
  }
  return stride == 1 && x.channels() == channels ? add(x, y) : y;
}

NamedValues mobilenet_v2(Builder& b, const Options& options, Value x) {
  const auto& params = params_of<MobileNetV2Params>(options);
  const auto init = b.use_init(mobilenet_init());
  GALLEY_CHECK(params.strides.size() == 8,
               "[mobilenet_v2] strides needs 8 values, one for the first convolution and one per stage, but has ", params.strides.size());
  struct Stage {
    int64_t expand, channels, repeats;
  };
  constexpr Stage kStages[] = {{1, 16, 1}, {6, 24, 2}, {6, 32, 3}, {6, 64, 4}, {6, 96, 3}, {6, 160, 3}, {6, 320, 1}};
  const auto scaled = [&](int64_t channels, double factor) {
    return make_divisible(static_cast<double>(channels) * factor, params.round_nearest);
  };
  {
    const auto features = b.scope("features");
    x = conv_norm(
        b, "0", x,
        {.channels = scaled(32, params.width_mult), .kernel = 3, .stride = params.strides[0], .activation = ActivationKind::kRelu6});
    int index = 1;
    for (size_t s = 0; s < std::size(kStages); ++s) {
      const auto [expand, channels, repeats] = kStages[s];
      for (int64_t i = 0; i < repeats; ++i) {
        x = inverted_residual_v2(b, std::to_string(index++), x, scaled(channels, params.width_mult), i == 0 ? params.strides[s + 1] : 1,
                                 expand);
      }
    }
    x = conv_norm(b, std::to_string(index), x,
                  {.channels = scaled(1280, std::max(1.0, params.width_mult)), .activation = ActivationKind::kRelu6});
  }
  x = flatten(global_avg_pool(x));
  const auto classifier = b.scope("classifier");
  x = b.dropout("0", x, params.dropout);
  return {{"logits", b.linear("1", x, {.out_features = params.num_classes})}};
}

// ---- MobileNetV3

struct MobileNetV3Params : OptionsOf<MobileNetV3Params> {
  int64_t num_classes = 1000;
  double width_mult = 1;
  bool reduced_tail = false;
  bool dilated = false;
  double dropout = 0.2;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_classes", .doc = "classes", .min = 1, .main = true}, num_classes);
    v.option({.name = "width_mult", .doc = "multiplies the channels of every layer (rounded to multiples of 8)", .min = 0.01, .max = 16},
             width_mult);
    v.option({.name = "reduced_tail", .doc = "halve the channels of the last blocks, for few classes"}, reduced_tail);
    v.option({.name = "dilated", .doc = "use dilation instead of stride in the last three blocks, for dense prediction"}, dilated);
    v.option({.name = "dropout", .doc = "dropout before the last layer", .min = 0, .max = 1}, dropout);
  }
};

/// A row of table 1 or 2 of the paper.
struct Bottleneck {
  int64_t kernel, expanded, channels;
  bool squeeze_excite;
  ActivationKind activation;
  int64_t stride;
  bool tail = false;  // one of the last blocks, which may be reduced and dilated
  bool expanded_tail =
      true;  // for blocks of the tail: whether the expanded size is reduced too (the first keeps that of the previous block)
};

const BatchNormOptions kNormV3{.eps = 0.001, .momentum = 0.01};

struct BlockV3 {
  int64_t kernel, expanded, channels;
  bool squeeze_excite;
  ActivationKind activation;
  int64_t stride, dilation;
};

/// A block after its expansion: the depthwise convolution, squeeze-and-excite and the projection, in the builder's scope from that index.
Value after_expansion(Builder& b, int index, Value y, const BlockV3& block, const BatchNormOptions& norm) {
  const auto next = [&index] { return std::to_string(index++); };
  y = conv_norm(b, next(), y,
                {.channels = block.expanded,
                 .kernel = block.kernel,
                 .stride = block.dilation > 1 ? 1 : block.stride,
                 .dilation = block.dilation,
                 .groups = block.expanded,
                 .activation = block.activation,
                 .norm = norm});
  if (block.squeeze_excite)
    y = squeeze_excite(b, next(), y, {.squeeze_channels = make_divisible(static_cast<double>(y.channels() / 4), 8), .gate = hardsigmoid});
  return conv_norm(b, next(), y, {.channels = block.channels, .norm = norm});
}

/// The expansion of a block.
Value expansion_v3(Builder& b, std::string_view name, Value x, const BlockV3& block, const BatchNormOptions& norm) {
  return conv_norm(b, name, x, {.channels = block.expanded, .activation = block.activation, .norm = norm});
}

Value inverted_residual_v3(Builder& b, std::string_view name, Value x, const BlockV3& block, const BatchNormOptions& norm) {
  const auto module = b.scope(name);
  Value y = x;
  {
    const auto inner = b.scope("block");
    const bool expands = block.expanded != x.channels();
    if (expands) y = expansion_v3(b, "0", y, block, norm);
    y = after_expansion(b, expands ? 1 : 0, y, block, norm);
  }
  return block.stride == 1 && x.channels() == block.channels ? add(y, x) : y;
}

/// The channels of a layer of these parameters.
int64_t scaled(const MobileNetV3Params& params, int64_t channels) {
  return make_divisible(static_cast<double>(channels) * params.width_mult, 8);
}

BlockV3 block_of(const MobileNetV3Params& params, const Bottleneck& row) {
  const int64_t divide = params.reduced_tail ? 2 : 1;
  return {row.kernel,
          scaled(params, row.tail && row.expanded_tail ? row.expanded / divide : row.expanded),
          scaled(params, row.tail ? row.channels / divide : row.channels),
          row.squeeze_excite,
          row.activation,
          row.stride,
          row.tail && params.dilated ? 2 : 1};
}

Value first_v3(Builder& b, const MobileNetV3Params& params, Value x, const BatchNormOptions& norm) {
  return conv_norm(b, "0", x,
                   {.channels = scaled(params, 16), .kernel = 3, .stride = 2, .activation = ActivationKind::kHardswish, .norm = norm});
}

Value last_v3(Builder& b, std::string_view name, Value x, const BatchNormOptions& norm) {
  return conv_norm(b, name, x, {.channels = 6 * x.channels(), .activation = ActivationKind::kHardswish, .norm = norm});
}

/// The results of the first convolution, of each block and of the last convolution. The modules before `trained` are frozen.
std::vector<Value> features_v3(Builder& b, const MobileNetV3Params& params, std::span<const Bottleneck> rows, Value x,
                               const BatchNormOptions& norm = kNormV3, size_t trained = 0) {
  std::vector<Value> results;
  const auto add = [&](const auto& module) {
    const auto frozen = b.freeze(results.size() < trained);
    results.push_back(module(std::to_string(results.size())));
  };
  add([&](const std::string&) { return first_v3(b, params, x, norm); });
  for (const Bottleneck& row : rows)
    add([&](const std::string& name) { return inverted_residual_v3(b, name, results.back(), block_of(params, row), norm); });
  add([&](const std::string& name) { return last_v3(b, name, results.back(), norm); });
  return results;
}

Value mobilenet_v3(Builder& b, const MobileNetV3Params& params, std::span<const Bottleneck> rows, int64_t last_channels, Value x) {
  const auto init = b.use_init(mobilenet_init());
  {
    const auto features = b.scope("features");
    x = features_v3(b, params, rows, x).back();
  }
  x = flatten(global_avg_pool(x));
  const auto classifier = b.scope("classifier");
  x = hardswish(b.linear("0", x, {.out_features = scaled(params, params.reduced_tail ? last_channels / 2 : last_channels)}));
  x = b.dropout("2", x, params.dropout);
  return b.linear("3", x, {.out_features = params.num_classes});
}

constexpr ActivationKind kRe = ActivationKind::kRelu;
constexpr ActivationKind kHs = ActivationKind::kHardswish;

constexpr Bottleneck kLargeRows[] = {
    {3, 16, 16, false, kRe, 1},
    {3, 64, 24, false, kRe, 2},
    {3, 72, 24, false, kRe, 1},
    {5, 72, 40, true, kRe, 2},
    {5, 120, 40, true, kRe, 1},
    {5, 120, 40, true, kRe, 1},
    {3, 240, 80, false, kHs, 2},
    {3, 200, 80, false, kHs, 1},
    {3, 184, 80, false, kHs, 1},
    {3, 184, 80, false, kHs, 1},
    {3, 480, 112, true, kHs, 1},
    {3, 672, 112, true, kHs, 1},
    {5, 672, 160, true, kHs, 2, true, false},
    {5, 960, 160, true, kHs, 1, true},
    {5, 960, 160, true, kHs, 1, true},
};

NamedValues mobilenet_v3_large(Builder& b, const Options& params, Value input) {
  return {{"logits", mobilenet_v3(b, params_of<MobileNetV3Params>(params), kLargeRows, 1280, input)}};
}

NamedValues mobilenet_v3_small(Builder& b, const Options& params, Value input) {
  static constexpr Bottleneck kRows[] = {
      {3, 16, 16, true, kRe, 2},        {3, 72, 24, false, kRe, 2},       {3, 88, 24, false, kRe, 1},
      {5, 96, 40, true, kHs, 2},        {5, 240, 40, true, kHs, 1},       {5, 240, 40, true, kHs, 1},
      {5, 120, 48, true, kHs, 1},       {5, 144, 48, true, kHs, 1},       {5, 288, 96, true, kHs, 2, true, false},
      {5, 576, 96, true, kHs, 1, true}, {5, 576, 96, true, kHs, 1, true},
  };
  return {{"logits", mobilenet_v3(b, params_of<MobileNetV3Params>(params), kRows, 1024, input)}};
}

ModelInfo info(const Options&) { return {"mobilenet", ModelOutput::kClasses, {3, 224, 224}, image_names()}; }

}  // namespace

std::vector<Value> mobilenet_v3_large_features(Builder& b, bool dilated, Value x, const BackboneOptions& options) {
  constexpr size_t kStages[] = {0, 2, 4, 7, 13, 16};  // the first module of each
  const auto init = b.use_init(mobilenet_init());
  MobileNetV3Params params;
  params.dilated = dilated;
  const auto trained = static_cast<size_t>(std::clamp<int64_t>(options.trainable_layers, 0, std::ssize(kStages)));
  return features_v3(b, params, kLargeRows, x, options.norm,
                     trained == 0 ? std::size(kLargeRows) + 2 : kStages[std::size(kStages) - trained]);
}

std::vector<Value> mobilenet_v3_large_halves(Builder& b, bool reduced_tail, const BatchNormOptions& norm, Value x) {
  constexpr size_t kCut = 12;  // the row of block 13, the last with a stride
  const auto init = b.use_init(mobilenet_init());
  const auto features = b.scope("features");
  MobileNetV3Params params;
  params.reduced_tail = reduced_tail;
  const std::span<const Bottleneck> rows(kLargeRows);
  const BlockV3 cut = block_of(params, rows[kCut]);
  std::vector<Value> halves;
  {
    const auto first = b.scope("0");
    x = first_v3(b, params, x, norm);
    for (size_t row = 0; row < kCut; ++row) x = inverted_residual_v3(b, std::to_string(row + 1), x, block_of(params, rows[row]), norm);
    halves.push_back(expansion_v3(b, std::to_string(kCut + 1), x, cut, norm));
  }
  const auto second = b.scope("1");
  {
    const auto block = b.scope("0");
    x = after_expansion(b, 1, halves[0], cut, norm);
  }
  for (size_t row = kCut + 1; row < rows.size(); ++row)
    x = inverted_residual_v3(b, std::to_string(row - kCut), x, block_of(params, rows[row]), norm);
  halves.push_back(last_v3(b, std::to_string(rows.size() - kCut), x, norm));
  return halves;
}

ModelTable mobilenet_models() {
  return {
      {{"mobilenet_v2", "MobileNetV2 (Sandler et al. 2018), 3.5 M parameters", make_options<MobileNetV2Params>}, mobilenet_v2, info},
      {{"mobilenet_v3_large", "MobileNetV3-Large (Howard et al. 2019), 5.5 M parameters", make_options<MobileNetV3Params>},
       mobilenet_v3_large,
       info},
      {{"mobilenet_v3_small", "MobileNetV3-Small, 2.5 M parameters", make_options<MobileNetV3Params>}, mobilenet_v3_small, info},
  };
}

}  // namespace galley
