// Exports the operators of detectors: non-maximum suppression, features of regions, chosen rows.
//
// NonMaxSuppression gives the chosen candidates of each class, as many as there are. The files mark them among the scores, and TopK takes
// the best of all classes, so that results have fixed sizes and a count, as in the graph. RoiAlign reads one level of a pyramid: each level
// gets the regions that read it, and none beyond the count.

#include "libcore/ops/detection.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "libcore/onnx/export/functions.h"
#include "libcore/onnx/export/graph_writer.h"
#include "libcore/ops/conv.h"
#include "libcore/ops/index.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/nms.h"
#include "libcore/ops/roi_align.h"

namespace galley::onnx_export {
namespace {

constexpr double kLowest = -3e38;  // below all scores

std::string cast(GraphWriter& w, const std::string& x, DType dtype) {
  return w.add("Cast", {x}, {attribute("to", int64_t{onnx_type(dtype)})});
}
std::string axis_ints(GraphWriter& w, int64_t axis) { return w.ints({axis}); }
std::string unsqueezed(GraphWriter& w, const std::string& x, std::vector<int64_t> axes) { return w.add("Unsqueeze", {x, w.ints(axes)}); }

/// The numbers 0 .. count-1, i64 [count].
std::string numbers(GraphWriter& w, const Dim& count) {
  const std::string end = w.add("Squeeze", {w.size(count), axis_ints(w, 0)});
  return w.add("Range", {w.scalar(0, DType::kI64), end, w.scalar(1, DType::kI64)});
}

/// bool [N,rows]: whether a row is among the first count[n].
std::string first_rows(GraphWriter& w, const std::string& count, int64_t rows) {
  return w.add("Less", {unsqueezed(w, numbers(w, Dim(rows)), {0}), unsqueezed(w, count, {1})});
}

std::string column(GraphWriter& w, const std::string& boxes, int64_t i) {
  return w.add("Gather", {boxes, w.scalar(static_cast<double>(i), DType::kI64)}, {attribute("axis", int64_t{-1})});
}

Names grid_boxes_node(const NodeWriter& n) {
  const auto& a = n.attrs<GridBoxesAttrs>();
  std::vector<double> values;
  size_t first = 0;  // number of the level's corners
  for (size_t level = 0; level < a.per_cell.size(); ++level) {
    const auto corners = static_cast<size_t>(4 * a.per_cell[level]);
    for (int64_t row = 0; row < a.grid[2 * level]; ++row) {
      for (int64_t at = 0; at < a.grid[2 * level + 1]; ++at) {
        const double y = static_cast<double>(row) * a.strides[2 * level], x = static_cast<double>(at) * a.strides[2 * level + 1];
        for (size_t i = first; i < first + corners; ++i) values.push_back(a.corners[i] + (i % 2 == 0 ? x : y));
      }
    }
    first += corners;
  }
  Tensor boxes(DType::kF32, n.result().shape);
  boxes.from_doubles(values);
  return {n.to.constant(boxes)};
}

/// Takes the candidates `index` [N,D] of boxes [N,R,4] or [N,R,K,4] and scores [N,R,K].
Names take_boxes_node(const NodeWriter& n) {
  GraphWriter& w = n.to;
  const std::vector<Dim> scores = w.dims(n.node.inputs[1]);
  const int64_t rows = scores[1].size, classes = scores[2].size, chosen = n.result().shape[1];
  const bool own = n.type(0).shape.rank() == 4;
  const std::string flat = w.reshape(n.in(1), scores, {scores[0], Dim(rows * classes)});
  const Attributes along{attribute("axis", int64_t{1})};
  const std::string kinds = w.scalar(static_cast<double>(classes), DType::kI64);
  std::string row = n.in(2), boxes = n.in(0);
  if (own) {
    boxes = w.reshape(boxes, w.dims(n.node.inputs[0]), {scores[0], Dim(rows * classes), Dim(4)});
  } else if (classes > 1) {
    row = w.add("Div", {row, kinds});
  }
  const std::string places = w.add("Expand", {unsqueezed(w, row, {2}), w.ints({1, chosen, 4})});
  const std::string valid = first_rows(w, n.in(3), chosen), zero = w.scalar(0), none = w.scalar(0, DType::kI64);
  std::string label = w.add("Mod", {n.in(2), kinds});
  label = w.add("Add", {label, w.scalar(static_cast<double>(n.attrs<TakeBoxesAttrs>().first_label), DType::kI64)});
  return {w.add("Where", {unsqueezed(w, valid, {2}), w.add("GatherElements", {boxes, places}, along), zero}),
          w.add("Where", {valid, w.add("GatherElements", {flat, n.in(2)}, along), zero}), w.add("Where", {valid, label, none})};
}

/// Scores [N,K,R], without those of rows from the count on, and of each class without those below its best `per_class`.
std::string considered(const NodeWriter& n, std::string scores, int64_t rows) {
  GraphWriter& w = n.to;
  const std::string lowest = w.scalar(kLowest);
  if (n.has(2)) scores = w.add("Where", {unsqueezed(w, first_rows(w, n.in(2), rows), {1}), scores, lowest});
  const int64_t best = n.attrs<NmsAttrs>().per_class;
  if (best == 0 || best >= rows) return scores;
  const std::string values = w.add_many("TopK", {scores, w.ints({best})}, {attribute("axis", int64_t{2})}, 2)[0];
  const std::string least = w.add("Slice", {values, w.ints({best - 1}), w.ints({best}), w.ints({2})});
  return w.add("Where", {w.add("GreaterOrEqual", {scores, least}), scores, lowest});
}

Names nms_node(const NodeWriter& n) {
  GraphWriter& w = n.to;
  const auto& attrs = n.attrs<NmsAttrs>();
  const std::vector<Dim> dims = w.dims(n.node.inputs[1]);
  const int64_t rows = dims[1].size, classes = dims[2].size;
  const bool own = n.type(0).shape.rank() == 4;
  std::string scores = considered(n, w.transpose(n.in(1), {0, 2, 1}), rows), boxes = n.in(0);
  const std::vector<Dim> by_class{dims[0], Dim(classes), Dim(rows)}, alone{dims[0].times(classes), Dim(1), Dim(rows)};
  if (own) {  // each class of a sample is a sample of its own
    boxes = w.reshape(w.transpose(boxes, {0, 2, 1, 3}), {dims[0], Dim(classes), Dim(rows), Dim(4)}, {alone[0], Dim(rows), Dim(4)});
    scores = w.reshape(scores, by_class, alone);
  }
  const std::string lowest = w.scalar(kLowest), threshold = w.scalar(attrs.score_threshold);
  const std::string chosen = w.add("NonMaxSuppression", {boxes, scores, w.ints({attrs.max_output}), w.uniform(1, attrs.iou_threshold),
                                                         w.uniform(1, attrs.score_threshold)});  // [chosen,3]: sample, class, row
  Tensor zero(DType::kF32, {1});
  zero.from_doubles({0});
  const std::string none = w.add("ConstantOfShape", {w.add("Shape", {scores})}, {attribute("value", zero)});
  const std::string count = w.add("Slice", {w.add("Shape", {chosen}), w.ints({0}), w.ints({1}), w.ints({0})});
  const std::string marks = w.add("ScatterND", {none, chosen, w.add("Expand", {w.uniform(1, 1), count})});
  std::string best = w.add("Where", {w.add("Greater", {marks, w.scalar(0.5)}), scores, lowest});
  if (own) best = w.reshape(best, alone, by_class);
  best = w.reshape(w.transpose(best, {0, 2, 1}), dims, {dims[0], Dim(rows * classes)});
  const int64_t most = std::min(attrs.max_output, rows * classes);
  Names sorted = w.add_many("TopK", {best, w.ints({most})}, {attribute("axis", int64_t{1})}, 2);
  if (const int64_t missing = attrs.max_output - most; missing > 0) {
    const std::string pads = w.ints({0, 0, 0, missing});
    sorted = {w.add("Pad", {sorted[0], pads, lowest}), w.add("Pad", {sorted[1], pads, w.scalar(0, DType::kI64)})};
  }
  const std::string valid = w.add("Greater", {sorted[0], threshold});
  return {w.add("Where", {valid, sorted[1], w.scalar(0, DType::kI64)}),
          w.add("ReduceSum", {cast(w, valid, DType::kI64), axis_ints(w, 1)}, {attribute("keepdims", int64_t{0})})};
}

/// The number of the level that each region [M,4] reads, f32 [M] (roi_level).
std::string levels_of(GraphWriter& w, const std::string& regions, int64_t first, int64_t last) {
  const std::string width = w.add("Sub", {column(w, regions, 2), column(w, regions, 0)}),
                    height = w.add("Sub", {column(w, regions, 3), column(w, regions, 1)});
  const std::string side = w.add("Div", {w.add("Sqrt", {w.add("Mul", {width, height})}), w.scalar(224)});
  const std::string octaves = w.add("Mul", {w.add("Log", {side}), w.scalar(std::numbers::log2e)});
  const std::string level = w.add("Floor", {w.add("Add", {octaves, w.scalar(4 + 1e-6)})});
  return w.add("Clip", {level, w.scalar(static_cast<double>(first)), w.scalar(static_cast<double>(last))});
}

Names roi_align_node(const NodeWriter& n) {
  GraphWriter& w = n.to;
  const auto& attrs = n.attrs<RoiAlignAttrs>();
  if (n.has(3)) w.refuse("its images are smaller than their arrays, and RoiAlign has no input for their sizes; set data.padding=batch");
  const std::vector<Dim> boxes = w.dims(n.node.inputs[1]), result = w.dims(n.node.outputs[0]);
  const int64_t rows = boxes[1].size;
  const Dim all = boxes[0].times(rows);
  const std::string regions = w.reshape(n.in(1), boxes, {all, Dim(4)});
  const std::string sample = w.add("Div", {numbers(w, all), w.scalar(static_cast<double>(rows), DType::kI64)});
  const std::string valid = n.has(2) ? w.reshape(first_rows(w, n.in(2), rows), {boxes[0], Dim(rows)}, {all}) : std::string();
  const auto level_of = [](double scale) { return static_cast<int64_t>(-std::log2(scale)); };
  const int64_t first = level_of(attrs.spatial_scale.front()), last = level_of(attrs.spatial_scale.back());
  const std::string level = last > first ? levels_of(w, regions, first, last) : std::string();
  Tensor zero(DType::kF32, {1});
  zero.from_doubles({0});
  std::string y = w.add("ConstantOfShape", {w.shape({all, result[2], result[3], result[4]})}, {attribute("value", zero)});
  for (int64_t l = first; l <= last; ++l) {
    const auto input = static_cast<size_t>(l - first);
    std::string reads = level.empty() ? valid : w.add("Equal", {level, w.scalar(static_cast<double>(l))});
    if (!level.empty() && !valid.empty()) reads = w.add("And", {reads, valid});
    const std::string which = reads.empty() ? numbers(w, all) : w.add("Squeeze", {w.add("NonZero", {reads}), axis_ints(w, 0)});
    const Attributes rows_of{attribute("axis", int64_t{0})};
    const std::string features =
        w.add("RoiAlign",
              {n.in(input == 0 ? 0 : input + 3), w.add("Gather", {regions, which}, rows_of), w.add("Gather", {sample, which}, rows_of)},
              {attribute("mode", "avg"), attribute("output_height", attrs.output_size[0]), attribute("output_width", attrs.output_size[1]),
               attribute("sampling_ratio", attrs.sampling_ratio), attribute("spatial_scale", attrs.spatial_scale[input]),
               attribute("coordinate_transformation_mode", attrs.aligned ? "half_pixel" : "output_half_pixel")});
    y = w.add("ScatterND", {y, unsqueezed(w, which, {1}), features});
  }
  return {w.reshape(y, {all, result[2], result[3], result[4]}, result)};
}

Names linear_rows_node(const NodeWriter& n) {
  GraphWriter& w = n.to;
  std::string y = w.add("MatMul", {n.in(0), w.transpose(n.in(1), {1, 0})});
  if (n.has(2)) y = w.add("Add", {y, n.in(2)});
  y = activated(w, y, n.attrs<LinearAttrs>().activation);
  const std::string valid = unsqueezed(w, first_rows(w, n.in(3), n.type(0).shape[1]), {2});
  return {w.add("Where", {valid, y, w.scalar(0)})};
}

/// The gradient of a convolution's input is a transposed convolution.
Names transposed_conv_node(const NodeWriter& n) {
  const auto& attrs = n.attrs<Conv2dBackwardDataAttrs>();
  const Shape &x = n.type(0).shape, &weight = n.type(1).shape;
  const std::vector<int64_t> stride = per_axis(attrs.stride, 2), padding = per_axis(attrs.padding, 2),
                             dilation = per_axis(attrs.dilation, 2);
  std::vector<int64_t> more, kernel{weight[2], weight[3]};
  for (size_t i = 0; i < 2; ++i) {
    const int axis = 2 + static_cast<int>(i);
    more.push_back(n.result().shape[axis] - ((x[axis] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (kernel[i] - 1) + 1));
  }
  std::string y = n.to.add("ConvTranspose", {n.in(0), n.in(1)},
                           {attribute("kernel_shape", kernel), attribute("strides", stride), attribute("dilations", dilation),
                            attribute("pads", std::vector<int64_t>{padding[0], padding[1], padding[0], padding[1]}),
                            attribute("output_padding", more), attribute("group", attrs.groups)});
  if (n.has(2)) y = n.to.add("Add", {y, n.in(2)});
  return {y};
}

/// Points [R,K,3] of `regions` heat maps [R,K,h,w] resized to `sizes`, i64 [R,2]: column, row and value of the largest pixel.
std::string largest_pixels(GraphWriter& w, const std::string& heat, const std::string& sizes, const std::string& regions, int64_t points) {
  const Attributes first{attribute("axis", int64_t{0})}, last{attribute("axis", int64_t{1})};
  return w.loop(w.add("Squeeze", {regions, axis_ints(w, 0)}), {.dtype = DType::kF32, .shape = {points, 3}}, [&](const std::string& round) {
    const std::string size = w.add("Gather", {sizes, round}, first);
    const std::string map = unsqueezed(w, w.add("Gather", {heat, round}, first), {0});
    const std::string resized =
        w.add("Resize", {map, "", "", w.add("Concat", {w.ints({1, points}), size}, first)},
              {attribute("mode", "cubic"), attribute("cubic_coeff_a", -0.75), attribute("coordinate_transformation_mode", "half_pixel")});
    const std::string pixels = w.add("Reshape", {resized, w.ints({points, -1})});
    const std::string at = w.add("ArgMax", {pixels}, last), width = w.add("Gather", {size, w.scalar(1, DType::kI64)}, first);
    return w.add("Concat",
                 {cast(w, w.add("Mod", {at, width}), DType::kF32), cast(w, w.add("Div", {at, width}), DType::kF32),
                  w.add("GatherElements", {pixels, at}, last)},
                 last);
  });
}

/// Each heat map is resized in a round of a loop, since regions have sizes of their own. There are no rounds for rows from the count on.
Names locate_keypoints_node(const NodeWriter& n) {
  GraphWriter& w = n.to;
  const std::vector<Dim> heat = w.dims(n.node.inputs[0]), result = w.dims(n.node.outputs[0]);
  const int64_t rows = heat[1].size, points = heat[2].size;
  const Dim all = heat[0].times(rows);
  const Attributes first{attribute("axis", int64_t{0})}, last{attribute("axis", int64_t{1})};
  const std::string valid = w.reshape(first_rows(w, n.in(2), rows), {heat[0], Dim(rows)}, {all});
  const std::string which = w.add("Squeeze", {w.add("NonZero", {valid}), axis_ints(w, 0)});
  const std::string maps = w.add("Gather", {w.reshape(n.in(0), heat, {all, heat[2], heat[3], heat[4]}), which}, first);
  const std::string boxes = w.add("Gather", {w.reshape(n.in(1), {heat[0], heat[1], Dim(4)}, {all, Dim(4)}), which}, first);
  const auto columns = [&](int64_t begin, int64_t end) { return w.add("Slice", {boxes, w.ints({begin}), w.ints({end}), w.ints({1})}); };
  const std::string corner = columns(0, 2);
  const std::string sides = w.add("Max", {w.add("Sub", {columns(2, 4), corner}), w.scalar(1)}), pixels = w.add("Ceil", {sides});
  const std::string sizes = cast(w, w.add("Gather", {pixels, w.ints({1, 0})}, last), DType::kI64);
  const std::string found = largest_pixels(w, maps, sizes, w.add("Shape", {which}), points);
  const Attributes of_points{attribute("axis", int64_t{2})};
  const auto part = [&](int64_t begin, int64_t end) { return w.add("Slice", {found, w.ints({begin}), w.ints({end}), w.ints({2})}); };
  std::string at = w.add("Mul", {w.add("Add", {part(0, 2), w.scalar(0.5)}), unsqueezed(w, w.add("Div", {sides, pixels}), {1})});
  at = w.add("Add", {at, unsqueezed(w, corner, {1})});
  Tensor zero(DType::kF32, {1});
  zero.from_doubles({0});
  const std::string none = w.add("ConstantOfShape", {w.shape({all, result[2], result[3]})}, {attribute("value", zero)});
  const std::string y = w.add("ScatterND", {none, unsqueezed(w, which, {1}), w.add("Concat", {at, part(2, 3)}, of_points)});
  return {w.reshape(y, {all, result[2], result[3]}, result)};
}

Names one_hot_node(const NodeWriter& n) {
  const auto& attrs = n.attrs<OneHotAttrs>();
  Tensor values(attrs.dtype, {2});
  values.from_doubles({0, 1});
  return {n.to.add("OneHot", {n.in(0), n.to.scalar(static_cast<double>(attrs.classes), DType::kI64), n.to.constant(values)},
                   {attribute("axis", attrs.axis)})};
}

}  // namespace

WriteTable detection_rows() {
  return {{"grid_boxes", grid_boxes_node},
          {"take_boxes", take_boxes_node},
          {"nms", nms_node},
          {"roi_align", roi_align_node},
          {"linear_rows", linear_rows_node},
          {"conv2d_backward_data", transposed_conv_node},
          {"conv2d_backward_data_rows", transposed_conv_node},
          {"locate_keypoints", locate_keypoints_node},
          {"one_hot", one_hot_node}};
}

}  // namespace galley::onnx_export
