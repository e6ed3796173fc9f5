#include "libcore/profiler/html_page.h"

#include "libcore/base/error.h"

namespace galley {
namespace {

constexpr std::string_view kHead = R"page(<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
      content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<style>
:root { color-scheme: light dark; --ink: #1d2430; --soft: #5b6577; --line: #d8dde6; --back: #ffffff; --panel: #f6f8fb; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #98a2b3; --line: #333b49; --back: #14181f; --panel: #1c222c; } }
body { font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--back);
       margin: 0 auto; max-width: 1440px; padding: 24px; }
@media (max-width: 640px) { body { padding: 12px; } h1 { font-size: 19px; overflow-wrap: break-word; } }
h1 { font-size: 22px; margin: 0 0 4px; } h2 { font-size: 16px; margin: 28px 0 8px; }
p { margin: 4px 0; color: var(--soft); }
.cards { display: flex; flex-wrap: wrap; gap: 10px; margin-top: 14px; }
.card { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 8px 14px; }
.card b { display: block; font-size: 18px; } .card span { color: var(--soft); font-size: 12px; }
svg { box-sizing: border-box; width: 100%; display: block; background: var(--panel); border: 1px solid var(--line); border-radius: 8px; }
svg text { font: 11px system-ui, sans-serif; fill: var(--ink); pointer-events: none; }
svg text.on { fill: #14181f; }
.chart { overflow-x: auto; } .chart svg { min-width: 760px; }
.scroll { max-height: 480px; overflow: auto; } .scroll.all { max-height: none; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; vertical-align: top; padding: 3px 8px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th.left, td.left { text-align: left; }
td.left { white-space: normal; word-break: normal; overflow-wrap: normal; } td.long { min-width: 12em; } td .part { white-space: nowrap; }
th { cursor: pointer; color: var(--soft); font-weight: 600; position: sticky; top: 0; background: var(--back); }
.advice th, .advice td { background: var(--panel); } .advice .scroll { margin-top: 6px; }
.advice { border-left: 4px solid #d97706; background: var(--panel); padding: 8px 12px; margin: 6px 0; border-radius: 4px; }
code { background: var(--panel); padding: 1px 4px; border-radius: 3px; }
.legend span { display: inline-block; margin-right: 14px; color: var(--soft); }
.legend i { display: inline-block; width: 10px; height: 10px; margin-right: 5px; border-radius: 2px; }
#hint { min-height: 20px; color: var(--soft); }
)page";

constexpr std::string_view kHelpers = R"page(
const byId = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
// Numbers with three digits; in tables, small ones as a bound. Shares in percent.
const number = (v, digits = 3) => v === 0 ? "0" :
    Math.abs(v) >= 1000                   ? Math.round(v).toLocaleString("en") :
                                            Number(v.toPrecision(digits)).toString();
const bytes = v => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let u = 0;
  while (v >= 1024 && u < 4) {
    v /= 1024;
    ++u;
  }
  return number(v) + " " + units[u];
};
const amount = v => v !== 0 && Math.abs(v) < 0.001 ? "< 0.001" : number(v);
const share = v => v === 0 ? "0 %" : Math.abs(v) < 0.01 ? "< 0.01 %" : v.toFixed(2) + " %";
function element(parent, name, attributes, text) {
  const made = parent.namespaceURI === SVG || name === "svg" ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  parent.appendChild(made);
  return made;
}
function clear(node) {
  while (node.firstChild) node.removeChild(node.firstChild);
}
// A cell of text. Up to 24 characters stay on one line; more wrap at spaces, and in names after "." and "/", except before a digit; never
// inside a word.
function fillText(cell, text) {
  if (String(text).length <= 24) {
    element(cell, "span", {class: "part"}, text);
    return;
  }
  for (const part of String(text).match(/(?:[^./ ]|[./](?=[\d./ ]|$))+[./]?|[./]| +/g) || []) {
    if (part.trim() === "") {
      cell.appendChild(document.createTextNode(part));
      continue;
    }
    element(cell, "span", {class: "part"}, part);
    element(cell, "wbr", {});
  }
}
// Columns are [heading, value of a row, optional text of a value]. A click on a heading sorts by the values.
function table(id, columns, rows) {
  const whole = typeof id === "string" ? byId(id) : id, head = element(element(whole, "thead", {}), "tr", {}),
        body = element(whole, "tbody", {});
  const texts = columns.map(([, get]) => rows.some(row => typeof get(row) === "string" && get(row) !== ""));
  const kinds =
      columns.map(([, get], i) => !texts[i] ? {} : {class: rows.some(row => String(get(row)).length > 24) ? "left long" : "left"});
  const fill = sorted => {
    clear(body);
    for (const row of sorted) {
      const line = element(body, "tr", {});
      columns.forEach(([, get, show], i) => {
        const value = get(row), cell = element(line, "td", kinds[i]);
        if (texts[i])
          fillText(cell, show ? show(value) : value);
        else
          cell.textContent = show ? show(value) : value;
      });
    }
  };
  columns.forEach(([name, get], i) => {
    let down = true;
    const cell = element(head, "th", texts[i] ? {class: "left"} : {}, name);
    cell.addEventListener("click", () => {
      fill([...rows].sort((a, b) => {
        const u = get(a), v = get(b);
        return (u < v ? 1 : u > v ? -1 : 0) * (down ? 1 : -1);
      }));
      down = !down;
    });
  });
  fill(rows);
}
)page";

}  // namespace

std::string html_page(const HtmlPage& page) {
  // "<" occurs only in JSON strings, where the escape is equivalent; so no name can end the script element.
  std::string data;
  for (char c : page.json) data += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return cat(kHead, "</style><title>", page.title, "</title></head><body>\n", page.body, "<script>\n\"use strict\";\nconst data = ", data,
             ";", kHelpers, page.script, "</script></body></html>\n");
}

}  // namespace galley
