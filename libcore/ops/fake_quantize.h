#pragma once
// Training that knows of quantization: rounding in the forward pass whose gradient passes straight through (Bengio et al. 2013), learned
// scales (LSQ, Esser et al. 2020), and the running range that scales come from.

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"
#include "libcore/tensor/quant_params.h"

namespace galley {

struct FakeQuantizeAttrs : OptionsOf<FakeQuantizeAttrs> {
  int64_t axis = -1;  // of the channels where scale is [C]; -1: one scale
  int64_t qmin = 0, qmax = 255;
  double gradient_factor = 1;  // multiplies the scale's gradient: LSQ takes 1 / sqrt(values a scale * qmax)
  void options(OptionVisitor& v) override;
};
struct ObserveRangeAttrs : OptionsOf<ObserveRangeAttrs> {
  int64_t axis = -1;        // of the channels where the states are [C]; -1: one range
  double averaging = 0.01;  // weight of this batch; 1: the states become its range
  void options(OptionVisitor& v) override;
};
struct QparamsFromRangeAttrs : OptionsOf<QparamsFromRangeAttrs> {
  int64_t qmin = 0, qmax = 255;
  bool symmetric = false;
  QuantRange range() const { return {qmin, qmax, qmin < 0 ? DType::kI8 : DType::kU8}; }
  void options(OptionVisitor& v) override;
};

const OpDef& fake_quantize_op();
const OpDef& fake_quantize_backward_op();
const OpDef& fake_quantize_scale_backward_op();
const OpDef& observe_range_op();
const OpDef& keep_range_op();
const OpDef& qparams_from_range_op();

/// Smaller scales count as this one, the least of PyTorch's observers; their gradient is that of this one, so that a scale which learnt too
/// fast grows again.
inline constexpr double kLeastFakeScale = 0x1p-23;

/// x f32, scale and zero_point f32 [] or [C] (whole numbers in the zero point) -> scale * (clamp(round(x / scale) + zero_point, qmin, qmax)
/// - zero_point). Differentiable in x and, where asked for, in scale; zero_point gets none.
Value fake_quantize(Value x, Value scale, Value zero_point, const FakeQuantizeAttrs& attrs);
/// grad where round(x / scale) + zero_point is in qmin..qmax, else 0.
Value fake_quantize_backward(Value grad, Value x, Value scale, Value zero_point, const FakeQuantizeAttrs& attrs);
/// gradient_factor times the sum, over the values of each scale, of grad * (round(x/scale) - x/scale) inside the range, and of
/// grad * (qmin - zero_point) or grad * (qmax - zero_point) below and above it. Like scale.
Value fake_quantize_scale_backward(Value grad, Value x, Value scale, Value zero_point, const FakeQuantizeAttrs& attrs);

/// What the range of min_state and max_state, f32 [] or [C], becomes where enabled (f32 []) is not 0: a range of [inf, -inf], the value to
/// begin with, becomes the batch's, another moves by averaging * (batch's - it). NaN in x makes it NaN. The states stay as they are until
/// keep_range: a step that ends before its updates leaves none.
struct MovingRange {
  Value min, max;
};
MovingRange observe_range(Value x, Value min_state, Value max_state, Value enabled, const ObserveRangeAttrs& attrs);
/// In place: the states become this range. Of the update phase.
void keep_range(Value min_state, Value max_state, const MovingRange& range);
/// affine_params (symmetric: symmetric_params of the larger bound) of each range, as f32 arrays of its shape; i8 where qmin is negative,
/// else u8. A range that saw nothing ([inf, -inf]) gives scale 1 and the zero point nearest to 0, one that is not finite scale NaN.
struct RangeParams {
  Value scale, zero_point;
};
RangeParams qparams_from_range(Value min, Value max, const QparamsFromRangeAttrs& attrs);

}  // namespace galley
