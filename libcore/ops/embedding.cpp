#include "libcore/ops/embedding.h"

#include "libcore/ops/definitions.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/rules.h"

namespace galley {

void EmbeddingBackwardAttrs::options(OptionVisitor& v) {
  v.option({.name = "rows", .doc = "rows of the table", .min = 0, .required = true}, rows);
}

const OpDef& embedding_op() {
  static const OpDef def{.name = "embedding",
                         .doc = "selects rows of a table by indices",
                         .inputs = {Port::weight("weight"), Port::index("index")},
                         .outputs = {"y"},
                         .infer = [](const OpContext& c) -> std::vector<TensorType> {
                           const TensorType& weight = c.in(0);
                           const TensorType& index = c.in(1);
                           check_integer(index, "index");
                           GALLEY_CHECK(weight.shape.rank() == 2, "weight must be [rows,width], not ", weight);
                           TensorType y;
                           y.dtype = weight.dtype;
                           y.shape = index.shape;
                           y.shape.push_back(weight.shape[1]);
                           std::vector<std::string> names;
                           for (int axis = 0; axis < index.shape.rank(); ++axis) names.emplace_back(dim_name(index, axis));
                           names.emplace_back(dim_name(weight, 1));
                           y.names = tidy_names(std::move(names));
                           return {y};
                         },
                         .gradient =
                             [](GradientBuilder& g) {
                               if (!g.wants(0)) return;
                               EmbeddingBackwardAttrs attrs;
                               attrs.rows = g.in(0).shape()[0];
                               g.set(0, embedding_backward(g.grad(), g.in(1), attrs));
                             },
                         .cost =
                             [](const OpContext& c) {
                               Cost cost = operand_cost(c, 0);
                               // Reads only the selected rows.
                               cost.bytes_read = static_cast<double>(c.in(1).bytes() + c.out(0).bytes());
                               return cost;
                             },
                         .layout = {FormatRule::kContiguous},
                         .definition = definition::embedding,
                         .index_range = [](const OpContext& c) { return IndexRange{c.in(0).shape[0], "rows"}; },
                         .indices = 1,
                         .cases = {"embedding:10000x256+64x128@i64"}};
  return def;
}

const OpDef& embedding_backward_op() {
  static const OpDef def{.name = "embedding_backward",
                         .doc = "adds rows of the gradient into a table of zeros, at the indices",
                         .inputs = {"grad", Port::index("index")},
                         .outputs = {Port::weight("dweight")},
                         .make_attrs = make_options<EmbeddingBackwardAttrs>,
                         .infer = [](const OpContext& c) -> std::vector<TensorType> {
                           const TensorType& grad = c.in(0);
                           const TensorType& index = c.in(1);
                           check_integer(index, "index");
                           check_floating(grad, "grad");
                           Shape expected = index.shape;
                           GALLEY_CHECK(grad.shape.rank() == expected.rank() + 1, "grad must have one dimension more than index: grad ",
                                        grad, ", index ", index);
                           expected.push_back(grad.shape[-1]);
                           GALLEY_CHECK(grad.shape == expected, "grad must have the shape of index plus the width: grad ", grad, ", index ",
                                        index);
                           TensorType y;
                           y.dtype = grad.dtype;
                           y.shape = Shape{c.attrs<EmbeddingBackwardAttrs>().rows, grad.shape[-1]};
                           return {y};
                         },
                         .no_gradient = kNoSecondDerivative,
                         .cost = input_cost<1>,
                         .layout = {FormatRule::kContiguous},
                         .definition = definition::embedding_backward,
                         .cases = {"embedding_backward:64x128x256+64x128@i64:rows=10000"}};
  return def;
}

Value embedding(Value weight, Value index) { return emit("embedding", {weight, index}); }
Value embedding_backward(Value grad, Value index, const EmbeddingBackwardAttrs& attrs) {
  return emit("embedding_backward", {grad, index}, attrs);
}

OpTable embedding_ops() { return {&embedding_op(), &embedding_backward_op()}; }

}  // namespace galley
