#pragma once
// How kernels walk over operands that broadcast: rows of the output's memory, in which each operand moves by a step of its own.

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "libcore/backends/broadcast_dimensions.h"
#include "libcore/base/parallel.h"

namespace galley {

/// A walk over up to kMax operands. Each becomes strides over the output's memory order (0 where it is broadcast), neighboring dimensions
/// that walk alike are joined; the innermost is a row.
template <size_t kMax>
class BroadcastWalk {
 public:
  using Steps = std::array<int64_t, kMax>;  // in elements, of each operand

  BroadcastWalk(std::span<const TensorType* const> operands, const TensorType& out)
      : operands_(operands.size()), outer_(broadcast_dimensions<kMax>(operands, out)) {
    row_ = outer_.back();
    outer_.pop_back();
    for (const Dimension& dimension : outer_) rows_ *= dimension.size;
  }

  /// Elements of a row, and the steps of the operands in it.
  int64_t row_size() const { return row_.size; }
  const Steps& steps() const { return row_.steps; }

  /// How many rows follow one another along the innermost of the other dimensions, and the steps of the operands from one to the next.
  int64_t rows_together() const { return outer_.empty() ? 1 : outer_.back().size; }
  Steps row_steps() const { return outer_.empty() ? Steps{} : outer_.back().steps; }

  /// Calls piece(at, out_at, count) on the compute threads: `count` elements of a row, at[o] being the first element of operand o, out_at
  /// that of the output.
  template <class Piece>
  void run(const Piece& piece) const {
    if (rows_ == 1) {
      parallel_for(row_.size, kGrain, [&](int64_t begin, int64_t end) {
        Steps at{};
        for (size_t o = 0; o < operands_; ++o) at[o] = begin * row_.steps[o];
        piece(at, begin, end - begin);
      });
      return;
    }
    parallel_for(rows_, grain(), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) piece(start(row), row * row_.size, row_.size);
    });
  }

  /// Calls piece(at, out_at, rows) on the compute threads for `rows` whole rows, at most rows_together().
  template <class Piece>
  void run_rows(const Piece& piece) const {
    parallel_for(rows_, grain(), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end;) {
        const int64_t rows = std::min(end - row, rows_together() - row % rows_together());
        piece(start(row), row * row_.size, rows);
        row += rows;
      }
    });
  }

 private:
  static constexpr int64_t kGrain = 16384;  // elements
  int64_t grain() const { return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, row_.size)); }

  /// Where a row begins in each operand.
  Steps start(int64_t row) const {
    Steps at{};
    for (auto dimension = outer_.rbegin(); dimension != outer_.rend(); ++dimension) {
      const int64_t i = row % dimension->size;
      row /= dimension->size;
      for (size_t o = 0; o < operands_; ++o) at[o] += i * dimension->steps[o];
    }
    return at;
  }

  using Dimension = BroadcastDimension<kMax>;

  size_t operands_;
  std::vector<Dimension> outer_;
  Dimension row_;
  int64_t rows_ = 1;
};

}  // namespace galley
