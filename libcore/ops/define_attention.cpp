// Definitions of attention and of its backward operator: the scores of all pairs of a query and a key, or, for memory_efficient, of those
// of a block of query rows after the other (Rabe, Staats 2021).

#include <algorithm>
#include <limits>

#include "libcore/ops/attention.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/index.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/random.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley::definition {
namespace {

using namespace attention_port;

const double kNever = -std::numeric_limits<double>::infinity();  // the score of a pair that a mask forbids

/// What both operators compute. Values of heads are [B,H,T,width]; of groups [B,G,(H / G) T,width], so that one product serves the query
/// heads that share a key head.
class Pairs {
 public:
  explicit Pairs(Expansion& e)
      : e_(e),
        attrs_(e.attrs<AttentionAttrs>()),
        shape_(attention_shape(attrs_, e.type(kQ), e.has(kK) ? &e.type(kK) : nullptr, e.has(kV) ? &e.type(kV) : nullptr)) {
    const Value q = e.in(kQ), k = shape_.arrays == 1 ? q : e.in(kK), v = shape_.arrays == 3 ? e.in(kV) : k;
    query_ = grouped(affine(by_head(part(q, 0, shape_.heads)), shape_.scale(attrs_)));
    key_ = by_head(part(k, shape_.first_key, shape_.kv_heads));
    value_ = by_head(part(v, shape_.first_value, shape_.kv_heads));
  }

  const AttentionShape& shape() const { return shape_; }
  bool empty() const { return shape_.batch * shape_.queries * shape_.keys == 0; }
  Value query() const { return query_; }  ///< times scale
  Value key() const { return key_; }
  Value value() const { return value_; }

  /// [B,T,heads,width] -> [B,heads,T,width] and back.
  static Value by_head(Value x) { return transpose(x, 1, 2); }
  Value grouped(Value x) const { return reshape(x, Shape{shape_.batch, shape_.kv_heads, shape_.group() * shape_.queries, x.shape()[3]}); }
  Value by_heads(Value x) const { return reshape(x, Shape{shape_.batch, shape_.heads, shape_.queries, x.shape()[3]}); }

  /// The scores [B,H,Tq,Tk]; -inf where a mask forbids the pair.
  Value scores() {
    Value s = by_heads(matmul(query_, key_, {false, true}));
    if (attrs_.softcap != 0) {
      bent_ = tanh(affine(s, 1 / attrs_.softcap));
      s = affine(bent_, attrs_.softcap);
    }
    if (e_.has(kBias)) s = reshape(add(by_bias(s), e_.in(kBias)), s.shape());
    return masked(s);
  }
  /// [B,H,Tq,Tk], or [B / Bb,Bb,H,Tq,Tk] where the bias has Bb samples, neither 1 nor B.
  Value by_bias(Value x) const {
    const int64_t samples = e_.type(kBias).shape[0];
    return samples == shape_.batch || samples == 1
               ? x
               : reshape(x, Shape{shape_.batch / samples, samples, shape_.heads, shape_.queries, shape_.keys});
  }
  /// The gradient of q k^T from that of the scores.
  Value through_softcap(Value grad) const { return bent_ ? mul(grad, affine(square(bent_), -1, 1)) : grad; }

  Value dropped(Value probabilities) const {
    if (attrs_.dropout == 0) return probabilities;
    DropoutAttrs drop;
    drop.p = attrs_.dropout;
    drop.stream = attrs_.stream;
    const int64_t before = attrs_.first_head;
    if (before == 0) return dropout(probabilities, e_.in(kRng), drop);
    return slice(dropout(pad(probabilities, {0, 0, before, 0, 0, 0, 0, 0}), e_.in(kRng), drop), 1, before, before + shape_.heads);
  }

 private:
  static Value part(Value x, int64_t first, int64_t heads) {
    return first == 0 && x.shape()[2] == heads ? x : slice(x, 2, first, first + heads);
  }
  /// Positions along an axis of [B,1,Tq,Tk], as floating numbers, which are exact up to 2^24.
  Value count(int64_t size, int axis) const {
    Shape along{1, 1, 1, 1};
    along[axis] = size;
    return iota(e_.graph(), e_.compute(), along, axis);
  }
  Value of_samples(size_t input) const { return reshape(e_.real(input), Shape{shape_.batch, 1, 1, 1}); }

