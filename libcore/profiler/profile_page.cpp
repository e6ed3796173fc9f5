#include "libcore/profiler/profile_page.h"

namespace galley {
namespace {

constexpr std::string_view kScript =
    R"page(const phaseColor = {
  forward: "#2e7dd1",
  backward: "#d9822b",
  update: "#3f9c5a",
  data: "#b4343a",
  "": "#888888"
};
const categoryColor = {
  parameters: "#3b5b92",
  buffers: "#6c86b8",
  optimizer_state: "#7a5195",
  inputs: "#b9c4d0",
  prepared: "#9c8ade",
  activations: "#2a9d8f",
  gradients: "#e07a3f",
  workspace: "#b4343a"
};
byId("title").textContent =
    "Profile of " + (data.recipe || "a recipe") + ": " + (data.what === "forward" ? "forward pass" : "training step");
byId("subtitle").textContent = data.steps + " steps of " + data.batch + " samples" + (data.synthetic ? ", random batches" : "") + ", " +
    data.threads + " threads; limit of the machine " + number(data.machine.flops_per_s / 1e9) + " GFLOP/s (" +
    data.machine.instruction_set + "), " + number(data.machine.bytes_per_s / 1e9) + " GB/s";
for (const remark of data.remarks) element(byId("remarks"), "div", {class: "advice"}, remark);
for (const [label, value] of [
         ["per step", number(data.wall_ms / data.steps, 4) + " ms"], ["samples/s", number(data.samples_per_s)],
         ["computing", share(data.shares_percent.compute)], ["waiting for data", share(data.shares_percent.data)],
         ["executor", share(data.shares_percent.executor)], ["of the limit", share(data.limit_percent)],
         ["planned memory", bytes(data.memory.planned_bytes)], ["measured memory", bytes(data.memory.resident_bytes)]]) {
  const card = element(byId("cards"), "div", {class: "card"});
  element(card, "b", {}, value);
  element(card, "span", {}, label);
}
if (data.advice.length === 0)
  element(
      byId("advice"), "p", {},
      "No rule found anything to change: a step reaches " + share(data.limit_percent) + " of the machine's limit.");
for (const item of data.advice) {
  const box = element(byId("advice"), "div", {class: "advice"});
  element(box, "div", {}, item.message);
  const gain = element(box, "p", {}, "");
  element(gain, "code", {}, item.key + (item.value === null ? "" : ": " + item.value));
  if (item.gain_ms !== 0)
    gain.appendChild(document.createTextNode(
        " gains " + number(item.gain_ms) + " ms per step (" + item.gain + ", " + share(100 * item.gain_ms * data.steps / data.wall_ms) +
        ")" + (item.gain_bytes ? ", " + bytes(Math.abs(item.gain_bytes)) + (item.gain_bytes > 0 ? " less memory" : " more memory") : "")));
  if (item.operators.length === 0) continue;
  table(
      element(element(box, "div", {class: "scroll all"}), "table", {}),
      [
        ["operator", r => r.type], ["phase", r => r.phase], ["module", r => r.module], ["share", r => r.share_percent, share],
        ["ms above the limit", r => r.beyond_ms, amount], ["of the limit", r => r.limit_percent, share], ["bound by", r => r.bound],
        ["what to change", r => (r.value === null ? r.key : r.key + ": " + r.value) + " - " + r.cure]
      ],
      item.operators);
}

const width = 1130;
function drawTimeline(from, to) {
  clear(byId("timeline"));
  const rows = ["data", "forward", "backward", "update"], height = 26 * rows.length + 30;
  const svg = element(byId("timeline"), "svg", {viewBox: "0 0 " + width + " " + height});
  const left = 70, scale = (width - left - 8) / (to - from);
  rows.forEach((row, i) => element(svg, "text", {x: 6, y: 22 + 26 * i}, row));
  for (const [begin, duration, name, phase, shape] of data.timeline) {
    if (begin + duration < from || begin > to) continue;
    const x = left + Math.max(0, (begin - from) * scale), end = left + Math.min(width - left - 8, (begin + duration - from) * scale);
    const box = element(
        svg, "rect",
        {x: x, y: 8 + 26 * rows.indexOf(phase), width: Math.max(0.4, end - x), height: 20, fill: phaseColor[phase], "fill-opacity": 0.85});
    box.addEventListener("mouseenter", () => {
      byId("hint").textContent = name + ": " + number(duration, 4) + " ms " + shape;
    });
  }
  for (let i = 0; i <= 8; ++i)
    element(svg, "text", {x: left + (width - left - 60) * i / 8, y: height - 8}, number(from + (to - from) * i / 8) + " ms");
  let start = null;
  const at = event => {
    const box = svg.getBoundingClientRect();
    return from + ((event.clientX - box.left) / box.width * width - left) / scale;
  };
  svg.addEventListener("mousedown", event => {
    start = at(event);
    event.preventDefault();
  });
  svg.addEventListener("mouseup", event => {
    const end = at(event);
    if (start !== null && Math.abs(end - start) * scale > 6) drawTimeline(Math.max(0, Math.min(start, end)), Math.max(start, end));
    start = null;
  });
  svg.addEventListener("dblclick", () => drawTimeline(0, stepEnd));
}
const stepEnd = data.timeline.reduce((end, event) => Math.max(end, event[0] + event[1]), 0.001);
drawTimeline(0, stepEnd);
for (const phase of ["forward", "backward", "update", "data"]) {
  const item = element(byId("phases"), "span", {});
  element(item, "i", {style: "background:" + phaseColor[phase]});
  item.appendChild(document.createTextNode(phase));
}

function drawFlame(root) {
  clear(byId("flame"));
  const modules = data.modules;
  if (modules.length === 0) return;
  const place = new Array(modules.length), depthOf = new Array(modules.length);
  let deepest = 0;
  const next = {};
  for (let i = root; i < modules.length; ++i) {
    if (i === root) {
      place[i] = 0;
      depthOf[i] = 0;
    } else {
      const p = modules[i].parent;
      if (place[p] === undefined) continue;
      place[i] = next[p];
      depthOf[i] = depthOf[p] + 1;
      next[p] += modules[i].total_ms;
    }
    next[i] = place[i];
    deepest = Math.max(deepest, depthOf[i]);
  }
  const whole = modules[root].total_ms || 1,
        svg = element(byId("flame"), "svg", {viewBox: "0 0 " + width + " " + (22 * (deepest + 1) + 8)});
  modules.forEach((module, i) => {
    if (place[i] === undefined) return;
    const w = module.total_ms / whole * (width - 8);
    if (w < 0.5) return;
    const x = 4 + place[i] / whole * (width - 8), y = 4 + 22 * depthOf[i], name = module.module || "model";
    const reached = Math.min(1, module.limit_percent / 100);
    const box = element(
        svg, "rect",
        {x: x, y: y, width: Math.max(0.5, w - 1), height: 20, rx: 2, fill: "hsl(" + (10 + 110 * reached) + ",55%,55%)", cursor: "pointer"});
    element(
        box, "title", {},
        name + "\n" + number(module.total_ms, 4) + " ms, " + share(module.percent) + " of the window\nforward " +
            number(module.forward_ms) + ", backward " + number(module.backward_ms) + ", update " + number(module.update_ms) + " ms\n" +
            share(module.limit_percent) + " of the limit");
    box.addEventListener("click", () => drawFlame(i === root ? Math.max(0, module.parent) : i));
    const label = name.slice(name.lastIndexOf(".") + 1);
    if (w > 7 * label.length + 6) element(svg, "text", {x: x + 4, y: y + 14, class: "on"}, label);
  });
}
drawFlame(0);

(function drawMemory() {
  const points = data.memory.timeline, names = Object.keys(categoryColor);
  const height = 240, svg = element(byId("memory"), "svg", {viewBox: "0 0 " + width + " " + height});
  if (points.length === 0) return;
  const top = Math.max(data.memory.planned_bytes, 1), end = Math.max(points[points.length - 1].at_ms, 0.001), left = 80;
  const x = ms => left + ms / end * (width - left - 10), y = b => height - 24 - b / top * (height - 40);
  let below = points.map(() => 0);
  for (const name of names) {
    const above = points.map((p, i) => below[i] + p[name]);
    let path = "";
    points.forEach((p, i) => {
      if (i > 0) path += "L" + x(p.at_ms) + "," + y(above[i - 1]);
      path += (i === 0 ? "M" : "L") + x(p.at_ms) + "," + y(above[i]);
    });
    for (let i = points.length - 1; i >= 0; --i) {
      path += "L" + x(points[i].at_ms) + "," + y(below[i]);
      if (i > 0) path += "L" + x(points[i].at_ms) + "," + y(below[i - 1]);
    }
    const area = element(svg, "path", {d: path + "Z", fill: categoryColor[name], "fill-opacity": 0.9});
    element(area, "title", {}, name + ": at most " + bytes(Math.max(...points.map(p => p[name]))));
    below = above;
    const item = element(byId("categories"), "span", {});
    element(item, "i", {style: "background:" + categoryColor[name]});
    item.appendChild(document.createTextNode(name + " " + bytes(data.memory.peak[name] || 0)));
  }
  element(svg, "line", {
    x1: left,
    x2: width - 10,
    y1: y(data.memory.planned_bytes),
    y2: y(data.memory.planned_bytes),
    stroke: "currentColor",
    "stroke-dasharray": "4 3"
  });
  for (let i = 0; i <= 4; ++i) element(svg, "text", {x: 6, y: y(top * i / 4) + 4}, bytes(top * i / 4));
  for (let i = 0; i <= 6; ++i) element(svg, "text", {x: x(end * i / 6) - (i === 6 ? 40 : 0), y: height - 6}, number(end * i / 6) + " ms");
})();

// The data are sums over the recorded steps.
const perStep = value => row => value(row) / data.steps;

table(
    "operators",
    [
      ["operator", r => r.type], ["module", r => r.module], ["phase", r => r.phase], ["shape", r => r.shape], ["kernel", r => r.kernel],
      ["calls per step", perStep(r => r.calls)], ["self ms", perStep(r => r.self_ms), amount], ["share", r => r.percent, share],
      ["GFLOP/s", r => r.gflops_per_s || 0, amount], ["GB/s", r => r.gbytes_per_s || 0, amount],
      ["of the limit", r => r.limit_percent || 0, share]
    ],
    data.operators);
table(
    "modules",
    [
      ["module", r => r.module || "(model)"], ["total ms per step", perStep(r => r.total_ms), amount],
      ["self ms", perStep(r => r.self_ms), amount], ["share", r => r.percent, share], ["forward ms", perStep(r => r.forward_ms), amount],
      ["backward ms", perStep(r => r.backward_ms), amount], ["update ms", perStep(r => r.update_ms), amount],
      ["GFLOP", perStep(r => r.flops / 1e9), amount], ["of the limit", r => r.limit_percent, share],
      ["parameters", r => r.parameter_bytes, bytes], ["outputs", r => r.made_bytes, bytes]
    ],
    data.modules);
table(
    "compilations",
    [
      ["program", r => r.program], ["reason", r => r.reason], ["compile ms", r => r.compile_ms, amount], ["operators", r => r.operators],
      ["runs", r => r.runs]
    ],
    data.compilations.programs);
)page";

}  // namespace

std::string_view profile_page_body() {
  return R"page(<h1 id="title"></h1><p id="subtitle"></p><div id="remarks"></div><div class="cards" id="cards"></div>
<h2>Advice</h2><div id="advice"></div>
<h2>Timeline of one step</h2><p id="hint">Drag to zoom, double-click for the whole step.</p>
<div class="chart" id="timeline"></div><p class="legend" id="phases"></p>
<h2>Modules</h2><p>Width is time, backward pass and updates included. Click to zoom, click the top to return.</p>
<div class="chart" id="flame"></div>
<h2>Memory</h2><div class="chart" id="memory"></div><p class="legend" id="categories"></p>
<h2>Operators</h2><div class="scroll"><table id="operators"></table></div>
<h2>Table of modules</h2><div class="scroll"><table id="modules"></table></div>
<h2>Compilations</h2><div class="scroll"><table id="compilations"></table></div>
)page";
}

std::string_view profile_page_script() { return kScript; }

}  // namespace galley
