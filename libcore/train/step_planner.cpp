#include "libcore/train/step_planner.h"

#include <algorithm>
#include <cmath>

#include "libcore/base/error.h"
#include "libcore/base/log.h"
#include "libcore/base/units.h"
#include "libcore/dist/graph_model.h"
#include "libcore/recipe/schema.h"

namespace galley {
namespace {

constexpr int64_t kMillion = 1'000'000;

/// A session that needs no data: where the text of a vocabulary is missing, the vocabulary of bytes takes its place.
std::unique_ptr<Session> open_session(const Recipe& recipe) {
  try {
    return std::make_unique<Session>(recipe);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInput) throw;
    log(LogLevel::kInfo, cat("the plan does without data: ", error.message()));
    return Session::without_data(recipe);
  }
}

std::string recompute_text(const Recipe& recipe) {
  if (!recipe.train.recompute) return "null";
  switch (recipe.train.recompute->mode) {
    case RecomputeMode::kFull: return "full";
    case RecomputeMode::kSelective: return "selective";
    case RecomputeMode::kMatch: {
      std::string text;
      for (const std::string& pattern : recipe.train.recompute->match) text += pattern + ",";
      return text;
    }
  }
  return "";
}

std::string wrap_text(const Recipe& recipe) {
  std::string text = recipe.sharding.wrap.parameters.str();
  for (const std::string& pattern : recipe.sharding.wrap.match) text += "," + pattern;
  return text;
}

void set_recompute(Recipe& recipe, const std::string& mode) {
  if (mode == "null") {
    recipe.train.recompute.reset();
    return;
  }
  recipe.train.recompute.emplace();
  recipe.train.recompute->mode = mode == "full" ? RecomputeMode::kFull : RecomputeMode::kSelective;
}

/// none, optimizer, or all states.
void set_offload(Recipe& recipe, const std::string& what, bool to_host) {
  recipe.sharding.offload.reset();
  if (what == "null") return;
  OffloadPlace place;
  place.host = to_host;
  recipe.sharding.offload.emplace();
  recipe.sharding.offload->optimizer = place;
  if (what == "all") recipe.sharding.offload->parameters = recipe.sharding.offload->gradients = place;
}

/// Throws if not even the largest unit is allowed to be gathered.
void check_units(const PlanModel& model, const JobPlan& job) {
  if (!job.gathers() || job.gather_limit == 0) return;
  for (size_t u = 0; u < model.units.size(); ++u) {
    const int64_t bytes = model.largest_part(static_cast<int>(u)) * model.gather_bytes;
    if (bytes <= job.gather_limit) continue;
    throw Error(ErrorCode::kRecipe, cat("'sharding.gather_limit' is ", human_bytes(static_cast<double>(job.gather_limit)),
                                        ", but the unit ", model.units[u].name, " has ", human_bytes(static_cast<double>(bytes))))
        .key("sharding.gather_limit")
        .suggest("use a larger limit, or smaller units (sharding.wrap)");
  }
}

bool shards_units(ShardingStrategy strategy) { return strategy == ShardingStrategy::kFsdp || strategy == ShardingStrategy::kHybrid; }

}  // namespace

StepPlanner::StepPlanner(const Recipe& recipe, int64_t ranks, Cluster cluster, bool measure)
    : recipe_(recipe), ranks_(ranks), cluster_(std::move(cluster)), measure_(measure) {}

StepPlan StepPlanner::plan() { return plan_of(recipe_, {.ranks = ranks_, .measure = measure_}); }

Cluster StepPlanner::cluster_of(int64_t ranks) const {
  if (!cluster_.shared_memory || ranks == ranks_) return cluster_;
  Cluster cluster = cluster_;
  const double factor = static_cast<double>(ranks_) / static_cast<double>(ranks);
  for (double* rate : {&cluster.peak_16, &cluster.peak_32, &cluster.peak_8, &cluster.bandwidth, &cluster.memory, &cluster.host_link})
    *rate *= factor;
  return cluster;
}

std::shared_ptr<const PlanModel> StepPlanner::model_of(const Recipe& recipe, const JobPlan& job, const BatchPlan& batch,
                                                       const Request& request) {
  const std::string key =
      cat(batch.micro, "|", batch.accumulation > 1, "|", request.sequence, "|", request.measure, "|", recompute_text(recipe), "|",
          wrap_text(recipe), "|", static_cast<int>(recipe.precision.reduce), "|", job.mesh.tensor);
  std::shared_ptr<const PlanModel>& model = models_[key];
  if (!model) {
    const std::unique_ptr<Session> session = open_session(recipe);
    PlanModel whole = planned_model(
        *session, {.micro = batch.micro, .accumulation = batch.accumulation, .sequence = request.sequence, .measure = request.measure});
    model = std::make_shared<const PlanModel>(tensor_parallel(whole, job.mesh.tensor));
  }
  return model;
}

