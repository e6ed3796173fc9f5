// Which operators the CUDA back end computes: every primitive operator has a kernel, except those of a stored list.

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "libcore/backends/cuda/backend.h"
#include "libcore/backends/cuda/channel_walk.h"
#include "libcore/ops/registry.h"
#include "tests/backends/cuda/stand_in.h"

namespace galley::test {
namespace {

/// Operators without a kernel. A recipe with one of them ends with exit code 7 and the operator's name on device cuda.
const std::set<std::string> kWithout{};

TEST(CudaOperators, EveryPrimitiveHasAKernel) {
  stand_in_device();
  ensure_ops_registered();
  const std::unique_ptr<Backend> backend = open_cuda({.threads = 2});
  std::set<std::string> without;
  for (const OpDef* op : all_ops()) {
    if (op->composite() || op->view() || op->made_by_rewrite || !backend->kernels(*op).empty()) continue;
    without.emplace(op->name);
  }
  EXPECT_EQ(without, kWithout);
}

// The sums of gradients over the rows of a batch, [8192, columns] in bf16: all blocks are on the GPU at once, two or more on each of 132
// processors, their threads read four units at once to the end, and partial results add at most 8 percent to the traffic.
TEST(CudaOperators, SumsFillAGpuOnce) {
  for (const int64_t columns : {768, 1024, 1600, 2304, 3072, 4096, 6400}) {
    const int64_t rows = 8192;
    const device::ChannelWalk walk = channel_walk({rows, columns, 1}, true, 1, kSumLimits);
    EXPECT_GE(blocks_of(walk), 2 * 132) << columns;
    EXPECT_LE(blocks_of(walk), 4 * 132) << columns;
    EXPECT_EQ(walk.part_units / (device::kThreads / walk.lanes) % 4, 0) << columns;
    EXPECT_LE(double(row_sums_scratch(walk)) * 2, 0.08 * double(rows * columns * 2)) << columns;
    EXPECT_TRUE(int64_t{walk.parts} * walk.part_units >= rows && int64_t{walk.parts - 1} * walk.part_units < rows) << columns;
  }
}

}  // namespace
}  // namespace galley::test
