#pragma once
// ReductionTree: the order in which the contributions of ranks are added. It depends only on the number of leaves, so that a sum has the
// same bits for any number of ranks, in any transport.

#include <cstdint>
#include <span>
#include <vector>

#include "libcore/tensor/dtype.h"

namespace galley {

enum class ReduceOp : uint8_t { kSum, kMax };

/// A range of leaves: a subtree.
struct LeafRange {
  int begin = 0, end = 0;
  friend bool operator==(const LeafRange&, const LeafRange&) = default;
};

/// A binary tree over `leaves` contributions. A node over n > 1 leaves adds the sum of its first leaves and the sum of the rest; the first
/// part has the largest power of two below n leaves. Rank r of N owns the leaves [leaves r / N, leaves (r + 1) / N) and contributes partial
/// sums: one for each largest subtree whose leaves are all its own.
class ReductionTree {
 public:
  /// 1 <= ranks <= leaves.
  ReductionTree(int leaves, int ranks);
  /// The part of the tree that computes the sum of a subtree. Ranks without leaves in it contribute nothing.
  ReductionTree(int leaves, int ranks, LeafRange subtree);

  int leaves() const { return leaves_; }
  int ranks() const { return static_cast<int>(first_.size()) - 1; }
  /// The leaves of a rank.
  LeafRange owned(int rank) const;
  /// The subtrees whose sums a rank contributes, in order.
  std::span<const LeafRange> partials(int rank) const;
  /// Index of a rank's first partial sum among those of all ranks; first_partial(ranks()) is their number.
  int first_partial(int rank) const { return first_[static_cast<size_t>(rank)]; }
  /// The largest number of partial sums of a rank.
  int most_partials() const;

  /// result[i] = the sum over the tree of parts[p][i], p in the order of all partial sums. 16-bit floats are added in f32 and rounded once.
  /// `result` may be one of the parts, no other overlap is allowed. Runs on the compute threads of the caller.
  void reduce(std::span<const void* const> parts, void* result, int64_t count, DType dtype, ReduceOp op) const {
    reduce(parts, result, count, dtype, dtype, op);
  }
  /// The same with a result of another type. `from` and `to` are equal, or one is sum_dtype of the other: sums of 16-bit floats that are
  /// part of a larger sum stay f32.
  void reduce(std::span<const void* const> parts, void* result, int64_t count, DType from, DType to, ReduceOp op) const;

 private:
  void build(LeafRange node);

  int leaves_;
  std::vector<LeafRange> partials_;
  std::vector<int> first_;
  std::vector<int> program_;  // in postorder: the index of a partial sum, or kAdd
  int depth_ = 0;             // most operands on the stack
};

/// Whether elements of that type can be reduced: f32, f64, f16, bf16, i64, i32.
bool is_reducible(DType dtype);
/// The type in which elements are added: f32 for 16-bit floats, else their own.
DType sum_dtype(DType dtype);

}  // namespace galley
