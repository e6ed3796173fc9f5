#pragma once
// Collectives between ranks as operators: a start and a wait, between which other nodes run. Run alone, a rank's sum over ranks is its own
// part, so that a graph with collectives computes the same on one rank.

#include <string>

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

struct CollectiveAttrs : OptionsOf<CollectiveAttrs> {
  std::string name;  // in messages: "grads.bucket3"
  void options(OptionVisitor& v) override;
};

const OpDef& all_reduce_start_op();
const OpDef& all_reduce_wait_op();
OpTable collective_ops();

/// Starts the sum of x over all ranks, which wait for each other only in all_reduce_wait. The result has the type of x and holds no values
/// until the wait.
Value all_reduce_start(Value x, const std::string& name);
/// The sum over ranks. `started` is the result of all_reduce_start, which nothing else may read.
Value all_reduce_wait(Value started, const std::string& name);

}  // namespace galley
