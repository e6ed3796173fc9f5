#pragma once
// LeafSums: the partial sums that a rank contributes to a ReductionTree, from leaves (logical replicas) that it computes one after the
// other.

#include <cstdint>
#include <span>
#include <vector>

#include "libcore/comm/communicator.h"
#include "libcore/comm/reduction_tree.h"

namespace galley {

/// Sum of the leaves in the order of the tree over all of them. result[i] has the same bits as the sum over ranks, for any number of ranks
/// and threads. Each array has `count` elements. `result` may be one of the leaves, no other overlap is allowed.
void tree_sum(std::span<const float* const> leaves, float* result, int64_t count);

/// result[i] = the sum over the leaves of all ranks: `leaves` are those of this rank, in order, with `result.size()` elements each.
/// `ranks`: nullptr: one rank, which has all of them.
void sum_leaves(Communicator* ranks, std::string_view name, const ReductionTree& tree, std::span<const double* const> leaves,
                std::span<double> result);

/// Adds leaves into as few arrays as the order of the tree allows: a sum waits until its sibling in the tree is complete.
class LeafSums {
 public:
  /// For the leaves of a rank, `count` elements each. The tree must outlive the object. `into`: where the partial sums are computed, one
  /// after the other; nullptr: in arrays of the object.
  LeafSums(const ReductionTree& tree, int rank, int64_t count, float* into = nullptr);

  /// The number of leaves that are still to come.
  int missing() const { return end_ - next_; }
  /// A part of a leaf, and its place in it.
  struct Part {
    int64_t at = 0;
    std::span<const float> values;
  };
  /// Adds the rank's next leaf, `count` elements. Leaves come in ascending order.
  void add(std::span<const float> leaf);
  /// The same for a leaf in parts; what lies between them is zero in all leaves, and in `into`.
  void add(std::span<const Part> parts);
  /// After all leaves: the rank's partial sums, in the order of ReductionTree::partials.
  std::vector<const void*> partials() const;
  /// Starts again with the rank's first leaf, for the next step.
  void clear();

  /// Arrays that are allocated. Ranks whose leaves are one subtree of n = 2^k leaves need k, if k > 0.
  size_t arrays() const { return arrays_.size(); }

 private:
  /// The sum of a subtree, in arrays_[slot].
  struct Sum {
    int begin = 0, end = 0;
    size_t slot = 0;  // of arrays_; kInto: a part of into_
    float* values = nullptr;
  };
  static constexpr size_t kInto = SIZE_MAX;
  Sum take();
  void add_to(float* to, std::span<const float> from) const;
  void join();

  const ReductionTree* tree_;
  int rank_ = 0, next_ = 0, end_ = 0;
  int64_t count_ = 0;
  float* into_ = nullptr;
  size_t part_ = 0;            // the partial sum that the next leaf belongs to
  std::vector<Sum> waiting_;   // of part_, adjacent
  std::vector<Sum> complete_;  // partial sums
  std::vector<std::vector<float>> arrays_;
  std::vector<size_t> free_;
};

}  // namespace galley
