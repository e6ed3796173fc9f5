#pragma once
// Reductions over axes. Axes count from 0, negative axes from the end; an empty list means all axes.

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

struct ReduceAttrs : OptionsOf<ReduceAttrs> {
  std::vector<int64_t> axes;
  bool keepdim = false;
  void options(OptionVisitor& v) override;
};
struct ArgmaxAttrs : OptionsOf<ArgmaxAttrs> {
  int64_t axis = -1;
  bool keepdim = false;
  void options(OptionVisitor& v) override;
};
struct TopkAttrs : OptionsOf<TopkAttrs> {
  int64_t k = 1;
  int64_t axis = -1;
  void options(OptionVisitor& v) override;
};

const OpDef& sum_op();
const OpDef& mean_op();
const OpDef& amax_op();
const OpDef& amin_op();
const OpDef& argmax_op();
const OpDef& topk_op();
const OpDef& sum_squares_op();

Value sum(Value x, const ReduceAttrs& attrs = {});
Value sum(Value x, std::vector<int64_t> axes, bool keepdim = false);
Value mean(Value x, const ReduceAttrs& attrs = {});
Value mean(Value x, std::vector<int64_t> axes, bool keepdim = false);
/// The largest value; equal values share the gradient evenly, as in PyTorch's amax. The reduced axes must not be empty.
Value amax(Value x, const ReduceAttrs& attrs = {});
Value amin(Value x, const ReduceAttrs& attrs = {});
/// Index (i64) of the largest value; of equal values the first.
Value argmax(Value x, const ArgmaxAttrs& attrs = {});
struct TopK {
  Value values, indices;
};
/// The k largest along an axis, in descending order, and their indices (i64); of equal values the one with the lower index comes first.
TopK topk(Value x, const TopkAttrs& attrs = {});
/// Sum of squares over all elements of all inputs: f32 [].
Value sum_squares(std::span<const Value> x);

}  // namespace galley
