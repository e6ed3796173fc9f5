#include "tools/plan/report.h"

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/units.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

const RankMemory& largest_stage(const StepPlan& plan) {
  const RankMemory* most = &plan.stages.front();
  for (const RankMemory& stage : plan.stages) {
    if (stage.peak() > most->peak()) most = &stage;
  }
  return *most;
}

double peak_of(const StepPlan& plan, const RankMemory& stage) { return plan.ranks == 1 ? plan.peak : stage.peak(); }

Json phases_json(const RankMemory& stage) {
  Json phases = Json::array();
  for (const PhaseMemory& phase : stage.phases)
    phases.push_back({{"phase", phase.phase},
                      {"parameter_bytes", phase.parameters},
                      {"gradient_bytes", phase.gradients},
                      {"state_bytes", phase.optimizer},
                      {"gathered_bytes", phase.gathered},
                      {"activation_bytes", phase.activations},
                      {"bucket_bytes", phase.communication},
                      {"other_bytes", phase.other},
                      {"bytes", phase.sum()}});
  return phases;
}

std::string percent(double share) { return cat(fixed(100 * share, 1), " %"); }

std::string mesh_text(const Mesh& mesh) {
  std::string text;
  const auto add = [&](const char* name, int64_t size) {
    if (size > 1) text += cat(text.empty() ? "" : " x ", name, " ", size);
  };
  add("data", mesh.data);
  add("shard", mesh.shard);
  add("tensor", mesh.tensor);
  add("pipe", mesh.pipe);
  return text.empty() ? "one rank" : text;
}

/// The modules at which the parts of a stage begin.
std::vector<std::string> begins_of(const StepPlan& plan, size_t stage) {
  std::vector<std::string> modules;
  for (size_t part = stage; part < plan.simulation.cuts.size(); part += plan.stages.size())
    modules.push_back(plan.model->forward[plan.simulation.cuts[part]].name);
  return modules;
}

Json stages_json(const StepPlan& plan) {
  Json list = Json::array();
  for (size_t s = 0; s < plan.stages.size() && plan.stages.size() > 1; ++s)
    list.push_back({{"begins", begins_of(plan, s)},
                    {"parameter_bytes", std::llround(plan.stages[s].model.parameters)},
                    {"kept_bytes", std::llround(plan.stages[s].kept_bytes)},
                    {"peak_bytes", std::llround(plan.stages[s].peak())}});
  return list;
}

Json tables_json(const StepPlan& plan) {
  Json list = Json::array();
  if (!plan.tables) return list;
  for (const PlannedTable& table : plan.tables->plan.tables)
    list.push_back(
        {{"name", table.name}, {"sharding", name_of(table.sharding)}, {"ranks", table.ranks}, {"bytes", std::llround(table.bytes)}});
  return list;
}

}  // namespace

Json plan_json(const StepPlan& plan, const Cluster& cluster) {
  // `part`: of the bytes of tables.
  const auto per_rank = [&](const std::function<double(const RankMemory&)>& of, double part) {
    Json list = Json::array();
    for (int64_t rank = 0; rank < plan.ranks; ++rank) {
      const RankMemory& stage = plan.stages[static_cast<size_t>(plan.stages.size() > 1 ? plan.stage_of(rank) : 0)];
      list.push_back(static_cast<int64_t>(std::llround(of(stage) + part * plan.table_bytes(rank))));
    }
    return list;
  };
  const ModelBytes in_tables = plan.tables ? plan.tables->row_share : ModelBytes();
  const Simulation& s = plan.simulation;
  const auto whole = [](double bytes) { return static_cast<int64_t>(std::llround(bytes)); };
  Json json;
  json["ranks"] = plan.ranks;
  json["strategy"] = name_of(plan.job.strategy);
  json["peak_bytes"] = per_rank([&](const RankMemory& m) { return peak_of(plan, m); }, 1);
  json["parameter_bytes"] = per_rank([](const RankMemory& m) { return m.model.parameters; }, in_tables.parameters);
  json["gradient_bytes"] = per_rank([](const RankMemory& m) { return m.model.gradients; }, in_tables.gradients);
  json["state_bytes"] = per_rank([](const RankMemory& m) { return m.model.optimizer; }, in_tables.optimizer);
  json["activation_bytes"] = per_rank([](const RankMemory& m) { return m.phases[1].activations; }, 0);
  json["communication_bytes"] = {{"all_reduce", whole(s.traffic.all_reduce)},
                                 {"reduce_scatter", whole(s.traffic.reduce_scatter)},
                                 {"all_gather", whole(s.traffic.all_gather)},
                                 {"all_to_all", whole(s.traffic.all_to_all)},
                                 {"send", whole(s.traffic.send)}};
  json["step_ms"] = s.step_s * 1e3;
  json["compute_ms"] = s.compute_s * 1e3;
  json["exposed_communication_ms"] = s.exposed_s * 1e3;
  json["communication_ms"] = s.communication_s * 1e3;
  json["bubble_ms"] = s.bubble_s * 1e3;
  json["flops"] = s.flops;
  json["model_flops"] = s.model_flops;
  json["mfu"] = plan.use.mfu;
  json["hfu"] = plan.use.hfu;
  json["tables"] = tables_json(plan);
  json["stages"] = stages_json(plan);
  json["mesh"] = {
      {"data", plan.job.mesh.data}, {"shard", plan.job.mesh.shard}, {"tensor", plan.job.mesh.tensor}, {"pipe", plan.job.mesh.pipe}};
  json["global"] = plan.batch.global;
  json["micro"] = plan.batch.micro;
  json["accumulation"] = plan.batch.accumulation;
  json["samples_per_s"] = plan.rate();
  json["units"] = plan.model->units.size();
  json["fits"] = plan.fits;
  json["memory_bytes"] = whole(cluster.memory);
  json["host_bytes"] = whole(plan.host);
  json["phases"] = phases_json(largest_stage(plan));
  Json facts = Json::array();
  for (const ClusterFact& fact : cluster_facts(cluster))
    facts.push_back({{"name", fact.name}, {"value", fact.value}, {"source", fact.source}});
  json["cluster"] = {{"name", cluster.name}, {"facts", facts}};
  return json;
}

