#include "libcore/nn/layers.h"

#include <algorithm>
#include <set>

#include "libcore/nn/layer_kinds.h"

namespace galley {
namespace {

/// Names that the layers of a group may refer to: those of the group first, then those of the enclosing groups.
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
    throw Error(ErrorCode::kRecipe, cat("inputs names '", name, "', but no earlier layer has that name"))
        .suggest(near.empty() ? std::string() : cat("did you mean '", near, "'?"));
  }
};

Value build_group(Builder& b, const OptionList& layers, Value input, const Names* outer);
/// Captures layers in sequence. They may refer to `names` and add their own. `last` is the default input of the first layer; if it is
/// empty, that layer must name its inputs. The key of an error is relative to the model or group that holds `layers`: "layers.2.layers.0".
Value build_sequence(Builder& b, const OptionList& layers, Names& names, Value last);

Value build_one(Builder& b, const LayerSpec& spec, const std::string& name, const std::vector<Value>& inputs, const Names& names) {
  if (spec.layer) {
    GALLEY_CHECK(spec.layers.items.empty(), "a layer with a `type` cannot have `layers`");
    return build_layer(b, spec.layer, name, inputs);
  }
  GALLEY_CHECK(!spec.layers.items.empty(), "a layer needs a `type`, or `layers` for a group");
  GALLEY_CHECK(inputs.size() == 1, "a group takes one input, but ", inputs.size(), " are given");
  const auto module = b.scope(name);
  return build_group(b, spec.layers, inputs.front(), &names);
}

Value build_repeated(Builder& b, const LayerSpec& spec, const std::string& name, std::vector<Value> inputs, const Names& names) {
  if (spec.repeat == 1) return build_one(b, spec, name, inputs, names);
  GALLEY_CHECK(inputs.size() == 1, "a repeated layer takes one input, but ", inputs.size(), " are given");
  const auto module = b.scope(name);
  for (int64_t copy = 0; copy < spec.repeat; ++copy) inputs = {build_one(b, spec, std::to_string(copy), inputs, names)};
  return inputs.front();
}

Value build_group(Builder& b, const OptionList& layers, Value input, const Names* outer) {
  Names names{outer, {{"in", input}}};
  return build_sequence(b, layers, names, input);
}

Value build_sequence(Builder& b, const OptionList& layers, Names& names, Value last) {
  std::map<std::string, int> unnamed;
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
      GALLEY_CHECK(!names.known.contains(name), name == "in" ? "'in' is reserved for the group's input" : "two layers have this name");
      std::vector<Value> inputs;
      for (const std::string& input : spec.inputs) inputs.push_back(names.find(input));
      GALLEY_CHECK(!inputs.empty() || last, "the model has several inputs, so the first layer must list its own in `inputs`");
      if (inputs.empty()) inputs.push_back(last);
      last = build_repeated(b, spec, name, std::move(inputs), names);
    } catch (Error& error) {
      // Checks of operators already name the path.
      if (error.message().find(cat("at ", path)) == std::string::npos) error.context(cat(", at ", path));
      const std::string key = cat("layers.", i);  // relative to the enclosing group
      error.key(error.key().empty() ? key : cat(key, ".", error.key()));
      throw;
    }
    names.known.emplace(std::move(name), last);
  }
  return last;
}

void check_sample(const InputSpec& spec, const std::string& key, const Value& value) {
  const std::span<const int64_t> sample = value.shape().sizes().subspan(1);
  GALLEY_CHECK(std::equal(spec.shape.begin(), spec.shape.end(), sample.begin(), sample.end()), "the model's ", key, ".shape is ",
               Shape(spec.shape), ", but the samples of the data have shape ", Shape(sample));
}

NamedValues build_layers_model(Builder& b, const Options& options, const NamedValues& inputs) {
  const auto& params = params_of<LayersModel>(options);
  Names names{nullptr, {}};
  if (params.input) {
    check_sample(*params.input, "input", inputs.front().second);
    names.known.emplace("in", inputs.front().second);
  }
  for (size_t i = 0; i < params.inputs.items.size(); ++i) {
    const auto& [name, spec] = params.inputs.items[i];
    check_sample(spec, cat("inputs.", name), inputs[i].second);
    names.known.emplace(name, inputs[i].second);
  }
  const Value last = build_sequence(b, params.layers, names, inputs.size() == 1 ? inputs.front().second : Value());
  if (params.outputs.empty()) return {{"output", last}};
  NamedValues results;
  for (const std::string& name : params.outputs) {
    const auto found = names.known.find(name);
    if (found == names.known.end()) {
      std::vector<std::string> known;
      for (const auto& [layer, value] : names.known) known.push_back(layer);
      const std::string near = nearest(name, known);
      throw Error(ErrorCode::kRecipe, cat("model.outputs names '", name, "', but the model has no layer with this name"))
          .key("model.outputs")
          .suggest(near.empty() ? "" : cat("did you mean '", near, "'?"));
    }
    results.emplace_back(name, found->second);
  }
  return results;
}

ModelInput model_input(const std::string& name, const std::string& key, const InputSpec& spec) {
  GALLEY_CHECK(spec.names.empty() || spec.names.size() == spec.shape.size(), key, ".names has ", spec.names.size(), " names, but ", key,
               ".shape has ", spec.shape.size(), " sizes");
  return {.name = name, .shape = spec.shape, .names = spec.names, .dtype = spec.dtype == InputDType::kI64 ? DType::kI64 : DType::kF32};
}

ModelInfo layers_info(const Options& options) {
  const auto& params = params_of<LayersModel>(options);
  if (!params.input && params.inputs.items.empty())
    throw Error(ErrorCode::kRecipe, "'model.input' is missing").key("model.input").suggest("set it, e.g. input: {shape: [3, 32, 32]}");
  GALLEY_CHECK(!params.input || params.inputs.items.empty(), "the model has both `input` and `inputs`; remove one of them");
  ModelInfo info{.family = "layers", .named_outputs = !params.outputs.empty()};
  if (params.input) {
    info.inputs.push_back(model_input("input", "input", *params.input));
  } else {
    for (const auto& [name, spec] : params.inputs.items) info.inputs.push_back(model_input(name, cat("inputs.", name), spec));
  }
  const ModelInput& first = info.inputs.front();
  info.input_shape = first.shape;
  info.input_names = first.names;
  info.input_dtype = first.dtype;
  if (params.input) info.inputs.clear();  // only one input: tools may change its shape
  return info;
}

}  // namespace

Value build_layers(Builder& b, const OptionList& layers, Value input) { return build_group(b, layers, input, nullptr); }

ModelTable layers_models() {
  return {{{"layers", "written out layer by layer in the recipe", make_options<LayersModel>}, nullptr, layers_info, build_layers_model}};
}

}  // namespace galley
