#pragma once
// How reductions over any axes become passes over arrays of the form outer x reduced x inner. For backends/cpu.

#include <cstdint>
#include <vector>

#include "libcore/backends/kernel.h"

namespace galley {

/// One pass: outer x reduced x inner becomes outer x pieces x inner. The number of pieces depends on sizes only: few outer and
/// inner elements still keep several threads busy, and the result does not depend on the threads.
struct ReductionStage {
  int64_t outer = 1, reduced = 1, inner = 1, pieces = 1;
};

/// Innermost reduced dimensions first; at least one stage. Not for blocked formats.
std::vector<ReductionStage> stages_of(const TensorType& x, const std::vector<int>& axes);

/// The dimensions longer than 1 that are not reduced, from outermost to innermost in memory.
std::vector<int> kept_in_memory(const TensorType& x, const std::vector<int>& axes);
/// Are the kept dimensions in the same order in the memory of y as in that of x? `keepdim`: y still has the reduced dimensions, of size 1.
bool keeps_order(const TensorType& x, const std::vector<int>& axes, const TensorType& y, bool keepdim);

/// Columns of one task.
constexpr int64_t kColumns = 64;

/// A reduction of `count` consecutive numbers, and of `rows` rows, `step` apart, of at most kColumns columns: a result for each column.
struct Reducer {
  double (*run)(const float* x, int64_t count);
  void (*columns)(const float* x, int64_t rows, int64_t step, int64_t columns, double* result);
};

/// Whether a StagedReduction serves a node with ReduceAttrs.
Support supports_staged(const KernelQuery& query);

/// ReductionStage after stage, intermediate results in float; the last one's times `scale`.
class StagedReduction : public PreparedKernel {
 public:
  StagedReduction(std::vector<ReductionStage> stages, Reducer reducer, double scale)
      : stages_(std::move(stages)), reducer_(reducer), scale_(scale) {}
  int64_t scratch_bytes() const override;
  void run(Stream&, const KernelArgs& args) const override;

 private:
  void run_stage(const ReductionStage& stage, const float* x, float* y, double scale) const;
  std::vector<ReductionStage> stages_;
  Reducer reducer_;
  double scale_;
};

}  // namespace galley