Json effects_json(const std::vector<PlanEffect>& effects) {
  Json list = Json::array();
  for (const PlanEffect& effect : effects) {
    Json item{{"key", effect.key}, {"value", effect.value}};
    item["peak_bytes"] = effect.plan ? Json(static_cast<int64_t>(effect.plan->peak)) : Json();
    item["step_ms"] = effect.plan ? Json(effect.plan->simulation.step_s * 1e3) : Json();
    item["samples_per_s"] = effect.plan ? Json(effect.plan->rate()) : Json();
    item["fits"] = effect.plan ? Json(effect.plan->fits) : Json();
    item["reason"] = effect.plan ? Json() : Json(effect.reason);
    list.push_back(std::move(item));
  }
  return list;
}

Json settings_json(const std::vector<std::pair<std::string, std::string>>& settings) {
  Json json = Json::object();
  for (const auto& [key, text] : settings) json[key] = text;
  return json;
}

Json rejected_json(const std::vector<PlanRejection>& rejected) {
  Json list = Json::array();
  for (const PlanRejection& item : rejected)
    list.push_back({{"reason", item.reason},
                    {"candidates", item.candidates},
                    {"least_bytes", item.least_bytes > 0 ? Json(std::llround(item.least_bytes)) : Json()},
                    {"settings", item.settings.empty() ? Json() : settings_json(item.settings)}});
  return list;
}

Json timeline_json(const StepPlan& plan) {
  Json list = Json::array();
  for (const LaneInterval& i : plan.simulation.timeline)
    list.push_back({{"stage", i.stage},
                    {"lane", name_of(i.lane)},
                    {"name", i.name},
                    {"begin_ms", i.begin * 1e3},
                    {"ms", (i.end - i.begin) * 1e3},
                    {"bytes", i.bytes}});
  return list;
}

Table summary_table(const StepPlan& plan, const Cluster& cluster) {
  const Simulation& s = plan.simulation;
  Table table{{"plan", ""}, {}};
  table.rows = {
      {"ranks", cat(plan.ranks, " on ", cluster.name, ", ", name_of(plan.job.strategy), ", ", mesh_text(plan.job.mesh))},
      {"batch", cat(plan.batch.global, " samples, ", plan.batch.accumulation, " x ", plan.batch.micro, " on each rank")},
      {"memory of a rank", cat(human_bytes(plan.peak), " of ", human_bytes(cluster.memory), plan.fits ? "" : ": does not fit")},
      {"step", cat(human_seconds(s.step_s), ", ", human_number(plan.rate()), " samples/s")},
      {"computation", cat(human_seconds(s.compute_s), " (", percent(s.compute_s / s.step_s), ")")},
      {"communication", cat(human_seconds(s.communication_s), ", ", human_bytes(s.traffic.sum()),
                            " sent by a rank; not hidden: ", human_seconds(s.exposed_s), " (", percent(s.exposed_s / s.step_s), ")")},
      {"work", cat(human_number(s.flops * 1e-12), " TFLOP per step, ", human_number(s.model_flops * 1e-12), " without recomputation")},
      {"utilization", cat("MFU ", percent(plan.use.mfu), ", HFU ", percent(plan.use.hfu), " (recomputation counted)")}};
  if (plan.host > 0)
    table.rows.push_back(
        {"host of a node", cat(human_bytes(plan.host), cluster.host_memory > 0 ? cat(" of ", human_bytes(cluster.host_memory)) : "",
                               cluster.host_memory > 0 && plan.host > cluster.host_memory ? ": does not fit" : "")});
  if (plan.job.mesh.pipe > 1) table.rows.push_back({"bubble", cat(human_seconds(s.bubble_s), " (", percent(s.bubble_s / s.step_s), ")")});
  if (cluster.allocator == Allocator::kSerialises) table.rows.push_back({"allocator", "serialises: gathers do not run beside computation"});
  return table;
}

