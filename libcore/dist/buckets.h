#pragma once
// Flat buckets: parameters concatenated in order, and divided among ranks in equal ranges.

#include <cstdint>
#include <span>
#include <vector>

namespace galley {

/// A parameter as buckets see it.
struct BucketItem {
  int64_t elements = 0;
  int unit = 0;  ///< Buckets do not cross units if the strategy shards parameters.
};

/// Consecutive items in one array. Each starts at a multiple of 64 bytes.
struct FlatBucket {
  int64_t elements = 0;  ///< Including the gaps between items.
  size_t first = 0, count = 0;
  int unit = 0;

  /// Elements of one rank's range: all ranges have this size, a multiple of 16 elements, so that the last ones may end with padding.
  int64_t shard(int64_t ranks) const;
  /// Elements of the array with its padding.
  int64_t padded(int64_t ranks) const { return shard(ranks) * ranks; }
};

struct BucketRule {
  int64_t bytes = int64_t{25} << 20;       ///< A bucket is closed when it has at least this size. 0: one bucket for each unit.
  int64_t first_bytes = int64_t{1} << 20;  ///< The same for the first one, so that communication starts early.
  int64_t element_bytes = 4;
  bool within_units = false;  ///< Buckets do not cross units.
};

/// Buckets of the items in their order.
std::vector<FlatBucket> make_buckets(std::span<const BucketItem> items, const BucketRule& rule);

/// Elements that one rank holds of all buckets, and of the full arrays with padding.
int64_t shard_elements(std::span<const FlatBucket> buckets, int64_t ranks);
int64_t padded_elements(std::span<const FlatBucket> buckets, int64_t ranks);

}  // namespace galley
