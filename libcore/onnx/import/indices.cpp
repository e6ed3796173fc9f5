// Imports operators with indices: Gather, Scatter, OneHot and related ones.

#include "libcore/onnx/import/indices.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/index.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/shape.h"

namespace galley::onnx_import {
namespace {

constexpr int64_t kMaxIndices = int64_t{1} << 24;

/// The product of some sizes of a value; check_sizes guarantees that it fits in 63 bits.
int64_t product_of(const Shape& shape, int begin, int end) {
  int64_t product = 1;
  for (int axis = begin; axis < end; ++axis) product *= shape[axis];
  return product;
}

/// Makes negative indices count from the end of `size` elements. `tokens`: inputs of the model are tokens, which are never negative.
Value from_zero(Call& c, size_t input, int64_t size, bool tokens = false) {
  Value index = c.x(input);
  GALLEY_CHECK_INPUT(index.dtype() == DType::kI64 || index.dtype() == DType::kI32, "its indices are ", index.type(),
                     ", but must be int64 or int32");
  const std::optional<Tensor> known = c.constant(input);
  if (known) {
    GALLEY_CHECK_INPUT(known->elements() <= kMaxIndices, "it has ", known->elements(), " constant indices, but at most ", kMaxIndices,
                       " are supported");
    std::vector<int64_t> at = to_ints(*known);
    bool changed = false;
    for (int64_t& i : at) {
      GALLEY_CHECK_INPUT(i >= -size && i < size, "index ", i, " is out of range for ", size, " elements");
      changed = changed || i < 0;
      if (i < 0) i += size;
    }
    if (!changed) return index;
    if (c.item(input).sized.empty()) {
      const Tensor list = from_ints(at);
      return c.table(Tensor(DType::kI64, known->shape(), {}, list.storage()));
    }
  }
  const ValueInfo& info = index.graph().value(index.id());
  if ((tokens && info.role == ValueRole::kInput) || c.opset() < 11) return index;
  return where(less(index, c.scalar_value(index.dtype(), 0)), add(index, c.scalar_value(index.dtype(), static_cast<double>(size))), index);
}

/// Constant indices in their order, counted from 0; nullopt if they are not constant.
std::optional<std::vector<int64_t>> constant_positions(Call& c, size_t input, int64_t size) {
  const std::optional<Tensor> known = c.constant(input);
  if (!known || known->elements() < 1 || known->elements() > kMaxIndices) return std::nullopt;
  std::vector<int64_t> at = to_ints(*known);
  for (int64_t& i : at) {
    GALLEY_CHECK_INPUT(i >= -size && i < size, "index ", i, " is out of range for ", size, " elements");
    if (i < 0) i += size;
  }
  return at;
}
bool is_range(const std::vector<int64_t>& places) {
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i] != places[0] + static_cast<int64_t>(i)) return false;
  }
  return true;
}

/// x with its axis split into these sizes.
Value with_axes(Value x, int axis, const Shape& sizes) {
  Shape shape;
  for (int i = 0; i < axis; ++i) shape.push_back(x.shape()[i]);
  for (const int64_t size : sizes) shape.push_back(size);
  for (int i = axis + 1; i < x.shape().rank(); ++i) shape.push_back(x.shape()[i]);
  GALLEY_CHECK_INPUT(shape.rank() <= Shape::kMaxRank, "its result has too many dimensions");
  return shape == x.shape() ? x : reshape(x, shape);
}

/// Slices of an axis, or rows of a weight table by indices.
void gather_node(Call& c) {
  const Item& data = c.item(0);
  const bool weight = data.is_weight && !data.transposed && data.constant.shape().rank() == 2;
  const Value x = weight && !c.constant(1) ? c.to.parameter(c.to.item(c.node.inputs[0]), "weight", "embedding") : c.x(0);
  const int axis = axis_in(c.integer("axis", 0), x.shape().rank());
  const int64_t size = x.shape()[axis];
  if (const auto places = constant_positions(c, 1, size); places && is_range(*places)) {
    Value part = x;
    if (std::ssize(*places) < size) part = slice(x, axis, places->front(), places->back() + 1);
    return c.set(with_axes(part, axis, c.constant(1)->shape()));
  }
  c.set(gather_along(x, axis, from_zero(c, 1, size, weight)));
}

