#include "libcore/profiler/benchmark_page.h"

namespace galley {
namespace {

constexpr std::string_view kScript = R"page(
const colors = ["#2e7dd1", "#d9822b", "#3f9c5a", "#b4343a", "#7a5195", "#2a9d8f", "#8c6d31", "#e07a9f", "#667085", "#a3be3c"];
const rows = data.rows.filter(r => r.error === null), width = 1130;
const host = data.provenance;
byId("subtitle").textContent =
    host.tool + " " + host.version + " (" + host.commit + ") on " + host.host + ", " + host.isa + ", " + host.time;
for (const remark of data.remarks) element(byId("remarks"), "div", {class: "advice"}, remark);

// Keys whose values differ; those that are numbers can be an axis.
const keyOf = {
  recipe: r => r.recipe,
  what: r => r.what,
  batch: r => r.batch,
  threads: r => r.threads
};
for (const row of rows)
  for (const key in row.set)
    if (!(key in keyOf)) keyOf[key] = r => r.set[key];
const differs = Object.keys(keyOf).filter(key => new Set(rows.map(keyOf[key])).size > 1);
const isNumber = key => rows.every(r => keyOf[key](r) !== undefined && keyOf[key](r) !== "" && Number.isFinite(Number(keyOf[key](r))));
const label = (row, without) => differs.filter(key => key !== without)
                                    .map(key => key === "recipe" || key === "what" ? keyOf[key](row) : key + " " + keyOf[key](row))
                                    .join(", ") ||
    row.what;
const log = Math.log10;
function powers(low, high) {
  const all = [];
  for (let e = Math.floor(log(low)); e <= Math.ceil(log(high)); ++e)
    for (const m of [1, 2, 5]) {
      const v = m * 10 ** e;
      if (v >= low && v <= high) all.push(v);
    }
  return all;
}
function axes(parent, xs, ys, xName, yName) {
  const height = 300, left = 80, bottom = 34, svg = element(parent, "svg", {viewBox: "0 0 " + width + " " + height});
  const grow = (values, by) => [Math.min(...values) / by, Math.max(...values) * by];
  const [x0, x1] = grow(xs, 1.25), [y0, y1] = grow(ys, 1.4);
  const x = v => left + (log(v) - log(x0)) / (log(x1) - log(x0)) * (width - left - 16),
        y = v => height - bottom - (log(v) - log(y0)) / (log(y1) - log(y0)) * (height - bottom - 12);
  for (const v of powers(x0, x1)) {
    element(svg, "line", {x1: x(v), x2: x(v), y1: 8, y2: height - bottom, stroke: "currentColor", "stroke-opacity": 0.12});
    element(svg, "text", {x: x(v) - 8, y: height - bottom + 14}, number(v));
  }
  for (const v of powers(y0, y1)) {
    element(svg, "line", {x1: left, x2: width - 16, y1: y(v), y2: y(v), stroke: "currentColor", "stroke-opacity": 0.12});
    element(svg, "text", {x: 34, y: y(v) + 4}, number(v));
  }
  element(svg, "text", {x: width / 2, y: height - 6}, xName);
  element(svg, "text", {x: 6, y: 14}, yName);
  return {svg, x, y, x0, x1};
}
function legend(parent, entries) {
  for (const [color, text] of entries) {
    const item = element(parent, "span", {});
    element(item, "i", {style: "background:" + color});
    item.appendChild(document.createTextNode(text));
  }
}

for (const key of differs.filter(isNumber)) {
  const series = new Map();
  for (const row of rows) {
    const name = label(row, key);
    if (!series.has(name)) series.set(name, []);
    series.get(name).push(row);
  }
  if (![...series.values()].some(points => points.length > 1)) continue;
  const part = element(byId("curves"), "div", {class: "chart"});
  const plot = axes(part, rows.map(r => Number(keyOf[key](r))), rows.flatMap(r => [r.p10_ms, r.p90_ms]), key, "ms");
  [...series].forEach(([name, points], i) => {
    const color = colors[i % colors.length];
    points.sort((a, b) => Number(keyOf[key](a)) - Number(keyOf[key](b)));
    element(plot.svg, "polyline", {
      points: points.map(r => plot.x(Number(keyOf[key](r))) + "," + plot.y(r.median_ms)).join(" "),
      fill: "none",
      stroke: color,
      "stroke-width": 2
    });
    for (const r of points) {
      const x = plot.x(Number(keyOf[key](r)));
      element(plot.svg, "line", {x1: x, x2: x, y1: plot.y(r.p10_ms), y2: plot.y(r.p90_ms), stroke: color});
      const dot = element(plot.svg, "circle", {cx: x, cy: plot.y(r.median_ms), r: 4, fill: color});
      element(dot, "title", {}, label(r) + "\n" + number(r.median_ms, 4) + " ms, " + number(r.samples_per_s) + " samples/s");
    }
  });
  legend(element(part, "p", {class: "legend"}), [...series.keys()].map((name, i) => [colors[i % colors.length], name]));
}
if (!byId("curves").firstChild) element(byId("curves"), "p", {}, "Every key has a single value, so there is no curve.");

const worked = rows.filter(r => r.flops > 0 && r.bytes > 0);
if (worked.length > 0) {
  const executed = r => r.executed_flops ?? r.flops;  // less than the nominal flops with Winograd convolutions; the roof applies to these
  const rate = r => executed(r) / r.median_ms * 1e-6, intensity = r => executed(r) / r.bytes;
  const ridge = data.limits.map(l => l.flops_per_s / l.bytes_per_s);
  const plot = axes(
      byId("roofline"), [...worked.map(intensity), ...ridge], [...worked.map(rate), ...data.limits.map(l => l.flops_per_s * 1e-9)],
      "FLOP per byte", "GFLOP/s");
  data.limits.forEach((l, i) => {
    const at = v => plot.y(Math.min(l.flops_per_s, v * l.bytes_per_s) * 1e-9);
    element(plot.svg, "polyline", {
      points: [plot.x0, ridge[i], plot.x1].map(v => plot.x(v) + "," + at(v)).join(" "),
      fill: "none",
      stroke: colors[i % colors.length],
      "stroke-width": 2,
      "clip-path": "inset(0)"
    });
  });
  for (const r of worked) {
    const i = data.limits.findIndex(l => l.threads === r.threads);
    const dot =
        element(plot.svg, "circle", {cx: plot.x(intensity(r)), cy: plot.y(rate(r)), r: 4, fill: colors[Math.max(0, i) % colors.length]});
    element(
        dot, "title", {},
        label(r) + "\n" + number(rate(r)) + " GFLOP/s, " + share(100 * r.limit_fraction) + " of the " + r.bound + " limit");
  }
  legend(
      byId("roofs"),
      data.limits.map(
          (l, i) =>
              [colors[i % colors.length],
               l.threads + (l.threads === 1 ? " thread: " : " threads: ") + number(l.flops_per_s * 1e-9) + " GFLOP/s" + l.type + ", " +
                   number(l.bytes_per_s * 1e-9) + " GB/s"]));
} else {
  element(byId("roofline"), "p", {}, "No row has counts of both operations and bytes.");
}

if (data.scaling.length === 0)
  byId("scaling_part").remove();
else
  table(
      "scaling",
      [
        ["cell", r => r.cell], ["threads", r => r.threads], ["median ms", r => r.median_ms, amount], ["speedup", r => r.speedup, amount],
        ["efficiency", r => 100 * r.efficiency, share]
      ],
      data.scaling);
const swept = Object.keys(keyOf).filter(key => !["recipe", "what", "batch", "threads"].includes(key));
table(
    "rows",
    [
      ["recipe", r => r.recipe], ["what", r => r.what], ...swept.map(key => [key, r => String(r.set[key] ?? "")]), ["batch", r => r.batch],
      ["threads", r => r.threads], ["median ms", r => r.median_ms ?? NaN, v => Number.isNaN(v) ? "" : number(v, 4)],
      ["p90 ms", r => r.p90_ms ?? NaN, v => Number.isNaN(v) ? "" : number(v, 4)], ["runs", r => r.runs ?? ""],
      ["samples/s", r => r.samples_per_s ?? 0, amount], ["GFLOP/s", r => r.flops ? r.flops / r.median_ms * 1e-6 : 0, amount],
      ["of the limit", r => 100 * (r.limit_fraction ?? 0), share], ["bound", r => r.bound ?? ""],
      ["peak memory", r => r.peak_bytes ?? 0, bytes], ["error", r => r.error ?? ""]
    ],
    data.rows);
)page";

}  // namespace

std::string_view benchmark_page_body() {
  return R"page(<h1>Benchmark</h1><p id="subtitle"></p><div id="remarks"></div>
<h2>Over the sweep</h2><p>Medians; bars from the 10th to the 90th percentile.</p><div id="curves"></div>
<h2>Roofline</h2><p id="hint">Lines are the measured limits of this machine; a point below its line can be faster.</p>
<div class="chart" id="roofline"></div><p class="legend" id="roofs"></p>
<div id="scaling_part"><h2>Threads</h2><div class="scroll"><table id="scaling"></table></div></div>
<h2>Rows</h2><div class="scroll"><table id="rows"></table></div>
)page";
}

std::string_view benchmark_page_script() { return kScript; }

}  // namespace galley
