#include "libcore/profiler/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "libcore/profiler/html_page.h"
#include "libcore/profiler/profile_page.h"

namespace galley {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kTimelineEvents = 4000;  // limit of events on the page's timeline; more would be narrower than a pixel

double ms(double seconds) { return seconds * 1e3; }

Json sum_json(const WorkSum& sum) {
  return {{"flops", sum.flops},
          {"executed_flops", sum.executed.total()},
          {"bytes", sum.bytes},
          {"gflops_per_s", sum.flops_per_s() * 1e-9},
          {"gbytes_per_s", sum.bytes_per_s() * 1e-9},
          {"limit_percent", sum.limit_percent()},
          {"bound", sum.flops <= 0 && sum.bytes <= 0 ? ""
                    : sum.compute_bound              ? "compute"
                                                     : "memory"}};
}

Json advice_json(const Advice& advice) {
  Json operators = Json::array();
  for (const BelowLimit& item : advice.operators) {
    operators.push_back({{"type", item.type},
                         {"phase", item.phase},
                         {"module", item.module},
                         {"share_percent", 100 * item.share},
                         {"beyond_ms", ms(item.beyond_s)},
                         {"limit_percent", 100 * item.reached},
                         {"bound", item.bound},
                         {"key", item.key},
                         {"value", item.value.empty() ? Json() : Json(item.value)},
                         {"cure", item.remedy}});
  }
  return {{"code", advice.code},
          {"message", advice.message},
          {"key", advice.key},
          {"value", advice.value.empty() ? Json() : Json(advice.value)},
          {"gain_ms", ms(advice.gain_s)},
          {"gain_bytes", advice.gain_bytes},
          {"gain", advice.modeled ? "modeled" : "measured"},
          {"requantize", advice.requantize},
          {"operators", std::move(operators)}};
}

Json operator_json(const OperatorRow& row) {
  Json json{{"module", row.module},      {"type", row.type},           {"phase", row.phase},    {"calls", row.calls},
            {"self_ms", ms(row.self_s)}, {"total_ms", ms(row.self_s)}, {"percent", row.percent}};
  json.update(sum_json(row));
  json["shape"] = row.shape;
  json["kernel"] = row.implementation.empty() ? row.backend : row.backend + " " + row.implementation;
  if (row.recomputed) json["recomputed"] = true;
  if (!row.note.empty()) json["note"] = row.note;
  return json;
}

/// A row for time outside operators, so that all rows sum to the window.
Json rest_json(const char* type, const Profile& profile, double seconds) {
  return {{"module", ""},
          {"type", type},
          {"phase", ""},
          {"calls", profile.steps},
          {"self_ms", ms(seconds)},
          {"total_ms", ms(seconds)},
          {"percent", profile.wall_s > 0 ? 100 * seconds / profile.wall_s : 0},
          {"flops", 0},
          {"bytes", 0},
          {"shape", ""},
          {"kernel", ""}};
}

Json sizes_json(const MemorySizes& sizes) {
  Json json = Json::object();
  for (size_t c = 0; c < kMemoryCategories; ++c) json[std::string(category_name(static_cast<MemoryCategory>(c)))] = sizes[c];
  return json;
}

/// Live memory at each node of the last step; leaves out points that change the sum by less than 1/200 of the peak.
Json memory_json(const Profile& profile, const Recording& recording) {
  const MemoryTimeline& memory = profile.memory;
  Json json{{"planned_bytes", memory.planned_bytes},
            {"arena_bytes", memory.arena_bytes},
            {"arena_live_bytes", memory.arena_live_bytes},
            {"resident_bytes", profile.resident_bytes}};
  json["peak"] = memory.steps.empty() ? Json::object() : sizes_json(memory.steps[memory.peak]);
  json["timeline"] = Json::array();
  if (memory.steps.empty()) return json;
  const StepMark& step = recording.steps.back();
  const int64_t peak = total(memory.steps[memory.peak]);
  const int32_t program = recording.nodes.empty() ? 0 : recording.nodes.back().program;
  int64_t last = -1;
  for (size_t e = step.first_node; e < step.end_node; ++e) {
    const NodeEvent& event = recording.nodes[e];
    if (event.program != program) continue;
    const MemorySizes& sizes = memory.steps[static_cast<size_t>(event.step)];
    const int64_t now = total(sizes);
    if (last >= 0 && std::abs(now - last) * 200 < peak && e + 1 < step.end_node) continue;
    last = now;
    Json point{{"at_ms", static_cast<double>(event.begin_ns - step.begin_ns) * 1e-6}};
    point.update(sizes_json(sizes));
    json["timeline"].push_back(std::move(point));
  }
  json["measured"] = Json::array();
  for (const StepMark& mark : recording.steps) json["measured"].push_back({{"step", mark.number}, {"resident_bytes", mark.resident_bytes}});
  return json;
}

Json report_of(const ProfileReport& report, const Recording& recording) {
  const Profile& profile = report.profile;
  Json json{{"recipe", report.recipe},       {"what", report.what},
            {"batch", report.batch},         {"threads", report.threads},
            {"synthetic", report.synthetic}, {"steps", profile.steps},
            {"wall_ms", ms(profile.wall_s)}, {"compute_ms", ms(profile.compute_s)},
            {"data_ms", ms(profile.data_s)}, {"executor_ms", ms(profile.gap_s)}};
  const auto share = [&](double s) { return profile.wall_s > 0 ? 100 * s / profile.wall_s : 0; };
  json["shares_percent"] = {{"compute", share(profile.compute_s)}, {"data", share(profile.data_s)}, {"executor", share(profile.gap_s)}};
  json["step_ms"] = Json::array();
  for (double s : profile.step_s) json["step_ms"].push_back(ms(s));
  json["samples_per_s"] = profile.wall_s > 0 ? static_cast<double>(report.batch * profile.steps) / profile.wall_s : 0;
  json["work"] = sum_json(profile.work);
  json["limit_percent"] = share(profile.work.limit_s);  // of the window; "work" has that of the operators' time
  json["machine"] = {{"flops_per_s", profile.machine.flops_per_s},
                     {"bf16_per_s", profile.machine.bf16_per_s},
                     {"int8_per_s", profile.machine.int8_per_s},
                     {"bytes_per_s", profile.machine.bytes_per_s},
                     {"instruction_set", profile.machine.instruction_set}};
  json["operators"] = Json::array();
  for (const OperatorRow& row : profile.operators) json["operators"].push_back(operator_json(row));
  json["operators"].push_back(rest_json("(executor)", profile, profile.gap_s));
  json["operators"].push_back(rest_json("(waiting for data)", profile, profile.data_s));
  json["modules"] = Json::array();
  for (const ModuleRow& row : profile.modules) {
    Json module{{"module", row.path},
                {"depth", row.depth},
                {"parent", row.parent},
                {"calls", row.calls},
                {"self_ms", ms(row.self_s)},
                {"total_ms", ms(row.total_s)},
                {"percent", row.percent},
                {"forward_ms", ms(row.forward_s)},
                {"backward_ms", ms(row.backward_s)},
                {"update_ms", ms(row.update_s)},
                {"flops", row.total_flops},
                {"executed_flops", row.total_executed.total()},
                {"bytes", row.total_bytes},
                {"limit_percent", row.total_s > 0 ? 100 * row.total_limit_s / row.total_s : 0},
                {"parameter_bytes", row.parameter_bytes},
                {"made_bytes", row.made_bytes}};
    json["modules"].push_back(std::move(module));
  }
  json["memory"] = memory_json(profile, recording);
  json["advice"] = Json::array();
  for (const Advice& advice : report.advice) json["advice"].push_back(advice_json(advice));
  int64_t hits = 0;
  Json programs = Json::array();
  for (const ProfiledProgram& made : report.compilations) {
    programs.push_back({{"program", made.program},
                        {"reason", made.reason},
                        {"compile_ms", ms(made.seconds)},
                        {"operators", made.operators},
                        {"runs", made.runs}});
    hits += std::max<int64_t>(0, made.runs - 1);
  }
  json["compilations"] = {{"count", report.compilations.size()}, {"cache_hits", hits}, {"programs", std::move(programs)}};
  json["remarks"] = report.remarks;
  return json;
}

/// Nodes of the last step for the page's timeline: [begin_ms, duration_ms, name, phase, shape].
Json timeline_json(const Recording& recording, const MachineLimits& machine) {
  const StepMark& step = recording.steps.back();
  std::vector<size_t> events;
  for (size_t e = step.first_node; e < step.end_node; ++e) events.push_back(e);
  const auto duration = [&](size_t e) { return recording.nodes[e].end_ns - recording.nodes[e].begin_ns; };
  if (events.size() > kTimelineEvents) {
    std::nth_element(events.begin(), events.begin() + kTimelineEvents, events.end(),
                     [&](size_t a, size_t b) { return duration(a) > duration(b); });
    events.resize(kTimelineEvents);
    std::sort(events.begin(), events.end());
  }
  Json json = Json::array();
  for (size_t e : events) {
    const NodeEvent& event = recording.nodes[e];
    const OperatorRow row = describe(*recording.programs[static_cast<size_t>(event.program)], static_cast<size_t>(event.step), machine);
    json.push_back({static_cast<double>(event.begin_ns - step.begin_ns) * 1e-6, static_cast<double>(duration(e)) * 1e-6,
                    row.module.empty() ? row.type : row.type + " " + row.module, row.phase, row.shape});
  }
  for (size_t w = step.first_wait; w < step.end_wait; ++w) {
    const WaitEvent& wait = recording.waits[w];
    json.push_back({static_cast<double>(wait.begin_ns - step.begin_ns) * 1e-6, static_cast<double>(wait.end_ns - wait.begin_ns) * 1e-6,
                    "wait for data", "data", ""});
  }
  return json;
}

std::string dumped(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

std::string report_json(const ProfileReport& report, const Recording& recording) { return dumped(report_of(report, recording)); }

std::string report_html(const ProfileReport& report, const Recording& recording) {
  Json json = report_of(report, recording);
  json["timeline"] = timeline_json(recording, report.profile.machine);
  return html_page({"Galley profile", profile_page_body(), dumped(json), profile_page_script()});
}

}  // namespace galley
