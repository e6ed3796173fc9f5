#pragma once
// Operators that read and write elements by integer indices: gather and its transpose scatter_add, one_hot, iota. Indices are i64 or i32
// and count from 0. An index outside the axis is an error in the data, and so is a negative index, as in PyTorch.

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"
#include "libcore/ops/shape.h"

namespace galley {

struct GatherAttrs : OptionsOf<GatherAttrs> {
  int64_t axis = 0;
  void options(OptionVisitor& v) override;
};
struct ScatterAddAttrs : OptionsOf<ScatterAddAttrs> {
  int64_t axis = 0;
  int64_t size = 0;  // of the result along the axis
  void options(OptionVisitor& v) override;
};
struct OneHotAttrs : OptionsOf<OneHotAttrs> {
  int64_t classes = 0;
  int64_t axis = -1;  // the position of the new dimension in the result
  DType dtype = DType::kF32;
  void options(OptionVisitor& v) override;
};
struct IotaAttrs : OptionsOf<IotaAttrs> {
  DType dtype = DType::kI64;
  std::vector<int64_t> shape;
  int64_t axis = 0;
  void options(OptionVisitor& v) override;
};

const OpDef& gather_op();
const OpDef& scatter_add_op();
const OpDef& one_hot_op();
const OpDef& iota_op();

/// y[.., i, ..] = x[.., index[.., i, ..], ..] along the axis; index has the rank of x and, except along the axis, its sizes. As
/// torch.gather.
Value gather(Value x, Value index, int64_t axis);
/// Zeros of `size` along the axis, into which y[.., index[.., i, ..], ..] += x[.., i, ..]; index has x's shape. Equal indices add up.
/// As torch.zeros(..).scatter_add.
Value scatter_add(Value x, Value index, int64_t axis, int64_t size);
/// Adds a dimension of size `classes` (the last, unless `axis` is given) that holds 1 at the index and 0 elsewhere.
Value one_hot(Value index, int64_t classes, int64_t axis = -1, DType dtype = DType::kF32);
/// An array whose elements are their index along the axis.
Value iota(Graph& graph, DType dtype, const Shape& shape, int64_t axis);

}  // namespace galley
