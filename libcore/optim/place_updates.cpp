#include "libcore/optim/place_updates.h"

#include <set>

namespace galley {

void place_updates(Graph& graph) {
  const std::deque<Node>& nodes = graph.nodes();
  const std::vector<int> producers = graph.producers();
  const std::vector<std::vector<int>> users = graph.users();
  const auto is_update = [&](int n) { return nodes[static_cast<size_t>(n)].phase == Phase::kUpdate; };

  int last_forward = -1;
  for (int n = 0; n < static_cast<int>(nodes.size()); ++n) {
    if (nodes[static_cast<size_t>(n)].phase == Phase::kForward) last_forward = n;
  }

  // before[n]: how many nodes must still come before update n; after[m]: the updates that wait for node m.
  std::vector<int> before(nodes.size());
  std::vector<std::set<int>> after(nodes.size());
  const auto wait = [&](int update, int other) {
    if (other >= 0 && other != update && after[static_cast<size_t>(other)].insert(update).second) ++before[static_cast<size_t>(update)];
  };
  for (int n = 0; n < static_cast<int>(nodes.size()); ++n) {
    const Node& node = nodes[static_cast<size_t>(n)];
    if (!is_update(n)) {
      for (ValueId id : node.inputs) {
        GALLEY_ASSERT(id == kNoValue || producers[static_cast<size_t>(id)] < 0 || !is_update(producers[static_cast<size_t>(id)]), node.op->name,
                      " at ", node.path, " reads what an update made");
      }
      continue;
    }
    wait(n, last_forward);
    for (ValueId id : node.inputs) {
      if (id != kNoValue) wait(n, producers[static_cast<size_t>(id)]);
    }
    for (const InPlace& update : node.op->updates) {
      const ValueId state = node.input(static_cast<size_t>(update.input));
      if (state == kNoValue) continue;
      for (int reader : users[static_cast<size_t>(state)]) wait(n, reader);
    }
  }

  std::deque<Node> placed;
  std::set<int> ready;
  const auto place = [&](int n) {
    placed.push_back(nodes[static_cast<size_t>(n)]);
    for (int update : after[static_cast<size_t>(n)]) {
      if (--before[static_cast<size_t>(update)] == 0) ready.insert(update);
    }
  };
  const auto place_ready = [&] {
    while (!ready.empty()) {
      const int n = *ready.begin();
      ready.erase(ready.begin());
      place(n);
    }
  };
  for (int n = 0; n < static_cast<int>(nodes.size()); ++n) {
    if (is_update(n) && before[static_cast<size_t>(n)] == 0 && last_forward < 0) ready.insert(n);
  }
  place_ready();
  for (int n = 0; n < static_cast<int>(nodes.size()); ++n) {
    if (is_update(n)) continue;
    place(n);
    place_ready();
  }
  GALLEY_ASSERT(placed.size() == nodes.size(), "updates wait for each other: two write the same value");
  graph.set_nodes(std::move(placed));
}

}  // namespace galley