void gather_elements(Call& c) {
  Value x = c.x(0);
  const int axis = axis_in(c.integer("axis", 0), x.shape().rank());
  const Value index = from_zero(c, 1, x.shape()[axis]);
  GALLEY_CHECK_INPUT(index.shape().rank() == x.shape().rank(), "indices ", index.type(), " do not fit data ", x.type());
  for (int d = 0; d < x.shape().rank(); ++d) {
    GALLEY_CHECK_INPUT(d == axis || index.shape()[d] <= x.shape()[d], "indices ", index.type(), " do not fit data ", x.type());
    if (d != axis && index.shape()[d] != x.shape()[d]) x = slice(x, d, 0, index.shape()[d]);
  }
  c.set(gather(x, index, axis));
}

/// Converts index tuples [...,k] over the k axes of `shape` from axis `batch` on to one index of these axes flattened.
Value flat_index(Call& c, size_t input, const Shape& shape, int batch) {
  const Value index = c.x(input);
  GALLEY_CHECK_INPUT(index.dtype() == DType::kI64 || index.dtype() == DType::kI32, "its indices are ", index.type(),
                     ", but must be int64 or int32");
  GALLEY_CHECK_INPUT(index.shape().rank() >= 1, "its indices must have at least one dimension");
  const int64_t k = index.shape()[-1];
  GALLEY_CHECK_INPUT(k >= 1 && batch + k <= shape.rank(), "its index tuples have ", k, " numbers, which does not fit data of shape ",
                     shape);
  Value flat;
  for (int i = 0; i < static_cast<int>(k); ++i) {
    const double size = static_cast<double>(shape[batch + i]);
    const Value part = squeeze(slice(index, -1, i, i + 1), -1), zero = c.scalar_value(part.dtype(), 0);
    const Value from = where(less(part, zero), add(part, c.scalar_value(part.dtype(), size)), part);
    flat = flat ? add(mul(flat, c.scalar_value(part.dtype(), size)), from) : from;
  }
  return flat;
}

/// Whether the index tuples of GatherND are constant and name all elements of the first axes in their order: how exporters read
/// attention_mask[sample, token].
bool reads_all_in_order(Call& c, const Shape& shape) {
  const std::optional<Tensor> known = c.constant(1);
  if (!known || known->shape().rank() < 1 || known->elements() > kMaxIndices) return false;
  const int64_t k = known->shape()[-1];
  if (k < 1 || k > shape.rank()) return false;
  const std::vector<int64_t> at = to_ints(*known);
  const int64_t count = product_of(shape, 0, static_cast<int>(k));
  if (std::ssize(at) != count * k) return false;
  for (int64_t row = 0; row < count; ++row) {
    int64_t flat = 0;
    for (int d = 0; d < static_cast<int>(k); ++d) {
      const int64_t i = at[static_cast<size_t>(row * k + d)];
      if (i < 0 || i >= shape[d]) return false;
      flat = flat * shape[d] + i;
    }
    if (flat != row) return false;
  }
  return true;
}

void gather_nd(Call& c) {
  const Value x = c.x(0);
  const int batch = static_cast<int>(c.integer("batch_dims", 0));
  const Shape& shape = x.shape();
  GALLEY_CHECK_INPUT(batch >= 0 && batch < shape.rank() && c.x(1).shape().rank() > batch, "batch_dims ", batch, " does not fit data ",
                     x.type());
  if (batch == 0 && reads_all_in_order(c, shape)) {
    const Shape index = c.constant(1)->shape();
    const int k = static_cast<int>(index[-1]);
    Shape all;
    for (int d = 0; d + 1 < index.rank(); ++d) all.push_back(index[d]);
    for (int d = k; d < shape.rank(); ++d) all.push_back(shape[d]);
    return c.set(reshape(x, all));
  }
  Value index = flat_index(c, 1, shape, batch);
  const int last = batch + static_cast<int>(c.x(1).shape()[-1]);
  const int64_t rows = product_of(shape, batch, last), batches = product_of(shape, 0, batch);
  if (batch > 0) {
    // Offset the indices by the first table row of each batch entry.
    Shape each;
    for (int d = 0; d < index.shape().rank(); ++d) each.push_back(d < batch ? index.shape()[d] : 1);
    GALLEY_CHECK_INPUT(each.elements() == batches, "batch_dims ", batch, " does not fit data ", x.type(), " and indices ", c.x(1).type());
    const Value number = reshape(iota(x.graph(), index.dtype(), Shape{batches}, 0), each);
    index = add(index, mul(number, c.scalar_value(index.dtype(), static_cast<double>(rows))));
  }
  Shape table{batches * rows};
  for (int d = last; d < shape.rank(); ++d) table.push_back(shape[d]);
  c.set(gather_along(reshape(x, table), 0, index));
}

