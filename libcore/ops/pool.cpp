#include "libcore/ops/pool.h"

#include <algorithm>

#include "libcore/ops/binary.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/expansion.h"
#include "libcore/ops/extents.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/integer_builder.h"
#include "libcore/ops/quantized.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

std::array<int64_t, 2> stride_of(const std::vector<int64_t>& stride, const std::vector<int64_t>& kernel) {
  return pair(stride.empty() ? kernel : stride);
}

/// Number of windows along an axis, as in PyTorch: with ceil_mode the last window must start inside the input or its left padding.
int64_t windows(int64_t in, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation, bool ceil_mode) {
  const int64_t span = dilation * (kernel - 1) + 1;
  GALLEY_CHECK(kernel >= 1 && stride >= 1 && dilation >= 1, "kernel, stride and dilation must be at least 1");
  GALLEY_CHECK(padding >= 0 && 2 * padding <= span, "padding must be at most half the kernel: padding ", padding, ", kernel ", kernel);
  const int64_t room = in + 2 * padding - span;
  GALLEY_CHECK(room >= 0, "the window covers ", span, " elements, but the padded input has ", in + 2 * padding);
  int64_t count = (room + (ceil_mode ? stride - 1 : 0)) / stride + 1;
  if (ceil_mode && (count - 1) * stride >= in + padding) --count;
  return count;
}

void check_image(const Shape& x) { GALLEY_CHECK(x.rank() == 4, "the input must be [N,C,H,W], not ", x); }
void check_image(const TensorType& x) { check_image(x.shape); }

Shape pooled(const PoolWindow& a, const Shape& x, const std::vector<int64_t>& dilation) {
  Shape y{x[0], x[1]};
  for (int axis = 0; axis < 2; ++axis) {
    const auto i = static_cast<size_t>(axis);
    y.push_back(windows(x[2 + axis], pair(a.kernel_size)[i], stride_of(a.stride, a.kernel_size)[i], pair(a.padding)[i], pair(dilation)[i],
                        a.ceil_mode));
  }
  return y;
}

TensorType with_shape(TensorType type, const Shape& shape) {
  type.shape = shape;
  type.format = {};
  return type;
}

Shape grown(const Shape& grad, const std::vector<int64_t>& input_size) {
  const auto size = pair(input_size);
  return Shape{grad[0], grad[1], size[0], size[1]};
}

std::vector<TensorType> infer_max(const OpContext& c) {
  const auto& a = c.attrs<MaxPool2dAttrs>();
  check_image(c.in(0));
  const auto kernel = pair(a.kernel_size);
  GALLEY_CHECK(kernel[0] * kernel[1] <= 255, "a window of ", kernel[0], " x ", kernel[1], " has more than the supported 255 taps");
  TensorType y = with_shape(c.in(0), pooled(a, c.in(0).shape, a.dilation));
  TensorType index = y;
  index.dtype = DType::kU8;
  return {y, index};
}

std::vector<TensorType> infer_max_backward(const OpContext& c) {
  const auto& a = c.attrs<MaxPool2dBackwardAttrs>();
  check_image(c.in(0));
  TensorType dx = with_shape(c.in(0), grown(c.in(0).shape, a.input_size));
  const Shape expected = pooled(a, dx.shape, a.dilation);
  GALLEY_CHECK(expected == c.in(0).shape && expected == c.in(1).shape, "gradient and index must be ", expected, ", not ", c.in(0).shape,
               " and ", c.in(1).shape);
  return {dx};
}

std::vector<TensorType> infer_avg(const OpContext& c) {
  const Shape y = avg_pool2d_shape(c.attrs<AvgPool2dAttrs>(), c.in(0).shape);
  check_floating(c.in(0), "x");
  return {with_shape(c.in(0), y)};
}

std::vector<TensorType> infer_avg_backward(const OpContext& c) {
  const auto& a = c.attrs<AvgPool2dBackwardAttrs>();
  check_image(c.in(0));
  TensorType dx = with_shape(c.in(0), grown(c.in(0).shape, a.input_size));
  const Shape expected = pooled(a, dx.shape, {1});
  GALLEY_CHECK(expected == c.in(0).shape, "the gradient must be ", expected, ", not ", c.in(0).shape);
  return {dx};
}

