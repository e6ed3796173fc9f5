// Cases of attention with a cache: how rows are stored, rings, padding, and sequences without a new token.

#include <cmath>

#include "libcore/ops/cached_attention.h"
#include "tests/ops/harness.h"

namespace galley::test {
namespace {

struct CachedForm {
  std::string name;
  int64_t tokens, heads, kv_heads, width, capacity;
  DType stored = DType::kF32;
  std::vector<double> position, last = {};
  int64_t window = 0;
  bool packed = false;
};

OpCase cached_case(const CachedForm& f) {
  const auto build = [=](CaseInputs& in) {
    const auto batch = static_cast<int64_t>(f.position.size());
    CachedAttentionAttrs attrs;
    attrs.window = f.window;
    CachedAttentionInputs inputs;
    if (f.packed) attrs.kv_heads = f.kv_heads;
    inputs.q = in.f32({batch, f.tokens, f.heads + (f.packed ? 2 * f.kv_heads : 0), f.width}, {.low = -3, .high = 3});
    if (!f.packed) {
      inputs.k = in.f32({batch, f.tokens, f.kv_heads, f.width}, {.low = -3, .high = 3});
      inputs.v = in.f32({batch, f.tokens, f.kv_heads, f.width});
    }
    const Shape cache{batch, f.capacity, 2 * f.kv_heads, f.width};
    if (f.stored == DType::kI8) {
      inputs.cache = in.quantized(DType::kI8, cache, -127, 127);
      inputs.scales = in.f32({batch, f.capacity, 2 * f.kv_heads}, {.low = 0.001, .high = 0.02});
    } else if (f.stored == DType::kBF16) {
      std::vector<double> values;  // which bf16 has
      for (int64_t i = 0; i < cache.elements(); ++i) values.push_back(static_cast<double>(i * i * 37 % 255 - 127) / 64);
      inputs.cache = in.values(cache, values, DType::kBF16);
    } else {
      inputs.cache = in.f32(cache);
    }
    inputs.position = in.values({batch}, f.position, DType::kI64);
    if (!f.last.empty()) inputs.last = in.values({batch}, f.last, DType::kI64);
    cached_attention(inputs, attrs);
  };
  return {.name = "cached_attention_" + f.name, .build = build, .forward_only = true, .large = true};
}

}  // namespace

std::vector<OpCase> cache_cases() {
  std::vector<OpCase> cases;
  const double third = std::log(3.0);
  // A key of 0 in the cache, a new key of ln 3, a query of 1: probabilities 1/4 and 3/4 of the values 2 and 6. The second row is unused.
  cases.push_back({.name = "cached_attention_hand",
                   .build =
                       [=](CaseInputs& in) {
                         CachedAttentionInputs inputs;
                         inputs.q = in.values({1, 1, 3, 1}, {1, third, 6}, DType::kF32);
                         inputs.cache = in.values({1, 3, 2, 1}, {0, 2, 0, 0, 50, 50}, DType::kF32);
                         inputs.position = in.values({1}, {1}, DType::kI64);
                         cached_attention(inputs);
                       },
                   .expected = {5},
                   .forward_only = true});
  // A ring of two rows at position 3 holds the tokens 1 and 2; its own token takes the row of token 1.
  cases.push_back({.name = "cached_attention_hand_ring",
                   .build =
                       [=](CaseInputs& in) {
                         CachedAttentionInputs inputs;
                         inputs.q = in.values({1, 1, 3, 1}, {1, third, 6}, DType::kF32);
                         inputs.cache = in.values({1, 2, 2, 1}, {0, 2, 50, 50}, DType::kF32);
                         inputs.position = in.values({1}, {3}, DType::kI64);
                         cached_attention(inputs);
                       },
                   .expected = {5},
                   .forward_only = true});
  for (const DType stored : {DType::kF32, DType::kBF16, DType::kI8}) {
    const std::string type = "_" + std::string(dtype_name(stored));
    cases.push_back(cached_case({"one_token" + type, 1, 8, 2, 32, 150, stored, {140, 0, -1, 9}}));
    cases.push_back(cached_case({"one_token_packed" + type, 1, 3, 3, 16, 70, stored, {69, 3}, {}, 0, true}));
    cases.push_back(cached_case({"one_token_ring" + type, 1, 4, 4, 48, 70, stored, {69, 70, 1000, 12}, {}, 70}));
    cases.push_back(cached_case({"one_token_window" + type, 1, 2, 2, 16, 130, stored, {200, 129, 135, 4}, {}, 100}));
    cases.push_back(cached_case({"one_token_odd" + type, 1, 2, 1, 5, 9, stored, {4, 12}}));
    cases.push_back(cached_case({"tokens" + type, 5, 4, 2, 12, 20, stored, {0, 9, -1, 3}, {4, 2, 0, 0}}));
    cases.push_back(cached_case({"tokens_packed" + type, 70, 6, 3, 16, 200, stored, {100, 7}, {69, 66}, 0, true}));
    cases.push_back(cached_case({"tokens_window" + type, 66, 2, 2, 16, 200, stored, {90, 3}, {}, 50}));
    cases.push_back(cached_case({"tokens_ring" + type, 9, 4, 2, 19, 7, stored, {0, 5, 23, 7}, {8, 4, 8, 6}, 7}));
    cases.push_back(cached_case({"tokens_long_ring" + type, 150, 2, 1, 16, 100, stored, {0, 30, 333}, {149, 20, 120}, 100}));
  }
  cases.push_back(cached_case({"nothing", 0, 2, 2, 16, 5, DType::kF32, {1, 2}}));
  return cases;
}

}  // namespace galley::test
