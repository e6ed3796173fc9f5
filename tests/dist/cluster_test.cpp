// Laws: built-in clusters have a source for every value; cluster files are read with their units; mistakes name the key.

#include "libcore/dist/cluster.h"

#include <gtest/gtest.h>

#include "libcore/base/error.h"
#include "libcore/dist/job.h"

namespace galley {
namespace {

TEST(Cluster, BuiltInClustersAreComplete) {
  EXPECT_EQ(built_in_clusters().size(), 4u);
  for (const std::string_view name : built_in_clusters()) {
    const std::optional<Cluster> cluster = find_cluster(name);
    ASSERT_TRUE(cluster.has_value()) << name;
    EXPECT_EQ(cluster->per_node, 8);
    EXPECT_GT(cluster->network * cluster->network_share, 0);
    for (const ClusterFact& fact : cluster_facts(*cluster)) EXPECT_FALSE(fact.source.empty()) << name << ": " << fact.name;
  }
  EXPECT_FALSE(find_cluster("a100").has_value());
  EXPECT_DOUBLE_EQ(find_cluster("a100_40gb_p4d")->network, 400e9 / 8);
  for (const ClusterFact& fact : cluster_facts(local_cluster({.f32 = 1e11, .bytes = 4e10, .cores = 2, .memory = 1e10}, 2)))
    EXPECT_FALSE(fact.source.empty()) << fact.name;
}

TEST(Cluster, RatesHaveUnits) {
  const auto bytes = [](const std::string& text) {
    ByteRate rate;
    rate.parse(text);
    return rate.bytes;
  };
  EXPECT_DOUBLE_EQ(bytes("230GB/s"), 230e9);
  EXPECT_DOUBLE_EQ(bytes("400Gb/s"), 50e9);
  EXPECT_DOUBLE_EQ(bytes("1.6 Tb/s"), 200e9);
  for (const char* wrong : {"400", "400Gb", "fast", "0GB/s", "GB/s"}) EXPECT_THROW(bytes(wrong), Error) << wrong;
  ByteRate rate(12.5e9);
  EXPECT_DOUBLE_EQ(bytes(rate.str()), 12.5e9);
}

TEST(Cluster, FilesDescribeClusters) {
  ClusterOptions options;
  options.gpu = "a100_80gb";
  options.per_node = 4;
  options.network = ByteRate(25e9);
  options.network_share.percent = 80;
  options.memory = ByteSize(int64_t{70} << 30);
  options.allocator = Allocator::kSerialises;
  const Cluster cluster = make_cluster(options, "ours");
  EXPECT_EQ(cluster.per_node, 4);
  EXPECT_DOUBLE_EQ(cluster.network * cluster.network_share, 20e9);
  EXPECT_DOUBLE_EQ(cluster.memory, 70.0 * (1 << 30));
  EXPECT_DOUBLE_EQ(cluster.link, find_cluster("a100_80gb")->link);
  EXPECT_EQ(cluster.allocator, Allocator::kSerialises);
  options.gpu = "a100_80g";
  try {
    make_cluster(options, "");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.key(), "gpu");
    EXPECT_EQ(error.suggestion(), "did you mean 'a100_80gb'?");
  }
  options.gpu = "a100_80gb";
  options.network_share.percent = 0;
  EXPECT_THROW(make_cluster(options, ""), Error);
}

TEST(Cluster, GroupsShareTheNetworkOfANode) {
  const Cluster cluster = *find_cluster("a100_80gb");
  const double node = cluster.network * cluster.network_share;
  const GroupLinks flat = group_links(cluster, {.shard = 64}, MeshAxis::kShard);
  EXPECT_EQ(flat.nodes, 8);
  EXPECT_DOUBLE_EQ(flat.between, node) << "a ring over whole nodes has the whole network";
  const Mesh mesh{.data = 4, .tensor = 8, .pipe = 2};
  EXPECT_EQ(group_links(cluster, mesh, MeshAxis::kTensor).nodes, 1);
  const GroupLinks data = group_links(cluster, mesh, MeshAxis::kData);
  EXPECT_EQ(data.nodes, 4);
  EXPECT_DOUBLE_EQ(data.between, node / 8) << "eight rings, one for each device of a node";
  const GroupLinks half = group_links(cluster, {.data = 4, .shard = 4}, MeshAxis::kData);
  EXPECT_EQ(half.nodes, 2) << "two of the replicas are in one node";
  EXPECT_DOUBLE_EQ(half.between, node / 4);
}

}  // namespace
}  // namespace galley
