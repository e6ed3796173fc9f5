#include "libcore/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "libcore/base/digest.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/data/loader.h"
#include "libcore/optim/schedule.h"
#include "libcore/optim/updates.h"
#include "libcore/passes/differentiate.h"
#include "libcore/passes/fold_batch_norm.h"
#include "libcore/passes/fuse.h"
#include "libcore/passes/recompute.h"
#include "libcore/recipe/selector.h"
#include "libcore/runtime/compile.h"
#include "libcore/runtime/execution.h"
#include "libcore/train/evaluate.h"
#include "libcore/train/resume.h"
#include "libcore/train/session.h"
#include "libcore/train/tensorboard.h"
#include "libcore/weights/checkpoint.h"

namespace galley {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

int64_t status_bytes(const char* key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return std::stoll(line.substr(line.find(':') + 1)) * 1024;
  }
  return 0;
}

/// Has a multiple of `every` (steps, may be a fraction) been reached between the step before and this one?
bool due(int64_t step, double every) {
  return std::floor(static_cast<double>(step) / every) > std::floor(static_cast<double>(step - 1) / every);
}

}  // namespace

int64_t resident_bytes() { return status_bytes("VmRSS:"); }
int64_t peak_resident_bytes() { return status_bytes("VmHWM:"); }

/// Best value of a metric so far.
struct Best {
  std::string metric;
  double value = 0;
  int64_t step = 0;
  bool known = false;
  bool better(double candidate) const {
    if (std::isnan(candidate)) return false;
    return !known || (larger_is_better(metric) ? candidate > value : candidate < value);
  }
};

class Trainer::State {
 public:
  State(const LoadedRecipe& loaded, std::string recipe_text, TrainerOptions options)
      : recipe(loaded.recipe), recipe_text(std::move(recipe_text)), options(std::move(options)), session(recipe) {
    if (!recipe.train.duration || !recipe.train.batch) {
      const char* key = recipe.train.duration ? "train.batch" : "train.duration";
      throw Error(ErrorCode::kRecipe, cat("the key ", key, " is missing")).key(key).suggest(recipe.train.duration ? "e.g. batch: 128" : "e.g. duration: 10 epochs");
    }
    if (!recipe.train.optimizer.algorithm) throw Error(ErrorCode::kRecipe, "the key train.optimizer is missing").key("train.optimizer").suggest("e.g. {type: sgd, lr: 0.1, momentum: 0.9}");
  }

  const Recipe& recipe;
  std::string recipe_text;
  TrainerOptions options;
  Session session;
  TrainPlan plan;
  bool planned = false;
  BatchPlan batch;
  RunLength length;
  double time_limit_s = 0;
  std::unique_ptr<DataLoader> loader;
  std::unique_ptr<Evaluator> evaluator;
  std::vector<ParameterSpec> parameters;
  UpdateTable updates;
  ParameterGroups groups;
  Schedule schedule;
  ParameterStore store;
  std::shared_ptr<Arena> arena = std::make_shared<Arena>();
  std::shared_ptr<const Program> last_program, accumulate_program;
  std::unique_ptr<Execution> last, accumulate;
  NodeTimer timer;

  // What a checkpoint holds besides tensors.
  int64_t step = 0;
  double wall_s = 0;
  Best best, stopping;
  int64_t stopping_since = 0;
  MetricValues latest;
  int64_t latest_step = -1;

  void make_plan();
  Graph capture(const BatchTypes& types, bool update);
  TrainResult train(TrainEvents& events);
  void start(TrainEvents& events);
  void restore(const Checkpoint& checkpoint);
  std::string save(RunFolder& folder);
  void save_weights(RunFolder& folder, const std::string& name, bool ema);
  TrainRow one_step(double& loss);
  void validate(RunFolder& folder, TrainEvents& events, TensorBoardWriter* board);
  Metadata metadata();
  double epoch_at(int64_t s) const { return length.steps_per_epoch > 0 ? static_cast<double>(s) / length.steps_per_epoch : 0; }
  KeepPolicy keep() const {
    KeepPolicy policy;
    policy.last = recipe.checkpoint->keep.last;
    policy.best = recipe.checkpoint->keep.best ? recipe.checkpoint->keep.best->count : 0;
    return policy;
  }
  std::string best_metric() const {
    if (recipe.checkpoint && recipe.checkpoint->keep.best) return recipe.checkpoint->keep.best->metric;
    if (recipe.train.early_stop) return recipe.train.early_stop->metric;
    return session.classes() > 0 ? "top1" : "loss";
  }
};

