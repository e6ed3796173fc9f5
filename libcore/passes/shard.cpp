#include "libcore/passes/shard.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "libcore/ops/binary.h"
#include "libcore/ops/collective.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"
#include "libcore/ops/update.h"
#include "libcore/passes/collective_nodes.h"
#include "libcore/passes/replicate.h"

namespace galley {
namespace {

constexpr int64_t kFirstBucketBytes = 1 << 20;
bool is_loss(const std::string& output) { return output == "loss" || output.starts_with("loss."); }

/// Moves the node that makes each gradient directly after what it reads: the sum with accumulated gradients is computed as soon as the
/// gradient of the last micro-batch is final.
void advance(Graph& graph, const std::vector<UpdatePiece>& pieces) {
  for (const UpdatePiece& piece : pieces) {
    const std::vector<int> made_by = graph.producers();
    const int maker = made_by[static_cast<size_t>(piece.gradient.id())];
    int last = -1;
    for (const ValueId id : graph.nodes()[static_cast<size_t>(maker)].inputs) {
      if (id != kNoValue) last = std::max(last, made_by[static_cast<size_t>(id)]);
    }
    const auto begin = graph.nodes().begin();
    std::rotate(begin + last + 1, begin + maker, begin + maker + 1);
  }
}

/// Places of the pieces in order of the nodes that make their gradients.
std::vector<size_t> order_of_makers(const Graph& graph, const std::vector<UpdatePiece>& pieces) {
  const std::vector<int> made_by = graph.producers();
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto maker = [&](size_t i) { return made_by[static_cast<size_t>(pieces[i].gradient.id())]; };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return maker(a) < maker(b); });
  return order;
}

/// The gradients in order of the nodes that make them, divided into buckets. The members of the layouts are places in `pieces`.
std::vector<GradientBucket> divide(const Graph& graph, const std::vector<UpdatePiece>& pieces, const BucketChoice& choice) {
  if (choice.like != nullptr) {
    GALLEY_ASSERT(!choice.like->buckets().empty());
    return choice.like->buckets();  // parameters have the same order in all graphs of a model
  }
  const std::vector<size_t> order = order_of_makers(graph, pieces);
  std::vector<BucketMember> members;
  for (const size_t i : order) {
    const DType dtype = pieces[i].gradient.dtype();
    const int64_t compressed = choice.power_sgd && factor_sizes(pieces[i].gradient.type(), choice.power_sgd->rank) ? 1 : 0;
    members.push_back({.elements = pieces[i].gradient.shape().elements(),
                       .element_bytes = dtype_size(dtype),
                       .key = (4 * pieces[i].group + 2 * compressed + (pieces[i].divided ? 1 : 0)) * 256 + static_cast<int64_t>(dtype)});
  }
  std::vector<GradientBucket> buckets;
  for (BucketLayout& layout : divide_into_buckets(members, choice.bytes, kFirstBucketBytes)) {
    GradientBucket& bucket = buckets.emplace_back();
    bucket.name = cat("grads.bucket", buckets.size());
    bucket.state = cat("shard.bucket", buckets.size());
    bucket.gather_name = cat("params.bucket", buckets.size());
    for (size_t& member : layout.members) {
      member = order[member];
      bucket.parameters.push_back(pieces[member].name);
      bucket.shapes.push_back(pieces[member].gradient.shape());
    }
    bucket.dtype = pieces[layout.members.front()].gradient.dtype();
    bucket.group = pieces[layout.members.front()].group;
    bucket.divided = pieces[layout.members.front()].divided;
    bucket.compressed = choice.power_sgd && factor_sizes(pieces[layout.members.front()].gradient.type(), choice.power_sgd->rank);
    bucket.layout = std::move(layout);
  }
  return buckets;
}

/// Puts the gradients of a bucket into one array of `elements`, and starts its collective, directly after the last gradient.
template <class Start>
Value start_bucket(Graph& graph, const std::vector<UpdatePiece>& pieces, const GradientBucket& bucket, int64_t elements, Start&& start) {
  const std::vector<int> made_by = graph.producers();
  std::vector<Value> own;
  int last = -1;
  for (const size_t i : bucket.layout.members) {
    own.push_back(pieces[i].gradient);
    last = std::max(last, made_by[static_cast<size_t>(own.back().id())]);
  }
  const CollectiveScope scope(graph, Phase::kBackward);
  const size_t first = graph.nodes().size();
  const Value started = start(flat_array(graph, own, bucket.layout.offsets, bucket.dtype, elements));
  move_nodes(graph, first, last);
  return started;
}

