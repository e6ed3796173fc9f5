#include "libcore/train/step_planner.h"

#include <algorithm>
#include <cmath>

#include "libcore/base/error.h"
#include "libcore/base/log.h"
#include "libcore/base/units.h"
#include "libcore/dist/graph_model.h"
#include "libcore/recipe/schema.h"
#include "libcore/train/rank_refusals.h"

namespace galley {
namespace {

constexpr long kMillion = 1'000'000;

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

/// Searches divide batches by train.batch.micro.
Recipe without_replicas(Recipe recipe) {
  recipe.deterministic.replicas = 0;
  return recipe;
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

std::string size_text(int64_t parameters) {
  return parameters % kMillion == 0 ? cat(parameters / kMillion, "M") : cat(parameters / 1000, "k");
}

/// Sizes of units to compare: up to a thousand units, and one size with which the model is one unit.
std::vector<int64_t> unit_sizes(const StepPlan& plan) {
  const int64_t all = plan.model->trained_elements() + plan.model->frozen_elements();
  std::vector<int64_t> sizes;
  for (const int64_t size : {10'000L, 100'000L, kMillion, 10 * kMillion, 25 * kMillion, 100 * kMillion, 400 * kMillion, 4000 * kMillion}) {
    if (1000 * size < all) continue;
    sizes.push_back(size);
    if (size > all) break;
  }
  return sizes;
}

/// Bytes of states that a rank holds at least, if stages are equal.
double least_states(const PlanModel& model, const JobPlan& job) {
  const double elements = static_cast<double>(model.trained_elements()) / static_cast<double>(job.mesh.pipe);
  const bool ranges = job.optimizer_ranks() > 1;
  const ModelBytes bytes = model_bytes(ranges ? job.strategy : ShardingStrategy::kDdp, elements, ranges ? job.mesh.shard : 1, model.bytes);
  const auto on_device = [](StatePlace place, double size) { return place == StatePlace::kDevice ? size : 0; };
  return on_device(job.parameters, bytes.parameters) + on_device(job.gradients, bytes.gradients) +
         on_device(job.optimizer, bytes.optimizer);
}

bool fits_host(const StepPlan& plan, const Cluster& cluster) { return cluster.host_memory == 0 || plan.host <= cluster.host_memory; }

}  // namespace

StepPlanner::StepPlanner(const Recipe& recipe, int64_t ranks, Cluster cluster, StepMeasuring measuring)
    : recipe_(recipe), ranks_(ranks), cluster_(std::move(cluster)), measuring_(std::move(measuring)) {}

StepPlan StepPlanner::plan() { return plan_of(recipe_, {.ranks = ranks_, .measured = measuring_.runs > 0}); }

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
  const std::string graph_key = cat(batch.micro, "|", batch.accumulation > 1, "|", request.sequence, "|", request.measured, "|",
                                    recompute_text(recipe), "|", job.mesh.tensor, recipe.sharding.sequence_parallel);
  std::shared_ptr<const PlannedGraph>& graph = graphs_[graph_key];
  if (!graph) {
    const std::unique_ptr<Session> session = open_session(recipe);
    graph = planned_graph(*session, {.micro = batch.micro,
                                     .accumulation = batch.accumulation,
                                     .sequence = request.sequence,
                                     .tensor = job.mesh.tensor,
                                     .measuring = request.measured ? measuring_ : StepMeasuring()});
  }
  std::shared_ptr<const PlanModel>& model = models_[cat(graph_key, "|", wrap_text(recipe), "|", static_cast<int>(recipe.precision.reduce))];
  if (request.measured) measured_ = measured_step(*graph);
  if (!model) model = std::make_shared<const PlanModel>(planned_model(*graph, recipe));
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
  if (request.limit > 0) {
    plan.peak = least_states(*plan.model, plan.job);
    if (plan.peak > request.limit) return plan;  // stages need not be cut
  }
  std::vector<size_t> cuts;
  if (has_stages(plan.job)) {  // by rates, where operators are measured, too
    Request by_rates = request;
    by_rates.measured = false;
    const std::shared_ptr<const PlanModel> model = model_of(recipe, plan.job, plan.batch, by_rates);
    cuts = same_segments(*model, pipeline_cuts(*model, plan.job, cluster_of_cuts()), *plan.model);
  }
  plan.stages = rank_memory(*plan.model, plan.job, cluster, cuts);
  plan.peak = peak_bytes(plan.stages);
  if (plan.tables) plan.peak += *std::max_element(plan.tables->plan.rank_bytes.begin(), plan.tables->plan.rank_bytes.end());
  if (request.ranks == 1 && plan.model->exact_bytes > 0) plan.peak = plan.model->exact_bytes;
  for (const RankMemory& stage : plan.stages) plan.host = std::max(plan.host, stage.host);
  plan.host *= static_cast<double>(std::min(cluster.per_node, request.ranks));
  plan.fits = plan.peak <= cluster.memory && fits_host(plan, cluster);
  if (request.limit > 0 && plan.peak > request.limit) return plan;
  plan.simulation = simulate(*plan.model, plan.job, cluster, cuts);
  if (plan.tables) add_tables(plan.simulation, plan.tables->plan);
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
  if (fixed_mesh) {
    for (const bool half : {true, false}) {
      MeshSection mesh = *recipe_.sharding.mesh;
      int64_t& axis = mesh.data > 1 ? mesh.data : mesh.shard;  // ranks that read different samples
      if (half && axis % 2 != 0) continue;
      axis = half ? axis / 2 : 2 * axis;
      add("sharding.mesh", cat(mesh.ranks(), " ranks"), mesh.ranks(), [mesh](Recipe& r) { r.sharding.mesh = mesh; });
    }
  }
  const ShardingStrategy strategy = resolve_strategy(recipe_.sharding, ranks_);
  if (ranks_ > 1 && !fixed_mesh) {
    for (const ShardingStrategy other :
         {ShardingStrategy::kDdp, ShardingStrategy::kZero1, ShardingStrategy::kZero2, ShardingStrategy::kFsdp}) {
      if (other != strategy)
        add("sharding.strategy", std::string(name_of(other)), ranks_, [other](Recipe& r) { r.sharding.strategy = other; });
    }
  }
  if (divides_parameters(strategy) && effects.front().plan) {
    for (const int64_t size : unit_sizes(*effects.front().plan)) {
      add("sharding.wrap", size_text(size), ranks_, [size](Recipe& r) {
        r.sharding.wrap = WrapSection();
        r.sharding.wrap.parameters.count = size;
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
    if (!recipe_.sharding.hook) add("sharding.hook", "bf16", ranks_, [](Recipe& r) { r.sharding.hook.emplace(); });
  }
  return effects;
}

PlanLimits StepPlanner::limits() {
  PlanLimits limits;
  const JobPlan job = planned_job(recipe_, ranks_, cluster_of(ranks_));
  const int64_t readers = job.mesh.data * job.mesh.shard;
  // Activations grow with the micro-batch: double until it does not fit, then halve the interval.
  const auto fits = [&](int64_t micro, int64_t sequence) {
    Recipe changed = without_replicas(recipe_);
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

void StepPlanner::bound(std::vector<PlanCandidate>& candidates, PlanRejections& rejections) {
  const Cluster cluster = cluster_of(ranks_);
  std::map<const PlanModel*, double> seconds;  // of a micro-batch
  std::map<std::string, std::string> refused;  // models that cannot be made
  std::erase_if(candidates, [&](PlanCandidate& candidate) {
    Recipe changed = without_replicas(recipe_);
    candidate.apply(changed, place());
    changed.sharding.wrap = recipe_.sharding.wrap;  // does not change the work
    try {
      const JobPlan job = planned_job(changed, ranks_, cluster);
      const BatchPlan batch = planned_batch(changed, job);
      const std::shared_ptr<const PlanModel> model = model_of(changed, job, batch, {.ranks = ranks_});
      const auto [known, added] = seconds.emplace(model.get(), 0);
      if (added) {
        for (const std::vector<PlanSegment>* segments : {&model->forward, &model->backward}) {
          for (const PlanSegment& segment : *segments) known->second += seconds_of(segment.work, cluster);
        }
      }
      candidate.bound = known->second * static_cast<double>(batch.accumulation) / static_cast<double>(job.mesh.pipe);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kRecipe) throw;
      rejections.refused(candidate, error.message(), place());
      return true;
    }
    return false;
  });
}

std::string StepPlanner::not_trained(const PlanCandidate& candidate) const {
  Recipe changed = recipe_;
  candidate.apply(changed, place());
  if (!cluster_.shared_memory) changed.device.parse("cuda");
  const auto per_machine = static_cast<int>(std::min(ranks_, cluster_.per_node));
  try {
    check_ranks(changed, {.ranks = static_cast<int>(ranks_), .per_machine = per_machine});
    const int64_t readers = std::max<int64_t>(1, ranks_ / (candidate.mesh ? candidate.mesh->tensor * candidate.mesh->pipe : 1));
    check_offload(changed, plan_batch(*changed.train.batch, readers));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kRecipe) throw;
    return error.message();
  }
  return "";
}

PlanSearch StepPlanner::fit(double bytes, const std::function<bool(int64_t, int64_t)>& progress) {
  PlanSearch found;
  PlanRejections rejections;
  std::vector<PlanCandidate> trained, others;
  std::vector<std::string> reasons;
  for (PlanCandidate& candidate : plan_candidates(recipe_, ranks_, cluster_of(ranks_))) {
    ++found.candidates;
    const std::string reason = not_trained(candidate);
    if (!reason.empty()) reasons.push_back(cat("galley-train cannot train this yet: ", reason));
    (reason.empty() ? trained : others).push_back(std::move(candidate));
  }
  const bool finished = search(std::move(trained), bytes, progress, found, rejections);
  if (finished && !found.best) {
    search(std::move(others), bytes, progress, found, rejections);
  } else {
    for (size_t i = 0; i < others.size(); ++i) rejections.refused(others[i], reasons[i], place());
  }
  if (found.best) {
    const std::string& reason = found.best->not_trained;
    found.best->fragment =
        cat(reason.empty() ? "" : cat("# galley-train cannot train this yet: ", reason, "\n"), plan_fragment(found.best->settings));
  }
  found.rejected = rejections.list();
  return found;
}

bool StepPlanner::search(std::vector<PlanCandidate> candidates, double bytes, const std::function<bool(int64_t, int64_t)>& progress,
                         PlanSearch& found, PlanRejections& rejections) {
  bound(candidates, rejections);
  std::stable_sort(candidates.begin(), candidates.end(), [](const PlanCandidate& a, const PlanCandidate& b) { return a.bound < b.bound; });
  const auto count = static_cast<int64_t>(candidates.size());
  for (int64_t i = 0; i < count; ++i) {
    const PlanCandidate& candidate = candidates[static_cast<size_t>(i)];
    const double best = found.best ? found.best->plan.simulation.step_s : 0;
    if (found.best && candidate.bound >= best) {
      rejections.slower(count - i);
      break;
    }
    if (!progress(i, count)) return false;
    Recipe changed = without_replicas(recipe_);
    candidate.apply(changed, place());
    StepPlan plan;
    try {
      plan = plan_of(changed, {.ranks = ranks_, .limit = bytes});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kRecipe && error.code() != ErrorCode::kResource) throw;
      rejections.refused(candidate, error.message(), place());
      continue;
    }
    if (plan.peak > bytes) {
      rejections.too_large(candidate, plan.peak, largest_part(plan), place());
    } else if (!fits_host(plan, cluster_)) {
      rejections.too_large_for_host(candidate, plan.host, place());
    } else if (found.best && plan.simulation.step_s >= best * (1 - 1e-9)) {
      rejections.slower(1);
    } else {
      if (found.best) rejections.slower(1);
      found.best = FittedPlan{
          .plan = std::move(plan), .settings = candidate.settings(place()), .fragment = "", .not_trained = not_trained(candidate)};
    }
  }
  return true;
}

std::string largest_part(const StepPlan& plan) {
  if (plan.stages.empty()) return "all of it parameters, gradients and optimizer state";
  const RankMemory& stage = *std::max_element(plan.stages.begin(), plan.stages.end(),
                                              [](const RankMemory& a, const RankMemory& b) { return a.peak() < b.peak(); });
  const PhaseMemory& phase = stage.largest();
  const bool activations = phase.phase != "update";
  const std::pair<double, const char*> parts[] = {
      {activations ? stage.kept_bytes : 0, "activations that wait for the backward pass"},
      {activations ? phase.activations - stage.kept_bytes : 0, "arrays of the operators that run"},
      {phase.parameters, "parameters"},
      {phase.gradients, "gradients"},
      {phase.optimizer, "optimizer state"},
      {phase.gathered, "gathered units and copies"},
      {phase.communication, "buckets"},
      {phase.other, "buffers"},
      {plan.tables ? *std::max_element(plan.tables->plan.rank_bytes.begin(), plan.tables->plan.rank_bytes.end()) : 0, "embedding tables"}};
  const auto* most = std::max_element(std::begin(parts), std::end(parts), [](const auto& a, const auto& b) { return a.first < b.first; });
  return cat(human_bytes(most->first), " of it ", most->second);
}

}  // namespace galley
