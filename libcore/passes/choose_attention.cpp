#include "libcore/passes/choose_attention.h"

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

Choice choice_for(const Graph& graph, const Target& target, const Node& node, const AttentionAttrs& attrs) {
  const double bytes = score_bytes(graph, node, attrs);
  const std::string size = cat(static_cast<int64_t>(bytes / (1024 * 1024)), " MiB of scores");
  const bool kernel = target.has_kernel(graph, node, Stage::kBeforeLayout);
  switch (attrs.algorithm) {
    case AttentionAlgorithm::kAuto:
      if (kernel) return {AttentionAlgorithm::kFlash, cat("the back end has a kernel that does not store the ", size)};
      if (bytes > kLargestScores && attrs.dropout == 0)
        return {AttentionAlgorithm::kMemoryEfficient, cat("the back end has no kernel for it, and ", size, " are too many to store")};
      return {AttentionAlgorithm::kMath, cat("the back end has no kernel for it; stores ", size)};
    case AttentionAlgorithm::kFlash:
      GALLEY_CHECK(kernel, "[attention]", at(node), ": the algorithm is flash, but the back end has no kernel for it; use auto or math");
      break;
    case AttentionAlgorithm::kMemoryEfficient:
      GALLEY_CHECK(attrs.dropout == 0, "[attention]", at(node), ": the algorithm memory_efficient has no dropout; use auto or math");
      break;
    case AttentionAlgorithm::kMath: break;
  }
  return {attrs.algorithm, "as requested"};
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
    if (stage == AttentionStage::kForward || attrs->algorithm == AttentionAlgorithm::kAuto)
      report.done.push_back(cat(node.path.empty() ? "" : node.path + ": ", node.op->name, ": ",
                                kAttentionAlgorithmNames[static_cast<size_t>(choice.algorithm)], ", ", choice.reason));
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