/// The buckets whose gradients ranks sum as factors (PowerSGD).
class Compressed {
 public:
  /// Starts the first sums, each after the last gradient of its bucket.
  void start(Graph& graph, const std::vector<UpdatePiece>& pieces, const std::vector<GradientBucket>& buckets,
             const std::optional<PowerSgd>& options) {
    int64_t place = 0;
    for (const GradientBucket& bucket : buckets) {
      if (!bucket.compressed) continue;
      const std::vector<int> made_by = graph.producers();
      std::vector<Value> gradients;
      int last = -1;
      for (const size_t i : bucket.layout.members) {
        gradients.push_back(pieces[i].gradient);
        last = std::max(last, made_by[static_cast<size_t>(gradients.back().id())]);
      }
      buckets_.push_back(std::make_unique<PowerSgdBucket>(graph, *options, bucket.name, bucket.parameters, gradients, last, place));
      members_.push_back(bucket.layout.members);
      place += std::ssize(gradients);
    }
  }
  /// Replaces these gradients by their sums.
  void finish(std::vector<UpdatePiece>& pieces) {
    for (const auto& bucket : buckets_) bucket->start_second();
    for (size_t b = 0; b < buckets_.size(); ++b) {
      const std::vector<Value> sums = buckets_[b]->finish();
      for (size_t i = 0; i < sums.size(); ++i) pieces[members_[b][i]].gradient = sums[i];
    }
  }
  std::vector<HookState> states() const {
    std::vector<HookState> all;
    for (const auto& bucket : buckets_) all.insert(all.end(), bucket->states().begin(), bucket->states().end());
    return all;
  }

 private:
  std::vector<std::unique_ptr<PowerSgdBucket>> buckets_;
  std::vector<std::vector<size_t>> members_;
};

/// The units that are trained; the members of their layouts are places in `pieces`.
std::vector<GradientBucket> trained_units(const std::vector<GradientBucket>& units, const std::vector<UpdatePiece>& pieces) {
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < pieces.size(); ++i) places[pieces[i].name] = i;
  std::vector<GradientBucket> buckets;
  for (const GradientBucket& unit : units) {
    if (!unit.trained) continue;
    buckets.push_back(unit);
    for (size_t m = 0; m < unit.parameters.size(); ++m) buckets.back().layout.members[m] = places.at(unit.parameters[m]);
  }
  return buckets;
}

/// The communication hook: what is sent, and what is received, in the dtype of the gradients.
Value to_hook(Value array, std::optional<DType> hook) { return hook ? cast(array, *hook) : array; }
Value from_hook(Value sum, std::optional<DType> hook, DType dtype) { return hook ? cast(sum, dtype) : sum; }

/// The input with the sum of a bucket, or with a range of it.
Value summed_input(Graph& graph, const GradientBucket& bucket, int64_t elements, bool range) {
  return graph.add_input(bucket.name, bucket.type(elements, range), ValueRole::kInput);
}

/// The gradients of logical replicas: outputs of the graph.
class OfReplica : public RankUpdates {
 public:
  OfReplica(const BucketChoice& choice, std::vector<GradientBucket> units) : choice_(choice), units_(std::move(units)) {}

  std::vector<UpdatePiece> reduce(Graph& graph, const std::vector<UpdatePiece>& own) override {
    buckets_ = units_.empty() ? divide(graph, own, choice_) : trained_units(units_, own);
    const CollectiveScope scope(graph, Phase::kBackward);
    for (const GradientBucket& bucket : buckets_) {
      for (size_t m = 0; m < bucket.layout.members.size(); ++m) {
        const Value& gradient = own[bucket.layout.members[m]].gradient;
        const bool flat = gradient.shape().rank() == 1;
        graph.add_output(gradient_output(bucket, m), flat ? gradient : reshape(gradient, Shape{gradient.shape().elements()}));
      }
    }
    return {};
  }
  Value total(Value own) const override { return own; }
  void finish(Graph&, size_t, Value) override {}

 private:
  BucketChoice choice_;
  std::vector<GradientBucket> units_;
};

class Replicated : public RankUpdates {
 public:
  Replicated(const BucketChoice& choice, int ranks) : choice_(choice), ranks_(ranks) {}

