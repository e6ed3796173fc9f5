#include "libcore/train/check_model.h"

#include "libcore/base/under_key.h"
#include "libcore/data/batch_transform.h"
#include "libcore/data/pipeline.h"
#include "libcore/infer/session.h"
#include "libcore/optim/schedule.h"
#include "libcore/passes/pipelines.h"
#include "libcore/quantize/qat.h"
#include "libcore/train/capture_training.h"
#include "libcore/train/step.h"

namespace galley {

void check_durations(const Recipe& recipe, const RunLength& run) {
  const auto named = [](const char* key, const auto& check) {
    try {
      check();
    } catch (Error& error) {
      if (error.key().empty()) error.key(key);
      throw Error(error.code(), cat(error.key(), ": ", error.message())).key(error.key()).suggest(error.suggestion());
    }
  };
  const TrainSection& train = recipe.train;
  named("train.schedule", [&] { Schedule(train.schedule, schedule_length(train.schedule, run)); });
  named("log.every", [&] { steps_of(recipe.log.every, run); });
  if (train.validate) named("train.validate.every", [&] { steps_of(train.validate->every, run); });
  if (train.early_stop) named("train.early_stop.patience", [&] { steps_of(train.early_stop->patience, run); });
  if (train.ema) named("train.ema.every", [&] { steps_of(train.ema->every, run); });
  if (recipe.quantize.method == QuantMethod::kQat) {
    const QatSection& qat = recipe.quantize.qat;
    named("quantize.qat.start", [&] { steps_of(qat.start, run); });
    named("quantize.qat.observers_until", [&] { steps_of(qat.observers_until, run); });
    named("quantize.qat.batch_norm_until", [&] { steps_of(qat.batch_norm_until, run); });
  }
  if (recipe.checkpoint) named("checkpoint.every", [&] { steps_of(recipe.checkpoint->every, run); });
}

namespace {

/// Checks the options of transforms as the loader of the split does.
void check_transforms(const Recipe& recipe) {
  for (const char* name : {"train", "val", "test"}) {
    const Split* split = recipe.data.find(name);
    if (split == nullptr) continue;
    try {
      if (!split->pipeline_from_weights()) Pipeline{split->pipeline};
      for (size_t i = 0; i < split->batch_transforms.size(); ++i)
        under_key(cat("batch_transforms.", i), [&] { split->batch_transforms[i].as<BatchTransform>()->check(); });
    } catch (Error& error) {
      throw error.key(cat("data.", name, ".", error.key()));
    }
  }
}

}  // namespace

void check_model(const Recipe& recipe) {
  check_transforms(recipe);
  const std::unique_ptr<Session> opened = Session::without_data(recipe);
  const Session& session = *opened;
  if (recipe.train.duration) {
    // The data are unknown here, so assume any number of steps per epoch.
    const bool timed = recipe.train.duration->unit == DurationUnit::kSeconds;
    check_durations(recipe, {.total_steps = timed ? 0 : 1000,
                             .steps_per_epoch = 10,
                             .samples_per_step = 1,
                             .tokens_per_step = session.tokens_of(session.usual_types(1, false)) > 0 ? 1.0 : 0.0});
  }
  const int64_t batch = session.info().fixed_batch > 0 ? session.info().fixed_batch : 2;
  // A recipe without training keys is for prediction and needs no loss.
  if (session.task_or_null() == nullptr && !recipe.train.optimizer.algorithm && !recipe.train.duration) {
    session.capture_inference(session.usual_types(batch, false));
    return;
  }
  const BatchTypes types = session.usual_types(batch, true);
  const CapturedModel training = capture_training(session, types);
  if (recipe.train.recompute && recipe.train.recompute->mode == RecomputeMode::kMatch)
    recomputed_modules(training.graph, *recipe.train.recompute);
  if (trains_quantized(recipe)) {
    Graph rounded = training.graph;
    fake_quantize_passes(rounded, QuantizationAware(session, types).passes(types, {}));
  }
  const std::vector<Selectable> items = selectables(session.capture_evaluation(types).parameters);
  for (size_t i = 0; i < recipe.train.optimizer.groups.size(); ++i) {
    const auto& group = recipe.train.optimizer.groups.at<OptimizerGroup>(i);
    const Selector selector{group.match, group.except};
    selector.select(items, cat("train.optimizer.groups.", i));
  }
}

}  // namespace galley
