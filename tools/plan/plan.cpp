#include "tools/plan/plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "libcore/base/cores.h"
#include "libcore/base/counted.h"
#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/parallel.h"
#include "libcore/base/units.h"
#include "libcore/dist/published.h"
#include "libcore/profiler/trace.h"
#include "libcore/recipe/schema.h"
#include "tools/common/progress.h"
#include "tools/common/recipe_json.h"
#include "tools/common/signals.h"
#include "tools/plan/report.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string known_clusters() {
  std::string names = "local";
  for (const std::string_view name : built_in_clusters()) names += cat(", ", name);
  return names;
}

/// The cluster of a file. Errors have exit code 3 and the place of the key.
Cluster read_cluster(const std::string& path) {
  const auto source = std::make_shared<TextSource>(TextSource{path, read_file(path)});
  const YamlNode tree = parse_yaml(source);
  if (!tree.is_map())
    throw Error(ErrorCode::kRecipe, "does not have the keys of a cluster")
        .at({.file = path})
        .suggest("write at least a device model, e.g. gpu: h100_sxm");
  ClusterOptions options;
  read_options(tree, options);
  try {
    return make_cluster(options, path);
  } catch (Error& error) {
    const YamlNode::Entry* entry = tree.entry(error.key());
    throw entry != nullptr ? entry->value.place.mark(error) : error;
  }
}

/// Why a plan does not fit.
std::string excess_text(const StepPlan& plan, const Cluster& cluster) {
  if (plan.peak <= cluster.memory)
    return cat("the ranks of a node offload ", human_bytes(plan.host), ", but a host of ", cluster.name, " has ",
               human_bytes(cluster.host_memory), "; divide the states among more ranks");
  return cat("a rank needs ", human_bytes(plan.peak), " (", largest_part(plan), "), but a device of ", cluster.name, " has ",
             human_bytes(cluster.memory), "; --fit ",
             cluster.memory >= (1 << 30) ? ByteSize(static_cast<int64_t>(cluster.memory) >> 30 << 30).str() : "SIZE",
             " searches settings that fit");
}

bool stop_requested() { return stop_signal() != 0; }

std::string limit_text(const PlanLimits& limits) {
  std::string text = limits.micro ? cat("largest micro-batch that fits: ", *limits.micro) : "not even one sample fits";
  if (limits.sequence)
    text += cat("; longest sequence: ", *limits.sequence, " tokens", limits.sequence_of_model ? " (the model reads no more)" : "");
  return text + "\n";
}

}  // namespace

/// What a run found.
struct PlanTool::Outcome {
  std::optional<StepPlan> plan;
  std::vector<PlanEffect> effects;
  std::optional<PlanLimits> limits;
  std::optional<PlanSearch> search;
  std::optional<MeasuredStep> measured;
  Cluster cluster;
  bool fitted() const { return search && search->best; }
};

void PlanTool::add_options(Command& command) {
  RecipeTool::add_options(command);
  command.option("RECIPE").description(
      "a recipe file, a built-in name, a RUN folder, or - for standard input; then overrides: key=value, key+=value. Or: published (runs "
      "of "
      "others against the simulator), clusters (built-in clusters and their sources)");
  command.add_option("--ranks", ranks_, "number of ranks").in_range(1, 1 << 20).group("Cluster").take_last();
  command.add_option("--cluster", cluster_, cat("a cluster file, or ", known_clusters())).type_name("FILE").group("Cluster").take_last();
  command
      .add_option("--fit", fit_,
                  "search micro-batch, recomputation, strategy, stages, tensor degree, wrap size and offload for the fastest step in this "
                  "memory")
      .type_name("SIZE")
      .group("Plan")
      .take_last();
  command
      .add_flag("--effects", effects_,
                "what changes would do: ranks, strategy, wrap size, offload, recomputation; and the limits of batch and sequence")
      .group("Plan");
  command
      .add_option("--validate", validate_,
                  cat("run so many steps of one rank's share on this machine (at least ", kMeasuredRuns, "), and compare"))
      .type_name("STEPS")
      .in_range(1, 1000000)
      .group("Plan")
      .take_last();
  command.add_option("--html", html_, "write a page with timeline, memory and tables").type_name("FILE").group("Output").take_last();
  command.add_option("--trace", trace_, "write the timeline as a trace for Perfetto; compressed if the name ends in .gz")
      .type_name("FILE")
      .group("Output")
      .take_last();
}

