#include "tools/train/train.h"

#include <chrono>
#include <cmath>
#include <csignal>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "libcore/base/counted.h"
#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/parallel.h"
#include "libcore/base/units.h"
#include "libcore/comm/local.h"
#include "libcore/profiler/machine_limits.h"
#include "libcore/profiler/trace.h"
#include "libcore/tasks/task.h"
#include "libcore/train/resume.h"
#include "libcore/train/trainer.h"
#include "tools/common/ranks.h"
#include "tools/common/signals.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string metrics_text(const MetricValues& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) text += cat(text.empty() ? "" : "  ", name, " ", metric_text(name, value));
  return text;
}

/// Prints the loop's progress and answers its questions from the process's signals.
class Console : public TrainEvents {
 public:
  Console(const CommonOptions& options, const TrainPlan& plan, std::string run, const ScheduleSection& window)
      : progress_(options.progress),
        quiet_(options.verbosity < 0),
        total_(plan.total_steps),
        rate_(plan.rate),
        per_sample_(static_cast<double>(plan.rate_per_sample)),
        run_(std::move(run)),
        window_(window) {}

  void resumed(int64_t step) override { progress_.milestone(cat("continuing after step ", step)); }
  void stepped(const TrainRow& row, double fraction, double eta_s, bool) override {
    const double data_share = row.step_ms > 0 ? 100 * row.data_ms / row.step_ms : 0;
    std::string line = cat("step ", row.step);
    if (total_ > 0) line += cat("/", total_);
    line += cat("  epoch ", fixed(row.epoch, 2), "  loss ", fixed(row.loss, 4), "  lr ", human_number(row.lr), "  grad_norm ",
                human_number(row.grad_norm), row.loss_scale && !std::isfinite(row.grad_norm) ? " (skipped)" : "", "  mem ",
                human_bytes(static_cast<double>(row.peak_bytes)), "  ", rate_, " ", human_number(per_sample_ * row.samples_per_s),
                "  data ", fixed(data_share, 0), "%  eta ", eta_s > 0 ? human_seconds(eta_s) : "0 s");
    if (watching_) recorded(row);
    progress_.update(fraction, line, to_json(row));
    idle_since_ = std::chrono::steady_clock::now();
  }
  void evaluated(const EvalRow& row) override {
    progress_.milestone(cat("eval step ", row.step, "  epoch ", fixed(row.epoch, 2), "  ", row.split, "  ", metrics_text(row.metrics),
                            "  (", counted(row.samples, "sample"), ", ", human_seconds(row.wall_s), ")"));
    for (const auto& [prompt, text] : row.texts) progress_.milestone(cat("text  ", prompt, text));
    idle_since_ = std::chrono::steady_clock::now();
  }
  void checkpointed(const std::string& folder) override {
    log(LogLevel::kDebug, "checkpoint " + folder);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - idle_since_).count();
    if (!is_ranked() || slow_checkpoint_ || seconds <= kLongCheckpoint) return;
    slow_checkpoint_ = true;
    log(LogLevel::kWarning,
        cat("a checkpoint takes ", fixed(seconds, 1), " s, but mpirun ends its ranks two seconds after a SIGTERM: start it ",
            "with --mca odls_base_sigkill_timeout 60, or end the run by a file RUN/stop"));
  }
  int stop_signal() override { return tools::stop_signal(); }
  bool take_checkpoint_request() override { return tools::take_checkpoint_request(); }
  NodeObserver* watch(int64_t step) override {
    if (!window_ends_ && take_profile_request()) {
      first_kept_ = step + window_.warmup;
      window_ends_ = first_kept_ + window_.active;
    }
    if (!window_ends_) return nullptr;
    if (step == first_kept_) recorder_.clear();
    watching_ = true;
    recorder_.begin_step(step);
    return &recorder_;
  }
  void finish() { progress_.clear(); }

 private:
  /// A watched step has ended; at the window's end, or the run's, the trace is written.
  void recorded(const TrainRow& row) {
    recorder_.end_step(row.peak_bytes);
    watching_ = false;
    if (row.step + 1 < *window_ends_ && row.step != total_) return;
    const std::string file = cat(run_, "/profile-", row.step, ".json.gz");
    write_maybe_gzip(file, make_trace(recorder_.recording(), {.process = "galley-train"}).json);
    progress_.milestone(cat("recorded ", counted(std::ssize(recorder_.recording().steps), "step"), " in ", file));
    recorder_.clear();
    window_ends_.reset();
  }

  static constexpr double kLongCheckpoint = 1.5;  // seconds

  Progress progress_;
  bool quiet_;
  int64_t total_;
  const std::string rate_;
  const double per_sample_;
  std::string run_;
  const ScheduleSection& window_;
  Recorder recorder_;
  std::optional<int64_t> window_ends_;  // the first step that is not watched any more
  int64_t first_kept_ = 0;
  bool watching_ = false;
  std::chrono::steady_clock::time_point idle_since_ = std::chrono::steady_clock::now();  // the end of the last step or evaluation
  bool slow_checkpoint_ = false;                                                         // and that was said
};

