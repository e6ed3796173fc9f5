#include "libcore/profiler/integer_facts.h"

#include <algorithm>

namespace galley {
namespace {

/// Whether the node makes float values from integers, i.e. begins a float island.
bool leaves_integers(const Graph& graph, const Node& node) {
  return graph.type(node.outputs[0]).dtype == DType::kF32 &&
         (node.op->integer == IntegerRole::kDequantizes || node.op->integer == IntegerRole::kComputes);
}

class Finder {
 public:
  Finder(const Program& program, const std::map<std::string, std::string>& float_reasons)
      : program_(program), graph_(program.graph()), reasons_(float_reasons), producers_(graph_.producers()) {
    for (size_t s = 0; s < program.steps().size(); ++s) step_of_[program.steps()[s].node] = s;
  }

  IntegerFacts run() {
    IntegerFacts facts;
    for (size_t n = 0; n < graph_.nodes().size(); ++n) {
      const Node& node = graph_.nodes()[n];
      if (multiplies_integers(*node.op)) {
        facts.any = true;
        if (node.op->exact_products != nullptr && node.op->exact_products(context_of(graph_, node)))
          facts.exact.insert(key_of(static_cast<int>(n)));
      }
      if (node.op->integer != IntegerRole::kQuantizes) continue;
      Walk walk = back_from(static_cast<int>(n));
      if (walk.from_integers) join(std::move(walk));
    }
    for (const Walk& walk : walks_) facts.islands.push_back(island_of(walk));
    return facts;
  }

 private:
  /// A connected float subgraph and the conversions around it.
  struct Walk {
    std::set<int> inside, conversions;
    bool from_integers = false;
  };

  RowKey key_of(int node) const {
    const auto step = step_of_.find(node);
    return step == step_of_.end() ? RowKey{graph_.nodes()[static_cast<size_t>(node)].path, "", ""}
                                  : row_key(describe(program_, step->second, {}));
  }

  Walk back_from(int quantize) const {
    Walk walk;
    walk.conversions.insert(quantize);
    std::vector<int> open{quantize};
    while (!open.empty()) {
      const Node& node = graph_.nodes()[static_cast<size_t>(open.back())];
      open.pop_back();
      for (const ValueId id : node.inputs) {
        const int maker = id == kNoValue ? -1 : producers_[static_cast<size_t>(id)];
        if (maker < 0) continue;
        const Node& made_by = graph_.nodes()[static_cast<size_t>(maker)];
        if (leaves_integers(graph_, made_by)) {
          walk.from_integers = true;
          if (made_by.op->integer == IntegerRole::kDequantizes) walk.conversions.insert(maker);
        } else if (walk.inside.insert(maker).second) {
          open.push_back(maker);
        }
      }
    }
    return walk;
  }

  /// Merges subgraphs that share an operator or a conversion.
  void join(Walk walk) {
    const auto touches = [&](const Walk& other) {
      const auto shares = [](const std::set<int>& a, const std::set<int>& b) {
        return std::any_of(a.begin(), a.end(), [&](int n) { return b.count(n) > 0; });
      };
      return shares(walk.inside, other.inside) || shares(walk.conversions, other.conversions);
    };
    for (size_t i = 0; i < walks_.size();) {
      if (!touches(walks_[i])) {
        ++i;
        continue;
      }
      walk.inside.merge(walks_[i].inside);
      walk.conversions.merge(walks_[i].conversions);
      walks_.erase(walks_.begin() + static_cast<std::ptrdiff_t>(i));
      i = 0;
    }
    walks_.push_back(std::move(walk));
  }

  FloatIsland island_of(const Walk& walk) const {
    FloatIsland island;
    for (const int n : walk.conversions) island.conversions.insert(key_of(n));
    const Node* first = nullptr;
    for (const int n : walk.inside) {
      const Node& node = graph_.nodes()[static_cast<size_t>(n)];
      if (family_of(*node.op).quantize == QuantizeRule::kProduct) {
        island.layers.insert(key_of(n));
        island.names.push_back(node.path);
      }
      if (first == nullptr && step_of_.count(n) > 0 && node.op->layout.formats != FormatRule::kReorder) first = &node;
    }
    const auto at = [](const std::string& path) { return path.empty() ? std::string() : " at " + path; };
    if (!island.names.empty()) {
      const auto reason = reasons_.find(island.names.front());
      island.cause = cat("layer ", island.names.front(), " is in float", reason == reasons_.end() ? "" : cat(" (", reason->second, ")"));
    } else if (first != nullptr) {
      island.cause = cat(first->op->name, at(first->path), " has no int8 kernel");
    } else {
      island.cause = "the same values are used with two different scales";
    }
    return island;
  }

  const Program& program_;
  const Graph& graph_;
  const std::map<std::string, std::string>& reasons_;
  const std::vector<int> producers_;
  std::map<int, size_t> step_of_;
  std::vector<Walk> walks_;
};

}  // namespace

bool multiplies_integers(const OpDef& op) {
  return op.work == WorkClass::kProduct && (op.integer == IntegerRole::kComputes || op.exact_products != nullptr);
}

IntegerFacts integer_facts(const Program& program, const std::map<std::string, std::string>& float_reasons) {
  return Finder(program, float_reasons).run();
}

}  // namespace galley
