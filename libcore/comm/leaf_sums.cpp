#include "libcore/comm/leaf_sums.h"

#include <algorithm>

#include "libcore/base/error.h"
#include "libcore/base/parallel.h"

namespace galley {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements per thread, as in reduction_tree.cpp

}  // namespace

void tree_sum(std::span<const float* const> leaves, float* result, int64_t count) {
  const auto number = static_cast<int>(leaves.size());
  const std::vector<const void*> parts(leaves.begin(), leaves.end());
  ReductionTree(number, number).reduce(parts, result, count, DType::kF32, ReduceOp::kSum);
}

LeafSums::LeafSums(const ReductionTree& tree, int rank, int64_t count) : tree_(&tree), rank_(rank), count_(count) { clear(); }

void LeafSums::clear() {
  const LeafRange own = tree_->owned(rank_);
  next_ = own.begin;
  end_ = own.end;
  part_ = 0;
  waiting_.clear();
  complete_.clear();
  free_.clear();
  for (size_t slot = arrays_.size(); slot-- > 0;) free_.push_back(slot);
}

size_t LeafSums::take() {
  if (free_.empty()) {
    arrays_.emplace_back(static_cast<size_t>(count_));
    return arrays_.size() - 1;
  }
  const size_t slot = free_.back();
  free_.pop_back();
  return slot;
}

/// Adds the last waiting sum to the one before it.
void LeafSums::join() {
  const Sum right = waiting_.back();
  waiting_.pop_back();
  Sum& left = waiting_.back();
  left.end = right.end;
  float* to = arrays_[left.slot].data();
  const float* from = arrays_[right.slot].data();
  parallel_for(count_, kGrain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) to[i] += from[i];
  });
  free_.push_back(right.slot);
}

void LeafSums::add(std::span<const float> leaf) {
  GALLEY_ASSERT(missing() > 0 && static_cast<int64_t>(leaf.size()) == count_);
  const LeafRange part = tree_->partials(rank_)[part_];
  waiting_.push_back({next_, next_ + 1, take()});
  ++next_;
  std::copy(leaf.begin(), leaf.end(), arrays_[waiting_.back().slot].begin());
  // Sums of as many leaves are siblings: the first part of a node has the largest power of two below its leaves.
  while (waiting_.size() > 1) {
    const Sum &right = waiting_.back(), &left = waiting_[waiting_.size() - 2];
    if (left.end - left.begin != right.end - right.begin) break;
    join();
  }
  if (next_ < part.end) return;
  while (waiting_.size() > 1) join();  // the leaf count is not a power of two: joins the remaining sums from right to left
  complete_.push_back(waiting_.back());
  waiting_.clear();
  ++part_;
}

std::vector<const void*> LeafSums::partials() const {
  GALLEY_ASSERT(missing() == 0, missing(), " leaves are missing");
  std::vector<const void*> sums;
  for (const Sum& sum : complete_) sums.push_back(arrays_[sum.slot].data());
  return sums;
}

}  // namespace galley