void PlanTool::check_options() const {
  if (!output_.empty() && fit_.empty())
    throw Error(ErrorCode::kUsage, "-o is only for --fit: it writes the settings that were found")
        .suggest("use --save json:FILE for the result");
  if (validate_ > 0 && !local())
    throw Error(ErrorCode::kUsage, cat("--validate runs on this machine, not on ", cluster_)).suggest("remove --cluster");
  if (validate_ > 0 && !fit_.empty())
    throw Error(ErrorCode::kUsage, "--validate and --fit do not go together").suggest("use one after the other");
}

void PlanTool::refuse_plan_options(const std::string& verb) const {
  const std::pair<const char*, bool> options[] = {
      {"--cluster", cluster_ != "local"}, {"--ranks", ranks_ != 1},    {"--fit", !fit_.empty()},
      {"-o", !output_.empty()},           {"--effects", effects_},     {"--validate", validate_ > 0},
      {"--html", !html_.empty()},         {"--trace", !trace_.empty()}};
  for (const auto& [option, given] : options) {
    if (given) throw Error(ErrorCode::kUsage, cat(option, " does not apply to '", verb, "'")).suggest("give a recipe to plan");
  }
}

int PlanTool::run() {
  std::vector<std::string> recipes, given;
  split_arguments(words_, recipes, given);
  for (const std::string& word : recipes) {
    if (recipes.size() > 1 && (word == "published" || word == "clusters"))
      throw Error(ErrorCode::kUsage, cat("'", word, "' takes no other word")).suggest(cat("galley-plan ", word));
  }
  const std::string verb = recipes.size() == 1 ? recipes.front() : "";
  if (verb == "published" || verb == "clusters") {
    if (!given.empty()) throw Error(ErrorCode::kUsage, cat("'", verb, "' takes no recipe and no override '", given.front(), "'"));
    refuse_plan_options(verb);
    check_outputs({});
    return verb == "published" ? print_published() : print_clusters();
  }
  check_options();
  if (!local()) {  // graphs are captured here; the cluster says which device runs them
    std::erase_if(words_, [](const std::string& word) { return word.starts_with("device="); });
    device_.clear();
    overrides_.push_back("device=cpu");
  }
  return RecipeTool::run();
}

Cluster PlanTool::cluster() const {
  if (local()) return local_cluster(local_rates(compute_threads()), ranks_);
  if (const std::optional<Cluster> found = find_cluster(cluster_)) return *found;
  if (!file_exists(cluster_)) {
    std::vector<std::string> names{"local"};
    for (const std::string_view name : built_in_clusters()) names.emplace_back(name);
    const std::string near = nearest(cluster_, names);
    throw Error(ErrorCode::kUsage, cat("--cluster ", cluster_, " is neither a file nor a built-in cluster (", known_clusters(), ")"))
        .suggest(near.empty() ? "galley-plan clusters describes them" : cat("did you mean '", near, "'?"));
  }
  return read_cluster(cluster_);
}

int64_t PlanTool::memory_to_fit() const {
  const int64_t bytes = [&] {
    try {
      return parse_bytes(fit_);
    } catch (const Error& error) {
      throw Error(ErrorCode::kUsage, cat("--fit: ", error.message())).suggest("write a size with a unit, e.g. --fit 40GiB");
    }
  }();
  const bool unit = fit_.find_first_not_of("0123456789.") != std::string::npos;
  if (!unit && bytes < (1 << 20))
    throw Error(ErrorCode::kUsage, cat("--fit ", fit_, " is ", counted(bytes, "byte"))).suggest("write a unit, e.g. --fit 40GiB");
  return bytes;
}

