#include "libcore/ops/softmax.h"

#include "libcore/ops/definitions.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

std::vector<TensorType> infer(const OpContext& c) {
  check_floating(c.in(0), "x");
  axis_of(c.attrs<SoftmaxAttrs>().axis, c.in(0));
  return {c.in(0)};
}
std::vector<TensorType> infer_backward(const OpContext& c) {
  check_like(c.in(0), "grad", c.in(1), "the output of the forward operator");
  return infer(c);
}

OpDef forward(std::string_view name, std::string_view doc, void (*gradient)(GradientBuilder&)) {
  return {.name = name,
          .doc = doc,
          .inputs = {"x"},
          .outputs = {"y"},
          .make_attrs = make_options<SoftmaxAttrs>,
          .infer = infer,
          .gradient = gradient,
          .cost = elementwise_cost<5>,
          .precision = PrecisionRule::kKeepF32};
}
OpDef backward(std::string_view name, std::string_view doc) {
  return {.name = name,
          .doc = doc,
          .inputs = {"grad", "y"},
          .outputs = {"dx"},
          .make_attrs = make_options<SoftmaxAttrs>,
          .infer = infer_backward,
          .no_gradient = kNoSecondDerivative,
          .cost = elementwise_cost<4>,
          .precision = PrecisionRule::kKeepF32};
}

}  // namespace

void SoftmaxAttrs::options(OptionVisitor& v) { v.option({.name = "axis", .doc = "dimension of the softmax"}, axis); }

const OpDef& softmax_op() {
  static const OpDef def = [] {
    OpDef op = forward("softmax", "exp(x - max) / sum along an axis",
                       [](GradientBuilder& g) { g.set(0, softmax_backward(g.grad(), g.out(), g.attrs<SoftmaxAttrs>())); });
    op.cases = {"softmax:12x197x197:axis=2"};
    op.definition = definition::softmax;
    return op;
  }();
  return def;
}
const OpDef& softmax_backward_op() {
  static const OpDef def = [] {
    OpDef op = backward("softmax_backward", "y (grad - sum(grad y))");
    op.cases = {"softmax_backward:12x197x197+12x197x197:axis=2"};
    op.definition = definition::softmax_backward;
    return op;
  }();
  return def;
}
const OpDef& log_softmax_op() {
  static const OpDef def = [] {
    OpDef op = forward("log_softmax", "x - log sum exp(x) along an axis",
                       [](GradientBuilder& g) { g.set(0, log_softmax_backward(g.grad(), g.out(), g.attrs<SoftmaxAttrs>())); });
    op.cases = {"log_softmax:64x1000:axis=1"};
    op.definition = definition::log_softmax;
    return op;
  }();
  return def;
}
const OpDef& log_softmax_backward_op() {
  static const OpDef def = [] {
    OpDef op = backward("log_softmax_backward", "grad - exp(y) sum(grad)");
    op.cases = {"log_softmax_backward:64x1000+64x1000:axis=1"};
    op.definition = definition::log_softmax_backward;
    return op;
  }();
  return def;
}

OpTable softmax_ops() { return {&softmax_op(), &softmax_backward_op(), &log_softmax_op(), &log_softmax_backward_op()}; }

Value softmax(Value x, const SoftmaxAttrs& attrs) { return emit("softmax", {x}, attrs); }
Value softmax_backward(Value grad, Value y, const SoftmaxAttrs& attrs) { return emit("softmax_backward", {grad, y}, attrs); }
Value log_softmax(Value x, const SoftmaxAttrs& attrs) { return emit("log_softmax", {x}, attrs); }
Value log_softmax_backward(Value grad, Value y, const SoftmaxAttrs& attrs) { return emit("log_softmax_backward", {grad, y}, attrs); }

}  // namespace galley