/// The events of ranks other than 0, which print nothing. Their signals count.
class Silent : public TrainEvents {
 public:
  void stepped(const TrainRow&, double, double, bool) override {}
  void evaluated(const EvalRow&) override {}
  int stop_signal() override { return tools::stop_signal(); }
  bool take_checkpoint_request() override { return tools::take_checkpoint_request(); }
};

std::string batch_text(const TrainPlan& plan) {
  if (plan.micro_batches) return cat(plan.global, " (", counted(plan.replicas, "micro-batch"), " of ", plan.micro, ")");
  if (plan.replicas > 0) return cat(plan.global, " (", counted(plan.replicas, "logical replica"), " of up to ", plan.micro, ")");
  return plan.accumulation > 1 ? cat(plan.global, " (", plan.accumulation, " passes of ", plan.micro, ")") : cat(plan.global);
}

Json plan_json(const TrainPlan& plan) {
  return {{"global_batch", plan.global},
          {"micro", plan.micro},
          {"accumulation", plan.accumulation},
          {"replicas", plan.replicas},
          {"steps", plan.total_steps},
          {"steps_per_epoch", plan.steps_per_epoch},
          {"params", plan.parameters},
          {"trainable", plan.trainable},
          {"adapters", plan.adapters},
          {"state_bytes", plan.state_bytes},
          {"flops", plan.flops_per_step},
          {"executed_flops", plan.executed_per_step.total()},
          {"persistent_bytes", plan.persistent_bytes},
          {"scratch_bytes", plan.scratch_bytes},
          {"base_bytes", plan.base_bytes},
          {"disk_bytes", plan.disk_bytes},
          {"planned_peak_bytes", plan.planned_peak_bytes},
          {"reorders", plan.reorders},
          {"widened", plan.widened},
          {"attention", plan.attention},
          {"images", plan.images},
          {"compile_s", plan.compile_s}};
}

/// The numbers and texts of an object as rows, for machines: "metrics.top1", 91.5. Neither provenance nor lists.
void add_fields(const Json& json, const std::string& prefix, Table& table) {
  for (const auto& [key, value] : json.items()) {
    if (key == "provenance" || value.is_array()) continue;
    if (value.is_object()) {
      add_fields(value, prefix + key + ".", table);
    } else {
      table.rows.push_back({prefix + key, value.is_string() ? value.get<std::string>() : value.is_null() ? "" : value.dump()});
    }
  }
}

Table fields_table(const std::string& heading, const Json& json) {
  Table table{{heading, "value"}, {}};
  add_fields(json, "", table);
  return table;
}

bool same_folder(const std::string& a, const std::string& b) {
  std::error_code ignored;
  return std::filesystem::weakly_canonical(a, ignored) == std::filesystem::weakly_canonical(b, ignored);
}

}  // namespace

void TrainTool::add_options(Command& command) {
  RecipeTool::add_options(command);
  command.add_flag("-f,--force", force_, "start again, whatever RUN holds").group("Output");
  command.add_option("--simulate-ranks", simulated_ranks_, "train on this number of ranks, as threads of this process")
      .in_range(1, kMostSimulatedRanks)
      .group("Machine")
      .take_last();
}