StepMeasuring PlanTool::measuring(const Cluster& cluster) const {
  if (!local() || dry_run_) return {};
  const auto may_run = [&cluster](int64_t bytes) {
    const auto size = static_cast<double>(bytes);
    const bool fits = size <= cluster.memory;
    log(fits ? LogLevel::kInfo : LogLevel::kWarning,
        fits ? cat("measuring steps of one rank on this machine: about 10 s, at least three steps, ", human_bytes(size),
                   "; --dry-run estimates instead")
             : cat("a step needs ", human_bytes(size), ", but this machine has ", human_bytes(cluster.memory),
                   ": its time is estimated, not measured"));
    return fits;
  };
  return {.runs = std::max(kMeasuredRuns, validate_), .may_run = may_run, .stop = stop_requested};
}

void PlanTool::find(const Recipe& recipe, StepPlanner& planner, Outcome& outcome) const {
  if (!fit_.empty()) {
    Progress progress(common.progress);
    const double bytes = static_cast<double>(memory_to_fit());
    outcome.search = planner.fit(bytes, [&](int64_t done, int64_t all) {
      progress.update(static_cast<double>(done) / static_cast<double>(all), cat("candidate ", done, "/", all),
                      Json{{"candidate", done}, {"candidates", all}}.dump());
      return !stop_requested();
    });
    progress.clear();
  }
  outcome.plan = outcome.fitted() ? outcome.search->best->plan : planner.plan();
  if (stop_requested()) return;
  if (effects_) {
    outcome.effects = planner.effects();
    outcome.limits = planner.limits();
  }
  if (validate_ > 0 && planner.measured()) {
    const bool same = outcome.plan->batch.accumulation == 1;
    outcome.measured =
        same ? *planner.measured() : measured_step(recipe, outcome.plan->batch, {.runs = validate_, .may_run = {}, .stop = stop_requested});
  }
}

void PlanTool::note_host(const Recipe& recipe) const {
  if (!local() || !recipe.sharding.offload) return;
  for (const auto& [key, place] :
       {std::pair("parameters", recipe.sharding.offload->parameters), std::pair("gradients", recipe.sharding.offload->gradients),
        std::pair("optimizer", recipe.sharding.offload->optimizer)}) {
    if (place && place->host)
      log(LogLevel::kWarning, cat("sharding.offload.", key, ": host changes nothing on a CPU, whose memory it is; disk does"));
  }
}

int PlanTool::run_recipe(LoadedRecipe& loaded) {
  Recipe& recipe = loaded.recipe;
  if (!dry_run_) check_outputs({output_, html_, trace_});
  make_paths_absolute(recipe);
  warn_unused_sharding(loaded);
  // Ranks of this machine share its threads.
  if (local() && ranks_ > 1) {
    recipe.threads.count = std::max<int64_t>(1, recipe.threads.value_or(available_cores()) / ranks_);
  }
  Outcome outcome;
  outcome.cluster = cluster();
  if (local()) set_compute_threads(static_cast<int>(recipe.threads.value_or(available_cores())));
  note_host(recipe);
  StepPlanner planner(recipe, ranks_, outcome.cluster, measuring(outcome.cluster));
  find(recipe, planner, outcome);
  if (stop_requested()) return 128 + stop_signal();
  const bool missed = !fit_.empty() && !outcome.fitted();
  if (missed) log(LogLevel::kWarning, cat("no settings need at most ", fit_, " on each rank; the plan is that of the recipe"));
  if (!missed && !outcome.plan->fits) log(LogLevel::kWarning, excess_text(*outcome.plan, outcome.cluster));
  if (!dry_run_) {
    if (!output_.empty() && outcome.fitted())
      write_file(output_, cat("# Found by galley-plan --fit ", fit_, ".\n", outcome.search->best->fragment));
    if (!trace_.empty()) write_maybe_gzip(trace_, plan_trace(*outcome.plan));
  }
  print_outcome(recipe, outcome);
  return missed ? kExitGoalMissed : kExitDone;
}

