#pragma once
// shard: turns the graph of one rank into that of one of several ranks, by collectives. Data parallel (ddp): every rank has all parameters
// and a part of the batch; losses and gradients are summed over ranks.

#include <cstdint>
#include <string>
#include <vector>

#include "libcore/graph/graph.h"

namespace galley {

/// The fed weight of the rank in sums over ranks: f32 [], the samples of its part of the batch divided by those of all parts.
inline constexpr std::string_view kRankWeight = "rank_weight";

/// Before differentiation: multiplies the losses (outputs "loss" and "loss.*") by the rank's weight, so that their sums over ranks, and
/// those of gradients, are the means over the whole batch.
void weigh_losses(Graph& graph);

/// After differentiation: replaces the losses by their sums over ranks. The sum starts after the forward pass and is waited for after the
/// backward pass.
void reduce_losses(Graph& graph);

/// What reduce_gradients did with some gradients.
struct GradientBucket {
  std::string name;
  std::vector<std::string> parameters;
  int64_t elements = 0;
};

/// After differentiation: replaces gradients by their sums over ranks. Gradients of one dtype are copied into buckets of about
/// `bucket_bytes` (the first is smaller, so that communication begins early) in the order in which they become final. The sum of a bucket
/// starts directly after its last gradient; buckets are waited for after the backward pass, each before the updates of its parameters.
/// `names` are those of the parameters.
std::vector<GradientBucket> reduce_gradients(Graph& graph, std::vector<Value>& gradients, const std::vector<std::string>& names,
                                             int64_t bucket_bytes);

/// Replaces all sums over ranks by their operands: the graph of one rank again. For tests.
void remove_collectives(Graph& graph);

}  // namespace galley
