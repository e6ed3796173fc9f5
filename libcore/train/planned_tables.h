#pragma once
// Embedding tables of a recipe, divided among ranks by the section sharding.tables.

#include <optional>

#include "libcore/dist/rank_memory.h"
#include "libcore/dist/simulate.h"
#include "libcore/dist/tables.h"
#include "libcore/recipe/sections.h"

namespace galley {

/// How the ranks divide the tables of a model, and the rest of it.
struct PlannedTables {
  TablesPlan plan;
  PlanModel rest;        ///< The model without the tables of the plan.
  ModelBytes row_share;  ///< Parts of a table's bytes: parameters, gradients and optimizer state; their sum is 1.
};

/// Divides the tables that the recipe selects, or, with auto, those of a model most of whose parameters are in tables. Empty if there are
/// none, or all are held by each rank as its other parameters. `samples`: of each rank in a step. Throws an Error with the key for a table
/// that fits nowhere (kResource) or cannot be divided so (kRecipe).
std::optional<PlannedTables> planned_tables(const Recipe& recipe, const PlanModel& model, const JobPlan& job, const Cluster& cluster,
                                            int64_t samples);

/// Adds lookups and exchanges of the busiest rank to a step: they do not run beside other work.
void add_tables(Simulation& simulation, const TablesPlan& tables);

}  // namespace galley
