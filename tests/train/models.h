#pragma once
// Small models of different kinds, which tests train and run on several back ends.

#include <ostream>
#include <string>
#include <string_view>

namespace galley::test {

/// The text of a recipe, for load_text.
struct Model {
  std::string name;
  std::string_view recipe;
};
inline void PrintTo(const Model& model, std::ostream* out) { *out << model.name; }

inline constexpr std::string_view kConvolutions = R"(
recipe: 1
name: convolutions
model:
  type: layers
  input: {shape: [3, 8, 8]}
  layers:
    - {name: conv1, type: conv2d, out_channels: 8, kernel_size: 3, padding: 1, bias: false}
    - {name: bn1, type: batch_norm}
    - {type: relu}
    - {name: conv2, type: conv2d, out_channels: 8, kernel_size: 3, stride: 2, padding: 1, groups: 8}
    - {name: bn2, type: batch_norm}
    - {type: hardswish}
    - {type: max_pool2d, kernel_size: 2}
    - {type: flatten}
    - {type: dropout, p: 0.2}
    - {name: fc, type: linear, out_features: 4}
loss: {type: cross_entropy}
data:
  train: {source: {type: synthetic, samples: 64, shape: [3, 8, 8], classes: 4}}
train:
  duration: 10 steps
  batch: 4
  optimizer: {type: sgd, lr: 0.1, momentum: 0.9, weight_decay: 1e-4}
  clip: 1.0
  ema: 0.9
)";

inline constexpr std::string_view kPerceptron = R"(
recipe: 1
name: perceptron
model:
  type: layers
  input: {shape: [12]}
  layers:
    - {name: fc1, type: linear, out_features: 16}
    - {name: norm, type: layer_norm}
    - {type: gelu}
    - {name: fc2, type: linear, out_features: 3}
loss: {type: cross_entropy}
data:
  train: {source: {type: synthetic, samples: 64, shape: [12], classes: 3}}
train:
  duration: 10 steps
  batch: 4
  optimizer: {type: adamw, lr: 0.01, weight_decay: 0.01}
)";

inline constexpr std::string_view kRecurrent = R"(
recipe: 1
name: recurrent
model:
  type: layers
  input: {shape: [5, 6]}
  layers:
    - {name: lstm, type: lstm, hidden_size: 7}
    - {type: mean, dim: [1]}
    - {name: fc, type: linear, out_features: 3}
loss: {type: cross_entropy}
data:
  train: {source: {type: synthetic, samples: 64, shape: [5, 6], classes: 3}}
train:
  duration: 10 steps
  batch: 4
  optimizer: {type: rmsprop, lr: 0.01}
)";

inline const Model kModels[] = {{"convolutions", kConvolutions}, {"perceptron", kPerceptron}, {"recurrent", kRecurrent}};

}  // namespace galley::test
