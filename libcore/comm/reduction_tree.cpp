#include "libcore/comm/reduction_tree.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "libcore/base/error.h"
#include "libcore/base/parallel.h"

namespace galley {
namespace {

constexpr int kAdd = -1;
constexpr int64_t kBlock = 512;      // elements that pass through the whole tree together: all operands stay in the first-level cache
constexpr int64_t kGrain = 1 << 14;  // elements per thread
constexpr int kMaxDepth = 16;        // of trees with up to 2^15 leaves

template <class T>
struct Identity {
  using Stored = T;
  using Sum = T;
  static constexpr bool kConverts = false;
  static T load(T x) { return x; }
  static T store(T x) { return x; }
};
struct Bf16 {
  using Stored = uint16_t;
  using Sum = float;
  static constexpr bool kConverts = true;
  static float load(uint16_t x) { return float_from_bf16(x); }
  static uint16_t store(float x) { return bf16_from_float(x); }
};
struct F16 {
  using Stored = uint16_t;
  using Sum = float;
  static constexpr bool kConverts = true;
  static float load(uint16_t x) { return float_from_f16(x); }
  static uint16_t store(float x) { return f16_from_float(x); }
};

template <class T>
void combine(const T* a, const T* b, T* result, int64_t count, ReduceOp op) {
  if (op == ReduceOp::kSum) {
#pragma GCC ivdep  // the result may be one of the operands
    for (int64_t i = 0; i < count; ++i) result[i] = a[i] + b[i];
  } else {
    // A NaN on either side is the result, so that the maximum does not hide it.
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) result[i] = a[i] > b[i] || a[i] != a[i] ? a[i] : b[i];
  }
}

/// Elements [begin, end) through the whole tree.
template <class Type, class Result>
void reduce_block(std::span<const int> program, std::span<const void* const> parts, void* result, int64_t begin, int64_t end, ReduceOp op) {
  using Stored = typename Type::Stored;
  using Sum = typename Type::Sum;
  using To = typename Result::Stored;
  static_assert(std::is_same_v<Sum, typename Result::Sum>);
  alignas(64) std::array<std::array<Sum, kBlock>, kMaxDepth> buffers;
  std::array<const Sum*, kMaxDepth> stack;
  const int64_t count = end - begin;
  size_t top = 0;
  for (size_t at = 0; at < program.size(); ++at) {
    if (program[at] != kAdd) {
      const auto* part = static_cast<const Stored*>(parts[static_cast<size_t>(program[at])]) + begin;
      if constexpr (Type::kConverts) {
        for (int64_t i = 0; i < count; ++i) buffers[top][static_cast<size_t>(i)] = Type::load(part[i]);
        stack[top] = buffers[top].data();
      } else {
        stack[top] = part;
      }
      ++top;
      continue;
    }
    --top;
    Sum* to = buffers[top - 1].data();
    if constexpr (!Result::kConverts) {
      if (at + 1 == program.size()) to = static_cast<To*>(result) + begin;
    }
    combine(stack[top - 1], stack[top], to, count, op);
    stack[top - 1] = to;
  }
  auto* to = static_cast<To*>(result) + begin;
  if constexpr (Result::kConverts) {
    for (int64_t i = 0; i < count; ++i) to[i] = Result::store(stack[0][i]);
  } else if (stack[0] != to) {
    std::memmove(to, stack[0], static_cast<size_t>(count) * sizeof(To));  // a tree of one partial sum
  }
}

template <class Type, class Result = Type>
void reduce_all(std::span<const int> program, std::span<const void* const> parts, void* result, int64_t count, ReduceOp op) {
  parallel_for(count, kGrain, [&](int64_t first, int64_t last) {
    for (int64_t begin = first; begin < last; begin += kBlock)
      reduce_block<Type, Result>(program, parts, result, begin, std::min(last, begin + kBlock), op);
  });
}

/// The number of leaves in the first part of a node.
int first_leaves(int leaves) { return static_cast<int>(std::bit_ceil(static_cast<unsigned>(leaves)) / 2); }

}  // namespace

bool is_reducible(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF64:
    case DType::kF16:
    case DType::kBF16:
    case DType::kI64:
    case DType::kI32: return true;
    default: return false;
  }
}

