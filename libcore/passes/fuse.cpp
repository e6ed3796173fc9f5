#include "libcore/passes/fuse.h"

#include <algorithm>

#include "libcore/ops/elementwise.h"
#include "libcore/passes/fuser.h"
#include "libcore/passes/patterns.h"

namespace galley {
namespace {

class PatternFuser {
 public:
  PatternFuser(Graph& graph, std::span<const FusionPattern> patterns) : graph_(graph), patterns_(patterns), fuser_(graph) {}

  PassReport run() {
    for (size_t n = 0; n < fuser_.size(); ++n) {
      if (is_residual_sum(graph_, fuser_.node(n))) {
        take_residual(n);
      } else if (const std::optional<Activation> activation = activation_of(fuser_.node(n))) {
        take_activation(n, *activation);
      }
    }
    fuser_.finish();
    return std::move(fuser_.report);
  }

 private:
  const FusionPattern* pattern_of(const Node& node) const { return find_pattern(patterns_, node); }

  /// The node whose first output is the value, and its pattern; null if there is none.
  const FusionPattern* producer_of(ValueId id, size_t& at) {
    const int n = fuser_.producer(id);
    if (n < 0) return nullptr;
    at = static_cast<size_t>(n);
    return fuser_.node(at).outputs[0] == id ? pattern_of(fuser_.node(at)) : nullptr;
  }

  /// Merges an addition into the node that computes one of its sides; the later one if both are possible.
  void take_residual(size_t n) {
    const Node sum = fuser_.node(n);
    std::string reason;
    const FusionPattern* best = nullptr;
    size_t inner = 0;
    ValueId residual = kNoValue;
    for (const size_t side : {0u, 1u}) {
      size_t at = 0;
      const FusionPattern* pattern = producer_of(sum.inputs[side], at);
      if (pattern == nullptr || pattern->residual < 0) continue;
      const Node& producer = fuser_.node(at);
      std::string against = fuser_.reason_against(sum.inputs[side]);
      if (sum.inputs[0] == sum.inputs[1]) against = "both sides of the add are the same value";
      const bool taken =
          pattern->activation(producer) != Activation::kNone || producer.input(static_cast<size_t>(pattern->residual)) != kNoValue;
      if (against.empty() && taken) against = "it already has an activation or residual";
      if (!against.empty()) {
        reason = cat(pattern->op, " + add: ", against);
      } else if (best == nullptr || at > inner) {
        best = pattern;
        inner = at;
        residual = sum.inputs[1 - side];
      }
    }
    if (best == nullptr) {
      if (!reason.empty()) fuser_.report.declined.push_back(cat(sum.path, ": ", reason));
      return;
    }
    Node merged = fuser_.node(inner);
    const auto input = static_cast<size_t>(best->residual);
    merged.inputs.resize(std::max(merged.inputs.size(), input + 1), kNoValue);
    merged.inputs[input] = residual;
    fuser_.merge(n, inner, std::move(merged), cat(best->op, " + add"));
  }

  void take_activation(size_t n, Activation activation) {
    const Node& node = fuser_.node(n);
    size_t inner = 0;
    const FusionPattern* pattern = producer_of(node.inputs[0], inner);
    if (pattern == nullptr || (pattern->takes != nullptr && !pattern->takes(activation))) return;
    const Node& made = fuser_.node(inner);
    const bool residual = pattern->residual >= 0 && made.input(static_cast<size_t>(pattern->residual)) != kNoValue;
    std::string against = fuser_.reason_against(node.inputs[0]);
    if (against.empty() && pattern->activation(made) != Activation::kNone) against = "it already has an activation";
    if (against.empty() && residual && pattern->residual_with_relu_only && activation != Activation::kRelu)
      against = "with a residual, only relu can be merged";
    const std::string what = cat(pattern->op, " + ", node.op->name);
    if (against.empty()) {
      fuser_.merge(n, inner, pattern->with_activation(made, activation), what);
    } else {
      fuser_.report.declined.push_back(cat(made.path, ": ", what, ": ", against));
    }
  }

  Graph& graph_;
  std::span<const FusionPattern> patterns_;
  Fuser fuser_;
};

}  // namespace

PassReport fuse_training(Graph& graph) { return PatternFuser(graph, training_patterns()).run(); }
PassReport fuse_inference(Graph& graph) { return PatternFuser(graph, inference_patterns()).run(); }

}  // namespace galley
