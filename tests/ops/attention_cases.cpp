// Cases of attention: forms of the arrays, masks, dropout. attention_test.cpp compares the kernels on longer sequences.

#include <cmath>
#include <limits>

#include "libcore/ops/attention.h"
#include "tests/ops/harness.h"

namespace galley::test {
namespace {

/// Sizes of a case; arrays: 1 to 3 (ops/attention.h).
struct Form {
  std::string name;
  int64_t batch, queries, keys, heads, kv_heads, width, value_width;
  int arrays = 3;
  std::function<void(AttentionAttrs&)> set = {};
  std::vector<double> lengths = {}, position = {};
  std::optional<Shape> bias = {};
};

AttentionInputs inputs_of(CaseInputs& in, const Form& f, const AttentionAttrs& attrs) {
  AttentionInputs inputs;
  const int64_t own = f.arrays == 1 ? f.heads + 2 * f.kv_heads : f.heads;
  inputs.q = in.real({f.batch, f.queries, own, f.width});
  if (f.arrays > 1) inputs.k = in.real({f.batch, f.keys, f.arrays == 2 ? 2 * f.kv_heads : f.kv_heads, f.width});
  if (f.arrays > 2) inputs.v = in.real({f.batch, f.keys, f.kv_heads, f.value_width});
  if (f.bias) inputs.bias = in.f32(*f.bias);
  if (!f.lengths.empty()) inputs.lengths = in.values({f.batch}, f.lengths, DType::kI64);
  if (!f.position.empty()) inputs.position = in.values({f.batch}, f.position, DType::kI64);
  if (attrs.dropout > 0) inputs.rng = in.values({3}, {7, 3, 100}, DType::kI64);
  return inputs;
}

/// `none`: some query reads no key, so that lse has no derivative.
OpCase case_of(const Form& f, bool none = false, bool large = false) {
  return {.name = "attention_" + f.name,
          .build =
              [=](CaseInputs& in) {
                AttentionAttrs attrs;
                if (f.arrays == 1) attrs.kv_heads = f.kv_heads;
                if (f.set) f.set(attrs);
                attention(inputs_of(in, f, attrs), attrs);
              },
          .differentiable_outputs = none ? 1 : -1,
          .large = large,
          .low_precision = true};
}

void add_attention_by_hand(std::vector<OpCase>& cases) {
  // Scores 0, 0 and 0, ln 3: probabilities 1/2, 1/2 and 1/4, 3/4.
  const auto hand = [](CaseInputs& in, const AttentionAttrs& attrs, std::optional<double> length = {}) {
    AttentionInputs inputs{in.values({1, 2, 1, 1}, {0, std::log(3.0)}), in.values({1, 2, 1, 1}, {0, 1}), in.values({1, 2, 1, 1}, {2, 6})};
    if (length) inputs.lengths = in.values({1}, {*length}, DType::kI64);
    attention(inputs, attrs);
  };
  cases.push_back({.name = "attention_hand", .build = [=](CaseInputs& in) { hand(in, {}); }, .expected = {4, 5}});
  AttentionAttrs causal;
  causal.causal = true;
  cases.push_back({.name = "attention_hand_causal", .build = [=](CaseInputs& in) { hand(in, causal); }, .expected = {2, 5}});
  cases.push_back({.name = "attention_hand_no_key",
                   .build = [=](CaseInputs& in) { hand(in, {}, 0); },
                   .expected = {0, 0},
                   .differentiable_outputs = 1});
  // The cap of ln 3 to c tanh(ln 3 / c), with c = 1: tanh(ln 3) = 4/5; e^0.8 = 2.2255409.
  AttentionAttrs cap;
  cap.softcap = 1;
  cases.push_back(
      {.name = "attention_hand_softcap", .build = [=](CaseInputs& in) { hand(in, cap); }, .expected = {4, 2 + 4 * 0.6899744811}});
}

void add_masks(std::vector<OpCase>& cases) {
  const auto causal = [](AttentionAttrs& a) { a.causal = true; };
  const auto window = [](AttentionAttrs& a) { a.window = 3; };
  const auto causal_window = [](AttentionAttrs& a) { a.causal = true, a.window = 3; };
  const auto padded = [](AttentionAttrs& a) { a.pad_queries = true; };
  const auto everything = [](AttentionAttrs& a) {
    a.causal = a.pad_queries = true;
    a.window = 4;
    a.softcap = 0.7;
    a.scale = 1.3;
    a.dropout = 0.3;
    a.stream = 99;
  };
  const auto dropout = [](AttentionAttrs& a) { a.dropout = 0.4, a.stream = 5; };
  const auto capped = [](AttentionAttrs& a) { a.softcap = 0.5; };
  cases.push_back(case_of({"plain", 2, 5, 5, 2, 2, 4, 4}));
  cases.push_back(case_of({"causal", 1, 7, 7, 2, 2, 3, 3, 3, causal}));
  cases.push_back(case_of({"cross", 2, 3, 6, 2, 2, 3, 5}));
  cases.push_back(case_of({"causal_fewer_keys", 1, 6, 4, 1, 1, 3, 3, 3, causal}));
  cases.push_back(case_of({"window", 1, 8, 8, 2, 2, 3, 3, 3, window}));
  cases.push_back(case_of({"causal_window", 1, 8, 8, 1, 1, 3, 3, 3, causal_window}));
  cases.push_back(case_of({"window_past_the_keys", 1, 9, 4, 1, 1, 3, 3, 3, causal_window}, true));
  cases.push_back(case_of({"grouped", 2, 4, 5, 6, 2, 3, 4}));
  cases.push_back(case_of({"multi_query", 1, 5, 5, 4, 1, 3, 3, 3, causal}));
  cases.push_back(case_of({"packed", 2, 5, 5, 2, 2, 4, 4, 1, causal}));
  cases.push_back(case_of({"packed_grouped", 2, 5, 5, 4, 2, 3, 3, 1}));
  cases.push_back(case_of({"packed_keys", 2, 3, 5, 4, 2, 3, 3, 2}));
  cases.push_back(case_of({"lengths", 3, 4, 5, 2, 2, 3, 3, 3, {}, {5, 2, 1}}));
  cases.push_back(case_of({"lengths_none", 3, 4, 5, 2, 2, 3, 3, 3, causal, {0, 2, 9}}, true));
  cases.push_back(case_of({"padded_queries", 3, 5, 5, 2, 2, 3, 3, 1, padded, {5, 2, 0}}, true));
  cases.push_back(case_of({"position", 2, 2, 7, 2, 2, 3, 3, 3, causal, {5, 6}, {3, 0}}));
  cases.push_back(case_of({"bias", 2, 4, 5, 2, 2, 3, 3, 3, {}, {}, {}, Shape{2, 2, 4, 5}}));
  cases.push_back(case_of({"bias_of_heads", 3, 4, 5, 2, 1, 3, 3, 3, {}, {}, {}, Shape{1, 2, 4, 5}}));
  cases.push_back(case_of({"bias_of_samples", 2, 4, 5, 2, 2, 3, 3, 3, capped, {}, {}, Shape{2, 1, 4, 5}}));
  cases.push_back(case_of({"bias_of_windows", 6, 4, 5, 2, 2, 3, 3, 3, {}, {}, {}, Shape{3, 2, 4, 5}}));
  cases.push_back(case_of({"bias_of_windows_and_keys", 4, 4, 5, 2, 1, 3, 3, 3, causal, {}, {}, Shape{2, 1, 1, 5}}));
  cases.push_back(case_of({"bias_of_keys", 2, 4, 5, 2, 2, 3, 3, 3, causal, {}, {}, Shape{1, 1, 1, 5}}));
  cases.push_back(case_of({"softcap", 1, 4, 5, 2, 2, 3, 3, 3, capped}));
  cases.push_back(case_of({"dropout", 2, 5, 6, 2, 2, 3, 3, 3, dropout}));
  const auto later_heads = [](AttentionAttrs& a) { a.dropout = 0.4, a.stream = 5, a.first_head = 3; };
  cases.push_back(case_of({"dropout_of_later_heads", 2, 5, 6, 2, 2, 3, 3, 3, later_heads}));
  cases.push_back(case_of({"everything", 3, 7, 7, 4, 2, 3, 3, 1, everything, {7, 4, 0}, {}, Shape{1, 4, 7, 7}}, true));
  // Forms of GPUs' kernels: for heads up to 64, 128 and 256, and those that cuDNN computes, of multiples of 8.
  cases.push_back(case_of({"wide_heads", 1, 3, 5, 2, 1, 72, 70}));
  cases.push_back(case_of({"widest_heads", 1, 3, 4, 1, 1, 136, 200, 3, causal}));
  cases.push_back(case_of({"eighths", 2, 5, 5, 4, 2, 8, 8, 1, causal}));
  cases.push_back(case_of({"eighths_cross", 2, 3, 4, 2, 2, 8, 16}));
  // More than one tile, remainders of vectors.
  cases.push_back(case_of({"tiles", 1, 70, 67, 2, 1, 19, 11}, false, true));
  cases.push_back(case_of({"tiles_causal", 1, 100, 100, 2, 2, 16, 16, 1, causal}, false, true));
  cases.push_back(case_of({"tiles_everything", 2, 66, 66, 2, 2, 12, 12, 1, everything, {66, 50}, {}, Shape{1, 2, 66, 66}}, true, true));
  cases.push_back(case_of({"tiles_windows", 4, 49, 49, 2, 2, 8, 8, 1, {}, {}, {}, Shape{2, 2, 49, 49}}, false, true));
  cases.push_back(case_of({"decode", 2, 1, 150, 4, 2, 32, 32, 2, causal, {}, {140, 9}}, false, true));
  cases.push_back(case_of({"decode_three_arrays", 1, 4, 70, 2, 2, 16, 48, 3, causal_window, {}, {60}}, false, true));
  cases.push_back(case_of({"nothing", 0, 3, 3, 1, 1, 2, 2}));
  cases.push_back(case_of({"no_keys", 2, 3, 0, 1, 1, 2, 2}, true));
  // A mask written as a bias: the second query reads no key.
  const double never = -std::numeric_limits<double>::infinity();
  cases.push_back({.name = "attention_bias_forbids",
                   .build =
                       [=](CaseInputs& in) {
                         AttentionInputs inputs{in.real({1, 2, 1, 3}), in.real({1, 3, 1, 3}), in.real({1, 3, 1, 3})};
                         inputs.bias = in.fixed(in.values({1, 1, 2, 3}, {0, never, 0, never, never, never}, DType::kF32));
                         attention(inputs, {});
                       },
                   .differentiable_outputs = 1});
}

}  // namespace

std::vector<OpCase> attention_cases() {
  std::vector<OpCase> cases;
  add_attention_by_hand(cases);
  add_masks(cases);
  return cases;
}

}  // namespace galley::test
