#include "libcore/runtime/program.h"

#include <algorithm>
#include <initializer_list>

namespace galley {
namespace {

int64_t bytes_of_inputs(const Graph& graph, std::initializer_list<ValueRole> roles) {
  int64_t bytes = 0;
  for (ValueId id : graph.inputs()) {
    if (std::find(roles.begin(), roles.end(), graph.value(id).role) != roles.end()) bytes += graph.type(id).bytes();
  }
  return bytes;
}

}  // namespace

int64_t Program::persistent_bytes() const {
  int64_t bytes = bytes_of_inputs(graph_, {ValueRole::kParameter, ValueRole::kBuffer, ValueRole::kState});
  for (const ValueId id : on_host_) bytes -= graph_.type(id).bytes();
  return bytes;
}
int64_t Program::feed_bytes() const { return bytes_of_inputs(graph_, {ValueRole::kInput}); }
int64_t Program::carried_bytes() const { return bytes_of_inputs(graph_, {ValueRole::kCarried}); }

}  // namespace galley