std::string TrainTool::run_folder(const LoadedRecipe& loaded) const {
  if (!output_.empty()) return output_;
  return !loaded.source.run_folder.empty() ? loaded.source.run_folder : "runs/" + (loaded.recipe.name.empty() ? "run" : loaded.recipe.name);
}

bool TrainTool::takes_run_weights(const LoadedRecipe& loaded) const {
  return RecipeTool::takes_run_weights(loaded) && !same_folder(run_folder(loaded), loaded.source.run_folder);
}

int TrainTool::run_recipe(LoadedRecipe& loaded) {
  const std::string run = run_folder(loaded);
  if (takes_run_weights(loaded) && !loaded.source.changed("weights")) {
    log(LogLevel::kInfo,
        cat("starting from ", loaded.recipe.weights.load.at<WeightSource>(0).from, " (weights=null: from initial values)"));
  }
  make_paths_absolute(loaded.recipe);
  warn_unused_sharding(loaded);
  if (loaded.recipe.sharding.strategy > ShardingStrategy::kNone && !is_ranked() && simulated_ranks_ <= 1) {
    log(LogLevel::kInfo, cat("sharding: ", name_of(loaded.recipe.sharding.strategy), " divides nothing on one rank"));
  }
  const std::string text = dump_recipe(loaded.recipe, DumpKind::kFull);
  bool grown = false;
  if (!force_ && file_exists(run + "/recipe.yaml")) {
    LoadOptions options;
    options.recipes_folder = recipes_folder();
    const LoadedRecipe before = load_recipe(run + "/recipe.yaml", *loaded.recipe.registry, options);
    grown = check_resume(before.recipe, loaded.recipe, run).longer;
  }
  TrainerOptions options;
  options.run = run;
  options.force = force_;
  options.dry_run = dry_run_;
  options.provenance = provenance_json(provenance(loaded.recipe, text)).dump();
  options.time_operators = common.verbose_ops;
  Ranks* job = Ranks::open();
  if (job != nullptr && simulated_ranks_ > 0)
    fail(ErrorCode::kUsage, "--simulate-ranks makes ranks of its own; start it without mpirun or srun");
  if (simulated_ranks_ > 1) return simulate_ranks(loaded, text, options, grown);
  if (job != nullptr) {
    options.ranks = &job->communicator();
    log(LogLevel::kInfo, "ranks       " + job->str());
  }
  return train_rank(loaded, text, options, grown);
}

int TrainTool::simulate_ranks(const LoadedRecipe& loaded, const std::string& text, const TrainerOptions& options, bool grown) {
  const auto count = static_cast<size_t>(simulated_ranks_);
  auto communicators = local_communicators(static_cast<int>(count));
  std::vector<std::exception_ptr> errors(count);
  std::vector<int> codes(count, kExitDone);
  const int share = std::max(1, compute_threads() / static_cast<int>(count));
  const auto rank = [&](size_t r) {
    const SimulatedRank self(static_cast<int>(r));
    const ThreadShare own(share);
    TrainerOptions mine = options;
    mine.ranks = communicators[r].get();
    try {
      codes[r] = train_rank(loaded, text, mine, grown);
    } catch (const std::exception& error) {
      errors[r] = std::current_exception();
      communicators[r]->abort(cat("rank ", r, " failed: ", error.what()));
    }
  };
  log(LogLevel::kInfo, cat("ranks       ", count, ", threads of this process, ", share, share == 1 ? " thread" : " threads", " each"));
  std::vector<std::thread> others;
  for (size_t r = 1; r < count; ++r) others.emplace_back(rank, r);
  rank(0);
  for (std::thread& other : others) other.join();
  // What failed in one rank is reported by the others as its failure: the cause comes first.
  std::exception_ptr cause;
  for (const std::exception_ptr& error : errors) {
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const Error& each) {
      if (!cause || each.code() != ErrorCode::kWorker) cause = error;
      if (each.code() != ErrorCode::kWorker) break;
    } catch (const std::exception&) {
      cause = error;
      break;
    }
  }
  if (cause) std::rethrow_exception(cause);
  return codes.front();
}

