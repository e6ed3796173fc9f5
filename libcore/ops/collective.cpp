#include "libcore/ops/collective.h"

#include "libcore/ops/rules.h"

namespace galley {
namespace {

constexpr int64_t kSegmentUnit = 16;  // segment_stride in comm/communicator.h
constexpr std::string_view kNoCollectiveGradient = "gradients are summed over ranks after differentiation";

std::vector<TensorType> infer_same(const OpContext& c) {
  GALLEY_CHECK(c.in(0).dtype != DType::kBool && dtype_size(c.in(0).dtype) >= 2, "values of type ", c.in(0).dtype,
               " cannot be summed over ranks");
  TensorType y = c.in(0);
  y.format = {};
  return {y};
}

void check_segments(const SegmentAttrs& attrs) {
  GALLEY_CHECK(attrs.ranks >= 1 && attrs.rank >= 0 && attrs.rank < attrs.ranks, "rank ", attrs.rank, " of ", attrs.ranks);
}

/// Checks a flat array of `parts` parts, each of a multiple of 16 elements.
void check_flat(const TensorType& x, int64_t parts) {
  GALLEY_CHECK(x.shape.rank() == 1 && x.shape[0] % (kSegmentUnit * parts) == 0, "a flat array of a multiple of ", kSegmentUnit * parts,
               " elements is needed, not ", x);
}

TensorType flat(const TensorType& x, int64_t elements) {
  TensorType y;
  y.dtype = x.dtype;
  y.shape = Shape{elements};
  return y;
}

std::vector<TensorType> infer_scatter_start(const OpContext& c) {
  check_segments(c.attrs<SegmentAttrs>());
  check_flat(c.in(0), c.attrs<SegmentAttrs>().ranks);
  return infer_same(c);
}

std::vector<TensorType> infer_scatter_wait(const OpContext& c) {
  const auto& attrs = c.attrs<SegmentAttrs>();
  check_segments(attrs);
  check_flat(c.in(0), attrs.ranks);
  return {flat(c.in(0), c.in(0).shape[0] / attrs.ranks)};
}

std::vector<TensorType> infer_gather_start(const OpContext& c) {
  const auto& attrs = c.attrs<SegmentAttrs>();
  check_segments(attrs);
  check_flat(c.in(0), 1);
  return {flat(c.in(0), c.in(0).shape[0] * attrs.ranks)};
}

std::vector<TensorType> infer_gather_wait(const OpContext& c) {
  check_segments(c.attrs<SegmentAttrs>());
  check_flat(c.in(0), c.attrs<SegmentAttrs>().ranks);
  return {flat(c.in(0), c.in(0).shape[0])};
}

using InferRule = std::vector<TensorType> (*)(const OpContext&);

/// `same_size`: the output has the size of the input, so that it may have its memory.
OpDef segments(std::string_view name, std::string_view doc, InferRule infer, bool same_size) {
  OpDef def{.name = name,
            .doc = doc,
            .inputs = {"x"},
            .outputs = {"y"},
            .make_attrs = make_options<SegmentAttrs>,
            .infer = infer,
            .no_gradient = kNoCollectiveGradient,
            .layout = {.formats = FormatRule::kContiguous},
            .has_effect = true};
  if (same_size) def.may_reuse = {{0, 0}};
  return def;
}

OpDef collective(std::string_view name, std::string_view doc) {
  return {.name = name,
          .doc = doc,
          .inputs = {"x"},
          .outputs = {"y"},
          .make_attrs = make_options<CollectiveAttrs>,
          .infer = infer_same,
          .no_gradient = kNoCollectiveGradient,
          .layout = {.formats = FormatRule::kContiguous},
          .may_reuse = {{0, 0}},
          .has_effect = true};
}

}  // namespace

void CollectiveAttrs::options(OptionVisitor& v) {
  v.option({.name = "name", .doc = "the collective in messages"}, name);
  v.option({.name = "ranks", .doc = "members of a group; 0: all ranks", .min = 0}, ranks);
  v.option({.name = "stride", .doc = "between the ranks of a group", .min = 1}, stride);
}

void BroadcastAttrs::options(OptionVisitor& v) {
  v.option({.name = "name", .doc = "the collective in messages"}, name);
  v.option({.name = "root", .doc = "the rank whose values all receive", .min = 0}, root);
}

void SegmentAttrs::options(OptionVisitor& v) {
  v.option({.name = "name", .doc = "the collective in messages"}, name);
  v.option({.name = "rank", .doc = "this rank", .min = 0}, rank);
  v.option({.name = "ranks", .doc = "number of ranks", .min = 1}, ranks);
  v.option({.name = "stride", .doc = "between the ranks of a group", .min = 1}, stride);
}

const OpDef& all_reduce_start_op() {
  static const OpDef def = collective("all_reduce_start", "starts the sum over ranks");
  return def;
}

const OpDef& all_reduce_wait_op() {
  static const OpDef def = collective("all_reduce_wait", "waits for the sum over ranks");
  return def;
}

namespace {
CollectiveAttrs of_all_ranks(const std::string& name) {
  CollectiveAttrs attrs;
  attrs.name = name;
  return attrs;
}
}  // namespace

Value all_reduce_start(Value x, const CollectiveAttrs& attrs) { return emit(all_reduce_start_op(), {x}, attrs); }
Value all_reduce_wait(Value started, const CollectiveAttrs& attrs) { return emit(all_reduce_wait_op(), {started}, attrs); }
Value all_reduce_start(Value x, const std::string& name) { return all_reduce_start(x, of_all_ranks(name)); }
Value all_reduce_wait(Value started, const std::string& name) { return all_reduce_wait(started, of_all_ranks(name)); }

namespace {
OpDef broadcast(std::string_view name, std::string_view doc) {
  OpDef def = collective(name, doc);
  def.make_attrs = make_options<BroadcastAttrs>;
  def.infer = [](const OpContext& c) -> std::vector<TensorType> {
    TensorType y = c.in(0);
    y.format = {};
    return {y};
  };
  return def;
}
}  // namespace

const OpDef& broadcast_start_op() {
  static const OpDef def = broadcast("broadcast_start", "starts to give all ranks the values of one");
  return def;
}

const OpDef& broadcast_wait_op() {
  static const OpDef def = broadcast("broadcast_wait", "waits for the values of the root");
  return def;
}

Value broadcast_start(Value x, const BroadcastAttrs& attrs) { return emit(broadcast_start_op(), {x}, attrs); }
Value broadcast_wait(Value started, const BroadcastAttrs& attrs) { return emit(broadcast_wait_op(), {started}, attrs); }

const OpDef& reduce_scatter_start_op() {
  static const OpDef def = segments("reduce_scatter_start", "starts the sum over ranks of a flat array, of which each receives a part",
                                    infer_scatter_start, true);
  return def;
}

const OpDef& reduce_scatter_wait_op() {
  static const OpDef def = segments("reduce_scatter_wait", "waits for the rank's part of the sum", infer_scatter_wait, false);
  return def;
}

const OpDef& all_gather_start_op() {
  static const OpDef def = segments("all_gather_start", "starts to collect the parts of all ranks", infer_gather_start, false);
  return def;
}

const OpDef& all_gather_wait_op() {
  static const OpDef def = segments("all_gather_wait", "waits for the parts of all ranks", infer_gather_wait, true);
  return def;
}

Value reduce_scatter_start(Value x, const SegmentAttrs& attrs) { return emit(reduce_scatter_start_op(), {x}, attrs); }
Value reduce_scatter_wait(Value started, const SegmentAttrs& attrs) { return emit(reduce_scatter_wait_op(), {started}, attrs); }
Value all_gather_start(Value part, const SegmentAttrs& attrs) { return emit(all_gather_start_op(), {part}, attrs); }
Value all_gather_wait(Value started, const SegmentAttrs& attrs) { return emit(all_gather_wait_op(), {started}, attrs); }

OpTable collective_ops() {
  return {&all_reduce_start_op(), &all_reduce_wait_op(), &reduce_scatter_start_op(), &reduce_scatter_wait_op(),
          &all_gather_start_op(), &all_gather_wait_op(), &broadcast_start_op(),      &broadcast_wait_op()};
}

}  // namespace galley
