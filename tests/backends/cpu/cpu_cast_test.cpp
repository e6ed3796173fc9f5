// Conversions between all dtypes equal the reference bit for bit: ties, limits of the ranges and values beyond, NaN.

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <limits>

#include "libcore/device/stream.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/registry.h"
#include "libcore/tensor/tensor.h"
#include "tests/support/target.h"

namespace galley {
namespace {

using test::cpu;

TEST(CpuCast, GivesTheReferencesBits) {
  ensure_ops_registered();
  constexpr std::array kDTypes{DType::kF32, DType::kF64, DType::kF16, DType::kBF16, DType::kI64,
                               DType::kI32, DType::kI16, DType::kI8,  DType::kU8,   DType::kBool};
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> values{0,          1,           -1,          0.5,        -0.5,  1.5,     2.5,  -2.5,       126.7,
                                   127.5,      128,         -128.4,      -129,       254.9, 255,     256,  32767,      32768.5,
                                   -32769,     65504,       65519,       65520,      1e-7,  1.0 / 3, -0.0, 2147483520, 2147483647,
                                   2147483648, -2147483648, -2147483904, 9e15,       1e19,  -1e19,   3e38, 1e300,      inf,
                                   -inf,       nan,         1.00390625,  1.01171875, 1e-40, 6e-8,    -3e-8};
  const Shape shape{static_cast<int64_t>(values.size())};
  for (const DType from : kDTypes) {
    Tensor x(from, shape);
    x.from_doubles(values);
    for (const DType to : kDTypes) {
      if (from == to) continue;
      Graph graph;
      cast(graph.add_input("x", {from, shape}, ValueRole::kInput), to);
      const Node& node = graph.nodes().back();
      const KernelQuery query{node, context_of(graph, node), 1};
      int tried = 0;
      std::vector<Tensor> results;
      for (const Kernel* kernel : cpu().kernels(find_op("cast"))) {
        if (!kernel->supports(query)) continue;
        results.emplace_back(to, shape);
        const void* in[] = {x.data()};
        void* out[] = {results.back().data()};
        kernel->prepare(query)->run(host_stream(), {in, out});
        ++tried;
      }
      ASSERT_EQ(tried, 2) << from << " to " << to;
      const auto size = static_cast<size_t>(dtype_size(to));
      for (size_t i = 0; i < values.size(); ++i) {
        const auto* a = static_cast<const std::byte*>(results[0].data()) + i * size;
        const auto* b = static_cast<const std::byte*>(results[1].data()) + i * size;
        EXPECT_EQ(std::memcmp(a, b, size), 0) << from << " to " << to << " of " << values[i] << ": " << load_element(to, a)
                                              << ", the reference " << load_element(to, b);
      }
    }
  }
}

}  // namespace
}  // namespace galley
