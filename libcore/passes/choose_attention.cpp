#include "libcore/passes/choose_attention.h"

#include "libcore/base/units.h"
#include "libcore/ops/attention.h"
#include "libcore/passes/expand.h"

namespace galley {
namespace {

/// Scores of one operator above which they are not stored: 12 heads of 1024 x 1024 take 48 MiB.
constexpr double kLargestScores = 64.0 * 1024 * 1024;

struct Choice {
  AttentionAlgorithm algorithm;
  std::string reason;
};

double score_bytes(const Graph& graph, const Node& node, const AttentionAttrs& attrs) {
  const auto type = [&](size_t i) { return node.input(i) == kNoValue ? nullptr : &graph.type(node.inputs[i]); };
  const AttentionShape s = attention_shape(attrs, *type(attention_port::kQ), type(attention_port::kK), type(attention_port::kV));
  return 4.0 * static_cast<double>(s.batch) * static_cast<double>(s.heads) * static_cast<double>(s.queries) * static_cast<double>(s.keys);
}

std::string at(const Node& node) { return node.path.empty() ? "" : cat(" at ", node.path); }

[[noreturn]] void refuse(const Node& node, std::string_view why) {
  throw Error(ErrorCode::kRecipe, cat("[attention]", at(node), ": the algorithm ", why)).key("attention").suggest("use auto or math");
}

Choice choice_for(const Graph& graph, const Target& target, const Node& node, const AttentionAttrs& attrs) {
  const double bytes = score_bytes(graph, node, attrs);
  const std::string size = human_bytes(bytes) + " of scores";
  const bool kernel = target.has_kernel(graph, node, Stage::kBeforeLayout);
  const AttentionAlgorithm requested = attrs.algorithm == AttentionAlgorithm::kAuto ? target.attention() : attrs.algorithm;
  switch (requested) {
    case AttentionAlgorithm::kAuto:
      if (kernel) return {AttentionAlgorithm::kFlash, cat("the back end has a kernel that does not store the ", size)};
      if (bytes > kLargestScores && attrs.dropout == 0)
        return {AttentionAlgorithm::kMemoryEfficient, cat("the back end has no kernel for it, and ", size, " are too many to store")};
      return {AttentionAlgorithm::kMath, cat("the back end has no kernel for it; stores ", size)};
    case AttentionAlgorithm::kFlash:
      if (!kernel) refuse(node, "is flash, but the back end has no kernel for it");
      break;
    case AttentionAlgorithm::kMemoryEfficient:
      if (attrs.dropout != 0) refuse(node, "is memory_efficient, which has no dropout");
      break;
    case AttentionAlgorithm::kMath: break;
  }
  return {requested, "as requested"};
}

}  // namespace

PassReport choose_attention(Graph& graph, const Target& target, AttentionStage stage) {
  PassReport report;
  const auto attributes = [](const Node& node) { return dynamic_cast<const AttentionAttrs*>(node.attributes.get()); };
  bool any = false;
  for (Node& node : graph.nodes()) {
    const AttentionAttrs* attrs = attributes(node);
    if (attrs == nullptr) continue;
    any = true;
    const Choice choice = choice_for(graph, target, node, *attrs);
    // A training graph is asked twice; the second time everything is as requested.
    if (stage == AttentionStage::kForward || attrs->algorithm == AttentionAlgorithm::kAuto) {
      const std::string text = cat(kAttentionAlgorithmNames[static_cast<size_t>(choice.algorithm)], ", ", choice.reason);
      report.done.push_back(cat(node.path.empty() ? "" : node.path + ": ", node.op->name, ": ", text));
      ++report.attention[text];
    }
    AttentionAttrs chosen = *attrs;
    chosen.algorithm = choice.algorithm;
    node.attributes = std::make_shared<AttentionAttrs>(chosen);
  }
  if (!any) return report;
  expand(graph, [&](const Node& node) {
    const AttentionAttrs* attrs = attributes(node);
    if (attrs == nullptr) return true;
    return !(attrs->algorithm == AttentionAlgorithm::kMath ||
             (attrs->algorithm == AttentionAlgorithm::kMemoryEfficient && stage == AttentionStage::kCompile));
  });
  return report;
}

}  // namespace galley
