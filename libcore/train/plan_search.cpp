#include "libcore/train/plan_search.h"

#include <algorithm>

#include "libcore/base/error.h"
#include "libcore/base/units.h"

namespace galley {
namespace {

constexpr int64_t kMillion = 1'000'000;
constexpr int64_t kMostMicroBatch = int64_t{1} << 20;

std::string mesh_text(const MeshSection& mesh) {
  return cat("{data: ", mesh.data, ", shard: ", mesh.shard, ", tensor: ", mesh.tensor, ", pipe: ", mesh.pipe, "}");
}

/// How ranks may be divided: a strategy and its mesh.
struct Division {
  ShardingStrategy strategy;
  std::optional<MeshSection> mesh;
};

MeshSection mesh_of(int64_t data, int64_t shard, int64_t tensor, int64_t pipe) {
  MeshSection mesh;
  mesh.data = data;
  mesh.shard = shard;
  mesh.tensor = tensor;
  mesh.pipe = pipe;
  return mesh;
}

/// Divisions with these degrees: the ranks that are left read different samples.
void add_divisions(int64_t ranks, int64_t tensor, int64_t pipe, const Cluster& cluster, std::vector<Division>& all) {
  const int64_t readers = ranks / (tensor * pipe);
  const bool plain = tensor == 1 && pipe == 1;
  const auto add = [&](ShardingStrategy strategy, int64_t data, int64_t shard) {
    all.push_back({strategy, plain ? std::nullopt : std::optional(mesh_of(data, shard, tensor, pipe))});
  };
  add(pipe > 1     ? ShardingStrategy::kPipeline
      : tensor > 1 ? ShardingStrategy::kTensor
      : ranks > 1  ? ShardingStrategy::kDdp
                   : ShardingStrategy::kNone,
      readers, 1);
  if (readers == 1) return;
  add(ShardingStrategy::kZero1, 1, readers);
  add(ShardingStrategy::kZero2, 1, readers);
  add(ShardingStrategy::kFsdp, 1, readers);
  const int64_t in_node = std::max<int64_t>(1, cluster.per_node / tensor);
  if (readers > in_node && readers % in_node == 0 && in_node > 1) add(ShardingStrategy::kHybrid, readers / in_node, in_node);
}

std::vector<Division> divisions(const Recipe& recipe, int64_t ranks, const Cluster& cluster) {
  const ShardingStrategy strategy = resolve_strategy(recipe.sharding, ranks);
  if (recipe.sharding.mesh) return {{strategy, recipe.sharding.mesh}};
  std::vector<Division> all;
  for (int64_t tensor = 1; tensor <= std::min(cluster.per_node, ranks); tensor *= 2) {
    if (ranks % tensor != 0) continue;
    for (int64_t pipe = 1; pipe <= ranks / tensor; ++pipe) {
      if (ranks / tensor % pipe == 0) add_divisions(ranks, tensor, pipe, cluster, all);
    }
  }
  return all;
}

std::vector<int64_t> micro_batches(int64_t share) {
  std::vector<int64_t> micros{share};
  for (int64_t power = kMostMicroBatch; power >= 1; power /= 2) {
    if (power < share && share % power == 0) micros.push_back(power);
  }
  return micros;
}

/// A candidate with all choices of recomputation, offload, units and resharding.
void add_candidates(PlanCandidate candidate, const MeshSection& mesh, PipelineSchedule schedule, std::vector<PlanCandidate>& all) {
  const bool units = divides_parameters(candidate.strategy) && mesh.shard > 1, pipeline = mesh.pipe > 1;
  std::vector<std::pair<int64_t, bool>> wraps{{0, true}};  // millions of parameters, and whether they are gathered again
  if (units && pipeline) wraps = {{0, true}, {0, false}};
  if (units && !pipeline) wraps = {{100, true}, {10, true}, {1, true}};
  candidate.schedule = schedule;
  for (const char* recompute : {"null", "selective", "full"}) {
    for (const char* offload : {"null", "optimizer", "all"}) {
      if (pipeline && std::string_view(offload) == "all") continue;
      candidate.recompute = recompute;
      candidate.offload = offload;
      for (const auto& [millions, reshard] : wraps) {
        candidate.wrap_millions = millions;
        candidate.reshard = reshard;
        all.push_back(candidate);
      }
    }
  }
}

/// The reason without its numbers.
std::string shape_of(const std::string& reason) {
  std::string shape;
  for (const char c : reason) {
    if (c < '0' || c > '9') shape += c;
  }
  return shape;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> PlanCandidate::settings(const std::string& place) const {
  const std::string where = offload == "null"        ? "null"
                            : offload == "optimizer" ? cat("{parameters: null, gradients: null, optimizer: ", place, "}")
                                                     : cat("{parameters: ", place, ", gradients: ", place, ", optimizer: ", place, "}");
  return {{"train.batch.micro", std::to_string(micro)},
          {"train.recompute", recompute},
          {"sharding.strategy", std::string(name_of(strategy))},
          {"sharding.mesh", mesh ? mesh_text(*mesh) : "null"},
          {"sharding.stages", "null"},
          {"sharding.schedule", std::string(name_of(schedule))},
          {"sharding.split", "auto"},
          {"sharding.wrap", wrap_millions > 0 ? cat("{parameters: ", wrap_millions, "M, match: []}") : "{parameters: auto, match: []}"},
          {"sharding.reshard_after_forward", reshard ? "true" : "false"},
          {"sharding.offload", where}};
}

void PlanCandidate::apply(Recipe& recipe, const std::string& place) const {
  recipe.train.batch->micro.count = micro;
  recipe.train.recompute.reset();
  if (recompute != "null") recipe.train.recompute.emplace().mode = recompute == "full" ? RecomputeMode::kFull : RecomputeMode::kSelective;
  ShardingSection& sharding = recipe.sharding;
  sharding.strategy = strategy;
  sharding.mesh = mesh;
  sharding.stages.reset();
  sharding.schedule = schedule;
  sharding.split = {"auto"};
  sharding.wrap = WrapSection();
  if (wrap_millions > 0) sharding.wrap.parameters.count = wrap_millions * kMillion;
  sharding.reshard_after_forward = reshard;
  sharding.offload.reset();
  if (offload == "null") return;
  OffloadPlace to;
  to.host = place == "host";
  sharding.offload.emplace().optimizer = to;
  if (offload == "all") sharding.offload->parameters = sharding.offload->gradients = to;
}

std::vector<PlanCandidate> plan_candidates(const Recipe& recipe, int64_t ranks, const Cluster& cluster) {
  std::vector<PlanCandidate> all;
  for (const Division& division : divisions(recipe, ranks, cluster)) {
    ShardingSection section;
    section.strategy = division.strategy;
    section.mesh = division.mesh;
    const MeshSection mesh = resolve_mesh(section, ranks, cluster.per_node);
    const int64_t readers = mesh.data * mesh.shard;
    if (recipe.train.batch->global % readers != 0) continue;
    for (const int64_t micro : micro_batches(recipe.train.batch->global / readers)) {
      const int64_t passes = recipe.train.batch->global / readers / micro;
      const PlanCandidate plain{.strategy = division.strategy, .mesh = division.mesh, .micro = micro};
      add_candidates(plain, mesh, PipelineSchedule::kOneForwardOneBackward, all);
      if (mesh.pipe > 1 && passes % mesh.pipe == 0) add_candidates(plain, mesh, PipelineSchedule::kInterleaved, all);
    }
  }
  return all;
}

std::string plan_fragment(const std::vector<std::pair<std::string, std::string>>& settings) {
  std::string train, sharding;
  for (const auto& [key, value] : settings) {
    if (key == "train.batch.micro") train = cat("batch: {micro: ", value, "}");
    if (key == "train.recompute") train += cat(", recompute: ", value);
    if (key.starts_with("sharding.")) sharding += cat("  ", key.substr(9), ": ", value, "\n");
  }
  return cat("train: {", train, "}\nsharding:\n", sharding);
}

void PlanRejections::too_large(const PlanCandidate& candidate, double bytes, const std::string& what, const std::string& place) {
  keep_least("device", candidate, bytes, cat("does not fit: the least needs ", human_bytes(bytes), ", ", what), place);
}

void PlanRejections::too_large_for_host(const PlanCandidate& candidate, double bytes, const std::string& place) {
  keep_least("host", candidate, bytes,
             cat("offloaded states do not fit the host: the least are ", human_bytes(bytes), " of all ranks of a node"), place);
}

void PlanRejections::keep_least(const std::string& key, const PlanCandidate& candidate, double bytes, const std::string& reason,
                                const std::string& place) {
  PlanRejection& entry = by_reason_[key];
  if (++entry.candidates > 1 && bytes >= entry.least_bytes) return;
  entry.reason = reason;
  entry.least_bytes = bytes;
  entry.settings = candidate.settings(place);
}

void PlanRejections::refused(const PlanCandidate& candidate, const std::string& reason, const std::string& place) {
  PlanRejection& entry = by_reason_[cat("refused ", shape_of(reason))];
  if (++entry.candidates > 1) return;
  entry.reason = reason;
  entry.settings = candidate.settings(place);
}

void PlanRejections::slower(int64_t count) {
  if (count == 0) return;
  PlanRejection& entry = by_reason_["slower"];
  entry.reason = "fits, or may fit, but is not faster";
  entry.candidates += count;
}

std::vector<PlanRejection> PlanRejections::list() const {
  std::vector<PlanRejection> all;
  for (const auto& item : by_reason_) all.push_back(item.second);
  std::stable_sort(all.begin(), all.end(), [](const PlanRejection& a, const PlanRejection& b) { return a.candidates > b.candidates; });
  return all;
}

}  // namespace galley
