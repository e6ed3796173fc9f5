#include "libcore/nn/zoo.h"

#include <algorithm>
#include <set>

#include "libcore/nn/detection_parts.h"
#include "libcore/nn/zoo_transformer.h"

namespace galley {
namespace {

ModelTable& table() {
  static ModelTable all = [] {
    ModelTable rows;
    for (ModelTable (*family)() :
         {simple_models,     cifar_resnet_models, resnet_models,    mobilenet_models, vgg_models,          alexnet_models,
          squeezenet_models, densenet_models,     inception_models, mnasnet_models,   shufflenet_models,   efficientnet_models,
          regnet_models,     vit_models,          convnext_models,  swin_models,      segmentation_models, unet_models,
          ssd_models,        retinanet_models,    rcnn_models,      raft_models,      video_models,        language_models,
          gpt_models,        gpt2_models,         llama_models,     bert_models,      transformer_models,  hub_models,
          layers_models}) {
      for (ModelEntry& entry : family()) rows.push_back(std::move(entry));
    }
    return rows;
  }();
  return all;
}
bool listed = false;  // models() has been called

const ModelEntry& find(std::string_view type) {
  std::vector<std::string> names;
  for (const ModelEntry& entry : table()) {
    if (entry.kind.type == type) return entry;
    names.emplace_back(entry.kind.type);
  }
  const std::string near = nearest(type, names);
  throw Error(ErrorCode::kRecipe, cat("there is no model '", type, "'"))
      .suggest(near.empty() ? std::string() : cat("did you mean '", near, "'?"));
}

}  // namespace

ComponentKinds models() {
  static const std::vector<ComponentKind> kinds = [] {
    listed = true;
    std::vector<ComponentKind> list;
    for (const ModelEntry& entry : table()) list.push_back(entry.kind);
    return list;
  }();
  return kinds;
}

void add_model_family(ModelTable (*family)()) {
  static std::set<ModelTable (*)()> added;
  if (!added.insert(family).second) return;
  GALLEY_ASSERT(!listed, "add_model_family was called after models()");
  // "layers" stays the last entry.
  for (ModelEntry& entry : family()) table().insert(table().end() - 1, std::move(entry));
}

bool carries_weights(const Component& model) { return !model_file(model).empty(); }

std::string model_file(const Component& model) {
  if (!model) return "";
  const ModelEntry& entry = find(model.type);
  return entry.file == nullptr ? std::string() : entry.file(*model.params);
}

bool is_zoo_model(std::string_view type) { return type != "layers" && type != "onnx" && type != "hub"; }

Component default_model(std::string_view type) {
  const ModelEntry& entry = find(type);
  Component component;
  component.type = entry.kind.type;
  component.params = entry.kind.make();
  return component;
}

ModelInfo model_info(const Component& model) {
  GALLEY_ASSERT(model, "the model has no option struct");
  return find(model.type).info(*model.params);
}

NamedValues build_model(Builder& b, const Component& model, Value input) { return build_model(b, model, NamedValues{{"input", input}}); }

NamedValues build_model(Builder& b, const Component& model, const NamedValues& inputs) {
  GALLEY_ASSERT(model, "the model has no option struct");
  const ModelEntry& entry = find(model.type);
  if (entry.build_named != nullptr) return entry.build_named(b, *model.params, inputs);
  GALLEY_ASSERT(inputs.size() == 1, model.type, " takes one input");
  return entry.build(b, *model.params, inputs.front().second);
}

std::vector<ModelInput> ModelInfo::all_inputs() const {
  if (!inputs.empty()) return inputs;
  return {{.name = "input", .shape = input_shape, .names = input_names, .dtype = input_dtype}};
}

std::vector<ModelInput> ModelInfo::required_inputs() const {
  std::vector<ModelInput> required = all_inputs();
  std::erase_if(required, [](const ModelInput& input) { return input.optional; });
  return required;
}

int64_t make_divisible(double channels, int64_t divisor) {
  const int64_t rounded = std::max(divisor, static_cast<int64_t>(channels + static_cast<double>(divisor) / 2) / divisor * divisor);
  return static_cast<double>(rounded) < 0.9 * channels ? rounded + divisor : rounded;
}

}  // namespace galley
