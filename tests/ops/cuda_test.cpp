// The CUDA kernels, compiled for the host and run by the stand-in driver, against the reference.

#include <gtest/gtest.h>

#include "libcore/backends/cuda/backend.h"
#include "libcore/base/error.h"
#include "libcore/runtime/compile.h"
#include "libcore/vendor/cuda/blas_lt.h"
#include "tests/backends/cuda/stand_in.h"
#include "tests/ops/harness.h"
#include "tests/support/target.h"
#include "tests/support/targets.h"

namespace galley::test {
namespace {

const Backend& cuda_backend() {
  static const std::unique_ptr<Backend> backend = [] {
    stand_in_device();
    return open_cuda({.threads = 2});
  }();
  return *backend;
}

class EveryCudaCase : public testing::TestWithParam<OpCase> {};

TEST_P(EveryCudaCase, KernelsAgreeWithTheReference) {
  for (const DType real : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (real != DType::kF32 && !GetParam().low_precision) continue;
    for (const std::string& failure : kernel_failures(cuda_backend(), GetParam(), real)) ADD_FAILURE() << failure;
  }
}

// Sequences of several tiles, with each mask, in another order of threads and blocks for each type.
TEST(CudaAttention, TilesAgreeWithTheReference) {
  for (const OpCase& c : all_cases()) {
    const bool wanted = c.name.starts_with("attention_tiles") || c.name.starts_with("attention_decode");
    if (!wanted || (kSanitized && c.name != "attention_tiles_everything")) continue;
    for (const DType real : {DType::kF32, DType::kBF16})
      for (const std::string& failure : kernel_failures(cuda_backend(), c, real)) ADD_FAILURE() << failure;
  }
}

// Where cuBLASLt has no algorithm, an own kernel multiplies f8.
TEST(CudaF8, OwnProductsAgreeWithTheReference) {
  if (on_gpu()) GTEST_SKIP() << "the stand-in of the library refuses a product";
  int found = 0;
  for (const OpCase& c : all_cases()) {
    if (c.name != "f8_linear_3_37_19" && c.name != "f8_conv2d_residual") continue;
    ++found;
    stand_in_device();
    stand_in_launches();
    const int64_t asked = stand_in_calls("cublasLtMatmulAlgoGetHeuristic"), products = stand_in_calls("cublasLtMatmul");
    fail_stand_in("cublasLtMatmulAlgoGetHeuristic", 1, cuda::lt::kNotSupported);
    for (const std::string& failure : kernel_failures(cuda_backend(), c, DType::kF32)) ADD_FAILURE() << failure;
    EXPECT_LT(stand_in_calls("cublasLtMatmul") - products, stand_in_calls("cublasLtMatmulAlgoGetHeuristic") - asked) << "one was refused";
    EXPECT_NE(stand_in_launches().find("f8_product_tiles"), std::string::npos) << c.name;
  }
  EXPECT_EQ(found, 2);
}

/// Whether an emulation takes seconds.
bool is_large(const OpCase& c) {
  constexpr double kMostFlops = kSanitized ? 1e4 : 3e5;
  const std::unique_ptr<CaseGraph> made = make_graph(c, DType::kF32, true);
  double flops = 0;
  for (const Node& node : made->graph.nodes()) flops += cost_of(*node.op, context_of(made->graph, node)).flops;
  return c.large || flops > kMostFlops;
}

/// The cases in which a CUDA kernel runs, without the large ones.
std::vector<OpCase> cuda_cases() {
  std::vector<OpCase> cases;
  for (const OpCase& c : all_cases()) {
    std::set<std::string> tried;
    if (!is_large(c)) kernel_failures(cuda_backend(), c, DType::kF32, &tried);
    if (!tried.empty()) cases.push_back(c);
  }
  return cases;
}
// Definitions of composites consist of operators that have kernels for their types.
TEST(CudaOperators, ACaseOfEachOperatorAndTypeCompiles) {
  stand_in_device();
  const std::shared_ptr<const Backend> backend = open_cuda({.threads = 2});
  std::set<std::string> seen;
  for (const OpCase& c : all_cases()) {
    const std::unique_ptr<CaseGraph> made = make_graph(c, DType::kF32, false);
    const Node& node = made->graph.nodes()[made->node];
    std::string key(node.op->name);
    for (const ValueId id : node.inputs) key += id == kNoValue ? " -" : cat(" ", made->graph.type(id).dtype);
    // Cases feed what an operator updates, which is a parameter in programs.
    if (node.op->made_by_rewrite || !node.op->updates.empty() || !seen.insert(key).second) continue;
    try {
      compile(made->graph, {.backend = backend});
    } catch (const Error& error) {
      ADD_FAILURE() << c.name << ": " << error.message();
    }
  }
  EXPECT_GT(seen.size(), 200u);
}

INSTANTIATE_TEST_SUITE_P(Cuda, EveryCudaCase, testing::ValuesIn(cuda_cases()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace galley::test