  std::vector<UpdatePiece> reduce(Graph& graph, const std::vector<UpdatePiece>& own) override {
    if (!choice_.summed) advance(graph, own);
    buckets_ = divide(graph, own, choice_);
    std::vector<Value> started;
    for (const GradientBucket& bucket : buckets_) {
      if (choice_.summed) break;
      started.push_back(bucket.compressed ? Value() : start_bucket(graph, own, bucket, bucket.layout.elements, [&](Value array) {
        return all_reduce_start(to_hook(array, choice_.hook), bucket.name);
      }));
    }
    compressed_.start(graph, own, buckets_, choice_.power_sgd);
    std::vector<UpdatePiece> pieces = own;
    compressed_.finish(pieces);
    for (size_t b = 0; b < buckets_.size(); ++b) {
      if (buckets_[b].compressed) continue;
      Value sum;
      if (choice_.summed) {
        sum = summed_input(graph, buckets_[b], buckets_[b].layout.padded(ranks_), false);
      } else {
        const CollectiveScope scope(graph, Phase::kBackward);
        sum = from_hook(all_reduce_wait(started[b], buckets_[b].name), choice_.hook, buckets_[b].dtype);
      }
      // As updates, they stand before the updates of their parameters, after the wait.
      const CollectiveScope scope(graph, Phase::kUpdate);
      const BucketLayout& layout = buckets_[b].layout;
      for (size_t m = 0; m < layout.members.size(); ++m) {
        Value& gradient = pieces[layout.members[m]].gradient;
        gradient = tensor_of(sum, layout.offsets[m], gradient.shape());
      }
    }
    return pieces;
  }
  Value total(Value own) const override { return own; }
  void finish(Graph&, size_t, Value) override {}
  std::vector<HookState> hook_states() const override { return compressed_.states(); }

 private:
  BucketChoice choice_;
  int ranks_;
  Compressed compressed_;
};

/// What zero1, zero2 and fsdp share: ranks receive ranges of sums.
class Scattered : public RankUpdates {
 public:
  Scattered(const ShardGroups& groups, std::optional<DType> hook, bool summed)
      : rank_(groups.rank), ranks_(groups.ranks), copies_(groups.copies), hook_(hook), summed_(summed) {}
  Value total(Value own) const override {
    CollectiveAttrs attrs;
    attrs.name = "grad_norm";
    attrs.ranks = ranks_;
    return all_reduce_wait(all_reduce_start(own, attrs), attrs);
  }

 protected:
  SegmentAttrs attrs(const std::string& name) const {
    SegmentAttrs attrs;
    attrs.name = name;
    attrs.rank = rank_;
    attrs.ranks = ranks_;
    return attrs;
  }
  Value start(Graph& graph, const std::vector<UpdatePiece>& own, const GradientBucket& bucket) const {
    if (summed_) return summed_input(graph, bucket, bucket.layout.shard(ranks_), true);
    return start_bucket(graph, own, bucket, bucket.layout.padded(ranks_),
                        [&](Value array) { return reduce_scatter_start(to_hook(array, hook_), attrs(bucket.name)); });
  }
  Value wait(Value started, const GradientBucket& bucket) const {
    if (summed_) return started;
    return from_hook(reduce_scatter_wait(started, attrs(bucket.name)), hook_, bucket.dtype);
  }

  int rank_, ranks_, copies_;
  std::optional<DType> hook_;
  bool summed_;
};

class Gathered : public Scattered {
 public:
  Gathered(std::vector<GradientBucket> units, const ShardGroups& groups, std::optional<DType> hook, bool summed)
      : Scattered(groups, hook, summed), units_(std::move(units)) {}

  bool reduces_each() const override { return true; }
  std::vector<UpdatePiece> reduce(Graph& graph, const std::vector<UpdatePiece>& own) override {
    buckets_ = trained_units(units_, own);
    std::vector<Value> started;
    for (const GradientBucket& bucket : buckets_) started.push_back(start(graph, own, bucket));
    std::vector<UpdatePiece> pieces;
    for (size_t b = 0; b < buckets_.size(); ++b) {
      const GradientBucket& bucket = buckets_[b];
      const CollectiveScope scope(graph, Phase::kBackward);
      const Value gradient = wait(started[b], bucket);
      const Value parameter = graph.add_input(bucket.state, bucket.type(gradient.shape()[0], true), ValueRole::kParameter);
      pieces.push_back(
          {.name = bucket.state, .parameter = parameter, .gradient = gradient, .group = bucket.group, .divided = bucket.divided});
    }
    return pieces;
  }
  void sum_copies(Graph& graph, std::vector<UpdatePiece>& pieces) const override {
    if (copies_ == 1 || summed_) return;
    const CollectiveScope scope(graph, Phase::kBackward);
    CollectiveAttrs between;
    between.ranks = copies_;
    between.stride = ranks_;
    std::vector<Value> started;
    for (size_t b = 0; b < buckets_.size(); ++b) {
      between.name = buckets_[b].name;
      started.push_back(all_reduce_start(to_hook(pieces[b].gradient, hook_), between));
    }
    for (size_t b = 0; b < buckets_.size(); ++b) {
      between.name = buckets_[b].name;
      pieces[b].gradient = from_hook(all_reduce_wait(started[b], between), hook_, buckets_[b].dtype);
    }
  }
  void finish(Graph&, size_t, Value) override {}

