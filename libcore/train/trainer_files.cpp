// What a training run writes, checkpoints, weights and result.json, and how it continues from a checkpoint.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "libcore/base/digest.h"
#include "libcore/base/file.h"
#include "libcore/base/resident_memory.h"
#include "libcore/comm/local.h"
#include "libcore/infer/stored_weights.h"
#include "libcore/text/tokenizer.h"
#include "libcore/train/trainer_state.h"
#include "libcore/weights/adapter.h"
#include "libcore/weights/calibration_file.h"
#include "libcore/weights/load.h"
#include "libcore/weights/quantization_plan.h"

namespace galley {
namespace {

/// Ending of the names of sums of gradients over micro-batches, which are zero between steps.
constexpr std::string_view kAccumulator = ".grad";

bool is_half(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

/// Sets an array of the run; running statistics and their averages may have another dtype in the checkpoint (precision.buffers).
void set_restored(ParameterStore& store, const std::string& name, const Tensor& values) {
  const DType dtype = store.tensor(name).dtype();
  const bool rounds = is_floating(values.dtype()) && is_floating(dtype) && (is_half(dtype) || is_half(values.dtype()));
  store.set(name, rounds ? values.to(dtype) : values);
}

}  // namespace

void Trainer::State::restore(const Checkpoint& checkpoint) {
  const auto state = nlohmann::json::parse(checkpoint.state());
  if (const auto digest = state.value("tokenizer", std::string()); !digest.empty() && digest != tokenizer_digest()) {
    throw Error(ErrorCode::kRecipe,
                cat(checkpoint.folder(), " was written with another tokenizer: the file of data.tokenizer, or the text ",
                    "that its vocabulary is made from, has changed since"))
        .key("data.tokenizer")
        .suggest("restore the file, or start again with --force");
  }
  ParameterStore& store = update->store();
  std::map<std::string, const StateSpec*> hook_states;  // that the checkpoint does not have
  for (const StateSpec& state : update->states()) {
    if (is_hook_state(state.name)) hook_states[state.name] = &state;
  }
  for (const std::string& group : checkpoint.groups()) {
    for (const ManifestTensor& tensor : checkpoint.tensors(group)) {
      if (sharded && sharded->has(tensor.name)) {
        sharded->load(tensor.name, tensor.dtype, tensor.shape,
                      [&](int64_t begin, std::span<std::byte> to) { checkpoint.read_range(tensor, begin, to); });
        continue;
      }
      if (!store.has(tensor.name) && tensor.name.ends_with(kAccumulator)) continue;  // zeros, in checkpoints of old versions
      if (is_hook_state(tensor.name)) {
        if (const auto spec = hook_states.find(tensor.name); spec != hook_states.end()) {
          restore_hook_state(checkpoint, tensor, *spec->second);
          hook_states.erase(spec);
        }
        continue;  // of a hook that this run does not have
      }
      if (stages && !store.has(tensor.name)) continue;  // of another stage
      GALLEY_CHECK_INPUT(store.has(tensor.name), checkpoint.folder(), " has a tensor ", tensor.name, " that this run does not");
      set_restored(store, tensor.name, checkpoint.read_copy(tensor));
    }
  }
  for (const auto& [name, spec] : hook_states) update->initialize_state(*spec);
  step = checkpoint.step();
  consumed = state.value("position", step * batch.global);  // absent in checkpoints of old versions
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

/// Factors of PowerSGD are equal on all ranks. Errors are a row of each rank: what all rows together left out is divided among the ranks,
/// if their number has changed.
void Trainer::State::restore_hook_state(const Checkpoint& checkpoint, const ManifestTensor& tensor, const StateSpec& spec) {
  ParameterStore& store = update->store();
  if (!tensor.name.ends_with(kPowerSgdError)) {
    if (spec.type.shape == tensor.shape) {
      store.set(tensor.name, checkpoint.read_copy(tensor));
    } else {  // of another rank of the factors
      update->initialize_state(spec);
    }
    return;
  }
  Tensor values(tensor.dtype, spec.type.shape);
  const int64_t elements = values.elements(), rows = tensor.shape[0];
  GALLEY_CHECK_INPUT(rows * elements == tensor.shape.elements() && tensor.dtype == DType::kF32, checkpoint.folder(), " has a tensor ",
                     tensor.name, " of the shape ", tensor.shape);
  auto* to = static_cast<float*>(values.data());
  const auto read = [&](int64_t row, float* array) {
    checkpoint.read_range(tensor, row * elements, {reinterpret_cast<std::byte*>(array), static_cast<size_t>(elements) * sizeof(float)});
  };
  if (rows == rank_count()) {
    read(own_rank(), to);
  } else {
    std::fill_n(to, elements, 0.0f);
    std::vector<float> row(static_cast<size_t>(elements));
    for (int64_t r = 0; r < rows; ++r) {
      read(r, row.data());
      for (int64_t i = 0; i < elements; ++i) to[i] += row[static_cast<size_t>(i)] / static_cast<float>(rank_count());
    }
  }
  store.set(tensor.name, values);
}

/// The rows of this rank in arrays of which each rank has its own values.
void Trainer::State::add_own_pieces(std::vector<CheckpointPiece>& pieces) {
  for (const StateSpec& state : update->states()) {
    if (!state.own) continue;
    std::vector<int64_t> shape{rank_count()};
    for (int d = 0; d < state.type.shape.rank(); ++d) shape.push_back(state.type.shape[d]);
    const int64_t elements = state.type.elements();
    pieces.push_back({"optimizer", state.name, state.type.dtype, Shape(std::span<const int64_t>(shape)), elements * own_rank(),
                      elements * (own_rank() + 1), [this, name = state.name, elements] {
                        const Tensor values = update->store().view(name).to(MemoryFormat::contiguous());
                        Tensor flat(values.dtype(), Shape{elements});
                        std::memcpy(flat.data(), values.data(), static_cast<size_t>(flat.bytes()));
                        return flat;
                      }});
  }
}

Metadata Trainer::State::metadata() {
  Metadata metadata;
  metadata["galley.recipe"] = recipe_text;
  metadata["galley.input"] = nlohmann::json(sample_shape).dump();
  const std::vector<std::string> categories = session.categories();
  if (session.tokenizer() != nullptr) metadata["galley.tokenizer"] = session.tokenizer()->saved();
  if (!categories.empty()) metadata["galley.categories"] = nlohmann::json(categories).dump();
  if (recipe.data.val) metadata["galley.pipeline"] = pipeline_text(session.pipeline_of("val"), *recipe.registry);
  if (const auto plan = stored_plan(recipe)) metadata[std::string(kQuantizationKey)] = plan_json(*plan);
  if (!parents.empty()) metadata["galley.parents"] = parents;
  return metadata;
}

/// A digest of what the ids of tokens mean; "" without a tokenizer.
std::string Trainer::State::tokenizer_digest() const {
  return session.tokenizer() == nullptr ? "" : digest_of(session.tokenizer()->saved());
}

/// All ranks write a checkpoint together, or this process alone.
std::string Trainer::State::save(RunFolder& folder) {
  count_samples();
  std::string saved;
  if (rank_count() == 1) {
    saved = write_checkpoint(folder);
  } else {
    const LongTask writing(options.ranks->position());
    CheckpointContent content = checkpoint_content();
    if (sharded) content.pieces = sharded->pieces();
    add_shared_pieces(content.pieces);
    add_own_pieces(content.pieces);
    for (CheckpointPiece& piece : content.pieces) {
      if (disk == nullptr) break;
      piece.values = [values = std::move(piece.values), own = disk.get()] {  // pages of the pieces before leave memory
        own->release();
        return values();
      };
    }
    saved = CheckpointStore(folder.file("checkpoints"), keep()).save(content, *options.ranks);
  }
  if (disk != nullptr) disk->release();
  return saved;
}

/// What a checkpoint contains of arrays that are whole in this process, by groups.
std::vector<CheckpointGroup> Trainer::State::whole_tensors() {
  std::vector<CheckpointGroup> groups{{"parameters", {}}, {"buffers", {}}, {"optimizer", {}}};
  const ParameterStore& store = update->store();
  for (const ParameterSpec& spec : update->parameters()) {
    if ((sharded && sharded->has(spec.name)) || !store.has(spec.name) || !update->updates(spec.name)) continue;
    const DType dtype = dtype_in_files(spec);
    groups[spec.role == ValueRole::kParameter ? 0 : 1].tensors.emplace_back(
        spec.name, dtype, spec.type.shape, [&store, name = spec.name, dtype] { return store.view(name).to(dtype); });
  }
  for (const StateSpec& state : update->states()) {
    if (state.own || (sharded && sharded->is_range(state.name)) || state.name == state.of + std::string(kAccumulator)) continue;
    if (stages && state.of.empty() && update->pipeline_ranks().stage > 0) continue;  // all stages have it: the loss scale
    groups[2].tensors.emplace_back(state.name, state.type.dtype, state.type.shape, [&store, name = state.name, own = disk.get()] {
      if (own != nullptr) own->release();
      return store.view(name);
    });
  }
  std::erase_if(groups, [](const CheckpointGroup& group) { return group.tensors.empty(); });
  return groups;
}

/// This rank's part of the arrays that all ranks have, or all copies of a stage: equal numbers of bytes, in order. Running statistics and
/// their averages are those of rank 0, or of the first copy.
void Trainer::State::add_shared_pieces(std::vector<CheckpointPiece>& pieces) {
  std::set<std::string> of_rank_0;
  for (const ParameterSpec& spec : update->parameters()) {
    if (spec.role == ValueRole::kBuffer) of_rank_0.insert({spec.name, spec.name + ".ema"});
  }
  const std::vector<CheckpointGroup> groups = whole_tensors();
  const int holders = stages ? update->pipeline_ranks().copies : rank_count(), own = stages ? update->pipeline_ranks().copy : own_rank();
  int64_t total = 0, at = 0;
  const auto bytes_of = [](const TensorSource& tensor) { return tensor.shape.elements() * dtype_size(tensor.dtype); };
  for (const CheckpointGroup& group : groups) {
    for (const TensorSource& tensor : group.tensors) total += of_rank_0.count(tensor.name) > 0 ? 0 : bytes_of(tensor);
  }
  // The first byte of a rank, as a whole number of elements of the tensor that it is in.
  const auto first = [&](int rank, const TensorSource& tensor) {
    const int64_t byte = total / holders * rank + total % holders * rank / holders;
    const int64_t element = (byte - at) / dtype_size(tensor.dtype);
    return rank == holders ? tensor.shape.elements() : std::clamp<int64_t>(element, 0, tensor.shape.elements());
  };
  for (const CheckpointGroup& group : groups) {
    for (const TensorSource& tensor : group.tensors) {
      const int64_t elements = tensor.shape.elements();
      CheckpointPiece piece{group.name, tensor.name, tensor.dtype, tensor.shape, 0, elements, tensor.values};
      const bool alone = of_rank_0.count(tensor.name) > 0;
      if (!alone) {
        piece.begin = first(own, tensor);
        piece.end = first(own + 1, tensor);
        at += bytes_of(tensor);
      }
      if (alone || elements == 0 ? own != 0 : piece.begin == piece.end) continue;
      if (piece.end - piece.begin < elements) {
        piece.values = [whole = tensor.values, piece] {
          const Tensor values = whole().to(MemoryFormat::contiguous());
          Tensor range(piece.dtype, Shape{piece.end - piece.begin});
          std::memcpy(range.data(), static_cast<const std::byte*>(values.data()) + piece.begin * dtype_size(piece.dtype),
                      static_cast<size_t>(range.bytes()));
          return range;
        };
      }
      pieces.push_back(std::move(piece));
    }
  }
}

/// A checkpoint of this process alone.
std::string Trainer::State::write_checkpoint(RunFolder& folder) {
  CheckpointContent content = checkpoint_content();
  content.groups = whole_tensors();
  return CheckpointStore(folder.file("checkpoints"), keep()).save(content);
}

/// Everything but tensors.
CheckpointContent Trainer::State::checkpoint_content() {
  CheckpointContent content;
  content.step = step;
  if (writes()) content.metadata = metadata();
  const auto best_json = [](const Best& b) {
    return nlohmann::json{{"metric", b.metric}, {"value", b.value}, {"step", b.step}, {"known", b.known}};
  };
  nlohmann::json state{{"wall_s", wall_s},
                       {"best", best_json(best)},
                       {"stopping", best_json(stopping)},
                       {"stopping_since", stopping_since},
                       {"latest_step", latest_step},
                       {"position", consumed},
                       {"skipped", skipped()},
                       {"irregular", irregular()},
                       {"parents", parents}};
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
  return content;
}

void Trainer::State::save_weights(RunFolder& folder, const std::string& name, bool ema) {
  const ParameterStore& store = update->store();
  std::vector<TensorSource> tensors;
  for (const ParameterSpec& spec : update->parameters()) {
    const auto known = [&](const std::string& tensor) {
      return store.has(tensor) || (sharded && sharded->has(tensor)) || (stages && stages->has(tensor));
    };
    if (!known(spec.name)) continue;
    const std::string average = spec.name + ".ema";
    const bool averaged = ema && known(average);
    tensors.push_back(source_of(averaged ? average : spec.name, spec));
  }
  on_rank_0([&] { write_safetensors(folder.file(name), tensors, metadata()); });
  const QuantizationAware* aware = update->quantization();
  if (aware == nullptr || !update->quantized_at(step)) return;
  update->prepare_evaluation(step);
  write_calibration(folder.file(trained_statistics(name)), aware->calibration(store, ema ? ".ema" : ""));
}

/// Writes the adapters, and the parameters that are trained in full, as RUN/adapter in PEFT's layout.
void Trainer::State::save_adapter(RunFolder& folder) {
  const LoraChoice& lora = *session.lora();
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
    case ModelOutput::kFlow:
    case ModelOutput::kOther: break;
  }
  constexpr std::string_view kLeaf = ".lora_A";
  std::vector<TensorSource> tensors;
  for (const ParameterSpec& spec : update->parameters()) {
    if (!spec.trainable) continue;
    tensors.push_back(source_of(spec.name, spec));
    tensors.back().name = adapter_tensor_name(spec.name);
    if (spec.module_type != kAdapterType) {
      if (std::find(config.trained.begin(), config.trained.end(), spec.module) == config.trained.end())
        config.trained.push_back(spec.module);
    } else if (spec.module.ends_with(kLeaf)) {
      config.layers.push_back(spec.module.substr(0, spec.module.size() - kLeaf.size()));
    }
  }
  on_rank_0([&] {
    make_folders(folder.file("adapter"));
    write_safetensors(folder.file("adapter/adapter_model.safetensors"), tensors, {{"format", "pt"}});
    write_file(folder.file("adapter/adapter_config.json"), adapter_config_text(config));
  });
}

void Trainer::State::write_result(Run& run) {
  TrainResult& result = run.result;
  count_samples();
  result.metrics = latest_step == step ? latest : MetricValues();
  if (best.known)
    result.best = {best.metric, best.value, best.step, recipe.checkpoint && recipe.checkpoint->keep.best ? "weights_best.safetensors" : ""};
  result.steps = step;
  result.epochs = epoch_at(step);
  result.samples = step * batch.global;
  result.wall_s = wall_s;
  result.digest = digest();
  if (result.stopped != "nan") check_equal_digests(result.digest);
  result.ranks = rank_count();
  result.strategy = name_of(rank_count() > 1 ? resolve_strategy(recipe.sharding, rank_count()) : ShardingStrategy::kNone);
  result.compilations = engine->compilations();
  result.micro = batch.micro;
  result.planned_peak_bytes = plan.planned_peak_bytes;
  result.peak_bytes = engine->peak_bytes();
  if (result.stopped != "nan" && rank_count() > 1 && options.ranks->transport() != kThreads) {
    const auto of_all = [&](int64_t own) {
      std::vector<int64_t> all(static_cast<size_t>(rank_count()));
      all[static_cast<size_t>(own_rank())] = own;
      options.ranks->all_reduce("memory", all.data(), all.data(), rank_count(), DType::kI64);
      return all;
    };
    result.planned_peak_of_ranks = of_all(result.planned_peak_bytes);
    result.peak_of_ranks = of_all(result.peak_bytes);
  }
  result.skipped = skipped();
  result.irregular = irregular();
  result.provenance = options.provenance;
  run.folder.write_text("result.json", to_json(result) + "\n");
}

}  // namespace galley
