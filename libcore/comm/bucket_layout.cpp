#include "libcore/comm/bucket_layout.h"

#include <algorithm>
#include <map>

#include "libcore/base/error.h"

namespace galley {
namespace {
constexpr int64_t kAlignment = 64;  // bytes: one cache line
}  // namespace

std::vector<BucketLayout> divide_into_buckets(std::span<const BucketMember> members, int64_t bytes, int64_t first_bytes) {
  std::vector<BucketLayout> buckets;
  std::map<int64_t, size_t> open;  // the bucket of each key that is not closed yet
  for (size_t i = 0; i < members.size(); ++i) {
    const BucketMember& member = members[i];
    GALLEY_ASSERT(member.element_bytes >= 1 && kAlignment % member.element_bytes == 0);
    if (open.count(member.key) == 0) {
      open[member.key] = buckets.size();
      buckets.emplace_back();
    }
    const size_t at = open[member.key];
    BucketLayout& bucket = buckets[at];
    const int64_t unit = kAlignment / member.element_bytes;
    bucket.members.push_back(i);
    bucket.offsets.push_back((bucket.elements + unit - 1) / unit * unit);
    bucket.elements = bucket.offsets.back() + member.elements;
    if (bucket.elements * member.element_bytes >= (at == 0 ? std::min(bytes, first_bytes) : bytes)) open.erase(member.key);
  }
  return buckets;
}

int64_t shard_elements(std::span<const BucketLayout> buckets, int ranks) {
  int64_t sum = 0;
  for (const BucketLayout& bucket : buckets) sum += bucket.shard(ranks);
  return sum;
}

std::vector<BucketPiece> pieces_in(const BucketLayout& layout, std::span<const int64_t> elements, const Segment& range) {
  GALLEY_ASSERT(elements.size() == layout.members.size());
  std::vector<BucketPiece> pieces;
  for (size_t m = 0; m < elements.size(); ++m) {
    const int64_t first = layout.offsets[m];
    const Segment part{std::max(range.begin, first) - first, std::min(range.end, first + elements[m]) - first};
    if (part.size() > 0) pieces.push_back({m, part, first + part.begin - range.begin});
  }
  return pieces;
}

}  // namespace galley