std::vector<TensorType> infer_adaptive_avg(const OpContext& c) {
  check_floating(c.in(0), "x");
  check_mean_inside(c, c.attrs<AdaptiveAvgPool2dAttrs>().output_size);
  return {with_shape(c.in(0), adaptive_pool2d_shape(c.attrs<AdaptiveAvgPool2dAttrs>().output_size, c.in(0).shape))};
}
std::vector<TensorType> infer_adaptive_max(const OpContext& c) {
  TensorType y = with_shape(c.in(0), adaptive_pool2d_shape(c.attrs<AdaptiveMaxPool2dAttrs>().output_size, c.in(0).shape));
  TensorType index = y;
  index.dtype = DType::kI32;
  return {y, index};
}
std::vector<TensorType> infer_adaptive_avg_backward(const OpContext& c) {
  check_image(c.in(0));
  return {with_shape(c.in(0), grown(c.in(0).shape, c.attrs<AdaptiveAvgPool2dBackwardAttrs>().input_size))};
}
std::vector<TensorType> infer_adaptive_max_backward(const OpContext& c) {
  check_image(c.in(0));
  return {with_shape(c.in(0), grown(c.in(0).shape, c.attrs<AdaptiveMaxPool2dBackwardAttrs>().input_size))};
}

std::vector<int64_t> image_size(Value x) { return {x.shape()[2], x.shape()[3]}; }

void max_gradient(GradientBuilder& g) {
  if (!g.grad(0)) return;
  MaxPool2dBackwardAttrs b;
  static_cast<MaxPoolWindow&>(b) = g.attrs<MaxPool2dAttrs>();
  b.input_size = image_size(g.in(0));
  g.set(0, max_pool2d_backward(g.grad(0), g.out(1), b));
}

void avg_gradient(GradientBuilder& g) {
  AvgPool2dBackwardAttrs b;
  static_cast<AvgPoolWindow&>(b) = g.attrs<AvgPool2dAttrs>();
  b.input_size = image_size(g.in(0));
  g.set(0, avg_pool2d_backward(g.grad(0), b));
}

void pool_options(OptionVisitor& v, PoolWindow& a) {
  v.option({.name = "kernel_size", .doc = "rows and columns of the window", .min = 1}, a.kernel_size);
  v.option({.name = "stride", .doc = "stride of the window; empty: its size", .min = 1}, a.stride);
  v.option({.name = "padding", .doc = "border around the input, at most half the window", .min = 0}, a.padding);
  v.option({.name = "ceil_mode", .doc = "include a last window that extends over the edge"}, a.ceil_mode);
}
void input_size_option(OptionVisitor& v, std::vector<int64_t>& size) {
  v.option({.name = "input_size", .doc = "rows and columns of the input of the forward operator", .min = 0}, size);
}

OpDef pool(std::string_view name, std::string_view doc, std::unique_ptr<Options> (*attrs)(),
           std::vector<TensorType> (*infer)(const OpContext&), void (*gradient)(GradientBuilder&)) {
  return {.name = name,
          .doc = doc,
          .inputs = {"x"},
          .outputs = {"y"},
          .make_attrs = attrs,
          .infer = infer,
          .gradient = gradient,
          .cost = input_cost<1>,
          .layout = {.prefers_channels_last = true}};
}

OpDef pool_backward(std::string_view name, std::string_view doc, std::unique_ptr<Options> (*attrs)(),
                    std::vector<TensorType> (*infer)(const OpContext&)) {
  return {.name = name,
          .doc = doc,
          .inputs = {"grad"},
          .outputs = {"dx"},
          .make_attrs = attrs,
          .infer = infer,
          .no_gradient = kNoSecondDerivative,
          .cost = elementwise_cost<1>,
          .layout = {.prefers_channels_last = true}};
}

}  // namespace

void window_options(OptionVisitor& v, MaxPoolWindow& a) {
  pool_options(v, a);
  v.option({.name = "dilation", .doc = "spacing between the window's elements", .min = 1}, a.dilation);
}
void window_options(OptionVisitor& v, AvgPoolWindow& a) {
  pool_options(v, a);
  v.option({.name = "count_include_pad", .doc = "include padding in the mean, as zeros"}, a.count_include_pad);
}
void MaxPool2dBackwardAttrs::options(OptionVisitor& v) {
  window_options(v, *this);
  input_size_option(v, input_size);
}
void AvgPool2dBackwardAttrs::options(OptionVisitor& v) {
  window_options(v, *this);
  input_size_option(v, input_size);
}
void AdaptiveAvgPool2dAttrs::options(OptionVisitor& v) {
  v.option({.name = "output_size", .doc = "rows and columns of the result", .min = 1}, output_size);
}
void AdaptiveMaxPool2dAttrs::options(OptionVisitor& v) {
  v.option({.name = "output_size", .doc = "rows and columns of the result", .min = 1}, output_size);
}
void AdaptiveAvgPool2dBackwardAttrs::options(OptionVisitor& v) { input_size_option(v, input_size); }
void AdaptiveMaxPool2dBackwardAttrs::options(OptionVisitor& v) { input_size_option(v, input_size); }