int TrainTool::train_rank(const LoadedRecipe& loaded, const std::string& text, const TrainerOptions& options, bool grown) {
  const std::string& run = options.run;
  const bool prints = own_rank() == 0;
  Trainer trainer(loaded, text, options);
  if (const auto result = trainer.finished(); result && !grown && !dry_run_) {
    log(LogLevel::kInfo, cat(run, " is finished already; a longer train.duration continues it, --force starts again"));
    if (prints) print_result(*result, nullptr, run);
    return kExitDone;
  }
  const TrainPlan& plan = trainer.plan();
  if (dry_run_) trainer.check_weights();
  if (common.verbosity > 0) {
    for (const std::string& warning : plan.warnings) log(LogLevel::kWarning, warning);
  }
  if (!plan.warnings.empty()) {
    const bool one = plan.warnings.size() == 1;
    log(LogLevel::kWarning,
        cat(counted(std::ssize(plan.warnings), "operator"), one ? " runs" : " run", " without a fast kernel",
            common.verbosity > 0 ? "" : cat(one ? ": " : ", e.g. ", plan.warnings.front()), "; galley-profile measures what ",
            one ? "it costs" : "they cost", one || common.verbosity > 0 ? "" : "; -v lists all"));
  }
  if (prints) print_plan(plan, run, dry_run_, options.provenance);
  if (dry_run_) return kExitDone;
  if (options.ranks != nullptr) log_ranks_to(run + "/logs");
  if (!prints) {
    Silent silent;
    const std::string stopped = trainer.run(silent).stopped;
    return stopped != "signal" ? kExitDone : loaded.recipe.checkpoint ? kExitResumable : 128 + SIGTERM;
  }
  Console console(common, plan, run, loaded.recipe.profile.schedule);
  const TrainResult result = trainer.run(console);
  console.finish();
  if (common.verbose_ops) {
    std::fputs(render({{"op", "phase", "kernel", "calls", "total_ms", "percent"}, trainer.operator_table()}, Format::kTable).c_str(),
               stderr);
  }
  if (result.stopped == "signal") {
    const bool saved = loaded.recipe.checkpoint.has_value();
    log(LogLevel::kInfo,
        cat("stopped after step ", result.steps,
            saved ? "; the same command continues: " + continuing_command(run) : "; without checkpoints there is nothing to continue"));
    return saved ? kExitResumable : 128 + (stop_signal() != 0 ? stop_signal() : SIGTERM);  // another rank's signal, or RUN/stop
  }
  print_result(result, &plan, run);
  return kExitDone;
}

/// The command that continues a run on as many ranks as now.
std::string TrainTool::continuing_command(const std::string& run) const {
  const Ranks* job = Ranks::open();
  return cat(job != nullptr ? job->launcher() + " " : "", "galley-train ", run,
             simulated_ranks_ > 1 ? cat(" --simulate-ranks ", simulated_ranks_) : "");
}