Table memory_table(const StepPlan& plan) {
  const RankMemory& stage = largest_stage(plan);
  Table table{{"memory of a rank"}, {}};
  for (const PhaseMemory& phase : stage.phases) table.headings.push_back(phase.phase);
  const auto row = [&](const std::string& name, const std::function<double(const PhaseMemory&)>& of) {
    std::vector<std::string> cells{name};
    double most = 0;
    for (const PhaseMemory& phase : stage.phases) {
      most = std::max(most, of(phase));
      cells.push_back(human_bytes(of(phase)));
    }
    if (most > 0) table.rows.push_back(std::move(cells));
  };
  row("parameters", [](const PhaseMemory& p) { return p.parameters; });
  row("gradients", [](const PhaseMemory& p) { return p.gradients; });
  row("optimizer state", [](const PhaseMemory& p) { return p.optimizer; });
  row("gathered units, copies", [](const PhaseMemory& p) { return p.gathered; });
  row("activations", [](const PhaseMemory& p) { return p.activations; });
  row("buckets in flight", [](const PhaseMemory& p) { return p.communication; });
  row("buffers", [](const PhaseMemory& p) { return p.other; });
  row("sum", [](const PhaseMemory& p) { return p.sum(); });
  return table;
}

Table stages_table(const StepPlan& plan) {
  Table table{{"stage", "begins at", "parameters", "micro-batches kept", "peak"}, {}};
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const RankMemory& stage = plan.stages[s];
    std::string begins;
    for (const std::string& module : begins_of(plan, s)) begins += cat(begins.empty() ? "" : ", ", module);
    table.rows.push_back(
        {std::to_string(s), begins, human_bytes(stage.model.parameters), human_bytes(stage.kept_bytes), human_bytes(stage.peak())});
  }
  return table;
}

Table tables_table(const StepPlan& plan) {
  Table table{{"table", "sharding", "ranks", "bytes on each"}, {}};
  for (const PlannedTable& planned : plan.tables->plan.tables) {
    std::string ranks = std::to_string(planned.ranks.front());
    if (planned.ranks.size() > 1) ranks += cat(" .. ", planned.ranks.back());
    table.rows.push_back({planned.name, std::string(name_of(planned.sharding)), ranks, human_bytes(planned.bytes)});
  }
  return table;
}

Table effects_table(const std::vector<PlanEffect>& effects) {
  Table table{{"change", "memory of a rank", "step", "samples/s", ""}, {}};
  for (const PlanEffect& effect : effects) {
    const std::string change = effect.key.empty() ? effect.value : cat(effect.key, " ", effect.value);
    if (!effect.plan) {
      table.rows.push_back({change, "", "", "", effect.reason});
      continue;
    }
    table.rows.push_back({change, human_bytes(effect.plan->peak), human_seconds(effect.plan->simulation.step_s),
                          human_number(effect.plan->rate()), effect.plan->fits ? "" : "does not fit"});
  }
  return table;
}

Table rejected_table(const std::vector<PlanRejection>& rejected) {
  Table table{{"other candidates", "", "of these"}, {}};
  for (const PlanRejection& item : rejected) {
    std::string settings;
    for (const auto& [key, value] : item.settings) {
      const bool usual =
          value == "null" || value == "auto" || value == "true" || value == "{parameters: auto, match: []}" || value == "1f1b";
      if (!usual) settings += cat(settings.empty() ? "" : ", ", key.substr(key.rfind('.') + 1), " ", value);
    }
    table.rows.push_back({std::to_string(item.candidates), item.reason, settings});
  }
  return table;
}

Table cluster_table(const Cluster& cluster) {
  Table table{{"value", cluster.name, "source"}, {}};
  for (const ClusterFact& fact : cluster_facts(cluster)) table.rows.push_back({fact.name, fact.value, fact.source});
  return table;
}

}  // namespace galley::tools