Json PlanTool::json(const Recipe& recipe, const Outcome& outcome) const {
  Json json = plan_json(*outcome.plan, outcome.cluster);
  json["recipe"] = recipe.name.empty() ? recipe_ : recipe.name;
  json["validated"] = nullptr;
  if (outcome.measured)
    json["validated"] = {{"step_ms", outcome.measured->step_s * 1e3},
                         {"fastest_step_ms", outcome.measured->fastest_s * 1e3},
                         {"arena_bytes", outcome.measured->arena_bytes},
                         {"planned_arena_bytes", outcome.measured->planned_arena_bytes},
                         {"peak_bytes", outcome.measured->peak_bytes},
                         {"steps", outcome.plan->batch.accumulation == 1 ? std::max(kMeasuredRuns, validate_) : validate_},
                         {"predicted_step_ms", outcome.plan->simulation.compute_s * 1e3}};
  if (outcome.limits) {
    json["effects"] = effects_json(outcome.effects);
    const auto value = [](const std::optional<int64_t>& number) { return number ? Json(*number) : Json(); };
    json["limits"] = {{"micro", value(outcome.limits->micro)}, {"sequence", value(outcome.limits->sequence)}};
  }
  if (!fit_.empty()) {
    json["fit"] = nullptr;
    if (outcome.fitted())
      json["fit"] = {{"bytes", parse_bytes(fit_)},
                     {"tried", outcome.search->candidates},
                     {"settings", settings_json(outcome.search->best->settings)},
                     {"not_trained", outcome.search->best->not_trained.empty() ? Json() : Json(outcome.search->best->not_trained)}};
    json["rejected"] = rejected_json(outcome.search->rejected);
  }
  json["provenance"] = provenance_json(provenance(recipe, dump_recipe(recipe, DumpKind::kFull)));
  return json;
}

void PlanTool::print_outcome(const Recipe& recipe, const Outcome& outcome) const {
  const StepPlan& plan = *outcome.plan;
  const Json json = this->json(recipe, outcome);
  const auto rows = [&](Format format) { return render(memory_table(plan), format); };
  if (!html_.empty() && !dry_run_) {
    Json page = json;
    page["timeline"] = timeline_json(plan);
    write_file(html_, plan_page(json["recipe"].get<std::string>(), page.dump()));
  }
  for (const auto& [format, file] : common.save) write_file(file, format == Format::kJson ? json.dump() + "\n" : rows(format));
  if (common.format == Format::kJson) {
    print(json.dump() + "\n");
    return;
  }
  if (common.format != Format::kTable) {
    print(rows(common.format));
    return;
  }
  std::string text = render(summary_table(plan, outcome.cluster), Format::kTable) + "\n" + render(memory_table(plan), Format::kTable);
  if (plan.stages.size() > 1) text += "\n" + render(stages_table(plan), Format::kTable);
  if (plan.tables) text += "\n" + render(tables_table(plan), Format::kTable);
  if (outcome.fitted()) {
    text += cat("\nfastest of ", outcome.search->candidates, " candidates in ", fit_, ":\n");
    if (const std::string& reason = outcome.search->best->not_trained; !reason.empty())
      text += cat("  galley-train cannot train this yet: ", reason, "\n");
    for (const auto& [key, value] : outcome.search->best->settings) text += cat("  ", key, ": ", value, "\n");
  }
  if (outcome.search) text += "\n" + render(rejected_table(outcome.search->rejected), Format::kTable);
  if (outcome.limits) text += cat("\n", render(effects_table(outcome.effects), Format::kTable), "\n", limit_text(*outcome.limits));
  if (outcome.measured) {
    const MeasuredStep& measured = *outcome.measured;
    text += cat("\nmeasured: ", human_seconds(measured.step_s), " per step of one rank's share (fastest ",
                human_seconds(measured.fastest_s), "), predicted ", human_seconds(plan.simulation.compute_s), " (",
                fixed(100 * (plan.simulation.compute_s / measured.step_s - 1), 1), " %); scratch memory ",
                human_bytes(static_cast<double>(measured.arena_bytes)), ", planned ",
                human_bytes(static_cast<double>(measured.planned_arena_bytes)), "; resident ",
                human_bytes(static_cast<double>(measured.peak_bytes)), ", planned ", human_bytes(plan.peak), "\n");
  }
  print(text);
}

