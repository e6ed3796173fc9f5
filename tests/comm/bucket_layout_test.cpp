// Flat buckets: places of arrays, ranges of ranks, and the sizes that ZeRO's paper gives.

#include "libcore/comm/bucket_layout.h"

#include <gtest/gtest.h>

#include <numeric>

namespace galley {
namespace {

TEST(BucketLayout, ClosesBucketsAtTheirSizeAndKeepsKeysApart) {
  // f32: 1000 elements are 4000 bytes. The first bucket is closed at 4 KB, the others at 8 KB.
  const std::vector<BucketMember> members{{.elements = 1000}, {.elements = 1000}, {.elements = 10, .key = 1}, {.elements = 1000},
                                          {.elements = 1000}, {.elements = 1000}, {.elements = 3, .key = 1}};
  const std::vector<BucketLayout> buckets = divide_into_buckets(members, 8000, 4000);
  ASSERT_EQ(buckets.size(), 4u);
  EXPECT_EQ(buckets[0].members, (std::vector<size_t>{0}));
  EXPECT_EQ(buckets[1].members, (std::vector<size_t>{1, 3}));
  EXPECT_EQ(buckets[2].members, (std::vector<size_t>{2, 6}));
  EXPECT_EQ(buckets[3].members, (std::vector<size_t>{4, 5}));
  EXPECT_EQ(buckets[1].offsets, (std::vector<int64_t>{0, 1008}));  // 64 bytes are 16 elements
  EXPECT_EQ(buckets[1].elements, 2008);
  EXPECT_EQ(buckets[2].offsets, (std::vector<int64_t>{0, 16}));
  EXPECT_EQ(buckets[2].elements, 19);
  EXPECT_EQ(buckets[1].shard(3), 672);  // ceil(2008 / 48) * 16
  EXPECT_EQ(buckets[1].padded(3), 2016);
}

TEST(BucketLayout, AlignsToBytes) {
  const std::vector<BucketMember> halves{{.elements = 1, .element_bytes = 2}, {.elements = 1, .element_bytes = 2}};
  EXPECT_EQ(divide_into_buckets(halves, 1 << 20, 1 << 20).front().offsets, (std::vector<int64_t>{0, 32}));
}

TEST(BucketLayout, PiecesOfAllRanksAreEachMemberOnce) {
  const std::vector<int64_t> sizes{1, 17, 300, 5, 64, 1000};
  std::vector<BucketMember> members;
  for (const int64_t size : sizes) members.push_back({.elements = size});
  const BucketLayout bucket = divide_into_buckets(members, 1 << 30, 1 << 30).front();
  for (const int ranks : {1, 2, 3, 7, 100}) {
    const int64_t shard = bucket.shard(ranks);
    std::vector<int64_t> seen(sizes.size(), 0);  // elements of each member so far
    for (int r = 0; r < ranks; ++r) {
      int64_t filled = 0;
      for (const BucketPiece& piece : pieces_in(bucket, sizes, {shard * r, shard * (r + 1)})) {
        EXPECT_EQ(piece.part.begin, seen[piece.member]);
        EXPECT_EQ(shard * r + piece.at, bucket.offsets[piece.member] + piece.part.begin);
        EXPECT_GE(piece.at, filled);
        filled = piece.at + piece.part.size();
        EXPECT_LE(filled, shard);
        seen[piece.member] = piece.part.end;
      }
    }
    EXPECT_EQ(seen, sizes);
  }
}

TEST(BucketLayout, AShardOfTheZeroPaper) {
  // 7.5 billion parameters on 64 ranks in one bucket: 16 bytes each, divided (Rajbhandari et al. 2020, figure 1: 1.9 GB).
  const std::vector<BucketMember> model{{.elements = 7'500'000'000}};
  EXPECT_NEAR(16.0 * static_cast<double>(divide_into_buckets(model, 1, 1).front().shard(64)) / 1e9, 1.9, 0.05);
}

}  // namespace
}  // namespace galley
