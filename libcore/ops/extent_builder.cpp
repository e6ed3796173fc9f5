#include "libcore/ops/extent_builder.h"

#include <algorithm>
#include <limits>

#include "libcore/ops/binary.h"
#include "libcore/ops/conv.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/elementwise.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/pool.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/resize.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley {

Value ExtentBuilder::extents(size_t i) const {
  const auto found = known_.of.find(node_.input(i));
  return found == known_.of.end() ? Value() : found->second;
}

void ExtentBuilder::zero_outside(size_t i) {
  const ValueId before = node_.input(i);
  const auto [place, added] = known_.zeroed.try_emplace(before, kNoValue);
  if (added) {
    const Value filled = filled_in(i);
    place->second = filled.id();
    known_.of[filled.id()] = extents(i);
    known_.zeroed[filled.id()] = filled.id();
  }
  node_.inputs[i] = known_.zeroed.at(before);
}

Value ExtentBuilder::filled_in(size_t i) {
  constexpr std::string_view kKeepZero[] = {"relu", "relu6", "hardswish", "silu"};
  const ValueId id = node_.input(i);
  const auto made = std::find_if(graph_.nodes().rbegin(), graph_.nodes().rend(), [&](const Node& node) { return node.outputs[0] == id; });
  const bool activation = known_.training && made != graph_.nodes().rend() &&
                          std::find(std::begin(kKeepZero), std::end(kKeepZero), made->op->name) != std::end(kKeepZero);
  if (!activation) return galley::fill_outside(in(i), extents(i));
  const Node node = *made;
  return graph_.add_node_like(node, {galley::fill_outside(graph_.at(node.inputs[0]), extents(i)).id()}).front();
}

void ExtentBuilder::fill_outside(size_t i, double value) {
  const Value filled = galley::fill_outside(in(i), extents(i), value);
  known_.of[filled.id()] = extents(i);
  node_.inputs[i] = filled.id();
}

void ExtentBuilder::read(size_t i, Value value) {
  if (node_.inputs.size() <= i) node_.inputs.resize(i + 1, kNoValue);
  node_.inputs[i] = value.id();
}

Value ExtentBuilder::after(Value extents, const ExtentsAfterAttrs& attrs) {
  const std::string how = print_attributes(extents_after_op(), &attrs);
  if (how.empty()) return extents;
  Value& result = known_.after[{extents.id(), how}];
  if (!result) result = extents_after(extents, attrs);
  return result;
}

void ExtentBuilder::refuse(std::string_view form) const {
  throw Error(ErrorCode::kRecipe, cat("images of different size are padded, and ", node_.op->name, form.empty() ? "" : " with ", form,
                                      node_.path.empty() ? "" : " at ", node_.path, " has no form that leaves the padding out"))
      .key("data.padding")
      .suggest("data.padding: batch, which lets padding change results");
}