int PlanTool::print_published() const {
  Table table{{"source", "run", "published", "predicted", "ratio", "memory, GiB", "predicted", "ratio", "MFU", "HFU", "assumptions"}, {}};
  Json rows = Json::array();
  int64_t within = 0;
  std::string findings;
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  for (const PublishedRun& run : published_runs()) {
    const PublishedRow row = predict(run);
    within += row.ratio() >= 0.8 && row.ratio() <= 1.2;
    const bool memory = run.memory > 0;
    table.rows.push_back({run.source, run.name, cat(human_number(run.published), " ", run.unit), human_number(row.predicted),
                          fixed(row.ratio(), 2), memory ? fixed(run.memory / kGiB, 1) : "",
                          memory ? fixed(row.predicted_memory / kGiB, 1) : "", memory ? fixed(row.memory_ratio(), 2) : "",
                          fixed(100 * row.mfu, 1), fixed(100 * row.hfu, 1), run.assumptions});
    if (!row.fits)
      findings += cat(run.name, ": does not fit as published: a rank needs ", human_bytes(row.predicted_memory), " of ",
                      human_bytes(run.cluster.memory), ", ", human_bytes(row.kept_memory),
                      " of it activations that wait for the backward pass (with full recomputation: inputs of layers)\n");
    rows.push_back({{"source", run.source},
                    {"run", run.name},
                    {"unit", run.unit},
                    {"published", run.published},
                    {"predicted", row.predicted},
                    {"ratio", row.ratio()},
                    {"published_bytes", memory ? Json(run.memory) : Json()},
                    {"predicted_bytes", row.predicted_memory},
                    {"kept_bytes", row.kept_memory},
                    {"memory_bytes", run.cluster.memory},
                    {"fits", row.fits},
                    {"mfu", row.mfu},
                    {"hfu", row.hfu},
                    {"assumptions", run.assumptions}});
  }
  const Json json{{"rows", rows},
                  {"within_20_percent", within},
                  {"provenance", provenance_json({.tool = name(), .recipe_sha256 = "", .overrides = {}})}};
  save_and_print(json.dump() + "\n", table);
  if (common.format == Format::kTable && !findings.empty()) print("\n" + findings);
  return kExitDone;
}

int PlanTool::print_clusters() const {
  Json list = Json::array();
  std::vector<Table> tables;
  for (const std::string_view name : built_in_clusters()) {
    const Cluster cluster = *find_cluster(name);
    tables.push_back(cluster_table(cluster));
    Json facts = Json::array();
    for (const ClusterFact& fact : cluster_facts(cluster))
      facts.push_back({{"name", fact.name}, {"value", fact.value}, {"source", fact.source}});
    list.push_back({{"name", name}, {"facts", facts}});
  }
  const Json json{{"clusters", list}, {"provenance", provenance_json({.tool = name(), .recipe_sha256 = "", .overrides = {}})}};
  const auto text = [&](Format format) {
    if (format == Format::kJson) return json.dump() + "\n";
    std::string all;
    for (const Table& table : tables) all += cat(all.empty() ? "" : "\n", render(table, format));
    return all;
  };
  for (const auto& [format, file] : common.save) write_file(file, text(format));
  print(text(common.format));
  return kExitDone;
}

std::vector<std::string> PlanTool::complete(const std::vector<std::string>& words) const {
  const std::string word = words.empty() ? "" : words.back();
  if (words.size() >= 2 && words[words.size() - 2] == "--cluster") {
    std::vector<std::string> found;
    for (const std::string& name : {std::string("local")})
      if (name.starts_with(word)) found.push_back(name);
    for (const std::string_view name : built_in_clusters()) {
      if (name.starts_with(word)) found.emplace_back(name);
    }
    return found;
  }
  std::vector<std::string> found = RecipeTool::complete(words);
  for (const char* verb : {"published", "clusters"}) {
    if (words.size() <= 1 && std::string_view(verb).starts_with(word)) found.emplace_back(verb);
  }
  return found;
}

}  // namespace galley::tools