void TrainTool::print_plan(const TrainPlan& plan, const std::string& run, bool to_stdout, const std::string& provenance_text) const {
  if (to_stdout && common.format == Format::kJson) {
    Json json = plan_json(plan);
    json["provenance"] = Json::parse(provenance_text);
    print(json.dump() + "\n");
    return;
  }
  const auto bytes = [](int64_t n) { return human_bytes(static_cast<double>(n)); };
  if (to_stdout && common.format == Format::kCsv) {
    print(fields_table("plan", plan_json(plan)));
    return;
  }
  std::vector<std::pair<std::string, std::string>> lines{
      {"run", run},
      {"steps", plan.total_steps > 0 ? cat(human_count(plan.total_steps), " (", fixed(plan.steps_per_epoch, 1), " per epoch)")
                                     : "until the time is up"},
      {"batch", batch_text(plan)},
      {"parameters",
       cat(human_count(plan.parameters), plan.trainable != plan.parameters ? cat(" (", human_count(plan.trainable), " trained)") : "")},
      {"work", cat(human_number(plan.flops_per_step / 1e9), " GFLOP per step")},
      {"memory",
       cat(bytes(plan.planned_peak_bytes), " peak = ", bytes(plan.persistent_bytes), " parameters and state + ", bytes(plan.scratch_bytes),
           " activations and workspace + ", bytes(plan.base_bytes), plan.on_host ? " process" : " batches")},
      {"compiled", cat("in ", human_seconds(plan.compile_s), ", ", counted(plan.reorders, "activation reorder"), " per step",
                       plan.widened > 0 ? cat(", ", counted(plan.widened, "operator"), " in f32 between casts") : "")}};
  if (plan.disk_bytes > 0) lines.emplace_back("on disk", bytes(plan.disk_bytes));
  if (plan.adapters > 0)
    lines.emplace_back("adapters",
                       cat("of ", counted(plan.adapters, "linear layer"), "; the optimizer's state has ", bytes(plan.state_bytes)));
  for (const auto& [choice, count] : plan.attention) lines.emplace_back("attention", cat(count, " x ", choice));
  if (!plan.images.empty()) lines.emplace_back("images", plan.images);
  if (to_stdout) {
    Table table{{"plan", ""}, {}};
    for (auto& [key, value] : lines) table.rows.push_back({key, value});
    print(table);
    return;
  }
  for (const auto& [key, value] : lines) log(LogLevel::kInfo, key + std::string(12 - key.size(), ' ') + value);
}

void TrainTool::print_result(const TrainResult& result, const TrainPlan* plan, const std::string& run) const {
  const std::string json = to_json(result) + "\n";
  for (const auto& [format, file] : common.save) {
    if (format == Format::kJson) write_file(file, json);
  }
  if (common.format == Format::kJson) {
    print(json);
    return;
  }
  Json machine_form = Json::parse(json);
  machine_form["weights"] = run + "/weights.safetensors";
  const Table fields = fields_table("result", machine_form);
  Table table{{"result", ""}, {}};
  for (const auto& [name, value] : result.metrics) table.rows.push_back({name, metric_text(name, value)});
  table.rows.push_back({"trained", cat(counted(result.steps, "step"), ", ", fixed(result.epochs, 2), " epochs, ",
                                       human_seconds(result.wall_s), result.stopped == "early_stop" ? " (stopped early)" : "")});
  if (plan != nullptr && result.session_s > 0) {
    // The rate of this process, validation and saving included, against what the processor can do.
    const double rate = static_cast<double>(result.steps - plan->start_step) * static_cast<double>(plan->global) / result.session_s;
    table.rows.push_back({"speed", cat(human_number(rate), " samples/s, validation and saving included")});
    if (plan->on_host) {
      const MachineLimits machine = measure_machine();
      const double least_s = static_cast<double>(result.steps - plan->start_step) * plan->executed_per_step.seconds_at(machine);
      table.rows.push_back({"of the limit", cat(fixed(100 * least_s / result.session_s, 1), " % of ",
                                                limits_text(machine, plan->executed_per_step), ", measured")});
    }
  }
  table.rows.push_back(
      {"memory", cat(human_bytes(static_cast<double>(result.planned_peak_bytes)), " planned, ",
                     human_bytes(static_cast<double>(result.peak_bytes)), " measured (",
                     fixed(result.planned_peak_bytes > 0 ? 100.0 * static_cast<double>(result.peak_bytes - result.planned_peak_bytes) /
                                                               static_cast<double>(result.planned_peak_bytes)
                                                         : 0,
                           1),
                     " %)")});
  if (!result.best.metric.empty())
    table.rows.push_back(
        {"best " + result.best.metric, cat(metric_text(result.best.metric, result.best.value), " at step ", result.best.step)});
  if (result.irregular > 0)
    table.rows.push_back({"irregular", cat(human_count(result.irregular), " samples of irregular files, read in full")});
  if (result.skipped > 0) table.rows.push_back({"skipped", cat(human_count(result.skipped), " damaged samples, replaced by others")});
  table.rows.push_back({"weights", run + "/weights.safetensors"});
  for (const auto& [format, file] : common.save) {
    if (format != Format::kJson) write_file(file, render(format == Format::kCsv ? fields : table, format));
  }
  print(common.format == Format::kCsv ? fields : table);
}

}  // namespace galley::tools
