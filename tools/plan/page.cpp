// The page and the trace of a plan.
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/profiler/html_page.h"
#include "libcore/profiler/trace.h"
#include "tools/plan/report.h"

namespace galley::tools {
namespace {

constexpr std::string_view kScript = R"page(
const host = data.provenance;
byId("subtitle").textContent = host.tool + " " + host.version + " (" + host.commit + "), " + host.time;
const cards = [["step", number(data.step_ms) + " ms"], ["memory of a rank", bytes(Math.max(...data.peak_bytes))],
               ["not hidden", number(data.exposed_communication_ms) + " ms"], ["MFU", share(100 * data.mfu)],
               ["HFU", share(100 * data.hfu)], ["ranks", data.ranks + " (" + data.strategy + ")"]];
for (const [name, value] of cards) {
  const card = element(byId("cards"), "div", {class: "card"});
  element(card, "b", {}, value);
  element(card, "span", {}, name);
}
const width = 1130, left = 150, row = 22, lanes = [...new Set(data.timeline.map(i => i.stage + " " + i.lane))].sort(
    (a, b) => parseInt(a) - parseInt(b) || a.localeCompare(b));
const svg = element(byId("timeline"), "svg", {viewBox: "0 0 " + width + " " + (lanes.length * row + 30)});
const colors = {compute: "#2e7dd1", communication: "#d9822b", host: "#7a5195"};
lanes.forEach((lane, k) => element(svg, "text", {x: 6, y: k * row + 16}, "stage " + lane));
for (const i of data.timeline) {
  const scale = (width - left - 8) / data.step_ms, x = left + i.begin_ms * scale, w = Math.max(0.5, i.ms * scale);
  const box = element(svg, "rect", {x, y: lanes.indexOf(i.stage + " " + i.lane) * row + 3, width: w, height: row - 4,
                                    fill: colors[i.lane], "fill-opacity": i.name.startsWith("backward") ? 0.65 : 1});
  const sent = i.bytes ? ", " + bytes(i.bytes) : "";
  element(box, "title", {}, i.name + ": " + number(i.ms) + " ms at " + number(i.begin_ms) + sent);
}
element(svg, "text", {x: left, y: lanes.length * row + 22}, "0");
element(svg, "text", {x: width - 80, y: lanes.length * row + 22}, number(data.step_ms) + " ms");
table("phases", [["phase", r => r.phase], ["parameters", r => r.parameter_bytes, bytes], ["gradients", r => r.gradient_bytes, bytes],
                 ["optimizer state", r => r.state_bytes, bytes], ["gathered units, copies", r => r.gathered_bytes, bytes],
                 ["activations", r => r.activation_bytes, bytes], ["buckets", r => r.bucket_bytes, bytes], ["sum", r => r.bytes, bytes]],
      data.phases);
table("traffic", [["collective", r => r[0]], ["sent by a rank", r => r[1], bytes]], Object.entries(data.communication_bytes));
if (data.effects)
  table("effects", [["change", r => (r.key + " " + r.value).trim()], ["memory of a rank", r => r.peak_bytes || 0, bytes],
                    ["step, ms", r => r.step_ms || 0, amount], ["", r => r.reason || (r.fits ? "fits" : "does not fit")]],
        data.effects);
table("facts", [["value", r => r.name], [data.cluster.name, r => r.value], ["source", r => r.source]], data.cluster.facts);
)page";

constexpr std::string_view kBody = R"page(<h1 id="title"></h1><p id="subtitle"></p><div class="cards" id="cards"></div>
<h2>One step</h2><div class="chart" id="timeline"></div>
<h2>Memory of the rank that needs most</h2><div class="scroll all"><table id="phases"></table></div>
<h2>StepTraffic</h2><div class="scroll all"><table id="traffic"></table></div>
<h2>Changes</h2><div class="scroll all"><table id="effects"></table></div>
<h2>Cluster</h2><div class="scroll all"><table id="facts"></table></div>
)page";

}  // namespace

std::string plan_page(const std::string& title, const std::string& json) {
  nlohmann::ordered_json data = nlohmann::ordered_json::parse(json);
  data["title"] = title;
  const std::string script = cat("byId(\"title\").textContent = data.title;\n", kScript);
  return html_page({.title = "galley-plan", .body = kBody, .json = data.dump(), .script = script});
}

std::string plan_trace(const StepPlan& plan) {
  std::string events;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    events +=
        cat(events.empty() ? "" : ",\n", R"({"ph":"M","name":"process_name","pid":)", s, R"(,"tid":0,"args":{"name":"stage )", s, "\"}}");
    for (const Lane lane : {Lane::kCompute, Lane::kCommunication, Lane::kHost})
      events += cat(",\n", R"({"ph":"M","name":"thread_name","pid":)", s, ",\"tid\":", static_cast<int>(lane), R"(,"args":{"name":")",
                    name_of(lane), "\"}}");
  }
  for (const LaneInterval& i : plan.simulation.timeline)
    events += cat(",\n", R"({"ph":"X","name":)", json_string(i.name), ",\"pid\":", i.stage, ",\"tid\":", static_cast<int>(i.lane),
                  ",\"ts\":", i.begin * 1e6, ",\"dur\":", (i.end - i.begin) * 1e6, R"(,"args":{"bytes":)", i.bytes, "}}");
  return cat("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", events, "\n]}\n");
}

}  // namespace galley::tools
