// Laws: a step takes the longer of computation and communication where they overlap, their sum where they do not; bytes sent equal the
// formulas; gathered parameters stay within their bound; memory of phases equals the formulas.

#include "libcore/dist/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "libcore/base/error.h"
#include "libcore/dist/rank_memory.h"

namespace galley {
namespace {

constexpr int64_t kElements = 1'600'000;

/// Layers of equal parameters, with measured times.
PlanModel layers(int count, double forward_s, double backward_s) {
  PlanModel model;
  model.bytes = {.parameter = 4, .gradient = 4, .optimizer = 8};
  for (int i = 0; i < count; ++i) {
    model.units.push_back({.name = cat("h.", i)});
    model.parameters.push_back({.name = cat("h.", i, ".weight"), .elements = kElements, .unit = i});
    model.forward.push_back({.name = cat("h.", i),
                             .unit = i,
                             .work = {{.flops = 1, .executed = 1, .seconds = forward_s}},
                             .live_bytes = 100.0 * (i + 1) + 50,
                             .kept_bytes = 100,
                             .output_bytes = 10});
  }
  for (int i = count - 1; i >= 0; --i)
    model.backward.push_back({.name = cat("h.", i),
                              .unit = i,
                              .work = {{.flops = 2, .executed = 2, .seconds = backward_s}},
                              .live_bytes = 100.0 * (i + 1) + 70,
                              .forward = i});
  model.update = {{.seconds = 0}};
  model.flops = model.model_flops = 3.0 * count;
  return model;
}

Cluster test_cluster(double link) {
  Cluster cluster;
  cluster.name = "test";
  cluster.per_node = 8;
  cluster.peak_16 = cluster.peak_32 = 1e12;
  cluster.bandwidth = 1e12;
  cluster.memory = 1e12;
  cluster.link = link;
  cluster.host_link = 1e10;
  cluster.host_bandwidth = 1e11;
  cluster.latency = 0;
  cluster.product_share = 1;
  return cluster;
}

double compute_of(const Simulation& simulation) {
  double sum = 0;
  for (const LaneInterval& interval : simulation.timeline) sum += interval.lane == Lane::kCompute ? interval.end - interval.begin : 0;
  return sum;
}

TEST(Simulate, OneRankComputesOnly) {
  const Simulation s = simulate(layers(4, 1, 2), {}, test_cluster(1e9));
  EXPECT_DOUBLE_EQ(s.step_s, 12);
  EXPECT_DOUBLE_EQ(s.compute_s, 12);
  EXPECT_DOUBLE_EQ(s.traffic.sum(), 0);
}

TEST(Simulate, HiddenCommunicationCostsTheLastBucketOnly) {
  const double bytes = 4.0 * kElements;
  JobPlan job{.strategy = ShardingStrategy::kDdp, .mesh = {.data = 4}, .bucket_bytes = 1 << 20};
  // An all-reduce takes 1 s: hidden by backward passes of 2 s.
  const Cluster cluster = test_cluster(2 * 0.75 * bytes);
  const Simulation s = simulate(layers(4, 1, 2), job, cluster);
  EXPECT_DOUBLE_EQ(s.step_s, 13);
  EXPECT_DOUBLE_EQ(s.exposed_s, 1);
  EXPECT_DOUBLE_EQ(s.communication_s, 4);
  EXPECT_DOUBLE_EQ(s.traffic.all_reduce, 2 * 0.75 * 4 * bytes);
  // Slow links: the queue of collectives is the longer one.
  const Simulation slow = simulate(layers(4, 1, 2), job, test_cluster(2 * 0.75 * bytes / 10));
  EXPECT_DOUBLE_EQ(slow.step_s, 4 + 2 + 40);
  // Without overlap, the sum.
  Cluster cpu = cluster;
  cpu.overlaps = false;
  EXPECT_DOUBLE_EQ(simulate(layers(4, 1, 2), job, cpu).step_s, 16);
  job.overlap_gradients = false;
  EXPECT_DOUBLE_EQ(simulate(layers(4, 1, 2), job, cluster).step_s, 16);
}

TEST(Simulate, TrafficEqualsTheFormulas) {
  const double bytes = 5.0 * 4 * kElements;
  for (const ShardingStrategy strategy :
       {ShardingStrategy::kDdp, ShardingStrategy::kZero1, ShardingStrategy::kZero2, ShardingStrategy::kFsdp}) {
    for (const bool reshard : {true, false}) {
      for (const int64_t micro : {1, 3}) {
        const bool ddp = strategy == ShardingStrategy::kDdp;
        JobPlan job{.strategy = strategy,
                    .mesh = {.data = ddp ? 4 : 1, .shard = ddp ? 1 : 4},
                    .micro_batches = micro,
                    .reshard_after_forward = reshard};
        const StepTraffic sent = simulate(layers(5, 1, 2), job, test_cluster(1e9)).traffic;
        TrafficRule rule{
            .ranks = 4, .parameter_bytes = bytes, .gradient_bytes = bytes, .micro_batches = micro, .reshard_after_forward = reshard};
        StepTraffic formula = data_parallel_traffic(strategy, rule);
        // The last unit of the forward pass stays for the backward pass.
        if (strategy == ShardingStrategy::kFsdp && reshard) formula.all_gather -= static_cast<double>(micro) * 0.75 * bytes / 5;
        EXPECT_NEAR(sent.all_reduce, formula.all_reduce, 1e-6 * bytes) << name_of(strategy);
        EXPECT_NEAR(sent.reduce_scatter, formula.reduce_scatter, 1e-6 * bytes) << name_of(strategy);
        EXPECT_NEAR(sent.all_gather, formula.all_gather, 1e-6 * bytes) << name_of(strategy) << reshard << micro;
      }
    }
  }
}

/// Largest sum of gathered units at one time: from the start of a gather to the end of the unit's use.
double gathered_at_once(const Simulation& simulation, const PlanModel& model) {
  std::vector<std::pair<double, double>> changes;
  for (size_t i = 0; i < simulation.timeline.size(); ++i) {
    const LaneInterval& gather = simulation.timeline[i];
    if (gather.lane != Lane::kCommunication || gather.name.find("all_gather") == std::string::npos) continue;
    for (const LaneInterval& use : simulation.timeline) {
      const std::string unit = gather.name.substr(gather.name.find(' ') + 1);
      if (use.lane != Lane::kCompute || use.begin < gather.end || !use.name.ends_with(" " + unit)) continue;
      changes.emplace_back(gather.begin, 4.0 * static_cast<double>(model.elements(0)));
      changes.emplace_back(use.end, -4.0 * static_cast<double>(model.elements(0)));
      break;
    }
  }
  std::sort(changes.begin(), changes.end());
  double now = 0, most = 0;
  for (const auto& change : changes) most = std::max(most, now += change.second);
  return most;
}

TEST(Simulate, GathersStayWithinTheirBound) {
  const PlanModel model = layers(8, 1, 2);
  const double unit = 4.0 * kElements;
  for (const int64_t bound : {1, 2, 3}) {
    JobPlan job{.strategy = ShardingStrategy::kFsdp, .mesh = {.shard = 4}, .gather_limit = static_cast<int64_t>(bound * unit)};
    const Simulation s = simulate(model, job, test_cluster(100 * unit));
    EXPECT_LE(gathered_at_once(s, model), static_cast<double>(bound) * unit + 1) << bound;
  }
  JobPlan job{.strategy = ShardingStrategy::kFsdp, .mesh = {.shard = 4}};
  EXPECT_DOUBLE_EQ(gathered_at_once(simulate(model, job, test_cluster(100 * unit)), model), 2 * unit) << "auto: the two largest";
}

TEST(Simulate, APrefetchHidesGathers) {
  const double unit = 4.0 * kElements;
  const JobPlan job{.strategy = ShardingStrategy::kFsdp, .mesh = {.shard = 4}};
  // A gather takes half a second, a forward pass one.
  Cluster cluster = test_cluster(0.75 * unit / 0.5);
  const Simulation hidden = simulate(layers(8, 1, 2), job, cluster);
  EXPECT_DOUBLE_EQ(hidden.step_s, 8 + 16 + 0.5 + 0.5) << "the first gather and the last reduction are seen";
  cluster.allocator = Allocator::kSerialises;
  const Simulation serial = simulate(layers(8, 1, 2), job, cluster);
  EXPECT_DOUBLE_EQ(serial.step_s, 24 + 0.5 * (8 + 7 + 8));
  EXPECT_NEAR(compute_of(hidden), compute_of(serial), 1e-9);
}

TEST(Simulate, PipelinesHaveTheBubbleOfTheFormula) {
  JobPlan job{.strategy = ShardingStrategy::kPipeline, .mesh = {.pipe = 4}, .micro_batches = 12};
  PlanModel model = layers(8, 1, 2);
  for (PlanSegment& segment : model.forward) segment.output_bytes = 1e-9;
  const Simulation s = simulate(model, job, test_cluster(1e9));
  EXPECT_NEAR(s.step_s, 12 * 6 / (1 - pipeline_bubble(4, 12, 1)), 1e-6);
  EXPECT_EQ(s.cuts, (std::vector<size_t>{0, 2, 4, 6}));
  job.mesh.pipe = 9;
  EXPECT_THROW(simulate(model, job, test_cluster(1e9)), Error);
}

TEST(Simulate, OffloadMovesTheUpdateToTheHost) {
  PlanModel model = layers(2, 1, 1);
  model.update = {{.seconds = 5}};
  JobPlan job{.optimizer = StatePlace::kHost};
  const Cluster cluster = test_cluster(1e9);
  const double elements = 2.0 * kElements, host = elements * 8 / cluster.host_bandwidth + elements * 4 / cluster.host_link;
  // The gradients of the last layer arrive after the backward pass.
  EXPECT_NEAR(simulate(model, job, cluster).step_s, 4 + kElements * 4 / cluster.host_link + host, 1e-9);
  EXPECT_NEAR(simulate(model, {}, cluster).step_s, 4 + 5, 1e-9);
}

TEST(Simulate, OffloadedParametersAndGradientsPassBy) {
  PlanModel model = layers(4, 1, 2);
  const double bytes = 4.0 * kElements;
  Cluster cluster = test_cluster(1e9);
  cluster.host_link = bytes / 0.5;  // a unit comes in half a second
  JobPlan job{.parameters = StatePlace::kHost};
  // The next unit comes beside computation; the first one is seen, and the last one is still there when the backward pass begins.
  EXPECT_DOUBLE_EQ(simulate(model, job, cluster).step_s, 12 + 0.5 + 4 * 2 * 0.5) << "the update reads and writes all parameters";
  cluster.host_link = bytes / 10;
  const Simulation slow = simulate(model, job, cluster);
  EXPECT_DOUBLE_EQ(slow.step_s, 10 * 7 + 2 + 4 * 2 * 10) << "bound by the link: seven transfers and the last backward pass";
  job = {.gradients = StatePlace::kHost};
  cluster.host_link = bytes / 0.5;
  EXPECT_DOUBLE_EQ(simulate(model, job, cluster).step_s, 12 + 0.5 + 4 * 0.5) << "the last gradient leaves, and all come back";
  job = {.parameters = StatePlace::kDisk};
  cluster.disk = bytes / 0.5;
  EXPECT_DOUBLE_EQ(simulate(model, job, cluster).step_s, 12 + 0.5 + 4 * 2 * 0.5);
  const RankMemory memory = rank_memory(model, job, cluster, {}).front();
  EXPECT_DOUBLE_EQ(memory.phases[0].parameters, 0);
  EXPECT_DOUBLE_EQ(memory.phases[0].gathered, 2 * bytes) << "a unit and the next one";
}

TEST(Simulate, PowerSgdSumsFactors) {
  PlanModel model = layers(4, 1, 2);
  for (PlanParameter& parameter : model.parameters) parameter.rows = 1600;  // 1600 x 1000
  model.parameters.push_back({.name = "bias", .elements = 1000, .unit = 3, .forward_segment = 3});
  JobPlan job{.strategy = ShardingStrategy::kDdp, .mesh = {.data = 4}};
  job.power_sgd_rank = 2;
  const double factors = 4 * 2.0 * (1600 + 1000) * 4, vectors = 1000 * 4;
  EXPECT_NEAR(simulate(model, job, test_cluster(1e9)).traffic.all_reduce, 1.5 * (factors + vectors), 1e-6);
  const double all = 4.0 * kElements * 4;
  EXPECT_NEAR(rank_memory(model, job, test_cluster(1e9), {}).front().phases[0].communication, all + factors, 1e-6);
  job.error_feedback = false;
  EXPECT_NEAR(rank_memory(model, job, test_cluster(1e9), {}).front().phases[0].communication, factors, 1e-6);
  job.power_sgd_rank = 1000;  // larger than the matrix: it stays
  EXPECT_NEAR(simulate(model, job, test_cluster(1e9)).traffic.all_reduce, 1.5 * (all + vectors), 1e-6);
}

TEST(RankMemory, PhasesEqualTheFormulas) {
  const PlanModel model = layers(4, 1, 2);
  const Cluster cluster = test_cluster(1e9);
  const double all = 4.0 * kElements;
  const RankMemory one = rank_memory(model, {}, cluster, {}).front();
  EXPECT_DOUBLE_EQ(one.model.parameters, 4 * all);
  EXPECT_DOUBLE_EQ(one.model.optimizer, 8 * all);
  EXPECT_DOUBLE_EQ(one.phases[1].activations, 100 * 4 + 70);
  EXPECT_EQ(one.largest().phase, "backward");
  JobPlan job{.strategy = ShardingStrategy::kFsdp, .mesh = {.shard = 5}};
  const RankMemory sharded = rank_memory(model, job, cluster, {}).front();
  EXPECT_DOUBLE_EQ(sharded.model.parameters, 4 * all / 5) << "1600000 = 5 * 16 * 20000: no padding";
  EXPECT_DOUBLE_EQ(sharded.phases[1].gathered, 3 * 4.0 * kElements) << "a unit, the next one, and a whole gradient";
  job.parameters = job.optimizer = StatePlace::kHost;
  const RankMemory offloaded = rank_memory(model, job, cluster, {}).front();
  EXPECT_DOUBLE_EQ(offloaded.phases[1].parameters + offloaded.phases[1].optimizer, 0);
  EXPECT_DOUBLE_EQ(offloaded.model.parameters, sharded.model.parameters);
  // Stage 0 of a pipeline holds as many micro-batches as there are stages.
  JobPlan pipeline{.strategy = ShardingStrategy::kPipeline, .mesh = {.pipe = 2}, .micro_batches = 8};
  const std::vector<RankMemory> stages = rank_memory(model, pipeline, cluster, {0, 2});
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_DOUBLE_EQ(stages[0].kept_bytes, 2 * 200);
  EXPECT_DOUBLE_EQ(stages[1].kept_bytes, 200);
  EXPECT_DOUBLE_EQ(stages[0].model.parameters, 4 * all / 2);
  // A stage after the first also keeps what it received for each of its micro-batches.
  EXPECT_DOUBLE_EQ(stages[1].phases[0].activations, 200 + 50 + 10);
  EXPECT_DOUBLE_EQ(stages[1].phases[1].activations, 200 + 70 + 10);
  pipeline.mesh.pipe = 4;
  EXPECT_DOUBLE_EQ(rank_memory(model, pipeline, cluster, {0, 1, 2, 3})[1].phases[1].activations, 3 * (100 + 10) + 70);
}

}  // namespace
}  // namespace galley
