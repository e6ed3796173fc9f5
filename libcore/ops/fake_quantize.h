#pragma once
// Operators for quantization-aware training: rounding in the forward pass with a straight-through gradient (Bengio et al. 2013), learned
// scales (LSQ, Esser et al. 2020), and running ranges, from which scales are computed.

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"
#include "libcore/tensor/quant_params.h"

namespace galley {

struct FakeQuantizeAttrs : OptionsOf<FakeQuantizeAttrs> {
  int64_t axis = -1;  // the axis of the channels if scale is [C]; -1: one scale
  int64_t qmin = 0, qmax = 255;
  double gradient_factor = 1;  // multiplies the gradient of the scale; LSQ: 1 / sqrt(values per scale * qmax)
  void options(OptionVisitor& v) override;
};
struct ObserveRangeAttrs : OptionsOf<ObserveRangeAttrs> {
  int64_t axis = -1;        // the axis of the channels if the states are [C]; -1: one range
  double averaging = 0.01;  // weight of this batch; 1: the range of this batch replaces the states
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

/// Smaller scales are replaced by this one, the smallest of PyTorch's observers. They get its gradient, so that a scale that has become too
/// small can grow again.
inline constexpr double kLeastFakeScale = 0x1p-23;

/// x f32, scale and zero_point f32 [] or [C] (whole numbers in the zero point) -> scale * (clamp(round(x / scale) + zero_point, qmin, qmax)
/// - zero_point). Has gradients of x and of scale, none of zero_point.
Value fake_quantize(Value x, Value scale, Value zero_point, const FakeQuantizeAttrs& attrs);
/// grad where round(x / scale) + zero_point is in qmin..qmax, else 0.
Value fake_quantize_backward(Value grad, Value x, Value scale, Value zero_point, const FakeQuantizeAttrs& attrs);
/// gradient_factor times the sum, over the values of each scale, of grad * (round(x/scale) - x/scale) inside the range, and of
/// grad * (qmin - zero_point) or grad * (qmax - zero_point) below and above it. Has the shape of scale.
Value fake_quantize_scale_backward(Value grad, Value x, Value scale, Value zero_point, const FakeQuantizeAttrs& attrs);

/// The new range of the states min_state and max_state, f32 [] or [C]; unchanged if `enabled` (f32 []) is 0. The initial range [inf, -inf]
/// is replaced by the batch's range; any other range moves by averaging * (batch - range). A NaN in x makes it NaN. The states change only
/// in keep_range, so a step that ends before its updates leaves them unchanged.
struct MovingRange {
  Value min, max;
};
MovingRange observe_range(Value x, Value min_state, Value max_state, Value enabled, const ObserveRangeAttrs& attrs);
/// Stores the range in the states, in place. Belongs to the update phase.
void keep_range(Value min_state, Value max_state, const MovingRange& range);
/// affine_params (symmetric: symmetric_params of the larger bound) of each range, as f32 arrays of its shape; i8 where qmin is negative,
/// else u8. The initial range [inf, -inf] gives scale 1 and the zero point nearest to 0, a range that is not finite scale NaN.
struct RangeParams {
  Value scale, zero_point;
};
RangeParams qparams_from_range(Value min, Value max, const QparamsFromRangeAttrs& attrs);

}  // namespace galley
