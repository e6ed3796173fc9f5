#pragma once
// Times of the parts of a step that runs of ranks and of pipelines share.

#include <vector>

#include "libcore/dist/job.h"
#include "libcore/dist/plan_model.h"

namespace galley {

/// Time of a segment without and with the collectives of tensor parallelism, which are not hidden.
struct SegmentTime {
  double compute = 0, reductions = 0;
  double sum() const { return compute + reductions; }
};
std::vector<SegmentTime> times_of(const std::vector<PlanSegment>& segments, const JobPlan& job, const Cluster& cluster);

/// The update of a share of the parameters, of which one rank executes its part, and what offload adds.
double update_seconds(const PlanModel& model, const JobPlan& job, const Cluster& cluster, double share);

/// Seconds to move so many bytes between a device and where they are offloaded to; 0 for kDevice.
double offload_seconds(StatePlace place, double bytes, const JobPlan& job, const Cluster& cluster);

/// Bytes that a rank sends for the tensor-parallel collectives of a segment.
StepTraffic tensor_traffic(const PlanSegment& segment, const JobPlan& job);

/// What summing gradients over ranks costs after a backward pass, and gathering updated parameters where ranks update ranges of them.
struct GradientSum {
  double reduce_s = 0, gather_s = 0;
  StepTraffic sent;
};
GradientSum sum_gradients(const JobPlan& job, const Cluster& cluster, double gradient_bytes, double parameter_bytes);

}  // namespace galley