  Value masked(Value s) const {
    const Value never = e_.constant(kNever), key = count(shape_.keys, 3);
    Value query = count(shape_.queries, 2);
    if (e_.has(kPosition)) query = add(query, of_samples(kPosition));
    if (attrs_.causal) s = where(greater(key, query), never, s);
    if (attrs_.window > 0) {
      const auto reach = static_cast<double>(attrs_.window);
      s = where(less(key, affine(query, 1, 1 - reach)), never, s);
      if (!attrs_.causal) s = where(greater(key, affine(query, 1, reach - 1)), never, s);
    }
    if (e_.has(kLengths)) {
      s = where(less(key, of_samples(kLengths)), s, never);
      if (attrs_.pad_queries) s = where(less(query, of_samples(kLengths)), s, never);
    }
    return s;
  }

  Expansion& e_;
  const AttentionAttrs& attrs_;
  AttentionShape shape_;
  Value query_, key_, value_, bent_;
};

ReduceAttrs along_last() {
  ReduceAttrs attrs;
  attrs.axes = {3};
  attrs.keepdim = true;
  return attrs;
}

/// x where it is a number, 0 where it is -inf.
Value finite(Expansion& e, Value x) { return where(equal(x, e.constant(kNever)), e.constant(0), x); }

/// memory_efficient: blocks of query rows whose scores take at most this many bytes in f32; at least 16 rows.
constexpr int64_t kBlockBytes = int64_t{16} << 20;
constexpr int64_t kLeastRows = 16;

/// The operators in blocks of query rows, each an operator on three arrays with the algorithm math.
class RowBlocks {
 public:
  explicit RowBlocks(Expansion& e)
      : e_(e),
        shape_(
            attention_shape(e.attrs<AttentionAttrs>(), e.type(kQ), e.has(kK) ? &e.type(kK) : nullptr, e.has(kV) ? &e.type(kV) : nullptr)),
        block_(e.attrs<AttentionAttrs>()) {
    const Value q = e.in(kQ), k = shape_.arrays == 1 ? q : e.in(kK), v = shape_.arrays == 3 ? e.in(kV) : k;
    all_ = {slice(q, 2, 0, shape_.heads), slice(k, 2, shape_.first_key, shape_.first_key + shape_.kv_heads),
            slice(v, 2, shape_.first_value, shape_.first_value + shape_.kv_heads)};
    block_.kv_heads = 0;
    block_.scale = shape_.scale(block_);
    block_.algorithm = AttentionAlgorithm::kMath;
    rows_ = block_.block_rows;
    if (rows_ == 0) rows_ = std::max(kLeastRows, kBlockBytes / std::max<int64_t>(1, shape_.batch * shape_.heads * shape_.keys * 4));
  }
  bool needed() const {
    const auto& attrs = e_.attrs<AttentionAttrs>();
    return attrs.algorithm == AttentionAlgorithm::kMemoryEfficient && attrs.dropout == 0 && shape_.queries > rows_ &&
           shape_.batch * shape_.keys > 0;
  }

  void forward() {
    std::vector<Value> o, lse;
    for (int64_t row = 0; row < shape_.queries; row += rows_) {
      const Attention part = galley::attention(inputs(row), block_);
      o.push_back(part.o);
      lse.push_back(part.lse);
    }
    e_.set(0, concat(o, along(1)));
    e_.set(1, concat(lse, along(2)));
  }

  void backward() {
    std::vector<Value> dq, dbias;
    Value dk, dv;
    for (int64_t row = 0; row < shape_.queries; row += rows_) {
      const Value grad_lse = e_.has(kGradLse) ? rows_of(e_.in(kGradLse), 2, row) : Value();
      const std::vector<Value> d = galley::attention_backward(inputs(row), rows_of(e_.in(kGrad), 1, row), rows_of(e_.in(kO), 1, row),
                                                              rows_of(e_.in(kLse), 2, row), grad_lse, block_);
      dq.push_back(d[0]);
      dk = dk ? add(dk, d[1]) : d[1];
      dv = dv ? add(dv, d[2]) : d[2];
      if (block_.bias_gradient) dbias.push_back(d[3]);
    }
    const Value queries = concat(dq, along(1));
    if (shape_.arrays == 1) {
      e_.set(0, concat({queries, dk, dv}, 2));
    } else {
      e_.set(0, queries);
      e_.set(1, shape_.arrays == 2 ? concat({dk, dv}, 2) : dk);
    }
    if (shape_.arrays == 3) e_.set(2, dv);
    if (!block_.bias_gradient) return;
    Value sum = dbias[0];
    for (size_t i = 1; i < dbias.size() && e_.type(kBias).shape[2] == 1; ++i) sum = add(sum, dbias[i]);
    e_.set(static_cast<size_t>(shape_.arrays), e_.type(kBias).shape[2] == 1 ? sum : concat(dbias, along(2)));
  }

