#pragma once
// gather_stages: for programs of a pipeline that each rank runs alone (evaluation). Parameters and buffers are received, one by one before
// their first use, from the rank that holds them.

#include <map>
#include <string>

#include "libcore/graph/graph.h"

namespace galley {

/// `roots`: the rank that gives the values of each parameter and buffer; names that are missing stay inputs. `held`: whether this rank has
/// it in its store.
void gather_stages(Graph& graph, const std::map<std::string, int>& roots, const std::map<std::string, bool>& held);

}  // namespace galley