PoolRange pool_range(int64_t o, int64_t in, int64_t kernel, int64_t stride, int64_t padding) {
  const int64_t start = o * stride - padding;
  const int64_t end = std::min(start + kernel, in + padding);
  return {std::max<int64_t>(start, 0), std::min(end, in), end - start};
}

PoolRange adaptive_range(int64_t o, int64_t in, int64_t out) {
  const int64_t begin = o * in / out, end = ((o + 1) * in + out - 1) / out;
  return {begin, end, end - begin};
}

Shape avg_pool2d_shape(const AvgPoolWindow& window, const Shape& x) {
  check_image(x);
  return pooled(window, x, {1});
}

Shape adaptive_pool2d_shape(const std::vector<int64_t>& output_size, const Shape& x) {
  check_image(x);
  const auto size = pair(output_size);
  GALLEY_CHECK(size[0] >= 1 && size[1] >= 1, "output_size must be at least 1");
  GALLEY_CHECK(x[2] >= 1 && x[3] >= 1, "the input has no pixels: ", x);
  return Shape{x[0], x[1], size[0], size[1]};
}

namespace {
void avg_pool2d_on_integers(IntegerBuilder& b) {
  QuantizedAvgPool2dAttrs attrs;
  static_cast<AvgPoolWindow&>(attrs) = b.attrs<AvgPool2dAttrs>();
  set_input_and_result(b, attrs);
  b.set(quantized_avg_pool2d(b.in(0), attrs));
}
/// Without extents it is a primitive.
void define_adaptive_avg_pool2d(Expansion& e) {
  if (!e.has(1)) return e.keep();
  e.set(0, mul(sum(fill_outside(e.in(0), e.in(1)), {2, 3}, true), inside_share(e.in(1), e.compute())));
}
void adaptive_avg_pool2d_on_integers(IntegerBuilder& b) {
  QuantizedAdaptiveAvgPool2dAttrs attrs;
  attrs.output_size = b.attrs<AdaptiveAvgPool2dAttrs>().output_size;
  set_input_and_result(b, attrs);
  b.set(emit(quantized_adaptive_avg_pool2d_op(), {b.in(0), b.in(1)}, attrs));
}
}  // namespace

