#include <algorithm>
#include <functional>
#include <set>

#include "libcore/base/error.h"
#include "libcore/dist/pipeline.h"
#include "libcore/dist/simulate.h"
#include "libcore/dist/step_times.h"

namespace galley {
namespace {

/// Whether consecutive segments fit in the memory of a stage: states, and activations of the micro-batches in flight. An estimate that is
/// cheap for any range; rank_memory has the exact figures.
class StageFit {
 public:
  StageFit(const PlanModel& model, const JobPlan& job, const Cluster& cluster) : job_(job), memory_(cluster.memory) {
    const size_t n = model.forward.size();
    states_.assign(n + 1, 0);
    kept_.assign(n + 1, 0);
    boundary_.assign(n + 1, 0);
    std::vector<double> elements(n, 0), frozen(n, 0), working(n, 0);
    std::vector<size_t> first_of_unit(model.units.size(), 0);
    for (size_t i = n; i-- > 0;) {
      if (model.forward[i].unit >= 0) first_of_unit[static_cast<size_t>(model.forward[i].unit)] = i;
    }
    for (const PlanParameter& parameter : model.parameters) {
      const size_t at = parameter.forward_segment >= 0 ? static_cast<size_t>(parameter.forward_segment)
                                                       : first_of_unit[static_cast<size_t>(parameter.unit)];
      (parameter.trained ? elements : frozen)[at] += static_cast<double>(parameter.elements);
    }
    double kept = model.input_bytes;
    std::vector<double> before(n, 0);
    for (size_t i = 0; i < n; ++i) {
      kept += model.forward[i].kept_bytes;
      before[i] = kept;
      working[i] = model.forward[i].live_bytes - kept;
    }
    for (const PlanSegment& segment : model.backward) {
      const auto of = static_cast<size_t>(std::max(0, segment.forward));
      working[of] = std::max(working[of], segment.live_bytes - before[of]);
    }
    for (size_t i = 0; i < n; ++i) {
      states_[i + 1] = states_[i] + state_bytes(model, elements[i]) + frozen[i] * static_cast<double>(model.bytes.parameter);
      kept_[i + 1] = kept_[i] + model.forward[i].kept_bytes;
      boundary_[i + 1] = model.forward[i].output_bytes;
    }
    make_ranges(std::move(working));
  }

  bool operator()(int64_t part, size_t begin, size_t end) const {
    const int64_t stage = part % job_.mesh.pipe;
    const double held = held_micro_batches(job_.schedule, stage, job_.mesh.pipe, job_.micro_batches, job_.chunks);
    const double activations = held * (kept_[end] - kept_[begin] + (part > 0 ? boundary_[begin] : 0));
    return states_[end] - states_[begin] + activations <= (memory_ - largest(begin, end)) / static_cast<double>(job_.chunks);
  }

 private:
  double state_bytes(const PlanModel& model, double elements) const {
    const bool ranges = job_.optimizer_ranks() > 1;
    const ModelBytes bytes =
        model_bytes(ranges ? job_.strategy : ShardingStrategy::kDdp, elements, ranges ? job_.mesh.shard : 1, model.bytes);
    return bytes.parameters + bytes.gradients + (job_.optimizer == StatePlace::kDevice ? bytes.optimizer : 0);
  }

  /// ranges_[k][i]: the largest working set of 2^k segments from i on.
  void make_ranges(std::vector<double> working) {
    ranges_.push_back(std::move(working));
    for (size_t width = 1; 2 * width <= ranges_.front().size(); width *= 2) {
      const std::vector<double>& last = ranges_.back();
      std::vector<double> next(last.size() - width);
      for (size_t i = 0; i < next.size(); ++i) next[i] = std::max(last[i], last[i + width]);
      ranges_.push_back(std::move(next));
    }
  }
  double largest(size_t begin, size_t end) const {
    size_t level = 0;
    while ((size_t{2} << level) <= end - begin) ++level;
    return std::max(ranges_[level][begin], ranges_[level][end - (size_t{1} << level)]);
  }

