#include "libcore/ops/attention.h"

#include <algorithm>
#include <cmath>

#include "libcore/ops/convert.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

using namespace attention_port;

void check_options(const OpContext& c, const AttentionAttrs& a) {
  GALLEY_CHECK(a.dropout >= 0 && a.dropout <= 1, "dropout must be in 0..1, is ", a.dropout);
  GALLEY_CHECK(a.dropout == 0 || c.has(kRng), "dropout=", a.dropout, " needs the input rng");
  GALLEY_CHECK(!a.pad_queries || c.has(kLengths), "pad_queries needs the input lengths");
  GALLEY_CHECK(a.window >= 0, "window must not be negative, is ", a.window);
  GALLEY_CHECK(a.softcap >= 0, "softcap must not be negative, is ", a.softcap);
}

void check_whole_numbers(const OpContext& c, int i, std::string_view name, int64_t count) {
  if (c.has(i))
    GALLEY_CHECK(c.in(i).dtype == DType::kI64 && c.in(i).shape == Shape({count}), name, " must be i64 [", count, "], is ", c.in(i));
}

AttentionShape checked_shape(const OpContext& c) {
  const auto& a = c.attrs<AttentionAttrs>();
  check_options(c, a);
  const AttentionShape s = attention_shape(a, c.in(kQ), given(c, kK), given(c, kV));
  check_whole_numbers(c, kLengths, "lengths", s.batch);
  check_whole_numbers(c, kPosition, "position", s.batch);
  check_whole_numbers(c, kRng, "rng (seed, step, index of sample 0)", 3);
  if (c.has(kBias)) {
    const TensorType& bias = c.in(kBias);
    check_floating(bias, "bias");
    const bool fits = bias.shape.rank() == 4 && (bias.shape[0] == s.batch || (bias.shape[0] > 0 && s.batch % bias.shape[0] == 0)) &&
                      (bias.shape[1] == s.heads || bias.shape[1] == 1) && (bias.shape[2] == s.queries || bias.shape[2] == 1) &&
                      bias.shape[3] == s.keys;
    GALLEY_CHECK(fits, "bias must be [", s.batch, " or a divisor,", s.heads, " or 1,", s.queries, " or 1,", s.keys, "], is ", bias.shape);
  }
  return s;
}

DType statistics_dtype(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

TensorType typed(DType dtype, const Shape& shape) {
  TensorType type;
  type.dtype = dtype;
  type.shape = shape;
  return type;
}

std::vector<TensorType> results(const OpContext& c, const AttentionShape& s) {
  const DType dtype = c.in(kQ).dtype;
  return {typed(dtype, {s.batch, s.queries, s.heads, s.value_width}), typed(statistics_dtype(dtype), {s.batch, s.heads, s.queries})};
}

std::vector<TensorType> infer(const OpContext& c) {
  GALLEY_CHECK(!c.attrs<AttentionAttrs>().bias_gradient, "bias_gradient is for attention_backward");
  return results(c, checked_shape(c));
}

std::vector<TensorType> infer_backward(const OpContext& c) {
  const AttentionShape s = checked_shape(c);
  const std::vector<TensorType> forward = results(c, s);
  check_like(c.in(kGrad), "grad", forward[0], "the output");
  check_like(c.in(kO), "o", forward[0], "the output");
  check_like(c.in(kLse), "lse", forward[1], "the output lse");
  if (c.has(kGradLse)) check_like(c.in(kGradLse), "grad_lse", forward[1], "the output lse");
  std::vector<TensorType> types;
  for (int i = 0; i < s.arrays; ++i) types.push_back(typed(c.in(i).dtype, c.in(i).shape));
  if (c.attrs<AttentionAttrs>().bias_gradient) {
    GALLEY_CHECK(c.has(kBias), "bias_gradient needs the input bias");
    types.push_back(c.in(kBias));
  }
  return types;
}

void gradient(GradientBuilder& g) {
  if (!g.grad(0) && !g.grad(1)) return;
  AttentionAttrs attrs = g.attrs<AttentionAttrs>();
  attrs.bias_gradient = g.wants(kBias);
  AttentionInputs inputs{g.in(kQ), g.in(kK), g.in(kV), g.in(kBias), g.in(kLengths), g.in(kPosition), g.in(kRng)};
  const Value o = g.out(0), lse = g.out(1);
  const Value grad = g.grad(0) ? g.grad(0) : full(o.graph(), o.type(), 0);
  const std::vector<Value> d = attention_backward(inputs, grad, o, lse, g.grad(1), attrs);
  size_t next = 0;
  for (size_t i : {kQ, kK, kV}) {
    if (g.in(i)) g.set(i, d[next++]);
  }
  if (attrs.bias_gradient) g.set(kBias, d[next]);
}

/// Pairs of a query and a key that causal and window leave, of one head of one sample without padding.
double pairs_of(const AttentionAttrs& a, const AttentionShape& s, bool positions) {
  if (positions || (!a.causal && a.window == 0)) return static_cast<double>(s.queries) * static_cast<double>(s.keys);
  double pairs = 0;
  for (int64_t i = 0; i < s.queries; ++i) {
    const int64_t last = std::min(s.keys, a.causal ? i + 1 : a.window > 0 ? i + a.window : s.keys);
    const int64_t first = a.window > 0 ? std::max<int64_t>(0, i - a.window + 1) : 0;
    pairs += static_cast<double>(std::max<int64_t>(0, last - first));
  }
  return pairs;
}

/// `products` of 2 D flops for each pair.
template <int kProducts>
Cost cost(const OpContext& c) {
  const auto& a = c.attrs<AttentionAttrs>();
  const AttentionShape s = attention_shape(a, c.in(kQ), given(c, kK), given(c, kV));
  const double heads = static_cast<double>(s.batch) * static_cast<double>(s.heads);
  Cost cost = operand_cost(c, kProducts * static_cast<double>(s.width + s.value_width) * heads * pairs_of(a, s, c.has(kPosition)));
  cost.dtype = c.in(kQ).dtype == DType::kBF16 ? DType::kBF16 : DType::kF32;
  return cost;
}

std::vector<Value> listed(const AttentionInputs& in) { return {in.q, in.k, in.v, in.bias, in.lengths, in.position, in.rng}; }

}  // namespace

