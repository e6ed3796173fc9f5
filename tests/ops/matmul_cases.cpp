// Cases of matrix products.

#include "libcore/ops/matmul.h"
#include "tests/ops/harness.h"

namespace galley::test {
namespace {

void add_linear(std::vector<OpCase>& cases) {
  struct Layer {
    std::string name;
    Shape x;
    int64_t outputs;
    bool bias;
  };
  for (const Layer& l : std::vector<Layer>{{"plain", {4, 7}, 5, true},
                                           {"no_bias", {3, 17}, 9, false},
                                           {"vector", {6}, 4, true},
                                           {"tokens", {2, 3, 5}, 4, true},
                                           {"wide", {2, 65}, 33, true},
                                           {"empty_batch", {0, 7}, 5, true},
                                           {"one", {1, 1}, 1, true}}) {
    cases.push_back({.name = "linear_" + l.name,
                     .build =
                         [l](CaseInputs& in) {
                           // Terms of a single result do not cancel: a library may round the bias.
                           const Fill fill{.low = l.name == "one" ? 0.5 : -1.0};
                           const Value x = in.real(l.x, fill), weight = in.weight({l.outputs, l.x[-1]}, fill);
                           linear(x, weight, l.bias ? in.vector(l.outputs, fill) : Value());
                         },
                     .low_precision = true});
  }
  cases.push_back(
      {.name = "linear_hand",
       .build =
           [](CaseInputs& in) { linear(in.values({1, 2}, {1, 2}), in.values({3, 2}, {1, 0, 0, 1, 3, 4}), in.values({3}, {0, 10, -20})); },
       .expected = {1, 12, -9}});
  cases.push_back({.name = "linear_fused_relu",
                   .build =
                       [](CaseInputs& in) {
                         LinearAttrs a;
                         a.activation = Activation::kRelu;
                         linear(in.values({1, 2}, {1, 2}), in.values({3, 2}, {1, 0, 0, 1, 3, 4}), in.values({3}, {0, 10, -20}), a);
                       },
                   .expected = {1, 12, 0},
                   .forward_only = true});
}

void add_linear_for_kernels(std::vector<OpCase>& cases) {
  // Depths and widths that are and are not multiples of vectors and tiles, more rows than a tile, and more than the limit of the kernel for
  // few rows.
  struct Sizes {
    int64_t rows, depth, outputs;
  };
  for (const Sizes& s :
       std::vector<Sizes>{{1, 31, 1}, {1, 200, 35}, {2, 8, 3}, {5, 67, 10}, {16, 129, 40}, {21, 64, 7}, {64, 33, 19}, {70, 40, 17}}) {
    for (size_t a = 0; a < kActivationNames.size(); ++a) {
      // Each activation with some sizes, each size with some activations.
      if (a > 0 && (a + static_cast<size_t>(s.rows)) % 3 != 0) continue;
      cases.push_back({.name = cat("linear_", s.rows, "x", s.depth, "_to_", s.outputs, "_", kActivationNames[a]),
                       .build =
                           [=](CaseInputs& in) {
                             LinearAttrs attrs;
                             attrs.activation = static_cast<Activation>(a);
                             linear(in.real({s.rows, s.depth}), in.weight({s.outputs, s.depth}, {.low = -0.3, .high = 0.3}),
                                    a % 2 == 0 ? in.vector(s.outputs) : Value(), attrs);
                           },
                       .forward_only = true});
    }
  }
  // An activation that libraries do not have, with a bias, and rows that are and are not whole words of 16 bytes.
  for (const int64_t outputs : {24, 13}) {
    cases.push_back({.name = cat("linear_gelu_bias_", outputs),
                     .build =
                         [=](CaseInputs& in) {
                           LinearAttrs attrs;
                           attrs.activation = Activation::kGelu;
                           linear(in.real({9, 16}), in.weight({outputs, 16}), in.vector(outputs), attrs);
                         },
                     .forward_only = true,
                     .low_precision = true});
  }
}

Shape matrices(std::vector<int64_t> lead, int64_t rows, int64_t columns, bool transposed) {
  lead.push_back(transposed ? columns : rows);
  lead.push_back(transposed ? rows : columns);
  return Shape(std::span<const int64_t>(lead));
}

void add_matmul(std::vector<OpCase>& cases) {
  for (bool ta : {false, true}) {
    for (bool tb : {false, true}) {
      struct Leads {
        std::string name;
        std::vector<int64_t> a, b;
      };
      for (const Leads& lead : std::vector<Leads>{
               {"matrices", {}, {}}, {"batched", {2, 3}, {2, 3}}, {"shared_b", {2, 3}, {}}, {"shared_a", {}, {3}}, {"empty", {0}, {0}}}) {
        cases.push_back({.name = cat("matmul_", lead.name, ta ? "_ta" : "", tb ? "_tb" : ""),
                         .build =
                             [=](CaseInputs& in) {
                               const Value a = in.real(matrices(lead.a, 4, 7, ta));
                               matmul(a, in.real(matrices(lead.b, 7, 5, tb)), {ta, tb});
                             },
                         .low_precision = true});
      }
    }
  }
  // Rows a multiple of 2 KiB apart: kernels may copy the transposed side first.
  for (bool tb : {false, true}) {
    cases.push_back({.name = cat("matmul_wide_rows_ta", tb ? "_tb" : ""), .build = [=](CaseInputs& in) {
                       const Value a = in.real({37, 512});
                       matmul(a, in.real(tb ? Shape{35, 37} : Shape{37, 35}), {true, tb});
                     }});
  }
  cases.push_back({.name = "matmul_of_f64",
                   .build =
                       [](CaseInputs& in) {
                         std::vector<double> a(19 * 23), b(23 * 17);
                         for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<double>(i * 37 % 101) / 8 - 6;
                         for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<double>(i * 29 % 97) / 8 - 6;
                         matmul(in.values({19, 23}, a, DType::kF64), in.values({23, 17}, b, DType::kF64));
                       },
                   .forward_only = true});
  cases.push_back({.name = "matmul_hand",
                   .build = [](CaseInputs& in) { matmul(in.values({2, 2}, {1, 2, 3, 4}), in.values({2, 2}, {5, 6, 7, 8})); },
                   .expected = {19, 22, 43, 50}});
}

}  // namespace

std::vector<OpCase> matmul_cases() {
  std::vector<OpCase> cases;
  add_linear(cases);
  add_linear_for_kernels(cases);
  add_matmul(cases);
  return cases;
}

}  // namespace galley::test
