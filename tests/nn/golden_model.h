#pragma once
// A zoo model at golden weights, on the reference interpreter in double.

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "libcore/backends/ref/ref.h"
#include "libcore/nn/loss.h"
#include "libcore/nn/zoo.h"
#include "tests/nn/set_option.h"
#include "tests/support/golden_weights.h"

namespace galley {

/// A zoo model with some options.
struct GoldenModel {
  std::string file;  // of tests/golden/models
  std::string type;
  Shape input;
  std::vector<std::pair<std::string, std::vector<double>>> options;

  Component component() const {
    Component model = default_model(type);
    for (const auto& [name, values] : options) {
      Setter setter(name, values);
      model.params->options(setter);
      EXPECT_TRUE(setter.found) << type << " has no option " << name;
    }
    return model;
  }
};

/// Models of a size that the interpreter runs in seconds, with the options in make_golden.py.
inline const std::vector<GoldenModel>& golden_models() {
  const std::vector<double> none{0};
  static const std::vector<GoldenModel> all{
      {"mlp", "mlp", {3, 1, 28, 28}, {{"hidden", {64, 32}}}},
      {"cnn", "cnn", {4, 1, 28, 28}, {{"channels", {8, 16, 24}}, {"dropout", none}}},
      {"cifar_resnet20", "cifar_resnet20", {4, 3, 16, 16}, {}},
      {"resnet18", "resnet18", {2, 3, 48, 48}, {}},
      {"resnet50_dilated", "resnet50", {2, 3, 32, 32}, {{"replace_stride_with_dilation", {0, 0, 1}}}},
      {"resnext50_32x4d", "resnext50_32x4d", {2, 3, 48, 48}, {}},
      {"mobilenet_v2", "mobilenet_v2", {2, 3, 48, 48}, {{"width_mult", {0.5}}, {"dropout", none}}},
      {"mobilenet_v3_large", "mobilenet_v3_large", {2, 3, 48, 48}, {{"width_mult", {0.75}}, {"dropout", none}}},
      {"mobilenet_v3_small", "mobilenet_v3_small", {2, 3, 48, 48}, {{"reduced_tail", {1}}, {"dilated", {1}}, {"dropout", none}}},
      {"vgg11", "vgg11", {2, 3, 32, 32}, {{"hidden_features", {32}}, {"dropout", none}}},
      {"vgg13_bn", "vgg13_bn", {2, 3, 32, 32}, {{"hidden_features", {32}}, {"dropout", none}}},
      {"alexnet_reduced", "alexnet", {2, 3, 64, 64}, {{"hidden_features", {32}}, {"dropout", none}}},
      {"squeezenet1_0_reduced", "squeezenet1_0", {2, 3, 48, 48}, {{"dropout", none}}},
      {"squeezenet1_1_reduced", "squeezenet1_1", {2, 3, 48, 48}, {{"dropout", none}}},
      {"densenet_reduced",
       "densenet121",
       {2, 3, 64, 64},
       {{"growth_rate", {8}}, {"block_config", {2, 3, 2, 2}}, {"num_init_features", {16}}}},
      {"googlenet_reduced", "googlenet", {2, 3, 48, 48}, {{"dropout", none}, {"dropout_aux", none}, {"transform_input", {1}}}},
      {"inception_v3_reduced", "inception_v3", {2, 3, 75, 75}, {{"dropout", none}, {"aux_logits", none}}},
      {"mnasnet_reduced", "mnasnet1_0", {2, 3, 48, 48}, {{"alpha", {0.35}}, {"dropout", none}}},
      {"shufflenet_reduced", "shufflenet_v2_x0_5", {2, 3, 64, 64}, {}},
      {"efficientnet_b0_reduced",
       "efficientnet_b0",
       {2, 3, 48, 48},
       {{"width_mult", {0.5}}, {"depth_mult", {0.5}}, {"dropout", none}, {"stochastic_depth_prob", none}}},
      {"efficientnet_b5_reduced",
       "efficientnet_b5",
       {2, 3, 48, 48},
       {{"width_mult", {0.25}}, {"depth_mult", {0.25}}, {"dropout", none}, {"stochastic_depth_prob", none}}},
      {"efficientnet_v2_reduced",
       "efficientnet_v2_s",
       {2, 3, 48, 48},
       {{"width_mult", {0.5}}, {"depth_mult", {0.25}}, {"dropout", none}, {"stochastic_depth_prob", none}}},
      {"regnet_x_reduced", "regnet_x_400mf", {2, 3, 48, 48}, {{"depth", {6}}}},
      {"regnet_y_reduced",
       "regnet_y_400mf",
       {2, 3, 48, 48},
       {{"depth", {6}}, {"w_0", {24}}, {"w_a", {24.48}}, {"w_m", {2.54}}, {"group_width", {16}}}},
      {"vit_reduced",
       "vit_b_16",
       {2, 3, 32, 32},
       {{"image_size", {32}}, {"patch_size", {8}}, {"num_layers", {2}}, {"num_heads", {3}}, {"hidden_dim", {48}}, {"mlp_dim", {96}}}},
      {"convnext_reduced",
       "convnext_tiny",
       {2, 3, 64, 64},
       {{"channels", {16, 32, 48, 64}}, {"num_layers", {1, 1, 2, 1}}, {"stochastic_depth_prob", none}}},
      {"swin_reduced",
       "swin_t",
       {2, 3, 60, 60},
       {{"embed_dim", {24}}, {"depths", {2, 2, 1}}, {"num_heads", {2, 4, 4}}, {"window_size", {4}}, {"stochastic_depth_prob", none}}},
      {"swin_v2_reduced",
       "swin_v2_t",
       {2, 3, 60, 60},
       {{"embed_dim", {24}}, {"depths", {2, 2, 1}}, {"num_heads", {2, 4, 4}}, {"window_size", {4}}, {"stochastic_depth_prob", none}}},
      {"fcn", "fcn_resnet50", {2, 3, 17, 20}, {{"aux_loss", {1}}, {"dropout", none}}},
      {"deeplabv3", "deeplabv3_mobilenet_v3_large", {2, 3, 24, 17}, {{"aux_loss", {1}}, {"dropout", none}}},
      {"lraspp", "lraspp_mobilenet_v3_large", {2, 3, 24, 17}, {}},
      {"r3d_18_reduced", "r3d_18", {2, 3, 4, 20, 18}, {{"layers", {1, 1, 1, 1}}}},
      {"mc3_18_reduced", "mc3_18", {2, 3, 4, 20, 18}, {{"layers", {1, 1, 1, 1}}}},
      {"r2plus1d_18_reduced", "r2plus1d_18", {2, 3, 4, 20, 18}, {{"layers", {1, 1, 1, 1}}}},
      {"unet_reduced", "unet", {2, 3, 12, 16}, {{"base_channels", {8}}, {"depth", {2}}}},
  };
  return all;
}

/// One label per sample, or one per pixel.
inline Shape target_shape(const GoldenModel& golden) {
  if (model_info(golden.component()).output != ModelOutput::kPixelClasses) return {golden.input[0]};
  return {golden.input[0], golden.input[2], golden.input[3]};
}

inline Component with_ten_classes(const GoldenModel& golden) {
  Component model = golden.component();
  Setter classes("num_classes", {10});
  model.params->options(classes);
  return model;
}

/// Golden values of a parameter or buffer. A table that a model computes once has its computed values, rounded to float32 as in a file.
inline std::vector<double> golden_values_of(const ParameterSpec& spec) {
  if (spec.init.kind != Init::Kind::kValues) return golden_state(spec.name, spec.type.shape);
  std::vector<double> values = *spec.init.values;
  for (double& value : values) value = static_cast<float>(value);
  return values;
}
/// Golden values of every parameter and buffer.
inline std::map<std::string, RefArray> golden_feeds(const std::vector<ParameterSpec>& specs) {
  std::map<std::string, RefArray> feeds;
  for (const ParameterSpec& spec : specs) feeds[spec.name] = {spec.type.shape, golden_values_of(spec)};
  return feeds;
}
/// Labels 0, 3, 6, ... modulo the classes, as make_golden.py's `batch`.
inline RefArray golden_labels(const Shape& shape, int64_t classes = 10) {
  RefArray labels{shape, {}};
  for (int64_t i = 0; i < shape.elements(); ++i) labels.v.push_back(static_cast<double>(i * 3 % classes));
  return labels;
}

}  // namespace galley
