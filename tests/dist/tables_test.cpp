// Laws: bytes of each division equal the table's; small tables are replicated, large ones divided; fixed divisions are kept; what does not
// fit is named; work is balanced.

#include "libcore/dist/tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "libcore/base/error.h"

namespace galley {
namespace {

Cluster devices() { return *find_cluster("a100_80gb"); }

TEST(Tables, PartsAddUpToTheTable) {
  const EmbeddingTable table{.name = "t", .rows = 1 << 20, .width = 64, .pooling = 10, .state_bytes = 4};
  const TableJob job{.ranks = 16, .batch = 1024};
  const double bytes = (1 << 20) * (64.0 * 4 + 4);
  EXPECT_DOUBLE_EQ(table_cost(table, TableSharding::kDataParallel, job, devices()).bytes, bytes);
  for (const TableSharding sharding :
       {TableSharding::kTableWise, TableSharding::kRowWise, TableSharding::kColumnWise, TableSharding::kTableRowWise}) {
    const TableCost cost = table_cost(table, sharding, job, devices());
    EXPECT_DOUBLE_EQ(cost.bytes * static_cast<double>(cost.holders), bytes) << name_of(sharding);
    EXPECT_GT(cost.communication_s, 0);
  }
  EXPECT_EQ(table_cost(table, TableSharding::kTableRowWise, job, devices()).holders, 8) << "the ranks of a node";
  // All divisions read as many rows as the batch needs, on as many ranks as hold them.
  const double rows = table_cost(table, TableSharding::kRowWise, job, devices()).lookup_s;
  EXPECT_DOUBLE_EQ(table_cost(table, TableSharding::kTableWise, job, devices()).lookup_s, 16 * rows);
  EXPECT_DOUBLE_EQ(table_cost(table, TableSharding::kColumnWise, job, devices()).lookup_s, rows);
  EXPECT_DOUBLE_EQ(table_cost(table, TableSharding::kDataParallel, {.ranks = 1, .batch = 1024}, devices()).communication_s, 0);
}

TEST(Tables, SmallTablesAreReplicatedAndLargeOnesDivided) {
  const std::vector<EmbeddingTable> tables{{.name = "day", .rows = 7, .width = 64},
                                           {.name = "item", .rows = 400'000'000, .width = 64, .pooling = 20}};
  const TablesPlan plan = plan_tables(tables, {.ranks = 8, .batch = 4096}, devices());
  EXPECT_EQ(plan.tables[0].name, "day");
  EXPECT_EQ(plan.tables[0].sharding, TableSharding::kDataParallel);
  EXPECT_NE(plan.tables[1].sharding, TableSharding::kDataParallel);
  EXPECT_NE(plan.tables[1].sharding, TableSharding::kTableWise) << "102 GB do not fit one device";
  for (const double bytes : plan.rank_bytes) EXPECT_LE(bytes, devices().memory);
}

TEST(Tables, WorkIsBalanced) {
  std::vector<EmbeddingTable> tables;
  for (int i = 0; i < 16; ++i)
    tables.push_back({.name = cat("t", i), .rows = 5'000'000, .width = 64, .pooling = 20, .sharding = TableSharding::kTableWise});
  const TablesPlan plan = plan_tables(tables, {.ranks = 8, .batch = 1024}, devices());
  std::vector<int> held(8, 0);
  for (const PlannedTable& table : plan.tables) {
    ASSERT_EQ(table.ranks.size(), 1u);
    ++held[static_cast<size_t>(table.ranks.front())];
  }
  EXPECT_EQ(held, std::vector<int>(8, 2));
}

TEST(Tables, BytesSentEqualTheFormulas) {
  const EmbeddingTable table{.name = "t", .rows = 1000, .width = 8, .pooling = 3};
  const TableJob job{.ranks = 4, .batch = 10};
  const double pooled = 40 * 8 * 4, indices = 40 * 3 * 8, f = 0.75;
  EXPECT_DOUBLE_EQ(table_cost(table, TableSharding::kDataParallel, job, devices()).sent.all_reduce, 2 * f * 1000 * 8 * 4);
  EXPECT_DOUBLE_EQ(table_cost(table, TableSharding::kTableWise, job, devices()).sent.sum(), f * (2 * pooled + indices));
  const StepTraffic rows = table_cost(table, TableSharding::kRowWise, job, devices()).sent;
  EXPECT_DOUBLE_EQ(rows.reduce_scatter, f * pooled) << "partial sums of all samples";
  EXPECT_DOUBLE_EQ(rows.all_gather, f * pooled) << "their gradients";
  EXPECT_DOUBLE_EQ(table_cost(table, TableSharding::kColumnWise, job, devices()).sent.all_to_all, 2 * f * pooled / 4);
}

TEST(Tables, SumsOfRanksAreThoseOfTheirParts) {
  const std::vector<EmbeddingTable> tables{{.name = "a", .rows = 1 << 20, .width = 64, .pooling = 5, .sharding = TableSharding::kRowWise},
                                           {.name = "b", .rows = 1 << 16, .width = 64, .sharding = TableSharding::kTableWise},
                                           {.name = "c", .rows = 100, .width = 64, .sharding = TableSharding::kDataParallel}};
  TablesPlan plan = plan_tables(tables, {.ranks = 4, .batch = 256}, devices());
  for (int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_NEAR(plan.of_rank(rank).bytes, plan.rank_bytes[static_cast<size_t>(rank)], 1e-6);
    EXPECT_NEAR(plan.of_rank(rank).seconds(), plan.rank_seconds[static_cast<size_t>(rank)], 1e-12);
  }
  EXPECT_EQ(plan.busiest_rank(), plan.tables[1].ranks.front());
  const double before = plan.rank_bytes[0];
  plan.join(2);
  EXPECT_NEAR(plan.rank_bytes[0], before - 100 * 64 * 4, 1e-6);
  EXPECT_NEAR(plan.of_rank(0).bytes, plan.rank_bytes[0], 1e-6);
}

TEST(Tables, ColumnsMustDivide) {
  const std::vector<EmbeddingTable> tables{{.name = "user", .rows = 100, .width = 10, .sharding = TableSharding::kColumnWise}};
  try {
    plan_tables(tables, {.ranks = 4, .batch = 8}, devices());
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRecipe);
    EXPECT_NE(error.message().find("10 columns"), std::string::npos) << error.message();
  }
}

TEST(Tables, WhatDoesNotFitIsNamed) {
  const std::vector<EmbeddingTable> tables{{.name = "user", .rows = 1'000'000'000, .width = 128, .sharding = TableSharding::kTableWise}};
  try {
    plan_tables(tables, {.ranks = 8, .batch = 1024}, devices());
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResource);
    EXPECT_NE(error.message().find("user"), std::string::npos);
    EXPECT_NE(error.message().find("table_wise"), std::string::npos);
  }
}

}  // namespace
}  // namespace galley
