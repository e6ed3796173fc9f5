#include "libcore/train/planned_model.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "libcore/base/cores.h"
#include "libcore/base/counted.h"
#include "libcore/base/resident_memory.h"
#include "libcore/base/under_key.h"
#include "libcore/dist/graph_model.h"
#include "libcore/passes/gate_updates.h"
#include "libcore/passes/pipelines.h"
#include "libcore/passes/shard.h"
#include "libcore/passes/tensor_parallel.h"
#include "libcore/profiler/machine_limits.h"
#include "libcore/profiler/recorder.h"
#include "libcore/train/capture_training.h"
#include "libcore/train/step.h"
#include "libcore/train/workload.h"

namespace galley {
namespace {

constexpr int64_t kMegabyte = 1'000'000;
constexpr int kWarmUp = 2;               // runs that are not measured
constexpr double kMeasuredSeconds = 10;  // of the runs of a step, about

int64_t bytes_of(PrecisionName precision) { return precision == PrecisionName::kF64 ? 8 : precision == PrecisionName::kF32 ? 4 : 2; }

/// Of each trained parameter: its place among those whose gradients become final, and its group of the optimizer.
using GradientOrder = std::map<std::string, std::pair<int64_t, int64_t>>;

/// A captured graph with gradients and updates, before a back end prepares it.
struct TrainingGraph {
  Graph graph;
  std::vector<ParameterSpec> parameters;
  std::vector<StateSpec> states;
  GradientOrder gradients;
};

/// One rank's updates, of which the order of gradients is noted.
class NotedUpdates : public RankUpdates {
 public:
  explicit NotedUpdates(GradientOrder& order) : order_(order) {}
  std::vector<UpdatePiece> reduce(Graph& graph, const std::vector<UpdatePiece>& own) override {
    const std::vector<size_t> order = order_of_gradients(graph, own);
    for (size_t i = 0; i < order.size(); ++i) order_[own[order[i]].name] = {static_cast<int64_t>(i), own[order[i]].group};
    // Nothing is sent: sums with the gradients of earlier micro-batches are part of the update, as on one rank.
    const std::vector<int> made_by = graph.producers();
    for (const UpdatePiece& piece : own) {
      Node& maker = graph.nodes()[static_cast<size_t>(made_by[static_cast<size_t>(piece.gradient.id())])];
      const auto is_state = [&](ValueId id) { return id != kNoValue && graph.value(id).role == ValueRole::kState; };
      if (std::any_of(maker.inputs.begin(), maker.inputs.end(), is_state)) maker.phase = Phase::kUpdate;
    }
    return own;
  }
  Value total(Value own) const override { return own; }
  void finish(Graph&, size_t, Value) override {}