 private:
  std::vector<GradientBucket> units_;
};

class Sharded : public Scattered {
 public:
  Sharded(const BucketChoice& choice, int rank, int ranks)
      : Scattered({.rank = rank, .ranks = ranks}, choice.hook, choice.summed), choice_(choice) {}

  std::vector<UpdatePiece> reduce(Graph& graph, const std::vector<UpdatePiece>& own) override {
    if (!choice_.summed) advance(graph, own);
    buckets_ = divide(graph, own, choice_);
    std::vector<Value> started;
    for (const GradientBucket& bucket : buckets_) started.push_back(bucket.compressed ? Value() : start(graph, own, bucket));
    compressed_.start(graph, own, buckets_, choice_.power_sgd);
    std::vector<UpdatePiece> summed = own;
    compressed_.finish(summed);
    for (const UpdatePiece& piece : own) parameters_.push_back(piece.parameter);
    std::vector<UpdatePiece> pieces;
    for (size_t b = 0; b < buckets_.size(); ++b) {
      // In the backward pass, so that order_updates does not move the copy of parameters before it.
      const CollectiveScope scope(graph, Phase::kBackward);
      const Value gradient = buckets_[b].compressed ? sums_range(graph, buckets_[b], summed) : wait(started[b], buckets_[b]);
      pieces.push_back({.name = buckets_[b].state,
                        .parameter = range_of(graph, buckets_[b], gradient),
                        .gradient = gradient,
                        .group = buckets_[b].group,
                        .in_parameter = false,
                        .divided = buckets_[b].divided});
    }
    return pieces;
  }

  void finish(Graph& graph, size_t piece, Value updated) override {
    const GradientBucket& bucket = buckets_[piece];
    const CollectiveScope scope(graph, Phase::kUpdate);
    const SegmentAttrs gather = attrs(bucket.gather_name);
    const Value whole = all_gather_wait(all_gather_start(updated, gather), gather);
    for (size_t m = 0; m < bucket.layout.members.size(); ++m)
      assign(parameters_[bucket.layout.members[m]], tensor_of(whole, bucket.layout.offsets[m], bucket.shapes[m]));
  }
  std::vector<HookState> hook_states() const override { return compressed_.states(); }

 private:
  /// This rank's range of gradients that are summed already.
  Value sums_range(Graph& graph, const GradientBucket& bucket, const std::vector<UpdatePiece>& summed) const {
    std::vector<Value> sums;
    for (const size_t i : bucket.layout.members) sums.push_back(summed[i].gradient);
    const int64_t size = bucket.layout.shard(ranks_);
    const Value all = flat_array(graph, sums, bucket.layout.offsets, bucket.dtype, size * ranks_);
    return differs_by_rank(slice(all, 0, size * rank_, size * (rank_ + 1)), PlacementAxis::kShard, Held::kRange);
  }
  /// A copy of this rank's range of the bucket's parameters, which the update changes in place. `gradient`: of the range.
  Value range_of(Graph& graph, const GradientBucket& bucket, Value gradient) const {
    const int64_t size = bucket.layout.shard(ranks_);
    std::vector<int64_t> elements, at;
    for (const Shape& shape : bucket.shapes) elements.push_back(shape.elements());
    const std::vector<BucketPiece> pieces = pieces_in(bucket.layout, elements, {size * rank_, size * (rank_ + 1)});
    // Only padding: zeros, as its gradient. They are computed in each step, since an update changes no constant.
    if (pieces.empty()) return affine(gradient, 0);
    const bool alone = pieces.size() == 1 && pieces.front().part.size() == size;  // a slice copies
    std::vector<Value> parts;
    for (const BucketPiece& piece : pieces) {
      const Value whole = reshape(parameters_[bucket.layout.members[piece.member]], Shape{elements[piece.member]});
      const bool all = piece.part.size() == elements[piece.member] && !alone;
      parts.push_back(all ? whole : slice(whole, 0, piece.part.begin, piece.part.end));
      at.push_back(piece.at);
    }
    return differs_by_rank(flat_array(graph, parts, at, bucket.dtype, size), PlacementAxis::kShard, Held::kRange);
  }

