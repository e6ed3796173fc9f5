#pragma once
// The simulation of a pipeline: stages that run a schedule, each of which may be divided among further ranks.

#include "libcore/dist/simulate.h"

namespace galley {

Simulation simulate_pipeline(const PlanModel& model, const JobPlan& job, const Cluster& cluster, std::vector<size_t> cuts);

}  // namespace galley
