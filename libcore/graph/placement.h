#pragma once
// Placement: what one of several ranks holds of a value, along each axis of the mesh of ranks. Part of the value's type.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace galley {

/// Axes along which ranks divide a step. Ranks along kData and kShard read different samples; those along kShard also divide parameters or
/// the optimizer's state; those along kTensor read the same samples and divide matrices.
enum class PlacementAxis : uint8_t { kData, kShard, kTensor };
inline constexpr std::array<std::string_view, 3> kPlacementAxes{"data", "shard", "tensor"};

/// What the ranks along one axis hold, from the strongest statement to the weakest.
enum class Held : uint8_t {
  kReplicated,  // all of the value: it is equal on all of them
  kRange,       // a range of a flat array that they hold together; the values in it are complete
  kOwn,         // values of this rank: of its samples, its part of a matrix along a dimension, or terms of a sum over ranks
};
inline constexpr std::array<std::string_view, 3> kHeldNames{"replicated", "range", "own"};

/// By default a value is replicated: what one rank computes alone.
struct Placement {
  std::array<Held, kPlacementAxes.size()> held{};

  Held& operator[](PlacementAxis axis) { return held[static_cast<size_t>(axis)]; }
  Held operator[](PlacementAxis axis) const { return held[static_cast<size_t>(axis)]; }
  bool replicated() const { return *this == Placement(); }
  /// "data=own,shard=range"; axes along which the value is replicated are left out.
  std::string str() const;
  friend bool operator==(const Placement&, const Placement&) = default;
};

/// Along each axis the weaker statement of the two.
Placement weaker(Placement a, const Placement& b);

}  // namespace galley
