#include "libcore/dist/formulas.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "libcore/base/error.h"

namespace galley {
namespace {

constexpr std::array<std::string_view, 5> kOps{"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "send"};
constexpr std::array<std::string_view, 5> kAlgorithms{"ring", "tree", "halving_doubling", "direct", "hierarchical"};

/// (n-1)/n
double others(int64_t n) { return static_cast<double>(n - 1) / static_cast<double>(n); }

double log2_of(int64_t n) { return std::ceil(std::log2(static_cast<double>(n))); }

/// Which of parameters, gradients and optimizer state a rank holds a range of.
struct Divided {
  bool parameters = false, gradients = false, optimizer = false;
};
Divided divided(ShardingStrategy strategy) {
  const bool all = divides_parameters(strategy);
  return {.parameters = all, .gradients = all || strategy == ShardingStrategy::kZero2, .optimizer = divides_state(strategy)};
}

/// Maximal aligned subtrees of a tree of `leaves` that cover [begin, end).
int64_t aligned_parts(int64_t begin, int64_t end, int64_t leaves) {
  int64_t parts = 0;
  while (begin < end) {
    int64_t size = 1;
    while (begin % (2 * size) == 0 && begin + 2 * size <= end && 2 * size <= leaves) size *= 2;
    begin += size;
    ++parts;
  }
  return parts;
}

}  // namespace

std::string_view name_of(CollectiveOp op) { return kOps[static_cast<size_t>(op)]; }
std::string_view name_of(CollectiveAlgorithm algorithm) { return kAlgorithms[static_cast<size_t>(algorithm)]; }

ModelBytes model_bytes(ShardingStrategy strategy, std::span<const BucketLayout> buckets, int64_t elements, int64_t ranks,
                       const StateBytes& bytes) {
  const Divided by = divided(strategy);
  const int64_t part = shard_elements(buckets, static_cast<int>(ranks));
  int64_t gradients = 0;
  for (const BucketLayout& bucket : buckets) gradients += by.optimizer ? bucket.padded(static_cast<int>(ranks)) : bucket.elements;
  const int64_t whole_average = by.parameters ? 0 : bytes.average;
  const int64_t optimizer = by.optimizer ? part * (bytes.optimizer - whole_average) + elements * whole_average : elements * bytes.optimizer;
  return {static_cast<double>((by.parameters ? part : elements) * bytes.parameter),
          static_cast<double>((by.gradients ? part : gradients) * bytes.gradient), static_cast<double>(optimizer)};
}

ModelBytes model_bytes(ShardingStrategy strategy, double parameters, int64_t ranks, const StateBytes& bytes) {
  const Divided by = divided(strategy);
  const auto of = [&](bool shared, int64_t size) {
    return parameters * static_cast<double>(size) / (shared ? static_cast<double>(ranks) : 1);
  };
  return {of(by.parameters, bytes.parameter), of(by.gradients, bytes.gradient), of(by.optimizer, bytes.optimizer)};
}

StepTraffic& StepTraffic::operator+=(const StepTraffic& other) {
  all_reduce += other.all_reduce;
  reduce_scatter += other.reduce_scatter;
  all_gather += other.all_gather;
  all_to_all += other.all_to_all;
  send += other.send;
  return *this;
}

StepTraffic data_parallel_traffic(ShardingStrategy strategy, const TrafficRule& rule) {
  const double f = others(rule.ranks);
  const auto k = static_cast<double>(rule.micro_batches);
  StepTraffic traffic;
  switch (strategy) {
    case ShardingStrategy::kAuto:
    case ShardingStrategy::kNone: break;
    case ShardingStrategy::kDdp:
    case ShardingStrategy::kPipeline:
    case ShardingStrategy::kTensor: traffic.all_reduce = 2 * f * rule.gradient_bytes; break;
    case ShardingStrategy::kZero1:
    case ShardingStrategy::kZero2:
      traffic.reduce_scatter = f * rule.gradient_bytes;
      traffic.all_gather = f * rule.parameter_bytes;
      break;
    case ShardingStrategy::kFsdp:
    case ShardingStrategy::kHybrid:
      traffic.reduce_scatter = k * f * rule.gradient_bytes;
      traffic.all_gather = k * f * rule.parameter_bytes * (rule.reshard_after_forward ? 2 : 1);
      if (strategy == ShardingStrategy::kHybrid)
        traffic.all_reduce = 2 * others(rule.replicas) * rule.gradient_bytes / static_cast<double>(rule.ranks);
      break;
  }
  return traffic;
}

double tree_reduce_factor(int64_t ranks, int64_t replicas) {
  GALLEY_ASSERT(ranks >= 1 && replicas >= ranks);
  // Rank r owns leaves floor(V r / N) .. floor(V (r+1) / N) - 1, and sends each of its partial sums of segment j to rank j.
  int64_t most = 0;
  for (int64_t r = 0; r < ranks; ++r) most = std::max(most, aligned_parts(replicas * r / ranks, replicas * (r + 1) / ranks, replicas));
  return static_cast<double>(most) * others(ranks);
}

double collective_seconds(CollectiveOp op, CollectiveAlgorithm algorithm, const GroupLinks& links, double bytes) {
  const int64_t n = links.ranks;
  if (n <= 1 || bytes <= 0) return 0;
  const double rate = links.nodes > 1 ? std::min(links.inside, links.between) : links.inside;
  const double steps = static_cast<double>(n - 1), f = others(n), sum = op == CollectiveOp::kAllReduce ? 2 : 1;
  if (op == CollectiveOp::kSend) return links.latency + bytes / rate;
  switch (algorithm) {
    case CollectiveAlgorithm::kRing: return sum * (steps * links.latency + f * bytes / rate);
    case CollectiveAlgorithm::kTree: return sum * (log2_of(n) * links.latency + bytes / rate);
    case CollectiveAlgorithm::kHalvingDoubling: return sum * (log2_of(n) * links.latency + f * bytes / rate);
    case CollectiveAlgorithm::kDirect: return sum * (links.latency + f * bytes / rate);
    case CollectiveAlgorithm::kHierarchical: {
      const int64_t inside = std::max<int64_t>(1, n / links.nodes);
      const double in_node = static_cast<double>(inside - 1) * links.latency + others(inside) * bytes / links.inside;
      const double between = static_cast<double>(links.nodes - 1) * links.latency +
                             others(links.nodes) * bytes / (links.between > 0 ? links.between : links.inside);
      return sum * (in_node + between);
    }
  }
  return 0;
}

ChosenCollective choose_collective(CollectiveOp op, const GroupLinks& links, double bytes, bool shared_memory) {
  if (shared_memory) return {CollectiveAlgorithm::kDirect, collective_seconds(op, CollectiveAlgorithm::kDirect, links, bytes)};
  ChosenCollective best{CollectiveAlgorithm::kRing, collective_seconds(op, CollectiveAlgorithm::kRing, links, bytes)};
  const auto consider = [&](CollectiveAlgorithm algorithm) {
    const double seconds = collective_seconds(op, algorithm, links, bytes);
    if (seconds < best.seconds) best = {algorithm, seconds};
  };
  if (op == CollectiveOp::kAllReduce) consider(CollectiveAlgorithm::kTree);  // NCCL has trees for this collective only
  if (op == CollectiveOp::kAllToAll) consider(CollectiveAlgorithm::kDirect);
  return best;
}

double pipeline_bubble(int64_t stages, int64_t micro_batches, int64_t chunks) {
  GALLEY_ASSERT(stages >= 1 && micro_batches >= 1 && chunks >= 1);
  return static_cast<double>(stages - 1) / static_cast<double>(micro_batches * chunks + stages - 1);
}

double held_micro_batches(PipelineSchedule schedule, int64_t stage, int64_t stages, int64_t micro_batches, int64_t chunks) {
  const auto m = static_cast<double>(micro_batches), p = static_cast<double>(stages);
  switch (schedule) {
    case PipelineSchedule::kGpipe: return m;
    case PipelineSchedule::kOneForwardOneBackward: return std::min(p - static_cast<double>(stage), m);
    case PipelineSchedule::kInterleaved: {
      if (micro_batches == stages) return m;  // the schedule runs all forward passes first
      const auto c = static_cast<double>(chunks);
      const double warm_up = 2 * (p - static_cast<double>(stage) - 1) + (c - 1) * p + 1;
      return std::min(warm_up / c, m);
    }
  }
  return m;
}

double gpt_layer_activation_bytes(const GptLayer& layer, ActivationPolicy policy, int64_t tensor, bool sequence_parallel) {
  const double th = layer.tokens * layer.hidden, t = static_cast<double>(tensor), scores = 5 * layer.heads * layer.sequence / layer.hidden;
  switch (policy) {
    case ActivationPolicy::kKeep: return sequence_parallel ? th / t * (34 + scores) : th * (10 + 24 / t + scores / t);
    case ActivationPolicy::kSelective: return sequence_parallel ? th / t * 34 : th * (10 + 24 / t);
    case ActivationPolicy::kFull: return sequence_parallel ? 2 * th / t : 2 * th;
  }
  return 0;
}

double gpt_layer_flops(const GptLayer& layer) { return layer.tokens * layer.hidden * (24 * layer.hidden + 4 * layer.sequence); }

double gpt_head_flops(const GptLayer& layer, double vocabulary) { return 2 * layer.tokens * layer.hidden * vocabulary; }

double tensor_parallel_bytes(const GptLayer& layer, int64_t tensor, int64_t element_bytes, bool recompute) {
  const double all_reduces = recompute ? 6 : 4;
  return all_reduces * 2 * others(tensor) * layer.tokens * layer.hidden * static_cast<double>(element_bytes);
}

Utilization utilization(double model_flops, double hardware_flops, double seconds, int64_t ranks, double peak) {
  const double possible = seconds * static_cast<double>(ranks) * peak;
  return possible > 0 ? Utilization{model_flops / possible, hardware_flops / possible} : Utilization{};
}

}  // namespace galley
