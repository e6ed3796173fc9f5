#include "libcore/weights/adapter.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/parallel.h"
#include "libcore/base/units.h"
#include "libcore/text/json_node.h"

namespace galley {
namespace {

using text::JsonNode;

constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight";
constexpr int64_t kLargestRank = 1 << 20;

/// Whether a member is absent, null, false, or an empty list or map.
bool is_unset(const JsonNode& config, std::string_view key) {
  if (!config.has(key)) return true;
  const nlohmann::json& value = config.at(key).json();
  return value == false || ((value.is_object() || value.is_array()) && value.empty());
}

/// Throws for options that change what an adapter computes.
void refuse_unsupported(const JsonNode& config) {
  const std::string type = config.text("peft_type");
  if (type != "LORA") config.at("peft_type").fail(cat("is '", type, "'; this version supports adapters of the type LORA"));
  for (const char* key : {"use_dora", "lora_bias", "rank_pattern", "alpha_pattern", "layer_replication", "target_parameters",
                          "megatron_config", "trainable_token_indices", "use_qalora", "use_bdlora", "alora_invocation_tokens",
                          "arrow_config", "lora_ga_config", "kasa_config", "monteclora_config", "velora_config"}) {
    if (!is_unset(config, key)) config.at(key).fail("is set; this version does not support it");
  }
  if (const std::string bias = config.text("bias", "none"); bias != "none")
    config.at("bias").fail(cat("is '", bias, "'; this version supports none: biases are not part of an adapter"));
  // These initializers change the weights of the base too.
  if (config.has("init_lora_weights") && config.at("init_lora_weights").json().is_string()) {
    const std::string initial = config.text("init_lora_weights");
    for (const char* name : {"pissa", "olora", "corda", "loftq"}) {
      if (initial.starts_with(name))
        config.at("init_lora_weights").fail(cat("is '", initial, "', which changes the base's weights; convert the adapter to plain LoRA"));
    }
  }
}

std::string model_file(const std::string& folder) {
  for (const char* name : {"/adapter_model.safetensors", "/adapter_model.bin"})
    if (file_exists(folder + name)) return folder + name;
  throw Error(ErrorCode::kInput, cat("the folder ", folder, " has no adapter_model.safetensors"));
}

AdapterConfig read_adapter_config(const std::string& folder) {
  const std::string path = folder + "/adapter_config.json";
  if (!file_exists(path))
    throw Error(ErrorCode::kInput, cat(folder, " is not an adapter folder: adapter_config.json is missing"))
        .suggest(file_exists(folder + "/adapter/adapter_config.json")
                     ? cat("the folder of this run's adapter is ", folder, "/adapter")
                     : "galley-train writes one to RUN/adapter; PEFT's save_pretrained does too");
  return parse_adapter_config(read_file(path), path);
}

std::vector<std::string> text_list(const JsonNode& config, std::string_view key) {
  std::vector<std::string> values;
  if (!config.has(key)) return values;
  for (const JsonNode& element : config.at(key).elements()) values.push_back(element.text());
  return values;
}

}  // namespace

Tensor merge_adapter(const Tensor& weight, const Tensor& a, const Tensor& b, const AdapterConfig& config, bool transposed) {
  const Tensor base = weight.to(DType::kF64), left = a.to(DType::kF64), right = b.to(DType::kF64);
  const int64_t out = right.shape()[0], rank = left.shape()[0], in = left.shape()[1];
  GALLEY_ASSERT(right.shape()[1] == rank && base.elements() == out * in);
  const double scale = config.alpha / static_cast<double>(config.rank);
  Tensor merged(DType::kF64, base.shape());
  const double *w = base.data_as<double>(), *pa = left.data_as<double>(), *pb = right.data_as<double>();
  double* to = merged.data_as<double>();
  parallel_for(out, 1, [&](int64_t begin, int64_t end) {
    std::vector<double> row(static_cast<size_t>(in));
    for (int64_t o = begin; o < end; ++o) {
      std::fill(row.begin(), row.end(), 0.0);
      for (int64_t r = 0; r < rank; ++r) {
        const double factor = scale * pb[o * rank + r];
        for (int64_t i = 0; i < in; ++i) row[static_cast<size_t>(i)] += factor * pa[r * in + i];
      }
      for (int64_t i = 0; i < in; ++i) {
        const int64_t index = transposed ? i * out + o : o * in + i;
        to[index] = w[index] + row[static_cast<size_t>(i)];
      }
    }
  });
  return merged.to(weight.dtype());
}

AdapterConfig parse_adapter_config(std::string_view text, const std::string& path) {
  const JsonNode config = JsonNode::parse(text, path);
  refuse_unsupported(config);
  AdapterConfig result;
  result.rank = config.integer("r", result.rank);
  if (result.rank < 1 || result.rank > kLargestRank) config.at("r").fail(cat("is ", result.rank, "; it must be at least 1"));
  if (config.has("lora_alpha")) result.alpha = config.at("lora_alpha").number();
  if (config.flag("use_rslora", false)) result.alpha *= std::sqrt(static_cast<double>(result.rank));
  if (!std::isfinite(result.alpha)) config.at("lora_alpha").fail("is too large");
  if (config.has("lora_dropout")) result.dropout = config.at("lora_dropout").number();
  if (!(result.dropout >= 0 && result.dropout <= 1)) config.at("lora_dropout").fail("is not within 0..1");
  result.transposed = config.flag("fan_in_fan_out", false);
  result.trained = text_list(config, "modules_to_save");
  result.base = config.text("base_model_name_or_path", "");
  result.task_type = config.text("task_type", "");
  // An expression is one text; the names in the file say which layers it selects.
  if (config.has("target_modules") && config.at("target_modules").json().is_array()) result.layers = text_list(config, "target_modules");
  return result;
}

std::string adapter_config_text(const AdapterConfig& config) {
  const auto or_null = [](const std::string& value) { return value.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(value); };
  const auto whole = [](double value) {
    return value == std::floor(value) && std::abs(value) < 1e15 ? nlohmann::ordered_json(static_cast<int64_t>(value))
                                                                : nlohmann::ordered_json(value);
  };
  const nlohmann::ordered_json json{
      {"base_model_name_or_path", or_null(config.base)},
      {"bias", "none"},
      {"fan_in_fan_out", config.transposed},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"lora_alpha", whole(config.alpha)},
      {"lora_dropout", config.dropout},
      {"modules_to_save", config.trained.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(config.trained)},
      {"peft_type", "LORA"},
      {"r", config.rank},
      {"target_modules", config.layers},
      {"task_type", or_null(config.task_type)}};
  return json.dump(2) + "\n";
}

