#include "libcore/ops/collective.h"

#include "libcore/ops/gradient.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/shape.h"

namespace galley {
namespace {

constexpr int64_t kSegmentUnit = 16;  // segment_stride in comm/communicator.h
constexpr std::string_view kNoCollectiveGradient = "gradients are summed over ranks after differentiation";

template <class Attrs>
const Attrs& of_tensor(const GradientBuilder& g) {
  const auto& attrs = g.attrs<Attrs>();
  GALLEY_ASSERT(attrs.tensor, attrs.name, ": ", kNoCollectiveGradient);
  return attrs;
}

/// The parts of a sum have the gradient of the sum; what arrives at a wait goes to its start.
template <class Attrs>
void same_gradient(GradientBuilder& g) {
  of_tensor<Attrs>(g);
  g.set(0, g.grad());
}

CollectiveAttrs of_gradient(const CollectiveAttrs& attrs) {
  CollectiveAttrs made = attrs;
  made.name += ".gradient";
  return made;
}

void summed_gradient(GradientBuilder& g) {
  const CollectiveAttrs attrs = of_gradient(of_tensor<CollectiveAttrs>(g));
  g.set(0, all_reduce_wait(all_reduce_start(g.grad(), attrs), attrs));
}

SegmentAttrs of_gradient(const SegmentAttrs& attrs) {
  SegmentAttrs made = attrs;
  made.name += ".gradient";
  made.sums_gradient = false;
  return made;
}

/// A rank's part of what was gathered has its part of the gradient.
void part_of_gradient(GradientBuilder& g) {
  const auto& attrs = of_tensor<SegmentAttrs>(g);
  const int64_t elements = g.grad().shape()[0] / attrs.ranks;
  if (attrs.sums_gradient) {
    const SegmentAttrs made = of_gradient(attrs);
    g.set(0, reduce_scatter_wait(reduce_scatter_start(g.grad(), made), made));
  } else {
    g.set(0, slice(g.grad(), 0, attrs.rank * elements, (attrs.rank + 1) * elements));
  }
}

void gathered_gradient(GradientBuilder& g) {
  const SegmentAttrs made = of_gradient(of_tensor<SegmentAttrs>(g));
  g.set(0, all_gather_wait(all_gather_start(g.grad(), made), made));
}

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

/// The axes of the mesh along which the ranks of a collective differ. `ranks` 0: all that read other samples.
std::vector<PlacementAxis> axes_of(bool tensor, int64_t ranks, int64_t stride) {
  if (tensor) return {PlacementAxis::kTensor};
  if (ranks == 0) return {PlacementAxis::kData, PlacementAxis::kShard};
  return {stride > 1 ? PlacementAxis::kData : PlacementAxis::kShard};
}
Placement with(Placement placement, const std::vector<PlacementAxis>& axes, Held held) {
  for (const PlacementAxis axis : axes) placement[axis] = held;
  return placement;
}
/// What a start gives is its input until the wait.
Placement place_start(const OpDef&, const OpContext& c) { return c.in(0).placement; }
Placement place_sum(const OpDef&, const OpContext& c) {
  const auto& attrs = c.attrs<CollectiveAttrs>();
  return with(c.in(0).placement, axes_of(attrs.tensor, attrs.ranks, attrs.stride), Held::kReplicated);
}
Placement place_broadcast(const OpDef&, const OpContext& c) { return with(c.in(0).placement, axes_of(false, 0, 1), Held::kReplicated); }
template <Held held>
Placement place_segments(const OpDef&, const OpContext& c) {
  const auto& attrs = c.attrs<SegmentAttrs>();
  return with(c.in(0).placement, axes_of(attrs.tensor, attrs.ranks, attrs.stride), held);
}

using InferRule = std::vector<TensorType> (*)(const OpContext&);
using PlaceRule = Placement (*)(const OpDef&, const OpContext&);

/// `same_size`: the output has the size of the input, so that it may have its memory.
OpDef segments(std::string_view name, std::string_view doc, InferRule infer, PlaceRule place, bool same_size,
               void (*gradient)(GradientBuilder&)) {
  OpDef def{.name = name,
            .doc = doc,
            .inputs = {"x"},
            .outputs = {"y"},
            .make_attrs = make_options<SegmentAttrs>,
            .infer = infer,
            .gradient = gradient,
            .place = place,
            .layout = {.formats = FormatRule::kContiguous},
            .has_effect = true};
  if (same_size) def.may_reuse = {{0, 0}};
  return def;
}

OpDef collective(std::string_view name, std::string_view doc, PlaceRule place) {
  return {.name = name,
          .doc = doc,
          .inputs = {"x"},
          .outputs = {"y"},
          .make_attrs = make_options<CollectiveAttrs>,
          .infer = infer_same,
          .gradient = same_gradient<CollectiveAttrs>,
          .place = place,
          .layout = {.formats = FormatRule::kContiguous},
          .may_reuse = {{0, 0}},
          .has_effect = true};
}

}  // namespace

void CollectiveAttrs::options(OptionVisitor& v) {
  v.option({.name = "name", .doc = "the collective in messages"}, name);
  v.option({.name = "ranks", .doc = "members of a group; 0: all ranks", .min = 0}, ranks);
  v.option({.name = "stride", .doc = "between the ranks of a group", .min = 1}, stride);
  v.option({.name = "tensor", .doc = "between the ranks that divide matrices"}, tensor);
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
  v.option({.name = "tensor", .doc = "between the ranks that divide matrices"}, tensor);
  v.option({.name = "sums_gradient", .doc = "each rank computes a part of the gradient of the whole array"}, sums_gradient);
  v.option({.name = "common", .doc = "ranks that share memory have one copy of the result"}, common);
}

const OpDef& all_reduce_start_op() {
  static const OpDef def = collective("all_reduce_start", "starts the sum over ranks", place_start);
  return def;
}

const OpDef& all_reduce_wait_op() {
  static const OpDef def = collective("all_reduce_wait", "waits for the sum over ranks", place_sum);
  return def;
}

namespace {
CollectiveAttrs named(const std::string& name, bool tensor = false) {
  CollectiveAttrs attrs;
  attrs.name = name;
  attrs.tensor = tensor;
  return attrs;
}
}  // namespace

Value all_reduce_start(Value x, const CollectiveAttrs& attrs) { return emit(all_reduce_start_op(), {x}, attrs); }
Value all_reduce_wait(Value started, const CollectiveAttrs& attrs) { return emit(all_reduce_wait_op(), {started}, attrs); }
Value all_reduce_start(Value x, const std::string& name) { return all_reduce_start(x, named(name)); }
Value all_reduce_wait(Value started, const std::string& name) { return all_reduce_wait(started, named(name)); }

const OpDef& sum_gradient_op() {
  static const OpDef def{.name = "sum_gradient",
                         .doc = "x, whose gradient is summed over ranks (tensor parallelism; Shoeybi et al. 2019)",
                         .inputs = {"x"},
                         .outputs = {"y"},
                         .make_attrs = make_options<CollectiveAttrs>,
                         .infer = infer_same,
                         .gradient = summed_gradient,
                         .work = WorkClass::kView};
  return def;
}

Value sum_gradient(Value x, const std::string& name) { return emit(sum_gradient_op(), {x}, named(name, true)); }

namespace {
OpDef broadcast(std::string_view name, std::string_view doc, PlaceRule place) {
  OpDef def = collective(name, doc, place);
  def.make_attrs = make_options<BroadcastAttrs>;
  def.gradient = nullptr;
  def.no_gradient = kNoCollectiveGradient;
  def.infer = [](const OpContext& c) -> std::vector<TensorType> {
    TensorType y = c.in(0);
    y.format = {};
    return {y};
  };
  return def;
}
}  // namespace

const OpDef& broadcast_start_op() {
  static const OpDef def = broadcast("broadcast_start", "starts to give all ranks the values of one", place_start);
  return def;
}

const OpDef& broadcast_wait_op() {
  static const OpDef def = broadcast("broadcast_wait", "waits for the values of the root", place_broadcast);
  return def;
}

Value broadcast_start(Value x, const BroadcastAttrs& attrs) { return emit(broadcast_start_op(), {x}, attrs); }
Value broadcast_wait(Value started, const BroadcastAttrs& attrs) { return emit(broadcast_wait_op(), {started}, attrs); }

const OpDef& reduce_scatter_start_op() {
  static const OpDef def = segments("reduce_scatter_start", "starts the sum over ranks of a flat array, of which each receives a part",
                                    infer_scatter_start, place_start, true, same_gradient<SegmentAttrs>);
  return def;
}

const OpDef& reduce_scatter_wait_op() {
  static const OpDef def = segments("reduce_scatter_wait", "waits for the rank's part of the sum", infer_scatter_wait,
                                    place_segments<Held::kRange>, false, gathered_gradient);
  return def;
}

const OpDef& all_gather_start_op() {
  static const OpDef def =
      segments("all_gather_start", "starts to collect the parts of all ranks", infer_gather_start, place_start, false, part_of_gradient);
  return def;
}

const OpDef& all_gather_wait_op() {
  static const OpDef def = segments("all_gather_wait", "waits for the parts of all ranks", infer_gather_wait,
                                    place_segments<Held::kReplicated>, true, same_gradient<SegmentAttrs>);
  return def;
}

Value reduce_scatter_start(Value x, const SegmentAttrs& attrs) { return emit(reduce_scatter_start_op(), {x}, attrs); }
Value reduce_scatter_wait(Value started, const SegmentAttrs& attrs) { return emit(reduce_scatter_wait_op(), {started}, attrs); }
Value all_gather_start(Value part, const SegmentAttrs& attrs) { return emit(all_gather_start_op(), {part}, attrs); }
Value all_gather_wait(Value started, const SegmentAttrs& attrs) { return emit(all_gather_wait_op(), {started}, attrs); }

bool starts_collective(const Node& node) {
  return node.op == &all_reduce_start_op() || node.op == &reduce_scatter_start_op() || node.op == &all_gather_start_op() ||
         node.op == &broadcast_start_op();
}

bool waits_for_collective(const Node& node) {
  return node.op == &all_reduce_wait_op() || node.op == &reduce_scatter_wait_op() || node.op == &all_gather_wait_op() ||
         node.op == &broadcast_wait_op();
}

std::string collective_name(const Node& node) {
  if (const auto* sum = dynamic_cast<const CollectiveAttrs*>(node.attributes.get())) return sum->name;
  if (const auto* given = dynamic_cast<const BroadcastAttrs*>(node.attributes.get())) return given->name;
  const auto* parts = dynamic_cast<const SegmentAttrs*>(node.attributes.get());
  return parts != nullptr ? parts->name : "";
}

bool starts_common_gather(const Node& node) { return node.op == &all_gather_start_op() && node.attrs<SegmentAttrs>().common; }

bool may_gather_again(const Node& node) {
  return (node.op == &all_gather_start_op() || node.op == &all_gather_wait_op()) && node.attrs<SegmentAttrs>().sums_gradient;
}

OpTable collective_ops() {
  return {&all_reduce_start_op(), &all_reduce_wait_op(), &reduce_scatter_start_op(), &reduce_scatter_wait_op(), &all_gather_start_op(),
          &all_gather_wait_op(),  &broadcast_start_op(), &broadcast_wait_op(),       &sum_gradient_op()};
}

}  // namespace galley
