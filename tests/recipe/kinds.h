#pragma once
// Small component kinds for tests; the real ones are in other rooms.

#include <map>
#include <string>

#include "libcore/recipe/recipe.h"
#include "tests/support/temporary_folder.h"

namespace galley::recipe_test {

struct Sgd : OptionsOf<Sgd> {
  void options(OptionVisitor& v) override {
    v.option({.name = "lr", .doc = "learning rate", .min = 0, .required = true}, lr);
    v.option({.name = "momentum", .doc = "share of the last update", .min = 0, .max = 1}, momentum);
    v.option({.name = "weight_decay", .doc = "L2 penalty", .min = 0}, weight_decay);
    v.option({.name = "nesterov", .doc = "look ahead"}, nesterov);
  }
  double lr = 0, momentum = 0, weight_decay = 0;
  bool nesterov = false;
};
struct Adam : OptionsOf<Adam> {
  void options(OptionVisitor& v) override {
    v.option({.name = "lr", .doc = "learning rate", .min = 0}, lr);
    v.option({.name = "betas", .doc = "decays", .min = 0, .max = 1}, betas);
  }
  double lr = 1e-3;
  std::vector<double> betas{0.9, 0.999};
};
struct Resnet : OptionsOf<Resnet> {
  void options(OptionVisitor& v) override { v.option({.name = "num_classes", .doc = "classes", .min = 1}, num_classes); }
  int64_t num_classes = 1000;
};
struct Conv : OptionsOf<Conv> {
  void options(OptionVisitor& v) override {
    v.option({.name = "out_channels", .doc = "", .min = 1, .required = true}, out_channels);
    v.option({.name = "kernel_size", .doc = "", .min = 1, .required = true}, kernel_size);
    v.option({.name = "bias", .doc = ""}, bias);
  }
  int64_t out_channels = 1;
  std::vector<int64_t> kernel_size;
  bool bias = true;
};
struct Empty : OptionsOf<Empty> {
  void options(OptionVisitor&) override {}
};

inline constexpr ComponentKind kLayers[] = {
    {"conv2d", "convolution", make_options<Conv>}, {"relu", "max(x, 0)", make_options<Empty>}, {"add", "sum", make_options<Empty>}};

// As in libcore/nn/layer_spec.h: nested groups, and common keys of layers together with those of the kind.
struct Layer : OptionsOf<Layer> {
  void options(OptionVisitor& v) override {
    v.option({.name = "name", .doc = ""}, name);
    v.component({.name = "", .doc = ""}, layer, kLayers);
    v.option({.name = "inputs", .doc = ""}, inputs);
    v.option({.name = "repeat", .doc = "", .min = 1}, repeat);
    v.list({.name = "layers", .doc = ""}, layers.items, make_options<Layer>);
  }
  std::string name;
  Component layer;
  std::vector<std::string> inputs;
  int64_t repeat = 1;
  OptionList layers;
};
struct LayersModel : OptionsOf<LayersModel> {
  void options(OptionVisitor& v) override { v.list({.name = "layers", .doc = "", .required = true}, layers.items, make_options<Layer>); }
  OptionList layers;
};
struct Folder : OptionsOf<Folder> {
  void options(OptionVisitor& v) override { v.option({.name = "path", .doc = "folder", .required = true}, path); }
  std::vector<std::string> path;
};
struct Crop : OptionsOf<Crop> {
  void options(OptionVisitor& v) override {
    v.option({.name = "size", .doc = "pixels", .unit = "pixels", .min = 1, .required = true}, size);
  }
  int64_t size = 0;
};
struct Normalize : OptionsOf<Normalize> {
  void options(OptionVisitor& v) override {
    v.option({.name = "mean", .doc = ""}, mean);
    v.option({.name = "std", .doc = ""}, std);
  }
  std::vector<double> mean, std;
};
struct Phase : OptionsOf<Phase> {
  void options(OptionVisitor& v) override {
    v.option({.name = "from", .doc = "first value"}, from);
    v.option({.name = "duration", .doc = "how long"}, duration);
  }
  std::optional<Multiple> from;
  std::optional<Duration> duration;
};
struct CrossEntropy : OptionsOf<CrossEntropy> {
  void options(OptionVisitor& v) override { v.option({.name = "label_smoothing", .doc = "", .min = 0, .max = 1}, label_smoothing); }
  double label_smoothing = 0;
};

inline constexpr ComponentKind kModels[] = {
    {"resnet18", "", make_options<Resnet>}, {"resnet50", "", make_options<Resnet>}, {"layers", "", make_options<LayersModel>}};
inline constexpr ComponentKind kSources[] = {{"image_folder", "", make_options<Folder>}, {"synthetic", "", make_options<Empty>}};
inline constexpr ComponentKind kTransforms[] = {{"random_resized_crop", "", make_options<Crop>},
                                                {"random_horizontal_flip", "", make_options<Empty>},
                                                {"resize", "", make_options<Crop>},
                                                {"normalize", "", make_options<Normalize>}};
inline constexpr ComponentKind kOptimizers[] = {{"sgd", "", make_options<Sgd>}, {"adam", "", make_options<Adam>}};
inline constexpr ComponentKind kSchedules[] = {{"linear", "", make_options<Phase>}, {"cosine", "", make_options<Phase>}};
inline constexpr ComponentKind kLosses[] = {{"cross_entropy", "", make_options<CrossEntropy>}};

inline const ComponentRegistry kRegistry{kModels, kSources, kTransforms, {}, kOptimizers, kSchedules, kLosses};

/// A complete small recipe.
inline const std::string kSmall =
    "recipe: 1\n"
    "model: resnet18\n"
    "data:\n"
    "  train:\n"
    "    source: {type: image_folder, path: train}\n"
    "    pipeline: [{type: random_resized_crop, size: 224}, random_horizontal_flip, {type: normalize, mean: [0.5], std: [0.2]}]\n"
    "train:\n"
    "  duration: 90 epochs\n"
    "  batch: 256\n"
    "  optimizer: {type: sgd, lr: 0.1, momentum: 0.9}\n";

/// Loads `text` as standard input.
inline LoadedRecipe load_with(const std::string& text, LoadOptions options) {
  options.standard_input = text;
  if (!options.environment) options.environment = [](const std::string&) { return std::nullopt; };
  return load_recipe("-", kRegistry, options);
}
inline LoadedRecipe load(const std::string& text, std::vector<std::string> overrides = {}) {
  LoadOptions options;
  options.overrides = std::move(overrides);
  return load_with(text, options);
}

/// The error of loading, or an empty one with code 0 if loading succeeds.
template <class Action>
Error error_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  return Error(static_cast<ErrorCode>(0), "");
}

}  // namespace galley::recipe_test