ReductionTree::ReductionTree(int leaves, int ranks) : ReductionTree(leaves, ranks, {0, leaves}) {}

ReductionTree::ReductionTree(int leaves, int ranks, LeafRange subtree) : leaves_(leaves) {
  GALLEY_ASSERT(ranks >= 1 && ranks <= leaves && leaves < 1 << (kMaxDepth - 1), ranks, " ranks, ", leaves, " leaves");
  first_.assign(static_cast<size_t>(ranks) + 1, 0);
  build(subtree);
  for (int rank = 0; rank < ranks; ++rank) {
    const LeafRange own = owned(rank);
    const auto mine = std::count_if(partials_.begin(), partials_.end(),
                                    [&](const LeafRange& range) { return range.begin >= own.begin && range.end <= own.end; });
    first_[static_cast<size_t>(rank) + 1] = first_[static_cast<size_t>(rank)] + static_cast<int>(mine);
  }
  int depth = 0;
  for (const int step : program_) {
    depth += step == kAdd ? -1 : 1;
    depth_ = std::max(depth_, depth);
  }
  GALLEY_ASSERT(depth == 1 && depth_ <= kMaxDepth && first_.back() == static_cast<int>(partials_.size()));
}

void ReductionTree::build(LeafRange node) {
  // The rank of the first leaf: the largest r with leaves r / N <= begin.
  const int count = ranks();
  const int rank = static_cast<int>((static_cast<int64_t>(node.begin + 1) * count - 1) / leaves_);
  if (node.end <= owned(rank).end) {
    program_.push_back(static_cast<int>(partials_.size()));
    partials_.push_back(node);
    return;
  }
  const int middle = node.begin + first_leaves(node.end - node.begin);
  build({node.begin, middle});
  build({middle, node.end});
  program_.push_back(kAdd);
}

LeafRange ReductionTree::owned(int rank) const {
  const int64_t count = ranks();
  return {static_cast<int>(static_cast<int64_t>(leaves_) * rank / count),
          static_cast<int>(static_cast<int64_t>(leaves_) * (rank + 1) / count)};
}

std::span<const LeafRange> ReductionTree::partials(int rank) const {
  const int first = first_partial(rank);
  return std::span(partials_).subspan(static_cast<size_t>(first), static_cast<size_t>(first_partial(rank + 1) - first));
}

int ReductionTree::most_partials() const {
  int most = 0;
  for (int rank = 0; rank < ranks(); ++rank) most = std::max(most, first_partial(rank + 1) - first_partial(rank));
  return most;
}

DType sum_dtype(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16 ? DType::kF32 : dtype; }

void ReductionTree::reduce(std::span<const void* const> parts, void* result, int64_t count, DType from, DType to, ReduceOp op) const {
  GALLEY_ASSERT(parts.size() == partials_.size());
  using F32 = Identity<float>;
  if (from != to) {
    GALLEY_ASSERT(sum_dtype(from) == to || sum_dtype(to) == from, from, " and ", to);
    if (from == DType::kBF16) return reduce_all<Bf16, F32>(program_, parts, result, count, op);
    if (from == DType::kF16) return reduce_all<F16, F32>(program_, parts, result, count, op);
    if (to == DType::kBF16) return reduce_all<F32, Bf16>(program_, parts, result, count, op);
    return reduce_all<F32, F16>(program_, parts, result, count, op);
  }
  switch (from) {
    case DType::kF32: return reduce_all<F32>(program_, parts, result, count, op);
    case DType::kF64: return reduce_all<Identity<double>>(program_, parts, result, count, op);
    case DType::kF16: return reduce_all<F16>(program_, parts, result, count, op);
    case DType::kBF16: return reduce_all<Bf16>(program_, parts, result, count, op);
    case DType::kI64: return reduce_all<Identity<int64_t>>(program_, parts, result, count, op);
    case DType::kI32: return reduce_all<Identity<int32_t>>(program_, parts, result, count, op);
    default: break;
  }
  GALLEY_ASSERT(false, "elements of type ", from, " cannot be reduced");
}

}  // namespace galley
