// Laws: keys and shorthand of `sharding` are read as documented; invalid combinations are errors with key and suggestion; dumps load back;
// a mesh has as many ranks as the job.

#include "libcore/recipe/sharding_section.h"

#include <gtest/gtest.h>

#include "libcore/recipe/unused_sharding.h"
#include "tests/recipe/kinds.h"

namespace galley::recipe_test {
namespace {

const std::string kShardingPage =
    "sharding: {strategy: hybrid, mesh: {data: 2, shard: 4}, wrap: {match: [\"type:linear\", \"h.*\"]}, reshard_after_forward: false, "
    "gather_limit: 2GiB, bucket: 4MiB, hook: {type: power_sgd, rank: 4, warm_start: false}, "
    "offload: {parameters: disk, optimizer: host}, tables: {sharding: row_wise, overrides: [{match: [user], sharding: data_parallel}]}}\n";

ShardingSection section(const std::string& text) { return load(kSmall + text).recipe.sharding; }
// "key | suggestion" of the first error.
std::string sharding_mistake(const std::string& text) {
  const Error error = error_of([&] { load(kSmall + text); });
  return error.message().empty() ? "" : cat(error.key(), " | ", error.suggestion());
}

TEST(ShardingSection, KeysOfTheDocumentation) {
  std::string page = kShardingPage;
  page.replace(page.find("hybrid"), 6, "auto");  // power_sgd needs whole gradients
  const ShardingSection s = section(page);
  EXPECT_EQ(s.strategy, ShardingStrategy::kAuto);
  ASSERT_TRUE(s.mesh.has_value());
  EXPECT_EQ(s.mesh->ranks(), 8);
  EXPECT_EQ(s.wrap.match.size(), 2u);
  EXPECT_FALSE(s.reshard_after_forward);
  EXPECT_EQ(s.gather_limit.size->bytes, int64_t{2} << 30);
  EXPECT_EQ(s.bucket.bytes, 4 << 20);
  ASSERT_TRUE(s.hook.has_value());
  EXPECT_EQ(s.hook->rank, 4);
  EXPECT_FALSE(s.hook->warm_start);
  EXPECT_TRUE(s.hook->error_feedback);
  ASSERT_TRUE(s.offload.has_value());
  EXPECT_FALSE(s.offload->parameters->host);
  EXPECT_FALSE(s.offload->gradients.has_value());
  EXPECT_TRUE(s.offload->optimizer->host);
  EXPECT_EQ(s.tables.sharding, TableSharding::kRowWise);
  EXPECT_EQ(s.tables.overrides.at<TableOverride>(0).sharding, TableSharding::kDataParallel);
}

TEST(ShardingSection, Shorthand) {
  EXPECT_EQ(section("").strategy, ShardingStrategy::kAuto);
  EXPECT_EQ(section("sharding: none\n").strategy, ShardingStrategy::kNone);
  EXPECT_EQ(section("sharding: fsdp\n").strategy, ShardingStrategy::kFsdp);
  EXPECT_EQ(section("sharding: {strategy: fsdp, wrap: 25M}\n").wrap.parameters.count, 25'000'000);
  EXPECT_FALSE(section("sharding: {strategy: fsdp, wrap: auto}\n").wrap.parameters.count.has_value());
  EXPECT_EQ(section("sharding: {hook: bf16}\n").hook->kind().name, "bf16");
  EXPECT_FALSE(section("sharding: {hook: null, offload: null}\n").hook.has_value());
  EXPECT_EQ(section("sharding: {tables: table_wise}\n").tables.sharding, TableSharding::kTableWise);
  EXPECT_EQ(section("sharding: {strategy: pipeline, stages: 3, split: [a, b]}\n").split, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(section("sharding: {strategy: pipeline, schedule: interleaved}\n").schedule, PipelineSchedule::kInterleaved);
}

TEST(ShardingSection, DumpsLoadBack) {
  std::string page = kShardingPage;
  page.replace(page.find("hybrid"), 6, "ddp");
  page.replace(page.find("shard: 4"), 8, "shard: 1");
  const LoadedRecipe loaded = load(kSmall + page);
  const std::string dumped = dump_recipe(loaded, DumpKind::kFull);
  EXPECT_EQ(dump_recipe(load(dumped), DumpKind::kFull), dumped);
  EXPECT_EQ(dump_recipe(load(kSmall), DumpKind::kMin).find("sharding"), std::string::npos) << "defaults are left out";
}

TEST(ShardingSection, ContradictionsAreErrors) {
  EXPECT_EQ(sharding_mistake("sharding: fspd\n"), "sharding.strategy | did you mean 'fsdp'?");
  EXPECT_EQ(sharding_mistake("sharding: {strategy: ddp, mesh: {shard: 2}}\n"), "sharding.mesh.shard | write data: N, or strategy: fsdp");
  EXPECT_EQ(sharding_mistake("sharding: {strategy: none, mesh: {data: 2}}\n"),
            "sharding.mesh.data | remove the mesh, or change the strategy");
  EXPECT_EQ(sharding_mistake("sharding: {strategy: tensor, mesh: {shard: 2, tensor: 2}}\n"),
            "sharding.mesh.shard | write data: N, or strategy: fsdp");
  EXPECT_EQ(sharding_mistake("sharding: {strategy: pipeline, offload: {gradients: disk}}\n"),
            "sharding.offload.gradients | offload the optimizer only, or use fsdp");
  EXPECT_EQ(sharding_mistake("sharding: {strategy: tensor, tables: row_wise}\n"),
            "sharding.tables | use auto, or strategy: ddp, zero1, zero2, fsdp or hybrid");
  EXPECT_EQ(sharding_mistake("sharding: {strategy: ddp, stages: 4}\n"), "sharding.stages | write strategy: pipeline");
  EXPECT_EQ(sharding_mistake("sharding: {strategy: pipeline, stages: 4, mesh: {pipe: 2}}\n"), "sharding.stages | remove one of them");
  EXPECT_EQ(sharding_mistake("sharding: {strategy: fsdp, split: [a]}\n"), "sharding.split | write strategy: pipeline");
  EXPECT_EQ(sharding_mistake("sharding: {strategy: pipeline, stages: 4, split: [a]}\n"),
            "sharding.split | write one module for each stage after the first, or auto");
  EXPECT_EQ(sharding_mistake("sharding: {bucket: 12}\n"), "sharding.bucket | write e.g. 25MiB");
  EXPECT_EQ(sharding_mistake("sharding: {strategy: fsdp, wrap: {parameters: 1M, match: [a]}}\n"), "sharding.wrap | remove one of them");
  EXPECT_EQ(sharding_mistake("sharding: {strategy: fsdp, hook: power_sgd}\n"), "sharding.hook | use bf16, or strategy: ddp or zero1");
  EXPECT_EQ(sharding_mistake("sharding: {hook: {rank: 4}}\n").substr(0, 19), "sharding.hook.type ") << "not bf16";
  EXPECT_EQ(sharding_mistake("sharding: zero3\n"), "sharding.strategy | did you mean 'fsdp'?");
  EXPECT_EQ(sharding_mistake("sharding: {strategy: FSDP}\n"), "sharding.strategy | did you mean 'fsdp'?");
  EXPECT_EQ(sharding_mistake("sharding: {strategy: pipeline, hook: bf16}\n"), "sharding.hook | write sharding.hook: null");
  EXPECT_EQ(sharding_mistake("sharding: {mesh: {pipe: 2}, hook: bf16}\n"), "sharding.hook | write sharding.hook: null");
  EXPECT_EQ(sharding_mistake("sharding: {offload: {optimizer: nvme}}\n").substr(0, 26), "sharding.offload.optimizer");
  EXPECT_EQ(sharding_mistake("sharding: {strategy: fsdp, wrap: 10MB}\n").substr(0, 24), "sharding.wrap.parameters");
  EXPECT_EQ(sharding_mistake("sharding: {mesh: {data: 0}}\n").substr(0, 18), "sharding.mesh.data");
}

TEST(ShardingSection, KeysOfAnotherStrategyAreNamed) {
  const auto unused = [](const std::string& text) {
    std::string keys;
    for (const Error& error : unused_sharding_keys(section("sharding: " + text + "\n"))) keys += error.key().substr(9) + " ";
    return keys;
  };
  EXPECT_EQ(unused("{strategy: ddp, wrap: 1M, reshard_after_forward: false, gather_limit: 1GiB}"),
            "wrap gather_limit reshard_after_forward ");
  EXPECT_EQ(unused("{strategy: zero2, schedule: gpipe, sequence_parallel: true}"), "sequence_parallel schedule ");
  EXPECT_EQ(unused("{strategy: none, hook: {type: bf16, rank: 2, warm_start: false}}"), "hook hook.rank hook.warm_start ");
  EXPECT_EQ(unused("{strategy: tensor, wrap: {match: [a]}}"), "wrap ");
  EXPECT_EQ(unused("{wrap: 1M, hook: bf16}"), "wrap ") << "auto is ddp";
  EXPECT_EQ(unused("{strategy: ddp, wrap: 1M, offload: {parameters: disk}}"), "") << "units are read one after the other";
  EXPECT_EQ(unused("{strategy: ddp, hook: {type: power_sgd, rank: 2}}"), "");
  EXPECT_EQ(unused("{strategy: fsdp, wrap: 1M, reshard_after_forward: false, gather_limit: 1GiB, hook: f16}"), "");
  EXPECT_EQ(unused("{strategy: fsdp, mesh: {shard: 2, tensor: 2}, sequence_parallel: true}"), "");
  EXPECT_EQ(unused("{strategy: pipeline, schedule: interleaved}"), "");
}

TEST(ShardingSection, MeshHasTheRanksOfTheJob) {
  const auto mesh = [](const std::string& text, int64_t ranks) {
    const MeshSection m = resolve_mesh(section(text), ranks, 8);
    EXPECT_EQ(m.ranks(), ranks);
    return cat(m.data, "x", m.shard, "x", m.tensor, "x", m.pipe);
  };
  EXPECT_EQ(mesh("", 1), "1x1x1x1");
  EXPECT_EQ(mesh("", 6), "6x1x1x1");
  EXPECT_EQ(mesh("sharding: zero1\n", 6), "1x6x1x1");
  EXPECT_EQ(mesh("sharding: fsdp\n", 6), "1x6x1x1");
  EXPECT_EQ(mesh("sharding: hybrid\n", 32), "4x8x1x1");
  EXPECT_EQ(mesh("sharding: tensor\n", 32), "4x1x8x1");
  EXPECT_EQ(mesh("sharding: pipeline\n", 4), "1x1x1x4");
  EXPECT_EQ(mesh("sharding: {strategy: pipeline, stages: 2}\n", 6), "3x1x1x2");
  EXPECT_EQ(mesh("sharding: {strategy: fsdp, mesh: {shard: 4, tensor: 2}}\n", 8), "1x4x2x1");
  const auto refused = [](const std::string& text, int64_t ranks) {
    return error_of([&] { resolve_mesh(section(text), ranks, 8); }).key();
  };
  EXPECT_EQ(refused("sharding: none\n", 2), "sharding.strategy");
  EXPECT_EQ(refused("sharding: hybrid\n", 12), "sharding.strategy");
  EXPECT_EQ(refused("sharding: {strategy: pipeline, stages: 4}\n", 6), "sharding.stages");
  EXPECT_EQ(refused("sharding: {strategy: fsdp, mesh: {shard: 4}}\n", 8), "sharding.mesh");
  EXPECT_EQ(resolve_strategy(section(""), 1), ShardingStrategy::kNone);
  EXPECT_EQ(resolve_strategy(section(""), 2), ShardingStrategy::kDdp);
}

}  // namespace
}  // namespace galley::recipe_test
