#include "libcore/dist/pipeline_run.h"

#include <algorithm>
#include <set>

#include "libcore/base/error.h"
#include "libcore/dist/pipeline_actions.h"
#include "libcore/dist/step_times.h"

namespace galley {
namespace {

/// What the parts of a pipeline cost.
struct PipelineParts {
  std::vector<size_t> cuts;
  StageTimes times;
  std::vector<double> compute;                        // forward and backward, without collectives
  std::vector<double> elements, gradients, gathered;  // trained elements; bytes that are summed; bytes of whole parameters
  std::vector<StepTraffic> reductions;                // that tensor parallelism sends in a micro-batch
  std::vector<double> reductions_s;                   // and their time
};

PipelineParts pipeline_parts(const PlanModel& model, const JobPlan& job, const Cluster& cluster, std::vector<size_t> cuts) {
  PipelineParts parts;
  parts.cuts = std::move(cuts);
  const size_t count = parts.cuts.size();
  const std::vector<SegmentTime> forward = times_of(model.forward, job, cluster), backward = times_of(model.backward, job, cluster);
  for (std::vector<double>* values : {&parts.times.forward, &parts.times.backward, &parts.compute, &parts.elements, &parts.gradients,
                                      &parts.gathered, &parts.reductions_s})
    values->assign(count, 0);
  parts.reductions.assign(count, {});
  const auto part_of = [&](size_t segment) {
    return static_cast<size_t>(std::upper_bound(parts.cuts.begin(), parts.cuts.end(), segment) - parts.cuts.begin()) - 1;
  };
  std::vector<std::set<int>> units(count);
  double transfer = 0;
  for (size_t i = 0; i < model.forward.size(); ++i) {
    const size_t part = part_of(i);
    parts.times.forward[part] += forward[i].sum();
    parts.compute[part] += forward[i].compute;
    parts.reductions_s[part] += forward[i].reductions;
    parts.reductions[part] += tensor_traffic(model.forward[i], job);
    units[part].insert(model.forward[i].unit);
    if (i + 1 < model.forward.size() && part_of(i + 1) != part) transfer = std::max(transfer, model.forward[i].output_bytes);
  }
  for (size_t i = 0; i < model.backward.size(); ++i) {
    const size_t part = part_of(static_cast<size_t>(std::max(0, model.backward[i].forward)));
    parts.times.backward[part] += backward[i].sum();
    parts.compute[part] += backward[i].compute;
    parts.reductions_s[part] += backward[i].reductions;
    parts.reductions[part] += tensor_traffic(model.backward[i], job);
  }
  for (const PlanParameter& parameter : model.parameters) {
    for (size_t part = 0; part < count; ++part) {
      const bool here = parameter.forward_segment >= 0 ? part_of(static_cast<size_t>(parameter.forward_segment)) == part
                                                       : units[part].contains(parameter.unit);
      if (!here) continue;
      parts.gathered[part] += static_cast<double>(parameter.elements * model.gather_bytes);
      parts.gradients[part] += summed_bytes(model, parameter, job);
      if (parameter.trained) parts.elements[part] += static_cast<double>(parameter.elements);
    }
  }
  const GroupLinks links = group_links(cluster, job.mesh, MeshAxis::kPipe);
  const double rate = links.nodes > 1 ? links.between : links.inside;
  // Ranks of a tensor-parallel group send a part each, and gather it inside the node.
  parts.times.transfer = rate > 0 ? transfer / static_cast<double>(job.mesh.tensor) / rate : 0;
  return parts;
}

/// One step: passes of all stages by the schedule, then sums of gradients and updates.
class PipelineRun {
 public:
  PipelineRun(const PlanModel& model, const JobPlan& job, const Cluster& cluster, std::vector<size_t> cuts)
      : model_(model), job_(job), cluster_(cluster), parts_(pipeline_parts(model, job, cluster, std::move(cuts))) {
    if (job.gathers()) add_gathers();
  }

