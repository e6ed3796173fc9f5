#include "libcore/train/workload.h"

#include "libcore/base/philox.h"
#include "libcore/data/loader.h"
#include "libcore/nn/loss.h"
#include "libcore/runtime/compile.h"
#include "libcore/train/inference.h"
#include "libcore/train/step.h"

namespace galley {
namespace {

void fill_random(Tensor& tensor, RandomStream stream, int64_t below) {
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    switch (tensor.dtype()) {
      case DType::kF32: tensor.data_as<float>()[i] = static_cast<float>(2 * stream.uniform() - 1); break;
      case DType::kI64: tensor.data_as<int64_t>()[i] = static_cast<int64_t>(stream.below(static_cast<uint64_t>(std::max<int64_t>(1, below)))); break;
      default: GALLEY_ASSERT(false, tensor.str());
    }
  }
}

/// How an update of that many samples is cut.
BatchPlan batch_plan(const Recipe& recipe, int64_t batch) {
  BatchPlan plan{.global = batch, .micro = batch, .accumulation = 1};
  if (recipe.train.batch && recipe.train.batch->micro.count && *recipe.train.batch->micro.count > 0 && batch % *recipe.train.batch->micro.count == 0) {
    plan.micro = *recipe.train.batch->micro.count;
    plan.accumulation = batch / plan.micro;
  }
  return plan;
}

std::unique_ptr<TrainStep> make_step(const Session& session, const BatchPlan& plan) {
  const BatchTypes types = usual_batch(session, plan.micro);
  // Long enough for any schedule; what is timed does not depend on it.
  const RunLength length{.total_steps = int64_t{1} << 30, .steps_per_epoch = 1 << 20, .samples_per_step = static_cast<double>(plan.global),
                         .tokens_per_step = static_cast<double>(plan.global * session.tokens_of(types.input))};
  return std::make_unique<TrainStep>(session, types, plan, length);
}

std::shared_ptr<const Program> compile_forward(const Session& session, InferenceModel& model) {
  return compile(std::move(model.graph), session.compile_options());
}

}  // namespace

BatchTypes usual_batch(const Session& session, int64_t batch) {
  Shape shape{batch};
  for (const int64_t size : session.info().input_shape) shape.push_back(size);
  GALLEY_CHECK(shape.rank() > 1, "the model does not say its input shape: give model.input.shape");
  BatchTypes types;
  types.input = session.input_type(session.info().input_dtype, shape);
  types.target = session.target_type(types.input);
  return types;
}

Batch random_batch(const Session& session, const BatchTypes& types) {
  Batch batch;
  Tensor input(types.input.dtype, types.input.shape), target(types.target.dtype, types.target.shape);
  fill_random(input, RandomStream(0, "workload input", 0), session.by_tokens() ? session.classes() : 0);
  fill_random(target, RandomStream(0, "workload target", 0), session.classes());
  const bool images = input.shape().rank() == 4 && session.layout() != LayoutMode::kContiguous;
  batch.fields.emplace("input", images ? input.to(MemoryFormat::channels_last()) : input);
  batch.fields.emplace(session.classes() > 0 ? "label" : "target", target);
  batch.valid = types.input.shape[0];
  return batch;
}

struct Workload::Forward {
  ParameterStore store;
  std::unique_ptr<Execution> execution;
  Batch batch;
};

struct Workload::Update {
  std::unique_ptr<TrainStep> step;
  Batch batch;
  int64_t number = 0;
};

Workload::Workload(const Session& session, WorkKind kind, int64_t batch) : samples_(batch) {
  if (kind == WorkKind::kForward) {
    make_forward(session, batch);
  } else {
    make_update(session, batch);
  }
}

Workload::~Workload() = default;

void Workload::make_forward(const Session& session, int64_t batch) {
  const BatchTypes types = usual_batch(session, batch);
  InferenceModel model = inference_model(session, types.input, loaded_plan(session.recipe()));
  program_ = compile_forward(session, model);
  const auto parts = std::make_shared<Forward>();
  parts->store.declare(*program_);
  session.initialize(model.parameters, parts->store);
  parts->execution = std::make_unique<Execution>(program_, parts->store);
  parts->batch = random_batch(session, types);
  parts->execution->feed("input", parts->batch.input());
  run_ = [forward = parts.get()](NodeObserver* observer) { forward->execution->run({.observer = observer}); };
  parts_ = parts;
  add_cost(*program_, 1);
}

void Workload::add_cost(const Program& program, double times) {
  for (const Node& node : program.graph().nodes()) {
    const Cost cost = cost_of(*node.op, context_of(program.graph(), node));
    flops_ += times * cost.flops;
    executed_.add(cost, times);
    bytes_ += times * (cost.bytes_read + cost.bytes_written);
  }
}

void Workload::make_update(const Session& session, int64_t batch) {
  const BatchPlan plan = batch_plan(session.recipe(), batch);
  const auto parts = std::make_shared<Update>();
  parts->step = make_step(session, plan);
  parts->step->initialize();
  parts->step->bind(std::make_shared<Arena>());
  parts->batch = random_batch(session, usual_batch(session, plan.micro));
  program_ = parts->step->shared_program();
  run_ = [update = parts.get()](NodeObserver* observer) {
    update->step->run(++update->number, [update]() -> const Batch& { return update->batch; }, observer);
  };
  parts_ = parts;
  add_cost(*program_, 1);
  if (const Program* accumulate = parts->step->accumulate_program()) add_cost(*accumulate, static_cast<double>(plan.accumulation - 1));
}

std::shared_ptr<const Program> Workload::compiled(const Session& session, WorkKind kind, int64_t batch) {
  if (kind == WorkKind::kTrainStep) return make_step(session, batch_plan(session.recipe(), batch))->shared_program();
  InferenceModel model = inference_model(session, usual_batch(session, batch).input, loaded_plan(session.recipe()));
  return compile_forward(session, model);
}

int64_t Workload::planned_bytes(const Program& program) { return program.persistent_bytes() + program.scratch_bytes() + program.prepared_bytes() + program.feed_bytes(); }

}  // namespace galley