bool is_adapter_tensor(std::string_view name) { return name.ends_with(kA) || name.ends_with(kB); }

std::string adapter_tensor_name(std::string_view name) { return cat(kPrefix, name); }

AdapterFolder::AdapterFolder(const std::string& path) : path_(path), config_(read_adapter_config(path)), file_(model_file(path)) {
  file_.verify();
  for (OfferedTensor tensor : file_.tensors()) {
    GALLEY_CHECK_INPUT(tensor.name.starts_with(kPrefix), file_.path(), ": the name of the tensor '", tensor.name, "' does not begin with ",
                       kPrefix, ", as names of adapters do");
    tensor.name.erase(0, kPrefix.size());
    GALLEY_CHECK_INPUT(tensor.dtype && is_floating(*tensor.dtype), file_.path(), ": tensor '", tensor.name, "' has the dtype ",
                       tensor.dtype_text, "; adapters have floating-point values");
    tensors_.push_back(std::move(tensor));
  }
  check_layers();
}

void AdapterFolder::check_layers() {
  for (const OfferedTensor& tensor : tensors_) {
    const std::string& name = tensor.name;
    if (name.ends_with(kB)) {
      GALLEY_CHECK_INPUT(find(cat(name.substr(0, name.size() - kB.size()), kA)), file_.path(), ": '", name, "' has no lora_A");
      continue;
    }
    if (!name.ends_with(kA)) {
      const bool saved = std::any_of(config_.trained.begin(), config_.trained.end(), [&](const std::string& module) {
        const std::string inner = cat(module, ".");
        return name.starts_with(inner) || name.find(cat(".", inner)) != std::string::npos;
      });
      GALLEY_CHECK_INPUT(saved, file_.path(), ": the tensor '", name, "' is neither lora_A.weight nor lora_B.weight of a layer, nor in ",
                         "modules_to_save of adapter_config.json");
      continue;
    }
    const std::string layer = name.substr(0, name.size() - kA.size());
    const std::optional<size_t> b = find(cat(layer, kB));
    GALLEY_CHECK_INPUT(b, file_.path(), ": '", name, "' has no lora_B");
    const Shape &first = tensor.shape, &second = tensors_[*b].shape;
    GALLEY_CHECK_INPUT(first.rank() == 2 && second.rank() == 2 && first[0] == config_.rank && second[1] == config_.rank, file_.path(),
                       ": the adapter of '", layer, "' has the shapes ", first, " and ", second, "; with r=", config_.rank,
                       " of adapter_config.json they must be [", config_.rank, ",in] and [out,", config_.rank, "]");
    layers_.push_back(layer);
  }
  GALLEY_CHECK_INPUT(!layers_.empty(), file_.path(), " has no adapters");
}

std::optional<size_t> AdapterFolder::find(std::string_view name) const {
  for (size_t i = 0; i < tensors_.size(); ++i)
    if (tensors_[i].name == name) return i;
  return std::nullopt;
}

}  // namespace galley