StepPlan StepPlanner::plan_of(const Recipe& recipe, const Request& request) {
  StepPlan plan;
  const Cluster cluster = cluster_of(request.ranks);
  plan.ranks = request.ranks;
  plan.job = planned_job(recipe, request.ranks, cluster);
  plan.batch = planned_batch(recipe, plan.job);
  plan.job.micro_batches = plan.batch.accumulation;
  plan.model = model_of(recipe, plan.job, plan.batch, request);
  check_units(*plan.model, plan.job);
  plan.tables = planned_tables(recipe, *plan.model, plan.job, cluster, plan.batch.micro * plan.batch.accumulation);
  if (plan.tables) plan.model = std::make_shared<const PlanModel>(plan.tables->rest);
  plan.simulation = simulate(*plan.model, plan.job, cluster);
  if (plan.tables) add_tables(plan.simulation, plan.tables->plan);
  plan.stages = rank_memory(*plan.model, plan.job, cluster, plan.simulation.cuts);
  plan.peak = peak_bytes(plan.stages);
  if (plan.tables) plan.peak += *std::max_element(plan.tables->plan.rank_bytes.begin(), plan.tables->plan.rank_bytes.end());
  if (request.ranks == 1 && plan.model->exact_bytes > 0) plan.peak = plan.model->exact_bytes;
  plan.fits = plan.peak <= cluster.memory;
  plan.use = utilization(plan.simulation.model_flops, plan.simulation.flops, plan.simulation.step_s, request.ranks,
                         cluster.peak(plan.model->dtype));
  return plan;
}

std::vector<PlanEffect> StepPlanner::effects() {
  std::vector<PlanEffect> effects;
  const auto add = [&](const std::string& key, const std::string& value, int64_t ranks, const std::function<void(Recipe&)>& change) {
    PlanEffect effect{.key = key, .value = value, .plan = std::nullopt, .reason = ""};
    Recipe changed = recipe_;
    change(changed);
    try {
      effect.plan = plan_of(changed, {.ranks = ranks});
    } catch (const Error& error) {
      effect.reason = error.message();
    }
    effects.push_back(std::move(effect));
  };
  add("", "as it is", ranks_, [](Recipe&) {});
  const bool fixed_mesh = recipe_.sharding.mesh.has_value();
  for (const int64_t ranks : {ranks_ / 2, 2 * ranks_}) {
    if (ranks >= 1 && !fixed_mesh) add("--ranks", std::to_string(ranks), ranks, [](Recipe&) {});
  }
  const ShardingStrategy strategy = resolve_strategy(recipe_.sharding, ranks_);
  if (ranks_ > 1 && !fixed_mesh) {
    for (const ShardingStrategy other :
         {ShardingStrategy::kDdp, ShardingStrategy::kZero1, ShardingStrategy::kZero2, ShardingStrategy::kFsdp}) {
      if (other != strategy)
        add("sharding.strategy", std::string(name_of(other)), ranks_, [other](Recipe& r) { r.sharding.strategy = other; });
    }
  }
  if (shards_units(strategy)) {
    for (const int64_t millions : {1, 10, 25, 100, 400}) {
      add("sharding.wrap", cat(millions, "M"), ranks_, [millions](Recipe& r) {
        r.sharding.wrap = WrapSection();
        r.sharding.wrap.parameters.count = millions * kMillion;
      });
    }
    const bool reshard = recipe_.sharding.reshard_after_forward;
    add("sharding.reshard_after_forward", reshard ? "false" : "true", ranks_,
        [reshard](Recipe& r) { r.sharding.reshard_after_forward = !reshard; });
  }
  for (const char* mode : {"null", "selective", "full"}) {
    if (recompute_text(recipe_) != mode) add("train.recompute", mode, ranks_, [mode](Recipe& r) { set_recompute(r, mode); });
  }
  const bool host = !cluster_.shared_memory;
  for (const char* what : {"optimizer", "all"})
    add("sharding.offload", cat(what, host ? " to host" : " to disk"), ranks_, [what, host](Recipe& r) { set_offload(r, what, host); });
  if (ranks_ > 1) {
    for (const HookType hook : {HookType::kBf16}) {
      if (!recipe_.sharding.hook) add("sharding.hook", "bf16", ranks_, [hook](Recipe& r) { r.sharding.hook.emplace().type = hook; });
    }
  }
  return effects;
}