namespace {

/// The result has the extents of the first image among the inputs.
void each_pixel(ExtentBuilder& b) {
  const Shape& result = b.out().shape();
  for (size_t i = 0; i < b.input_count(); ++i) {
    const Value extents = b.extents(i);
    if (!extents || !(b.in(i).shape()[2] == result[2] && b.in(i).shape()[3] == result[3])) continue;
    b.set(extents);
    return;
  }
}

/// The result is not an image, and the operator combines no pixels.
void no_image(ExtentBuilder&) {}

/// A window of one pixel reads no pixels outside.
void conv2d_inside(ExtentBuilder& b) {
  const auto& attrs = b.attrs<Conv2dAttrs>();
  const Shape& weight = b.in(1).shape();
  ExtentsAfterAttrs after;
  after.kernel_size = {weight[2], weight[3]};
  after.stride = attrs.stride;
  after.padding = attrs.padding;
  after.dilation = attrs.dilation;
  if (weight[2] * weight[3] > 1) b.zero_outside(0);
  b.set(b.after(b.extents(0), after));
}

/// No maximum takes a pixel outside.
void max_pool2d_inside(ExtentBuilder& b) {
  const auto& attrs = b.attrs<MaxPool2dAttrs>();
  const std::array<int64_t, 2> kernel = pair(attrs.kernel_size);
  if (attrs.ceil_mode) b.refuse("ceil_mode");
  ExtentsAfterAttrs after;
  after.kernel_size = attrs.kernel_size;
  after.stride = attrs.stride.empty() ? attrs.kernel_size : attrs.stride;
  after.padding = attrs.padding;
  after.dilation = attrs.dilation;
  const Value extents = b.extents(0);
  const bool windows = kernel[0] * kernel[1] > 1;
  if (windows) b.fill_outside(0, -std::numeric_limits<double>::infinity());
  b.set(b.after(extents, after));
  if (windows) b.clear_result();
}

void adaptive_avg_pool2d_inside(ExtentBuilder& b) {
  if (pair(b.attrs<AdaptiveAvgPool2dAttrs>().output_size) != std::array<int64_t, 2>{1, 1}) b.refuse("several means");
  b.read(1, b.extents(0));
}

void group_norm_inside(ExtentBuilder& b) {
  b.read(3, b.extents(0));
  b.set(b.extents(0));
}

/// Batch norm by the statistics of the pixels inside the extents, in element-wise functions and sums, which have gradients.
void batch_norm_inside(ExtentBuilder& b) {
  const auto& attrs = b.attrs<BatchNormAttrs>();
  if (!attrs.sync.empty()) b.refuse("statistics of all ranks");
  GALLEY_ASSERT(attrs.activation == Activation::kNone && !b.in(3), "a fused batch norm takes no extents");
  const std::vector<int64_t> axes{0, 2, 3};
  const Value extents = b.extents(0);
  b.zero_outside(0);
  const Value x = b.in(0), sizes = cast(extents, x.dtype());
  const Value count = sum(mul(slice(sizes, 1, 0, 1), slice(sizes, 1, 1, 2)), {0, 1});
  const auto at_least_one = [](Value v) { return clamp(v, 1, std::numeric_limits<double>::infinity()); };
  const Value share = reciprocal(at_least_one(count));
  const Value mean = mul(sum(x, axes, true), share);
  const Value centered = fill_outside(sub(x, mean), extents);
  const Value var = mul(sum(square(centered), axes, true), share);
  const auto channels = [&](Value v) { return reshape(v, {1, x.channels(), 1, 1}); };
  Value y = mul(centered, rsqrt(affine(var, 1, attrs.eps)));
  if (b.in(1)) y = mul(y, channels(b.in(1)));
  if (b.in(2)) y = add(y, channels(b.in(2)));
  // The update of running statistics takes all pixels of the array as the count of its unbiased variance.
  const auto all = static_cast<double>(x.type().elements() / std::max<int64_t>(1, x.channels()));
  const Value unbiased = mul(affine(div(count, at_least_one(affine(count, 1, -1))), (all - 1) / all), var);
  b.replace(0, y);
  b.replace(1, reshape(mean, {x.channels()}));
  b.replace(2, reshape(unbiased, {x.channels()}));
  b.set(extents);
}

/// Nearest neighbors by whole factors combine no pixels.
void resize_inside(ExtentBuilder& b) {
  const Shape &from = b.in(0).shape(), &to = b.out().shape();
  if (b.attrs<ResizeAttrs>().mode != ResizeMode::kNearest) b.refuse("bilinear interpolation");
  if (to[2] % from[2] != 0 || to[3] % from[3] != 0) b.refuse("a factor that is not a whole number");
  ExtentsAfterAttrs after;
  after.factor = {to[2] / from[2], to[3] / from[3]};
  b.set(b.after(b.extents(0), after));
}

void concat_inside(ExtentBuilder& b) {
  if (axis_of(b.attrs<ConcatAttrs>().axis, b.out().type()) != 1) b.refuse("another axis than that of channels");
  each_pixel(b);
}

/// Each level has extents of its own.
void roi_align_inside(ExtentBuilder& b) {
  constexpr size_t kExtents = 3, kCoarser = 4;
  std::vector<Value> levels;
  for (size_t i = 0; i < b.input_count(); ++i) {
    if (i == 0 || i >= kCoarser) levels.push_back(b.extents(i));
  }
  if (!std::all_of(levels.begin(), levels.end(), [](Value v) { return static_cast<bool>(v); })) b.refuse("levels of other images");
  ConcatAttrs attrs;
  attrs.axis = 1;
  b.read(kExtents, levels.size() == 1 ? levels[0] : concat(levels, attrs));
}

struct ExtentRow {
  std::string_view op;
  void (*rule)(ExtentBuilder&);
};
constexpr ExtentRow kRows[] = {{"conv2d", conv2d_inside},
                               {"max_pool2d", max_pool2d_inside},
                               {"adaptive_avg_pool2d", adaptive_avg_pool2d_inside},
                               {"group_norm", group_norm_inside},
                               {"batch_norm", batch_norm_inside},
                               {"batch_norm_inference", each_pixel},
                               {"resize", resize_inside},
                               {"concat", concat_inside},
                               {"roi_align", roi_align_inside},
                               {"fill_outside", each_pixel},
                               {"cast", each_pixel},
                               {"reshape", no_image},
                               {"permute", no_image}};

}  // namespace

void apply_extent_rule(ExtentBuilder& b) {
  const std::string_view op = b.node().op->name;
  if (find_elementwise(op) != nullptr) return each_pixel(b);
  const auto row = std::find_if(std::begin(kRows), std::end(kRows), [&](const ExtentRow& each) { return each.op == op; });
  if (row == std::end(kRows)) b.refuse("");
  row->rule(b);
}

}  // namespace galley
