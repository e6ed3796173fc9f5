#include "libcore/weights/hub.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "libcore/base/counted.h"
#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/weights/checkpoint.h"
#include "libcore/weights/weights_file.h"

namespace galley {
namespace {

constexpr int64_t kMaxConfig = int64_t{64} << 20;  // config.json may list the names of many classes; an index, many tensors

const HubTable& table() {
  static const HubTable all = [] {
    HubTable rows;
    for (HubTable (*families)() : {hub_encoders, hub_decoders}) {
      for (HubFamily& family : families()) rows.push_back(std::move(family));
    }
    return rows;
  }();
  return all;
}

std::string below(const std::string& folder, std::string_view file) {
  return folder + (folder.ends_with("/") ? "" : "/") + std::string(file);
}

/// Text between quotes that YAML reads back, and the recipe language does not take for a reference.
std::string yaml_literal(std::string_view text) {
  std::string escaped;
  for (const char c : text) escaped += c == '$' ? "$$" : std::string(1, c);
  return nlohmann::json(escaped).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string read_config(const std::string& folder) {
  const std::string file = below(folder, "config.json");
  if (file_exists(file)) return read_file(file, kMaxConfig);
  throw Error(ErrorCode::kInput, cat("the folder '", folder, "' has no config.json, so its model is unknown"))
      .suggest("give the folder of a model as a hub has it: config.json, the weights and the files of the tokenizer");
}

/// The family and the head that config.json names.
std::pair<const HubFamily*, std::string> family_of(const text::JsonNode& config) {
  const std::string model_type = config.text("model_type", "");
  std::vector<std::string> named;
  if (config.has("architectures")) {
    for (const text::JsonNode& name : config.at("architectures").elements()) named.push_back(name.text());
  }
  for (const std::string& name : named) {
    for (const HubFamily& family : table()) {
      for (const auto& [architecture, head] : family.architectures) {
        if (architecture != name) continue;
        if (!model_type.empty() && model_type != family.model_type)
          config.fail(cat("architectures has ", name, ", which is a model_type \"", family.model_type, "\", but model_type is \"",
                          model_type, "\""));
        return {&family, std::string(head)};
      }
    }
  }
  if (named.empty()) {
    if (model_type.empty()) config.fail("has neither `architectures` nor `model_type`, so the model is unknown");
    for (const HubFamily& family : table()) {
      if (family.model_type == model_type) return {&family, std::string(family.architectures.front().second)};
    }
    named.push_back(model_type);
  }
  // Of the same family those with other heads, else the families.
  std::string of_family, families;
  const auto add = [](std::string& list, std::string_view name) { list += cat(list.empty() ? "" : ", ", name); };
  for (const HubFamily& family : table()) {
    add(families, family.model_type);
    if (family.model_type != model_type) continue;
    for (const auto& [architecture, head] : family.architectures) add(of_family, architecture);
  }
  Error error = config.error(cat("the architecture ", named.front(), " is not supported; ",
                                 of_family.empty() ? cat("this version has the model_types ", families)
                                                   : cat("of the model_type \"", model_type, "\" are ", of_family)));
  // The nearest name helps where it differs in letters or in the head; that of another family is another model.
  const std::string near = nearest(named.front(), hub_architectures());
  const std::string_view stem = std::string_view(near).substr(0, near.find("For"));
  if (!near.empty() && named.front().starts_with(stem)) error.suggest(cat("did you mean ", near, "?"));
  throw error;
}

/// Tensors by shard; the index is checked against the files.
std::vector<std::string> shards_of(const std::string& folder, const std::string& index_name) {
  const std::string path = below(folder, index_name);
  const text::JsonNode index = text::JsonNode::parse(read_file(path, kMaxConfig), path);
  std::map<std::string, std::set<std::string>> shards;
  for (const auto& [tensor, node] : index.at("weight_map").members()) {
    const std::string file = node.text();
    if (file.empty() || file.find('/') != std::string::npos) node.fail(cat("'", file, "' is not the name of a file in this folder"));
    shards[file].insert(tensor);
  }
  if (shards.empty()) index.fail("weight_map names no tensor");
  std::vector<std::string> files;
  for (const auto& [file, tensors] : shards) {
    files.push_back(below(folder, file));
    if (!file_exists(files.back())) {
      throw Error(ErrorCode::kInput,
                  cat("the shard ", files.back(), " is missing; ", path, " places ", counted(std::ssize(tensors), "tensor"), " there"))
          .suggest("download the file again, into this folder");
    }
    std::set<std::string> held;
    const WeightsFile shard(files.back());
    for (const OfferedTensor& tensor : shard.tensors()) held.insert(tensor.name);
    for (const std::string& tensor : tensors) {
      if (!held.contains(tensor))
        fail(ErrorCode::kInput, "the shard ", files.back(), " does not contain the tensor '", tensor, "', which ", path, " places there");
    }
  }
  return files;
}

constexpr std::string_view kTokenizerFiles[] = {"tokenizer.json",  "vocab.json",   "vocab.txt",
                                                "tokenizer.model", "spiece.model", "sentencepiece.bpe.model"};

}  // namespace

void HubConfig::set(std::string_view option, int64_t value) { options_.emplace_back(option, std::to_string(value)); }
void HubConfig::set(std::string_view option, double value) { options_.emplace_back(option, nlohmann::json(value).dump()); }
void HubConfig::set(std::string_view option, bool value) { options_.emplace_back(option, value ? "true" : "false"); }
void HubConfig::set(std::string_view option, std::string_view value) { options_.emplace_back(option, yaml_literal(value)); }

void HubConfig::integer(std::string_view key, std::string_view option) {
  if (config.has(key)) set(option.empty() ? key : option, config.at(key).integer());
}
void HubConfig::number(std::string_view key, std::string_view option) {
  if (config.has(key)) set(option.empty() ? key : option, config.at(key).number());
}
void HubConfig::flag(std::string_view key, std::string_view option) {
  if (config.has(key)) set(option.empty() ? key : option, config.at(key).flag());
}
int64_t HubConfig::required(std::string_view key, std::string_view option) {
  // No model has more; a damaged file must not make a graph that fills the memory.
  constexpr int64_t kMostLayers = 10000, kLargest = std::numeric_limits<int32_t>::max();
  const int64_t value = config.at(key).integer(), most = key.find("layer") != std::string_view::npos ? kMostLayers : kLargest;
  if (value < 1 || value > most) config.at(key).fail(cat("is ", value, "; it must be 1 to ", most));
  set(option.empty() ? key : option, value);
  return value;
}
void HubConfig::require(std::string_view key, std::string_view supported) const {
  if (!config.has(key)) return;
  const text::JsonNode node = config.at(key);
  const std::string value = node.json().is_string() ? node.text() : node.json().dump();
  if (value != supported) node.fail(cat("is ", value, ", but this version supports only ", supported));
}
void HubConfig::require_multiple(std::string_view width, std::string_view heads) const {
  const int64_t features = config.at(width).integer(), count = config.at(heads).integer();
  if (count < 1 || features % count != 0) config.fail(cat(width, " is ", features, ", which is not a multiple of ", heads, ", ", count));
}

void HubConfig::classes() {
  if (!config.has("id2label")) return integer("num_labels");
  const int64_t count = std::ssize(config.at("id2label").members());
  if (config.integer("num_labels", count) != count)
    config.fail(cat("num_labels is ", config.integer("num_labels", 0), ", but id2label names ", count, " classes"));
  if (count < 1) config.at("id2label").fail("names no class");
  set("num_labels", count);
}
void HubConfig::classifier_task() {
  const int64_t labels = config.has("id2label") ? std::ssize(config.at("id2label").members()) : config.integer("num_labels", 2);
  const std::string type = config.text("problem_type", labels == 1 ? "regression" : "single_label_classification");
  if (type == "single_label_classification") return;
  if (type != "multi_label_classification" && type != "regression")
    config.at("problem_type").fail(cat("is ", type, "; known are single_label_classification, multi_label_classification and regression"));
  task = type == "regression" ? "regression" : "multi_label";
}

void HubConfig::activation(std::string_view key, std::string_view option, std::initializer_list<std::string_view> supported) {
  static constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
      {"swish", "silu"}, {"gelu_fast", "gelu_new"}, {"gelu_pytorch_tanh", "gelu_new"}};
  if (!config.has(key)) return;
  const auto has = [&](std::string_view name) { return std::find(supported.begin(), supported.end(), name) != supported.end(); };
  const std::string name = config.text(key);
  if (has(name)) return set(option, name);
  for (const auto& [other, usual] : kOtherNames) {
    if (name == other && has(usual)) return set(option, usual);
  }
  std::string list;
  for (const std::string_view each : supported) list += cat(list.empty() ? "" : each == *(supported.end() - 1) ? " and " : ", ", each);
  config.at(key).fail(cat("is ", name, "; this version has ", list));
}

void HubConfig::refuse_unsupported() const {
  if (config.has("quantization_config"))
    config.at("quantization_config").fail("quantized weights of other tools are not supported; use the folder of the float model");
  require("add_cross_attention", "false");
  require("is_encoder_decoder", "false");
}

std::optional<text::JsonNode> HubConfig::file(std::string_view name) const {
  const std::string path = below(folder, name);
  if (!file_exists(path)) return std::nullopt;
  return text::JsonNode::parse(read_file(path, kMaxConfig), path);
}

bool is_hub_folder(const std::string& path) {
  return is_folder(path) && file_exists(below(path, "config.json")) && !file_exists(below(path, "recipe.yaml")) && !is_checkpoint(path);
}

std::vector<std::string> hub_architectures() {
  std::set<std::string> names;
  for (const HubFamily& family : table()) {
    for (const auto& [name, head] : family.architectures) names.emplace(name);
  }
  return {names.begin(), names.end()};
}

HubFolder::HubFolder(std::string path) : HubFolder(path, read_config(path)) {}

HubFolder::HubFolder(std::string path, std::string_view config)
    : HubFolder(path, text::JsonNode::parse(config, below(path, "config.json"))) {}

HubFolder::HubFolder(std::string path, text::JsonNode config) : path_(std::move(path)), config_(std::move(config)) {
  if (!config_.json().is_object()) config_.fail("must be an object of keys and values");
  std::tie(family_, head_) = family_of(config_);
}

bool HubFolder::predicts_tokens() const { return head_ == kLanguageModel || head_ == "masked_lm" || head_ == "pre_training"; }

bool HubFolder::is_table(std::string_view name) const {
  const HubTensors& rules = family_->tensors;
  return !rules.table.empty() && (name == rules.table || name == cat(rules.base, ".", rules.table));
}

/// Throws if the weights have another width than config.json, before anything of that width takes memory.
void HubFolder::check_width() const {
  const std::string_view key = family_->tensors.width;
  if (!config_.has(key)) return;
  for (const std::string& path : hub_weights_files(path_)) {
    std::vector<OfferedTensor> tensors;
    try {
      tensors = WeightsFile(path).tensors();
    } catch (const Error&) {
      return;  // damage is reported where the weights are needed
    }
    for (const OfferedTensor& tensor : tensors) {
      if (!is_table(tensor.name) || tensor.shape.rank() != 2 || tensor.shape[1] == config_.at(key).integer()) continue;
      config_.at(key).fail(cat("is ", config_.at(key).integer(), ", but the weights have ", tensor.shape[1], " (", tensor.name, " in ",
                               path, "); take config.json and the weights from the same model"));
    }
  }
}

std::string HubFolder::size_difference(std::string_view name, const Shape& model, const Shape& weights) const {
  if (!is_table(name) || model.rank() != 2 || weights.rank() != 2) return "";
  const int axis = model[0] != weights[0] ? 0 : 1;
  const std::string_view key = axis == 0 ? "vocab_size" : family_->tensors.width;
  const bool of_config = config_.has(key) && config_.at(key).integer() == model[axis];
  return cat(of_config ? "config.json says " : "the recipe says ", key, " ", model[axis], ", the weights have ", weights[axis]);
}

std::string HubFolder::recipe() const {
  HubConfig model(path_, config_, head_);
  family_->map(model);
  check_width();
  const std::string folder = std::filesystem::absolute(path_).lexically_normal().string();
  const std::filesystem::path named = folder.ends_with("/") ? folder.substr(0, folder.size() - 1) : folder;
  std::string text = cat("recipe: 1\nname: ", yaml_literal(named.filename().string()), "\nmodel:\n  type: ", model.type, "\n");
  for (const auto& [option, value] : model.options()) text += cat("  ", option, ": ", value, "\n");
  if (!model.task.empty()) text += cat("task: ", model.task, "\n");
  if (!hub_weights_files(path_).empty()) text += cat("weights: ", yaml_literal(folder), "\n");
  for (const std::string_view file : kTokenizerFiles) {
    if (!file_exists(below(path_, file))) continue;
    text += cat("data:\n  tokenizer: {type: hub, path: ", yaml_literal(folder), "}\n");
    break;
  }
  if (head_ == kLanguageModel) text += hub_generation(model);
  return text;
}

std::vector<std::string> HubFolder::categories() const {
  std::vector<std::string> names;
  if (!config_.has("id2label")) return names;
  const auto labels = config_.at("id2label").members();
  names.resize(labels.size());
  bool usual = true;
  for (const auto& [key, node] : labels) {
    const bool number = !key.empty() && key.size() < 9 && std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    const size_t index = number ? std::stoul(key) : labels.size();
    if (index >= labels.size()) node.fail(cat("the keys of id2label must be 0 to ", labels.size() - 1));
    names[index] = node.text();
    usual &= names[index] == cat("LABEL_", index);
  }
  return usual ? std::vector<std::string>() : names;
}

std::vector<HubName> hub_names(const HubTensors& rules, const std::vector<std::string>& file, const std::vector<std::string_view>& model) {
  const std::string base = cat(rules.base, ".");
  const auto in_base = [&](std::string_view name) { return name.starts_with(base); };
  const bool file_has = std::any_of(file.begin(), file.end(), in_base), model_has = std::any_of(model.begin(), model.end(), in_base);
  const std::vector<std::pair<std::string, std::string>> renames(rules.rename.begin(), rules.rename.end());
  const std::set<std::string_view> wanted(model.begin(), model.end());
  std::vector<HubName> names;
  for (const std::string& given : file) {
    HubName result{.name = apply_renames(given, renames)};
    const auto matches = [&](std::string_view pattern) { return selects(pattern, result.name); };
    result.transposed = std::any_of(rules.transposed.begin(), rules.transposed.end(), matches);
    const bool ignored = std::any_of(rules.ignore.begin(), rules.ignore.end(), matches);
    if (!rules.base.empty() && file_has && !model_has && in_base(result.name)) result.name.erase(0, base.size());
    if (!rules.base.empty() && !file_has && model_has && !wanted.contains(result.name)) result.name.insert(0, base);
    result.ignored = ignored && !wanted.contains(result.name);
    names.push_back(std::move(result));
  }
  return names;
}

bool hub_may_lack(const HubTensors& rules, std::string_view name, const std::vector<std::string_view>& model) {
  const std::string base = cat(rules.base, ".");
  const auto in_base = [&](std::string_view other) { return other.starts_with(base); };
  const bool model_has = !rules.base.empty() && std::any_of(model.begin(), model.end(), in_base);
  if (model_has && !in_base(name)) return true;
  const std::string_view inner = model_has ? name.substr(base.size()) : name;
  return std::any_of(rules.optional.begin(), rules.optional.end(), [&](std::string_view pattern) { return selects(pattern, inner); });
}

std::string hub_tokenizer_files() {
  std::string list;
  for (const std::string_view file : kTokenizerFiles)
    list += cat(list.empty() ? "" : file == *(std::end(kTokenizerFiles) - 1) ? " or " : ", ", file);
  return list;
}

std::vector<std::string> hub_weights_files(const std::string& folder) {
  for (const char* name : {"model.safetensors", "pytorch_model.bin"}) {
    const std::string file = below(folder, name);
    if (file_exists(file)) return {file};
    if (file_exists(file + ".index.json")) return shards_of(folder, std::string(name) + ".index.json");
  }
  return {};
}

}  // namespace galley
