// What the ranks of a run have in common, and tell each other besides gradients: texts, metrics, decisions.

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "libcore/base/file.h"
#include "libcore/comm/rank_scope.h"
#include "libcore/comm/texts.h"
#include "libcore/train/capture_training.h"
#include "libcore/train/host_array.h"
#include "libcore/train/planned_model.h"
#include "libcore/train/rank_facts.h"
#include "libcore/train/rank_roles.h"
#include "libcore/train/trainer_state.h"

namespace galley {
namespace {

/// Gives every rank the metrics of rank 0; absent: the evaluation was stopped.
void share_metrics(Communicator& ranks, std::optional<MetricValues>& metrics) {
  std::string names;
  std::vector<double> values;
  if (metrics) {
    for (const auto& [name, value] : *metrics) {
      names += name + "\n";
      values.push_back(value);
    }
  }
  int32_t given = metrics.has_value();
  ranks.broadcast("metrics", &given, 1, DType::kI32, 0);
  if (given == 0) {
    metrics.reset();
    return;
  }
  names = broadcast_text(ranks, "metrics", names, 0);
  std::vector<std::string> list;
  for (size_t at = 0; at < names.size();) {
    const size_t end = names.find('\n', at);
    list.push_back(names.substr(at, end - at));
    at = end + 1;
  }
  values.resize(list.size());
  if (!values.empty()) ranks.broadcast("metrics", values.data(), static_cast<int64_t>(values.size()), DType::kF64, 0);
  metrics.emplace();
  for (size_t i = 0; i < list.size(); ++i) metrics->emplace_back(list[i], values[i]);
}

}  // namespace

int64_t Trainer::State::agreed(const char* name, int64_t value) const {
  if (options.ranks != nullptr) options.ranks->all_reduce(name, &value, &value, 1, DType::kI64, ReduceOp::kMax);
  return value;
}

double Trainer::State::of_rank_0(const char* name, double value) const {
  if (options.ranks != nullptr) options.ranks->broadcast(name, &value, 1, DType::kF64, 0);
  return value;
}

/// The signal that one of the ranks received; SIGTERM's number for a file RUN/stop, which is removed.
int Trainer::State::asked_to_stop(TrainEvents& events) {
  int64_t signal = events.stop_signal();
  const std::string file = options.run + "/stop";
  if (signal == 0 && writes() && file_exists(file)) {
    remove_tree(file);
    stop_file = true;
  }
  constexpr int kTerminate = 15;
  if (stop_file) signal = kTerminate;
  return static_cast<int>(agreed("signals", signal));
}

void Trainer::State::check_equal_digests(const std::string& digest) const {
  if (options.ranks == nullptr || divides_weights() || stages) return;
  const std::string first = broadcast_text(*options.ranks, "digest", digest, 0);
  const std::string differs =
      first == digest ? "" : cat("rank ", own_rank(), " has other parameters than rank 0: ", digest, ", not ", first);
  const std::string message = first_text(*options.ranks, differs);
  GALLEY_ASSERT(message.empty(), message);
}

/// Throws on all ranks if they were not started to do the same.
void Trainer::State::check_facts() {
  if (rank_count() == 1 || facts_checked) return;
  facts_checked = true;
  RankFacts facts;
  facts.recipe_text = recipe_text;
  const auto provenance = nlohmann::json::parse(options.provenance);
  for (const char* key : {"version", "commit", "isa"}) {
    const std::string value = provenance.value(key, std::string());
    if (!value.empty()) facts.build += (facts.build.empty() ? "" : ", ") + value;
  }
  const auto given = [](bool flag) { return flag ? "given" : "not given"; };
  facts.settings = {{"-o", std::filesystem::absolute(options.run).lexically_normal().string()},
                    {"--force", given(options.force)},
                    {"--dry-run", given(options.dry_run)},
                    {"the folder RUN", file_exists(options.run) ? "there" : "not there"}};
  check_equal_facts(*options.ranks, facts);
}

void Trainer::State::check_data() {
  if (rank_count() == 1) return;
  RankData data;
  for (const char* split : {"train", "val"}) {
    if (recipe.data.find(split) != nullptr) data.emplace_back(cat("data.", split), session.source(split));
  }
  check_equal_data(*options.ranks, data);
}

void Trainer::State::on_rank_0(const std::function<void()>& write) {
  const auto finish = [this] {
    if (sharded) sharded->finish();
    if (stages) stages->finish();
  };
  if (!writes()) {
    if (sharded) sharded->serve();
    if (stages) stages->serve();
    return;
  }
  try {
    write();
  } catch (const Error&) {
    finish();
    throw;
  }
  finish();
}

/// The digest of the current parameters. It excludes buffers (running statistics), which depend on the division of the batch.
std::string Trainer::State::digest() {
  std::string digest;
  const auto compute = [&] {
    std::vector<TensorSource> tensors;
    for (const ParameterSpec& spec : update->parameters()) {
      if (spec.role == ValueRole::kParameter) tensors.push_back(source_of(spec.name, spec));
    }
    digest = digest_of_tensors(tensors);
  };
  if (!divides_weights() && !stages) {
    compute();
    return digest;
  }
  on_rank_0(compute);
  return broadcast_text(*options.ranks, "digest", digest, 0);
}

TensorSource Trainer::State::source_of(const std::string& name, const ParameterSpec& spec) {
  TensorSource source{spec.name, spec.type.dtype, spec.type.shape, [&store = update->store(), name] { return store.view(name); }};
  if (sharded && sharded->has(name)) source = sharded->source(name);
  if (stages && stages->has(name)) source = stages->source(name);
  source.name = spec.name;
  const DType dtype = dtype_in_files(spec);
  if (dtype == source.dtype) return source;
  source.values = [values = std::move(source.values), dtype] { return values().to(dtype); };
  source.dtype = dtype;
  return source;
}

void Trainer::State::count_samples() {
  if (rank_count() == 1) return;
  const std::array<int64_t, 2> own{own_skipped(), own_irregular()};
  // Ranks that divide matrices, and the stages of a pipeline, read the same samples.
  const bool counts = pipelines() ? own_rank() < reading_ranks() : own_rank() % (rank_count() / reading_ranks()) == 0;
  std::array<int64_t, 2> all = counts ? own : std::array<int64_t, 2>{};
  options.ranks->all_reduce("samples", all.data(), all.data(), 2, DType::kI64);
  skipped_elsewhere = all[0] - own[0];
  irregular_elsewhere = all[1] - own[1];
}

void Trainer::State::share_buffers() {
  if (stages) return;  // one stage has each of them
  ParameterStore& store = update->store();
  for (const ParameterSpec& spec : update->parameters()) {
    if (spec.role != ValueRole::kBuffer) continue;
    for (const std::string& name : {spec.name, spec.name + ".ema"}) {
      if (!store.has(name)) continue;
      HostArray values(store, name);
      options.ranks->broadcast("buffers", values.array().data(), values.array().bytes(), DType::kI8, 0);
      values.changed();
    }
  }
}

std::optional<MetricValues> Trainer::State::evaluate(Evaluator& evaluates, TrainEvents& events) {
  const auto stop = [&] {
    if (options.ranks != nullptr && options.ranks->position() != nullptr) ++options.ranks->position()->polls;  // it gets on
    return recipe.checkpoint.has_value() && events.stop_signal() != 0;
  };
  const Evaluator::Replicas parts{.count = static_cast<int>(logical_replicas(recipe, rank_count())),
                                  .threads = replica_threads(),
                                  .collectives = gathers_parameters() || stages};
  const bool by_replicas = parts.count > 0 && evaluates.divides();
  if (rank_count() == 1) return by_replicas ? evaluates.run(stop, nullptr, parts) : evaluates.run(stop);
  const LongTask evaluation(options.ranks->position());
  share_buffers();
  const auto agreed_stop = [&] { return agreed("signals", stop()) != 0; };
  const bool gathers = divides_weights() || stages;
  const RankScope scope(gathers_parameters() ? sample_ranks() : stages ? options.ranks : nullptr, tensor_ranks());
  if (tensor_ranks() != nullptr && by_replicas)
    return evaluates.run(agreed_stop, sample_ranks(), {.count = parts.count, .threads = 1, .collectives = true});
  if (tensor_ranks() != nullptr) return evaluates.run(agreed_stop, evaluates.divides() ? sample_ranks() : nullptr);
  if (by_replicas) return evaluates.run(agreed_stop, options.ranks, parts);
  if (evaluates.divides()) return evaluates.run(agreed_stop, options.ranks);
  if (gathers) return evaluates.run(agreed_stop);  // all ranks evaluate all samples
  std::optional<MetricValues> metrics;
  if (writes()) metrics = evaluates.run(stop);
  share_metrics(*options.ranks, metrics);
  return metrics;
}

bool Trainer::State::pipelines() const { return is_pipeline(recipe, options.ranks); }

int Trainer::State::reading_ranks() const {
  return pipelines() ? pipeline_ranks_of(recipe, *options.ranks).copies : rank_count() / matrix_ranks(recipe, options.ranks);
}

int Trainer::State::reading_rank() const {
  return pipelines() ? pipeline_ranks_of(recipe, *options.ranks).copy : own_rank() / (rank_count() / reading_ranks());
}

Communicator* Trainer::State::tensor_ranks() const {
  if (tensor_members != nullptr) return tensor_members.get();
  return matrix_ranks(recipe, options.ranks) > 1 ? options.ranks : nullptr;
}
Communicator* Trainer::State::sample_ranks() const {
  if (sample_members != nullptr) return sample_members.get();
  return matrix_ranks(recipe, options.ranks) > 1 ? nullptr : options.ranks;
}

void Trainer::State::make_groups() {
  const int tensor = matrix_ranks(recipe, options.ranks);
  if (tensor == 1 || tensor == rank_count()) return;
  tensor_members = std::make_unique<GroupCommunicator>(*options.ranks, tensor_group(own_rank(), tensor));
  sample_members = std::make_unique<GroupCommunicator>(*options.ranks, data_group(own_rank(), rank_count(), tensor));
}

bool Trainer::State::gathers_parameters() const { return divides_parameters(recipe, sample_ranks()); }
bool Trainer::State::divides_weights() const { return gathers_parameters() || matrix_ranks(recipe, options.ranks) > 1; }

LeafRange Trainer::State::own_replicas() const { return ReductionTree(static_cast<int>(replicas), reading_ranks()).owned(reading_rank()); }

std::unique_ptr<DataLoader> Trainer::State::open_loader(int64_t start, int64_t replica) {
  if (replicas == 0) return session.training_loader(batch.micro, start, {.rank = reading_rank(), .ranks = reading_ranks()});
  if (replica < 0) replica = own_replicas().begin;
  return session.training_loader(batch.global, start, {.rank = replica, .ranks = replicas, .of_all = true});
}

void Trainer::State::open_loaders(int64_t start) {
  replica_loaders.clear();
  delivered_by = nullptr;
  before_next.reset();
  loader = open_loader(start);
  if (replicas == 0) return;
  for (int replica = own_replicas().begin + 1; replica < own_replicas().end; ++replica)
    replica_loaders.push_back(open_loader(start, replica));
}

std::vector<BatchTypes> Trainer::State::replica_types() {
  std::vector<BatchTypes> types;
  const auto add = [&](int64_t replica) {
    const std::unique_ptr<DataLoader> other = open_loader(0, replica);
    const std::vector<BatchTypes> all = session.all_batch_types(*other);
    types.insert(types.end(), all.begin(), all.end());
  };
  add(replicas - 1);
  if (batch.global % replicas != 0) add(0);
  return types;
}

int64_t Trainer::State::own_skipped() const {
  if (before_next) return before_next->skipped;
  int64_t count = loader->skips().skipped;
  for (const auto& other : replica_loaders) count += other->skips().skipped;
  return count;
}

int64_t Trainer::State::own_irregular() const {
  if (before_next) return before_next->irregular;
  int64_t count = loader->irregular().samples;
  for (const auto& other : replica_loaders) count += other->irregular().samples;
  return count;
}

}  // namespace galley
