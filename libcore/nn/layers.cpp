#include "libcore/nn/layers.h"

#include <algorithm>
#include <set>

#include "libcore/nn/layer_kinds.h"

namespace galley {
namespace {

/// Names that a group's layers may refer to; its own first, then those of the groups around it.
struct Names {
  const Names* outer = nullptr;
  std::map<std::string, Value, std::less<>> known;

  Value find(std::string_view name) const {
    for (const Names* names = this; names != nullptr; names = names->outer) {
      const auto found = names->known.find(name);
      if (found != names->known.end()) return found->second;
    }
    std::vector<std::string> candidates;
    for (const Names* names = this; names != nullptr; names = names->outer) {
      for (const auto& [candidate, value] : names->known) candidates.push_back(candidate);
    }
    const std::string near = nearest(name, candidates);
    throw Error(ErrorCode::kRecipe, cat("inputs names '", name, "', but no layer before has that name"))
        .suggest(near.empty() ? std::string() : cat("did you mean '", near, "'?"));
  }
};

Value build_group(Builder& b, const OptionList& layers, Value input, const Names* outer);

Value build_one(Builder& b, const LayerSpec& spec, const std::string& name, const std::vector<Value>& inputs, const Names& names) {
  if (spec.layer) {
    GALLEY_CHECK(spec.layers.items.empty(), "a layer of a type has no `layers` of its own");
    return build_layer(b, spec.layer, name, inputs);
  }
  GALLEY_CHECK(!spec.layers.items.empty(), "a layer wants a `type`, or `layers` that make it a group");
  GALLEY_CHECK(inputs.size() == 1, "a group takes one input, ", inputs.size(), " are given");
  const auto module = b.scope(name);
  return build_group(b, spec.layers, inputs.front(), &names);
}

Value build_repeated(Builder& b, const LayerSpec& spec, const std::string& name, std::vector<Value> inputs, const Names& names) {
  if (spec.repeat == 1) return build_one(b, spec, name, inputs, names);
  GALLEY_CHECK(inputs.size() == 1, "a repeated layer takes one input, ", inputs.size(), " are given");
  const auto module = b.scope(name);
  for (int64_t copy = 0; copy < spec.repeat; ++copy) inputs = {build_one(b, spec, std::to_string(copy), inputs, names)};
  return inputs.front();
}

Value build_group(Builder& b, const OptionList& layers, Value input, const Names* outer) {
  Names names{outer, {{"in", input}}};
  std::map<std::string, int> unnamed;
  Value last = input;
  for (size_t i = 0; i < layers.items.size(); ++i) {
    const auto& spec = layers.at<LayerSpec>(i);
    std::string name = !spec.name.empty() ? spec.name : spec.layer.name;
    if (name.empty()) {
      name = spec.layer ? spec.layer.type : "group";
      const int turn = ++unnamed[name];
      if (turn > 1) name += std::to_string(turn);
    }
    const std::string path = b.graph().path().empty() ? name : cat(b.graph().path(), ".", name);
    try {
      GALLEY_CHECK(!names.known.contains(name), name == "in" ? "'in' means the group's input: no layer can have this name" : "two layers have this name");
      std::vector<Value> inputs;
      for (const std::string& wanted : spec.inputs) inputs.push_back(names.find(wanted));
      if (inputs.empty()) inputs.push_back(last);
      last = build_repeated(b, spec, name, std::move(inputs), names);
    } catch (Error& error) {
      // Checks of operators have named the path already.
      if (error.message().find(cat("at ", path)) == std::string::npos) error.context(cat(", at ", path));
      throw;
    }
    names.known.emplace(std::move(name), last);
  }
  return last;
}

NamedValues build_layers_model(Builder& b, const Options& options, Value input) {
  const auto& params = params_of<LayersModel>(options);
  const std::vector<int64_t>& shape = params.input.shape;
  const std::span<const int64_t> sample = input.shape().sizes().subspan(1);
  GALLEY_CHECK(std::equal(shape.begin(), shape.end(), sample.begin(), sample.end()), "the model's input.shape is ", Shape(shape),
               ", the data gives samples of shape ", Shape(sample));
  return {{"output", build_layers(b, params.layers, input)}};
}

ModelInfo layers_info(const Options& options) {
  const auto& params = params_of<LayersModel>(options);
  GALLEY_CHECK(params.input.names.empty() || params.input.names.size() == params.input.shape.size(), "input.names has ", params.input.names.size(),
               " names, input.shape ", params.input.shape.size(), " sizes");
  return {"layers", "", params.input.shape, params.input.names, {}, params.input.dtype == InputDType::kI64 ? DType::kI64 : DType::kF32};
}

}  // namespace

Value build_layers(Builder& b, const OptionList& layers, Value input) { return build_group(b, layers, input, nullptr); }

ModelTable layers_models() {
  return {{{"layers", "written out layer by layer in the recipe", make_options<LayersModel>}, build_layers_model, layers_info}};
}

}  // namespace galley