  Simulation run() {
    const auto schedule = pipeline_schedule(job_.schedule, job_.mesh.pipe, job_.micro_batches, job_.chunks);
    const std::vector<StageActions> actions = pipeline_actions(schedule, job_.chunks);
    const std::string fault = check_actions(actions, job_.micro_batches, job_.chunks, 1);
    GALLEY_ASSERT(fault.empty(), fault);
    const std::vector<TimedStage> timed = time_actions(actions, parts_.times);
    result_.cuts = parts_.cuts;
    for (size_t s = 0; s < timed.size(); ++s) finish_stage(s, timed[s]);
    result_.exposed_s = result_.step_s - result_.compute_s;
    const auto pipelines = static_cast<double>(job_.micro_batches * job_.mesh.data * job_.mesh.shard * job_.mesh.tensor);
    result_.flops = model_.flops * pipelines;
    result_.model_flops = model_.model_flops * pipelines;
    return std::move(result_);
  }

 private:
  /// The parts of a stage.
  std::vector<size_t> parts_of(size_t stage) const {
    std::vector<size_t> parts;
    for (int64_t c = 0; c < job_.chunks; ++c) parts.push_back(static_cast<size_t>(c * job_.mesh.pipe) + stage);
    return parts;
  }

  /// Stages that hold ranges of parameters: each pass gathers its units beside its computation, or each stage gathers all of them before
  /// its first pass.
  void add_gathers() {
    const GroupLinks links = group_links(cluster_, job_.mesh, MeshAxis::kShard);
    const auto seconds = [&](CollectiveOp op, double bytes) { return choose_collective(op, links, bytes, cluster_.shared_memory).seconds; };
    gather_s_.assign(parts_.cuts.size(), 0);
    for (size_t p = 0; p < parts_.cuts.size(); ++p) gather_s_[p] = seconds(CollectiveOp::kAllGather, parts_.gathered[p]);
    if (!job_.reshard_after_forward) {
      parts_.times.begin.assign(static_cast<size_t>(job_.mesh.pipe), 0);
      for (size_t s = 0; s < parts_.times.begin.size(); ++s) {
        for (const size_t p : parts_of(s)) parts_.times.begin[s] += gather_s_[p];
      }
      return;
    }
    const auto beside = [&](double& pass, double collectives) {
      pass = cluster_.overlaps ? std::max(pass / cluster_.contention, collectives) : pass + collectives;
    };
    for (size_t p = 0; p < parts_.cuts.size(); ++p) {
      beside(parts_.times.forward[p], gather_s_[p]);
      beside(parts_.times.backward[p], gather_s_[p] + seconds(CollectiveOp::kReduceScatter, parts_.gradients[p]));
    }
  }

  /// Messages that a rank of the stage sends in a step: the result of each forward pass but the last, and the gradient of each backward
  /// pass but that of the first part.
  double messages_of(size_t stage) const {
    int64_t messages = 0;
    for (const size_t p : parts_of(stage)) messages += (p + 1 < parts_.cuts.size() ? 1 : 0) + (p > 0 ? 1 : 0);
    return static_cast<double>(messages * job_.micro_batches);
  }

  /// Bytes that a rank of the stage sends during the passes.
  StepTraffic traffic_of(size_t stage) const {
    StepTraffic sent;
    const auto m = static_cast<double>(job_.micro_batches), n = static_cast<double>(job_.mesh.shard),
               t = static_cast<double>(job_.mesh.tensor);
    double boundary = 0;
    for (size_t c = 1; c < parts_.cuts.size(); ++c) boundary = std::max(boundary, model_.forward[parts_.cuts[c] - 1].output_bytes);
    sent.send = boundary / t * messages_of(stage);
    for (const size_t p : parts_of(stage)) {
      sent.all_reduce += m * parts_.reductions[p].all_reduce;
      sent.all_gather += m * parts_.reductions[p].all_gather;
      sent.reduce_scatter += m * parts_.reductions[p].reduce_scatter;
      if (!job_.gathers()) continue;
      sent.all_gather += (n - 1) / n * parts_.gathered[p] * (job_.reshard_after_forward ? 2 * m : 1);
      if (job_.reshard_after_forward) sent.reduce_scatter += (n - 1) / n * parts_.gradients[p] * (m - 1);
    }
    return sent;
  }

