// linear with few rows: every instruction set of this machine against sums in double, and on what its bits may depend.

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "libcore/base/parallel.h"
#include "libcore/device/stream.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/registry.h"
#include "libcore/tensor/tensor.h"
#include "tests/support/target.h"
#include "tests/support/targets.h"

namespace galley {
namespace {

using test::cpu;

Tensor waves(const Shape& shape, double seed) {
  Tensor tensor(DType::kF32, shape);
  for (int64_t i = 0; i < shape.elements(); ++i)
    tensor.data_as<float>()[i] = static_cast<float>(std::sin(seed + 1.618 * static_cast<double>(i * i % 10007)));
  return tensor;
}

struct Sizes {
  int64_t rows, depth, outputs;
};

Tensor run_linear(const Sizes& s, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  Graph graph;
  const auto input = [&](const char* name, const Tensor& tensor) {
    TensorType type;
    type.shape = tensor.shape();
    return graph.add_input(name, type, ValueRole::kInput);
  };
  linear(input("x", x), input("weight", weight), input("bias", bias));
  const Node& node = graph.nodes().back();
  const KernelQuery query{node, context_of(graph, node), 2};
  const KernelChoice choice = cpu().choose(query);
  EXPECT_EQ(choice.kernel->algorithm, "skinny_gemm");
  Tensor y(DType::kF32, {s.rows, s.outputs});
  std::fill_n(y.data_as<float>(), y.elements(), std::nanf(""));
  const void* inputs[] = {x.data(), weight.data(), bias.data()};
  void* outputs[] = {y.data()};
  choice.kernel->prepare(query)->run(host_stream(), {inputs, outputs, nullptr});
  return y;
}

TEST(CpuLinear, EveryInstructionSetAgainstDouble) {
  ensure_ops_registered();
  set_compute_threads(2);
  int tried = 0;
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    const int64_t target = left & -left;
    const test::Targets only(target);
    ++tried;
    for (const Sizes& s : {Sizes{1, 37, 21}, Sizes{1, 5, 1}, Sizes{3, 64, 11}, Sizes{9, 131, 34}, Sizes{32, 16, 3}}) {
      const Tensor x = waves({s.rows, s.depth}, 0.3), weight = waves({s.outputs, s.depth}, 0.7), bias = waves({s.outputs}, 1.1);
      const Tensor y = run_linear(s, x, weight, bias);
      for (int64_t r = 0; r < s.rows; ++r) {
        for (int64_t o = 0; o < s.outputs; ++o) {
          double want = bias.at({o});
          for (int64_t k = 0; k < s.depth; ++k) want += x.at({r, k}) * weight.at({o, k});
          // At most 131 products below 1, each rounded to 2^-24 of a sum that stays below 32.
          EXPECT_TRUE(std::fabs(y.at({r, o}) - want) <= 1e-4)
              << hwy::TargetName(target) << " " << s.rows << "x" << s.depth << " to " << s.outputs << " at " << r << "," << o;
        }
      }
    }
  }
  EXPECT_GE(tried, 1);
}

TEST(CpuLinear, BitsOfARowDoNotDependOnTheOthers) {
  ensure_ops_registered();
  const Tensor weight = waves({101, 203}, 0.7), bias = waves({101}, 1.1), many = waves({21, 203}, 0.3);
  Tensor one(DType::kF32, {1, 203});
  std::copy_n(many.data_as<float>(), 203, one.data_as<float>());
  const Tensor all = run_linear({21, 203, 101}, many, weight, bias), first = run_linear({1, 203, 101}, one, weight, bias);
  for (int64_t o = 0; o < 101; ++o) EXPECT_EQ(all.at({0, o}), first.at({0, o})) << o;
}

}  // namespace
}  // namespace galley
