// The tables of algorithms and thresholds: each row states its rule, and the back end tries the rows of an operator in their order.

#include "libcore/backends/cpu/algorithms.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "libcore/backends/cpu/conv_thresholds.h"
#include "libcore/backends/cpu/quantized_thresholds.h"
#include "libcore/backends/cpu/table.h"
#include "libcore/ops/registry.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

std::vector<AlgorithmRow> all_rows() {
  std::vector<AlgorithmRow> rows;
  for (const std::span<const AlgorithmRow> table :
       {attention_algorithms(), conv_algorithms(), matmul_algorithms(), norm_algorithms(), pool_algorithms(), quantized_algorithms()}) {
    for (const AlgorithmRow& row : table) rows.push_back(row);
  }
  return rows;
}

TEST(Algorithms, StateTheirRulesInOneLine) {
  for (const AlgorithmRow& row : all_rows()) {
    for (const std::string_view text : {row.rule, row.reason}) {
      EXPECT_FALSE(text.empty()) << row.name << " of " << row.op;
      EXPECT_LE(text.size(), 120u) << row.name << " of " << row.op << ": " << text;
      EXPECT_EQ(text.find_first_of("\n"), std::string_view::npos) << row.name << " of " << row.op;
    }
  }
}

TEST(Algorithms, AreNamedByWhatTheyDo) {
  ASSERT_GE(cpu_kernels().size(), 100u);
  for (const Kernel& kernel : cpu_kernels()) {
    EXPECT_FALSE(kernel.algorithm.empty() || kernel.algorithm.starts_with("cpu") || kernel.algorithm == kernel.op)
        << "\"" << kernel.algorithm << "\" of " << kernel.op << " does not say what the kernel does";
  }
}

TEST(Algorithms, AreTriedInTheOrderOfTheirTable) {
  cpu();  // registers the operators of rewrites
  std::map<std::string_view, std::vector<std::string_view>> listed;
  for (const AlgorithmRow& row : all_rows()) listed[row.op].push_back(row.name);
  EXPECT_GE(listed.size(), 33u);
  for (const auto& [op, names] : listed) {
    std::vector<std::string_view> tried;
    for (const Kernel* kernel : cpu().kernels(find_op(op))) {
      if (!kernel->reference) tried.push_back(kernel->algorithm);
    }
    EXPECT_EQ(tried, names) << op;
  }
}

template <size_t kCount>
void expect_complete(const std::array<Threshold, kCount>& thresholds) {
  std::set<std::string_view> decisions;
  for (const Threshold& t : thresholds) {
    EXPECT_GT(t.value, 0) << t.decides;
    EXPECT_FALSE(t.decides.empty());
    EXPECT_TRUE(decisions.insert(t.decides).second) << t.decides << ": twice";
    EXPECT_TRUE(t.measured_by.starts_with("galley-benchmark ") || t.measured_by.starts_with("derived: ") ||
                t.measured_by.starts_with("estimate: "))
        << t.decides << ": " << t.measured_by;
  }
}

TEST(Thresholds, SayWhatTheyDecideAndHowTheyWereFound) {
  expect_complete(conv_threshold::kAll);
  expect_complete(quantized_threshold::kAll);
}

}  // namespace
}  // namespace galley::test
