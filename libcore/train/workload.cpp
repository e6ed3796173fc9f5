#include "libcore/train/workload.h"

#include "libcore/data/loader.h"
#include "libcore/infer/decoder.h"
#include "libcore/infer/inference.h"
#include "libcore/infer/random_batch.h"
#include "libcore/runtime/engine.h"
#include "libcore/train/step.h"

namespace galley {
namespace {

/// How an update of `batch` samples is divided into micro-batches.
BatchPlan batch_plan(const Recipe& recipe, int64_t batch) {
  BatchPlan plan{.global = batch, .micro = batch, .accumulation = 1};
  if (recipe.train.batch && recipe.train.batch->micro.count && *recipe.train.batch->micro.count > 0 &&
      batch % *recipe.train.batch->micro.count == 0) {
    plan.micro = *recipe.train.batch->micro.count;
    plan.accumulation = batch / plan.micro;
  }
  return plan;
}

std::unique_ptr<TrainStep> make_step(const Session& session, Engine& engine, const BatchPlan& plan) {
  const BatchTypes types = session.usual_types(plan.micro, true);
  // Long enough for any schedule; the time of a step does not depend on it.
  const RunLength length{.total_steps = int64_t{1} << 30,
                         .steps_per_epoch = 1 << 20,
                         .samples_per_step = static_cast<double>(plan.global),
                         .tokens_per_step = static_cast<double>(plan.global * session.tokens_of(types))};
  return std::make_unique<TrainStep>(session, engine, types, plan, length);
}

}  // namespace

struct Workload::Forward {
  explicit Forward(const Session& session) : engine(session.backend()) {}
  Engine engine;
  std::unique_ptr<Execution> execution;
  Batch batch;
};

struct Workload::Update {
  explicit Update(const Session& session) : engine(session.backend()) {}
  Engine engine;
  std::unique_ptr<TrainStep> step;
  Batch batch;
  int64_t number = 0;
};

struct Workload::Generation {
  Generation(const Session& session, std::shared_ptr<const QuantizationPlan> plan)
      : engine(session.backend()), decoder(session, engine, std::move(plan)) {}
  Engine engine;
  Decoder decoder;
  std::vector<std::vector<int64_t>> rows;
};

Workload::Workload(const Session& session, WorkKind kind, int64_t batch, int64_t tokens) : samples_(batch) {
  if (kind == WorkKind::kForward) {
    make_forward(session, batch);
  } else if (kind == WorkKind::kTrainStep) {
    make_update(session, batch);
  } else {
    make_generation(session, kind, batch, tokens);
  }
}

Workload::~Workload() = default;

void Workload::make_forward(const Session& session, int64_t batch) {
  const BatchTypes types = session.usual_types(batch, false);
  InferenceModel model = inference_model(session, types, loaded_plan(session.recipe()));
  const auto parts = std::make_shared<Forward>(session);
  program_ = compile_inference(parts->engine, types, model, "forward pass on random inputs");
  parts->engine.declare(*program_);
  session.initialize(model.parameters, parts->engine.store());
  parts->execution = parts->engine.bind(program_);
  parts->batch = random_batch(session, types);
  feed_fields(*parts->execution, parts->batch);
  run_ = [forward = parts.get()](NodeObserver* observer) {
    forward->execution->run({.observer = observer});
    forward->execution->wait();
  };
  parts_ = parts;
  arena_ = parts->engine.arena();
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
  const auto parts = std::make_shared<Update>(session);
  parts->step = make_step(session, parts->engine, plan);
  parts->step->initialize();
  parts->step->bind();
  parts->batch = random_batch(session, session.usual_types(plan.micro, true));
  parts->step->repeat_batch();
  program_ = parts->step->shared_program();
  run_ = [update = parts.get()](NodeObserver* observer) {
    update->step->run(++update->number, [update]() -> const Batch& { return update->batch; }, observer);
  };
  parts_ = parts;
  arena_ = parts->engine.arena();
  add_cost(*program_, 1);
  if (const Program* accumulate = parts->step->accumulate_program()) add_cost(*accumulate, static_cast<double>(plan.accumulation - 1));
}

void Workload::make_generation(const Session& session, WorkKind kind, int64_t batch, int64_t tokens) {
  if (!session.info().cache) {
    throw Error(ErrorCode::kRecipe, "what=decode and what=prefill generate text, and this model has no key-value cache")
        .key("benchmark.what")
        .suggest("use a language model such as gpt2, or what=forward");
  }
  const int64_t context = session.info().input_shape.front(), length = kind == WorkKind::kDecode ? tokens + 1 : tokens;
  if (length > context) {
    throw Error(ErrorCode::kRecipe, cat("sequences of ", length, " tokens, but the model reads at most ", context))
        .key("benchmark.tokens")
        .suggest(cat("tokens=", kind == WorkKind::kDecode ? context - 1 : context));
  }
  const auto parts = std::make_shared<Generation>(session, loaded_plan(session.recipe()));
  const int64_t vocabulary = parts->decoder.vocabulary();
  for (int64_t row = 0; row < batch; ++row) {
    std::vector<int64_t> ids;
    for (int64_t t = 0; t < length; ++t) ids.push_back((row + 7919 * t) % vocabulary);
    parts->rows.push_back(std::move(ids));
  }
  // Another token in the last (decoding) or in the first place (prefill), so that the decoder reads it and what follows.
  run_ = [generation = parts.get(), kind, vocabulary](NodeObserver*) {
    for (std::vector<int64_t>& row : generation->rows) {
      int64_t& token = kind == WorkKind::kDecode ? row.back() : row.front();
      token = (token + 1) % vocabulary;
    }
    generation->decoder.next_logits(generation->rows);
  };
  run_(nullptr);
  program_ = {parts, &parts->decoder.program(kind == WorkKind::kDecode ? 1 : tokens)};
  parts_ = parts;
  const int64_t read = program_->graph().type(program_->graph().inputs().front()).shape[1];
  add_cost(*program_, kind == WorkKind::kDecode ? 1 : static_cast<double>((tokens + read - 1) / read));
}

std::shared_ptr<const Program> Workload::compiled(const Session& session, WorkKind kind, int64_t batch) {
  if (kind == WorkKind::kTrainStep) {
    Engine engine(session.backend());
    return make_step(session, engine, batch_plan(session.recipe(), batch))->shared_program();
  }
  return compiled_forward(session, batch, loaded_plan(session.recipe()));
}

int64_t Workload::planned_bytes(const Program& program) {
  return program.persistent_bytes() + program.scratch_bytes() + program.prepared_bytes() + program.feed_bytes() + program.carried_bytes();
}

}  // namespace galley
