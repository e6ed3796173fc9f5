// The model type hub: stands in a recipe for the model of a hub folder. The recipe's loader replaces it by what config.json describes.

#include "libcore/nn/zoo.h"

namespace galley {
namespace {

struct HubModelParams : OptionsOf<HubModelParams> {
  std::optional<std::string> path, head, classifier_pooling;
  std::optional<int64_t> num_labels;
  void options(OptionVisitor& v) override {
    v.option({.name = "path",
              .doc = "folder with a config.json; default: the folder of `weights`. All other keys of `model` change what config.json says"},
             path);
    v.option({.name = "head", .doc = "what stands above the encoder; default: by the folder's architecture"}, head);
    v.option({.name = "classifier_pooling", .doc = "what the head sequence_classification reads: pooler, mean or cls; default: pooler"},
             classifier_pooling);
    v.option({.name = "num_labels", .doc = "classes of a head that classifies; default: those of the folder", .min = 1}, num_labels);
  }
};

[[noreturn]] void fail_without_folder() {
  throw Error(ErrorCode::kRecipe, "the model is of the type hub, but no folder was given")
      .key("model.path")
      .suggest("set weights=DIR or model.path=DIR, a folder with config.json");
}

NamedValues build(Builder&, const Options&, Value) { fail_without_folder(); }
ModelInfo info(const Options&) { fail_without_folder(); }

}  // namespace

ModelTable hub_models() {
  return {{{"hub", "the model of a folder from a hub, by its config.json", make_options<HubModelParams>}, build, info}};
}

}  // namespace galley
