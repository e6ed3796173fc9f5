#include "libcore/passes/tensor_parallel.h"

#include <algorithm>
#include <optional>
#include <set>

#include "libcore/ops/attention.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/collective.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/elementwise.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/index.h"
#include "libcore/ops/loss.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/random.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/rms_norm.h"
#include "libcore/ops/rotary.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"
#include "libcore/passes/check_placements.h"

namespace galley {
namespace {

constexpr int64_t kSegmentUnit = 16;  // of parts that are gathered

using Division = std::optional<TensorDivision>;

/// The dimension of `to` that has the elements of dimension `division.dim` of `from`; absent: there is none.
Division through_reshape(const TensorDivision& division, const Shape& from, const Shape& to) {
  int64_t before = 1;
  for (int d = 0; d < division.dim; ++d) before *= from[d];
  int64_t passed = 1;
  int dim = 0;
  while (dim < to.rank() && (passed < before || (to[dim] == 1 && from[division.dim] != 1))) passed *= to[dim++];
  if (passed != before || dim == to.rank()) return std::nullopt;
  TensorDivision result = division;
  result.dim = dim;
  const int64_t was = from[division.dim], is = to[dim];
  for (TensorDivision::Block& block : result.blocks) {
    if (is < was) {  // [.., heads width] -> [.., heads, width]
      const int64_t inner = was / is;
      if (was % is != 0 || block.unit % inner != 0) return std::nullopt;
      block.size /= inner;
      block.unit /= inner;
    } else {
      if (is % was != 0) return std::nullopt;
      block.size *= is / was;
      block.unit *= is / was;
    }
  }
  return result;
}

class Rewriter {
 public:
  Rewriter(const Graph& old, const TensorDivisions& divisions, const TensorParallelOptions& options)
      : old_(old), divisions_(divisions), options_(options), map_(old.value_count(), kNoValue), learns_(old.value_count()) {}

  Graph run(TensorPlacements& placements) {
    for (const ValueId id : old_.inputs()) add_input(id);
    for (const Node& node : old_.nodes()) {
      for (const ValueId id : node.inputs) {
        if (id != kNoValue && learns_[static_cast<size_t>(id)]) mark(node);
      }
      new_.set_path(node.path);
      new_.set_phase(node.phase);
      rewrite(node);
    }
    for (const auto& [name, id] : old_.outputs()) new_.add_output(name, whole(id));
    placements = std::move(placed_);
    return std::move(new_);
  }

 private:
  /// A parameter has an influence on the node's results.
  void mark(const Node& node) {
    for (const ValueId id : node.outputs) learns_[static_cast<size_t>(id)] = true;
  }

  void add_input(ValueId id) {
    const ValueInfo& info = old_.value(id);
    TensorType type = info.type;
    const auto found = divisions_.find(info.name);
    if (found != divisions_.end()) {
      type.shape = found->second.shape(type.shape, options_.rank, options_.ranks);
      type.placement[PlacementAxis::kTensor] = Held::kOwn;
    }
    const Value value = new_.add_input(info.name, type, info.role);
    map_[static_cast<size_t>(id)] = value.id();
    learns_[static_cast<size_t>(id)] = info.role == ValueRole::kParameter;
    if (found != divisions_.end()) placed_[value.id()] = found->second;
  }

  // Of values of the old graph:
  Value at(ValueId id) { return new_.at(map_[static_cast<size_t>(id)]); }
  Division division(ValueId id) const {
    const auto found = id == kNoValue ? placed_.end() : placed_.find(map_[static_cast<size_t>(id)]);
    return found == placed_.end() ? std::nullopt : Division(found->second);
  }
  const Shape& shape(ValueId id) const { return old_.type(id).shape; }

  void set(ValueId old, Value value, const Division& division = {}) {
    GALLEY_ASSERT(value.shape() == (division ? division->shape(shape(old), options_.rank, options_.ranks) : shape(old)),
                  "a rank's part of ", old_.type(old), " is ", value.type());
    map_[static_cast<size_t>(old)] = value.id();
    if (division) placed_[value.id()] = *division;
  }

  std::string collective_name(std::string_view what) {
    const std::string& path = new_.path();
    return cat(path.empty() ? "tensor" : path, ".", what);
  }

