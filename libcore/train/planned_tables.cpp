#include "libcore/train/planned_tables.h"

#include <algorithm>

#include "libcore/base/error.h"
#include "libcore/recipe/selector.h"

namespace galley {
namespace {

/// auto divides tables if they have more than this part of the parameters: models that recommend. Word embeddings stay as they are.
constexpr double kMostly = 0.5;

/// The division of each table that the recipe asks for. Throws for a selector that matches nothing.
std::vector<TableSharding> requested(const TablesSection& section, const PlanModel& model) {
  std::vector<Selectable> tables;
  for (const PlanTable& table : model.tables) tables.push_back({model.parameters[table.parameter].name, "embedding", 2});
  std::vector<TableSharding> result(tables.size(), section.sharding);
  std::vector<bool> set(tables.size(), false);
  for (size_t i = 0; i < section.overrides.size(); ++i) {
    const auto& item = section.overrides.at<TableOverride>(i);
    for (const int64_t index : Selector{item.match, item.except}.select(tables, cat("sharding.tables.overrides.", i))) {
      const auto t = static_cast<size_t>(index);
      if (!set[t]) result[t] = item.sharding;
      set[t] = true;
    }
  }
  return result;
}

bool mostly_tables(const PlanModel& model) {
  double in_tables = 0;
  for (const PlanTable& table : model.tables) in_tables += static_cast<double>(table.rows * table.width);
  return in_tables > kMostly * static_cast<double>(model.trained_elements() + model.frozen_elements());
}

}  // namespace

std::optional<PlannedTables> planned_tables(const Recipe& recipe, const PlanModel& model, const JobPlan& job, const Cluster& cluster,
                                            int64_t samples) {
  const TablesSection& section = recipe.sharding.tables;
  const int64_t ranks = job.mesh.data * job.mesh.shard;
  const bool asked = section.sharding != TableSharding::kAuto || !section.overrides.empty();
  if (asked && model.tables.empty()) {
    throw Error(ErrorCode::kRecipe, "'sharding.tables' is set, but the model has no table that is only read by lookups")
        .key("sharding.tables")
        .suggest("remove it; matrices that products read too, such as tied embeddings, follow sharding.strategy");
  }
  if (ranks == 1 || model.tables.empty() || job.mesh.tensor * job.mesh.pipe > 1) return std::nullopt;
  if (!asked && (job.gathers() || !mostly_tables(model))) return std::nullopt;
  const std::vector<TableSharding> shardings = requested(section, model);
  const int64_t state = model.bytes.gradient + model.bytes.optimizer;
  std::vector<EmbeddingTable> tables;
  for (size_t t = 0; t < shardings.size(); ++t) {
    const PlanTable& table = model.tables[t];
    tables.push_back({.name = model.parameters[table.parameter].name,
                      .rows = table.rows,
                      .width = table.width,
                      .pooling = table.reads / model.samples,
                      .element_bytes = model.bytes.parameter,
                      .state_bytes = model.parameters[table.parameter].trained ? table.width * state : 0,
                      .sharding = shardings[t]});
  }
  const std::vector<bool> all(tables.size(), true);
  const double others = peak_bytes(rank_memory(without_tables(model, all), job, cluster, {}));
  TableJob table_job{.ranks = ranks, .batch = samples, .memory = cluster.memory - others};
  if (table_job.memory <= 0) table_job.memory = 1e30;  // does not fit anyway: the plan says so
  PlannedTables result{.plan = plan_tables(tables, table_job, cluster), .rest = {}, .row_share = {}};
  // What each rank holds whole is in its buckets, as other parameters.
  std::vector<bool> removed(tables.size(), true);
  for (size_t t = 0; t < tables.size(); ++t) {
    removed[t] = result.plan.tables[t].sharding != TableSharding::kDataParallel || job.gathers();
    if (!removed[t]) result.plan.join(t);
  }
  result.rest = without_tables(model, removed);
  const auto row = static_cast<double>(model.bytes.parameter + state);
  result.row_share = {static_cast<double>(model.bytes.parameter) / row, static_cast<double>(model.bytes.gradient) / row,
                      static_cast<double>(model.bytes.optimizer) / row};
  return result;
}

void add_tables(Simulation& simulation, const TablesPlan& tables) {
  const TableCost cost = tables.of_rank(tables.busiest_rank());
  const double begin = simulation.step_s, looked_up = begin + cost.lookup_s;
  if (cost.lookup_s > 0)
    simulation.timeline.push_back(
        {.lane = Lane::kCompute, .name = "lookups in tables", .begin = begin, .end = looked_up, .bytes = cost.bytes});
  if (cost.communication_s > 0)
    simulation.timeline.push_back({.lane = Lane::kCommunication,
                                   .name = "exchange of rows",
                                   .begin = looked_up,
                                   .end = looked_up + cost.communication_s,
                                   .bytes = cost.sent.sum()});
  simulation.step_s += cost.seconds();
  simulation.compute_s += cost.lookup_s;
  simulation.communication_s += cost.communication_s;
  simulation.exposed_s += cost.communication_s;
  simulation.traffic += cost.sent;
}

}  // namespace galley
