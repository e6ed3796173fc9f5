// Cases of losses.

#include <limits>

#include "libcore/backends/mixed_loss.h"
#include "libcore/ops/loss.h"
#include "tests/ops/harness.h"

namespace galley::test {

namespace {

void add_losses(std::vector<OpCase>& cases) {
  for (int r = 0; r < 3; ++r) {
    const auto reduction = static_cast<Reduction>(r);
    const std::string suffix = cat("_", kReductionNames[static_cast<size_t>(r)]);
    for (double smoothing : {0.0, 0.1}) {
      for (bool weighted : {false, true}) {
        for (bool probabilities : {false, true}) {
          // The last two have odd sizes and enough elements for several threads; their gradient is a node of the case, without finite
          // differences.
          for (const Shape& logits : {Shape{5, 7}, Shape{2, 4, 3, 2}, Shape{3, 1}, Shape{71, 301}, Shape{2, 19, 13, 37}}) {
            const auto build = [=](CaseInputs& in) {
              CrossEntropyAttrs a;
              a.label_smoothing = smoothing;
              a.reduction = reduction;
              a.ignore_index = 2;
              const Value x = in.real(logits, {.low = -3, .high = 3});
              Shape target{logits[0]};
              for (int axis = 2; axis < logits.rank(); ++axis) target.push_back(logits[axis]);
              const Value t = probabilities ? in.fixed(in.real(logits, {.low = 0, .high = 1})) : in.integers(target, 0, logits[1]);
              const Value w = weighted ? in.fixed(in.vector(logits[1], {.low = 0.5, .high = 2})) : Value();
              const Value loss = cross_entropy(x, t, w, a);
              if (logits.elements() > 1000) cross_entropy_backward(in.real(loss.shape()), x, t, w, a);
            };
            cases.push_back({.name = cat("cross_entropy_", logits.rank(), "_", logits[1], probabilities ? "_probabilities" : "",
                                         weighted ? "_weighted" : "", smoothing > 0 ? "_smoothed" : "", suffix),
                             .build = build});
          }
        }
      }
    }
    for (const Shape& shape : {Shape{4, 5}, Shape{2, 3, 4, 5}, Shape{3, 11, 23, 29}}) {
      cases.push_back({.name = cat("mse_loss_", shape.elements(), suffix),
                       .build =
                           [=](CaseInputs& in) {
                             LossAttrs a;
                             a.reduction = reduction;
                             const Value x = in.real(shape);
                             mse_loss(x, in.real(shape), a);
                           },
                       .forward_only = shape.elements() > 1000});
      for (bool weighted : {false, true}) {
        cases.push_back({.name = cat("bce_with_logits_", shape.elements(), weighted ? "_weighted" : "", suffix),
                         .build =
                             [=](CaseInputs& in) {
                               LossAttrs a;
                               a.reduction = reduction;
                               const Value x = in.real(shape, {.low = -3, .high = 3, .kinks = {0}}),
                                           t = in.real(shape, {.low = 0, .high = 1});
                               bce_with_logits(x, t, weighted ? in.fixed(in.real(shape, {.low = 0.5, .high = 2})) : Value(), a);
                             },
                         .forward_only = shape.elements() > 1000});
      }
    }
  }
}

void add_cross_entropies_by_hand(std::vector<OpCase>& cases) {
  // softmax (1/4, 3/4): -log 3/4, and -log 1/4; their mean.
  const std::vector<double> logits{0, 1.0986122886681098, 0, 1.0986122886681098};
  cases.push_back({.name = "cross_entropy_hand",
                   .build = [=](CaseInputs& in) { cross_entropy(in.values({2, 2}, logits), in.values({2}, {1, 0}, DType::kI64)); },
                   .expected = {(0.2876820724 + 1.3862943611) / 2}});
  // Weights 1 and 3: (3 * 0.28768 + 1 * 1.38629) / 4.
  cases.push_back({.name = "cross_entropy_hand_weighted",
                   .build =
                       [=](CaseInputs& in) {
                         cross_entropy(in.values({2, 2}, logits), in.values({2}, {1, 0}, DType::kI64), in.fixed(in.values({2}, {1, 3})));
                       },
                   .expected = {(3 * 0.2876820724 + 1.3862943611) / 4}});
  cases.push_back({.name = "cross_entropy_hand_ignored",
                   .build = [=](CaseInputs& in) { cross_entropy(in.values({2, 2}, logits), in.values({2}, {1, -100}, DType::kI64)); },
                   .expected = {0.2876820724}});
}

void add_strange_cross_entropies(std::vector<OpCase>& cases) {
  // Rows: -inf without and with a share, NaN, logits far from 0, NaN in an ignored row; then only ignored rows; as samples and as pixels.
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  for (const bool pixels : {false, true}) {
    for (const bool none : {false, true}) {
      for (const double smoothing : {0.0, 0.25}) {
        cases.push_back(
            {.name =
                 cat("cross_entropy_strange_", pixels ? "pixels" : "rows", none ? "_all_ignored" : "", smoothing > 0 ? "_smoothed" : ""),
             .build =
                 [=](CaseInputs& in) {
                   CrossEntropyAttrs a;
                   a.label_smoothing = smoothing;
                   const Shape shape = pixels ? Shape{1, 5, 5} : Shape{5, 5}, count = pixels ? Shape{1, 5} : Shape{5};
                   std::vector<double> x{-inf, 1, 2, 0, 1, 1, -inf, 2, 0, 3, 1, nan, 2, 1, 1, 5000, 4999, 4000, 5001, 1, nan, 1, 1, 2, 2};
                   if (pixels) {
                     const std::vector<double> rows = x;
                     for (size_t i = 0; i < 25; ++i) x[i] = rows[i % 5 * 5 + i / 5];
                   }
                   const Value logits = in.values(shape, x),
                               t = in.values(count, none ? std::vector<double>(5, -100) : std::vector<double>{1, 1, 0, 1, -100},
                                             DType::kI64);
                   for (const Reduction reduction : {Reduction::kNone, Reduction::kMean}) {
                     a.reduction = reduction;
                     const Value loss = cross_entropy(logits, t, {}, a);
                     cross_entropy_backward(in.real(loss.shape()), logits, t, {}, a);
                   }
                 },
             .forward_only = true});
      }
    }
  }
  // A logit of -inf does not count where its class has no share: no weight (even as the target), or no probability.
  for (const bool pixels : {false, true}) {
    for (const bool probabilities : {false, true}) {
      for (const double smoothing : {0.0, 0.25}) {
        if (probabilities && smoothing > 0) continue;
        cases.push_back({.name = cat("cross_entropy_no_share_", pixels ? "pixels" : "rows", probabilities ? "_probabilities" : "",
                                     smoothing > 0 ? "_smoothed" : ""),
                         .build =
                             [=](CaseInputs& in) {
                               CrossEntropyAttrs a;
                               a.label_smoothing = smoothing;
                               std::vector<double> x, p;  // [2,20] or [1,20,2]: class 3 is -inf
                               for (int i = 0; i < 40; ++i) {
                                 const int c = pixels ? i / 2 : i % 20;
                                 x.push_back(c == 3 || c == 17 ? -inf : 0.1 * (i % 7));
                                 p.push_back(c == 3 || c == 17 ? 0 : 0.01 * (i % 5));
                               }
                               std::vector<double> weights(20, 1.5);
                               weights[3] = weights[17] = 0;
                               const Shape shape = pixels ? Shape{1, 20, 2} : Shape{2, 20};
                               const Value logits = in.values(shape, x);
                               const Value t =
                                   probabilities ? in.values(shape, p) : in.values(pixels ? Shape{1, 2} : Shape{2}, {3, 5}, DType::kI64);
                               const Value w = probabilities ? Value() : in.values({20}, weights), loss = cross_entropy(logits, t, w, a);
                               cross_entropy_backward(in.real(loss.shape()), logits, t, w, a);
                             },
                         .forward_only = true});
      }
    }
  }
}

void add_strange_and_simple_losses(std::vector<OpCase>& cases) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  // Losses of confident correct predictions are small, but not 0 (log1p). NaN is kept.
  cases.push_back({.name = "bce_with_logits_strange",
                   .build =
                       [=](CaseInputs& in) {
                         LossAttrs a;
                         a.reduction = Reduction::kNone;
                         bce_with_logits(in.values({4}, {20, 15, 18, nan}), in.values({4}, {1, 1, 1, 0}), {}, a);
                       },
                   .forward_only = true});
  cases.push_back({.name = "mse_loss_hand",
                   .build = [](CaseInputs& in) { mse_loss(in.values({2}, {1, 5}), in.values({2}, {3, 4})); },
                   .expected = {2.5}});
  cases.push_back({.name = "bce_with_logits_hand",
                   .build = [](CaseInputs& in) { bce_with_logits(in.values({2}, {1.0986122886681098, -1000}), in.values({2}, {1, 0})); },
                   .expected = {0.2876820724 / 2},
                   .forward_only = true});
}

}  // namespace