void AttentionAttrs::options(OptionVisitor& v) {
  v.option({.name = "scale", .doc = "scale of q k^T; 0: 1 / sqrt(width of a head)", .min = 0}, scale);
  v.option({.name = "causal", .doc = "a query reads keys up to its own position"}, causal);
  v.option({.name = "window", .doc = "window of keys around a query, in positions; 0: unlimited", .min = 0}, window);
  v.option({.name = "softcap", .doc = "scores become softcap * tanh(score / softcap); 0: unchanged", .min = 0}, softcap);
  v.option({.name = "kv_heads", .doc = "key heads of a packed q; 0: a third of its heads", .min = 0}, kv_heads);
  v.option({.name = "pad_queries", .doc = "lengths also bounds the queries: the outputs of later ones are 0"}, pad_queries);
  v.option({.name = "dropout", .doc = "dropout probability of the attention weights", .min = 0, .max = 1}, dropout);
  v.option({.name = "stream", .doc = "random stream of the operator: a hash of module path and occurrence"}, stream);
  v.option({.name = "first_head", .doc = "of dropout: the place of head 0 among the heads of all ranks (tensor parallelism)", .min = 0},
           first_head);
  v.option({.name = "bias_gradient", .doc = "the last output is the gradient of bias"}, bias_gradient);
  v.choice({.name = "algorithm",
            .doc = "auto: chosen by the compiler; flash: tiles, never stores the scores; memory_efficient: blocks of query rows; math: the "
                   "definition"},
           algorithm, kAttentionAlgorithmNames);
  v.option({.name = "block_rows", .doc = "memory_efficient: query rows of a block; 0: as many as have 16 MiB of scores", .min = 0},
           block_rows);
}

double AttentionShape::scale(const AttentionAttrs& attrs) const {
  return attrs.scale != 0 ? attrs.scale : 1 / std::sqrt(static_cast<double>(width));
}

