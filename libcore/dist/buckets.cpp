#include "libcore/dist/buckets.h"

#include <algorithm>

#include "libcore/base/error.h"

namespace galley {
namespace {

constexpr int64_t kShardElements = 16;  // one vector of 16 f32
constexpr int64_t kAlignment = 64;      // bytes: one cache line

int64_t rounded(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

int64_t FlatBucket::shard(int64_t ranks) const { return rounded(elements, kShardElements * ranks) / ranks; }

std::vector<FlatBucket> make_buckets(std::span<const BucketItem> items, const BucketRule& rule) {
  GALLEY_ASSERT(rule.element_bytes >= 1 && kAlignment % rule.element_bytes == 0);
  std::vector<FlatBucket> buckets;
  for (size_t i = 0; i < items.size(); ++i) {
    bool open = !buckets.empty();
    if (open) {
      const FlatBucket& last = buckets.back();
      const int64_t limit = rule.bytes == 0 ? INT64_MAX : buckets.size() == 1 ? std::min(rule.first_bytes, rule.bytes) : rule.bytes;
      const bool divides = rule.within_units || rule.bytes == 0;
      open = last.elements * rule.element_bytes < limit && !(divides && last.unit != items[i].unit);
    }
    if (!open) buckets.push_back({.elements = 0, .first = i, .count = 0, .unit = items[i].unit});
    FlatBucket& bucket = buckets.back();
    bucket.elements = rounded(bucket.elements, kAlignment / rule.element_bytes) + items[i].elements;
    ++bucket.count;
  }
  return buckets;
}

int64_t shard_elements(std::span<const FlatBucket> buckets, int64_t ranks) {
  int64_t sum = 0;
  for (const FlatBucket& bucket : buckets) sum += bucket.shard(ranks);
  return sum;
}

int64_t padded_elements(std::span<const FlatBucket> buckets, int64_t ranks) { return shard_elements(buckets, ranks) * ranks; }

}  // namespace galley
