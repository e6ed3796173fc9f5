#pragma once
// Adapters of linear layers (LoRA, Hu et al. 2021) in PEFT's layout: a folder with adapter_config.json and adapter_model.safetensors, whose
// tensors are called base_model.model.LAYER.lora_A.weight [rank, in_features] and .lora_B.weight [out_features, rank].

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/weights/weights_file.h"

namespace galley {

/// The keys of adapter_config.json that Galley uses.
struct AdapterConfig {
  int64_t rank = 8;                  ///< r
  double alpha = 8;                  ///< lora_alpha; the product is multiplied by alpha / rank. With use_rslora, lora_alpha * sqrt(r).
  double dropout = 0;                ///< lora_dropout
  bool transposed = false;           ///< fan_in_fan_out: the base stores its weights as [in_features, out_features].
  std::vector<std::string> layers;   ///< target_modules, for writing: paths of the adapted layers.
  std::vector<std::string> trained;  ///< modules_to_save: modules that are stored in full.
  std::string base, task_type;       ///< base_model_name_or_path and task_type; "": null.
};

/// Parses adapter_config.json. A pure function; throws Error (exit code 4) with the key for another peft_type and for options of LoRA that
/// this version does not support (DoRA, biases, ranks by layer). `path`: the file's name for errors.
AdapterConfig parse_adapter_config(std::string_view text, const std::string& path);
/// The text of adapter_config.json.
std::string adapter_config_text(const AdapterConfig& config);

/// Whether a tensor of a model is an adapter's: LAYER.lora_A.weight or LAYER.lora_B.weight.
bool is_adapter_tensor(std::string_view name);
/// The name of a model's tensor in adapter_model.safetensors.
std::string adapter_tensor_name(std::string_view name);

/// A folder, opened.
class AdapterFolder {
 public:
  /// Throws Error (exit code 4) if a file is missing, for tensors that are not adapters, and for shapes that contradict each other.
  explicit AdapterFolder(const std::string& path);

  const std::string& path() const { return path_; }
  const AdapterConfig& config() const { return config_; }
  /// Paths of the layers with an adapter.
  const std::vector<std::string>& layers() const { return layers_; }
  /// All tensors, as the model calls them: "LAYER.lora_A.weight", and the parameters of modules_to_save.
  const std::vector<OfferedTensor>& tensors() const { return tensors_; }
  /// The index of a tensor by the model's name.
  std::optional<size_t> find(std::string_view name) const;
  Tensor read(size_t index) const { return file_.read(index); }

 private:
  void check_layers();

  std::string path_;
  AdapterConfig config_;
  WeightsFile file_;
  std::vector<OfferedTensor> tensors_;
  std::vector<std::string> layers_;
};

/// weight + alpha / rank * B A, rounded to the dtype of `weight` [out,in] (transposed: [in,out]). Sums are in double.
Tensor merge_adapter(const Tensor& weight, const Tensor& a, const Tensor& b, const AdapterConfig& config, bool transposed);

}  // namespace galley
