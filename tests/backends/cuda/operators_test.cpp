// Which operators the CUDA back end computes: every primitive operator has a kernel, except those of a stored list.

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "libcore/backends/cuda/backend.h"
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

}  // namespace
}  // namespace galley::test
