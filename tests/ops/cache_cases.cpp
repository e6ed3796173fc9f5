// Cases of tokens written into a cache.

#include "libcore/ops/cache.h"
#include "tests/ops/harness.h"

namespace galley::test {

std::vector<OpCase> cache_cases() {
  std::vector<OpCase> cases;
  // Two sequences of one head of width 1: at positions 1 and 2, where the last token is past the end.
  cases.push_back({.name = "cache_write_hand",
                   .build =
                       [](CaseInputs& in) {
                         cache_write(in.values({2, 3, 1, 1}, {1, 2, 3, 4, 5, 6}), in.values({2, 2, 1, 1}, {7, 8, 9, 10}),
                                     in.values({2}, {1, 2}, DType::kI64));
                       },
                   .expected = {1, 7, 8, 4, 5, 9}});
  // The keys and values of packed heads: the second and third of three.
  cases.push_back({.name = "cache_write_hand_packed",
                   .build =
                       [](CaseInputs& in) {
                         CacheWriteAttrs attrs;
                         attrs.first = 1;
                         cache_write(in.values({1, 2, 2, 1}, {0, 0, 0, 0}), in.values({1, 1, 3, 1}, {7, 8, 9}),
                                     in.values({1}, {1}, DType::kI64), attrs);
                       },
                   .expected = {0, 0, 8, 9}});
  for (const auto& [name, tokens, position] : std::vector<std::tuple<std::string, int64_t, std::vector<double>>>{
           {"one_token", 1, {0, 40, 79}}, {"many", 33, {0, 20, 60}}, {"idle", 5, {80, 3, 1000}}, {"none", 0, {1, 2, 3}}}) {
    cases.push_back({.name = "cache_write_" + name,
                     .build =
                         [tokens = tokens, position = position](CaseInputs& in) {
                           CacheWriteAttrs attrs;
                           attrs.first = 4;
                           cache_write(in.real({3, 80, 8, 16}), in.real({3, tokens, 12, 16}), in.values({3}, position, DType::kI64), attrs);
                         },
                     .low_precision = true});
  }
  return cases;
}

}  // namespace galley::test