  BucketChoice choice_;
  std::vector<Value> parameters_;
  Compressed compressed_;
};

}  // namespace

TensorType GradientBucket::type(int64_t elements, bool range) const {
  TensorType type = flat_type(dtype, elements);
  if (range) type.placement[PlacementAxis::kShard] = Held::kRange;
  if (divided) type.placement[PlacementAxis::kTensor] = Held::kOwn;
  return type;
}

void place_samples(Graph& graph, const ShardGroups& groups) {
  for (const ValueId id : graph.inputs()) {
    ValueInfo& input = graph.value(id);
    if (input.role != ValueRole::kInput && input.role != ValueRole::kBuffer) continue;
    if (groups.copies > 1) input.type.placement[PlacementAxis::kData] = Held::kOwn;
    if (groups.ranks > 1) input.type.placement[PlacementAxis::kShard] = Held::kOwn;
  }
  infer_placements(graph);
}

void check_results(const Graph& graph) {
  for (const auto& [name, id] : graph.outputs()) {
    const Placement& placement = graph.type(id).placement;
    GALLEY_ASSERT(placement.replicated(), "the output ", name, " is not equal on all ranks: ", placement.str());
  }
}

void weigh_losses(Graph& graph) {
  TensorType type;
  type.dtype = DType::kF32;
  const CollectiveScope scope(graph, Phase::kForward);
  const Value weight = graph.add_input(std::string(kRankWeight), type, ValueRole::kInput);
  for (auto& [name, id] : graph.outputs()) {
    if (is_loss(name)) id = mul(graph.at(id), weight).id();
  }
}

void reduce_losses(Graph& graph) {
  std::vector<size_t> places;
  std::vector<Value> losses;
  std::vector<int64_t> at;
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    if (!is_loss(graph.outputs()[i].first)) continue;
    at.push_back(static_cast<int64_t>(places.size()));
    places.push_back(i);
    losses.push_back(graph.at(graph.outputs()[i].second));
  }
  const std::vector<int> made_by = graph.producers();
  int last = -1;
  for (const Value& loss : losses) last = std::max(last, made_by[static_cast<size_t>(loss.id())]);
  const CollectiveScope scope(graph, Phase::kBackward);
  const size_t first = graph.nodes().size();
  const auto count = static_cast<int64_t>(losses.size());
  const Value started = all_reduce_start(flat_array(graph, losses, at, losses.front().dtype(), count), "loss");
  move_nodes(graph, first, last);
  const Value sums = all_reduce_wait(started, "loss");
  for (size_t i = 0; i < places.size(); ++i) graph.outputs()[places[i]].second = tensor_of(sums, at[i], Shape{}).id();
}

std::vector<size_t> order_of_gradients(const Graph& graph, const std::vector<UpdatePiece>& pieces) {
  Graph moved = graph;
  advance(moved, pieces);
  return order_of_makers(moved, pieces);
}

std::unique_ptr<RankUpdates> replicated_updates(const BucketChoice& choice, int ranks) {
  return std::make_unique<Replicated>(choice, ranks);
}

std::unique_ptr<RankUpdates> gathered_updates(std::vector<GradientBucket> units, const ShardGroups& groups, std::optional<DType> hook,
                                              bool summed) {
  return std::make_unique<Gathered>(std::move(units), groups, hook, summed);
}

std::unique_ptr<RankUpdates> replica_gradients(const BucketChoice& choice, std::vector<GradientBucket> units) {
  return std::make_unique<OfReplica>(choice, std::move(units));
}

std::unique_ptr<RankUpdates> sharded_updates(const BucketChoice& choice, int rank, int ranks) {
  return std::make_unique<Sharded>(choice, rank, ranks);
}

void remove_collectives(Graph& graph) {
  const auto is_collective = [](const Node& node) { return node.op == &all_reduce_start_op() || node.op == &all_reduce_wait_op(); };
  for (const Node& node : graph.nodes()) {  // in order, so that the input of a wait is replaced before the wait's output
    if (is_collective(node)) graph.replace_uses(node.outputs[0], node.inputs[0]);
  }
  std::deque<Node> kept;
  for (const Node& node : graph.nodes()) {
    if (!is_collective(node)) kept.push_back(node);
  }
  graph.set_nodes(std::move(kept));
}

}  // namespace galley