  /// A whole value that ranks read to compute parts: its gradient is the sum of those of the parts.
  Value entered(ValueId old) {
    const Value value = at(old);
    if (!options_.gradients || !learns_[static_cast<size_t>(old)]) return value;
    const auto found = entered_.find(old);
    if (found != entered_.end()) return new_.at(found->second);
    const Value result = sum_gradient(value, collective_name("input"));
    entered_[old] = result.id();
    return result;
  }

  SegmentAttrs segment_attrs(std::string_view what) {
    SegmentAttrs attrs;
    attrs.name = collective_name(what);
    attrs.rank = options_.rank;
    attrs.ranks = options_.ranks;
    attrs.tensor = true;
    return attrs;
  }

  Value summed(Value part) {
    CollectiveAttrs attrs;
    attrs.name = collective_name("output");
    attrs.tensor = true;
    return all_reduce_wait(all_reduce_start(part, attrs), attrs);
  }

  /// The sum over ranks of all samples, or of the rank's own ones.
  void set_sum(ValueId old, Value part, ValueId bias = kNoValue) {
    const Shape& all = shape(old);
    const TensorDivision samples{0, {{all[0], 1}}};
    const int64_t elements = all.elements() / options_.ranks;
    const bool scatters = options_.scatter && all.rank() > 1 && all[0] % options_.ranks == 0;
    Value sum;
    if (scatters) {
      const SegmentAttrs attrs = segment_attrs("output");
      const int64_t padded = (elements + kSegmentUnit - 1) / kSegmentUnit * kSegmentUnit;
      if (padded > elements) part = pad(reshape(part, Shape{options_.ranks, elements}), {0, 0, 0, padded - elements});
      sum = reduce_scatter_wait(reduce_scatter_start(reshape(part, Shape{options_.ranks * padded}), attrs), attrs);
      if (padded > elements) sum = slice(sum, 0, 0, elements);
      sum = reshape(sum, samples.shape(all, options_.rank, options_.ranks));
    } else {
      sum = summed(part);
    }
    if (scatters) placed_[sum.id()] = samples;
    if (bias != kNoValue) sum = galley::add(sum, scatters ? entered(bias) : whole(bias));
    set(old, sum, scatters ? Division(samples) : std::nullopt);
  }

  /// What a layer that is divided by rows reads: all samples.
  Value read_whole(ValueId old) {
    const Division own = division(old);
    if (!own) return entered(old);
    const auto found = gathered_for_parts_.find(old);
    if (found != gathered_for_parts_.end()) return new_.at(found->second);
    const Value result = gather(at(old), *own, shape(old), /*sums_gradient=*/true);
    gathered_for_parts_[old] = result.id();
    return result;
  }

  /// The result of the node that was added last, whose attributes are those of this rank.
  static Value differs(Value made) { return differs_by_rank(made, PlacementAxis::kTensor, Held::kOwn); }

  /// The rank's part of a whole value: one range of each block.
  Value part(ValueId old, const TensorDivision& division) {
    const Value value = entered(old);
    std::vector<Value> parts;
    for (const TensorDivision::Range& range : division.ranges(options_.rank, options_.ranks))
      parts.push_back(differs(slice(value, division.dim, range.begin, range.end)));
    ConcatAttrs along;
    along.axis = division.dim;
    for (const Value& each : parts) placed_[each.id()] = {division.dim, {{each.shape()[division.dim] * options_.ranks, 1}}};
    const Value result = parts.size() == 1 ? parts.front() : concat(parts, along);
    placed_[result.id()] = division;
    return result;
  }

  /// All of a value on all ranks, which then compute the same with it.
  Value whole(ValueId old) {
    const Division divided = division(old);
    if (!divided) return at(old);
    const auto found = gathered_.find(old);
    if (found != gathered_.end()) return new_.at(found->second);
    const Value result = gather(at(old), *divided, shape(old));
    gathered_[old] = result.id();
    return result;
  }

