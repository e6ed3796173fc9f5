#pragma once
// Collectives between ranks as operators: a start and a wait, between which other nodes run. Run alone, a rank's sum over ranks is its own
// part, so that a graph with collectives computes the same on one rank.
//
// Collectives of tensor parallelism are differentiated (Shoeybi et al. 2019): all ranks compute the same loss from the same samples. A sum
// over ranks is used by all of them alike, so its gradient is that of each part.

#include <string>

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

struct CollectiveAttrs : OptionsOf<CollectiveAttrs> {
  std::string name;               // in messages: "grads.bucket3"
  int64_t ranks = 0, stride = 1;  // of the group (RankGroup in comm/communicator.h); 0: all
  bool tensor = false;            // between the ranks that divide matrices and read the same samples (tensor parallelism), not the others
  void options(OptionVisitor& v) override;
};

struct BroadcastAttrs : OptionsOf<BroadcastAttrs> {
  std::string name;
  int64_t root = 0;  // the rank whose values all receive
  void options(OptionVisitor& v) override;
};

/// Of collectives in which ranks hold parts of an array.
struct SegmentAttrs : OptionsOf<SegmentAttrs> {
  std::string name;
  int64_t rank = 0, ranks = 1;  // the place in its group of the rank whose graph this is, and the members of the group
  int64_t stride = 1;           // between members
  bool tensor = false;          // as CollectiveAttrs
  /// Of tensor parallelism, all_gather: each rank computes a part of the gradient of the whole array, so that these are summed; else each
  /// has all of it.
  bool sums_gradient = false;
  bool common = false;  // all_gather: ranks that share memory have one copy of the result, which no node changes
  void options(OptionVisitor& v) override;
};

const OpDef& all_reduce_start_op();
const OpDef& all_reduce_wait_op();
const OpDef& broadcast_start_op();
const OpDef& broadcast_wait_op();
const OpDef& reduce_scatter_start_op();
const OpDef& reduce_scatter_wait_op();
const OpDef& all_gather_start_op();
const OpDef& all_gather_wait_op();
const OpDef& sum_gradient_op();
/// Whether other ranks read or write the memory of the node's output until the wait.
bool starts_collective(const Node& node);
/// Whether the node waits for a collective that the producer of its input started.
bool waits_for_collective(const Node& node);
/// The name of a collective by which errors and traces know it: "grads.bucket3"; "" for other nodes.
std::string collective_name(const Node& node);
/// Whether the node starts a gather whose result is in memory that is common to ranks. Its input is read until the wait.
bool starts_common_gather(const Node& node);
/// Whether the node is part of a gather of parts that each rank reads whole: the backward pass may gather them again.
bool may_gather_again(const Node& node);
OpTable collective_ops();

/// Of tensor parallelism: x itself, whose gradient is summed over ranks, as each computes a part of it.
Value sum_gradient(Value x, const std::string& name);

/// Starts the sum of x over all ranks, which wait for each other only in all_reduce_wait. The result has the type of x and holds no values
/// until the wait.
Value all_reduce_start(Value x, const CollectiveAttrs& attrs);
Value all_reduce_start(Value x, const std::string& name);
/// The sum over ranks. `started` is the result of all_reduce_start, which nothing else may read.
Value all_reduce_wait(Value started, const CollectiveAttrs& attrs);
Value all_reduce_wait(Value started, const std::string& name);

/// Starts to give all ranks the values of one.
Value broadcast_start(Value x, const BroadcastAttrs& attrs);
/// The values of the root. `started` is the result of broadcast_start, which nothing else may read. Run alone: x.
Value broadcast_wait(Value started, const BroadcastAttrs& attrs);

/// Starts the sum over all ranks of a flat array [n], of which each rank receives one of equal parts; n is a multiple of 16 * ranks. The
/// result is for reduce_scatter_wait alone.
Value reduce_scatter_start(Value x, const SegmentAttrs& attrs);
/// The rank's part [n/ranks] of the sum.
Value reduce_scatter_wait(Value started, const SegmentAttrs& attrs);
/// Starts to collect the parts [c] of all ranks, in their order; c is a multiple of 16. The result is for all_gather_wait alone.
Value all_gather_start(Value part, const SegmentAttrs& attrs);
/// The whole array [c*ranks]. Run alone: the other parts are zero.
Value all_gather_wait(Value started, const SegmentAttrs& attrs);

}  // namespace galley