Graph Trainer::State::capture(const BatchTypes& types, bool update) {
  CapturedModel model = session.capture_training(types);
  Graph& graph = model.graph;
  for (const std::string& line : fuse_training(graph).declined) log(LogLevel::kDebug, "not fused: " + line);
  std::vector<ValueId> wanted;
  for (const ParameterSpec& spec : model.parameters) {
    if (spec.trainable) wanted.push_back(graph.find_input(spec.name));
  }
  const ValueId loss = graph.find_output("loss");
  const Gradients gradients = differentiate(graph, loss, wanted);
  if (update) {
    UpdateOptions how;
    how.groups = groups;
    how.accumulation = batch.accumulation;
    if (recipe.train.clip) {
      how.clip = recipe.train.clip->type == ClipType::kNorm ? ClipMode::kNorm : ClipMode::kValue;
      how.clip_max = recipe.train.clip->max;
    }
    how.ema = recipe.train.ema.has_value();
    how.ema_buffers = !recipe.train.ema || recipe.train.ema->buffers;
    updates = add_updates(graph, gradients, how);
  } else {
    add_accumulation(graph, gradients);
  }
  if (recipe.train.recompute) {
    const RecomputeSection& section = *recipe.train.recompute;
    RecomputeChoice which = recompute_selective();
    if (section.mode == RecomputeMode::kFull) which = recompute_full(graph);
    if (section.mode == RecomputeMode::kMatch) {
      which = [&section](const Node& node) {
        return node.phase == Phase::kForward && Selector{section.match, {}}.selects({node.path, std::string(node.op->name), 0});
      };
    }
    recompute(graph, which);
  }
  parameters = model.parameters;
  return std::move(graph);
}

