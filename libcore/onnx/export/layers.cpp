// Exports layers: convolutions and matrix products, norms, pools, embeddings, recurrent layers.

#include <algorithm>
#include <numeric>

#include "libcore/onnx/export/functions.h"
#include "libcore/onnx/export/graph_writer.h"
#include "libcore/ops/conv.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/pool.h"
#include "libcore/ops/recurrent.h"
#include "libcore/ops/rms_norm.h"

namespace galley::onnx_export {
namespace {

std::vector<int64_t> both(const std::vector<int64_t>& sizes) {
  const auto [rows, columns] = pair(sizes);
  return {rows, columns};
}
std::vector<int64_t> pads(const std::vector<int64_t>& padding) {
  const auto [rows, columns] = pair(padding);
  return {rows, columns, rows, columns};
}
/// Padding of all axes: the beginnings, then the ends.
std::vector<int64_t> both_sides(std::vector<int64_t> padding) {
  const std::vector<int64_t> ends = padding;
  padding.insert(padding.end(), ends.begin(), ends.end());
  return padding;
}
std::string optional(const NodeWriter& n, size_t i) { return n.has(i) ? n.in(i) : std::string(); }

Names conv_node(const NodeWriter& n) {
  const auto& attrs = n.attrs<Conv2dAttrs>();
  const Shape& weight = n.type(1).shape;
  const int axes = weight.rank() - 2;
  std::string y =
      n.to.add("Conv", {n.in(0), n.in(1), optional(n, 2)},
               {attribute("kernel_shape", std::vector<int64_t>(weight.begin() + 2, weight.end())),
                attribute("strides", per_axis(attrs.stride, axes)), attribute("pads", both_sides(per_axis(attrs.padding, axes))),
                attribute("dilations", per_axis(attrs.dilation, axes)), attribute("group", attrs.groups)});
  if (n.has(3)) y = n.to.add("Add", {y, n.in(3)});
  return {activated(n.to, y, attrs.activation)};
}

std::string transposed(GraphWriter& w, const std::string& x, int rank) {
  std::vector<int64_t> order(static_cast<size_t>(rank));
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[order.size() - 1], order[order.size() - 2]);
  return w.transpose(x, order);
}

/// Gemm needs a matrix; other inputs become a MatMul with the transposed weight.
Names linear_node(const NodeWriter& n) {
  const Activation activation = n.attrs<LinearAttrs>().activation;
  if (n.type(0).shape.rank() == 2)
    return {activated(n.to, n.to.add("Gemm", {n.in(0), n.in(1), optional(n, 2)}, {attribute("transB", int64_t{1})}), activation)};
  std::string y = n.to.add("MatMul", {n.in(0), transposed(n.to, n.in(1), 2)});
  if (n.has(2)) y = n.to.add("Add", {y, n.in(2)});
  return {activated(n.to, y, activation)};
}

Names matmul_node(const NodeWriter& n) {
  const auto& attrs = n.attrs<MatmulAttrs>();
  const std::string a = attrs.transpose_a ? transposed(n.to, n.in(0), n.type(0).shape.rank()) : n.in(0);
  const std::string b = attrs.transpose_b ? transposed(n.to, n.in(1), n.type(1).shape.rank()) : n.in(1);
  return {n.to.add("MatMul", {a, b})};
}

Names embedding_node(const NodeWriter& n) { return {n.to.add("Gather", {n.in(0), n.in(1)}, {attribute("axis", int64_t{0})})}; }

// ---- norms

Names batch_norm_node(const NodeWriter& n) {
  const auto& attrs = n.attrs<BatchNormInferenceAttrs>();
  const int64_t channels = n.type(0).shape[1];
  const std::string gamma = n.has(1) ? n.in(1) : n.to.uniform(channels, 1), beta = n.has(2) ? n.in(2) : n.to.uniform(channels, 0);
  return {activated(n.to, n.to.add("BatchNormalization", {n.in(0), gamma, beta, n.in(3), n.in(4)}, {attribute("epsilon", attrs.eps)}),
                    attrs.activation)};
}

Names layer_norm_node(const NodeWriter& n) {
  const auto& attrs = n.attrs<LayerNormAttrs>();
  std::string gamma = optional(n, 1);
  if (gamma.empty()) {
    const Shape& x = n.type(0).shape;
    std::vector<Dim> normalized;
    for (int axis = x.rank() - static_cast<int>(attrs.dims); axis < x.rank(); ++axis) normalized.push_back(Dim(x[axis]));
    Tensor one(DType::kF32, {1});
    one.from_doubles({1});
    gamma = n.to.add("ConstantOfShape", {n.to.shape(normalized)}, {attribute("value", one)});
  }
  return {
      n.to.add("LayerNormalization", {n.in(0), gamma, optional(n, 2)}, {attribute("axis", -attrs.dims), attribute("epsilon", attrs.eps)}),
      "", ""};
}

/// RMSNormalization needs opset 23.
Names rms_norm_node(const NodeWriter& n) {
  const auto& attrs = n.attrs<RmsNormAttrs>();
  GraphWriter& w = n.to;
  const DType dtype = n.type(0).dtype;
  const std::string mean = w.add("ReduceMean", {w.add("Mul", {n.in(0), n.in(0)})},
                                 {attribute("axes", std::vector<int64_t>{-1}), attribute("keepdims", int64_t{1})});
  const std::string root = w.add("Sqrt", {w.add("Add", {mean, w.scalar(attrs.eps, dtype)})});
  const std::string y = w.add("Div", {n.in(0), root});
  if (!n.has(1)) return {y, ""};
  const std::string weight = attrs.offset == 0 ? n.in(1) : w.add("Add", {n.in(1), w.scalar(attrs.offset, dtype)});
  return {w.add("Mul", {y, weight}), ""};
}

/// Groups become the channels of InstanceNormalization; GroupNormalization needs opset 18.
Names group_norm_node(const NodeWriter& n) {
  const auto& attrs = n.attrs<GroupNormAttrs>();
  GraphWriter& w = n.to;
  const std::vector<Dim> whole = w.dims(n.node.inputs[0]);
  const std::string grouped = w.add("Reshape", {n.in(0), w.ints({0, attrs.groups, -1})});
  std::string y =
      w.add("InstanceNormalization", {grouped, w.uniform(attrs.groups, 1), w.uniform(attrs.groups, 0)}, {attribute("epsilon", attrs.eps)});
  y = w.reshape(y, {whole[0], Dim(attrs.groups)}, whole);
  std::vector<int64_t> per_channel(whole.size() - 1, 1);
  per_channel[0] = whole[1].size;
  if (n.has(1)) y = w.add("Mul", {y, w.add("Reshape", {n.in(1), w.ints(per_channel)})});
  if (n.has(2)) y = w.add("Add", {y, w.add("Reshape", {n.in(2), w.ints(per_channel)})});
  return {y, "", ""};
}

// ---- pools

struct Window {
  std::vector<int64_t> kernel, stride, padding, dilation;
  bool up = false;  // ceil_mode
};
/// With ceil_mode, ONNX rounds the output size up. PyTorch does too unless the last window would begin in the padding at the end, where it
/// rounds down.
Window window_of(const NodeWriter& n, const std::vector<int64_t>& kernel, const std::vector<int64_t>& stride,
                 const std::vector<int64_t>& padding, const std::vector<int64_t>& dilation) {
  Window w{both(kernel), both(stride.empty() ? kernel : stride), both(padding), both(dilation)};
  bool down = false;
  for (size_t i : {0u, 1u}) {
    const int axis = 2 + static_cast<int>(i);
    const int64_t rest = n.type(0).shape[axis] + 2 * w.padding[i] - w.dilation[i] * (w.kernel[i] - 1) - 1;
    const bool up = n.result().shape[axis] != rest / w.stride[i] + 1;
    w.up = w.up || up;
    down = down || (!up && rest % w.stride[i] != 0);
  }
  if (w.up && down) n.to.refuse("with ceil_mode, the output size is rounded up along one axis and down along the other");
  return w;
}

Names max_pool_node(const NodeWriter& n) {
  const auto& attrs = n.attrs<MaxPool2dAttrs>();
  const Window w = window_of(n, attrs.kernel_size, attrs.stride, attrs.padding, attrs.dilation);
  return {n.to.add("MaxPool", {n.in(0)},
                   {attribute("kernel_shape", w.kernel), attribute("strides", w.stride), attribute("pads", pads(attrs.padding)),
                    attribute("dilations", w.dilation), attribute("ceil_mode", int64_t{w.up})}),
          ""};
}

Names avg_pool_node(const NodeWriter& n) {
  const auto& attrs = n.attrs<AvgPool2dAttrs>();
  const Window w = window_of(n, attrs.kernel_size, attrs.stride, attrs.padding, {1});
  const bool padded = w.padding[0] + w.padding[1] > 0;
  std::string x = n.in(0);
  std::vector<int64_t> padding = pads(attrs.padding);
  int64_t counts = attrs.count_include_pad && padded;
  if (counts && w.up) {
    // Run times disagree on how a window over the edge counts padding, so the padding becomes part of the input.
    x = n.to.add("Pad", {x, n.to.ints({0, 0, w.padding[0], w.padding[1], 0, 0, w.padding[0], w.padding[1]})});
    padding = {0, 0, 0, 0};
    counts = 0;
  }
  return {n.to.add("AveragePool", {x},
                   {attribute("kernel_shape", w.kernel), attribute("strides", w.stride), attribute("pads", padding),
                    attribute("ceil_mode", int64_t{w.up}), attribute("count_include_pad", counts)})};
}

/// Averaging as a matrix product: row o of the [out,in] matrix has 1 / count in the columns of window o.
Tensor means(int64_t in, int64_t out, bool transpose) {
  Tensor matrix(DType::kF32, transpose ? Shape{in, out} : Shape{out, in});
  float* cells = matrix.data_as<float>();
  for (int64_t o = 0; o < out; ++o) {
    const PoolRange range = adaptive_range(o, in, out);
    for (int64_t i = range.begin; i < range.end; ++i)
      cells[transpose ? i * out + o : o * in + i] = 1.0f / static_cast<float>(range.end - range.begin);
  }
  return matrix;
}

Names adaptive_avg_pool_node(const NodeWriter& n) {
  const Shape &x = n.type(0).shape, &y = n.result().shape;
  if (y[2] == 1 && y[3] == 1) return {n.to.add("GlobalAveragePool", {n.in(0)})};
  if (y == x) return {n.to.add("Identity", {n.in(0)})};
  if (x[2] % y[2] == 0 && x[3] % y[3] == 0) {
    const std::vector<int64_t> kernel{x[2] / y[2], x[3] / y[3]};
    return {n.to.add("AveragePool", {n.in(0)}, {attribute("kernel_shape", kernel), attribute("strides", kernel)})};
  }
  // Windows of different sizes, or more outputs than inputs.
  std::string result = n.in(0);
  if (y[3] != x[3]) result = n.to.add("MatMul", {result, n.to.constant(means(x[3], y[3], true))});
  if (y[2] != x[2]) result = n.to.add("MatMul", {n.to.constant(means(x[2], y[2], false)), result});
  return {result};
}

Names adaptive_max_pool_node(const NodeWriter& n) {
  const Shape &x = n.type(0).shape, &y = n.result().shape;
  if (y[2] == 1 && y[3] == 1) return {n.to.add("GlobalMaxPool", {n.in(0)}), ""};
  if (x[2] % y[2] != 0 || x[3] % y[3] != 0)
    n.to.refuse(cat("its windows have different sizes (", x[2], "x", x[3], " to ", y[2], "x", y[3],
                    "); the input size must be a multiple of the output size"));
  const std::vector<int64_t> kernel{x[2] / y[2], x[3] / y[3]};
  return {n.to.add("MaxPool", {n.in(0)}, {attribute("kernel_shape", kernel), attribute("strides", kernel)}), ""};
}

// ---- recurrent layers

/// Reorders the gates of a weight [G H,...]; returns it as [1,G H,...].
std::string gates(GraphWriter& w, const std::string& weight, int64_t hidden, const std::vector<int64_t>& order) {
  Names parts;
  for (const int64_t gate : order)
    parts.push_back(w.add("Slice", {weight, w.ints({gate * hidden}), w.ints({(gate + 1) * hidden}), w.ints({0})}));
  const std::string all = parts.size() == 1 ? weight : w.add("Concat", parts, {attribute("axis", int64_t{0})});
  return w.add("Unsqueeze", {all, w.ints({0})});
}

/// Inputs: x, weights, biases, states. ONNX puts time first and has an axis for directions.
Names recurrent_node(const NodeWriter& n, std::string_view op, const std::vector<int64_t>& order, bool reverse, Attributes attributes) {
  GraphWriter& w = n.to;
  const int64_t hidden = n.type(2).shape[1];
  const bool cell = op == "LSTM";
  const std::string x = w.add("Transpose", {n.in(0)}, {attribute("perm", std::vector<int64_t>{1, 0, 2})});
  const std::string ih = gates(w, n.in(1), hidden, order), hh = gates(w, n.in(2), hidden, order);
  std::string bias;
  if (n.has(3) || n.has(4)) {
    const auto side = [&](size_t i) {
      return n.has(i) ? gates(w, n.in(i), hidden, order)
                      : w.add("Unsqueeze", {w.uniform(static_cast<int64_t>(order.size()) * hidden, 0), w.ints({0})});
    };
    bias = w.add("Concat", {side(3), side(4)}, {attribute("axis", int64_t{1})});
  }
  const auto state = [&](size_t i) { return n.has(i) ? w.add("Unsqueeze", {n.in(i), w.ints({0})}) : std::string(); };
  attributes.push_back(attribute("hidden_size", hidden));
  attributes.push_back(attribute("direction", reverse ? "reverse" : "forward"));
  Names inputs{x, ih, hh, bias, "", state(5)};
  if (cell) inputs.push_back(state(6));
  const Names made = w.add_many(op, inputs, std::move(attributes), cell ? 3 : 2);
  Names results{w.add("Transpose", {w.add("Squeeze", {made[0], w.ints({1})})}, {attribute("perm", std::vector<int64_t>{1, 0, 2})})};
  for (size_t i = 1; i < made.size(); ++i) results.push_back(w.add("Squeeze", {made[i], w.ints({0})}));
  results.resize(n.node.outputs.size());
  return results;
}

Names lstm_node(const NodeWriter& n) {
  return recurrent_node(n, "LSTM", {0, 3, 1, 2}, n.attrs<RecurrentAttrs>().reverse, {});
}  // i f g o -> i o f c
Names gru_node(const NodeWriter& n) {
  return recurrent_node(n, "GRU", {1, 0, 2}, n.attrs<RecurrentAttrs>().reverse, {attribute("linear_before_reset", int64_t{1})});
}  // r z n -> z r h
Names rnn_node(const NodeWriter& n) {
  OnnxAttribute functions{.name = "activations", .kind = OnnxAttributeKind::kStrings};
  functions.strings = {n.attrs<RnnAttrs>().nonlinearity == Nonlinearity::kTanh ? "Tanh" : "Relu"};
  return recurrent_node(n, "RNN", {0}, n.attrs<RnnAttrs>().reverse, {functions});
}

}  // namespace

WriteTable layer_rows() {
  return {{"conv2d", conv_node},
          {"conv2d_rows", conv_node},  // all images: no later node reads those from the count on
          {"conv3d", conv_node},
          {"linear", linear_node},
          {"matmul", matmul_node},
          {"embedding", embedding_node},
          {"batch_norm_inference", batch_norm_node},
          {"layer_norm", layer_norm_node},
          {"rms_norm", rms_norm_node},
          {"group_norm", group_norm_node},
          {"max_pool2d", max_pool_node},
          {"avg_pool2d", avg_pool_node},
          {"adaptive_avg_pool2d", adaptive_avg_pool_node},
          {"adaptive_max_pool2d", adaptive_max_pool_node},
          {"lstm", lstm_node},
          {"gru", gru_node},
          {"rnn", rnn_node}};
}

}  // namespace galley::onnx_export
