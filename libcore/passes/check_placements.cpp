#include "libcore/passes/check_placements.h"

#include <algorithm>

#include "libcore/ops/attention.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/collective.h"
#include "libcore/ops/elementwise.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/index.h"
#include "libcore/ops/loss.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/shape.h"

namespace galley {
namespace {

/// What a rank has of a value.
enum class Share : uint8_t {
  kWhole,
  kPart,     // along one dimension
  kPartial,  // a partial sum, complete after an all_reduce
  kPiece,    // values of this rank alone, to be gathered or summed
  kPieces,   // those of all ranks, which moves put into their places; then the value is whole
};

/// Whether an element-wise function of two values is linear in this one.
bool is_linear_in(const Node& node, size_t operand) {
  const ElementwiseRow* row = find_elementwise(node.op->name);
  if (row == nullptr || row->arity() != 2) return false;
  const Formula& formula = row->formula(node.attributes.get());
  const auto at = [&](double value) {
    double inputs[2] = {1.25, 1.25};
    inputs[operand] = value;
    return formula.value(inputs, function_numbers(node.attributes.get()));
  };
  return at(0) == 0 && at(1.5) + at(-4) == at(-2.5);
}

class Checker {
 public:
  Checker(const Graph& graph, const TensorDivisions& divisions, const TensorPlacements& placements, const TensorParallelOptions& options)
      : graph_(graph), divisions_(divisions), placements_(placements), options_(options), shares_(graph.value_count(), Share::kWhole) {}

  void run() {
    for (const ValueId id : graph_.inputs()) {
      const auto found = divisions_.find(graph_.value(id).name);
      const TensorDivision* place = division(id);
      GALLEY_ASSERT((found != divisions_.end()) == (place != nullptr) && (place == nullptr || *place == found->second), "the input ",
                    graph_.value(id).name, " has another place");
      if (place != nullptr) set(id, Share::kPart);
    }
    for (const Node& node : graph_.nodes()) {
      const Share result = of(node);
      for (const ValueId id : node.outputs) set(id, result);
      for (const ValueId id : node.outputs) {
        const bool part = placements_.count(id) > 0;
        require(node, !part || share_of(id) == Share::kPart, "gives no part");
        if (!part) continue;
        const TensorDivision& division = placements_.at(id);
        require(node, graph_.type(id).shape[division.dim] == division.size(options_.rank, options_.ranks), "has another size");
      }
    }
    for (const auto& [name, id] : graph_.outputs())
      GALLEY_ASSERT(share_of(id) == Share::kWhole || share_of(id) == Share::kPieces, "the output ", name, " is not whole");
  }

 private:
  Share share_of(ValueId id) const { return id == kNoValue ? Share::kWhole : shares_[static_cast<size_t>(id)]; }
  void set(ValueId id, Share share) { shares_[static_cast<size_t>(id)] = share; }
  void require(const Node& node, bool condition, const char* what) const {
    GALLEY_ASSERT(condition, node.op->name, " at ", node.path, " ", what);
  }
  bool any(const Node& node, Share wanted) const {
    return std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) { return share_of(id) == wanted; });
  }
  const TensorDivision* division(ValueId id) const {
    const auto found = id == kNoValue ? placements_.end() : placements_.find(id);
    return found == placements_.end() ? nullptr : &found->second;
  }

  Share of(const Node& node) const {
    if (node.op == &all_reduce_start_op()) {
      require(node, share_of(node.inputs[0]) == Share::kPartial || share_of(node.inputs[0]) == Share::kPiece,
              "its input must be a partial sum");
      return Share::kPartial;
    }
    if (node.op == &all_reduce_wait_op()) return Share::kWhole;
    // Of the elements that follow one another, a rank's samples.
    if (node.op == &reduce_scatter_start_op()) {
      require(node, share_of(node.inputs[0]) == Share::kPartial, "its input must be a partial sum");
      return Share::kPartial;
    }
    if (node.op == &reduce_scatter_wait_op()) return Share::kPiece;
    if (node.op == &all_gather_start_op()) {
      require(node, share_of(node.inputs[0]) == Share::kPiece || share_of(node.inputs[0]) == Share::kPart,
              "its input must be a part of an array");
      return Share::kPieces;
    }
    if (any(node, Share::kPartial)) return of_partial(node);
    const bool moves = node.op == &reshape_op() || node.op == &pad_op() || node.op == &permute_op() || node.op == &slice_op() ||
                       node.op == &concat_op() || node.op == &all_gather_wait_op();
    if (any(node, Share::kPieces)) return moves ? Share::kPieces : of_parts(node);
    if (any(node, Share::kPiece)) {
      if (node.op == &reshape_op() && division(node.outputs[0]) != nullptr) return Share::kPart;
      require(node, moves || find_elementwise(node.op->name) != nullptr, "reads values of one rank");
      return Share::kPiece;
    }
    if (!any(node, Share::kPart)) {  // a whole value of which this rank takes its part
      return moves && division(node.outputs[0]) != nullptr ? Share::kPart : Share::kWhole;
    }
    const bool reduces = node.op == &cross_entropy_op() || node.op == &gather_op() || node.op == &sum_op();
    return (moves || reduces) && division(node.outputs[0]) == nullptr ? Share::kPiece : of_parts(node);
  }

  /// Sums may be multiplied by whole values before they are complete.
  Share of_partial(const Node& node) const {
    const auto sums = std::count_if(node.inputs.begin(), node.inputs.end(), [&](ValueId id) { return share_of(id) == Share::kPartial; });
    const auto sum = std::find_if(node.inputs.begin(), node.inputs.end(), [&](ValueId id) { return share_of(id) == Share::kPartial; });
    if (node.op == &reshape_op() || node.op == &pad_op()) return Share::kPartial;
    require(node, sums == 1 && is_linear_in(node, static_cast<size_t>(sum - node.inputs.begin())), "reads a sum that is not complete");
    return Share::kPartial;
  }

  /// Products: rows give parts, columns partial sums. Others keep what they read.
  Share of_parts(const Node& node) const {
    if (selects_rows(*node.op) && division(node.inputs[0]) != nullptr) {
      require(node, division(node.inputs[0])->dim == 0, "looks up rows of a table that is divided by columns");
      return Share::kPartial;
    }
    if (node.op != &linear_op()) {
      require(node, division(node.outputs[0]) != nullptr || !any(node, Share::kPart), "loses the place of its part");
      return any(node, Share::kPart) ? Share::kPart : Share::kWhole;
    }
    const TensorDivision *x = division(node.inputs[0]), *weight = division(node.inputs[1]);
    if (weight != nullptr && weight->dim == 0) {
      require(node, x == nullptr && (node.input(2) == kNoValue || division(node.input(2)) != nullptr), "has rows of a part");
      return Share::kPart;
    }
    if (weight != nullptr) {
      require(node, x != nullptr && x->blocks == weight->blocks && node.input(2) == kNoValue, "multiplies parts that do not fit");
      return Share::kPartial;
    }
    return any(node, Share::kPart) ? Share::kPart : Share::kWhole;
  }

  const Graph& graph_;
  const TensorDivisions& divisions_;
  const TensorPlacements& placements_;
  const TensorParallelOptions& options_;
  std::vector<Share> shares_;
};

}  // namespace

void check_placements(const Graph& graph, const TensorDivisions& divisions, const TensorPlacements& placements,
                      const TensorParallelOptions& options) {
  Checker(graph, divisions, placements, options).run();
}

}  // namespace galley