  /// `sums_gradient`: each rank computes a part of the gradient of the whole array.
  Value gather(Value own, const TensorDivision& divided, const Shape& all, bool sums_gradient = false) {
    int64_t outer = 1, inner = 1;
    for (int d = 0; d < all.rank(); ++d) (d < divided.dim ? outer : inner) *= d == divided.dim ? 1 : all[d];
    const int64_t most = divided.size(0, options_.ranks), elements = outer * most * inner;
    Value part = reshape(own, Shape{outer, own.shape()[divided.dim], inner});
    if (part.shape()[1] < most) part = pad(part, {0, 0, 0, most - part.shape()[1], 0, 0});
    part = reshape(part, Shape{elements});
    const Value parts = gather_rows(part, sums_gradient);
    Value result;
    if (divided.blocks.size() == 1) {  // ranks' parts one after the other, the last ones padded
      result = permute(reshape(parts, Shape{options_.ranks, outer, most * inner}), {1, 0, 2});
      result = reshape(result, Shape{outer, options_.ranks * most, inner});
      if (result.shape()[1] > all[divided.dim]) result = slice(result, 1, 0, all[divided.dim]);
    } else {
      result = blocks_of(reshape(parts, Shape{options_.ranks, outer, most, inner}), divided);
    }
    return reshape(result, all);
  }

  /// parts [ranks,outer,n,inner] -> [outer,size,inner]: block by block, of each the ranks' ranges.
  Value blocks_of(Value parts, const TensorDivision& divided) {
    const Shape& s = parts.shape();
    std::vector<Value> pieces;
    std::vector<int64_t> at(static_cast<size_t>(options_.ranks));
    for (size_t b = 0; b < divided.blocks.size(); ++b) {
      for (int r = 0; r < options_.ranks; ++r) {
        const int64_t size = divided.ranges(r, options_.ranks)[b].size();
        int64_t& begin = at[static_cast<size_t>(r)];
        pieces.push_back(reshape(slice(slice(parts, 0, r, r + 1), 2, begin, begin + size), Shape{s[1], size, s[3]}));
        begin += size;
      }
    }
    ConcatAttrs along;
    along.axis = 1;
    return concat(pieces, along);
  }

  void copy(const Node& node) {
    std::vector<ValueId> inputs;
    for (const ValueId id : node.inputs) inputs.push_back(id == kNoValue ? kNoValue : whole(id).id());
    add(node, std::move(inputs), {});
  }
  /// The node with these inputs; its first output is divided so.
  void add(const Node& node, std::vector<ValueId> inputs, const Division& divided) {
    const std::vector<Value> outputs = new_.add_node_like(node, std::move(inputs));
    for (size_t o = 0; o < outputs.size(); ++o) {
      Division own = divided;
      if (o > 0 && own) {  // statistics of rows or of heads
        own->dim = node.op == &attention_op() ? 1 : own->dim;
        if (own->dim >= shape(node.outputs[o]).rank()) own.reset();
      }
      set(node.outputs[o], outputs[o], own);
    }
  }

  void rewrite(const Node& node) {
    if (std::none_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) { return division(id).has_value(); })) return copy(node);
    const bool done = node.op == &linear_op()                                    ? divide_linear(node)
                      : selects_rows(*node.op)                                   ? divide_lookup(node)
                      : node.op == &cross_entropy_op()                           ? divide_loss(node)
                      : node.op == &attention_op()                               ? divide_attention(node)
                      : node.op == &reshape_op()                                 ? divide_reshape(node)
                      : node.op == &slice_op()                                   ? divide_slice(node)
                      : node.op == &rotary_op()                                  ? divide_rotary(node)
                      : node.op == &rms_norm_op() || node.op == &layer_norm_op() ? divide_norm(node)
                                                                                 : divide_elementwise(node);
    if (!done) copy(node);
  }

  bool divide_linear(const Node& node) {
    const ValueId x = node.inputs[0], weight = node.inputs[1], bias = node.input(2);
    const Division of_weight = division(weight), of_x = division(x);
    if (!of_weight) return false;
    const int last = shape(x).rank() - 1;
    if (of_weight->dim == 0) {
      if ((of_x && of_x->dim != 0) || (bias != kNoValue && !division(bias))) return false;
      TensorDivision features = *of_weight;
      features.dim = last;
      add(node, {read_whole(x).id(), at(weight).id(), bias == kNoValue ? kNoValue : at(bias).id()}, features);
      return true;
    }
    if (!of_x || of_x->dim != last || of_x->blocks != of_weight->blocks || node.attrs<LinearAttrs>().activation != Activation::kNone)
      return false;
    set_sum(node.outputs[0], linear(at(x), at(weight)), bias);
    return true;
  }