// ---- scatter

enum class Join { kReplace, kAdd };
Join join_of(Call& c) {
  const std::string reduction = c.text("reduction", "none");
  if (reduction != "none" && reduction != "add") c.refuse(cat("reduction '", reduction, "' is not supported; it must be none or add"));
  return reduction == "add" ? Join::kAdd : Join::kReplace;
}

/// `data` with `updates` at `index` along an axis; `index` and `updates` have equal shapes.
Value scattered(Call& c, Value data, Value index, Value updates, int axis, Join join) {
  const int64_t size = data.shape()[axis];
  const Value sums = scatter_add(updates, index, axis, size);
  if (join == Join::kAdd) return add(data, sums);
  const Value ones = full(data.graph(), {.dtype = DType::kI32, .shape = updates.shape()}, 1);
  const Value hits = scatter_add(ones, index, axis, size);
  return where(greater(hits, c.scalar_value(DType::kI32, 0)), sums, data);
}

/// Checks constant index tuples over the first `k` axes of `shape`; negative indices count from the end. Without a reduction, an element
/// written twice must have one of both values, but scatter_add would sum them.
void check_tuples(Call& c, const Tensor& known, const Shape& shape, int k, Join join) {
  const std::vector<int64_t> at = to_ints(known);
  std::set<std::vector<int64_t>> seen;
  std::vector<int64_t> tuple;
  for (const int64_t i : at) {
    const int64_t size = shape[static_cast<int>(tuple.size())];
    GALLEY_CHECK_INPUT(i >= -size && i < size, "index ", i, " is out of range for ", size, " elements");
    tuple.push_back(i < 0 ? i + size : i);
    if (static_cast<int>(tuple.size()) < k) continue;
    if (join == Join::kReplace && !seen.insert(tuple).second) c.refuse("it writes an element twice");
    tuple.clear();
  }
}

void scatter_elements(Call& c) {
  const Value x = c.x(0), updates = c.x(2);
  const int axis = axis_in(c.integer("axis", 0), x.shape().rank()), rank = x.shape().rank();
  const Join join = join_of(c);
  const Value index = from_zero(c, 1, x.shape()[axis]);
  GALLEY_CHECK_INPUT(index.shape() == updates.shape() && index.shape().rank() == rank, "indices ", index.type(), " and updates ",
                     updates.type(), " do not fit data ", x.type());
  GALLEY_CHECK_INPUT(updates.dtype() == x.dtype(), "updates ", updates.type(), " do not fit data ", x.type());
  if (join == Join::kReplace && !c.constant(1)) {
    if (index.shape()[axis] != 1) c.refuse("its indices are not constant: an element that is written twice would be wrong");
  } else if (join == Join::kReplace) {
    // Check the positions along the axis, line by line.
    const Tensor known = *c.constant(1);
    const std::vector<int64_t> at = to_ints(known);
    const int64_t inner = product_of(known.shape(), axis + 1, rank), count = known.shape()[axis];
    std::set<std::pair<int64_t, int64_t>> seen;
    for (int64_t i = 0; i < static_cast<int64_t>(at.size()); ++i) {
      const int64_t line = i / (inner * count) * inner + i % inner, place = at[static_cast<size_t>(i)];
      if (!seen.insert({line, place < 0 ? place + x.shape()[axis] : place}).second) c.refuse("it writes an element twice");
    }
  }
  // If the indices cover only part of the other axes, only that part of the data changes.
  Value part = x;
  std::vector<int64_t> padding(static_cast<size_t>(2 * rank), 0);
  bool whole = true;
  for (int d = 0; d < rank; ++d) {
    if (d == axis || index.shape()[d] == x.shape()[d]) continue;
    GALLEY_CHECK_INPUT(index.shape()[d] <= x.shape()[d], "indices ", index.type(), " do not fit data ", x.type());
    part = slice(part, d, 0, index.shape()[d]);
    padding[static_cast<size_t>(2 * d + 1)] = x.shape()[d] - index.shape()[d];
    whole = false;
  }
  const Value changed = scattered(c, part, index, updates, axis, join);
  if (whole) return c.set(changed);
  const Value inside = pad(full(x.graph(), {.dtype = DType::kI32, .shape = part.shape()}, 1), padding);
  c.set(where(greater(inside, c.scalar_value(DType::kI32, 0)), pad(changed, padding), x));
}

