// The CUDA kernels, compiled for the host and run by the stand-in driver, against the reference.

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "libcore/backends/cuda/backend.h"
#include "libcore/backends/cuda/kernels/list.h"
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

/// The failures of kernels where the stand-in driver runs threads and blocks in this order (seed_stand_in).
std::vector<std::string> failures_in_order(uint64_t seed, const OpCase& c, DType real) {
  seed_stand_in(seed);
  std::vector<std::string> failures = kernel_failures(cuda_backend(), c, real);
  seed_stand_in(0);
  for (std::string& failure : failures) failure += cat(" (order ", seed, ")");
  return failures;
}

class EveryCudaCase : public testing::TestWithParam<OpCase> {};

// Each case in three orders: in reverse, in a random one, and as they are; those of f32 alone in the first two.
TEST_P(EveryCudaCase, KernelsAgreeWithTheReference) {
  const bool f32_alone = !GetParam().low_precision;
  for (const auto& [real, seed] : {std::pair<DType, uint64_t>(DType::kF32, 1), {DType::kBF16, 2}, {DType::kF16, 0}}) {
    if (f32_alone && (real == DType::kF16 || (kSanitized && real == DType::kBF16))) continue;
    for (const std::string& failure : failures_in_order(seed, GetParam(), f32_alone ? DType::kF32 : real)) ADD_FAILURE() << failure;
  }
}

// Sequences of several tiles, with each mask, in another order of threads and blocks for each type.
TEST(CudaAttention, TilesAgreeWithTheReference) {
  for (const OpCase& c : all_cases()) {
    const bool wanted = c.name.starts_with("attention_tiles") || c.name.starts_with("attention_decode");
    if (!wanted || (kSanitized && c.name != "attention_tiles_everything")) continue;
    for (const DType real : {DType::kF32, DType::kBF16})
      for (const std::string& failure : failures_in_order(real == DType::kF32 ? 2 : 1, c, real)) ADD_FAILURE() << failure;
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
const std::vector<OpCase>& cuda_cases() {
  static const std::vector<OpCase> cases = [] {
    std::vector<OpCase> found;
    for (const OpCase& c : all_cases()) {
      std::set<std::string> tried;
      if (!is_large(c)) kernel_failures(cuda_backend(), c, DType::kF32, &tried);
      if (!tried.empty()) found.push_back(c);
    }
    return found;
  }();
  return cases;
}

/// Kernels that no case launches, and what does.
const std::map<std::string, std::string> kLaunchedElsewhere{
    {"adam_steps", "graphs of steps, which join updates: tests/train/cuda_test.cpp"},
    {"sgd_steps", "graphs of steps"},
    {"ema_steps", "graphs of steps"},
    {"copy_lines", "products of more operations than cases have: CudaLibraries.ProductsOfOddLinesAreDivided"},
    {"f8_product_tiles", "products that cuBLASLt refuses: CudaF8.OwnProductsAgreeWithTheReference"},
    {"elementwise_backward", "gradients at addresses that 16 does not divide, which the arena never has"}};
/// Cases that launch a kernel that the first case of no operator launches, in f32; and in bf16.
const std::set<std::string> kMoreCases{"conv2d_strided_groups",
                                       "layer_norm_backward_sums_1080_24",
                                       "conv2d_fused_relu6",
                                       "linear_16x129_to_40_relu6",
                                       "attention_bias",
                                       "attention_wide_heads",
                                       "attention_widest_heads",
                                       "rms_norm_heads",
                                       "layer_norm_kernel_2_4112_0",
                                       "mean_inside_70",
                                       "cross_entropy_4_4_mean",
                                       "embedding_width_264",
                                       "lstm_one_step_from_zero",
                                       "gru_many_rows",
                                       "equal_of_f64",
                                       "where_of_f64",
                                       "reduce_precision_image",
                                       "slice_of_bf16",
                                       "slice_of_u8",
                                       "full_large_u8",
                                       "gather_many",
                                       "match_boxes_every_box",
                                       "permute_u8",
                                       "amax_u8",
                                       "amax_of_u8_rows",
                                       "matmul_of_f64",
                                       "silu_of_f64",
                                       "silu_backward_of_f64",
                                       "transpose_of_bf16",
                                       "transpose_of_f64"};
const std::set<std::string> kMoreCasesInBF16{"embedding_index_i32", "abs_image"};

TEST(CudaKernels, ACaseLaunchesEachOfThem) {
  if (on_gpu() || kSanitized) GTEST_SKIP() << "launches are listed by the stand-in driver; sanitizers leave cases out";
  std::set<std::string> missing{
#define GALLEY_NAME(name) #name,
      GALLEY_CUDA_KERNELS(GALLEY_NAME)
#undef GALLEY_NAME
  };
  for (const auto& [kernel, where] : kLaunchedElsewhere) EXPECT_EQ(missing.erase(kernel), 1u) << "there is no kernel " << kernel;
  stand_in_launches();
  std::set<std::string> tried;
  for (const OpCase& c : cuda_cases()) {
    const size_t before = tried.size();
    kernel_failures(cuda_backend(), c, DType::kF32, &tried);
    if (tried.size() > before || kMoreCases.contains(c.name)) kernel_failures(cuda_backend(), c, DType::kF32);
    if (kMoreCasesInBF16.contains(c.name)) kernel_failures(cuda_backend(), c, DType::kBF16);
  }
  std::istringstream launches(stand_in_launches());
  for (std::string kernel, blocks; launches >> kernel >> blocks;) {
    missing.erase(kernel);
    EXPECT_FALSE(kLaunchedElsewhere.contains(kernel)) << kernel << " is launched by a case";
  }
  EXPECT_EQ(missing, std::set<std::string>()) << "add a case to tests/ops, to kMoreCases too where it is not the first of its operator";
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
