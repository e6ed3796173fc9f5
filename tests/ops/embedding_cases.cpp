// Cases of embedding and its backward.

#include "libcore/ops/embedding.h"
#include "tests/ops/harness.h"

namespace galley::test {

std::vector<OpCase> embedding_cases() {
  std::vector<OpCase> cases;
  cases.push_back(
      {.name = "embedding_hand",
       .build = [](CaseInputs& in) { embedding(in.values({3, 2}, {1, 2, 3, 4, 5, 6}), in.values({3}, {2, 0, 2}, DType::kI64)); },
       .expected = {5, 6, 1, 2, 5, 6}});
  cases.push_back({.name = "embedding_tokens", .build = [](CaseInputs& in) { embedding(in.weight({11, 7}), in.integers({2, 9}, 0, 11)); }});
  // A row that is read twice gets both gradients.
  cases.push_back({.name = "embedding_backward_hand",
                   .build =
                       [](CaseInputs& in) {
                         EmbeddingBackwardAttrs attrs;
                         attrs.rows = 3;
                         embedding_backward(in.values({3, 2}, {1, 2, 3, 4, 5, 6}), in.values({3}, {2, 0, 2}, DType::kI64), attrs);
                       },
                   .expected = {3, 4, 0, 0, 6, 8}});
  // For kernels: widths that are not multiples of a vector, repeated indices, other dtypes, and enough for several threads.
  for (int64_t width : {1, 19, 130, 264}) {
    cases.push_back({.name = cat("embedding_width_", width),
                     .build = [width](CaseInputs& in) { embedding(in.weight({23, width}), in.integers({5, 67}, 0, 23)); }});
    cases.push_back({.name = cat("embedding_backward_width_", width), .build = [width](CaseInputs& in) {
                       EmbeddingBackwardAttrs attrs;
                       attrs.rows = 23;
                       embedding_backward(in.real({5, 67, width}), in.integers({5, 67}, 0, 19), attrs);
                     }});
  }
  for (const DType index : {DType::kI32, DType::kI64}) {
    cases.push_back({.name = cat("embedding_index_", index),
                     .build = [index](CaseInputs& in) { embedding(in.weight({6, 5}), in.values({4}, {5, 0, 3, 5}, index)); },
                     .low_precision = true});
  }
  cases.push_back(
      {.name = "embedding_nothing", .build = [](CaseInputs& in) { embedding(in.weight({6, 5}), in.values({0}, {}, DType::kI64)); }});
  return cases;
}

}  // namespace galley::test
