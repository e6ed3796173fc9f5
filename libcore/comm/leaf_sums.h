#pragma once
// LeafSums: the partial sums that a rank contributes to a ReductionTree, from leaves (logical replicas) that it computes one after the
// other.

#include <cstdint>
#include <span>
#include <vector>

#include "libcore/comm/reduction_tree.h"

namespace galley {

/// Sum of the leaves in the order of the tree over all of them. result[i] has the same bits as the sum over ranks, for any number of ranks
/// and threads. Each array has `count` elements. `result` may be one of the leaves, no other overlap is allowed.
void tree_sum(std::span<const float* const> leaves, float* result, int64_t count);

/// Adds leaves into as few arrays as the order of the tree allows: a sum waits until its sibling in the tree is complete.
class LeafSums {
 public:
  /// For the leaves of a rank, `count` elements each. The tree must outlive the object.
  LeafSums(const ReductionTree& tree, int rank, int64_t count);

  /// The number of leaves that are still to come.
  int missing() const { return end_ - next_; }
  /// Adds the rank's next leaf, `count` elements. Leaves come in ascending order.
  void add(std::span<const float> leaf);
  /// After all leaves: the rank's partial sums, in the order of ReductionTree::partials.
  std::vector<const void*> partials() const;
  /// Starts again with the rank's first leaf, for the next step.
  void clear();

  /// Arrays that are allocated. Ranks whose leaves are one subtree of n = 2^k leaves need k + 1.
  size_t arrays() const { return arrays_.size(); }

 private:
  /// The sum of a subtree, in arrays_[slot].
  struct Sum {
    int begin = 0, end = 0;
    size_t slot = 0;
  };
  size_t take();
  void join();

  const ReductionTree* tree_;
  int rank_ = 0, next_ = 0, end_ = 0;
  int64_t count_ = 0;
  size_t part_ = 0;            // the partial sum that the next leaf belongs to
  std::vector<Sum> waiting_;   // of part_, adjacent
  std::vector<Sum> complete_;  // partial sums
  std::vector<std::vector<float>> arrays_;
  std::vector<size_t> free_;
};

}  // namespace galley
