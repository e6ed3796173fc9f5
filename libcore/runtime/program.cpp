#include "libcore/runtime/program.h"

namespace galley {
namespace {

int64_t bytes_of_inputs(const Graph& graph, bool fed) {
  int64_t bytes = 0;
  for (ValueId id : graph.inputs()) {
    if ((graph.value(id).role == ValueRole::kInput) == fed) bytes += graph.type(id).bytes();
  }
  return bytes;
}

}  // namespace

int64_t Program::persistent_bytes() const { return bytes_of_inputs(graph_, false); }
int64_t Program::feed_bytes() const { return bytes_of_inputs(graph_, true); }

}  // namespace galley