void scatter_nd(Call& c) {
  const Value x = c.x(0), updates = c.x(2);
  const Join join = join_of(c);
  const Value index = flat_index(c, 1, x.shape(), 0);
  const auto k = static_cast<int>(c.x(1).shape()[-1]);
  const int64_t rows = product_of(x.shape(), 0, k), width = product_of(x.shape(), k, x.shape().rank()), count = index.shape().elements();
  int64_t written = 0;
  GALLEY_CHECK_INPUT(
      !__builtin_mul_overflow(count, width, &written) && updates.dtype() == x.dtype() && updates.shape().elements() == written, "updates ",
      updates.type(), " at indices ", c.x(1).type(), " do not fit data ", x.type());
  if (join == Join::kReplace && !c.constant(1) && count != 1)
    c.refuse("its indices are not constant: an element that is written twice would be wrong");
  if (const std::optional<Tensor> known = c.constant(1)) check_tuples(c, *known, x.shape(), k, join);
  const Value places = broadcast_to(reshape(index, {count, 1}), Shape{count, width});
  c.set(reshape(scattered(c, reshape(x, {rows, width}), places, reshape(updates, {count, width}), 0, join), x.shape()));
}

/// An index out of range gives no element with the on value.
void one_hot_node(Call& c) {
  const std::vector<double> depth = c.constant(1) ? c.constant(1)->to_doubles() : std::vector<double>();
  GALLEY_CHECK_INPUT(depth.size() == 1 && depth[0] >= 1 && depth[0] <= static_cast<double>(kMaxIndices), "its depth must be constant");
  const auto classes = static_cast<int64_t>(depth[0]);
  const Value x = c.x(0), index = cast(x, DType::kI64);
  const int rank = index.shape().rank() + 1, axis = axis_in(c.integer("axis", -1), rank);
  const Value zero = c.scalar_value(DType::kI64, 0),
              from = where(less(index, zero), add(index, c.scalar_value(DType::kI64, static_cast<double>(classes))), index);
  Shape shape;
  for (int d = 0; d < rank; ++d) shape.push_back(d == axis ? classes : 1);
  const Value hit = equal(unsqueeze(from, axis), iota(x.graph(), DType::kI64, shape, axis)), values = c.x(2);
  GALLEY_CHECK_INPUT(values.shape() == Shape({2}), "its values are ", values.type(), ", but must be two elements");
  const auto value = [&](int64_t i) { return reshape(slice(values, 0, i, i + 1), Shape{}); };
  c.set(where(hit, value(1), value(0)));
}

/// The condition must be constant.
void compress(Call& c) {
  const std::optional<Tensor> known = c.constant(1);
  GALLEY_CHECK_INPUT(known && known->shape().rank() == 1, "its condition must be constant, because the size of the result depends on it");
  Value x = c.x(0);
  const bool flat = c.find("axis") == nullptr;
  const int axis = flat ? 0 : axis_in(c.integer("axis", 0), x.shape().rank());
  if (flat) x = reshape(x, {-1});
  const std::vector<int64_t> condition = to_ints(*known);
  std::vector<int64_t> places;
  for (int64_t i = 0; i < std::min(x.shape()[axis], static_cast<int64_t>(condition.size())); ++i) {
    if (condition[static_cast<size_t>(i)] != 0) places.push_back(i);
  }
  GALLEY_CHECK_INPUT(!places.empty(), "it selects no element");
  c.set(select_along(c, x, axis, places));
}

