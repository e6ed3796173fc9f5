// Exports operators that move data, and reductions.

#include <bit>
#include <limits>
#include <numeric>

#include "libcore/onnx/export/graph_writer.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/index.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/resize.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/shuffle.h"
#include "libcore/ops/softmax.h"

namespace galley::onnx_export {
namespace {

Names concat_node(const NodeWriter& n) { return {n.to.add("Concat", n.inputs, {attribute("axis", n.attrs<ConcatAttrs>().axis)})}; }

Names slice_node(const NodeWriter& n) {
  const auto& attrs = n.attrs<SliceAttrs>();
  const auto bound = [&](int64_t SliceAttrs::* field) {
    return n.to.size(n.to.dim([field](const Node& node) { return node.attrs<SliceAttrs>().*field; }));
  };
  return {
      n.to.add("Slice", {n.in(0), bound(&SliceAttrs::start), bound(&SliceAttrs::end), n.to.ints({attrs.axis}), n.to.ints({attrs.step})})};
}

/// The indices of one axis, in the shape of the result.
Names iota_node(const NodeWriter& n) {
  const auto& attrs = n.attrs<IotaAttrs>();
  const std::vector<Dim> whole = n.to.dims(n.node.outputs[0]);
  const auto axis = static_cast<size_t>(attrs.axis < 0 ? attrs.axis + std::ssize(whole) : attrs.axis);
  const std::string count = n.to.add("Squeeze", {n.to.size(whole[axis]), n.to.ints({0})});
  std::string index = n.to.add("Range", {n.to.scalar(0, DType::kI64), count, n.to.scalar(1, DType::kI64)});
  if (attrs.dtype != DType::kI64) index = n.to.add("Cast", {index}, {attribute("to", int64_t{onnx_type(attrs.dtype)})});
  if (whole.size() == 1) return {index};
  std::vector<int64_t> others;
  for (size_t i = 0; i < whole.size(); ++i) {
    if (i != axis) others.push_back(static_cast<int64_t>(i));
  }
  return {n.to.add("Expand", {n.to.add("Unsqueeze", {index, n.to.ints(others)}), n.to.shape(whole)})};
}

Names gather_node(const NodeWriter& n) {
  return {n.to.add("GatherElements", {n.in(0), n.in(1)}, {attribute("axis", n.attrs<GatherAttrs>().axis)})};
}

Names pad_node(const NodeWriter& n) {
  const auto& attrs = n.attrs<PadAttrs>();
  std::vector<int64_t> pads;  // all begins, then all ends
  for (size_t side : {0u, 1u}) {
    for (size_t i = side; i < attrs.padding.size(); i += 2) pads.push_back(attrs.padding[i]);
  }
  return {n.to.add("Pad", {n.in(0), n.to.ints(pads), n.to.scalar(attrs.value, n.type(0).dtype)})};
}

Names permute_node(const NodeWriter& n) { return {n.to.transpose(n.in(0), n.attrs<PermuteAttrs>().order)}; }
Names reshape_node(const NodeWriter& n) { return {n.to.reshape(n.in(0), n.to.dims(n.node.inputs[0]), n.to.dims(n.node.outputs[0]))}; }
Names channel_shuffle_node(const NodeWriter& n) {
  const std::vector<Dim> dims = n.to.dims(n.node.inputs[0]);
  const int64_t groups = n.attrs<ChannelShuffleAttrs>().groups, part = dims[1].size / groups;
  std::vector<Dim> split = dims, shuffled = dims;  // [N, groups, part, ...] and [N, part, groups, ...]
  split[1] = Dim(groups);
  split.insert(split.begin() + 2, Dim(part));
  shuffled[1] = Dim(part);
  shuffled.insert(shuffled.begin() + 2, Dim(groups));
  std::vector<int64_t> order(split.size());
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[1], order[2]);
  const std::string parts = n.to.reshape(n.in(0), dims, split);
  return {n.to.reshape(n.to.add("Transpose", {parts}, {attribute("perm", order)}), shuffled, dims)};
}
Names broadcast_node(const NodeWriter& n) { return {n.to.add("Expand", {n.in(0), n.to.shape(n.to.dims(n.node.outputs[0]))})}; }
Names pass_through(const NodeWriter& n) { return {n.in(0)}; }

Names full_node(const NodeWriter& n) {
  const auto& attrs = n.attrs<FullAttrs>();
  Tensor value(attrs.dtype, {1});
  value.from_doubles({attrs.value});
  // A value may be an open size, as the number of tokens.
  const bool whole = attrs.dtype == DType::kI64;
  const Dim size = n.to.dim([whole](const Node& node) {
    const double given = node.attrs<FullAttrs>().value;
    return whole ? static_cast<int64_t>(given) : std::bit_cast<int64_t>(given);
  });
  if (size.open()) {
    if (!whole) n.to.refuse("its value depends on the sizes of inputs");
    const std::string list = n.to.size(size);
    if (attrs.shape.empty()) return {n.to.add("Squeeze", {list, n.to.ints({0})})};
    return {n.to.add("Expand", {list, n.to.shape(n.to.dims(n.node.outputs[0]))})};
  }
  if (attrs.shape.empty()) return {n.to.scalar(attrs.value, attrs.dtype)};
  return {n.to.add("ConstantOfShape", {n.to.shape(n.to.dims(n.node.outputs[0]))}, {attribute("value", std::move(value))})};
}

Names resize_node(const NodeWriter& n) {
  const auto& attrs = n.attrs<ResizeAttrs>();
  const bool nearest = attrs.mode == ResizeMode::kNearest;
  Attributes attributes{attribute("mode", nearest ? "nearest" : "linear"),
                        attribute("coordinate_transformation_mode", nearest               ? "asymmetric"
                                                                    : attrs.align_corners ? "align_corners"
                                                                                          : "half_pixel")};
  if (nearest) attributes.push_back(attribute("nearest_mode", "floor"));
  return {n.to.add("Resize", {n.in(0), "", "", n.to.shape(n.to.dims(n.node.outputs[0]))}, std::move(attributes))};
}

// ---- reductions

Attributes keepdims(bool keep) { return {attribute("keepdims", int64_t{keep})}; }

/// Before opset 18, axes are an attribute, except in ReduceSum.
template <const char* kOp>
Names reduce_node(const NodeWriter& n) {
  const auto& attrs = n.attrs<ReduceAttrs>();
  Attributes attributes = keepdims(attrs.keepdim);
  if (!attrs.axes.empty()) attributes.push_back(attribute("axes", attrs.axes));
  return {n.to.add(kOp, {n.in(0)}, std::move(attributes))};
}
Names sum_node(const NodeWriter& n) {
  const auto& attrs = n.attrs<ReduceAttrs>();
  return {n.to.add("ReduceSum", {n.in(0), attrs.axes.empty() ? std::string() : n.to.ints(attrs.axes)}, keepdims(attrs.keepdim))};
}
Names argmax_node(const NodeWriter& n) {
  const auto& attrs = n.attrs<ArgmaxAttrs>();
  Attributes attributes = keepdims(attrs.keepdim);
  attributes.push_back(attribute("axis", attrs.axis));
  return {n.to.add("ArgMax", {n.in(0)}, std::move(attributes))};
}
Names topk_node(const NodeWriter& n) {
  const auto& attrs = n.attrs<TopkAttrs>();
  return n.to.add_many("TopK", {n.in(0), n.to.ints({attrs.k})}, {attribute("axis", attrs.axis)}, 2);
}
template <const char* kOp>
Names softmax_node(const NodeWriter& n) {
  return {n.to.add(kOp, {n.in(0)}, {attribute("axis", n.attrs<SoftmaxAttrs>().axis)})};
}

constexpr char kMean[] = "ReduceMean", kLargest[] = "ReduceMax", kSmallest[] = "ReduceMin", kSoftmax[] = "Softmax",
               kLogSoftmax[] = "LogSoftmax";

}  // namespace

WriteTable shape_rows() {
  return {{"concat", concat_node},
          {"slice", slice_node},
          {"pad", pad_node},
          {"permute", permute_node},
          {"iota", iota_node},
          {"gather", gather_node},
          {"reshape", reshape_node},
          {"channel_shuffle", channel_shuffle_node},
          {"broadcast_to", broadcast_node},
          {"full", full_node},
          {"reorder", pass_through},
          {"resize", resize_node},
          {"mean", reduce_node<kMean>},
          {"amax", reduce_node<kLargest>},
          {"amin", reduce_node<kSmallest>},
          {"sum", sum_node},
          {"argmax", argmax_node},
          {"topk", topk_node},
          {"softmax", softmax_node<kSoftmax>},
          {"log_softmax", softmax_node<kLogSoftmax>}};
}

}  // namespace galley::onnx_export