 private:
  static ConcatAttrs along(int64_t axis) {
    ConcatAttrs attrs;
    attrs.axis = axis;
    return attrs;
  }
  Value rows_of(Value x, int64_t axis, int64_t row) const { return slice(x, axis, row, std::min(shape_.queries, row + rows_)); }

  /// The inputs for the block of query rows from `row` on.
  AttentionInputs inputs(int64_t row) {
    AttentionInputs in = all_;
    in.q = rows_of(all_.q, 1, row);
    if (e_.has(kBias)) in.bias = e_.type(kBias).shape[2] == 1 ? e_.in(kBias) : rows_of(e_.in(kBias), 2, row);
    in.lengths = e_.in(kLengths);
    const Value start = full(e_.graph(), {DType::kI64, Shape{shape_.batch}, {}, {}}, static_cast<double>(row));
    in.position = e_.has(kPosition) ? add(e_.in(kPosition), start) : start;
    return in;
  }

  Expansion& e_;
  AttentionShape shape_;
  AttentionAttrs block_;
  AttentionInputs all_;
  int64_t rows_ = 0;
};

}  // namespace

void attention(Expansion& e) {
  if (e.attrs<AttentionAttrs>().algorithm == AttentionAlgorithm::kMemoryEfficient) {
    if (RowBlocks blocks(e); blocks.needed()) return blocks.forward();
  }
  Pairs pairs(e);
  const AttentionShape& s = pairs.shape();
  if (pairs.empty()) {
    e.set(0, e.constant(0, e.output_type(0).shape));
    e.set(1, e.constant(kNever, e.output_type(1).shape));
    return;
  }
  const Value scores = pairs.scores();
  // Of a row without keys the maximum is -inf and the sum 0.
  const Value largest = finite(e, amax(scores, along_last()));
  const Value exponentials = exp(sub(scores, largest)), total = sum(exponentials, {3}, true);
  const Value probabilities = div(exponentials, where(equal(total, e.constant(0)), e.constant(1), total));
  const Value mixed = matmul(pairs.grouped(pairs.dropped(probabilities)), pairs.value());
  e.set(0, Pairs::by_head(pairs.by_heads(mixed)));
  e.set(1, reshape(add(largest, log(total)), Shape{s.batch, s.heads, s.queries}));
}

void attention_backward(Expansion& e) {
  if (e.attrs<AttentionAttrs>().algorithm == AttentionAlgorithm::kMemoryEfficient) {
    if (RowBlocks blocks(e); blocks.needed()) return blocks.backward();
  }
  Pairs pairs(e);
  const AttentionShape& s = pairs.shape();
  const size_t arrays = static_cast<size_t>(s.arrays);
  if (pairs.empty()) {
    for (size_t i = 0; i < arrays + (e.attrs<AttentionAttrs>().bias_gradient ? 1 : 0); ++i) e.set(i, e.constant(0, e.output_type(i).shape));
    return;
  }
  const Shape rows{s.batch, s.heads, s.queries, 1};
  const Value probabilities = exp(sub(pairs.scores(), finite(e, reshape(e.in(kLse), rows))));
  const Value grad = Pairs::by_head(e.in(kGrad)), grad_groups = pairs.grouped(grad);
  const Value dv = matmul(pairs.grouped(pairs.dropped(probabilities)), grad_groups, {true, false});
  // Of p_j, and of the logarithm of the sum: sum over j of p_j dp_j = sum of grad o.
  Value along = sum(mul(grad, Pairs::by_head(e.in(kO))), {3}, true);
  if (e.has(kGradLse)) along = sub(along, reshape(e.in(kGradLse), rows));
  const Value dp = pairs.dropped(pairs.by_heads(matmul(grad_groups, pairs.value(), {false, true})));
  const Value ds = mul(probabilities, sub(dp, along));
  const Value raw = pairs.grouped(pairs.through_softcap(ds));
  const Value dq = Pairs::by_head(pairs.by_heads(affine(matmul(raw, pairs.key()), s.scale(e.attrs<AttentionAttrs>()))));
  const Value dk = Pairs::by_head(matmul(raw, pairs.query(), {true, false})), values = Pairs::by_head(dv);
  if (s.arrays == 1) e.set(0, concat({dq, dk, values}, 2));
  if (s.arrays == 2) e.set(1, concat({dk, values}, 2));
  if (s.arrays == 3) e.set(1, dk), e.set(2, values);
  if (s.arrays > 1) e.set(0, dq);
  if (e.attrs<AttentionAttrs>().bias_gradient) e.set(arrays, sum_to(pairs.by_bias(ds), e.type(kBias).shape));
}

}  // namespace galley::definition