 private:
  GradientOrder& order_;
};

TrainingGraph training_graph(const Session& session, const BatchTypes& types, int64_t accumulation, int64_t tensor) {
  const Recipe& recipe = session.recipe();
  if (!recipe.train.optimizer.algorithm)
    throw Error(ErrorCode::kRecipe, "the key train.optimizer is missing")
        .key("train.optimizer")
        .suggest("e.g. {type: sgd, lr: 0.1, momentum: 0.9}");
  CapturedModel model = capture_training(session, types);
  const std::optional<LossScaling> scaling = loss_scaling(recipe);
  TrainingGraph result;
  TensorDivisions divisions;
  if (tensor > 1) {
    const int ranks = static_cast<int>(tensor);
    divisions = under_key("sharding", [&] { return tensor_divisions(model.graph, ranks); });
    tensor_parallel(model.graph, divisions, {.rank = 0, .ranks = ranks, .scatter = recipe.sharding.sequence_parallel});
  }
  TrainingPasses passes;
  passes.precision = model.precision;
  for (const ParameterSpec& spec : model.parameters) {
    if (spec.trainable) passes.trained.push_back(spec.name);
  }
  passes.updates = [&](Graph& graph, const GradientMap& gradients) {
    under_key("train.optimizer", [&] {
      UpdateOptions options;
      NotedUpdates noted(result.gradients);
      options.groups = parameter_groups(recipe.train.optimizer, model.parameters, {});
      options.ranks = &noted;
      options.accumulation = accumulation;
      if (recipe.train.clip) options.clip = recipe.train.clip->type == ClipType::kNorm ? ClipMode::kNorm : ClipMode::kValue;
      if (tensor > 1) options.divided = [&](const std::string& name) { return divisions.count(name) > 0; };
      options.loss_scale = scaling.has_value();
      options.ema = recipe.train.ema.has_value();
      options.ema_buffers = !recipe.train.ema || recipe.train.ema->buffers;
      result.states = add_updates(graph, gradients, options).states;
    });
  };
  if (scaling) {
    passes.objective = scaled_loss;
    passes.guard = [&](Graph& graph) { gate_updates(graph, {.squares = graph.find_output("grad_squares"), .scaling = scaling}); };
  }
  if (recipe.train.recompute) {
    passes.recompute = [&](const Graph& graph) -> RecomputeChoice {
      const RecomputeSection& section = *recipe.train.recompute;
      if (section.mode == RecomputeMode::kFull) return recompute_full(graph);
      if (section.mode != RecomputeMode::kMatch) return recompute_selective();
      return [selector = recomputed_modules(graph, section)](const Node& node) {
        return node.phase == Phase::kForward && selector.selects({node.path, std::string(node.op->name), 0});
      };
    };
  }
  training_passes(model.graph, *session.backend(), passes);
  result.graph = std::move(model.graph);
  result.parameters = std::move(model.parameters);
  return result;
}

double seconds_of_run(Workload& work) {
  const int64_t begin = steady_ns();
  work.run();
  return static_cast<double>(steady_ns() - begin) * 1e-9;
}

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// What a measured program took.
struct MeasuredProgram {
  std::vector<double> node_seconds;  // medians, scaled to the median of their sum; empty if stopped before
  double step_s = 0, fastest_s = 0;
  int64_t peak_bytes = 0;  // resident, before recordings take memory
};

/// Runs of a program with and without a recorder, in turns, so that both see the same machine.
/// Large models get fewer, but at least one of each: about kMeasuredSeconds in all.
MeasuredProgram measured_program(Workload& work, const StepMeasuring& measuring) {
  const Program& program = work.program();
  Recorder recorder;
  double warm = seconds_of_run(work);
  if (warm * 2 < kMeasuredSeconds) warm = seconds_of_run(work);  // the first one touches memory for the first time
  const int64_t runs = std::clamp<int64_t>(static_cast<int64_t>(kMeasuredSeconds / (2 * warm)), 1, measuring.runs);
  const int64_t peak = peak_resident_bytes();
  std::vector<double> plain;
  for (int64_t i = 0; i < runs && !(measuring.stop && measuring.stop()); ++i) {
    recorder.begin_step(i);
    work.run(&recorder);
    recorder.end_step();
    plain.push_back(seconds_of_run(work));
  }
  if (plain.empty()) return {.node_seconds = {}, .step_s = warm, .fastest_s = warm, .peak_bytes = peak};
  std::vector<std::vector<double>> times(program.steps().size());
  for (const NodeEvent& event : recorder.recording().nodes)
    times[static_cast<size_t>(event.step)].push_back(static_cast<double>(event.end_ns - event.begin_ns) * 1e-9);
  MeasuredProgram measured{.node_seconds = std::vector<double>(program.graph().nodes().size(), 0)};
  for (size_t s = 0; s < times.size(); ++s) {
    if (!times[s].empty()) measured.node_seconds[static_cast<size_t>(program.steps()[s].node)] = median_of(times[s]);
  }
  // An interruption falls on one operator in one run: the median of that operator leaves it out, but each run has some.
  std::vector<double> sums(plain.size(), 0);
  for (const std::vector<double>& of_step : times) {
    for (size_t run = 0; run < of_step.size() && run < sums.size(); ++run) sums[run] += of_step[run];
  }
  const double medians = std::accumulate(measured.node_seconds.begin(), measured.node_seconds.end(), 0.0);
  const double factor = medians > 0 ? median_of(sums) / medians : 1;
  for (double& seconds : measured.node_seconds) seconds *= factor;
  measured.step_s = median_of(plain);
  measured.fastest_s = *std::min_element(plain.begin(), plain.end());
  measured.peak_bytes = peak;
  return measured;
}

/// Bytes per element of parameters, gradients and optimizer state.
void set_bytes(PlanModel& model, const Recipe& recipe, const std::vector<StateSpec>& states) {
  const int64_t master = bytes_of(recipe.precision.master), compute = bytes_of(recipe.precision.compute);
  double state = 0, average = 0;
  for (const StateSpec& spec : states) {
    if (spec.name.ends_with(".grad")) continue;
    state += static_cast<double>(spec.type.bytes());
    if (spec.name.ends_with(".ema")) average += static_cast<double>(spec.type.bytes());
  }
  const auto trained = static_cast<double>(std::max<int64_t>(1, model.trained_elements()));
  model.bytes = {.parameter = master,
                 .gradient = master,
                 .optimizer = static_cast<int64_t>(state / trained + 0.5),
                 .average = static_cast<int64_t>(average / trained + 0.5)};
  model.gather_bytes = std::min(master, compute);
  model.reduce_bytes = bytes_of(recipe.precision.reduce);
}

}  // namespace

WrapRule wrap_rule(const Recipe& recipe, const std::vector<ParameterSpec>& parameters) {
  WrapRule rule;
  rule.parameters = recipe.sharding.wrap.parameters.value_or(100 * kMegabyte);
  if (recipe.sharding.wrap.match.empty()) return rule;
  // Modules and all modules above them.
  std::vector<Selectable> modules;
  std::set<std::string> known;
  for (const ParameterSpec& spec : parameters) {
    if (known.insert(spec.module).second) modules.push_back({spec.module, spec.module_type, 0});
    for (size_t dot = spec.module.find('.'); dot != std::string::npos; dot = spec.module.find('.', dot + 1)) {
      if (known.insert(spec.module.substr(0, dot)).second) modules.push_back({spec.module.substr(0, dot), "", 0});
    }
  }
  std::set<std::string> units;
  for (const std::string& pattern : recipe.sharding.wrap.match) {
    std::set<std::string> selected;
    for (const int64_t index : Selector{{pattern}, {}}.select(modules, "sharding.wrap.match", true))
      selected.insert(modules[static_cast<size_t>(index)].path);
    // A name selects all below it too: the topmost modules are the units.
    const bool by_name = !pattern.starts_with("type:") && !pattern.starts_with("re:");
    for (const std::string& path : selected) {
      bool below = false;
      for (size_t dot = path.rfind('.'); by_name && dot != std::string::npos && dot > 0; dot = path.rfind('.', dot - 1))
        below = below || selected.contains(path.substr(0, dot));
      if (!below) units.insert(path);
    }
  }
  rule.selects = [units](const std::string& module) { return units.contains(module); };
  return rule;
}

struct PlannedGraph {
  Graph graph;
  std::vector<ParameterSpec> parameters;
  std::vector<StateSpec> states;
  GradientOrder gradients;
  double samples = 1, tokens = 0;
  std::vector<double> node_seconds;  // of the compiled program, if measured
  double exact_bytes = 0;
  std::optional<MeasuredStep> measured;
};

namespace {

bool may_run(const Session& session, const PlannedModelOptions& options) {
  if (options.measuring.runs <= 0 || options.tensor > 1) return false;
  if (!options.measuring.may_run) return true;
  return options.measuring.may_run(Workload::planned_bytes(*Workload::compiled(session, WorkKind::kTrainStep, options.micro)));
}

/// Runs the compiled step, and stores what it took.
void measure(const Session& session, const PlannedModelOptions& options, PlannedGraph& result) {
  const int64_t before = resident_bytes();
  reset_peak_resident_bytes();
  Workload work(session, WorkKind::kTrainStep, options.micro);
  MeasuredProgram measured = measured_program(work, options.measuring);
  result.node_seconds = std::move(measured.node_seconds);
  result.graph = work.program().graph();
  result.exact_bytes = static_cast<double>(work.planned_bytes());
  result.measured = MeasuredStep{.step_s = measured.step_s,
                                 .fastest_s = measured.fastest_s,
                                 .arena_bytes = work.arena_bytes(),
                                 .planned_arena_bytes = work.program().scratch_bytes(),
                                 .peak_bytes = std::max<int64_t>(0, measured.peak_bytes - before)};
}

}  // namespace

namespace {

std::shared_ptr<PlannedGraph> captured_graph(const Session& session, const PlannedModelOptions& options) {
  const BatchTypes types = session.usual_types(options.micro, true);
  TrainingGraph captured = training_graph(session, types, options.accumulation, options.tensor);
  auto result = std::make_shared<PlannedGraph>();
  result->graph = std::move(captured.graph);
  result->parameters = std::move(captured.parameters);
  result->states = std::move(captured.states);
  result->gradients = std::move(captured.gradients);
  result->samples = static_cast<double>(options.micro);
  result->tokens = static_cast<double>(options.micro * session.tokens_of(types));
  return result;
}

}  // namespace

std::shared_ptr<const PlannedGraph> planned_graph(Session& session, const PlannedModelOptions& options) {
  if (options.sequence > 0) session.set_input_shape({options.sequence});
  std::shared_ptr<PlannedGraph> result = captured_graph(session, options);
  if (may_run(session, options)) measure(session, options, *result);
  return result;
}

const std::optional<MeasuredStep>& measured_step(const PlannedGraph& graph) { return graph.measured; }

std::vector<GraphParameter> graph_parameters(const std::vector<ParameterSpec>& parameters) {
  std::vector<GraphParameter> result;
  for (const ParameterSpec& spec : parameters) {
    if (spec.role == ValueRole::kParameter) result.push_back({.name = spec.name, .module = spec.module, .trained = spec.trainable});
  }
  return result;
}

PlanModel planned_model(const PlannedGraph& graph, const Recipe& recipe) {
  std::vector<GraphParameter> parameters = graph_parameters(graph.parameters);
  for (GraphParameter& parameter : parameters) {
    const auto found = graph.gradients.find(parameter.name);
    if (found != graph.gradients.end()) std::tie(parameter.order, parameter.group) = found->second;
  }
  PlanModel model = graph_model(
      graph.graph, parameters, {.wrap = wrap_rule(recipe, graph.parameters), .samples = graph.samples, .node_seconds = graph.node_seconds});
  model.exact_bytes = graph.exact_bytes;
  model.name = recipe.name;
  model.tokens = graph.tokens;
  set_bytes(model, recipe, graph.states);
  return model;
}

PlanModel planned_model(const Session& session, int64_t micro) {
  return planned_model(*captured_graph(session, {.micro = micro}), session.recipe());
}

PlanModel planned_model(Session& session, const PlannedModelOptions& options) {
  return planned_model(*planned_graph(session, options), session.recipe());
}

JobPlan planned_job(const Recipe& recipe, int64_t ranks, const Cluster& cluster) {
  const ShardingSection& sharding = recipe.sharding;
  const MeshSection mesh = resolve_mesh(sharding, ranks, cluster.per_node);
  JobPlan job;
  job.strategy = resolve_strategy(sharding, ranks);
  job.mesh = {.data = mesh.data, .shard = mesh.shard, .tensor = mesh.tensor, .pipe = mesh.pipe};
  job.schedule = sharding.schedule;
  job.chunks = sharding.schedule == PipelineSchedule::kInterleaved && mesh.pipe > 1 ? 2 : 1;
  job.reshard_after_forward = sharding.reshard_after_forward;
  job.gather_limit = sharding.gather_limit.size ? sharding.gather_limit.size->bytes : 0;
  job.bucket_bytes = sharding.bucket.bytes;
  const auto reduce = static_cast<double>(bytes_of(recipe.precision.reduce));
  if (sharding.hook && sharding.hook->kind().factors()) {
    job.power_sgd_rank = sharding.hook->rank;
    job.error_feedback = sharding.hook->error_feedback;
  } else if (sharding.hook) {
    job.hook_factor = std::min(1.0, static_cast<double>(dtype_size(*sharding.hook->kind().sum_dtype)) / reduce);
  }
  if (sharding.split != std::vector<std::string>{"auto"}) {
    job.split = sharding.split;
    const int64_t parts = mesh.pipe * job.chunks;
    if (static_cast<int64_t>(job.split.size()) != parts - 1)
      throw Error(ErrorCode::kRecipe,
                  cat("'sharding.split' names ", counted(std::ssize(job.split), "module"), ", but ", parts, " parts begin at ", parts - 1))
          .key("sharding.split")
          .suggest("write one module for each part after the first, or auto");
  }
  if (!sharding.offload) return job;
  // The host's memory is that of the device where the device is a CPU.
  const auto place = [&](const std::optional<OffloadPlace>& where) {
    if (!where || (where->host && cluster.shared_memory)) return StatePlace::kDevice;
    return where->host ? StatePlace::kHost : StatePlace::kDisk;
  };
  job.parameters = place(sharding.offload->parameters);
  job.gradients = place(sharding.offload->gradients);
  job.optimizer = place(sharding.offload->optimizer);
  return job;
}

int64_t logical_replicas(const Recipe& recipe, int64_t ranks) {
  const int64_t replicas = recipe.deterministic.replicas;
  return replicas == 1 && ranks == 1 && recipe.device.is_gpu() ? 0 : replicas;
}

BatchPlan planned_batch(const Recipe& recipe, const JobPlan& job) {
  if (!recipe.train.batch)
    throw Error(ErrorCode::kRecipe, "the key train.batch is missing").key("train.batch").suggest("write e.g. batch: 128");
  const int64_t readers = job.mesh.data * job.mesh.shard;
  if (const int64_t replicas = logical_replicas(recipe, job.mesh.ranks()); replicas > 0) {
    BatchPlan plan = plan_replicas(*recipe.train.batch, replicas, readers);
    plan.accumulation = (replicas + readers - 1) / readers;
    if (job.mesh.pipe > 1 && plan.global % replicas != 0) {
      throw Error(ErrorCode::kRecipe, cat("a pipeline needs a batch of a multiple of ", replicas, " samples, not ", plan.global))
          .key("train.batch.global")
          .suggest("change train.batch, or the number of replicas");
    }
    return plan;
  }
  BatchSection batch;
  batch.global = recipe.train.batch->global;
  batch.micro = recipe.train.batch->micro;
  if (!batch.micro.count && job.mesh.pipe > 1 && batch.global % readers == 0) {
    const int64_t share = batch.global / readers;
    for (int64_t parts = std::min(4 * job.mesh.pipe, share); parts > 1; --parts) {
      const bool whole = share % parts == 0 && (job.chunks == 1 || parts % job.mesh.pipe == 0);
      if (!whole) continue;
      batch.micro.count = share / parts;
      break;
    }
  }
  return plan_batch(batch, readers);
}

MeasuredStep measured_step(const Recipe& recipe, const BatchPlan& batch, const StepMeasuring& measuring) {
  Recipe share = recipe;
  const int64_t samples = batch.micro * batch.accumulation;
  share.train.batch->global = samples;
  share.train.batch->micro.count = batch.micro;
  const Session session(share);
  const int64_t before = resident_bytes();
  reset_peak_resident_bytes();
  Workload work(session, WorkKind::kTrainStep, samples);
  for (int i = 0; i < kWarmUp; ++i) work.run();
  std::vector<double> seconds;
  do seconds.push_back(seconds_of_run(work));
  while (static_cast<int64_t>(seconds.size()) < measuring.runs && !(measuring.stop && measuring.stop()));
  return {.step_s = median_of(seconds),
          .fastest_s = *std::min_element(seconds.begin(), seconds.end()),
          .arena_bytes = work.arena_bytes(),
          .planned_arena_bytes = work.program().scratch_bytes(),
          .peak_bytes = std::max<int64_t>(0, peak_resident_bytes() - before)};
}

LocalRates local_rates(int threads) {
  const MachineLimits limits = machine_limits(threads);
  return {.f32 = limits.flops_per_s,
          .bf16 = limits.bf16_per_s,
          .bytes = limits.bytes_per_s,
          .cores = available_cores(),
          .memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE))};
}

}  // namespace galley
