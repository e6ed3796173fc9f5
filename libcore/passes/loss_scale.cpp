#include "libcore/passes/loss_scale.h"

#include <string_view>

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/unary.h"
#include "libcore/ops/update.h"

namespace galley {
namespace {

constexpr const char* kPath = "loss_scale";

}  // namespace

Value loss_scale_state(Graph& graph, const char* name) {
  const ValueId found = graph.find_input(name);
  if (found != kNoValue) return graph.at(found);
  TensorType type;
  type.dtype = std::string_view(name) == kLossScale ? DType::kF32 : DType::kI64;
  return graph.add_input(name, type, ValueRole::kState);
}

ValueId scaled_loss(Graph& graph, ValueId loss) {
  const std::string path = graph.path();
  graph.set_path(kPath);
  const ValueId scaled = mul(graph.at(loss), loss_scale_state(graph, kLossScale)).id();
  graph.set_path(path);
  return scaled;
}

void update_loss_scale(Graph& graph, Value finite, Value gate, const LossScaling& scaling) {
  const std::string path = graph.path();
  const Phase phase = graph.phase();
  graph.set_path(kPath);
  graph.set_phase(Phase::kUpdate);
  const Value applied = loss_scale_state(graph, kAppliedUpdates);
  const TensorType count = applied.type();
  const Value one = full(graph, count, 1), zero = full(graph, count, 0);
  assign(applied, add(applied, where(finite, one, zero)), gate);
  if (scaling.dynamic) {
    const Value scale = loss_scale_state(graph, kLossScale), age = loss_scale_state(graph, kLossScaleAge);
    const Value older = add(age, one), due = equal(older, full(graph, count, static_cast<double>(scaling.interval)));
    const Value doubled = minimum(affine(scale, 2), full(graph, scale.type(), kLargestLossScale));
    assign(scale, where(finite, where(due, doubled, scale), affine(scale, 0.5)), gate);
    assign(age, where(finite, where(due, zero, older), zero), gate);
  }
  graph.set_path(path);
  graph.set_phase(phase);
}

}  // namespace galley
