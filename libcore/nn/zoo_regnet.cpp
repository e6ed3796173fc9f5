// RegNetX and RegNetY (Radosavovic et al. 2020), as in torchvision.

#include <algorithm>
#include <cmath>

#include "libcore/nn/capture.h"
#include "libcore/nn/zoo.h"

namespace galley {
namespace {

struct RegNetParams : OptionsOf<RegNetParams> {
  int64_t num_classes = 1000;
  int64_t depth = 16;
  int64_t w_0 = 48;
  double w_a = 27.89;
  double w_m = 2.09;
  int64_t group_width = 8;
  double se_ratio = 0;
  void options(OptionVisitor& v) override {
    v.option({.name = "num_classes", .doc = "classes", .min = 1, .main = true}, num_classes);
    v.option({.name = "depth", .doc = "blocks", .min = 1}, depth);
    v.option({.name = "w_0", .doc = "width of the first block, a multiple of 8", .min = 8}, w_0);
    v.option({.name = "w_a", .doc = "width added by each block, before the width is rounded to a power of w_m", .min = 0}, w_a);
    v.option({.name = "w_m", .doc = "ratio of the widths of stages", .min = 1.001}, w_m);
    v.option({.name = "group_width", .doc = "channels of a group of the 3x3 convolutions", .min = 1}, group_width);
    v.option({.name = "se_ratio",
              .doc = "squeeze-and-excite channels as a fraction of a block's input channels; 0: none (RegNetX)",
              .min = 0,
              .max = 1},
             se_ratio);
  }
};

struct Stage {
  int64_t width, blocks;
};

/// Equations 2 to 4 of the paper: widths grow linearly, are rounded to w_0 times powers of w_m, then to multiples of 8. Blocks of equal
/// width form a stage. The width of a stage is then adjusted to a multiple of the group width.
std::vector<Stage> stages_of(const RegNetParams& params) {
  GALLEY_CHECK(params.w_0 % 8 == 0, "[regnet] w_0 must be a multiple of 8, not ", params.w_0);
  std::vector<Stage> stages;
  const double first = static_cast<double>(params.w_0);
  for (int64_t i = 0; i < params.depth; ++i) {
    const double power = std::nearbyint(std::log1p(static_cast<double>(i) * params.w_a / first) / std::log(params.w_m));
    const int64_t width = 8 * static_cast<int64_t>(std::nearbyint(first * std::pow(params.w_m, power) / 8));
    if (stages.empty() || stages.back().width != width) stages.push_back({width, 0});
    ++stages.back().blocks;
  }
  for (Stage& stage : stages) stage.width = make_divisible(static_cast<double>(stage.width), std::min(params.group_width, stage.width));
  return stages;
}

Value bottleneck(Builder& b, std::string_view name, Value x, const RegNetParams& params, int64_t width, int64_t stride) {
  const auto module = b.scope(name);
  Value shortcut = x;
  if (stride != 1 || x.channels() != width) shortcut = conv_norm(b, "proj", x, {.channels = width, .stride = stride});
  Value y = x;
  {
    const auto f = b.scope("f");
    constexpr ActivationKind kRelu = ActivationKind::kRelu;
    y = conv_norm(b, "a", y, {.channels = width, .activation = kRelu});
    y = conv_norm(
        b, "b", y,
        {.channels = width, .kernel = 3, .stride = stride, .groups = width / std::min(params.group_width, width), .activation = kRelu});
    if (params.se_ratio > 0) {
      y = squeeze_excite(b, "se", y,
                         {.squeeze_channels = static_cast<int64_t>(std::nearbyint(params.se_ratio * static_cast<double>(x.channels())))});
    }
    y = conv_norm(b, "c", y, {.channels = width});
  }
  return relu(add(shortcut, y));
}

NamedValues regnet(Builder& b, const Options& options, Value x) {
  const auto& params = params_of<RegNetParams>(options);
  const auto init =
      b.use_init({.conv_weight = Init::kaiming_normal(Init::Fan::kOut), .linear_weight = Init::normal(0.01), .linear_bias = Init::zeros()});
  x = conv_norm(b, "stem", x, {.channels = 32, .kernel = 3, .stride = 2, .activation = ActivationKind::kRelu});
  {
    const auto trunk = b.scope("trunk_output");
    int index = 1;
    for (const Stage& stage : stages_of(params)) {
      const auto module = b.scope(cat("block", index));
      for (int64_t i = 0; i < stage.blocks; ++i) x = bottleneck(b, cat("block", index, "-", i), x, params, stage.width, i == 0 ? 2 : 1);
      ++index;
    }
  }
  return {{"logits", b.linear("fc", flatten(global_avg_pool(x)), {.out_features = params.num_classes})}};
}

struct Design {
  int64_t depth, w_0;
  double w_a, w_m;
  int64_t group_width;
};
constexpr Design kX400{22, 24, 24.48, 2.54, 16}, kX800{16, 56, 35.73, 2.28, 16}, kX1600{18, 80, 34.01, 2.25, 24},
    kX3200{25, 88, 26.31, 2.25, 48}, kX8000{23, 80, 49.56, 2.88, 120}, kX16000{22, 216, 55.59, 2.1, 128}, kX32000{23, 320, 69.86, 2.0, 168};
constexpr Design kY400{16, 48, 27.89, 2.09, 8}, kY800{14, 56, 38.84, 2.4, 16}, kY1600{27, 48, 20.71, 2.65, 24},
    kY3200{21, 80, 42.63, 2.66, 24}, kY8000{17, 192, 76.82, 2.19, 56}, kY16000{18, 200, 106.23, 2.48, 112},
    kY32000{20, 232, 115.89, 2.53, 232}, kY128000{27, 456, 160.83, 2.52, 264};

template <const Design& kDesign, bool kSqueezeExcite>
std::unique_ptr<Options> make() {
  auto params = std::make_unique<RegNetParams>();
  params->depth = kDesign.depth;
  params->w_0 = kDesign.w_0;
  params->w_a = kDesign.w_a;
  params->w_m = kDesign.w_m;
  params->group_width = kDesign.group_width;
  params->se_ratio = kSqueezeExcite ? 0.25 : 0;
  return params;
}

ModelInfo info(const Options&) { return {"regnet", ModelOutput::kClasses, {3, 224, 224}, image_names()}; }

}  // namespace

ModelTable regnet_models() {
  return {
      {{"regnet_x_400mf", "RegNetX-400MF (Radosavovic et al. 2020), 5.5 M parameters", make<kX400, false>}, regnet, info},
      {{"regnet_x_800mf", "RegNetX-800MF, 7.3 M parameters", make<kX800, false>}, regnet, info},
      {{"regnet_x_1_6gf", "RegNetX-1.6GF, 9.2 M parameters", make<kX1600, false>}, regnet, info},
      {{"regnet_x_3_2gf", "RegNetX-3.2GF, 15.3 M parameters", make<kX3200, false>}, regnet, info},
      {{"regnet_x_8gf", "RegNetX-8GF, 39.6 M parameters", make<kX8000, false>}, regnet, info},
      {{"regnet_x_16gf", "RegNetX-16GF, 54.3 M parameters", make<kX16000, false>}, regnet, info},
      {{"regnet_x_32gf", "RegNetX-32GF, 107.8 M parameters", make<kX32000, false>}, regnet, info},
      {{"regnet_y_400mf", "RegNetY-400MF, with squeeze-and-excite, 4.3 M parameters", make<kY400, true>}, regnet, info},
      {{"regnet_y_800mf", "RegNetY-800MF, 6.4 M parameters", make<kY800, true>}, regnet, info},
      {{"regnet_y_1_6gf", "RegNetY-1.6GF, 11.2 M parameters", make<kY1600, true>}, regnet, info},
      {{"regnet_y_3_2gf", "RegNetY-3.2GF, 19.4 M parameters", make<kY3200, true>}, regnet, info},
      {{"regnet_y_8gf", "RegNetY-8GF, 39.4 M parameters", make<kY8000, true>}, regnet, info},
      {{"regnet_y_16gf", "RegNetY-16GF, 83.6 M parameters", make<kY16000, true>}, regnet, info},
      {{"regnet_y_32gf", "RegNetY-32GF, 145.0 M parameters", make<kY32000, true>}, regnet, info},
      {{"regnet_y_128gf", "RegNetY-128GF, 644.8 M parameters", make<kY128000, true>}, regnet, info},
  };
}

}  // namespace galley
