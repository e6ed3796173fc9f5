// What a training run writes, checkpoints, weights and result.json, and how it continues from a checkpoint.

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "libcore/base/digest.h"
#include "libcore/base/file.h"
#include "libcore/base/resident_memory.h"
#include "libcore/text/tokenizer.h"
#include "libcore/train/trainer_state.h"
#include "libcore/weights/adapter.h"
#include "libcore/weights/calibration_file.h"
#include "libcore/weights/load.h"

namespace galley {

void Trainer::State::restore(const Checkpoint& checkpoint) {
  const auto state = nlohmann::json::parse(checkpoint.state());
  if (const auto digest = state.value("tokenizer", std::string()); !digest.empty() && digest != tokenizer_digest()) {
    throw Error(ErrorCode::kRecipe,
                cat(checkpoint.folder(), " was written with another tokenizer: the file of data.tokenizer, or the text ",
                    "that its vocabulary is made from, has changed since"))
        .key("data.tokenizer")
        .suggest("restore the file, or start again with --force");
  }
  for (const std::string& group : checkpoint.groups()) {
    checkpoint.each(group, [&](const std::string& name, const Tensor& tensor) {
      GALLEY_CHECK_INPUT(update->store().has(name), checkpoint.folder(), " has a tensor ", name, " that this run does not");
      update->store().set(name, tensor);
    });
  }
  step = checkpoint.step();
  wall_s = state.at("wall_s");
  const auto read_best = [&](const char* key, Best& to) {
    const auto& json = state.at(key);
    to = {json.at("metric"), json.at("value"), json.at("step"), json.at("known")};
  };
  read_best("best", best);
  read_best("stopping", stopping);
  stopping_since = state.at("stopping_since");
  latest_step = state.at("latest_step");
  skipped_before = state.at("skipped");
  irregular_before = state.value("irregular", int64_t{0});  // absent in checkpoints of old versions
  parents = state.at("parents");
  for (const auto& item : state.at("latest")) latest.emplace_back(item.at(0), item.at(1));
}

Metadata Trainer::State::metadata() {
  Metadata metadata;
  metadata["galley.recipe"] = recipe_text;
  metadata["galley.input"] = nlohmann::json(sample_shape).dump();
  const std::vector<std::string> categories = session.categories();
  if (session.tokenizer() != nullptr) metadata["galley.tokenizer"] = session.tokenizer()->saved();
  if (!categories.empty()) metadata["galley.categories"] = nlohmann::json(categories).dump();
  if (recipe.data.val) metadata["galley.pipeline"] = pipeline_text(session.pipeline_of("val"), *recipe.registry);
  if (!parents.empty()) metadata["galley.parents"] = parents;
  return metadata;
}

/// A digest of what the ids of tokens mean; "" without a tokenizer.
std::string Trainer::State::tokenizer_digest() const {
  return session.tokenizer() == nullptr ? "" : digest_of(session.tokenizer()->saved());
}

/// The digest of the current parameters. It excludes buffers (running statistics), which depend on the division of the batch.
std::string Trainer::State::digest() const {
  const ParameterStore& store = update->store();
  std::vector<TensorSource> tensors;
  for (const ParameterSpec& spec : update->parameters()) {
    if (spec.role != ValueRole::kParameter) continue;
    tensors.emplace_back(spec.name, spec.type.dtype, spec.type.shape, [&store, name = spec.name] { return store.view(name); });
  }
  return digest_of_tensors(tensors);
}

std::string Trainer::State::save(RunFolder& folder) {
  CheckpointContent content;
  content.step = step;
  content.groups = {{"parameters", {}}, {"buffers", {}}, {"optimizer", {}}};
  const ParameterStore& store = update->store();
  for (const ParameterSpec& spec : update->parameters()) {
    if (!store.has(spec.name)) continue;
    content.groups[spec.role == ValueRole::kParameter ? 0 : 1].tensors.emplace_back(
        spec.name, spec.type.dtype, spec.type.shape, [&store, name = spec.name] { return store.view(name); });
  }
  for (const StateSpec& state : update->states()) {
    content.groups[2].tensors.emplace_back(state.name, state.type.dtype, state.type.shape,
                                           [&store, name = state.name] { return store.view(name); });
  }
  std::erase_if(content.groups, [](const CheckpointGroup& group) { return group.tensors.empty(); });
  const auto best_json = [](const Best& b) {
    return nlohmann::json{{"metric", b.metric}, {"value", b.value}, {"step", b.step}, {"known", b.known}};
  };
  nlohmann::json state{
      {"wall_s", wall_s},           {"best", best_json(best)}, {"stopping", best_json(stopping)}, {"stopping_since", stopping_since},
      {"latest_step", latest_step}, {"skipped", skipped()},    {"irregular", irregular()},        {"parents", parents}};
  if (session.tokenizer() != nullptr) state["tokenizer"] = tokenizer_digest();
  state["latest"] = nlohmann::json::array();
  for (const auto& [name, value] : latest) {
    if (std::isfinite(value)) state["latest"].push_back({name, value});
  }
  content.state = state.dump();
  content.recipe_digest = digest_of(recipe_text);
  if (recipe.checkpoint->keep.best && latest_step == step) {
    const double value = find_metric(latest, recipe.checkpoint->keep.best->metric);
    if (!std::isnan(value)) content.score = larger_is_better(recipe.checkpoint->keep.best->metric) ? value : -value;
  }
  return CheckpointStore(folder.file("checkpoints"), keep()).save(content);
}

void Trainer::State::save_weights(RunFolder& folder, const std::string& name, bool ema) {
  const ParameterStore& store = update->store();
  std::vector<TensorSource> tensors;
  for (const ParameterSpec& spec : update->parameters()) {
    if (!store.has(spec.name)) continue;
    const std::string source = ema && store.has(spec.name + ".ema") ? spec.name + ".ema" : spec.name;
    tensors.emplace_back(spec.name, spec.type.dtype, spec.type.shape, [&store, source] { return store.view(source); });
  }
  write_safetensors(folder.file(name), tensors, metadata());
  const QuantizationAware* aware = update->quantization();
  if (aware == nullptr || !update->quantized_at(step)) return;
  update->prepare_evaluation(step);
  write_calibration(folder.file(trained_statistics(name)), aware->calibration(store, ema ? ".ema" : ""));
}

/// Writes the adapters, and the parameters that are trained in full, as RUN/adapter in PEFT's layout.
void Trainer::State::save_adapter(RunFolder& folder) {
  const LoraChoice& lora = *session.lora();
  const ParameterStore& store = update->store();
  AdapterConfig config{.rank = lora.rank, .alpha = lora.alpha, .dropout = lora.dropout};
  if (!recipe.weights.load.empty()) config.base = recipe.weights.load.at<WeightSource>(0).from;
  const ModelInfo& info = session.info();
  switch (info.output) {
    case ModelOutput::kTokens: config.task_type = "CAUSAL_LM"; break;
    case ModelOutput::kTokenClasses: config.task_type = "TOKEN_CLS"; break;
    case ModelOutput::kSpans: config.task_type = "QUESTION_ANS"; break;
    case ModelOutput::kClasses: config.task_type = info.input_dtype == DType::kI64 ? "SEQ_CLS" : ""; break;
    case ModelOutput::kMaskedTokens:
    case ModelOutput::kPixelClasses:
    case ModelOutput::kDetections:
    case ModelOutput::kOther: break;
  }
  constexpr std::string_view kLeaf = ".lora_A";
  std::vector<TensorSource> tensors;
  for (const ParameterSpec& spec : update->parameters()) {
    if (!spec.trainable) continue;
    tensors.emplace_back(adapter_tensor_name(spec.name), spec.type.dtype, spec.type.shape,
                         [&store, name = spec.name] { return store.view(name); });
    if (spec.module_type != kAdapterType) {
      if (std::find(config.trained.begin(), config.trained.end(), spec.module) == config.trained.end())
        config.trained.push_back(spec.module);
    } else if (spec.module.ends_with(kLeaf)) {
      config.layers.push_back(spec.module.substr(0, spec.module.size() - kLeaf.size()));
    }
  }
  make_folders(folder.file("adapter"));
  write_safetensors(folder.file("adapter/adapter_model.safetensors"), tensors, {{"format", "pt"}});
  write_file(folder.file("adapter/adapter_config.json"), adapter_config_text(config));
}

void Trainer::State::write_result(Run& run) {
  TrainResult& result = run.result;
  result.metrics = latest_step == step ? latest : MetricValues();
  if (best.known)
    result.best = {best.metric, best.value, best.step, recipe.checkpoint && recipe.checkpoint->keep.best ? "weights_best.safetensors" : ""};
  result.steps = step;
  result.epochs = epoch_at(step);
  result.samples = step * batch.global;
  result.wall_s = wall_s;
  result.digest = digest();
  result.compilations = engine->compilations();
  result.micro = batch.micro;
  result.planned_peak_bytes = plan.planned_peak_bytes;
  result.peak_bytes = peak_resident_bytes();
  result.skipped = skipped();
  result.irregular = irregular();
  result.provenance = options.provenance;
  run.folder.write_text("result.json", to_json(result) + "\n");
}

}  // namespace galley
