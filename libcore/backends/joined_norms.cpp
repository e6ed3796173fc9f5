#include "libcore/backends/joined_norms.h"

#include <utility>
#include <vector>

#include "libcore/passes/fuser.h"

namespace galley {
namespace {

int64_t bytes_of(const Graph& graph, const Node& node) {
  int64_t bytes = 0;
  for (const ValueId id : node.inputs) bytes += graph.type(id).elements() * dtype_size(graph.type(id).dtype);
  return bytes;
}

}  // namespace

PassReport join_norms(Graph& graph, const Target& target, int64_t most_bytes) {
  Fuser fuser(graph);
  // The node that computes a value which nothing else reads, if it is of that operator.
  const auto maker = [&](ValueId id, std::string_view op) {
    const int n = fuser.producer(id);
    return n >= 0 && fuser.node(static_cast<size_t>(n)).is(op) && fuser.reason_against(id).empty() ? n : -1;
  };
  for (size_t n = 0; n < fuser.size(); ++n) {
    if (fuser.gone(n) || !fuser.node(n).is("add")) continue;
    const Node add = fuser.node(n);
    const int last = maker(add.inputs[1], "sum_squares");
    if (last < 0) continue;
    // sum + last, or (earlier + sum) + last, where earlier sums are large enough.
    int sum = maker(add.inputs[0], "sum_squares");
    const int before = sum >= 0 ? -1 : maker(add.inputs[0], "add");
    if (before >= 0) sum = maker(fuser.node(static_cast<size_t>(before)).inputs[1], "sum_squares");
    if (sum < 0) continue;
    const Node& first = fuser.node(static_cast<size_t>(sum));
    Node joined = fuser.node(static_cast<size_t>(last));
    if (bytes_of(graph, first) + bytes_of(graph, joined) > most_bytes) continue;
    joined.inputs.insert(joined.inputs.begin(), first.inputs.begin(), first.inputs.end());
    if (!target.has_kernel(graph, joined, Stage::kBeforeLayout)) continue;
    if (before < 0) {
      fuser.merge(n, static_cast<size_t>(sum), joined, "sum_squares + sum_squares");
      fuser.absorb(n, static_cast<size_t>(last));
      continue;
    }
    // earlier + (sum + last) takes the place of (earlier + sum) + last.
    Node total = add;
    total.inputs[0] = fuser.node(static_cast<size_t>(before)).inputs[0];
    fuser.absorb(static_cast<size_t>(last), static_cast<size_t>(sum));
    fuser.node(static_cast<size_t>(last)) = joined;
    fuser.merge(n, static_cast<size_t>(before), total, "sum_squares + sum_squares");
  }
  fuser.finish();
  return std::move(fuser.report);
}

}  // namespace galley
