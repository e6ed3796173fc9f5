#pragma once
// Operators that move or relabel elements: concat, slice, pad, permute, reshape; and capture functions made of them. Axes count from 0,
// negative ones from the end; sizes are logical in every format.

#include <array>
#include <limits>

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

struct ConcatAttrs : OptionsOf<ConcatAttrs> {
  int64_t axis = 1;
  void options(OptionVisitor& v) override;
};
struct SliceAttrs : OptionsOf<SliceAttrs> {
  int64_t axis = 0;
  int64_t start = 0;                                  // negative: from the end
  int64_t end = std::numeric_limits<int64_t>::max();  // exclusive, clipped; negative: from the end
  int64_t step = 1;                                   // at least 1
  void options(OptionVisitor& v) override;
  /// The first index, and the number of elements, for an axis of that size.
  std::array<int64_t, 2> range(int64_t size) const;
};
struct SliceBackwardAttrs : OptionsOf<SliceBackwardAttrs> {
  int64_t axis = 0, start = 0, end = std::numeric_limits<int64_t>::max(), step = 1;
  int64_t size = 0;  // of the axis before slicing
  void options(OptionVisitor& v) override;
  SliceAttrs slice() const;
};
struct PadAttrs : OptionsOf<PadAttrs> {
  std::vector<int64_t> padding;  // before, after for each dimension, first dimension first
  double value = 0;
  void options(OptionVisitor& v) override;
};
struct PermuteAttrs : OptionsOf<PermuteAttrs> {
  std::vector<int64_t> order;  // output dimension i is input dimension order[i]
  void options(OptionVisitor& v) override;
};
struct ReshapeAttrs : OptionsOf<ReshapeAttrs> {
  std::vector<int64_t> shape;      // one may be -1
  std::vector<std::string> names;  // dimension names of the output; empty: leading dimensions that stay keep theirs
  void options(OptionVisitor& v) override;
};

const OpDef& concat_op();
const OpDef& slice_op();
const OpDef& slice_backward_op();
const OpDef& pad_op();
const OpDef& permute_op();
const OpDef& reshape_op();

Value concat(std::span<const Value> x, const ConcatAttrs& attrs = {});
Value concat(std::initializer_list<Value> x, int64_t axis = 1);
Value slice(Value x, const SliceAttrs& attrs);
Value slice(Value x, int64_t axis, int64_t start, int64_t end = std::numeric_limits<int64_t>::max());
/// An array of zeros of the size before slicing, into which grad is written.
Value slice_backward(Value grad, const SliceBackwardAttrs& attrs);
Value pad(Value x, const PadAttrs& attrs);
Value pad(Value x, std::vector<int64_t> padding, double value = 0);
Value permute(Value x, const PermuteAttrs& attrs);
Value permute(Value x, std::vector<int64_t> order);
/// The same elements in logical order under another shape.
Value reshape(Value x, const ReshapeAttrs& attrs);
Value reshape(Value x, std::initializer_list<int64_t> shape);  ///< one may be -1
Value reshape(Value x, const Shape& shape);

// Composed of the above.
Value transpose(Value x, int64_t axis_a, int64_t axis_b);
/// Joins dimensions start..end (inclusive) into one.
Value flatten(Value x, int64_t start = 1, int64_t end = -1);
Value unsqueeze(Value x, int64_t axis);
/// Drops a dimension of size 1.
Value squeeze(Value x, int64_t axis);
/// Parts of these sizes along an axis. Their sum must be the size of the axis.
std::vector<Value> split(Value x, const std::vector<int64_t>& sizes, int64_t axis = 1);
/// `count` equal parts (the last may be smaller, as in PyTorch).
std::vector<Value> chunk(Value x, int64_t count, int64_t axis = 1);

}  // namespace galley
