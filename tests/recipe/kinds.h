#pragma once
// Small component kinds for the tests: the real ones come from other rooms.

#include <map>
#include <string>

#include "libcore/recipe/recipe.h"
#include "tests/support/temporary_folder.h"

namespace galley::recipe_test {

struct Sgd : FieldsOf<Sgd> {
  void fields(FieldVisitor& v) override {
    v.field({.name = "lr", .doc = "learning rate", .min = 0, .required = true}, lr);
    v.field({.name = "momentum", .doc = "share of the last update", .min = 0, .max = 1}, momentum);
    v.field({.name = "weight_decay", .doc = "L2 penalty", .min = 0}, weight_decay);
    v.field({.name = "nesterov", .doc = "look ahead"}, nesterov);
  }
  double lr = 0, momentum = 0, weight_decay = 0;
  bool nesterov = false;
};
struct Adam : FieldsOf<Adam> {
  void fields(FieldVisitor& v) override {
    v.field({.name = "lr", .doc = "learning rate", .min = 0}, lr);
    v.field({.name = "betas", .doc = "decays", .min = 0, .max = 1}, betas);
  }
  double lr = 1e-3;
  std::vector<double> betas{0.9, 0.999};
};
struct Resnet : FieldsOf<Resnet> {
  void fields(FieldVisitor& v) override { v.field({.name = "num_classes", .doc = "classes", .min = 1}, num_classes); }
  int64_t num_classes = 1000;
};
struct Conv : FieldsOf<Conv> {
  void fields(FieldVisitor& v) override {
    v.field({.name = "out_channels", .doc = "", .min = 1, .required = true}, out_channels);
    v.field({.name = "kernel_size", .doc = "", .min = 1, .required = true}, kernel_size);
    v.field({.name = "bias", .doc = ""}, bias);
  }
  int64_t out_channels = 1;
  std::vector<int64_t> kernel_size;
  bool bias = true;
};
struct Empty : FieldsOf<Empty> {
  void fields(FieldVisitor&) override {}
};

inline constexpr ComponentKind kLayers[] = {{"conv2d", "convolution", make_fields<Conv>}, {"relu", "max(x, 0)", make_fields<Empty>}, {"add", "sum", make_fields<Empty>}};

// As libcore/nn/layer_spec.h has it: groups within groups, a layer's own keys beside those of its kind.
struct Layer : FieldsOf<Layer> {
  void fields(FieldVisitor& v) override {
    v.field({.name = "name", .doc = ""}, name);
    v.component({.name = "", .doc = ""}, layer, kLayers);
    v.field({.name = "inputs", .doc = ""}, inputs);
    v.field({.name = "repeat", .doc = "", .min = 1}, repeat);
    v.list({.name = "layers", .doc = ""}, layers.items, make_fields<Layer>);
  }
  std::string name;
  Component layer;
  std::vector<std::string> inputs;
  int64_t repeat = 1;
  FieldList layers;
};
struct LayersModel : FieldsOf<LayersModel> {
  void fields(FieldVisitor& v) override { v.list({.name = "layers", .doc = "", .required = true}, layers.items, make_fields<Layer>); }
  FieldList layers;
};
struct Folder : FieldsOf<Folder> {
  void fields(FieldVisitor& v) override { v.field({.name = "path", .doc = "folder", .required = true}, path); }
  std::vector<std::string> path;
};
struct Crop : FieldsOf<Crop> {
  void fields(FieldVisitor& v) override { v.field({.name = "size", .doc = "pixels", .unit = "pixels", .min = 1, .required = true}, size); }
  int64_t size = 0;
};
struct Normalize : FieldsOf<Normalize> {
  void fields(FieldVisitor& v) override {
    v.field({.name = "mean", .doc = ""}, mean);
    v.field({.name = "std", .doc = ""}, std);
  }
  std::vector<double> mean, std;
};
struct Phase : FieldsOf<Phase> {
  void fields(FieldVisitor& v) override {
    v.field({.name = "from", .doc = "first value"}, from);
    v.field({.name = "duration", .doc = "how long"}, duration);
  }
  std::optional<Multiple> from;
  std::optional<Duration> duration;
};
struct CrossEntropy : FieldsOf<CrossEntropy> {
  void fields(FieldVisitor& v) override { v.field({.name = "label_smoothing", .doc = "", .min = 0, .max = 1}, label_smoothing); }
  double label_smoothing = 0;
};

inline constexpr ComponentKind kModels[] = {{"resnet18", "", make_fields<Resnet>}, {"resnet50", "", make_fields<Resnet>}, {"layers", "", make_fields<LayersModel>}};
inline constexpr ComponentKind kSources[] = {{"image_folder", "", make_fields<Folder>}, {"synthetic", "", make_fields<Empty>}};
inline constexpr ComponentKind kTransforms[] = {
    {"random_resized_crop", "", make_fields<Crop>}, {"random_horizontal_flip", "", make_fields<Empty>}, {"resize", "", make_fields<Crop>}, {"normalize", "", make_fields<Normalize>}};
inline constexpr ComponentKind kOptimizers[] = {{"sgd", "", make_fields<Sgd>}, {"adam", "", make_fields<Adam>}};
inline constexpr ComponentKind kSchedules[] = {{"linear", "", make_fields<Phase>}, {"cosine", "", make_fields<Phase>}};
inline constexpr ComponentKind kLosses[] = {{"cross_entropy", "", make_fields<CrossEntropy>}};

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

/// The error of loading, or an empty one with code 0 where it loads.
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
