#include "libcore/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/resident_memory.h"
#include "libcore/base/units.h"
#include "libcore/comm/shared.h"
#include "libcore/infer/generate.h"
#include "libcore/text/tokenizer.h"
#include "libcore/train/trainer_state.h"
#include "libcore/weights/load.h"

namespace galley {
namespace {

/// The TensorBoard curves of a step.
std::vector<std::pair<std::string, double>> curves_of(const TrainRow& row) {
  std::vector<std::pair<std::string, double>> curves{
      {"train/loss", row.loss}, {"train/lr", row.lr}, {"train/grad_norm", row.grad_norm}, {"train/samples_per_s", row.samples_per_s}};
  if (row.loss_scale) curves.emplace_back("train/loss_scale", *row.loss_scale);
  for (const auto& [name, part] : row.losses) curves.emplace_back("train/loss/" + name, part);
  return curves;
}

}  // namespace

/// Restores the newest checkpoint, or loads the initial values. Before memory for a step is allocated, so that files and steps do not need
/// memory at the same time, and before RUN changes, so that unsuitable weights change nothing. Returns whether the run continues.
bool Trainer::State::load_state() {
  const std::string saved = options.run + "/checkpoints";
  std::optional<Checkpoint> found;
  if (!options.force && recipe.checkpoint && file_exists(saved)) {
    CheckpointStore checkpoints(saved, keep());
    if (writes()) checkpoints.remove_stale();
    agreed("checkpoints", 0);  // other ranks read what is left
    found = checkpoints.newest(rank_count() > 1 ? options.ranks : nullptr);
  }
  if (found) {
    restore(*found);
  } else {
    update->initialize();
  }
  return found.has_value();
}

/// Gives programs scratch memory that other ranks reach: of arrays in it collectives make no copies.
void Trainer::State::share_scratch() {
  if (!shares_scratch()) return;
  const LongTask reserving(options.ranks->position());
  auto [arena, common] = arena_bytes();
  const int64_t page = kHugePage, bytes = (agreed("scratch", arena) + page - 1) / page * page;
  std::shared_ptr<std::byte> memory = options.ranks->allocate(bytes);
  use_huge_pages(memory.get(), bytes);
  engine->arena()->adopt(std::move(memory), bytes);
  common = agreed("scratch", common);
  if (common == 0) return;
  if (std::shared_ptr<std::byte> gathered = options.ranks->allocate_common(common)) {
    if (writes()) use_huge_pages(gathered.get(), common);
    engine->arena()->adopt_common(std::move(gathered), common);
  }
}

void Trainer::State::start(TrainEvents& events) {
  if (writes() && is_folder(options.run)) run_lock = std::make_unique<FolderLock>(options.run);
  const bool continues = load_state();
  share_scratch();
  update->bind();
  update->weigh_with([this] { return (delivered_by != nullptr ? delivered_by : loader.get())->share(); });
  update->reload_with([this](int64_t first) -> const Batch& {
    reloader = open_loader(positions.at(first));
    const Batch* data = reloader->next();
    GALLEY_ASSERT(data != nullptr && data->first == first, "the batch at ", first, " was not loaded again");
    return *data;
  });
  update->feed_ahead([this](int64_t following) {
    before_next = {loader->position(), own_skipped(), own_irregular()};
    return length.total_steps == 0 || following <= length.total_steps;
  });
  update->name_samples_with([this](int64_t index) { return loader->source().sample_name(index); });
  for (Evaluator* each : {evaluator.get(), float_evaluator.get()}) {
    if (each != nullptr) each->bind(recipe.train.ema ? ".ema" : "");
  }
  if (!shares_scratch()) engine->arena()->reserve(arena_bytes().first);
  if (disk != nullptr) disk->release();
  agreed("loaded", 0);  // rank 0 changes RUN when all ranks have read it
  RunFolder folder(options.run, writes());
  if (writes() && run_lock == nullptr) run_lock = std::make_unique<FolderLock>(options.run);
  if (writes()) remove_stale_temporaries(folder.path());  // left by killed processes
  if (options.force && writes()) {
    remove_tree(folder.file("checkpoints"));
    for (const char* name : {"metrics.jsonl", "result.json", "weights.safetensors", "weights_ema.safetensors", "weights_best.safetensors",
                             "stats.calib", "stats_ema.calib", "stats_best.calib"})
      remove_tree(folder.file(name));
    remove_tree(folder.file("tensorboard"));
    remove_tree(folder.file("adapter"));
  }
  if (continues) {
    events.resumed(step);
  } else {
    nlohmann::ordered_json files = nlohmann::ordered_json::array();
    for (size_t i = 0; i < recipe.weights.load.size(); ++i) {
      for (const WeightsParent& parent : weights_parents(recipe.weights.load.at<WeightSource>(i).path()))
        files.push_back({{"file", parent.file}, {"digest", parent.digest}});
    }
    if (!files.empty()) parents = files.dump();
  }
  best.metric = best_metric();
  if (recipe.train.early_stop) stopping.metric = recipe.train.early_stop->metric;
  plan.start_step = step;
  folder.truncate_after(step);
  if (writes()) remove_tree(folder.file("result.json"));
  folder.write_text("recipe.yaml", recipe_text);
  if (step > 0) open_loaders(consumed);
}

TrainRow Trainer::State::one_step(NodeObserver* watcher) {
  const auto began = Clock::now();
  ++step;
  before_next.reset();
  std::erase_if(positions, [this](const auto& entry) { return entry.second < consumed; });
  size_t replica = 0;  // of this rank, with deterministic
  const auto next = [&]() -> const Batch& {
    DataLoader& from = replica == 0 ? *loader : *replica_loaders[replica - 1];
    if (replicas > 0) ++replica;
    const int64_t position = from.position();
    const Batch* data = from.next();
    delivered_by = &from;
    GALLEY_ASSERT(data != nullptr, "the loader ended, although it should repeat the data");
    positions[data->first] = position;
    return *data;
  };
  if (options.ranks != nullptr) options.ranks->set_step(step);
  if (time_limit_s > 0) update->set_time_passed(of_rank_0("time", wall_s) / time_limit_s);
  const TrainStep::Outcome outcome = update->run(step, next, watcher != nullptr ? watcher : options.time_operators ? &timer : nullptr);
  consumed = before_next ? before_next->position : loader->position();
  TrainRow row;
  row.step = step;
  row.epoch = epoch_at(step);
  row.samples = step * batch.global;
  row.loss = outcome.loss;
  row.losses = outcome.losses;
  row.lr = update->learning_rate(step);
  row.grad_norm = outcome.grad_norm;
  row.loss_scale = outcome.loss_scale;
  const double seconds = seconds_since(began);
  row.step_ms = seconds * 1e3;
  row.data_ms = outcome.data_s * 1e3;
  row.samples_per_s = static_cast<double>(batch.global) / seconds;
  return row;
}

/// The tokens of train.validate.prompts. Throws Error (kRecipe) if they cannot be continued.
std::vector<std::vector<int64_t>> Trainer::State::prompt_tokens() const {
  std::vector<std::vector<int64_t>> tokens;
  if (!recipe.train.validate || recipe.train.validate->prompts.empty()) return tokens;
  check_language_model(session);
  static_cast<void>(generate_options(recipe));  // its errors
  const int64_t context = session.info().input_shape.front();
  for (const std::string& prompt : recipe.train.validate->prompts) {
    std::vector<int32_t> ids;
    try {
      ids = session.tokenizer()->encode(prompt, {.add_special = true, .name = "train.validate.prompts"});
    } catch (const Error& error) {
      throw Error(ErrorCode::kRecipe, cat("a prompt cannot be continued: ", error.message())).key("train.validate.prompts");
    }
    if (ids.empty() || std::ssize(ids) > context) {
      throw Error(ErrorCode::kRecipe, cat("a prompt has ", ids.size(), " tokens; it needs 1 to ", context)).key("train.validate.prompts");
    }
    tokens.emplace_back(ids.begin(), ids.end());
  }
  return tokens;
}

std::vector<std::pair<std::string, std::string>> Trainer::State::sample_texts() {
  std::vector<std::pair<std::string, std::string>> texts;
  const std::vector<std::vector<int64_t>> prompts = prompt_tokens();
  if (prompts.empty()) return texts;
  LanguageModel model(session, *engine);
  const std::vector<Generation> results = generate(model, prompts, generate_options(recipe));
  for (size_t i = 0; i < prompts.size(); ++i) texts.emplace_back(recipe.train.validate->prompts[i], results[i].text);
  return texts;
}

bool Trainer::State::validate(RunFolder& folder, TrainEvents& events, TensorBoardWriter* board) {
  if (!evaluator || latest_step == step) return false;
  EvalRow row;
  row.step = step;
  row.epoch = epoch_at(step);
  row.split = "val";
  const auto began = Clock::now();
  const bool in_float = float_evaluator && !update->quantized_at(step);
  update->prepare_evaluation(step);
  Evaluator& evaluates = in_float ? *float_evaluator : *evaluator;
  const std::optional<MetricValues> metrics = evaluate(evaluates, events);
  if (!metrics) return true;
  row.metrics = *metrics;
  row.samples = evaluates.samples();
  row.wall_s = seconds_since(began);
  if (writes()) row.texts = sample_texts();
  // The result of the run is a rounded model, so earlier values in float must not count as best.
  if (float_evaluator && !in_float && !update->quantized_at(std::max<int64_t>(1, latest_step))) {
    best.known = false;
    stopping.known = false;
  }
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
    if (recipe.checkpoint && recipe.checkpoint->keep.best) {
      save_weights(folder, "weights_best.safetensors", best.metric.starts_with("ema/"));
    }
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
  return false;
}

Trainer::State::Run::Run(State& state) : folder(state.options.run, state.writes()), wall_before(state.wall_s), first(state.step + 1) {
  const Recipe& recipe = state.recipe;
  if (recipe.log.tensorboard && state.writes()) board = std::make_unique<TensorBoardWriter>(folder.file("tensorboard"), first);
  log_every = std::max(1.0, steps_of(recipe.log.every, state.length));
  validate_every = recipe.train.validate ? steps_of(recipe.train.validate->every, state.length) : 0;
  checkpoint_every = recipe.checkpoint ? steps_of(recipe.checkpoint->every, state.length) : 0;
  saved_at = state.plan.start_step > 0 ? state.plan.start_step : -1;
}

void Trainer::State::log_step(Run& run, const TrainRow& row) {
  run.folder.append(to_json(row));
  if (run.board) run.board->scalars(row.step, curves_of(row));
  run.unlogged.reset();
}

/// Called if an error ends the run: logs the last finished step.
void Trainer::State::end_early(Run& run) {
  wall_s = run.wall_before + seconds_since(run.began);
  if (run.unlogged) log_step(run, TrainRow(*run.unlogged));
}

/// Called if an error ends the run: saves the finished steps, so that the same command continues after them.
void Trainer::State::keep_steps(Run& run, TrainEvents& events) {
  end_early(run);
  // The other ranks are in the middle of a step, and cannot send their state.
  if (!recipe.checkpoint || step < run.first || run.saved_at == step || !writes() || sharded || stages) return;
  events.checkpointed(write_checkpoint(run.folder));
  run.saved_at = step;
}

/// Runs the next step. If its data cannot be read, writes a checkpoint of the finished steps; if its loss is not finite, their result.
TrainRow Trainer::State::checked_step(Run& run, TrainEvents& events) {
  TrainRow row;
  try {
    row = one_step(events.watch(step + 1));
  } catch (const Error& error) {
    --step;
    if (error.code() == ErrorCode::kWorker) {  // another rank failed in the middle of the step: parameters are of no step
      end_early(run);
      throw;
    }
    if (error.code() != ErrorCode::kNumeric) {
      keep_steps(run, events);
      throw;
    }
    end_early(run);
    run.result.stopped = "nan";
    write_result(run);
    throw;
  }
  row.peak_bytes = engine->peak_bytes();
  wall_s = run.wall_before + seconds_since(run.began);
  return row;
}

void Trainer::State::validate_or_keep(Run& run, TrainEvents& events) {
  try {
    validate(run.folder, events, run.board.get());
  } catch (const Error&) {
    keep_steps(run, events);
    throw;
  }
}

void Trainer::State::report_step(Run& run, TrainEvents& events, const TrainRow& row, bool log) {
  run.result.losses = row.losses;
  if (log) {
    log_step(run, row);
  } else {
    run.unlogged = row;
  }
  const bool by_steps = length.total_steps > 0;
  const double fraction =
      by_steps ? static_cast<double>(step) / static_cast<double>(length.total_steps) : std::min(1.0, wall_s / time_limit_s);
  const double done_here = static_cast<double>(step - run.first + 1);
  const double eta = by_steps ? (wall_s - run.wall_before) / done_here * static_cast<double>(length.total_steps - step)
                              : std::max(0.0, time_limit_s - wall_s);
  events.stepped(row, fraction, eta, log);
}

bool Trainer::State::stops_early(bool final_step) const {
  if (!recipe.train.early_stop || !stopping.known || final_step) return false;
  return latest_step == step && static_cast<double>(step - stopping_since) >= steps_of(recipe.train.early_stop->patience, length);
}

TrainResult Trainer::State::train(TrainEvents& events) {
  make_plan();
  start(events);
  events.planned(plan);
  Run run(*this);
  TrainResult& result = run.result;
  while (length.total_steps == 0 || step < length.total_steps) {
    const TrainRow row = checked_step(run, events);
    const bool out_of_time = time_limit_s > 0 && of_rank_0("time", wall_s) >= time_limit_s;
    int signal = asked_to_stop(events);
    const bool final_step = step == length.total_steps || out_of_time;
    report_step(run, events, row, step == run.first || final_step || signal != 0 || step_due(step, run.log_every));
    if (final_step || (signal == 0 && run.validate_every > 0 && step_due(step, run.validate_every))) validate_or_keep(run, events);
    signal = asked_to_stop(events);
    const bool stop_early = stops_early(final_step);
    const bool asked = agreed("checkpoint request", events.take_checkpoint_request()) != 0;
    wall_s = run.wall_before + seconds_since(run.began);
    if (recipe.checkpoint && (asked || signal != 0 || final_step || stop_early || step_due(step, run.checkpoint_every)) &&
        run.saved_at != step) {
      events.checkpointed(save(run.folder));
      run.saved_at = step;
    }
    if (signal != 0 || stop_early) result.stopped = signal != 0 ? "signal" : "early_stop";
    if (signal != 0 || stop_early || out_of_time) break;
  }
  wall_s = run.wall_before + seconds_since(run.began);
  result.session_s = wall_s - run.wall_before;
  if (result.stopped == "done" && validate(run.folder, events, run.board.get()))
    result.stopped = "signal";  // of a run that ended before it
  if (result.stopped != "signal") {
    save_weights(run.folder, "weights.safetensors", false);
    if (session.lora()) save_adapter(run.folder);
    if (recipe.train.ema) save_weights(run.folder, "weights_ema.safetensors", true);
  }
  if (result.stopped != "signal" || !recipe.checkpoint) write_result(run);
  if (result.stopped == "signal") {
    result.steps = step;
    result.wall_s = wall_s;
  }
  return result;
}

Trainer::Trainer(const LoadedRecipe& loaded, std::string recipe_text, TrainerOptions options)
    : state_(std::make_unique<State>(loaded, std::move(recipe_text), std::move(options))) {}
Trainer::~Trainer() {
  for (const std::unique_ptr<DeviceRanks>& group : state_->group_devices) group->release();
  if (state_->devices != nullptr) state_->devices->release();
}

std::optional<TrainResult> Trainer::finished() const {
  state_->check_facts();
  const std::string path = state_->options.run + "/result.json";
  if (state_->options.force || !file_exists(path)) return std::nullopt;
  TrainResult result = parse_result(read_file(path), path);
  return result.stopped == "done" || result.stopped == "early_stop" ? std::optional<TrainResult>(std::move(result)) : std::nullopt;
}

const TrainPlan& Trainer::plan() {
  state_->make_plan();
  return state_->plan;
}

void Trainer::check_weights() {
  state_->make_plan();
  ParameterStore none;
  state_->session.initialize(state_->update->parameters(), none);
}

TrainResult Trainer::run(TrainEvents& events) { return state_->train(events); }

std::vector<std::vector<std::string>> Trainer::operator_table() const {
  std::vector<std::vector<std::string>> rows;
  double total = 0;
  const std::vector<NodeTimer::Row> sums = state_->timer.by_op();
  for (const NodeTimer::Row& row : sums) total += row.seconds;
  for (const NodeTimer::Row& row : sums) {
    const char* phase = row.phase == Phase::kForward ? "forward" : row.phase == Phase::kBackward ? "backward" : "update";
    rows.push_back({row.op, phase, row.backend, std::to_string(row.calls), fixed(row.seconds * 1e3, 2),
                    fixed(total > 0 ? 100 * row.seconds / total : 0, 1)});
  }
  return rows;
}

}  // namespace galley
