#pragma once
// verify_placements: whether the graph of one of several ranks keeps equal what all of them hold.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/graph/graph.h"

namespace galley {

/// Axes of the mesh of ranks. Ranks along kData and kShard read different samples; those along kShard also divide parameters or the
/// optimizer's state; those along kTensor read the same samples and divide matrices.
enum class PlacementAxis : uint8_t { kData, kShard, kTensor };
inline constexpr std::array<std::string_view, 3> kPlacementAxes{"data", "shard", "tensor"};

/// What the ranks along one axis hold of a value, from the strongest statement to the weakest.
enum class Held : uint8_t {
  kReplicated,  // all of it: it is equal on all of them
  kRange,       // a range of a flat array that they hold together; the values in it are complete
  kOwn,         // values of this rank: of its samples, its part of a matrix along a dimension, or terms of a sum over ranks
};
inline constexpr std::array<std::string_view, 3> kHeldNames{"replicated", "range", "own"};

/// Of one value; by default replicated, as one rank alone computes it.
struct Placement {
  std::array<Held, kPlacementAxes.size()> held{};
  Held& operator[](PlacementAxis axis) { return held[static_cast<size_t>(axis)]; }
  Held operator[](PlacementAxis axis) const { return held[static_cast<size_t>(axis)]; }
  friend bool operator==(const Placement&, const Placement&) = default;
  /// "data=own,shard=range"; axes along which it is replicated are left out.
  std::string str() const;
};

/// The placement of a named input.
using InputPlacement = std::function<Placement(const ValueInfo& input)>;

/// The placements of all values, by ValueId: a value follows from what its node reads. Collectives change it: a sum over ranks and what is
/// gathered are replicated along the axis of the collective, a scattered sum is a range. Element-wise functions, moves and updates keep
/// ranges; other results of values that are not replicated are the rank's own. Gates of updates do not count: of a rank whose losses are
/// not finite the job ends.
std::vector<Placement> placements_of(const Graph& graph, const InputPlacement& input);

/// Throws InternalError that names the node and the input if a named input is updated by values of a weaker placement than its own: what
/// all ranks hold by values of one rank, or a range by sums that are not complete; or, with `outputs`, if an output is not replicated.
void verify_placements(const Graph& graph, const InputPlacement& input, bool outputs);

}  // namespace galley
