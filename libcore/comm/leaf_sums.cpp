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

void sum_leaves(Communicator* ranks, std::string_view name, const ReductionTree& tree, std::span<const double* const> leaves,
                std::span<double> result) {
  const int rank = ranks != nullptr ? ranks->rank() : 0;
  const LeafRange own = tree.owned(rank);
  const auto count = static_cast<int64_t>(result.size());
  GALLEY_ASSERT(tree.ranks() == (ranks != nullptr ? ranks->size() : 1) && static_cast<int>(leaves.size()) == own.end - own.begin);
  std::vector<double> sums(result.size() * tree.partials(rank).size());
  double* to = sums.data();
  for (const LeafRange& part : tree.partials(rank)) {
    const auto first = leaves.begin() + (part.begin - own.begin);
    const std::vector<const void*> parts(first, first + (part.end - part.begin));
    ReductionTree(part.end - part.begin, part.end - part.begin).reduce(parts, to, count, DType::kF64, ReduceOp::kSum);
    to += count;
  }
  if (ranks != nullptr)
    ranks->run({.kind = CollectiveKind::kAllReduce,
                .dtype = DType::kF64,
                .name = name,
                .input = sums.data(),
                .output = sums.data(),
                .count = count,
                .leaves = tree.leaves()});
  std::copy_n(sums.begin(), result.size(), result.begin());
}

LeafSums::LeafSums(const ReductionTree& tree, int rank, int64_t count, float* into)
    : tree_(&tree), rank_(rank), count_(count), into_(into) {
  clear();
}

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

/// An array for the next leaf.
LeafSums::Sum LeafSums::take() {
  Sum sum{.begin = next_, .end = next_ + 1};
  if (into_ != nullptr && waiting_.empty()) {  // the first leaf of a partial sum, to which the others are added
    sum.slot = kInto;
    sum.values = into_ + static_cast<int64_t>(part_) * count_;
    return sum;
  }
  if (free_.empty()) {
    arrays_.emplace_back(static_cast<size_t>(count_));
    sum.slot = arrays_.size() - 1;
  } else {
    sum.slot = free_.back();
    free_.pop_back();
  }
  sum.values = arrays_[sum.slot].data();
  return sum;
}

void LeafSums::add_to(float* to, std::span<const float> from) const {
  const float* values = from.data();
  parallel_for(std::ssize(from), kGrain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) to[i] += values[i];
  });
}

/// Adds the last waiting sum to the one before it.
void LeafSums::join() {
  const Sum right = waiting_.back();
  waiting_.pop_back();
  Sum& left = waiting_.back();
  left.end = right.end;
  add_to(left.values, {right.values, static_cast<size_t>(count_)});
  if (right.slot != kInto) free_.push_back(right.slot);
}

void LeafSums::add(std::span<const float> leaf) {
  GALLEY_ASSERT(static_cast<int64_t>(leaf.size()) == count_);
  const Part whole{.at = 0, .values = leaf};
  add(std::span(&whole, 1));
}

void LeafSums::add(std::span<const Part> parts) {
  GALLEY_ASSERT(missing() > 0);
  const LeafRange part = tree_->partials(rank_)[part_];
  if (!waiting_.empty() && waiting_.back().end - waiting_.back().begin == 1) {  // the sibling of one leaf: no copy
    for (const Part& each : parts) add_to(waiting_.back().values + each.at, each.values);
    ++waiting_.back().end;
  } else {
    waiting_.push_back(take());
    for (const Part& each : parts) {
      float* to = waiting_.back().values + each.at;
      parallel_for(std::ssize(each.values), kGrain,
                   [&](int64_t first, int64_t last) { std::copy(each.values.begin() + first, each.values.begin() + last, to + first); });
    }
  }
  ++next_;
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
  for (const Sum& sum : complete_) sums.push_back(sum.values);
  return sums;
}

}  // namespace galley