  const JobPlan& job_;
  double memory_;
  std::vector<double> states_, kept_, boundary_;
  std::vector<std::vector<double>> ranges_;
};

/// The first segment of a module, or of one below it.
size_t first_segment(const PlanModel& model, const std::string& module) {
  for (size_t i = 0; i < model.forward.size(); ++i) {
    const std::string& name = model.forward[i].name;
    if (name == module || name.starts_with(module + ".")) return i;
  }
  std::set<std::string> known;
  for (const PlanSegment& segment : model.forward) {
    for (size_t dot = segment.name.find('.'); dot != std::string::npos; dot = segment.name.find('.', dot + 1))
      known.insert(segment.name.substr(0, dot));
    known.insert(segment.name);
  }
  const std::string near = nearest(module, {known.begin(), known.end()});
  throw Error(ErrorCode::kRecipe, cat("'sharding.split' names '", module, "', but no module of that name computes in the forward pass"))
      .key("sharding.split")
      .suggest(near.empty() ? "galley-plan R --format json lists the modules of a pipeline" : cat("did you mean '", near, "'?"));
}

/// The number of parameters that parts hold before each segment.
std::vector<int64_t> parameters_before(const PlanModel& model) {
  std::vector<int64_t> before(model.forward.size() + 1, 0);
  for (const PlanParameter& parameter : model.parameters) {
    size_t at = 0;
    if (parameter.forward_segment >= 0) {
      at = static_cast<size_t>(parameter.forward_segment);
    } else {
      while (at < model.forward.size() && model.forward[at].unit != parameter.unit) ++at;
    }
    if (at < model.forward.size()) ++before[at + 1];
  }
  for (size_t i = 1; i < before.size(); ++i) before[i] += before[i - 1];
  return before;
}

/// The cuts at the modules that the job names.
std::vector<size_t> named_cuts(const PlanModel& model, const std::vector<bool>& may_cut, const JobPlan& job) {
  std::vector<size_t> cuts{0};
  for (const std::string& module : job.split) {
    const size_t at = first_segment(model, module);
    const auto refuse = [&](const std::string& message, const std::string& remedy) {
      throw Error(ErrorCode::kRecipe, message).key("sharding.split").suggest(remedy);
    };
    if (at == 0) refuse(cat("'sharding.split' names '", module, "', with which the first stage begins"), "name the module of the next one");
    if (at <= cuts.back())
      refuse(cat("'sharding.split' names '", module, "' after '", model.forward[cuts.back()].name, "', but it computes earlier"),
             "name modules in the order of the forward pass, each once");
    if (!may_cut[at]) {
      size_t before = at, after = at;
      while (before > 0 && !may_cut[before]) --before;
      while (after < may_cut.size() && !may_cut[after]) ++after;
      std::string places = before > 0 ? cat("'", model.forward[before].name, "'") : "";
      if (after < may_cut.size()) places += cat(places.empty() ? "" : " or ", "'", model.forward[after].name, "'");
      refuse(cat("a stage cannot begin at '", module, "': more than one value of the forward pass would cross to it"),
             places.empty() ? "use split: auto" : cat("begin at ", places));
    }
    cuts.push_back(at);
  }
  const std::vector<int64_t> parameters = parameters_before(model);
  for (size_t part = 0; part < cuts.size(); ++part) {
    const size_t end = part + 1 < cuts.size() ? cuts[part + 1] : model.forward.size();
    if (parameters[end] > parameters[cuts[part]]) continue;
    throw Error(ErrorCode::kRecipe, cat("the stage that begins at '", model.forward[cuts[part]].name, "' has no parameters"))
        .key("sharding.split")
        .suggest("use split: auto, or fewer stages");
  }
  return cuts;
}

}  // namespace

std::vector<size_t> pipeline_cuts(const PlanModel& model, const JobPlan& job, const Cluster& cluster) {
  const int64_t parts = job.mesh.pipe * job.chunks;
  std::vector<bool> may_cut(model.forward.size(), true);
  for (size_t i = 1; i < model.forward.size(); ++i) may_cut[i] = model.forward[i - 1].output_bytes > 0;
  if (!job.split.empty()) return named_cuts(model, may_cut, job);
  const std::vector<SegmentTime> forward = times_of(model.forward, job, cluster), backward = times_of(model.backward, job, cluster);
  std::vector<double> costs;
  for (const SegmentTime& time : forward) costs.push_back(time.sum());
  for (size_t i = 0; i < model.backward.size(); ++i) {
    if (model.backward[i].forward >= 0) costs[static_cast<size_t>(model.backward[i].forward)] += backward[i].sum();
  }
  const StageFit fit(model, job, cluster);
  const std::vector<int64_t> parameters = parameters_before(model);
  const auto trains = [&](int64_t, size_t begin, size_t end) { return parameters[end] > parameters[begin]; };
  const auto both = [&](int64_t part, size_t begin, size_t end) { return trains(part, begin, end) && fit(part, begin, end); };
  std::vector<size_t> cuts = balanced_cuts(costs, may_cut, parts, both);
  if (cuts.empty()) cuts = balanced_cuts(costs, may_cut, parts, trains);  // nothing fits: the plan says so
  if (!cuts.empty()) return cuts;
  const int64_t places = std::count(may_cut.begin(), may_cut.end(), true);
  throw Error(ErrorCode::kRecipe, places < parts
                                      ? cat("the model has ", places, " places at which a stage can begin, too few for ", parts, " parts")
                                      : cat("the model cannot be cut into ", parts, " parts that all have parameters"))
      .key("sharding.stages")
      .suggest("use fewer stages");
}

Cluster cluster_of_cuts() {
  Cluster cluster = *find_cluster("a100_80gb");
  cluster.launch = 0;
  cluster.memory = cluster.host_memory = 1e18;
  return cluster;
}

std::vector<size_t> same_segments(const PlanModel& from, const std::vector<size_t>& cuts, const PlanModel& to) {
  std::vector<size_t> same;
  for (const size_t cut : cuts) {
    const std::string& name = from.forward[cut].name;
    int64_t before = 0;
    for (size_t i = 0; i < cut; ++i) before += from.forward[i].name == name;
    size_t at = 0;
    while (at < to.forward.size() && (to.forward[at].name != name || before-- > 0)) ++at;
    GALLEY_ASSERT(at < to.forward.size() && (same.empty() || at > same.back()), "no segment of ", name, " at which a part can begin");
    same.push_back(at);
  }
  return same;
}

}  // namespace galley
