#include "libcore/nn/loss.h"

#include <algorithm>

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/loss.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley {
namespace {

constexpr ComponentKind kKinds[] = {
    {"cross_entropy", "softmax and negative log likelihood of class indices or probabilities", make_options<CrossEntropyParams>},
    {"mse", "mean of squared differences", make_options<MseParams>},
    {"bce_with_logits", "sigmoid and binary cross entropy, element by element", make_options<BceWithLogitsParams>},
};

/// A constant vector, built from one node per run of equal values.
Value constant(Graph& graph, const std::vector<double>& values) {
  std::vector<Value> runs;
  for (size_t begin = 0; begin < values.size();) {
    size_t end = begin + 1;
    while (end < values.size() && values[end] == values[begin]) ++end;
    runs.push_back(full(graph, {.dtype = DType::kF32, .shape = {static_cast<int64_t>(end - begin)}}, values[begin]));
    begin = end;
  }
  ConcatAttrs along;
  along.axis = 0;
  return runs.size() == 1 ? runs.front() : concat(runs, along);
}

Component with_dim(Component loss, int64_t dim) {
  if (auto* params = dynamic_cast<CrossEntropyParams*>(loss.params.get())) params->dim = dim;
  return loss;
}

int checked_class_axis(const Component& loss, const TensorType& output) {
  const int axis = class_axis(loss, output);
  GALLEY_CHECK(axis > 0, "[cross_entropy] needs a model output ", loss.as<CrossEntropyParams>()->dim == 1 ? "[N,C,...]" : "[N,...,C]",
               ", not ", output);
  return axis;
}

Value emit_loss(const Component& loss, Value output, Value target, Reduction reduction) {
  if (const auto* params = loss.as<CrossEntropyParams>()) {
    const int axis = checked_class_axis(loss, output.type());
    const int64_t classes = output.shape()[axis];
    GALLEY_CHECK(params->weight.empty() || static_cast<int64_t>(params->weight.size()) == classes, "[cross_entropy] weight has ",
                 params->weight.size(), " values, but the model has ", classes, " classes");
    if (axis != 1) {
      // A view in which every position is a row.
      const Shape positions(output.shape().sizes().first(static_cast<size_t>(axis)));
      const Shape rows{positions.elements(), classes};
      const Component by_rows = with_dim(loss, 1);
      const Value result = emit_loss(by_rows, reshape(output, rows),
                                     reshape(target, is_floating(target.dtype()) ? rows : Shape{positions.elements()}), reduction);
      return reduction == Reduction::kNone ? reshape(result, positions) : result;
    }
    CrossEntropyAttrs attrs;
    attrs.label_smoothing = params->label_smoothing;
    attrs.ignore_index = params->ignore_index;
    attrs.reduction = reduction;
    return emit("cross_entropy", {output, target, params->weight.empty() ? Value() : constant(output.graph(), params->weight)}, attrs);
  }
  LossAttrs attrs;
  attrs.reduction = reduction;
  if (loss.as<MseParams>() != nullptr) return emit("mse_loss", {output, target}, attrs);
  GALLEY_ASSERT(loss.as<BceWithLogitsParams>() != nullptr, "unknown loss ", loss.type);
  return emit("bce_with_logits", {output, target}, attrs);
}

}  // namespace

void CrossEntropyParams::options(OptionVisitor& v) {
  v.option({.name = "label_smoothing",
            .doc = "fraction of the target that is spread over all classes (Szegedy et al. 2015)",
            .min = 0,
            .max = 1},
           label_smoothing);
  v.option({.name = "ignore_index", .doc = "target value that is ignored"}, ignore_index);
  v.option({.name = "weight", .doc = "weight of each class; default: all 1", .min = 0}, weight);
  v.option(
      {.name = "dim", .doc = "dimension of the classes: 1, or -1 for the last (language models always: the last)", .min = -1, .max = 1},
      dim);
}
void MseParams::options(OptionVisitor&) {}
void BceWithLogitsParams::options(OptionVisitor&) {}

ComponentKinds losses() { return kKinds; }

Component make_loss(std::string_view type) {
  std::vector<std::string> names;
  for (const ComponentKind& kind : kKinds) {
    names.emplace_back(kind.type);
    if (kind.type != type) continue;
    Component component;
    component.type = kind.type;
    component.params = kind.make();
    return component;
  }
  const std::string near = nearest(type, names);
  throw Error(ErrorCode::kRecipe, cat("there is no loss '", type, "'"))
      .suggest(near.empty() ? std::string() : cat("did you mean '", near, "'?"));
}

Component over_last_dimension(Component loss) { return with_dim(std::move(loss), -1); }

int class_axis(const Component& loss, const TensorType& output) {
  const auto* params = loss.as<CrossEntropyParams>();
  if (params == nullptr || output.shape.rank() < 2) return -1;
  GALLEY_CHECK(params->dim != 0, "[cross_entropy] dim must be 1, or -1 for the last dimension");
  return params->dim == 1 ? 1 : output.shape.rank() - 1;
}

TensorType loss_target(const Component& loss, const TensorType& output, bool probabilities) {
  if (loss.as<CrossEntropyParams>() == nullptr || probabilities) return {.dtype = output.dtype, .shape = output.shape};
  const int classes = checked_class_axis(loss, output);
  TensorType target{.dtype = DType::kI64};
  for (int axis = 0; axis < output.shape.rank(); ++axis) {
    if (axis != classes) target.shape.push_back(output.shape[axis]);
  }
  return target;
}

Value build_loss(Builder& b, const Component& loss, Value output, Value target) {
  const auto scope = b.scope("loss");
  return emit_loss(loss, output, target, Reduction::kMean);
}

Value build_element_losses(Builder& b, const Component& loss, Value output, Value target) {
  const auto scope = b.scope("loss");
  return emit_loss(loss, output, target, Reduction::kNone);
}

Value build_sample_losses(Builder& b, const Component& loss, Value output, Value target) {
  const auto scope = b.scope("loss");
  Value losses = emit_loss(loss, output, target, Reduction::kNone);
  if (losses.shape().rank() == 1) return losses;
  std::vector<int64_t> axes;
  for (int axis = 1; axis < losses.shape().rank(); ++axis) axes.push_back(axis);
  return mean(losses, axes);
}

}  // namespace galley
