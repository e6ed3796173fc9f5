#include "libcore/passes/format_losses.h"

#include <algorithm>

namespace galley {
namespace {

bool is_image(const TensorType& type) { return type.shape.rank() == 4 || type.shape.rank() == 5; }

/// Whether the type is channels_last with a byte order that differs from contiguous. It does not for single pixels or single channels.
bool is_channels_last_image(const TensorType& type) {
  return is_image(type) && type.format.is_channels_last() && !same_bytes(type.shape, type.format, MemoryFormat());
}

class Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph), users_(graph.users()), producers_(graph.producers()), fed_(fed_values(graph)) {}

  std::vector<FormatLoss> run() const {
    std::vector<FormatLoss> losses;
    for (size_t n = 0; n < graph_.nodes().size(); ++n) {
      const Node& node = graph_.nodes()[n];
      if (node.op->layout.formats != FormatRule::kReorder || is_view(graph_, node)) continue;
      const ValueInfo& from = graph_.value(node.inputs[0]);
      const TensorType& to = graph_.type(node.outputs[0]);
      if (!fed_[static_cast<size_t>(node.inputs[0])] || !is_image(from.type) || from.type.format.is_blocked() || to.format.is_blocked())
        continue;
      FormatLoss loss{.node = static_cast<int>(n)};
      const std::vector<int>& readers = users_[static_cast<size_t>(node.outputs[0])];
      loss.reader = readers.empty() ? -1 : readers.front();
      loss.interior = to.format.is_channels_last() ? images_before(static_cast<int>(n)) : images_after(static_cast<int>(n));
      loss.reason = "an output is contiguous";
      if (loss.reader >= 0) {
        const OpDef& op = *graph_.nodes()[static_cast<size_t>(loss.reader)].op;
        loss.reason = cat(op.name, to.format.is_channels_last()                   ? " needs channels_last again"
                                   : op.layout.formats == FormatRule::kContiguous ? " needs contiguous values"
                                                                                  : " needs one format for all its inputs");
      }
      losses.push_back(std::move(loss));
    }
    return losses;
  }

 private:
  /// Whether a node that is reachable through `next` within the phase has a channels_last image as output.
  template <class Next>
  bool reaches_images(int from, const Next& next) const {
    const Phase phase = graph_.nodes()[static_cast<size_t>(from)].phase;
    std::vector<bool> seen(graph_.nodes().size());
    std::vector<int> open{from};
    while (!open.empty()) {
      const int at = open.back();
      open.pop_back();
      for (const int n : next(graph_.nodes()[static_cast<size_t>(at)])) {
        const Node& node = graph_.nodes()[static_cast<size_t>(n)];
        if (seen[static_cast<size_t>(n)] || node.phase != phase) continue;
        seen[static_cast<size_t>(n)] = true;
        for (const ValueId id : node.outputs) {
          if (is_channels_last_image(graph_.type(id))) return true;
        }
        open.push_back(n);
      }
    }
    return false;
  }
  bool images_after(int from) const {
    return reaches_images(from, [this](const Node& node) {
      std::vector<int> readers;
      for (const ValueId id : node.outputs)
        readers.insert(readers.end(), users_[static_cast<size_t>(id)].begin(), users_[static_cast<size_t>(id)].end());
      return readers;
    });
  }
  bool images_before(int from) const {
    return reaches_images(from, [this](const Node& node) {
      std::vector<int> makers;
      for (const ValueId id : node.inputs) {
        if (id != kNoValue && producers_[static_cast<size_t>(id)] >= 0) makers.push_back(producers_[static_cast<size_t>(id)]);
      }
      return makers;
    });
  }

  const Graph& graph_;
  const std::vector<std::vector<int>> users_;
  const std::vector<int> producers_;
  const std::vector<bool> fed_;
};

}  // namespace

std::vector<bool> fed_values(const Graph& graph) {
  std::vector<bool> fed(graph.value_count());
  for (const ValueId id : graph.inputs()) fed[static_cast<size_t>(id)] = graph.value(id).role == ValueRole::kInput;
  for (const Node& node : graph.nodes()) {
    const bool any =
        std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) { return id != kNoValue && fed[static_cast<size_t>(id)]; });
    for (const ValueId id : node.outputs) fed[static_cast<size_t>(id)] = any;
  }
  return fed;
}

std::vector<FormatLoss> format_losses(const Graph& graph) { return Finder(graph).run(); }

}  // namespace galley
