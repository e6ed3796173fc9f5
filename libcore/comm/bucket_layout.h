#pragma once
// BucketLayout: where arrays lie in a flat bucket that ranks sum, scatter or gather as a whole.

#include <cstdint>
#include <span>
#include <vector>

#include "libcore/comm/communicator.h"

namespace galley {

/// An array as buckets see it.
struct BucketMember {
  int64_t elements = 0;
  int64_t element_bytes = 4;
  int64_t key = 0;  ///< Members of one bucket have the same key: dtype, group of the optimizer, unit.
};

/// Arrays in one flat array, each at a multiple of 64 bytes. Rank r of N holds the elements [r c, (r+1) c), c = shard(N).
struct BucketLayout {
  std::vector<size_t> members;   ///< Places in the list that was divided.
  std::vector<int64_t> offsets;  ///< First element of each.
  int64_t elements = 0;          ///< Including the gaps between members.

  /// Elements of a rank: equal for all, a multiple of 16, so that the last ones may end with padding.
  int64_t shard(int ranks) const { return segment_stride(elements, ranks); }
  /// Elements of the array with its padding.
  int64_t padded(int ranks) const { return shard(ranks) * ranks; }
};

/// Divides members, in their order, into buckets that are closed when they have at least `bytes` (the first one: at least `first_bytes`,
/// if that is less). Members of different keys alternate freely: there is one open bucket for each key. Buckets are in the order of their
/// first members.
std::vector<BucketLayout> divide_into_buckets(std::span<const BucketMember> members, int64_t bytes, int64_t first_bytes);

/// Elements that each rank holds of all buckets.
int64_t shard_elements(std::span<const BucketLayout> buckets, int ranks);

/// A part of a member that lies in a range of its bucket.
struct BucketPiece {
  size_t member = 0;  ///< Place in BucketLayout::members.
  Segment part;       ///< Elements of the member.
  int64_t at = 0;     ///< Place of its first element in the range.
};
/// What lies in a range of the bucket, in order; the rest is gaps and padding. `elements` are the sizes of the layout's members.
std::vector<BucketPiece> pieces_in(const BucketLayout& layout, std::span<const int64_t> elements, const Segment& range);

}  // namespace galley
