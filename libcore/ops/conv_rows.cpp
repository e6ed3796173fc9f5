#include "libcore/ops/conv_rows.h"

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/expansion.h"
#include "libcore/ops/index.h"
#include "libcore/ops/rewritten.h"
#include "libcore/ops/shape.h"

namespace galley {
namespace {

/// The types of the convolution of all images, of which input `Count` says how many are valid.
template <const OpDef& (*Inner)(), int Count>
std::vector<TensorType> infer(const OpContext& c) {
  std::vector<TensorType> types = Inner().infer(c);
  const TensorType &x = c.in(0), &count = c.in(Count);
  const bool fits = count.dtype == DType::kI64 && count.shape.rank() == 1 && count.shape[0] > 0 && x.shape[0] % count.shape[0] == 0;
  GALLEY_CHECK(fits, "count must be i64 [N], for N parts of the ", x.shape[0], " images, not ", count);
  return types;
}

/// 0 in the images of a result from the count on.
Value first_images(Expansion& e, Value y, size_t count_input) {
  const Value count = e.real(count_input);
  const int64_t samples = count.shape()[0], rows = y.shape()[0] / samples;
  const Value row = cast(iota(e.graph(), DType::kI64, {1, rows}, 1), e.compute());
  const Value valid = reshape(less(row, reshape(count, {samples, 1})), {samples * rows, 1, 1, 1});
  return where(valid, y, e.constant(0));
}

void define_conv(Expansion& e) {
  const Value y = conv2d(e.in(0), e.in(1), e.has(2) ? e.in(2) : Value(), e.attrs<Conv2dAttrs>());
  e.set(0, first_images(e, y, 4));
}
void define_transposed(Expansion& e) {
  e.set(0, first_images(e, conv2d_backward_data(e.in(0), e.in(1), e.attrs<Conv2dBackwardDataAttrs>()), 3));
}

OpDef rows_def(const OpDef& op, std::string_view name, std::string_view doc) {
  OpDef def = made_from(op, name, doc, "it is for predictions; training computes all rows");
  def.inputs.push_back(Port::index("count"));
  def.precision = PrecisionRule::kKeepF32;
  return def;
}

}  // namespace

const OpDef& conv2d_rows_op() {
  static const OpDef def = [] {
    OpDef op = rows_def(conv2d_op(), "conv2d_rows", "two-dimensional convolution of the first images of each sample");
    op.infer = infer<conv2d_op, 4>;
    op.definition = define_conv;
    op.cases = {"conv2d_rows:100x256x14x14+256x256x3x3+256+-+1@i64:padding=1"};
    return op;
  }();
  return def;
}
const OpDef& conv2d_backward_data_rows_op() {
  static const OpDef def = [] {
    OpDef op = rows_def(conv2d_backward_data_op(), "conv2d_backward_data_rows",
                        "gradient of a convolution's input, of the first images of each sample");
    op.infer = infer<conv2d_backward_data_op, 3>;
    op.definition = define_transposed;
    op.cases = {"conv2d_backward_data_rows:100x256x14x14+256x256x2x2+-+1@i64:stride=2,input_size=[28,28]"};
    return op;
  }();
  return def;
}

Value conv2d_rows(Value x, Value weight, Value bias, Value count, const Conv2dAttrs& attrs) {
  return emit("conv2d_rows", {x, weight, bias, {}, count}, attrs);
}
Value conv2d_backward_data_rows(Value x, Value weight, Value count, const Conv2dBackwardDataAttrs& attrs) {
  return emit("conv2d_backward_data_rows", {x, weight, {}, count}, attrs);
}

}  // namespace galley
