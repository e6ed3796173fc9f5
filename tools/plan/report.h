#pragma once
// What galley-plan prints and writes: tables, JSON, a page and a trace.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "libcore/base/table.h"
#include "libcore/train/step_planner.h"

namespace galley::tools {

/// The keys of the contract (recipe.md, section 5), and more of the same plan.
nlohmann::ordered_json plan_json(const StepPlan& plan, const Cluster& cluster);
nlohmann::ordered_json effects_json(const std::vector<PlanEffect>& effects);
nlohmann::ordered_json timeline_json(const StepPlan& plan);
nlohmann::ordered_json settings_json(const std::vector<std::pair<std::string, std::string>>& settings);
nlohmann::ordered_json rejected_json(const std::vector<PlanRejection>& rejected);

Table summary_table(const StepPlan& plan, const Cluster& cluster);
/// Rows: what a rank holds; columns: phases. Of the stage that needs most.
Table memory_table(const StepPlan& plan);
Table stages_table(const StepPlan& plan);
Table tables_table(const StepPlan& plan);
Table effects_table(const std::vector<PlanEffect>& effects);
/// Why the other candidates of a search are not the result.
Table rejected_table(const std::vector<PlanRejection>& rejected);
Table cluster_table(const Cluster& cluster);

/// A page with the timeline of a step, memory and tables. `json`: the tool's object, with timeline.
std::string plan_page(const std::string& title, const std::string& json);
/// The timeline as a trace for Perfetto: a process for each stage, a thread for each lane.
std::string plan_trace(const StepPlan& plan);

}  // namespace galley::tools
