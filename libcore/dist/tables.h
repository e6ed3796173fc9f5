#pragma once
// How ranks divide embedding tables: the cost of each division, and a planner that picks one for each table.

#include <cstdint>
#include <string>
#include <vector>

#include "libcore/dist/cluster.h"
#include "libcore/dist/formulas.h"
#include "libcore/dist/strategy.h"

namespace galley {

struct EmbeddingTable {
  std::string name;
  int64_t rows = 0, width = 0;
  double pooling = 1;  ///< Rows that a sample reads.
  int64_t element_bytes = 4;
  int64_t state_bytes = 0;                        ///< Of gradients and optimizer state per row (row-wise Adagrad: 4).
  TableSharding sharding = TableSharding::kAuto;  ///< Other than auto: fixed by the recipe.
};

/// The ranks that divide embedding tables.
struct TableJob {
  int64_t ranks = 1;
  int64_t batch = 1;  ///< Samples of each rank.
  double memory = 0;  ///< Bytes of a rank for tables; 0: of the cluster's device.
};

/// What one table costs with one division. Seconds of a step of the busiest rank that holds a part.
struct TableCost {
  double bytes = 0;            ///< Of each rank that holds a part.
  int64_t holders = 1;         ///< Ranks that hold a part.
  double lookup_s = 0;         ///< Reads of rows, and updates of them.
  double communication_s = 0;  ///< Exchange of indices, rows and gradients.
  StepTraffic sent;            ///< Bytes that such a rank sends.
  double seconds() const { return lookup_s + communication_s; }
};
/// kAuto is not a division.
TableCost table_cost(const EmbeddingTable& table, TableSharding sharding, const TableJob& job, const Cluster& cluster);

struct PlannedTable {
  std::string name;
  TableSharding sharding = TableSharding::kDataParallel;
  std::vector<int64_t> ranks;  ///< That hold a part, ascending.
  double bytes = 0;            ///< Of each of them.
  TableCost cost;              ///< Of each of them.
  bool joined = false;         ///< Is among the other parameters: not in the sums of ranks.
};
/// How ranks divide all tables, and what each of them has.
struct TablesPlan {
  std::vector<PlannedTable> tables;  ///< In the order of the tables.
  std::vector<double> rank_bytes, rank_seconds;

  /// Takes a table out of the sums of ranks.
  void join(size_t table);
  /// What one rank does for all its parts.
  TableCost of_rank(int64_t rank) const;
  int64_t busiest_rank() const;
};
/// Places the tables, largest first: each gets the division and the ranks after which the busiest rank is least busy, among those that fit.
/// Throws an Error that names the first table that fits nowhere (kResource), or whose fixed division is not possible (kRecipe).
TablesPlan plan_tables(const std::vector<EmbeddingTable>& tables, const TableJob& job, const Cluster& cluster);

}  // namespace galley
