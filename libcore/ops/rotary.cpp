#include "libcore/ops/rotary.h"

#include <cmath>

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/index.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley {
namespace {

std::vector<TensorType> infer_table(const OpContext& c) {
  const auto& a = c.attrs<RotaryTableAttrs>();
  GALLEY_CHECK(!a.frequencies.empty(), "frequencies is empty; it has one number for each pair of values");
  int64_t rows = a.positions;
  if (c.has(0)) {
    GALLEY_CHECK(c.in(0).dtype == DType::kI64, "position must be i64, is ", c.in(0));
    GALLEY_CHECK(a.positions == 0, "positions is ", a.positions, ", but the input position gives the rows");
    rows = c.in(0).elements();
  } else {
    GALLEY_CHECK(rows >= 1, "positions must be at least 1, is ", rows);
  }
  if (c.has(1)) {
    GALLEY_CHECK(c.has(0) && c.in(0).shape.rank() >= 1, "length needs the input position");
    GALLEY_CHECK(c.in(1).dtype == DType::kI64 && c.in(1).shape == Shape({c.in(0).shape[0]}), "length must be i64 [", c.in(0).shape[0],
                 "], is ", c.in(1));
    GALLEY_CHECK(a.limit >= 1 && a.frequencies.size() >= 2, "length needs a limit of at least 1 and two frequencies");
  }
  TensorType table;
  table.shape = {rows, 2 * static_cast<int64_t>(a.frequencies.size())};
  return {table};
}

std::vector<TensorType> infer(const OpContext& c) {
  const auto& a = c.attrs<RotaryAttrs>();
  const TensorType &x = c.in(0), &table = c.in(1);
  check_floating(x, "x");
  GALLEY_CHECK(x.shape.rank() == 4, "x must be [batch,positions,heads,width], is ", x.shape);
  check_floating(table, "table");
  GALLEY_CHECK(table.shape.rank() == 2 && table.shape[1] % 2 == 0 && table.shape[1] <= x.shape[3],
               "table must be [positions,dims] with an even dims of at most ", x.shape[3], ", is ", table.shape);
  GALLEY_CHECK(a.heads >= 0 && a.heads <= x.shape[2], "heads is ", a.heads, ", x has ", x.shape[2], " heads: ", x.shape);
  if (c.has(2)) {
    GALLEY_CHECK(c.in(2).dtype == DType::kI64 && c.in(2).shape == Shape({x.shape[0]}), "position must be i64 [", x.shape[0], "], is ",
                 c.in(2));
  } else {
    GALLEY_CHECK(x.shape[1] <= table.shape[0], "x has ", x.shape[1], " positions, the table ", table.shape[0]);
  }
  return {x};
}

void gradient(GradientBuilder& g) {
  if (!g.wants(0)) return;
  RotaryAttrs attrs = g.attrs<RotaryAttrs>();
  attrs.inverse = !attrs.inverse;
  g.set(0, rotary(g.grad(), g.in(1), g.in(2), attrs));
}

}  // namespace

void RotaryAttrs::options(OptionVisitor& v) {
  v.choice({.name = "layout", .doc = "pairs of values: halves (i, i + n) or interleaved (2i, 2i + 1)"}, layout, kRotaryLayoutNames);
  v.option({.name = "heads", .doc = "number of leading heads to rotate; others are copied; 0: all", .min = 0}, heads);
  v.option({.name = "inverse", .doc = "rotate by the negative angle"}, inverse);
}
void RotaryTableAttrs::options(OptionVisitor& v) {
  v.option({.name = "positions", .doc = "rows of the table, of positions 0, 1, ...; 0: the input position has them", .min = 0}, positions);
  v.option({.name = "frequencies", .doc = "rotation of each pair per position, in radians", .required = true}, frequencies);
  v.option({.name = "factor", .doc = "of all values"}, factor);
  v.option({.name = "limit", .doc = "tokens of a sequence beyond which its frequencies are smaller; 0: none", .min = 0}, limit);
  v.option({.name = "growth", .doc = "how fast frequencies fall beyond limit", .min = 1}, growth);
}

namespace definition {

void rotary(Expansion& e) {
  const auto& a = e.attrs<RotaryAttrs>();
  const Value all = e.in(0);
  const Shape shape = all.shape();
  const int64_t heads = a.heads == 0 ? shape[2] : a.heads, dims = e.type(1).shape[1], pairs = dims / 2;
  if (all.type().elements() == 0) return e.set(0, all);
  // The rows of the table as [B or 1,T,1,dims].
  Value rows;
  if (e.has(2)) {
    const Value index =
        add(iota(e.graph(), DType::kI64, {shape[0], shape[1]}, 1), broadcast_to(reshape(e.in(2), {shape[0], 1}), {shape[0], shape[1]}));
    rows = embedding(e.in(1), index);
  } else {
    rows = slice(e.in(1), 0, 0, shape[1]);
  }
  rows = reshape(rows, {-1, shape[1], 1, dims});
  const Value cosine = slice(rows, 3, 0, pairs);
  Value sine = slice(rows, 3, pairs, dims);
  if (a.inverse) sine = neg(sine);
  const Value x = slice(all, 2, 0, heads);
  const bool halves = a.layout == RotaryLayout::kHalves;
  const auto every_other = [&](int64_t first) {
    SliceAttrs attrs;
    attrs.axis = 3;
    attrs.start = first;
    attrs.end = dims;
    attrs.step = 2;
    return slice(x, attrs);
  };
  const Value left = halves ? slice(x, 3, 0, pairs) : every_other(0), right = halves ? slice(x, 3, pairs, dims) : every_other(1);
  const Value first = sub(mul(left, cosine), mul(right, sine)), second = add(mul(right, cosine), mul(left, sine));
  Value turned = halves ? concat({first, second}, 3)
                        : reshape(concat({unsqueeze(first, 4), unsqueeze(second, 4)}, 4), Shape{shape[0], shape[1], heads, dims});
  if (dims < shape[3]) turned = concat({turned, slice(x, 3, dims)}, 3);
  if (heads < shape[2]) turned = concat({turned, slice(all, 2, heads)}, 2);
  e.set(0, turned);
}

}  // namespace definition

const OpDef& rotary_op() {
  static const OpDef def{.name = "rotary",
                         .doc = "rotates pairs of values of a head by an angle proportional to the position (Su et al. 2021)",
                         .inputs = {"x", Port::statistics("table"), Port::index("position?")},
                         .outputs = {"y"},
                         .make_attrs = make_options<RotaryAttrs>,
                         .infer = infer,
                         .gradient = gradient,
                         .cost = input_cost<3>,
                         .layout = {FormatRule::kContiguous},
                         .precision = PrecisionRule::kActivations,
                         .may_reuse = {{0, 0}},
                         .definition = definition::rotary,
                         .cases = {"rotary:4x512x32x128+512x128", "rotary:4x512x32x128+512x128:layout=interleaved"}};
  return def;
}

const OpDef& rotary_table_op() {
  static const OpDef def{.name = "rotary_table",
                         .doc = "cosines and sines of the angles of rotary position embeddings, computed in float64",
                         .inputs = {Port::index("position?"), Port::index("length?")},
                         .outputs = {Port::statistics("table")},
                         .make_attrs = make_options<RotaryTableAttrs>,
                         .infer = infer_table,
                         .no_gradient = "its input is a whole number",
                         .layout = {FormatRule::kContiguous}};
  return def;
}

std::vector<double> rotary_frequencies(int64_t dims, double base) {
  GALLEY_CHECK(dims >= 2 && dims % 2 == 0, "rotary embeddings need an even number of values, not ", dims);
  std::vector<double> frequencies;
  for (int64_t i = 0; i < dims / 2; ++i) frequencies.push_back(std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(dims)));
  return frequencies;
}

double dynamic_stretch(const RotaryTableAttrs& attrs, int64_t length, int64_t i) {
  if (attrs.limit <= 0 || length <= attrs.limit) return 1;
  const double grown = attrs.growth * static_cast<double>(length) / static_cast<double>(attrs.limit) - (attrs.growth - 1);
  return std::pow(grown, -static_cast<double>(i) / static_cast<double>(attrs.frequencies.size() - 1));
}

Value rotary_table(Graph& graph, const RotaryTableAttrs& attrs) {
  ensure_ops_registered();
  return graph.add_node(rotary_table_op(), std::make_unique<RotaryTableAttrs>(attrs), {}).front();
}
Value rotary_table(Value position, const RotaryTableAttrs& attrs, Value length) { return emit("rotary_table", {position, length}, attrs); }
Value rotary(Value x, Value table, Value position, const RotaryAttrs& attrs) { return emit("rotary", {x, table, position}, attrs); }

OpTable rotary_ops() { return {&rotary_op(), &rotary_table_op()}; }

}  // namespace galley