PlanLimits StepPlanner::limits() {
  PlanLimits limits;
  const JobPlan job = planned_job(recipe_, ranks_, cluster_of(ranks_));
  const int64_t readers = job.mesh.data * job.mesh.shard;
  // Activations grow with the micro-batch: double until it does not fit, then halve the interval.
  const auto fits = [&](int64_t micro, int64_t sequence) {
    Recipe changed = recipe_;
    if (micro > 0) {
      changed.train.batch->micro.count = micro;
      changed.train.batch->global = micro * readers;
    }
    return plan_of(changed, {.ranks = ranks_, .sequence = sequence}).fits;
  };
  const auto search = [&](int64_t most, const std::function<bool(int64_t)>& good) -> std::optional<int64_t> {
    int64_t low = 0, high = 1;
    while (high <= most && good(high)) {
      low = high;
      high *= 2;
    }
    high = std::min(high, most + 1);
    while (high - low > std::max<int64_t>(1, low / 32)) {  // to 3 %
      const int64_t middle = low + (high - low) / 2;
      (good(middle) ? low : high) = middle;
    }
    return low > 0 ? std::optional(low) : std::nullopt;
  };
  limits.micro = search(1 << 20, [&](int64_t micro) { return fits(micro, 0); });
  const std::unique_ptr<Session> session = open_session(recipe_);
  const BatchTypes types = session->usual_types(1, true);
  const int64_t tokens = session->tokens_of(types);
  if (tokens == 0 || session->info().input_shape.size() != 1) return limits;
  limits.sequence = search(tokens, [&](int64_t length) { return fits(0, length); });
  limits.sequence_of_model = limits.sequence == tokens;
  return limits;
}

std::optional<FittedPlan> StepPlanner::fit(double bytes, const std::function<void(int64_t, int64_t)>& progress) {
  std::vector<ShardingStrategy> strategies{resolve_strategy(recipe_.sharding, ranks_)};
  if (!recipe_.sharding.mesh && ranks_ > 1) {
    strategies = {ShardingStrategy::kDdp, ShardingStrategy::kZero1, ShardingStrategy::kZero2, ShardingStrategy::kFsdp};
    if (ranks_ > cluster_.per_node && ranks_ % cluster_.per_node == 0) strategies.push_back(ShardingStrategy::kHybrid);
  }
  const bool host = !cluster_.shared_memory;
  struct Candidate {
    ShardingStrategy strategy;
    int64_t micro, millions;
    const char *recompute, *offload;
  };
  std::vector<Candidate> candidates;
  for (const ShardingStrategy strategy : strategies) {
    Recipe changed = recipe_;
    changed.sharding.strategy = strategy;
    const JobPlan job = planned_job(changed, ranks_, cluster_of(ranks_));
    const int64_t readers = job.mesh.data * job.mesh.shard;
    const int64_t share = recipe_.train.batch ? recipe_.train.batch->global / readers : 0;
    if (share == 0 || recipe_.train.batch->global % readers != 0) continue;
    std::vector<int64_t> micros{share};
    for (int64_t power = int64_t{1} << 20; power >= 1; power /= 2) {
      if (power < share && share % power == 0) micros.push_back(power);
    }
    for (const int64_t micro : micros) {
      for (const char* recompute : {"null", "selective", "full"}) {
        for (const char* offload : {"null", "optimizer", "all"}) {
          for (const int64_t millions : shards_units(strategy) ? std::vector<int64_t>{100, 10, 1} : std::vector<int64_t>{100})
            candidates.push_back({strategy, micro, millions, recompute, offload});
        }
      }
    }
  }
  std::optional<FittedPlan> best;
  int64_t tried = 0;
  for (const Candidate& candidate : candidates) {
    progress(tried, static_cast<int64_t>(candidates.size()));
    ++tried;
    Recipe changed = recipe_;
    changed.sharding.strategy = candidate.strategy;
    changed.train.batch->micro.count = candidate.micro;
    set_recompute(changed, candidate.recompute);
    set_offload(changed, candidate.offload, host);
    if (shards_units(candidate.strategy)) {
      changed.sharding.wrap = WrapSection();
      changed.sharding.wrap.parameters.count = candidate.millions * kMillion;
    }
    StepPlan plan;
    try {
      plan = plan_of(changed, {.ranks = ranks_});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kRecipe) throw;
      continue;  // these settings do not go together
    }
    if (plan.peak > bytes || (best && plan.simulation.step_s >= best->plan.simulation.step_s * (1 - 1e-9))) continue;
    best = FittedPlan{.plan = std::move(plan), .settings = {}, .fragment = "", .tried = 0};
    best->settings = {{"train.batch.micro", std::to_string(candidate.micro)},
                      {"train.recompute", candidate.recompute},
                      {"sharding.strategy", std::string(name_of(candidate.strategy))}};
    if (shards_units(candidate.strategy)) best->settings.emplace_back("sharding.wrap", cat(candidate.millions, "M"));
    const std::string place = host ? "host" : "disk", what = candidate.offload;
    const std::string offload = what == "null"        ? "null"
                                : what == "optimizer" ? cat("{optimizer: ", place, "}")
                                                      : cat("{parameters: ", place, ", gradients: ", place, ", optimizer: ", place, "}");
    best->settings.emplace_back("sharding.offload", offload);
  }
  if (!best) return best;
  best->tried = tried;
  std::string sharding;
  for (const auto& [key, value] : best->settings) {
    if (key.starts_with("sharding.")) sharding += cat(sharding.empty() ? "" : ", ", key.substr(9), ": ", value);
  }
  best->fragment = cat("train: {batch: {micro: ", best->settings[0].second, "}, recompute: ", best->settings[1].second, "}\nsharding: {",
                       sharding, "}\n");
  return best;
}

}  // namespace galley
