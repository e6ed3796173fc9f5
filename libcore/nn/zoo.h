#pragma once
// The model zoo: models by name, with the parameters of torchvision's constructors, and functions to build them.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libcore/base/options.h"
#include "libcore/nn/builder.h"

namespace galley {

struct LanguageModelParams;

/// The meaning of a model's main output, if the model defines it. Tools then choose the task without help from the recipe.
enum class ModelOutput : uint8_t {
  kOther,         ///< Given by the recipe's task or loss.
  kClasses,       ///< Logits [N,classes].
  kPixelClasses,  ///< Logits of a class at every pixel, [N,classes,H,W].
  kTokens,        ///< Logits of the next token at every position, [N,T,vocabulary].
  kMaskedTokens,  ///< Logits of the token at every position, [N,T,vocabulary], for positions whose token is masked.
  kTokenClasses,  ///< Logits of a class at every position, [N,T,classes].
  kSpans,         ///< Logits of the first and the last token of an answer, [N,T] each.
  kDetections,    ///< Boxes [N,D,4], scores and labels [N,D], count [N]; with objects among the inputs, their losses (nn/detection.h).
  kFlow,          ///< How far each pixel moves, [N,2,H,W] (nn/flow.h).
};

/// One of several named inputs of a model.
struct ModelInput {
  std::string name;
  std::vector<int64_t> shape;      // shape of one sample
  std::vector<std::string> names;  // names of these dimensions, or empty
  DType dtype = DType::kF32;
  bool optional = false;  // the model is captured without it where the data do not have it
};

/// Properties of a model that are known before it is built.
struct ModelInfo {
  std::string family;  // "resnet"; "layers" for models listed in a recipe
  ModelOutput output = ModelOutput::kOther;
  std::vector<int64_t> input_shape;                          // shape of one sample, [C,H,W]; of the first input if there are several
  std::vector<std::string> input_names;                      // names of these dimensions, or empty
  std::vector<std::pair<std::string, double>> loss_weights;  // auxiliary outputs of the training pass, and the weights of their losses
  DType input_dtype = DType::kF32;                           // i64 for tokens
  std::vector<ModelInput> inputs;                            // of a model with named inputs; empty: one input, the field `input`
  bool named_outputs = false;                                // all outputs have names, including the first
  bool cache = false;                                        // it can be captured with a key-value cache (BuilderOptions::cache)
  int64_t cache_switch = 0;                                  // longer sequences have other rotary frequencies (nn/rotary.h); 0: none
  bool cache_stretch = false;                                // and those depend on the number of tokens
  int64_t classes = 0;                                       // of detections, the background included; 0: not a detector
  int64_t fixed_batch = 0;                                   // required batch size; 0: any
  int64_t max_length = 0;                                    // tokens of the longest sample that the model takes; 0: unknown

  /// The named inputs, or one input called "input".
  std::vector<ModelInput> all_inputs() const;
  /// Those that are not optional.
  std::vector<ModelInput> required_inputs() const;
};

/// Values with their names, in order.
using NamedValues = std::vector<std::pair<std::string, Value>>;

/// The models that a recipe may name; the last is "layers".
ComponentKinds models();

/// Properties of the model (for "layers": as the recipe defines them). Throws Error if there is no such model.
ModelInfo model_info(const Component& model);

/// Captures the model's forward pass on `input` [N, sample...]. Returns its named outputs, the main one first: "logits" [N,num_classes] for
/// classification, [N,T,vocab] for language models, "output" for "layers". Parameter paths start at the builder's current scope.
NamedValues build_model(Builder& b, const Component& model, Value input);
/// The same for a model with named inputs, in the order of ModelInfo::inputs.
NamedValues build_model(Builder& b, const Component& model, const NamedValues& inputs);

/// The model of that name with default parameters. Throws Error, suggesting the nearest name, if there is none.
Component default_model(std::string_view type);

/// Whether the kind is an architecture of the zoo. "onnx", "hub" and "layers" are not: a file, a folder or the recipe defines them.
bool is_zoo_model(std::string_view type);
/// Whether the model includes its initial values (the kind "onnx").
bool carries_weights(const Component& model);
/// The file that defines the model; "" if there is none.
std::string model_file(const Component& model);

/// The parameters that all language models have (language_model.h), part of `model`; null for other models.
const LanguageModelParams* language_model_params(const Component& model);
/// Sets the vocabulary size of a language model that does not set its own. Returns other models unchanged.
Component with_vocabulary(Component model, int64_t tokens);

// ---- for the files of the families

/// A row of the table of models.
using BuildModel = NamedValues (*)(Builder& b, const Options& params, Value input);
struct ModelEntry {
  ComponentKind kind;
  BuildModel build;  // for models with one input
  ModelInfo (*info)(const Options& params);
  NamedValues (*build_named)(Builder& b, const Options& params, const NamedValues& inputs) = nullptr;  // for models with named inputs
  std::string (*file)(const Options& params) = nullptr;  // the file that defines the model and its initial values; null: none
};
using ModelTable = std::vector<ModelEntry>;

/// Adds the models of another room. Must be called before `models()`; repeated calls have no effect.
void add_model_family(ModelTable (*family)());

// The table of each family, defined in the family's file.
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
ModelTable segmentation_models();
ModelTable unet_models();
ModelTable ssd_models();
ModelTable video_models();
ModelTable raft_models();
ModelTable language_models();
ModelTable gpt_models();
ModelTable bert_models();
ModelTable gpt2_models();
ModelTable llama_models();
ModelTable hub_models();
ModelTable layers_models();

/// Rounds the channels of a scaled layer to a multiple of `divisor`: at least `divisor`, and at least 90 % of `channels` (Sandler et al.
/// 2018).
int64_t make_divisible(double channels, int64_t divisor);

/// Dimension names of an image sample.
inline const std::vector<std::string>& image_names() {
  static const std::vector<std::string> names{"C", "H", "W"};
  return names;
}

/// Casts the parameters of a model to the type that its table row declares.
template <class T>
const T& params_of(const Options& params) {
  const auto* typed = dynamic_cast<const T*>(&params);
  GALLEY_ASSERT(typed != nullptr);
  return *typed;
}

}  // namespace galley