void Trainer::State::make_plan() {
  if (planned) return;
  const auto started = Clock::now();
  batch = plan_batch(*recipe.train.batch);
  loader = session.loader("train", batch.micro, 0, 0);
  const int64_t samples = loader->epoch_samples();
  if (recipe.data.train.last_batch == LastBatch::kDrop && samples == 0) {
    fail(ErrorCode::kRecipe, "train.batch is ", batch.micro, ", data.train has fewer samples, and last_batch is drop: no batch is left; use a smaller batch or last_batch: wrap");
  }
  const BatchTypes types = session.batch_types(*loader);
  // Steps an epoch: wrapped batches run on, so epochs need not be whole steps; dropped and kept ones are.
  const double per_epoch = static_cast<double>(samples) / static_cast<double>(batch.global);
  length.samples_per_step = static_cast<double>(batch.global);
  length.steps_per_epoch = recipe.data.train.last_batch == LastBatch::kWrap ? per_epoch : std::ceil(per_epoch);
  const Duration& duration = *recipe.train.duration;
  if (duration.unit == DurationUnit::kSeconds) {
    time_limit_s = duration.value;
  } else {
    length.total_steps = static_cast<int64_t>(std::ceil(steps_of(duration, length) - 1e-9));
    if (length.total_steps < 1) throw Error(ErrorCode::kRecipe, cat("train.duration: ", duration.str(), " is less than one step")).key("train.duration");
  }
  schedule = Schedule(recipe.train.schedule, length);

  const auto& optimizer = *recipe.train.optimizer.algorithm.as<Optimizer>();
  CapturedModel named = session.capture_training(types);
  std::vector<Selectable> items;
  std::vector<std::string> item_names;
  for (const ParameterSpec& spec : named.parameters) {
    if (!spec.trainable) continue;
    items.push_back({spec.name, spec.module_type, spec.type.shape.rank()});
    item_names.push_back(spec.name);
  }
  std::map<std::string, ParameterOverride> overrides;
  for (size_t i = recipe.train.optimizer.groups.size(); i-- > 0;) {  // the first item that sets a key wins
    const auto& group = recipe.train.optimizer.groups.at<OptimizerGroup>(i);
    for (int64_t index : Selector{group.match, group.except}.select(items, cat("train.optimizer.groups.", i))) {
      ParameterOverride& own = overrides[item_names[static_cast<size_t>(index)]];
      if (group.lr) own.lr = group.lr;
      if (group.weight_decay) own.weight_decay = group.weight_decay;
      if (group.momentum) own.momentum = group.momentum;
    }
  }
  groups = resolve_groups(optimizer, overrides);

  CompileOptions how;
  how.threads = static_cast<int>(session.threads());
  how.memory_format = session.layout();
  last_program = compile(capture(types, true), how);
  store.declare(*last_program);
  how.parameter_formats = store.formats();
  if (batch.accumulation > 1) {
    const std::vector<ParameterSpec> kept = parameters;
    accumulate_program = compile(capture(types, false), how);
    parameters = kept;
  }
  plan.compilations = batch.accumulation > 1 ? 2 : 1;
  if (recipe.data.val && recipe.train.validate) {
    evaluator = std::make_unique<Evaluator>(session, "val", recipe.data.val->batch.value_or(batch.micro), store.formats(), recipe.train.validate->samples.value_or(0));
    ++plan.compilations;
  }
  plan.global = batch.global;
  plan.micro = batch.micro;
  plan.accumulation = batch.accumulation;
  plan.total_steps = length.total_steps;
  plan.steps_per_epoch = length.steps_per_epoch;
  for (const ParameterSpec& spec : parameters) {
    if (spec.role != ValueRole::kParameter) continue;
    plan.parameters += spec.type.elements();
    if (spec.trainable) plan.trainable += spec.type.elements();
  }
  for (const Node& node : last_program->graph().nodes()) plan.flops_per_step += cost_of(*node.op, context_of(last_program->graph(), node)).flops;
  if (accumulate_program) {
    double flops = 0;
    for (const Node& node : accumulate_program->graph().nodes()) flops += cost_of(*node.op, context_of(accumulate_program->graph(), node)).flops;
    plan.flops_per_step += flops * static_cast<double>(batch.accumulation - 1);
  }
  for (const LayoutReport::Reorder& reorder : last_program->report().layout.reorders) plan.reorders += !reorder.weight && !reorder.free;
  plan.warnings = last_program->report().warnings;
  plan.persistent_bytes = last_program->persistent_bytes();
  plan.scratch_bytes = std::max({last_program->scratch_bytes(), accumulate_program ? accumulate_program->scratch_bytes() : 0, evaluator ? evaluator->program().scratch_bytes() : 0});
  plan.base_bytes = resident_bytes() - store.bytes() + (evaluator ? evaluator->data_bytes() : 0);
  plan.planned_peak_bytes = plan.base_bytes + plan.persistent_bytes + plan.scratch_bytes + (evaluator ? evaluator->program().prepared_bytes() : 0);
  plan.compile_s = seconds_since(started);
  planned = true;
}

void Trainer::State::restore(const Checkpoint& checkpoint) {
  for (const std::string& group : checkpoint.groups()) {
    for (const auto& [name, tensor] : checkpoint.read(group)) {
      GALLEY_CHECK_INPUT(store.has(name), checkpoint.folder(), " has a tensor ", name, " that this run does not");
      store.set(name, tensor);
    }
  }
  const auto state = nlohmann::json::parse(checkpoint.state());
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
  for (const auto& item : state.at("latest")) latest.emplace_back(item.at(0), item.at(1));
}

Metadata Trainer::State::metadata() {
  Metadata metadata;
  metadata["galley.recipe"] = recipe_text;
  nlohmann::json input = nlohmann::json::array();
  for (int64_t size : session.info().input_shape) input.push_back(size);
  metadata["galley.input"] = input.dump();
  const std::vector<std::string> categories = session.categories();
  if (!categories.empty()) metadata["galley.categories"] = nlohmann::json(categories).dump();
  return metadata;
}