AttentionShape attention_shape(const AttentionAttrs& attrs, const TensorType& q, const TensorType* k, const TensorType* v) {
  check_floating(q, "q");
  GALLEY_CHECK(q.shape.rank() == 4, "q must be [batch,queries,heads,width], is ", q.shape);
  GALLEY_CHECK(k != nullptr || v == nullptr, "v is given without k");
  AttentionShape s{};
  s.batch = q.shape[0];
  s.queries = s.keys = q.shape[1];
  s.width = s.value_width = q.shape[3];
  GALLEY_CHECK(s.width >= 1, "the width of a head must be at least 1: q is ", q.shape);
  s.q_heads = s.k_heads = s.v_heads = s.heads = q.shape[2];
  if (k == nullptr) {
    s.arrays = 1;
    GALLEY_CHECK(attrs.kv_heads > 0 || s.q_heads % 3 == 0, "without k, q holds queries, keys and values, but its ", s.q_heads,
                 " heads do not divide into three parts; set kv_heads");
    s.kv_heads = attrs.kv_heads > 0 ? attrs.kv_heads : s.q_heads / 3;
    s.heads = s.q_heads - 2 * s.kv_heads;
    s.first_key = s.heads;
    s.first_value = s.heads + s.kv_heads;
  } else {
    GALLEY_CHECK(attrs.kv_heads == 0, "kv_heads is for keys and values in q; k is given, with ", k->shape);
    GALLEY_CHECK(k->dtype == q.dtype, "q is ", q, ", k is ", *k, ": their types differ");
    GALLEY_CHECK(k->shape.rank() == 4 && k->shape[0] == s.batch && k->shape[3] == s.width, "k must be [", s.batch, ",keys,heads,", s.width,
                 "] as q ", q.shape, ", is ", k->shape);
    s.keys = k->shape[1];
    s.k_heads = s.v_heads = s.kv_heads = k->shape[2];
    s.arrays = v == nullptr ? 2 : 3;
    if (v == nullptr) {
      GALLEY_CHECK(s.k_heads % 2 == 0, "without v, k holds keys and values, but has ", s.k_heads, " heads, an odd number");
      s.first_value = s.kv_heads = s.k_heads / 2;
    } else {
      GALLEY_CHECK(v->dtype == q.dtype, "q is ", q, ", v is ", *v, ": their types differ");
      GALLEY_CHECK(v->shape.rank() == 4 && v->shape[0] == s.batch && v->shape[1] == s.keys && v->shape[2] == s.kv_heads, "v must be [",
                   s.batch, ",", s.keys, ",", s.kv_heads, ",width] as k ", k->shape, ", is ", v->shape);
      s.value_width = v->shape[3];
      GALLEY_CHECK(s.value_width >= 1, "the width of a head must be at least 1: v is ", v->shape);
    }
  }
  GALLEY_CHECK(s.heads >= 1 && s.kv_heads >= 1 && s.heads % s.kv_heads == 0, s.kv_heads, " key heads do not divide ", s.heads,
               " query heads");
  return s;
}

const OpDef& attention_op() {
  static const OpDef def{
      .name = "attention",
      .doc =
          "softmax(scale q k^T + bias) v of each head, with causal, window and padding masks (Vaswani et al. 2017; tiles: Dao et al. 2022)",
      .inputs = {"q", "k?", "v?", Port::statistics("bias?"), Port::index("lengths?"), Port::index("position?"), Port::scalar("rng?")},
      .outputs = {"o", Port::statistics("lse")},
      .make_attrs = make_options<AttentionAttrs>,
      .infer = infer,
      .gradient = gradient,
      .cost = cost<2>,
      .work = WorkClass::kProduct,
      .layout = {FormatRule::kContiguous},
      .precision = PrecisionRule::kLow,
      .definition = definition::attention,
      .named_by_parts = true,
      .cases = {"attention:12x256x18x64:causal=true", "attention:4x256x24x64:causal=true", "attention:2x256x36x64:causal=true",
                "attention:1x2048x24x64:causal=true", "attention:16x197x36x64", "attention:1x128x36x64"}};
  return def;
}

const OpDef& attention_backward_op() {
  static const OpDef def{.name = "attention_backward",
                         .doc = "gradients of attention; probabilities are computed again from lse",
                         .inputs = {"q", "k?", "v?", Port::statistics("bias?"), Port::index("lengths?"), Port::index("position?"),
                                    Port::scalar("rng?"), "grad", "o", Port::statistics("lse"), Port::statistics("grad_lse?")},
                         .outputs = {"dq", "dk", "dv", Port::statistics("dbias")},
                         .make_attrs = make_options<AttentionAttrs>,
                         .infer = infer_backward,
                         .no_gradient = kNoSecondDerivative,
                         .cost = cost<5>,
                         .work = WorkClass::kProduct,
                         .layout = {FormatRule::kContiguous},
                         .definition = definition::attention_backward};
  return def;
}

Attention attention(const AttentionInputs& inputs, const AttentionAttrs& attrs) {
  const std::vector<Value> r = emit_all("attention", std::make_unique<AttentionAttrs>(attrs), listed(inputs));
  return {r[0], r[1]};
}

std::vector<Value> attention_backward(const AttentionInputs& inputs, Value grad, Value o, Value lse, Value grad_lse,
                                      const AttentionAttrs& attrs) {
  std::vector<Value> all = listed(inputs);
  all.insert(all.end(), {grad, o, lse, grad_lse});
  return emit_all("attention_backward", std::make_unique<AttentionAttrs>(attrs), all);
}

OpTable attention_ops() { return {&attention_op(), &attention_backward_op()}; }

}  // namespace galley
