#pragma once
// Runs of a recipe on several ranks, which are threads of the test.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/comm/local.h"
#include "libcore/recipe/recipe.h"
#include "libcore/train/trainer.h"
#include "libcore/weights/safetensors.h"
#include "tests/support/as_ranks.h"
#include "tests/train/stepping.h"

namespace galley {

/// 50 samples in batches of 12: the last batch of an epoch has 2, fewer than three ranks.
inline constexpr std::string_view kRecipe = R"(
recipe: 1
name: ranks
model:
  type: layers
  input: {shape: [12]}
  layers:
    - {name: fc1, type: linear, out_features: 16}
    - {name: norm, type: layer_norm}
    - {type: gelu}
    - {type: dropout, p: 0.3}
    - {name: fc2, type: linear, out_features: 3}
loss: {type: cross_entropy}
data:
  train: {source: {type: synthetic, samples: 50, shape: [12], classes: 3}, shuffle: true, last_batch: keep, workers: 1}
  val: {source: {type: synthetic, samples: 20, shape: [12], classes: 3}}
train:
  duration: 12 steps
  batch: 12
  optimizer: {type: sgd, lr: 0.1, momentum: 0.9, weight_decay: 0.01}
  validate: {every: 6 steps}
checkpoint: {every: 6 steps}
log: {every: 1 step, tensorboard: false}
)";

class Quiet : public TrainEvents {
 public:
  void stepped(const TrainRow& row, double, double, bool) override {
    losses.push_back(row.loss);
    norms.push_back(row.grad_norm);
  }
  void evaluated(const EvalRow& row) override { metrics = row.metrics; }
  std::vector<double> losses, norms;
  MetricValues metrics;
};

struct Trained {
  std::vector<std::string> digests;         // of each rank
  std::vector<std::vector<double>> losses;  // of each rank
  std::vector<std::vector<double>> norms;   // of gradients, of each rank
  std::vector<MetricValues> metrics;        // of each rank
  std::map<std::string, std::vector<double>> parameters;
  std::vector<std::string> errors;  // of each rank, with the key: "sharding.mesh: ..."
  std::vector<ErrorCode> codes;
  std::vector<Traffic> reduced, scattered, gathered;
  std::vector<int64_t> state_bytes, persistent_bytes, disk_bytes;
  std::string run;
};

inline std::map<std::string, std::vector<double>> parameters_of(const std::string& file) {
  std::map<std::string, std::vector<double>> all;
  const SafetensorsFile weights(file);
  for (const SafetensorsEntry& entry : weights.entries()) all[entry.name] = weights.read(entry).to_doubles();
  return all;
}

/// One recipe for all ranks, or one for each.
inline Trained train_each(const std::string& folder, const std::vector<const LoadedRecipe*>& recipes) {
  const size_t ranks = recipes.size();
  auto communicators = local_communicators(static_cast<int>(ranks), {.timeout_s = 120});
  Trained run;
  run.run = folder;
  for (auto* each : {&run.digests, &run.errors}) each->resize(ranks);
  for (auto* each : {&run.losses, &run.norms}) each->resize(ranks);
  for (auto* each : {&run.state_bytes, &run.persistent_bytes, &run.disk_bytes}) each->resize(ranks);
  run.metrics.resize(ranks);
  run.codes.resize(ranks);
  const std::vector<std::string> thrown = as_ranks(communicators, [&](Communicator& rank) {
    const auto r = static_cast<size_t>(rank.rank());
    try {
      TrainerOptions options;
      options.run = folder;
      options.provenance = "{}";
      options.ranks = ranks > 1 ? &rank : nullptr;
      Trainer trainer(*recipes[r], dump_recipe(recipes[r]->recipe, DumpKind::kFull), options);
      Quiet events;
      run.state_bytes[r] = trainer.plan().state_bytes;
      run.persistent_bytes[r] = trainer.plan().persistent_bytes;
      run.disk_bytes[r] = trainer.plan().disk_bytes;
      run.digests[r] = trainer.run(events).digest;
      run.losses[r] = events.losses;
      run.norms[r] = events.norms;
      run.metrics[r] = events.metrics;
    } catch (const Error& error) {
      run.errors[r] = cat(error.key(), error.key().empty() ? "" : ": ", error.message());
      run.codes[r] = error.code();
      throw;
    }
  });
  for (size_t r = 0; r < ranks; ++r) {
    if (run.errors[r].empty()) run.errors[r] = thrown[r];  // InternalError
  }
  for (const auto& communicator : communicators) {
    run.reduced.push_back(communicator->traffic(CollectiveKind::kAllReduce));
    run.scattered.push_back(communicator->traffic(CollectiveKind::kReduceScatter));
    run.gathered.push_back(communicator->traffic(CollectiveKind::kAllGather));
  }
  if (run.errors.front().empty()) run.parameters = parameters_of(folder + "/weights.safetensors");
  return run;
}

inline Trained train(const std::string& folder, int ranks, std::vector<std::string> overrides = {}, std::string_view recipe = kRecipe) {
  const LoadedRecipe loaded = test::load_text(recipe, std::move(overrides));
  return train_each(folder, std::vector<const LoadedRecipe*>(static_cast<size_t>(ranks), &loaded));
}

}  // namespace galley
