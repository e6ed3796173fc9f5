#pragma once
// Operators that move or relabel elements: concat, slice, pad, permute, reshape, cast, reorder, resize, full; and capture
// functions made of them. Axes count from 0, negative ones from the end; sizes are logical whatever the format.

#include <array>
#include <limits>

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

inline constexpr std::array<std::string_view, 10> kDTypeNames{"f32", "f64", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool"};

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
  /// First index, and how many elements are taken of an axis of that size.
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
struct CastAttrs : OptionsOf<CastAttrs> {
  DType dtype = DType::kF32;
  void options(OptionVisitor& v) override;
};
struct ReducePrecisionAttrs : OptionsOf<ReducePrecisionAttrs> {
  DType dtype = DType::kF32;
  void options(OptionVisitor& v) override;
};
struct ReorderAttrs : OptionsOf<ReorderAttrs> {
  std::string format = "contiguous";  // as MemoryFormat::parse reads
  void options(OptionVisitor& v) override;
};
enum class ResizeMode { kBilinear, kNearest };
inline constexpr std::array<std::string_view, 2> kResizeModeNames{"bilinear", "nearest"};
struct ResizeAttrs : OptionsOf<ResizeAttrs> {
  std::vector<int64_t> size;  // rows, columns of the output
  ResizeMode mode = ResizeMode::kBilinear;
  bool align_corners = false;
  void options(OptionVisitor& v) override;
};
struct ResizeBackwardAttrs : OptionsOf<ResizeBackwardAttrs> {
  std::vector<int64_t> input_size;
  ResizeMode mode = ResizeMode::kBilinear;
  bool align_corners = false;
  void options(OptionVisitor& v) override;
};
struct FullAttrs : OptionsOf<FullAttrs> {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  double value = 0;
  std::string format = "contiguous";
  std::vector<std::string> names;  // dimension names, or none
  void options(OptionVisitor& v) override;
};

/// Where a resized pixel comes from: rows (or columns) `low` and `high` with weights 1-fraction and fraction; nearest takes
/// `low` alone. As torch.nn.functional.interpolate without antialias: half-pixel centres, or corners on corners.
struct ResizeSource {
  int64_t low = 0, high = 0;
  double fraction = 0;
};
ResizeSource resize_source(int64_t out, int64_t in_size, int64_t out_size, ResizeMode mode, bool align_corners);

const OpDef& concat_op();
const OpDef& slice_op();
const OpDef& slice_backward_op();
const OpDef& pad_op();
const OpDef& permute_op();
const OpDef& reshape_op();
const OpDef& cast_op();
const OpDef& reduce_precision_op();
const OpDef& reorder_op();
const OpDef& resize_op();
const OpDef& resize_backward_op();
const OpDef& full_op();

Value concat(std::span<const Value> x, const ConcatAttrs& attrs = {});
Value concat(std::initializer_list<Value> x, int64_t axis = 1);
Value slice(Value x, const SliceAttrs& attrs);
Value slice(Value x, int64_t axis, int64_t start, int64_t end = std::numeric_limits<int64_t>::max());
/// grad put back into zeros of the size before slicing.
Value slice_backward(Value grad, const SliceBackwardAttrs& attrs);
Value pad(Value x, const PadAttrs& attrs);
Value pad(Value x, std::vector<int64_t> padding, double value = 0);
Value permute(Value x, const PermuteAttrs& attrs);
Value permute(Value x, std::vector<int64_t> order);
/// The same elements in logical order under another shape.
Value reshape(Value x, const ReshapeAttrs& attrs);
Value reshape(Value x, std::initializer_list<int64_t> shape);  ///< one may be -1
Value reshape(Value x, const Shape& shape);
/// The same values in another dtype (round to nearest even; to integers: toward zero, as PyTorch). x itself where it has it.
Value cast(Value x, DType dtype);
/// Each value rounded to the nearest of a floating dtype, in x's own dtype: the steps of a computation that is defined in that dtype. Its
/// gradient is that of the identity. x itself where it has the dtype.
Value reduce_precision(Value x, DType dtype);
/// The same values in another memory format. x itself where it has it.
Value reorder(Value x, const MemoryFormat& format);
/// x [N,C,H,W] -> [N,C,size].
Value resize(Value x, const ResizeAttrs& attrs);
Value resize_backward(Value grad, const ResizeBackwardAttrs& attrs);
/// A constant array of that type (names included).
Value full(Graph& graph, const TensorType& type, double value);

// Made of the above.
Value transpose(Value x, int64_t axis_a, int64_t axis_b);
/// Joins dimensions start..end (inclusive) into one.
Value flatten(Value x, int64_t start = 1, int64_t end = -1);
Value unsqueeze(Value x, int64_t axis);
/// Drops a dimension of size 1.
Value squeeze(Value x, int64_t axis);
/// Pieces of these sizes along an axis; they add up to its size.
std::vector<Value> split(Value x, const std::vector<int64_t>& sizes, int64_t axis = 1);
/// `count` equal pieces (the last may be smaller, as PyTorch).
std::vector<Value> chunk(Value x, int64_t count, int64_t axis = 1);

}  // namespace galley
