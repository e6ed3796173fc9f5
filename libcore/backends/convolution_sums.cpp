#include "libcore/backends/convolution_sums.h"

#include <utility>

#include "libcore/ops/binary.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/rewritten.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/unary.h"

namespace galley {
namespace {

TensorType sums_of(const TensorType& y) {
  TensorType sums;
  sums.shape = Shape{y.shape[1]};
  return sums;
}

std::vector<TensorType> infer_conv2d_sums(const OpContext& c) {
  const auto& attrs = c.attrs<Conv2dAttrs>();
  GALLEY_CHECK(attrs.activation == Activation::kNone, "sums are those of a convolution without an activation");
  const TensorType y = infer_part(conv2d_op(), attrs, {&c.in(0), &c.in(1)}).front();
  return {y, sums_of(y), sums_of(y)};
}
std::vector<TensorType> infer_batch_norm_of_sums(const OpContext& c) {
  for (const int i : {4, 5})
    GALLEY_CHECK(c.in(i).shape == sums_of(c.in(0)).shape, "sums must be [", c.in(0).shape[1], "], not ", c.in(i).shape);
  GALLEY_CHECK(c.attrs<BatchNormAttrs>().sync.empty(), "sums are those of one rank");
  return infer_part(batch_norm_op(), c.attrs<BatchNormAttrs>(), {&c.in(0), given(c, 1), given(c, 2), given(c, 3)});
}

void define_conv2d_sums(Expansion& e) {
  const Value y = conv2d(e.in(0), e.in(1), {}, e.attrs<Conv2dAttrs>());
  const std::vector<int64_t> axes = definition::all_but_channels(y.shape().rank());
  e.set(0, y);
  e.set(1, sum(y, axes));
  e.set(2, sum(square(y), axes));
}
void define_batch_norm_of_sums(Expansion& e) {
  const auto& a = e.attrs<BatchNormAttrs>();
  const Value x = e.in(0);
  const int64_t count = x.channels() == 0 ? 0 : x.type().elements() / x.channels();
  const double share = 1 / static_cast<double>(count > 0 ? count : 1);
  const Value mean = affine(e.in(4), share), var = relu(sub(affine(e.in(5), share), square(mean)));
  BatchNormInferenceAttrs frozen;
  frozen.eps = a.eps;
  Value y = batch_norm_inference(x, e.has(1) ? e.in(1) : Value(), e.has(2) ? e.in(2) : Value(), mean, var, frozen);
  if (e.has(3)) y = add(y, e.in(3));
  e.set(0, definition::activated(a.activation, y));
  e.set(1, mean);
  e.set(2, var);
}

}  // namespace

const OpDef& conv2d_sums_op() {
  static const OpDef def = [] {
    OpDef made = rewritten_from(conv2d_op(), "conv2d_sums", "conv2d, and the sums of its results and of their squares for each channel");
    made.inputs.erase(made.inputs.begin() + 2, made.inputs.end());
    made.outputs.push_back(Port::statistics("sum"));
    made.outputs.push_back(Port::statistics("squares"));
    made.infer = infer_conv2d_sums;
    made.definition = define_conv2d_sums;
    return made;
  }();
  return def;
}
const OpDef& batch_norm_of_sums_op() {
  static const OpDef def = [] {
    OpDef made = rewritten_from(batch_norm_op(), "batch_norm_of_sums", "batch_norm with the sums of its input");
    made.inputs.push_back(Port::statistics("sum"));
    made.inputs.push_back(Port::statistics("squares"));
    made.infer = infer_batch_norm_of_sums;
    made.definition = define_batch_norm_of_sums;
    return made;
  }();
  return def;
}

void ensure_convolution_sum_operators() { ensure_registered({&conv2d_sums_op(), &batch_norm_of_sums_op()}); }

std::vector<Value> conv2d_sums(Value x, Value weight, const Conv2dAttrs& attrs) {
  return emit_all(conv2d_sums_op(), std::make_unique<Conv2dAttrs>(attrs), std::vector<Value>{x, weight});
}
std::vector<Value> batch_norm_of_sums(const std::vector<Value>& inputs, const BatchNormAttrs& attrs) {
  return emit_all(batch_norm_of_sums_op(), std::make_unique<BatchNormAttrs>(attrs), inputs);
}

PassReport use_convolution_sums(Graph& graph, const Target& target) {
  PassReport report;
  const std::vector<int> producers = graph.producers();
  for (Node& norm : graph.nodes()) {
    if (!norm.is("batch_norm") || !norm.attrs<BatchNormAttrs>().sync.empty()) continue;
    const int n = producers[static_cast<size_t>(norm.inputs[0])];
    if (n < 0) continue;
    Node& convolution = graph.nodes()[static_cast<size_t>(n)];
    Node of_sums = norm;
    of_sums.op = &batch_norm_of_sums_op();
    of_sums.inputs.resize(4, kNoValue);
    if (convolution.is("conv2d_sums")) {  // a second norm of its result, or the same computed again by the backward pass
      of_sums.inputs.insert(of_sums.inputs.end(), convolution.outputs.begin() + 1, convolution.outputs.end());
      norm = std::move(of_sums);
      continue;
    }
    if (!convolution.is("conv2d") || convolution.input(2) != kNoValue || convolution.input(3) != kNoValue ||
        convolution.attrs<Conv2dAttrs>().activation != Activation::kNone)
      continue;
    const TensorType sums = sums_of(graph.type(convolution.outputs[0]));
    Node with_sums = convolution;
    with_sums.op = &conv2d_sums_op();
    with_sums.inputs.resize(2);
    for (int i = 0; i < 2; ++i) with_sums.outputs.push_back(graph.new_value(sums));
    of_sums.inputs.insert(of_sums.inputs.end(), with_sums.outputs.begin() + 1, with_sums.outputs.end());
    if (!target.has_kernel(graph, with_sums, Stage::kBeforeLayout) || !target.has_kernel(graph, of_sums, Stage::kBeforeLayout)) continue;
    report.done.push_back(cat(norm.path, ": conv2d + statistics of batch_norm"));
    convolution = std::move(with_sums);
    norm = std::move(of_sums);
  }
  return report;
}

}  // namespace galley