  /// Sums of gradients: of each chunk beside later passes, or of all after the last one.
  GradientSum sum_of(size_t s, const TimedStage& timed, double& end) {
    if (!job_.overlap_gradients || !cluster_.overlaps) {
      double gradients = 0, parameters = 0;
      for (const size_t p : parts_of(s)) {
        gradients += parts_.gradients[p];
        parameters += parts_.elements[p] * static_cast<double>(model_.gather_bytes);
      }
      const GradientSum sum = sum_gradients(job_, cluster_, gradients, parameters);
      add_sum(s, "gradients", end, end + sum.reduce_s, gradients);
      end += sum.reduce_s;
      return sum;
    }
    GradientSum all;
    double queue = 0;
    for (int64_t c = job_.chunks; c-- > 0;) {  // the backward pass ends with chunk 0
      const auto p = static_cast<size_t>(c * job_.mesh.pipe) + s;
      const GradientSum sum =
          sum_gradients(job_, cluster_, parts_.gradients[p], parts_.elements[p] * static_cast<double>(model_.gather_bytes));
      const double begin = std::max(queue, timed.reduce[static_cast<size_t>(c)]);
      queue = begin + sum.reduce_s;
      add_sum(s, job_.chunks > 1 ? cat("gradients of part ", c) : "gradients", begin, queue, parts_.gradients[p]);
      all.reduce_s += sum.reduce_s;
      all.gather_s += sum.gather_s;
      all.sent += sum.sent;
    }
    end = std::max(end, queue);
    return all;
  }
  void add_sum(size_t s, const std::string& name, double begin, double end, double bytes) {
    if (end > begin) result_.timeline.push_back({static_cast<int64_t>(s), Lane::kCommunication, name, begin, end, bytes});
  }

  void finish_stage(size_t s, const TimedStage& timed) {
    const auto stage = static_cast<int64_t>(s);
    double busy = 0, elements = 0, parameters = 0, computed = 0, communication = parts_.times.transfer * messages_of(s);
    if (!parts_.times.begin.empty()) {
      communication += parts_.times.begin[s];
      result_.timeline.push_back({stage, Lane::kCommunication, "all_gather parameters", 0, parts_.times.begin[s], 0});
    }
    for (const TimedPass& pass : timed.passes) {
      busy += pass.end - pass.begin;
      result_.timeline.push_back({.stage = stage,
                                  .lane = Lane::kCompute,
                                  .name = cat(pass.pass.backward ? "backward " : "forward ", pass.pass.micro_batch,
                                              job_.chunks > 1 ? cat(" of part ", pass.pass.chunk) : ""),
                                  .begin = pass.begin,
                                  .end = pass.end});
    }
    for (const size_t p : parts_of(s)) {
      elements += parts_.elements[p];
      parameters += parts_.elements[p] * static_cast<double>(model_.gather_bytes);
      computed += parts_.compute[p] * static_cast<double>(job_.micro_batches);
      communication += parts_.reductions_s[p] * static_cast<double>(job_.micro_batches);
      if (job_.gathers() && job_.reshard_after_forward) communication += 2 * gather_s_[p] * static_cast<double>(job_.micro_batches);
    }
    const double end = timed.passes.back().end;
    double reduced = end;
    const GradientSum sum = sum_of(s, timed, reduced);
    const double update = update_seconds(model_, job_, cluster_, elements / std::max(1.0, static_cast<double>(model_.trained_elements())));
    const double updated = reduced + update;
    result_.timeline.push_back({stage, Lane::kCompute, "update", reduced, updated, 0});
    if (sum.gather_s > 0)
      result_.timeline.push_back({stage, Lane::kCommunication, "all_gather parameters", updated, updated + sum.gather_s, parameters});
    result_.step_s = std::max(result_.step_s, updated + sum.gather_s);
    result_.communication_s = std::max(result_.communication_s, communication + sum.reduce_s + sum.gather_s);
    result_.compute_s = std::max(result_.compute_s, computed + update);
    if (busy > busiest_) {
      busiest_ = busy;
      result_.bubble_s = end - busy - (parts_.times.begin.empty() ? 0 : parts_.times.begin[s]);
    }
    StepTraffic sent = traffic_of(s);
    sent += sum.sent;
    if (sent.sum() > result_.traffic.sum()) result_.traffic = sent;
  }

  const PlanModel& model_;
  const JobPlan& job_;
  const Cluster& cluster_;
  PipelineParts parts_;
  std::vector<double> gather_s_;
  double busiest_ = 0;
  Simulation result_;
};

}  // namespace

Simulation simulate_pipeline(const PlanModel& model, const JobPlan& job, const Cluster& cluster, std::vector<size_t> cuts) {
  return PipelineRun(model, job, cluster, std::move(cuts)).run();
}

}  // namespace galley