const OpDef& max_pool2d_op() {
  static const OpDef def = [] {
    OpDef op =
        pool("max_pool2d", "largest value of each window, and which tap it was", make_options<MaxPool2dAttrs>, infer_max, max_gradient);
    op.outputs = {"y", Port::index("index")};
    op.quantize = QuantizeRule::kPassThrough;
    op.cases = {"max_pool2d:16x64x112x112:kernel_size=3,stride=2,padding=1"};
    return op;
  }();
  return def;
}
const OpDef& max_pool2d_backward_op() {
  static const OpDef def = [] {
    OpDef op = pool_backward("max_pool2d_backward", "gradient of max_pool2d", make_options<MaxPool2dBackwardAttrs>, infer_max_backward);
    op.inputs = {"grad", Port::index("index")};
    op.cases = {"max_pool2d_backward:16x64x56x56+16x64x56x56@u8:kernel_size=3,stride=2,padding=1,input_size=[112,112]"};
    op.definition = definition::max_pool2d_backward;
    return op;
  }();
  return def;
}
const OpDef& avg_pool2d_op() {
  static const OpDef def = [] {
    OpDef op = pool("avg_pool2d", "mean of each window", make_options<AvgPool2dAttrs>, infer_avg, avg_gradient);
    op.quantize = QuantizeRule::kCompute;
    op.integer_form = avg_pool2d_on_integers;
    op.cases = {"avg_pool2d:16x64x56x56:kernel_size=2"};
    return op;
  }();
  return def;
}
const OpDef& avg_pool2d_backward_op() {
  static const OpDef def = [] {
    OpDef op = pool_backward("avg_pool2d_backward", "gradient of avg_pool2d", make_options<AvgPool2dBackwardAttrs>, infer_avg_backward);
    op.cases = {"avg_pool2d_backward:16x64x28x28:kernel_size=2,input_size=[56,56]"};
    return op;
  }();
  return def;
}
const OpDef& adaptive_avg_pool2d_op() {
  static const OpDef def = [] {
    OpDef op = pool("adaptive_avg_pool2d", "means of as many cells as the result has pixels", make_options<AdaptiveAvgPool2dAttrs>,
                    infer_adaptive_avg, [](GradientBuilder& g) {
                      if (g.in(1)) {
                        const Value each = mul(g.grad(), inside_share(g.in(1), g.grad().dtype()));
                        return g.set(0, fill_outside(broadcast_to(each, g.in(0).shape()), g.in(1)));
                      }
                      AdaptiveAvgPool2dBackwardAttrs b;
                      b.input_size = image_size(g.in(0));
                      g.set(0, adaptive_avg_pool2d_backward(g.grad(), b));
                    });
    op.inputs.push_back(Port::index("extents?"));
    op.quantize = QuantizeRule::kCompute;
    op.definition = define_adaptive_avg_pool2d;
    op.integer_form = adaptive_avg_pool2d_on_integers;
    op.cases = {"adaptive_avg_pool2d:16x2048x7x7:output_size=1"};
    return op;
  }();
  return def;
}
const OpDef& adaptive_avg_pool2d_backward_op() {
  static const OpDef def = [] {
    OpDef op = pool_backward("adaptive_avg_pool2d_backward", "gradient of adaptive_avg_pool2d",
                             make_options<AdaptiveAvgPool2dBackwardAttrs>, infer_adaptive_avg_backward);
    op.cases = {"adaptive_avg_pool2d_backward:16x2048x1x1:input_size=[7,7]"};
    return op;
  }();
  return def;
}
const OpDef& adaptive_max_pool2d_op() {
  static const OpDef def = [] {
    OpDef op = pool("adaptive_max_pool2d", "largest values of as many cells as the result has pixels", make_options<AdaptiveMaxPool2dAttrs>,
                    infer_adaptive_max, [](GradientBuilder& g) {
                      if (!g.grad(0)) return;
                      AdaptiveMaxPool2dBackwardAttrs b;
                      b.input_size = image_size(g.in(0));
                      g.set(0, adaptive_max_pool2d_backward(g.grad(0), g.out(1), b));
                    });
    op.outputs = {"y", Port::index("index")};
    op.quantize = QuantizeRule::kPassThrough;
    op.cases = {"adaptive_max_pool2d:16x512x14x14:output_size=7"};
    return op;
  }();
  return def;
}
const OpDef& adaptive_max_pool2d_backward_op() {
  static const OpDef def = [] {
    OpDef op = pool_backward("adaptive_max_pool2d_backward", "gradient of adaptive_max_pool2d",
                             make_options<AdaptiveMaxPool2dBackwardAttrs>, infer_adaptive_max_backward);
    op.inputs = {"grad", Port::index("index")};
    op.definition = definition::adaptive_max_pool2d_backward;
    return op;
  }();
  return def;
}

OpTable pool_ops() {
  return {&max_pool2d_op(),          &max_pool2d_backward_op(),          &avg_pool2d_op(),          &avg_pool2d_backward_op(),
          &adaptive_avg_pool2d_op(), &adaptive_avg_pool2d_backward_op(), &adaptive_max_pool2d_op(), &adaptive_max_pool2d_backward_op()};
}

MaxPool max_pool2d(Value x, const MaxPool2dAttrs& attrs) {
  const std::vector<Value> r = emit_all("max_pool2d", std::make_unique<MaxPool2dAttrs>(attrs), std::vector<Value>{x});
  return {r[0], r[1]};
}
Value max_pool2d_backward(Value grad, Value index, const MaxPool2dBackwardAttrs& attrs) {
  return emit("max_pool2d_backward", {grad, index}, attrs);
}
Value avg_pool2d(Value x, const AvgPool2dAttrs& attrs) { return emit("avg_pool2d", {x}, attrs); }
Value avg_pool2d_backward(Value grad, const AvgPool2dBackwardAttrs& attrs) { return emit("avg_pool2d_backward", {grad}, attrs); }
Value adaptive_avg_pool2d(Value x, const AdaptiveAvgPool2dAttrs& attrs) { return emit("adaptive_avg_pool2d", {x}, attrs); }
Value adaptive_avg_pool2d_backward(Value grad, const AdaptiveAvgPool2dBackwardAttrs& attrs) {
  return emit("adaptive_avg_pool2d_backward", {grad}, attrs);
}
MaxPool adaptive_max_pool2d(Value x, const AdaptiveMaxPool2dAttrs& attrs) {
  const std::vector<Value> r = emit_all("adaptive_max_pool2d", std::make_unique<AdaptiveMaxPool2dAttrs>(attrs), std::vector<Value>{x});
  return {r[0], r[1]};
}
Value adaptive_max_pool2d_backward(Value grad, Value index, const AdaptiveMaxPool2dBackwardAttrs& attrs) {
  return emit("adaptive_max_pool2d_backward", {grad, index}, attrs);
}

}  // namespace galley
