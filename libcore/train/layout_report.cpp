// Writes the result of check_layouts as JSON, tables and text.
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/units.h"
#include "libcore/train/layout_check.h"

namespace galley {
namespace {

using Json = nlohmann::ordered_json;

std::string sizes_text(const Shape& sizes) {
  std::string text;
  for (const int64_t size : sizes) text += (text.empty() ? "" : ",") + std::to_string(size);
  return "[" + text + "]";
}

std::vector<int64_t> list_of(const Shape& shape) { return {shape.begin(), shape.end()}; }

Json cost_json(const LayoutCost& cost, bool measured) {
  Json row{{"what", cost.what},
           {"memory_format", cost.format},
           {"reorders", cost.reorders},
           {"interior_reorders", cost.interior},
           {"planned_bytes", cost.planned_bytes}};
  if (measured)
    row.update({{"median_ms", cost.time.median * 1e3}, {"runs", cost.time.count}, {"speed", cost.speed}, {"reorder_us", cost.reorder_us}});
  return row;
}

Json loss_json(const LayoutLoss& loss) {
  return {{"what", loss.what},
          {"memory_format", loss.memory_format},
          {"module", loss.module},
          {"type", loss.op},
          {"interior", loss.interior},
          {"reason", loss.reason},
          {"shape", list_of(loss.shape)},
          {"from", loss.from},
          {"to", loss.to},
          {"from_strides", list_of(loss.from_strides)},
          {"to_strides", list_of(loss.to_strides)},
          {"bytes", loss.bytes},
          {"us", loss.us}};
}

}  // namespace

Json layout_json(const LayoutCheck& check) {
  Json json{{"formats", Json::array()}, {"losses", Json::array()}, {"values", Json::array()}, {"convolutions", Json::array()}};
  for (const LayoutCost& cost : check.costs) json["formats"].push_back(cost_json(cost, check.measured));
  for (const LayoutLoss& loss : check.losses) json["losses"].push_back(loss_json(loss));
  for (const LayoutActivation& activation : check.activations) {
    json["values"].push_back({{"what", activation.what},
                              {"module", activation.module},
                              {"type", activation.op},
                              {"phase", activation.phase},
                              {"shape", list_of(activation.shape)},
                              {"memory_format", activation.format}});
  }
  for (const ContiguousConvolution& found : check.convolutions) {
    json["convolutions"].push_back({{"what", found.what},
                                    {"module", found.module},
                                    {"type", found.op},
                                    {"contiguous_us", found.contiguous_us},
                                    {"channels_last_us", found.channels_last_us}});
  }
  json["interior_reorders"] = check.interior();
  json["edge_reorders"] = check.edge();
  if (check.measured) json["best"] = check.best;
  return json;
}

Table layout_cost_table(const LayoutCheck& check) {
  Table table{{"what", "memory_format", "reorders", "interior", "planned"}, {}};
  if (check.measured) table.headings.insert(table.headings.end(), {"median_ms", "+-%", "against contiguous", "reorder_us"});
  for (const LayoutCost& cost : check.costs) {
    std::vector<std::string> cells{cost.what, cost.format, cat(cost.reorders), cat(cost.interior),
                                   human_bytes(static_cast<double>(cost.planned_bytes))};
    if (check.measured) {
      const std::string spread = cost.time.count < 2 ? "?" : fixed(100 * cost.time.relative_error(), 1);  // one run has no spread
      cells.insert(cells.end(), {human_number(cost.time.median * 1e3), spread, fixed(cost.speed, 2) + "x", human_number(cost.reorder_us)});
    }
    table.rows.push_back(std::move(cells));
  }
  return table;
}

Table layout_loss_table(const LayoutCheck& check) {
  Table table{{"what", "module", "operator", "where", "why", "shape", "from", "to", "strides", "new strides", "bytes", "us"}, {}};
  for (const LayoutLoss& loss : check.losses) {
    if (loss.memory_format != "auto") continue;
    table.rows.push_back({loss.what, loss.module, loss.op, loss.interior ? "interior" : "edge", loss.reason, sizes_text(loss.shape),
                          loss.from, loss.to, sizes_text(loss.from_strides), sizes_text(loss.to_strides), cat(loss.bytes),
                          check.measured ? human_number(loss.us) : ""});
  }
  return table;
}

Table layout_activation_table(const LayoutCheck& check) {
  Table table{{"what", "module", "operator", "phase", "shape", "memory_format"}, {}};
  for (const LayoutActivation& activation : check.activations) {
    table.rows.push_back(
        {activation.what, activation.module, activation.op, activation.phase, sizes_text(activation.shape), activation.format});
  }
  return table;
}

Table layout_convolution_table(const LayoutCheck& check) {
  Table table{{"what", "module", "operator", "contiguous_us", "channels_last_us"}, {}};
  for (const ContiguousConvolution& found : check.convolutions) {
    table.rows.push_back({found.what, found.module, found.op, human_number(found.contiguous_us), human_number(found.channels_last_us)});
  }
  return table;
}

std::string layout_verdict(const LayoutCheck& check) {
  const int64_t interior = check.interior(), edge = check.edge();
  if (interior > 0)
    return cat("channels_last is lost inside: ", interior, interior == 1 ? " activation is" : " activations are",
               " reordered between activations of rank 4 or 5 (interior)\n");
  if (check.activations.empty()) return "the model has no activations of rank 4 or 5, which memory_format is about\n";
  std::string text = cat("channels_last is kept from input to output (", check.activations.size(),
                         check.activations.size() == 1 ? " activation" : " activations", "): no activation is reordered inside\n");
  if (edge > 0)
    text +=
        cat(edge, edge == 1 ? " reorder is" : " reorders are", " at the edge, where features are flattened or their gradient returns\n");
  return text;
}

}  // namespace galley