  /// Indices of the rank's range, counted from its begin. Others are 0, and are not kept.
  struct OwnIndex {
    Value index, kept;  // kept: 1 or 0
  };
  OwnIndex own_index(Value index, const TensorDivision::Range& range, DType dtype) {
    const auto number = [&](int64_t value) { return constant(index.dtype(), static_cast<double>(value)); };
    const Value below = less(index, differs(number(range.end))), above = greater(index, differs(number(range.begin - 1)));
    const Value own = sub(index, differs(number(range.begin))), none = number(0);
    return {.index = where(below, where(above, own, none), none), .kept = mul(cast(below, dtype), cast(above, dtype))};
  }
  Value constant(DType dtype, double value) { return full(new_, {.dtype = dtype, .shape = {}, .format = {}, .names = {}}, value); }

  /// Tokens of other ranks give zeros, so that the sum over ranks has each token's row.
  bool divide_lookup(const Node& node) {
    const Division rows = division(node.inputs[0]);
    if (!rows || rows->dim != 0 || rows->blocks.size() != 1 || division(node.inputs[1])) return false;
    const Value table = at(node.inputs[0]);
    const OwnIndex own = own_index(at(node.inputs[1]), rows->ranges(options_.rank, options_.ranks).front(), table.dtype());
    std::vector<int64_t> sizes(own.kept.shape().begin(), own.kept.shape().end());
    sizes.push_back(1);
    set_sum(node.outputs[0], mul(embedding(table, own.index), reshape(own.kept, Shape(sizes))));
    return true;
  }

  /// Of logits whose classes ranks divide: the logarithm of the sum of exponentials is that of the ranks' own ones, and one rank has the
  /// logit of the target. So each rank computes the loss from numbers of rows.
  bool divide_loss(const Node& node) {
    const Division classes = division(node.inputs[0]);
    const auto& attrs = node.attrs<CrossEntropyAttrs>();
    const bool by_rows = classes && classes->dim == 1 && classes->blocks.size() == 1 && shape(node.inputs[0]).rank() == 2;
    if (!by_rows || node.input(2) != kNoValue || is_floating(old_.type(node.inputs[1]).dtype) || division(node.inputs[1])) return false;
    const Value logits = at(node.inputs[0]), target = at(node.inputs[1]);
    const int64_t rows = logits.shape()[0];
    const OwnIndex own = own_index(target, classes->ranges(options_.rank, options_.ranks).front(), logits.dtype());
    const Value chosen = reshape(galley::gather(logits, reshape(own.index, Shape{rows, 1}), 1), Shape{rows});
    CrossEntropyAttrs each;
    each.reduction = Reduction::kNone;
    each.ignore_index = -1;  // no index is
    const Value parts = gather_rows(galley::add(cross_entropy(logits, own.index, {}, each), chosen));
    ReduceAttrs over_ranks;
    over_ranks.axes = {0};
    const Value largest = amax(parts, over_ranks);
    Value loss = galley::add(largest, log(sum(exp(sub(parts, largest)), {0})));
    const double smoothing = attrs.label_smoothing;
    loss = sub(loss, affine(summed(mul(chosen, own.kept)), 1 - smoothing));
    if (smoothing > 0) loss = sub(loss, affine(summed(sum(logits, {1})), smoothing / static_cast<double>(classes->size())));
    const Value ignored = equal(target, constant(target.dtype(), static_cast<double>(attrs.ignore_index)));
    const Value none = constant(loss.dtype(), 0);
    loss = where(ignored, none, loss);
    if (attrs.reduction != Reduction::kNone) loss = sum(loss, {0});
    if (attrs.reduction == Reduction::kMean)
      loss = div(loss, sum(where(ignored, none, broadcast_to(constant(loss.dtype(), 1), Shape{rows})), {0}));
    set(node.outputs[0], loss);
    return true;
  }