std::string Trainer::State::save(RunFolder& folder) {
  CheckpointContent content;
  content.step = step;
  content.groups = {{"parameters", {}}, {"buffers", {}}, {"optimizer", {}}};
  for (const ParameterSpec& spec : parameters) {
    if (!store.has(spec.name)) continue;
    content.groups[spec.role == ValueRole::kParameter ? 0 : 1].tensors.emplace_back(spec.name, spec.type.dtype, spec.type.shape, [this, name = spec.name] { return store.get(name); });
  }
  for (const StateSpec& state : updates.states) {
    content.groups[2].tensors.emplace_back(state.name, state.type.dtype, state.type.shape, [this, name = state.name] { return store.get(name); });
  }
  std::erase_if(content.groups, [](const CheckpointGroup& group) { return group.tensors.empty(); });
  const auto best_json = [](const Best& b) { return nlohmann::json{{"metric", b.metric}, {"value", b.value}, {"step", b.step}, {"known", b.known}}; };
  nlohmann::json state{{"wall_s", wall_s}, {"best", best_json(best)}, {"stopping", best_json(stopping)}, {"stopping_since", stopping_since}, {"latest_step", latest_step}};
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
  std::vector<TensorSource> tensors;
  for (const ParameterSpec& spec : parameters) {
    if (!store.has(spec.name)) continue;
    const std::string source = ema && store.has(spec.name + ".ema") ? spec.name + ".ema" : spec.name;
    tensors.emplace_back(spec.name, spec.type.dtype, spec.type.shape, [this, source] { return store.get(source); });
  }
  write_safetensors(folder.file(name), tensors, metadata());
}

void Trainer::State::start(TrainEvents& events) {
  last = std::make_unique<Execution>(last_program, store, arena);
  if (accumulate_program) accumulate = std::make_unique<Execution>(accumulate_program, store, arena);
  if (evaluator) evaluator->bind(store, arena, recipe.train.ema ? ".ema" : "");
  arena->reserve(plan.scratch_bytes);
  RunFolder folder(options.run);
  std::optional<Checkpoint> found;
  if (options.force) {
    remove_tree(folder.file("checkpoints"));
    for (const char* name : {"metrics.jsonl", "result.json", "weights.safetensors", "weights_ema.safetensors", "weights_best.safetensors"}) remove_tree(folder.file(name));
    remove_tree(folder.file("tensorboard"));
  } else if (recipe.checkpoint) {
    CheckpointStore checkpoints(folder.file("checkpoints"), keep());
    if (file_exists(folder.file("checkpoints"))) {
      checkpoints.remove_stale();
      found = checkpoints.newest();
    }
  }
  if (found) {
    restore(*found);
    events.resumed(step);
  } else {
    session.initialize(parameters, store);
    for (const StateSpec& state : updates.states) {
      if (state.starts_as_copy) store.set(state.name, store.get(state.of));
    }
  }
  best.metric = best_metric();
  if (recipe.train.early_stop) stopping.metric = recipe.train.early_stop->metric;
  plan.start_step = step;
  folder.truncate_after(step);
  remove_tree(folder.file("result.json"));
  folder.write_text("recipe.yaml", recipe_text);
  if (step > 0) loader = session.loader("train", batch.micro, step * batch.global, 0);
}

TrainRow Trainer::State::one_step(double& loss) {
  const auto began = Clock::now();
  double data_s = 0, loss_sum = 0;
  ++step;
  for (int64_t k = 0; k < batch.accumulation; ++k) {
    Execution& execution = k + 1 == batch.accumulation ? *last : *accumulate;
    const auto asked = Clock::now();
    const Batch* data = loader->next();
    GALLEY_ASSERT(data != nullptr, "an endless loader ended");
    data_s += seconds_since(asked);
    execution.feed("input", data->input());
    execution.feed("target", session.classes() > 0 ? data->label() : data->fields.at("target"));
    if (execution.takes("rng")) {
      Tensor rng(DType::kI64, {3});
      rng.data_as<int64_t>()[0] = recipe.seed;
      rng.data_as<int64_t>()[1] = step;
      rng.data_as<int64_t>()[2] = data->first;
      execution.feed("rng", rng);
    }
    if (k + 1 == batch.accumulation) {
      for (const ParameterGroup& group : groups.groups) {
        if (execution.takes("lr." + group.name)) execution.feed("lr." + group.name, schedule.value(step, group.optimizer->lr));
      }
      if (execution.takes("step")) execution.feed("step", static_cast<double>(step));
      if (execution.takes("ema_decay")) {
        const EmaSection& ema = *recipe.train.ema;
        const double every = steps_of(ema.every, length);
        execution.feed("ema_decay", due(step, every) ? ema_decay(ema.decay, static_cast<int64_t>(static_cast<double>(step) / every) - 1, ema.warmup) : 1.0);
      }
    }
    RunOptions how;
    if (options.time_operators) how.observer = &timer;
    how.before_updates = [&] { return recipe.train.guard.nan == NanGuard::kIgnore || std::isfinite(execution.scalar("loss")); };
    if (!execution.run(how)) {
      const double bad = execution.scalar("loss");
      const auto culprit = find_non_finite(execution);
      throw Error(ErrorCode::kNumeric, cat("the loss is ", bad, " at step ", step, culprit ? "; first in " + culprit->text() : ""))
          .key("train.guard.nan")
          .suggest("a lower train.optimizer.lr, train.clip=1.0, or a look at the data; nothing of this step was kept");
    }
    loss_sum += execution.scalar("loss");
  }
  loss = loss_sum / static_cast<double>(batch.accumulation);
  TrainRow row;
  row.step = step;
  row.epoch = epoch_at(step);
  row.samples = step * batch.global;
  row.loss = loss;
  row.lr = schedule.value(step, groups.groups.front().optimizer->lr);
  row.grad_norm = last->scalar("grad_norm");
  const double seconds = seconds_since(began);
  row.step_ms = seconds * 1e3;
  row.data_ms = data_s * 1e3;
  row.samples_per_s = static_cast<double>(batch.global) / seconds;
  return row;
}

