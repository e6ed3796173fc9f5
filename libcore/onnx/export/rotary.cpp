// Exports rotary positions: the table of cosines and sines, and the rotation of pairs.

#include "libcore/ops/rotary.h"

#include <cmath>

#include "libcore/onnx/export/graph_writer.h"

namespace galley::onnx_export {
namespace {

/// The table of all positions is a constant: angles that a run time computed in float would have an error of 3e-4 at position 5000.
Names rotary_table_node(const NodeWriter& n) {
  const auto& attrs = n.attrs<RotaryTableAttrs>();
  GraphWriter& w = n.to;
  if (n.has(1)) w.refuse("its frequencies depend on the number of tokens");
  const int64_t rows = n.has(0) ? w.positions() : n.result().shape[0], pairs = std::ssize(attrs.frequencies);
  if (!n.has(0) && w.dims(n.node.outputs[0])[0].open()) w.refuse("its table depends on the number of tokens");
  Tensor table(DType::kF32, {rows, 2 * pairs});
  auto* cells = table.data_as<float>();
  for (int64_t p = 0; p < rows; ++p) {
    for (int64_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(p) * attrs.frequencies[static_cast<size_t>(i)];
      cells[p * 2 * pairs + i] = static_cast<float>(attrs.factor * std::cos(angle));
      cells[p * 2 * pairs + pairs + i] = static_cast<float>(attrs.factor * std::sin(angle));
    }
  }
  if (!n.has(0)) return {w.constant(table)};
  const std::string position = n.type(0).shape.rank() == 1 ? n.in(0) : w.add("Reshape", {n.in(0), w.ints({-1})});
  return {w.add("Gather", {w.constant(table), position}, {attribute("axis", int64_t{0})})};
}

/// (a, b) -> (a cos - b sin, a sin + b cos) for each pair.
Names rotary_node(const NodeWriter& n) {
  const auto& attrs = n.attrs<RotaryAttrs>();
  GraphWriter& w = n.to;
  if (attrs.layout != RotaryLayout::kHalves) w.refuse("its pairs are interleaved");
  if (attrs.inverse) w.refuse("it is a gradient");
  const std::vector<Dim> whole = w.dims(n.node.inputs[0]);
  const int64_t heads = whole[2].size, width = whole[3].size, dims = n.type(1).shape[1], half = dims / 2;
  const auto slice = [&](const std::string& x, int64_t axis, int64_t begin, int64_t end) {
    return w.add("Slice", {x, w.ints({begin}), w.ints({end}), w.ints({axis})});
  };
  // The row of the table of each token, [T] or [N,T]; then of each head: [T,1,half] or [N,T,1,half].
  std::string rows =
      w.add("Range", {w.scalar(0, DType::kI64), w.add("Squeeze", {w.size(whole[1]), w.ints({0})}), w.scalar(1, DType::kI64)});
  if (n.has(2)) rows = w.add("Add", {w.add("Unsqueeze", {n.in(2), w.ints({1})}), rows});
  const std::string angles = w.add("Unsqueeze", {w.add("Gather", {n.in(1), rows}, {attribute("axis", int64_t{0})}), w.ints({-2})});
  const std::string cosine = slice(angles, -1, 0, half), sine = slice(angles, -1, half, dims);
  const int64_t rotated = attrs.heads == 0 ? heads : attrs.heads;
  const std::string x = rotated == heads ? n.in(0) : slice(n.in(0), 2, 0, rotated);
  const std::string a = slice(x, 3, 0, half), b = slice(x, 3, half, dims);
  const auto times = [&](const std::string& p, const std::string& q) { return w.add("Mul", {p, q}); };
  Names parts{w.add("Sub", {times(a, cosine), times(b, sine)}), w.add("Add", {times(a, sine), times(b, cosine)})};
  if (dims < width) parts.push_back(slice(x, 3, dims, width));
  const std::string turned = w.add("Concat", parts, {attribute("axis", int64_t{3})});
  if (rotated == heads) return {turned};
  return {w.add("Concat", {turned, slice(n.in(0), 2, rotated, heads)}, {attribute("axis", int64_t{2})})};
}

}  // namespace

WriteTable rotary_rows() { return {{"rotary", rotary_node}, {"rotary_table", rotary_table_node}}; }

}  // namespace galley::onnx_export
