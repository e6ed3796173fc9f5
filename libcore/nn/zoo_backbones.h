#pragma once
// Classifiers without their classifier: the features of several resolutions, for models that put another head on them.

#include <optional>
#include <string_view>
#include <vector>

#include "libcore/nn/builder.h"

namespace galley {

enum class ResNetDepth { k50, k101 };
/// Options of the backbone of a detector.
struct BackboneOptions {
  BatchNormOptions norm = {};
  int64_t trainable_layers = 6;  // stages that are trained, from the last; torchvision's trainable_layers
};
/// The results of the stages layer1 to layer4 of a ResNet, with the parameters of the model in the builder's scope.
/// `replace_stride_with_dilation`: for stages 2, 3 and 4, as the models' parameter. The stem is the fifth stage from the last.
std::vector<Value> resnet_stages(Builder& b, ResNetDepth depth, const std::vector<int64_t>& replace_stride_with_dilation, Value x,
                                 const BackboneOptions& options = {});

/// The results of the modules 0 to 16 of MobileNetV3-Large's `features`, with their parameters in the builder's scope. `dilated`: as the
/// model's parameter. Its six stages begin at the modules with a stride, and the last is module 16.
std::vector<Value> mobilenet_v3_large_features(Builder& b, bool dilated, Value x,
                                               const BackboneOptions& options = {.norm = {.eps = 0.001, .momentum = 0.01}});

/// MobileNetV3-Large without its classifier in two halves, "features.0" up to the expansion of block 13 and "features.1" from there to the
/// end (section 6.3 of Howard et al. 2019): their results, of a sixteenth and a 32nd of the resolution. `reduced_tail`: as the model's
/// parameter.
std::vector<Value> mobilenet_v3_large_halves(Builder& b, bool reduced_tail, const BatchNormOptions& norm, Value x);

}  // namespace galley
