// Chains of element-wise functions as NVRTC compiles them, where it is installed: the kernels that it makes run on GPUs only, where the
// cases of tests/ops/elementwise_cases.cpp compare them with the reference.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "libcore/backends/cuda/compiled_chains.h"
#include "libcore/base/error.h"
#include "libcore/ops/elementwise.h"
#include "libcore/ops/registry.h"
#include "tests/backends/cuda/stand_in.h"
#include "tests/support/targets.h"

namespace galley::test {
namespace {

using device::ChainCall;
using device::ChainStepCall;

/// NVRTC of the machine, not of the stand-ins' folder.
const cuda::nvrtc::Nvrtc& installed() {
  static const cuda::nvrtc::Nvrtc opened = [] {
    std::vector<std::string> folders{"", "/usr/local/cuda/lib64"};
    if (const char* named = std::getenv("GALLEY_TEST_NVRTC")) folders = {named};
    return cuda::nvrtc::open_nvrtc(folders);
  }();
  return opened;
}

/// Two inputs [12,40], or one and a row.
ChainCall inputs_of(device::Type type, bool row) {
  ChainCall call{.type = type, .inputs_count = 2, .elements = 480};
  call.dimensions = row ? 2 : 1;
  call.sizes[0] = row ? 12 : 480;
  call.sizes[1] = 40;
  call.steps[0][0] = row ? 40 : 1;
  call.steps[0][1] = call.steps[1][1] = 1;
  call.steps[1][0] = row ? 0 : 1;
  return call;
}

/// Every function and every slope of the table, eight in a chain.
std::vector<ChainCall> every_function(device::Type type, bool row) {
  std::vector<ChainCall> calls{inputs_of(type, row)};
  const auto add = [&](ChainStepCall::Kind kind, const Formula& formula) {
    if (calls.back().steps_count == device::kMostChainSteps) calls.push_back(inputs_of(type, row));
    ChainCall& call = calls.back();
    ChainStepCall& step = call.chain[call.steps_count];
    step = {.kind = kind, .function = static_cast<int>(formula.function)};
    step.operands[0] = call.steps_count == 0 ? 0 : device::kMostChainInputs + call.steps_count - 1;
    step.operands[1] = 1;
    step.numbers[0] = -0.5f;
    ++call.steps_count;
  };
  for (const OpDef* op : elementwise_ops()) {
    const ElementwiseRow* row_of = find_elementwise(op->name);
    const bool backward = row_of == nullptr;
    if (backward) row_of = find_elementwise(op->name, true);
    for (const Formula& formula : row_of->formulas) {
      if (formula.values > 2) continue;
      add(backward ? ChainStepCall::kBackward : formula.values == 2 ? ChainStepCall::kTwo : ChainStepCall::kOne, formula);
    }
  }
  return calls;
}

TEST(CudaChains, NvrtcCompilesEveryFunction) {
  if (kSanitized) GTEST_SKIP() << "nothing of it is compiled with sanitizers";
  if (!installed().state.problem.empty()) GTEST_SKIP() << installed().state.problem;
  size_t steps = 0;
  for (const auto& [type, row] : {std::pair(device::kBF16, false), {device::kF32, true}, {device::kF16, false}}) {
    for (const ChainCall& call : every_function(type, row)) {
      const std::string image = compile_for_gpu(installed(), chain_source(call), 90);
      EXPECT_EQ(image.substr(1, 3), "ELF");
      steps += static_cast<size_t>(call.steps_count);
    }
  }
  EXPECT_GT(steps, 180u);
}

// (silu(x) gate + y) scale of images [2,19,21], as a gated block with a residual and a layer scale makes it.
TEST(CudaChains, NvrtcCompilesAChainOfAModel) {
  if (kSanitized) GTEST_SKIP() << "nothing of it is compiled with sanitizers";
  if (!installed().state.problem.empty()) GTEST_SKIP() << installed().state.problem;
  for (const device::Type type : {device::kF32, device::kBF16, device::kF16}) {
    ChainCall call{.type = type, .inputs_count = 4, .steps_count = 4, .dimensions = 3, .elements = 2 * 19 * 21};
    const int64_t steps[4][3] = {{399, 21, 1}, {19, 1, 0}, {399, 21, 1}, {0, 1, 0}};
    for (int input = 0; input < 4; ++input) std::copy(steps[input], steps[input] + 3, call.steps[input]);
    for (const auto& [d, size] : {std::pair(0, 2), {1, 19}, {2, 21}}) call.sizes[d] = size;
    const char* const functions[] = {"silu", "mul", "add", "mul"};
    for (int step = 0; step < 4; ++step) {
      ChainStepCall& at = call.chain[step];
      at.kind = step == 0 ? ChainStepCall::kOne : ChainStepCall::kTwo;
      at.function = static_cast<int>(find_elementwise(functions[step])->formulas.front().function);
      at.operands[0] = step == 0 ? 0 : device::kMostChainInputs + step - 1;
      at.operands[1] = step;
    }
    EXPECT_EQ(compile_for_gpu(installed(), chain_source(call), 90).substr(1, 3), "ELF");
  }
}

TEST(CudaChains, AnErrorOfTheCompilerHasItsMessages) {
  if (!installed().state.problem.empty()) GTEST_SKIP() << installed().state.problem;
  try {
    compile_for_gpu(installed(), "int x = nothing;", 90);
    ADD_FAILURE() << "the text has an error";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("identifier \"nothing\" is undefined"), std::string::npos) << error.message();
  }
}

// A thread computes 16 bytes where operands allow it.
TEST(CudaChains, ThreadsReadWholeWordsWhereOperandsAllowIt) {
  const auto has = [](const ChainCall& call, const char* text) { return chain_source(call).find(text) != std::string::npos; };
  ChainCall call = inputs_of(device::kBF16, true);
  call.steps_count = 1;
  EXPECT_TRUE(has(call, "uint16_t v[8]"));
  call.type = device::kF32;
  EXPECT_TRUE(has(call, "float v[4]"));
  call.sizes[1] = 42;
  call.steps[0][0] = 42;
  EXPECT_TRUE(has(call, "float v[1]")) << "rows are no whole words";
}

// What differs in sizes and numbers only is compiled once.
TEST(CudaChains, SizesAndNumbersAreParameters) {
  ChainCall call = inputs_of(device::kBF16, true), other = call;
  call.steps_count = other.steps_count = 1;
  other.elements = 96;
  other.sizes[0] = 2;
  other.sizes[1] = other.steps[0][0] = 48;
  other.chain[0].numbers[0] = 3;
  EXPECT_EQ(chain_source(call), chain_source(other));
  other.elements = int64_t{1} << 32;
  EXPECT_NE(chain_source(call), chain_source(other)) << "places of 64 bits";
  other = call;
  other.sizes[1] = other.steps[0][0] = 42;
  EXPECT_NE(chain_source(call), chain_source(other));
}

}  // namespace
}  // namespace galley::test