void Trainer::State::validate(RunFolder& folder, TrainEvents& events, TensorBoardWriter* board) {
  if (!evaluator || latest_step == step) return;
  EvalRow row;
  row.step = step;
  row.epoch = epoch_at(step);
  row.split = "val";
  const auto began = Clock::now();
  row.metrics = evaluator->run();
  row.samples = evaluator->samples();
  row.wall_s = seconds_since(began);
  latest = row.metrics;
  latest_step = step;
  folder.append(to_json(row));
  if (board != nullptr) {
    std::vector<std::pair<std::string, double>> scalars;
    for (const auto& [name, value] : row.metrics) scalars.emplace_back("val/" + name, value);
    board->scalars(step, scalars);
  }
  const double value = find_metric(row.metrics, best.metric);
  if (best.better(value)) {
    best = {best.metric, value, step, true};
    if (recipe.checkpoint && recipe.checkpoint->keep.best) save_weights(folder, "weights_best.safetensors", false);
  }
  if (recipe.train.early_stop) {
    const double watched = find_metric(row.metrics, stopping.metric);
    const double margin = recipe.train.early_stop->min_delta * (larger_is_better(stopping.metric) ? -1 : 1);
    if (stopping.better(stopping.known ? watched + margin : watched)) {
      stopping = {stopping.metric, watched, step, true};
      stopping_since = step;
    }
  }
  events.evaluated(row);
}

