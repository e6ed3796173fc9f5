#pragma once
// The model zoo: models by name with their parameters, as torchvision's constructors have them, and how to build them.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libcore/base/options.h"
#include "libcore/nn/builder.h"

namespace galley {

/// What a model's main result is, where the model says it: a task then fits without the recipe's help.
enum class ModelOutput : uint8_t {
  kOther,    ///< The recipe's task or loss decides.
  kClasses,  ///< Logits [N,classes].
  kTokens,   ///< Logits of the next token at every position, [N,T,vocabulary].
};

/// One of several named inputs of a model.
struct ModelInput {
  std::string name;
  std::vector<int64_t> shape;      // of one sample
  std::vector<std::string> names;  // of these dimensions, or empty
  DType dtype = DType::kF32;
};

/// What is known of a model before it is built.
struct ModelInfo {
  std::string family;  // "resnet"; "layers" for models written out in a recipe
  ModelOutput output = ModelOutput::kOther;
  std::vector<int64_t> input_shape;      // of one sample, [C,H,W]; of several inputs: the first's
  std::vector<std::string> input_names;  // of these dimensions, or empty
  std::vector<std::pair<std::string, double>>
      loss_weights;  // results of the training pass that join the objective besides the main one, and the weights of their losses
  DType input_dtype = DType::kF32;  // i64 for tokens
  std::vector<ModelInput> inputs;   // of a model with named inputs; empty: the one input is the field `input`
  bool named_outputs = false;       // results have names of their own, the first one too
  int64_t fixed_batch = 0;          // samples that every batch must have; 0: any number

  /// All inputs: the named ones, or the one called "input".
  std::vector<ModelInput> all_inputs() const;
};

using NamedValues = std::vector<std::pair<std::string, Value>>;

/// All models, with one line of doc each; the last is "layers".
ComponentKinds models();

/// Usual input of that model (for "layers": what the recipe says). Throws where there is no such model.
ModelInfo model_info(const Component& model);

/// Captures the model's forward pass on `input` [N, sample...]. Returns its named results, the main one first: "logits"
/// [N,num_classes] for classification, [N,T,vocab] for language modelling, "output" for "layers". Parameter paths start at the builder's
/// present scope.
NamedValues build_model(Builder& b, const Component& model, Value input);
/// The same for a model with named inputs (ModelInfo::inputs), in their order.
NamedValues build_model(Builder& b, const Component& model, const NamedValues& inputs);

/// A model of that name with its default parameters. Throws, with the nearest name, where there is none.
Component default_model(std::string_view type);

/// Whether a kind is a model by itself; "onnx" and "layers" are what a file or the recipe says.
bool is_zoo_model(std::string_view type);
/// Whether the model comes with values of its own (the kind "onnx"): they are its initial ones.
bool carries_weights(const Component& model);
/// The file that the model is made from; "" for models that are made from none.
std::string model_file(const Component& model);

/// Tokens of a language model's vocabulary, as the recipe gives it; none where the tokenizer decides, or for other models.
std::optional<int64_t> vocabulary_of(const Component& model);
/// The language model with that vocabulary, unless it has one of its own; other models as they are.
Component with_vocabulary(Component model, int64_t tokens);

// ---- for the families' files

using BuildModel = NamedValues (*)(Builder& b, const Options& params, Value input);
struct ModelEntry {
  ComponentKind kind;
  BuildModel build;  // for models of one input
  ModelInfo (*info)(const Options& params);
  NamedValues (*build_named)(Builder& b, const Options& params, const NamedValues& inputs) = nullptr;  // for models that may have several
  std::string (*file)(const Options& params) = nullptr;  // the file that the model is made from, initial values included; null: none
};
using ModelTable = std::vector<ModelEntry>;

/// Adds the models of another room, before `models()` is first called; a second time does nothing.
void add_model_family(ModelTable (*family)());

// Each family's table, in its file.
ModelTable simple_models();
ModelTable cifar_resnet_models();
ModelTable resnet_models();
ModelTable mobilenet_models();
ModelTable vgg_models();
ModelTable alexnet_models();
ModelTable squeezenet_models();
ModelTable densenet_models();
ModelTable inception_models();
ModelTable mnasnet_models();
ModelTable shufflenet_models();
ModelTable efficientnet_models();
ModelTable regnet_models();
ModelTable vit_models();
ModelTable convnext_models();
ModelTable swin_models();
ModelTable language_models();
ModelTable gpt_models();
ModelTable layers_models();

/// Channels of a scaled layer: a multiple of `divisor`, at least that, never below 90 % of `channels` (Sandler et al. 2018).
int64_t make_divisible(double channels, int64_t divisor);

/// Names of the dimensions of an image sample.
inline const std::vector<std::string>& image_names() {
  static const std::vector<std::string> names{"C", "H", "W"};
  return names;
}

/// The parameters of a model, whose type the table guarantees.
template <class T>
const T& params_of(const Options& params) {
  const auto* typed = dynamic_cast<const T*>(&params);
  GALLEY_ASSERT(typed != nullptr);
  return *typed;
}

}  // namespace galley