  /// own [n] of all ranks -> [ranks,n].
  Value gather_rows(Value own, bool sums_gradient = false) {
    const int64_t elements = own.shape()[0], padded = (elements + kSegmentUnit - 1) / kSegmentUnit * kSegmentUnit;
    if (padded > elements) own = pad(own, {0, padded - elements});
    SegmentAttrs attrs = segment_attrs("parts");
    attrs.sums_gradient = sums_gradient;
    const Value parts = reshape(all_gather_wait(all_gather_start(own, attrs), attrs), Shape{options_.ranks, padded});
    return padded > elements ? slice(parts, 1, 0, elements) : parts;
  }

  bool divide_attention(const Node& node) {
    const auto type = [&](size_t i) { return node.input(i) == kNoValue ? nullptr : &old_.type(node.input(i)); };
    auto attrs = std::make_shared<AttentionAttrs>(node.attrs<AttentionAttrs>());
    const AttentionShape s = attention_shape(*attrs, *type(0), type(1), type(2));
    const TensorDivision::Block q{s.heads, s.group()}, kv{s.kv_heads, 1};
    const std::vector<std::vector<TensorDivision::Block>> parts = blocks_of_heads(s.arrays, q, kv, kv);
    for (size_t i = 0; i < parts.size(); ++i) {
      const Division own = division(node.inputs[i]);
      if (!own || own->dim != 2 || own->blocks != parts[i]) return false;
    }
    const TensorDivision heads{2, {q}};
    const int64_t own_keys = TensorDivision{2, {kv}}.size(options_.rank, options_.ranks);
    if (attrs->kv_heads > 0) attrs->kv_heads = own_keys;
    attrs->first_head += heads.ranges(options_.rank, options_.ranks).front().begin;
    std::vector<ValueId> inputs;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId id = node.inputs[i];
      if (i < parts.size() || id == kNoValue) {
        inputs.push_back(id == kNoValue ? kNoValue : at(id).id());
      } else if (i == attention_port::kBias && shape(id)[1] == s.heads) {
        inputs.push_back(division(id) ? kNoValue : part(id, {1, {q}}).id());
        if (inputs.back() == kNoValue) return false;
      } else {
        if (division(id)) return false;
        inputs.push_back(entered(id).id());
      }
    }
    Node changed = node;
    changed.attributes = attrs;
    add(changed, std::move(inputs), heads);
    return true;
  }

  bool divide_reshape(const Node& node) {
    const ValueId x = node.inputs[0];
    const Division result = through_reshape(*division(x), shape(x), shape(node.outputs[0]));
    if (!result) return false;
    auto attrs = std::make_shared<ReshapeAttrs>(node.attrs<ReshapeAttrs>());
    const Shape own = result->shape(shape(node.outputs[0]), options_.rank, options_.ranks);
    attrs->shape.assign(own.sizes().begin(), own.sizes().end());
    Node changed = node;
    changed.attributes = attrs;
    add(changed, {at(x).id()}, result);
    return true;
  }

  /// Whole blocks, or along another dimension.
  bool divide_slice(const Node& node) {
    const ValueId x = node.inputs[0];
    TensorDivision divided = *division(x);
    const auto& attrs = node.attrs<SliceAttrs>();
    const int axis = static_cast<int>(attrs.axis < 0 ? attrs.axis + shape(x).rank() : attrs.axis);
    if (axis != divided.dim) {
      add(node, {at(x).id()}, divided);
      return true;
    }
    const int64_t begin = attrs.range(shape(x)[axis])[0], end = begin + shape(node.outputs[0])[axis];
    if (attrs.step != 1) return false;
    const std::vector<TensorDivision::Range> ranges = divided.ranges(options_.rank, options_.ranks);
    TensorDivision result{axis, {}};
    int64_t place = 0, own = 0, own_begin = -1, own_end = -1;
    for (size_t b = 0; b < ranges.size(); ++b) {
      const int64_t next = place + divided.blocks[b].size;
      if (place == begin) own_begin = own;
      if (own_begin >= 0 && next <= end) result.blocks.push_back(divided.blocks[b]);
      own += ranges[b].size();
      place = next;
      if (place == end) own_end = own;
    }
    if (own_begin < 0 || own_end < 0) return false;
    set(node.outputs[0], slice(at(x), axis, own_begin, own_end), result);
    return true;
  }

  bool divide_rotary(const Node& node) {
    const Division heads = division(node.inputs[0]);
    if (!heads || heads->dim != 2 || node.attrs<RotaryAttrs>().heads > 0) return false;
    return with_whole_rest(node, *heads);
  }
  bool divide_norm(const Node& node) {
    const Division divided = division(node.inputs[0]);
    const int normalized = node.op == &rms_norm_op() ? 1 : static_cast<int>(node.attrs<LayerNormAttrs>().dims);
    if (!divided || divided->dim >= shape(node.inputs[0]).rank() - normalized) return false;
    return with_whole_rest(node, *divided);
  }
  /// The first input is divided, the others are read by each rank for its part.
  bool with_whole_rest(const Node& node, const TensorDivision& divided) {
    std::vector<ValueId> inputs{at(node.inputs[0]).id()};
    for (size_t i = 1; i < node.inputs.size(); ++i) {
      const ValueId id = node.inputs[i];
      if (id != kNoValue && division(id)) return false;
      inputs.push_back(id == kNoValue ? kNoValue : entered(id).id());
    }
    add(node, std::move(inputs), divided);
    return true;
  }

  bool divide_elementwise(const Node& node) {
    if (node.op == &dropout_op()) return divide_dropout(node);
    if (find_elementwise(node.op->name) == nullptr && node.op != &cast_op()) return false;
    const int rank = shape(node.outputs[0]).rank();
    // Counted from the last dimension, by which shapes are aligned.
    Division result;
    for (const ValueId id : node.inputs) {
      if (Division own = division(id); own && !result) {
        result = own;
        result->dim += rank - shape(id).rank();
      }
    }
    std::vector<ValueId> inputs;
    for (const ValueId id : node.inputs) {
      if (id == kNoValue) {
        inputs.push_back(kNoValue);
        continue;
      }
      TensorDivision aligned = *result;
      aligned.dim -= rank - shape(id).rank();
      const Division own = division(id);
      if (own && *own != aligned) return false;
      const bool has_dim = aligned.dim >= 0 && shape(id)[aligned.dim] > 1;
      inputs.push_back(own ? at(id).id() : has_dim ? part(id, aligned).id() : entered(id).id());
    }
    add(node, std::move(inputs), result);
    return true;
  }

  /// Of samples, the masks are those of one rank. Else each rank draws its own: its elements are not neighbors in the numbering of a
  /// sample.
  bool divide_dropout(const Node& node) {
    const Division divided = division(node.inputs[0]);
    if (!divided) return false;
    if (divided->dim == 0) {
      const int64_t first = divided->ranges(options_.rank, options_.ranks).front().begin;
      const auto numbers = [&](int64_t size, int64_t value) {
        return full(new_, {.dtype = DType::kI64, .shape = {size}, .format = {}, .names = {}}, static_cast<double>(value));
      };
      const Value rng = galley::add(at(node.inputs[1]), concat({numbers(2, 0), differs(numbers(1, first))}, 0));
      add(node, {at(node.inputs[0]).id(), rng.id()}, divided);
      return true;
    }
    auto attrs = std::make_shared<DropoutAttrs>(node.attrs<DropoutAttrs>());
    attrs->stream = static_cast<int64_t>((static_cast<uint64_t>(attrs->stream) + static_cast<uint64_t>(options_.rank)) & INT64_MAX);
    Node changed = node;
    changed.attributes = attrs;
    return with_whole_rest(changed, *divided);
  }

  const Graph& old_;
  const TensorDivisions& divisions_;
  TensorParallelOptions options_;
  Graph new_;
  std::vector<ValueId> map_;
  std::vector<bool> learns_;
  TensorPlacements placed_;  // of values of the new graph
  std::map<ValueId, ValueId> gathered_for_parts_;
  std::map<ValueId, ValueId> entered_, gathered_;  // by values of the old graph
};

}  // namespace

TensorPlacements tensor_parallel(Graph& graph, const TensorDivisions& divisions, const TensorParallelOptions& options) {
  TensorPlacements placements;
  graph = Rewriter(graph, divisions, options).run(placements);
  check_placements(graph, divisions, placements, options);
  return placements;
}

}  // namespace galley