TrainResult Trainer::State::train(TrainEvents& events) {
  make_plan();
  start(events);
  events.planned(plan);
  RunFolder folder(options.run);
  std::unique_ptr<TensorBoardWriter> board;
  if (recipe.log.tensorboard) board = std::make_unique<TensorBoardWriter>(folder.file("tensorboard"));
  const double wall_before = wall_s;
  const auto began = Clock::now();
  const int64_t first = step + 1;
  const double log_every = std::max(1.0, steps_of(recipe.log.every, length));
  const double validate_every = recipe.train.validate ? steps_of(recipe.train.validate->every, length) : 0;
  const double checkpoint_every = recipe.checkpoint ? steps_of(recipe.checkpoint->every, length) : 0;
  TrainResult result;
  int64_t saved_at = plan.start_step > 0 ? plan.start_step : -1;
  const auto write_result = [&] {
    result.metrics = latest_step == step ? latest : MetricValues();
    if (best.known) result.best = {best.metric, best.value, best.step, recipe.checkpoint && recipe.checkpoint->keep.best ? "weights_best.safetensors" : ""};
    result.steps = step;
    result.epochs = epoch_at(step);
    result.samples = step * batch.global;
    result.wall_s = wall_s;
    result.micro = batch.micro;
    result.planned_peak_bytes = plan.planned_peak_bytes;
    result.peak_bytes = peak_resident_bytes();
    result.provenance = options.provenance;
    folder.write_text("result.json", to_json(result) + "\n");
  };
  while (length.total_steps == 0 || step < length.total_steps) {
    double loss = 0;
    TrainRow row;
    try {
      row = one_step(loss);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kNumeric) throw;
      --step;
      wall_s = wall_before + seconds_since(began);
      result.stopped = "nan";
      write_result();
      throw;
    }
    row.peak_bytes = peak_resident_bytes();
    wall_s = wall_before + seconds_since(began);
    const bool out_of_time = time_limit_s > 0 && wall_s >= time_limit_s;
    const int signal = events.stop_signal();
    const bool final_step = step == length.total_steps || out_of_time;
    const bool logged = step == first || final_step || signal != 0 || due(step, log_every);
    if (logged) {
      folder.append(to_json(row));
      if (board) board->scalars(step, {{"train/loss", row.loss}, {"train/lr", row.lr}, {"train/grad_norm", row.grad_norm}, {"train/samples_per_s", row.samples_per_s}});
    }
    const double fraction = length.total_steps > 0 ? static_cast<double>(step) / static_cast<double>(length.total_steps) : std::min(1.0, wall_s / time_limit_s);
    const double done_here = static_cast<double>(step - first + 1);
    const double eta = length.total_steps > 0 ? (wall_s - wall_before) / done_here * static_cast<double>(length.total_steps - step) : std::max(0.0, time_limit_s - wall_s);
    events.stepped(row, fraction, eta, logged);
    if (signal == 0 && validate_every > 0 && due(step, validate_every)) validate(folder, events, board.get());
    if (final_step) validate(folder, events, board.get());
    bool stop_early = false;
    if (recipe.train.early_stop && stopping.known && !final_step) {
      stop_early = latest_step == step && static_cast<double>(step - stopping_since) >= steps_of(recipe.train.early_stop->patience, length);
    }
    const bool asked = events.take_checkpoint_request();
    wall_s = wall_before + seconds_since(began);
    if (recipe.checkpoint && (asked || signal != 0 || final_step || stop_early || due(step, checkpoint_every)) && saved_at != step) {
      events.checkpointed(save(folder));
      saved_at = step;
    }
    if (signal != 0) {
      result.stopped = "signal";
      break;
    }
    if (stop_early) {
      result.stopped = "early_stop";
      break;
    }
    if (out_of_time) break;
  }
  wall_s = wall_before + seconds_since(began);
  if (result.stopped != "signal") {
    save_weights(folder, "weights.safetensors", false);
    if (recipe.train.ema) save_weights(folder, "weights_ema.safetensors", true);
  }
  if (result.stopped != "signal" || !recipe.checkpoint) write_result();
  if (result.stopped == "signal") {
    result.steps = step;
    result.wall_s = wall_s;
  }
  return result;
}

Trainer::Trainer(const LoadedRecipe& loaded, std::string recipe_text, TrainerOptions options)
    : state_(std::make_unique<State>(loaded, std::move(recipe_text), std::move(options))) {}
Trainer::~Trainer() = default;

std::optional<TrainResult> Trainer::finished() const {
  const std::string path = state_->options.run + "/result.json";
  if (state_->options.force || !file_exists(path)) return std::nullopt;
  TrainResult result = parse_result(read_file(path), path);
  return result.stopped == "done" || result.stopped == "early_stop" ? std::optional<TrainResult>(std::move(result)) : std::nullopt;
}

const TrainPlan& Trainer::plan() {
  state_->make_plan();
  return state_->plan;
}

TrainResult Trainer::run(TrainEvents& events) { return state_->train(events); }

std::vector<std::vector<std::string>> Trainer::operator_table() const {
  std::vector<std::vector<std::string>> rows;
  double total = 0;
  const std::vector<NodeTimer::Row> sums = state_->timer.by_op();
  for (const NodeTimer::Row& row : sums) total += row.seconds;
  for (const NodeTimer::Row& row : sums) {
    const char* phase = row.phase == Phase::kForward ? "forward" : row.phase == Phase::kBackward ? "backward" : "update";
    const auto fixed = [](double value, int decimals) {
      char text[64];
      std::snprintf(text, sizeof text, "%.*f", decimals, value);
      return std::string(text);
    };
    rows.push_back({row.op, phase, row.backend, std::to_string(row.calls), fixed(row.seconds * 1e3, 2), fixed(total > 0 ? 100 * row.seconds / total : 0, 1)});
  }
  return rows;
}

}  // namespace galley
