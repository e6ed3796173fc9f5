// Cases of embedding and its backward.

#include "libcore/ops/embedding.h"
#include "tests/ops/harness.h"

namespace galley::test {

std::vector<OpCase> embedding_cases() {
  std::vector<OpCase> cases;
  cases.push_back({.name = "embedding_hand", .build = [](CaseInputs& in) {
                     embedding(in.values({3, 2}, {1, 2, 3, 4, 5, 6}), in.values({3}, {2, 0, 2}, DType::kI64));
                   }, .expected = {5, 6, 1, 2, 5, 6}});
  cases.push_back({.name = "embedding_tokens", .build = [](CaseInputs& in) { embedding(in.weight({11, 7}), in.integers({2, 9}, 0, 11)); }});
  // A row picked twice gets both gradients.
  cases.push_back({.name = "embedding_backward_hand", .build = [](CaseInputs& in) {
                     EmbeddingBackwardAttrs attrs;
                     attrs.rows = 3;
                     embedding_backward(in.values({3, 2}, {1, 2, 3, 4, 5, 6}), in.values({3}, {2, 0, 2}, DType::kI64), attrs);
                   }, .expected = {3, 4, 0, 0, 6, 8}});
  return cases;
}

}  // namespace galley::test
