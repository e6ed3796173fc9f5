#pragma once
// Folders of model hubs: config.json, weights (model.safetensors, its shards, or pytorch_model.bin) and the files of a tokenizer. A table
// of families says what config.json means for the recipe's section `model`, and what a file calls the tensors of the model. To add one,
// write a file hub_NAME.cpp with its HubTable and name the table in hub.cpp.

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libcore/base/shape.h"
#include "libcore/text/json_node.h"

namespace galley {

/// The recipe's section `model`, as it is made from config.json. Errors name config.json and the key (exit code 4).
class HubConfig {
 public:
  HubConfig(std::string path, const text::JsonNode& contents, std::string_view model_head)
      : folder(std::move(path)), config(contents), head(model_head) {}

  const std::string folder;
  const text::JsonNode& config;  ///< The whole of config.json.
  std::string head;              ///< Of the architecture (HubFamily::architectures).
  std::string type;              ///< The row sets it: the model's name in the zoo.
  std::string task;              ///< The row may set it: the recipe's `task`; "": that of the model.

  /// Sets an option of the model.
  void set(std::string_view option, int64_t value);
  void set(std::string_view option, double value);
  void set(std::string_view option, bool value);
  void set(std::string_view option, std::string_view value);
  void set(std::string_view option, const char* value) { set(option, std::string_view(value)); }
  /// Sets an option to a value that is written as YAML: a list, a section, null.
  void yaml(std::string_view option, std::string_view value) { options_.emplace_back(option, value); }
  /// Sets an option to the value of a key of config.json; without the key, or where it is null, the option keeps its default. `option`: by
  /// default it has the key's name.
  void integer(std::string_view key, std::string_view option = {});
  void number(std::string_view key, std::string_view option = {});
  void flag(std::string_view key, std::string_view option = {});
  /// The same for a key that must be there, of at least 1.
  int64_t required(std::string_view key, std::string_view option = {});
  /// Throws where a key has another value than this version supports; absent counts as supported.
  void require(std::string_view key, std::string_view supported) const;
  /// Sets an option to the activation that the key names: one of `supported`, or another name of one of them. Throws for others.
  void activation(std::string_view key, std::string_view option, std::initializer_list<std::string_view> supported);
  /// Throws for quantized weights, cross attention, and encoders with a decoder.
  void refuse_unsupported() const;
  /// Another JSON file of the folder; none if it does not exist.
  std::optional<text::JsonNode> file(std::string_view name) const;
  /// Sets num_labels by id2label or num_labels. Throws where they differ.
  void classes();
  /// Sets the task of a sequence classifier, as transformers choose it: by problem_type, else regression for one label.
  void classifier_task();
  /// Throws where `heads` does not divide `width`; both are keys.
  void require_multiple(std::string_view width, std::string_view heads) const;

  /// Options and their values as YAML.
  const std::vector<std::pair<std::string, std::string>>& options() const { return options_; }

 private:
  std::vector<std::pair<std::string, std::string>> options_;
};

/// What the files of a family call the model's tensors. Patterns are globs in which `*` matches dots; names are those of a file with a
/// head.
struct HubTensors {
  /// The module that holds the model without its head: "bert". Files of a model without a head omit it. "": the names are always the same.
  std::string_view base;
  std::vector<std::pair<std::string_view, std::string_view>> rename;  ///< As LoadRule::rename; the first that matches.
  std::vector<std::string_view> ignore;      ///< Tensors of the file without values of their own: masks, positions, copies of tied weights.
  std::vector<std::string_view> optional;    ///< Below `base`, but absent in files of some heads: poolers.
  std::vector<std::string_view> transposed;  ///< Matrices that the file stores as [in, out].
  std::string_view table;                    ///< The embedding of tokens, below `base`.
  std::string_view tied;                     ///< The name of its copy among `ignore`: the weight of the output layer.
  std::string_view width = "hidden_size";    ///< The key of config.json with the columns of `table`.
};

/// A row of the table: a family of architectures.
struct HubFamily {
  std::string_view model_type;  ///< config.json: "bert"
  /// config.json's `architectures`, each with the value of HubConfig::head; the first stands for a config.json that names none.
  std::vector<std::pair<std::string_view, std::string_view>> architectures;
  void (*map)(HubConfig& model);
  HubTensors tensors = {};
};
using HubTable = std::vector<HubFamily>;

/// The head of architectures that generate text.
inline constexpr std::string_view kLanguageModel = "lm";

HubTable hub_encoders();
HubTable hub_decoders();

/// The recipe's section `predict` of a folder that generates text: the defaults of generation_config.json, and the tokens that end a text.
/// "": there are none.
std::string hub_generation(const HubConfig& model);

/// Whether the path is a folder with a config.json, and no RUN folder or checkpoint.
bool is_hub_folder(const std::string& path);
/// The names of all known architectures, sorted.
std::vector<std::string> hub_architectures();

/// A folder, whose config.json has been read.
class HubFolder {
 public:
  /// Throws Error (exit code 4) if config.json is missing, no JSON, contradicts itself, or names no known architecture.
  explicit HubFolder(std::string path);
  /// The folder as if this text were its config.json.
  HubFolder(std::string path, std::string_view config);

  const std::string& path() const { return path_; }
  const HubTensors& tensors() const { return family_->tensors; }
  /// Whether the architecture has an output layer over the tokens.
  bool predicts_tokens() const;
  /// What to change where the table of tokens, as the model calls it, has another shape than in the weights; "" for another tensor.
  std::string size_difference(std::string_view name, const Shape& model, const Shape& weights) const;
  /// A recipe, as YAML: the model, its weights and its tokenizer where the folder has them.
  std::string recipe() const;
  /// The names of the classes (id2label), if config.json has others than LABEL_0, LABEL_1 ...
  std::vector<std::string> categories() const;

 private:
  HubFolder(std::string path, text::JsonNode config);
  void check_width() const;
  bool is_table(std::string_view name) const;
  std::string path_;
  text::JsonNode config_;
  const HubFamily* family_ = nullptr;
  std::string head_;
};

/// A tensor of a file, as the model calls it.
struct HubName {
  std::string name;
  bool ignored = false;     ///< The model has no use for it (HubTensors::ignore).
  bool transposed = false;  ///< Its dimensions must be exchanged.
};
/// The names of a file's tensors for a model with the tensors `model`: old names become new ones, and the module HubTensors::base is added
/// or removed, as the model has it.
std::vector<HubName> hub_names(const HubTensors& rules, const std::vector<std::string>& file, const std::vector<std::string_view>& model);
/// Whether a file may lack this tensor of the model: it belongs to a head or a pooler.
bool hub_may_lack(const HubTensors& rules, std::string_view name, const std::vector<std::string_view>& model);

/// The weights of a folder: one file, or the shards of an index. Empty if the folder has none. Throws Error (exit code 4) if a shard is
/// missing or lacks a tensor that the index places there.
std::vector<std::string> hub_weights_files(const std::string& folder);
/// The names of the files by which a folder has a tokenizer, for messages.
std::string hub_tokenizer_files();

}  // namespace galley
