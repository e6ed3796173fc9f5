// TrainStep whose ranks are stages of a pipeline. A rank holds the parameters, buffers and optimizer state of its stage, and copies of
// parameters of other stages that its own reads (tied weights), which it receives after each update.

#include <algorithm>
#include <set>

#include "libcore/base/under_key.h"
#include "libcore/dist/simulate.h"
#include "libcore/passes/gather_stages.h"
#include "libcore/runtime/engine.h"
#include "libcore/train/planned_model.h"
#include "libcore/train/rank_roles.h"
#include "libcore/train/step.h"

namespace galley {
namespace {

/// Where parts 2, 3, ... of a pipeline begin among the forward nodes of a replica's graph: where galley-plan's do.
std::vector<size_t> positions_of_parts(const Graph& graph, const std::vector<ParameterSpec>& parameters, const PlanModel& planned,
                                       const JobPlan& job) {
  const std::vector<size_t> cuts = pipeline_cuts(planned, job, cluster_of_cuts());
  const PlanModel own = graph_model(graph, graph_parameters(parameters), {});
  std::vector<size_t> positions;
  for (const size_t cut : same_segments(planned, cuts, own)) {
    const auto first = graph.nodes().begin() + own.forward[cut].first_node;
    const auto before = std::count_if(graph.nodes().begin(), first, [](const Node& node) { return node.phase == Phase::kForward; });
    positions.push_back(static_cast<size_t>(before));
  }
  positions.erase(positions.begin());
  return positions;
}

int64_t aligned(int64_t elements) { return (elements + 15) / 16 * 16; }

bool reads(const Graph& graph, const std::string& name) {
  const ValueId id = graph.find_input(name);
  return id != kNoValue && (graph.value(id).role == ValueRole::kParameter || graph.value(id).role == ValueRole::kBuffer);
}

bool has_output(const StageGraphs& part, const std::string& output) {
  return part.backward.find_output(output) != kNoValue || part.forward.find_output(output) != kNoValue;
}

}  // namespace

/// Who updates what: the stage that sums the gradient of a parameter, or computes the statistics of a norm; of what is not trained the
/// first one that reads it.
void TrainStep::assign_stages(const std::vector<StageGraphs>& split) {
  const auto stage_with = [&](const std::function<bool(const StageGraphs&)>& suits) {
    const auto part = std::find_if(split.begin(), split.end(), suits);
    return part == split.end() ? -1 : static_cast<int>((part - split.begin()) % place_.stages);
  };
  for (const GradientBucket& bucket : replica_buckets_) {
    for (size_t m = 0; m < bucket.parameters.size(); ++m)
      stage_of_[bucket.parameters[m]] = stage_with([&](const StageGraphs& part) { return has_output(part, gradient_output(bucket, m)); });
  }
  for (size_t norm = 0; norm < statistics_.updates().size(); ++norm) {
    const int stage = stage_with([&](const StageGraphs& part) { return has_output(part, ReplicaStatistics::output(norm)); });
    for (const std::string& buffer : statistics_.updates()[norm].buffers) {
      if (!buffer.empty()) stage_of_[buffer] = stage;
    }
    if (stage == place_.stage) own_norms_.push_back(norm);
  }
  for (const ParameterSpec& spec : parameters_) {
    if (stage_of_.count(spec.name) > 0) continue;
    stage_of_[spec.name] =
        std::max(0, stage_with([&](const StageGraphs& part) { return reads(part.forward, spec.name) || reads(part.backward, spec.name); }));
  }
  for (const auto& [name, owner] : stage_of_) {
    std::set<int> stages;
    for (size_t part = 0; part < split.size(); ++part) {
      if (reads(split[part].forward, name) || reads(split[part].backward, name)) stages.insert(static_cast<int>(part) % place_.stages);
    }
    stages.erase(owner);
    if (!stages.empty()) readers_[name].assign(stages.begin(), stages.end());
  }
  loss_stage_ = stage_with([&](const StageGraphs& part) { return has_output(part, "loss"); });
  for (int stage = 0; scaling_ && scaling_->dynamic && stage < place_.stages; ++stage) {
    const bool trains = std::any_of(replica_buckets_.begin(), replica_buckets_.end(), [&](const GradientBucket& bucket) {
      return std::any_of(bucket.parameters.begin(), bucket.parameters.end(), [&](const auto& name) { return stage_of_.at(name) == stage; });
    });
    if (trains) continue;
    throw Error(ErrorCode::kRecipe, cat("stage ", stage, " trains no parameter, so it cannot follow the loss scale"))
        .key("sharding.split")
        .suggest("name the modules where stages begin, use fewer stages, or write a number for precision.loss_scale");
  }
  GALLEY_ASSERT(loss_stage_ >= 0 && std::all_of(stage_of_.begin(), stage_of_.end(), [](const auto& each) { return each.second >= 0; }));
}

/// Gradients and statistics that a part computes, each at a multiple of 16 elements.
PipelineRunner::Sums TrainStep::sums_of_part(const StageGraphs& part) const {
  PipelineRunner::Sums sums;
  const auto add = [&](const std::string& output, int64_t elements) {
    if (!has_output(part, output)) return;
    sums.outputs.push_back({output, sums.elements, elements});
    sums.elements += aligned(elements);
  };
  for (const GradientBucket& bucket : replica_buckets_) {
    for (size_t m = 0; m < bucket.parameters.size(); ++m) add(gradient_output(bucket, m), aligned(bucket.shapes[m].elements()));
  }
  for (size_t norm = 0; norm < statistics_.updates().size(); ++norm)
    add(ReplicaStatistics::output(norm), 2 * statistics_.updates()[norm].channels);
  return sums;
}

/// The parts of the model that this rank computes.
void TrainStep::add_pipeline(Stage& stage, const BatchTypes& types) {
  place_ = pipeline_ranks_of(recipe_, *ranks_);
  const int64_t chunks = recipe_.sharding.schedule == PipelineSchedule::kInterleaved ? 2 : 1, parts = place_.stages * chunks;
  const Graph graph = capture_replica(stage, types);
  const JobPlan job = planned_job(recipe_, ranks_->size(), cluster_of_cuts());
  const PlanModel planned = planned_model(session_, types.input().shape[0]);
  std::vector<StageGraphs> split = split_stages(graph, positions_of_parts(graph, parameters_, planned, job));
  assign_stages(split);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t number = chunk * place_.stages + place_.stage;
    stage_sums_.push_back(sums_of_part(split[static_cast<size_t>(number)]));
    for (int64_t other = 0; other < place_.stages; ++other)
      stage_sums_.back().elements =
          std::max(stage_sums_.back().elements, sums_of_part(split[static_cast<size_t>(chunk * place_.stages + other)]).elements);
  }
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t number = chunk * place_.stages + place_.stage;
    StageGraphs& own = split[static_cast<size_t>(number)];
    PipelineRunner::Part& part = parts_.emplace_back();
    const auto compiled = [&](const char* pass, Graph& of) {
      const bool first = parts_.size() == 1 && part.forward == nullptr;
      return engine_.program(
          {.mode = "stage", .variant = cat(pass, " ", number), .fields = types.fields}, cat("part ", number, " of ", parts),
          [&] { return std::move(of); }, first ? ParameterFormats::kLead : ParameterFormats::kFollow);
    };
    part.forward = compiled("forward", own.forward);
    part.backward = compiled("backward", own.backward);
    part.messages = std::move(own);
    engine_.declare(*part.forward);
    engine_.declare(*part.backward);
  }
  for (const ParameterSpec& spec : parameters_) {  // what no program reads belongs to the run, too
    if (owns(spec.name) && !engine_.store().has(spec.name)) engine_.store().declare(spec.name, spec.type, spec.role);
  }
  replica_forms_.push_back({types, parts_.front().forward});
  const LeafRange own = ReductionTree(replicas_.count, place_.copies).owned(place_.copy);
  const int64_t micro_batches = own.end - own.begin;
  std::vector<StageActions> actions =
      pipeline_actions(pipeline_schedule(recipe_.sharding.schedule, place_.stages, micro_batches, chunks), chunks);
  constexpr int64_t kMessages = 2;
  const std::string fault = check_actions(actions, micro_batches, chunks, kMessages);
  GALLEY_ASSERT(fault.empty(), fault);
  pipeline_ = std::make_unique<PipelineRunner>(*ranks_, place_, replicas_.count, std::move(actions), parts_);
}