/// Rows of several packs a thread and of odd sizes, for the CUDA kernels.
void add_long_rows(std::vector<OpCase>& cases) {
  for (const bool smoothed : {false, true}) {
    const auto build = [=](CaseInputs& in) {
      CrossEntropyAttrs a;
      a.label_smoothing = smoothed ? 0.1 : 0;
      const Shape logits{2, 9001};
      const Value x = in.real(logits, {.low = -3, .high = 3}), t = in.integers({2}, 0, logits[1]);
      const Value w = smoothed ? in.fixed(in.vector(logits[1], {.low = 0.5, .high = 2})) : Value();
      const Value loss = cross_entropy(x, t, w, a);
      cross_entropy_backward(in.real(loss.shape()), x, t, w, a);
    };
    cases.push_back(
        {.name = cat("cross_entropy_long_rows", smoothed ? "_smoothed" : ""), .build = build, .forward_only = true, .low_precision = true});
  }
}

/// Of logits in bf16, with a loss and class weights in f32.
void add_mixed_cross_entropies(std::vector<OpCase>& cases) {
  ensure_mixed_loss_operators();
  for (const Shape& logits : {Shape{11, 301}, Shape{2, 5, 7}}) {
    for (const Reduction reduction : {Reduction::kMean, Reduction::kNone}) {
      for (const bool backward : {false, true}) {
        const auto build = [=](CaseInputs& in) {
          CrossEntropyAttrs a;
          a.label_smoothing = 0.1;
          a.reduction = reduction;
          Shape target{logits[0]};
          if (logits.rank() > 2) target.push_back(logits[2]);
          std::vector<double> values;  // of bf16
          for (int64_t i = 0; i < logits.elements(); ++i) values.push_back(static_cast<double>(i * 37 % 97 - 48) / 16);
          const Value x = in.values(logits, values, DType::kBF16), t = in.integers(target, 0, logits[1]);
          const Value w = in.f32({logits[1]}, {.low = 0.5, .high = 2});
          if (!backward) {
            mixed_cross_entropy(x, t, w, a);
          } else {
            mixed_cross_entropy_backward(in.f32(reduction == Reduction::kNone ? target : Shape{}), x, t, w, a);
          }
        };
        cases.push_back({.name = cat("mixed_cross_entropy_", logits.rank(), backward ? "_backward" : "",
                                     reduction == Reduction::kNone ? "_none" : "_mean"),
                         .build = build,
                         .kernel_tolerance = backward ? 4e-3 : 2e-5,
                         .forward_only = true});
      }
    }
  }
}

std::vector<OpCase> loss_cases() {
  std::vector<OpCase> cases;
  for (const auto add : {add_losses, add_long_rows, add_mixed_cross_entropies, add_cross_entropies_by_hand, add_strange_cross_entropies,
                         add_strange_and_simple_losses})
    add(cases);
  return cases;
}

}  // namespace galley::test