/// Reverses the first steps of each sample; the lengths must be constant.
void reverse_sequence(Call& c) {
  const Value x = c.x(0);
  const int time = axis_in(c.integer("time_axis", 0), x.shape().rank()), batch = axis_in(c.integer("batch_axis", 1), x.shape().rank());
  const std::vector<int64_t> lengths = c.ints(1);
  const int64_t steps = x.shape()[time], count = x.shape()[batch];
  GALLEY_CHECK_INPUT(time != batch && static_cast<int64_t>(lengths.size()) == count && steps * count <= kMaxIndices, "it has ",
                     lengths.size(), " lengths, which does not fit data ", x.type());
  std::vector<int64_t> at;
  for (int64_t i = 0; i < steps * count; ++i) {
    const int64_t step = time < batch ? i / count : i % steps, length = lengths[static_cast<size_t>(time < batch ? i % count : i / steps)];
    GALLEY_CHECK_INPUT(length >= 0 && length <= steps, "a length is ", length, ", but there are ", steps, " steps");
    at.push_back(step < length ? length - 1 - step : step);
  }
  const Tensor list = from_ints(at);
  Shape shape;
  for (int d = 0; d < x.shape().rank(); ++d) shape.push_back(d == time ? steps : d == batch ? count : 1);
  c.set(gather(x, broadcast_to(c.table(Tensor(DType::kI64, shape, {}, list.storage())), x.shape()), time));
}

}  // namespace

Value select_along(Call& c, Value x, int axis, const std::vector<int64_t>& places) {
  if (is_range(places)) return slice(x, axis, places.front(), places.back() + 1);
  return gather_along(x, axis, c.table(from_ints(places)));
}

Value reversed(Call& c, Value x, int axis) {
  GALLEY_CHECK_INPUT(x.shape()[axis] <= kMaxIndices, "it reverses an axis of ", x.type(), ", which is too long: at most ", kMaxIndices,
                     " elements are supported");
  std::vector<int64_t> places(static_cast<size_t>(x.shape()[axis]));
  std::iota(places.rbegin(), places.rend(), 0);
  return places.size() < 2 ? x : select_along(c, x, axis, places);
}

Value gather_along(Value x, int axis, Value index) {
  const int rank = x.shape().rank(), added = index.shape().rank();
  GALLEY_CHECK_INPUT(rank - 1 + added <= Shape::kMaxRank, "its result has ", rank - 1 + added, " dimensions, but at most ", Shape::kMaxRank,
                     " are supported");
  std::vector<int64_t> order{axis}, back;
  Shape shape = index.shape();
  for (int d = 0; d < rank; ++d) {
    if (d == axis) continue;
    order.push_back(d);
    shape.push_back(x.shape()[d]);
  }
  const int64_t rows = x.shape()[axis];
  const int64_t width = product_of(x.shape(), 0, axis) * product_of(x.shape(), axis + 1, rank);
  GALLEY_CHECK_INPUT(rows >= 1 && width >= 1, "it selects from an empty tensor: ", x.type());
  const Value table = axis == 0 && rank == 2 ? x : reshape(axis == 0 ? x : permute(x, order), {rows, width});
  Value picked;
  if (is_floating(x.dtype())) {
    picked = embedding(table, index);
  } else {
    const int64_t count = index.shape().elements();
    picked = gather(table, broadcast_to(reshape(index, {count, 1}), Shape{count, width}), 0);
  }
  if (!(picked.shape() == shape)) picked = reshape(picked, shape);
  for (int d = 0; d < axis; ++d) back.push_back(added + d);
  for (int d = 0; d < added; ++d) back.push_back(d);
  for (int d = axis; d < rank - 1; ++d) back.push_back(added + d);
  return axis == 0 || added == 0 ? picked : permute(picked, back);
}

MakeTable index_rows() {
  return {{"Gather", gather_node},
          {"GatherElements", gather_elements},
          {"GatherND", gather_nd},
          {"ScatterElements", scatter_elements},
          {"Scatter", scatter_elements},
          {"ScatterND", scatter_nd},
          {"OneHot", one_hot_node},
          {"Compress", compress},
          {"ReverseSequence", reverse_sequence}};
}

}  // namespace galley::onnx_import