void TrainStep::bind_pipeline(Stage& stage, std::vector<std::string> losses) {
  pipeline_->bind(engine_, stage_sums_, std::move(losses), loss_stage_);
  feed_stage_sums(stage, INT64_MAX);
}

/// Gives the update the sums with at most so many bytes.
void TrainStep::feed_stage_sums(const Stage& stage, int64_t most) const {
  const auto feed = [&](const std::string& input, const std::string& output, int64_t elements) {
    if (elements * 4 <= most) stage.update->feed(input, pipeline_->sum(output));
  };
  for (const GradientBucket& bucket : stage.divisions.back()->buckets()) {
    const std::string& parameter = bucket.parameters.front();
    const auto from = std::find_if(replica_buckets_.begin(), replica_buckets_.end(),
                                   [&](const GradientBucket& each) { return each.parameters.front() == parameter; });
    feed(bucket.name, gradient_output(*from, 0), bucket.layout.padded(1));
  }
  for (const size_t norm : own_norms_)
    feed(ReplicaStatistics::output(norm), ReplicaStatistics::output(norm), 2 * statistics_.updates()[norm].channels);
}

std::vector<std::string> TrainStep::own_gradients() const {
  std::vector<std::string> outputs;
  for (const GradientBucket& bucket : replica_buckets_) {
    for (size_t m = 0; m < bucket.parameters.size(); ++m) {
      if (owns(bucket.parameters[m])) outputs.push_back(gradient_output(bucket, m));
    }
  }
  return outputs;
}

/// Gives new values of parameters to the other stages that read them, in an order that is equal on all ranks.
void TrainStep::share_parameters() {
  ParameterStore& store = engine_.store();
  for (const auto& [name, stages] : readers_) {
    const int owner = stage_of_.at(name);
    for (const int reader : stages) {
      if (owner == place_.stage) {
        const Tensor values = store.view(name);
        ranks_->send("parameters", values.data(), values.bytes(), DType::kI8, place_.rank_of(reader));
      } else if (reader == place_.stage) {
        Tensor values(store.tensor(name).dtype(), store.tensor(name).shape());
        ranks_->receive("parameters", values.data(), values.bytes(), DType::kI8, place_.rank_of(owner));
        store.set(name, values);
      }
    }
  }
}

}  // namespace galley
