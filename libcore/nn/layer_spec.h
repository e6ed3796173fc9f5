#pragma once
// The contents of `model: {type: layers, input: ..., layers: [...]}`: a model listed layer by layer. The recipe reads it; this room builds
// the graph (the model kind "layers").

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/base/named_options.h"

namespace galley {

/// The layers that a recipe may name (conv2d, batch_norm, add, ...), with their options.
ComponentKinds layer_kinds();

/// One layer, or a group of layers (`layer` is empty and `layers` is not).
struct LayerSpec : OptionsOf<LayerSpec> {
  void options(OptionVisitor& v) override {
    v.option({.name = "name", .doc = "name in parameter paths and for `inputs`; default: the type, numbered where it repeats"}, name);
    v.component({.name = "", .doc = "type of the layer"}, layer, layer_kinds());
    v.option({.name = "inputs",
              .doc = "names of the layers whose outputs are the inputs; `in` is the group's input; default: the previous layer"},
             inputs);
    v.option({.name = "repeat", .doc = "number of copies in sequence; names become NAME.0, NAME.1, ...", .min = 1, .max = 10000}, repeat);
    v.list({.name = "layers", .doc = "a group: its layers in sequence"}, layers.items, make_options<LayerSpec>);
  }
  const LayerSpec& child(size_t index) const { return layers.at<LayerSpec>(index); }

  std::string name;
  Component layer;
  std::vector<std::string> inputs;
  int64_t repeat = 1;
  OptionList layers;
};

enum class InputDType { kF32, kI64 };
inline constexpr std::array<std::string_view, 2> kInputDTypeNames{"f32", "i64"};

/// The model's input: the shape of one sample and optional names of its dimensions.
struct InputSpec : OptionsOf<InputSpec> {
  void options(OptionVisitor& v) override {
    v.option({.name = "shape", .doc = "shape of one sample, without the batch, e.g. [3, 32, 32]", .min = 1, .required = true, .main = true},
             shape);
    v.option({.name = "names", .doc = "names of these dimensions, e.g. [C, H, W]"}, names);
    v.choice({.name = "dtype", .doc = "f32, or i64 for indices of an embedding (tokens)"}, dtype, kInputDTypeNames);
  }
  std::vector<int64_t> shape;
  std::vector<std::string> names;
  InputDType dtype = InputDType::kF32;
};

/// Options of the model kind "layers".
struct LayersModel : OptionsOf<LayersModel> {
  void options(OptionVisitor& v) override {
    v.option({.name = "input", .doc = "shape and dtype of one sample, if the model has one input: the field `input`"}, input);
    v.section({.name = "inputs", .doc = "several inputs: each reads the field of its name, and layers refer to them in `inputs`"}, inputs);
    v.option({.name = "outputs", .doc = "layers whose outputs are the model's results, the main one first; default: the last"}, outputs);
    v.list({.name = "layers", .doc = "layers in sequence", .required = true}, layers.items, make_options<LayerSpec>);
  }
  std::optional<InputSpec> input;
  NamedOptionsOf<InputSpec> inputs;
  std::vector<std::string> outputs;
  OptionList layers;
};

}  // namespace galley
