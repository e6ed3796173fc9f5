#include "libcore/dist/tables.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "libcore/base/error.h"
#include "libcore/base/units.h"
#include "libcore/dist/job.h"

namespace galley {
namespace {

constexpr double kIndexBytes = 8;

/// Rows are read in the forward pass, and read and written in the update.
constexpr double kRowPasses = 3;

struct Placed {
  TableSharding sharding;
  TableCost cost;
  std::vector<int64_t> ranks;
};

/// The `count` ranks of [begin, end) with the least work, ascending.
std::vector<int64_t> least_busy(const std::vector<double>& seconds, int64_t begin, int64_t end, int64_t count) {
  std::vector<int64_t> ranks(static_cast<size_t>(end - begin));
  std::iota(ranks.begin(), ranks.end(), begin);
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](int64_t a, int64_t b) { return seconds[static_cast<size_t>(a)] < seconds[static_cast<size_t>(b)]; });
  ranks.resize(static_cast<size_t>(count));
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace

TableCost table_cost(const EmbeddingTable& table, TableSharding sharding, const TableJob& job, const Cluster& cluster) {
  GALLEY_ASSERT(sharding != TableSharding::kAuto);
  const int64_t n = job.ranks, in_node = std::min(n, cluster.per_node);
  const auto ranks = static_cast<double>(n), width = static_cast<double>(table.width), rows = static_cast<double>(table.rows);
  const double row_bytes = width * static_cast<double>(table.element_bytes),
               bytes = rows * (row_bytes + static_cast<double>(table.state_bytes));
  const double global = static_cast<double>(job.batch) * ranks, reads = global * table.pooling;
  const GroupLinks all = group_links(cluster, {.data = n}, MeshAxis::kData);
  const auto exchange = [&](CollectiveOp op, const GroupLinks& links, double size) {
    return choose_collective(op, links, size, cluster.shared_memory).seconds;
  };
  const auto lookup = [&](double count, double row) { return kRowPasses * count * row / cluster.bandwidth; };
  // Pooled rows of the whole batch and their gradients, f32: what all ranks together receive.
  const double pooled = global * width * 4, indices = reads * kIndexBytes, others = (ranks - 1) / ranks;
  TableCost cost;
  switch (sharding) {
    case TableSharding::kAuto: break;
    case TableSharding::kDataParallel:
      cost = {.bytes = bytes, .holders = n, .lookup_s = lookup(reads / ranks, row_bytes)};
      // The sum of dense gradients, in 32 bits.
      cost.communication_s = exchange(CollectiveOp::kAllReduce, all, rows * width * 4);
      cost.sent.all_reduce = 2 * others * rows * width * 4;
      break;
    case TableSharding::kTableWise:
      cost = {.bytes = bytes, .holders = 1, .lookup_s = lookup(reads, row_bytes)};
      // One rank sends and receives for all: the rate of its own link.
      cost.communication_s = n == 1
                                 ? 0
                                 : (2 * pooled + indices) * (ranks - 1) / ranks /
                                           (all.nodes > 1 ? std::min(all.inside, all.between / static_cast<double>(in_node)) : all.inside) +
                                       3 * all.latency;
      cost.sent.all_to_all = others * (2 * pooled + indices);
      break;
    case TableSharding::kRowWise:
      cost = {.bytes = bytes / ranks, .holders = n, .lookup_s = lookup(reads / ranks, row_bytes)};
      cost.communication_s = exchange(CollectiveOp::kReduceScatter, all, pooled) + exchange(CollectiveOp::kAllGather, all, pooled) +
                             exchange(CollectiveOp::kAllToAll, all, indices / ranks);
      cost.sent = {.reduce_scatter = others * pooled, .all_gather = others * pooled, .all_to_all = others * indices / ranks};
      break;
    case TableSharding::kColumnWise:
      cost = {.bytes = bytes / ranks, .holders = n, .lookup_s = lookup(reads, row_bytes / ranks)};
      cost.communication_s = exchange(CollectiveOp::kAllGather, all, indices) + 2 * exchange(CollectiveOp::kAllToAll, all, pooled / ranks);
      cost.sent = {.all_gather = others * indices, .all_to_all = 2 * others * pooled / ranks};
      break;
    case TableSharding::kTableRowWise: {
      const auto part = static_cast<double>(in_node);
      GroupLinks node = all;
      node.ranks = in_node;
      node.nodes = 1;
      cost = {.bytes = bytes / part, .holders = in_node, .lookup_s = lookup(reads / part, row_bytes)};
      cost.communication_s =
          2 * exchange(CollectiveOp::kReduceScatter, node, pooled) + exchange(CollectiveOp::kAllToAll, node, indices / part);
      cost.sent = {.reduce_scatter = 2 * (part - 1) / part * pooled, .all_to_all = (part - 1) / part * indices / part};
      // Sums leave the node that holds the table.
      if (all.nodes > 1) {
        const double leaves = (2 * pooled + indices) * static_cast<double>(all.nodes - 1) / static_cast<double>(all.nodes);
        cost.communication_s += leaves / all.between;
        cost.sent.all_to_all += leaves / part;
      }
      break;
    }
  }
  return cost;
}

void TablesPlan::join(size_t table) {
  PlannedTable& planned = tables[table];
  GALLEY_ASSERT(!planned.joined);
  planned.joined = true;
  for (const int64_t rank : planned.ranks) {
    rank_bytes[static_cast<size_t>(rank)] -= planned.cost.bytes;
    rank_seconds[static_cast<size_t>(rank)] -= planned.cost.seconds();
  }
}

TableCost TablesPlan::of_rank(int64_t rank) const {
  TableCost sum{.holders = 0};
  for (const PlannedTable& table : tables) {
    if (table.joined || !std::binary_search(table.ranks.begin(), table.ranks.end(), rank)) continue;
    sum.bytes += table.cost.bytes;
    sum.lookup_s += table.cost.lookup_s;
    sum.communication_s += table.cost.communication_s;
    sum.sent += table.cost.sent;
    ++sum.holders;
  }
  return sum;
}

int64_t TablesPlan::busiest_rank() const { return std::max_element(rank_seconds.begin(), rank_seconds.end()) - rank_seconds.begin(); }

TablesPlan plan_tables(const std::vector<EmbeddingTable>& tables, const TableJob& job, const Cluster& cluster) {
  const auto n = static_cast<size_t>(job.ranks);
  const double memory = job.memory > 0 ? job.memory : cluster.memory;
  TablesPlan plan{.tables = std::vector<PlannedTable>(tables.size()),
                  .rank_bytes = std::vector<double>(n, 0),
                  .rank_seconds = std::vector<double>(n, 0)};
  std::vector<size_t> order(tables.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto size = [&](size_t i) { return tables[i].rows * (tables[i].width * tables[i].element_bytes + tables[i].state_bytes); };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return size(a) > size(b); });
  const int64_t in_node = std::min(job.ranks, cluster.per_node);
  for (const size_t index : order) {
    const EmbeddingTable& table = tables[index];
    std::optional<Placed> best;
    double best_time = 0;
    const auto consider = [&](TableSharding sharding, std::vector<int64_t> ranks) {
      const TableCost cost = table_cost(table, sharding, job, cluster);
      double busiest = 0;
      for (size_t r = 0; r < n; ++r) busiest = std::max(busiest, plan.rank_seconds[r]);
      for (const int64_t rank : ranks) {
        const auto r = static_cast<size_t>(rank);
        if (plan.rank_bytes[r] + cost.bytes > memory) return;
        busiest = std::max(busiest, plan.rank_seconds[r] + cost.seconds());
      }
      // Equal times: the division that needs least.
      const double time = busiest + 1e-6 * cost.seconds();
      if (best && time >= best_time) return;
      best_time = time;
      best = Placed{sharding, cost, std::move(ranks)};
    };
    for (const TableSharding sharding : {TableSharding::kDataParallel, TableSharding::kTableWise, TableSharding::kRowWise,
                                         TableSharding::kColumnWise, TableSharding::kTableRowWise}) {
      if (table.sharding != TableSharding::kAuto && table.sharding != sharding) continue;
      if (sharding == TableSharding::kColumnWise && table.width % job.ranks != 0) continue;
      if (sharding == TableSharding::kTableWise) {
        consider(sharding, least_busy(plan.rank_seconds, 0, job.ranks, 1));
      } else if (sharding == TableSharding::kTableRowWise) {
        for (int64_t node = 0; node + in_node <= job.ranks; node += in_node)
          consider(sharding, least_busy(plan.rank_seconds, node, node + in_node, in_node));
      } else {
        consider(sharding, least_busy(plan.rank_seconds, 0, job.ranks, job.ranks));
      }
    }
    if (!best && table.sharding == TableSharding::kColumnWise && table.width % job.ranks != 0) {
      throw Error(ErrorCode::kRecipe,
                  cat("the table ", table.name, " has ", table.width, " columns, which ", job.ranks, " ranks cannot divide evenly"))
          .key("sharding.tables")
          .suggest("use row_wise, or a number of ranks that divides the columns");
    }
    if (!best) {
      throw Error(ErrorCode::kResource, cat("the table ", table.name, " of ", human_bytes(static_cast<double>(size(index))),
                                            " does not fit next to the others on ", job.ranks, " ranks of ", human_bytes(memory),
                                            table.sharding == TableSharding::kAuto ? "" : cat(" as ", name_of(table.sharding))))
          .key("sharding.tables")
          .suggest("use more ranks, or fewer rows");
    }
    plan.tables[index] = {
        .name = table.name, .sharding = best->sharding, .ranks = best->ranks, .bytes = best->cost.bytes, .cost = best->cost};
    for (const int64_t rank : best->ranks) {
      plan.rank_bytes[static_cast<size_t>(rank)] += best->cost.bytes;
      plan.rank_seconds[static_cast<size_t>(rank)] += best->cost.seconds();
    }
  }
  return plan;
}

}  // namespace galley
