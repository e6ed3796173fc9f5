// Cases of losses.

#include "libcore/ops/loss.h"
#include "tests/ops/harness.h"

namespace galley::test {

std::vector<OpCase> loss_cases() {
  std::vector<OpCase> cases;
  for (int r = 0; r < 3; ++r) {
    const auto reduction = static_cast<Reduction>(r);
    const std::string suffix = cat("_", kReductionNames[static_cast<size_t>(r)]);
    for (double smoothing : {0.0, 0.1}) {
      for (bool weighted : {false, true}) {
        for (bool probabilities : {false, true}) {
          for (const Shape& logits : {Shape{5, 7}, Shape{2, 4, 3, 2}, Shape{3, 1}}) {
            const auto build = [=](CaseInputs& in) {
              CrossEntropyAttrs a;
              a.label_smoothing = smoothing;
              a.reduction = reduction;
              a.ignore_index = 2;
              const Value x = in.real(logits, {.low = -3, .high = 3});
              Shape target{logits[0]};
              for (int axis = 2; axis < logits.rank(); ++axis) target.push_back(logits[axis]);
              const Value t = probabilities ? in.fixed(in.real(logits, {.low = 0, .high = 1})) : in.integers(target, 0, logits[1]);
              cross_entropy(x, t, weighted ? in.fixed(in.vector(logits[1], {.low = 0.5, .high = 2})) : Value(), a);
            };
            cases.push_back({.name = cat("cross_entropy_", logits.rank(), "_", logits[1], probabilities ? "_probabilities" : "", weighted ? "_weighted" : "",
                                         smoothing > 0 ? "_smoothed" : "", suffix),
                             .build = build});
          }
        }
      }
    }
    for (const Shape& shape : {Shape{4, 5}, Shape{2, 3, 4, 5}}) {
      cases.push_back({.name = cat("mse_loss_", shape.rank(), suffix), .build = [=](CaseInputs& in) {
                         LossAttrs a;
                         a.reduction = reduction;
                         const Value x = in.real(shape);
                         mse_loss(x, in.real(shape), a);
                       }});
      for (bool weighted : {false, true}) {
        cases.push_back({.name = cat("bce_with_logits_", shape.rank(), weighted ? "_weighted" : "", suffix), .build = [=](CaseInputs& in) {
                           LossAttrs a;
                           a.reduction = reduction;
                           const Value x = in.real(shape, {.low = -3, .high = 3, .kinks = {0}}), t = in.real(shape, {.low = 0, .high = 1});
                           bce_with_logits(x, t, weighted ? in.fixed(in.real(shape, {.low = 0.5, .high = 2})) : Value(), a);
                         }});
      }
    }
  }
  // softmax (1/4, 3/4): -log 3/4, and -log 1/4; their mean.
  const std::vector<double> logits{0, 1.0986122886681098, 0, 1.0986122886681098};
  cases.push_back({.name = "cross_entropy_hand", .build = [=](CaseInputs& in) {
                     cross_entropy(in.values({2, 2}, logits), in.values({2}, {1, 0}, DType::kI64));
                   }, .expected = {(0.2876820724 + 1.3862943611) / 2}});
  // Weights 1 and 3: (3 * 0.28768 + 1 * 1.38629) / 4.
  cases.push_back({.name = "cross_entropy_hand_weighted", .build = [=](CaseInputs& in) {
                     cross_entropy(in.values({2, 2}, logits), in.values({2}, {1, 0}, DType::kI64), in.fixed(in.values({2}, {1, 3})));
                   }, .expected = {(3 * 0.2876820724 + 1.3862943611) / 4}});
  cases.push_back({.name = "cross_entropy_hand_ignored", .build = [=](CaseInputs& in) {
                     cross_entropy(in.values({2, 2}, logits), in.values({2}, {1, -100}, DType::kI64));
                   }, .expected = {0.2876820724}});
  cases.push_back({.name = "mse_loss_hand", .build = [](CaseInputs& in) { mse_loss(in.values({2}, {1, 5}), in.values({2}, {3, 4})); }, .expected = {2.5}});
  cases.push_back({.name = "bce_with_logits_hand", .build = [](CaseInputs& in) {
                     bce_with_logits(in.values({2}, {1.0986122886681098, -1000}), in.values({2}, {1, 0}));
                   }, .expected = {0.2876820724 / 2}, .forward_only = true});
  return cases;
}

}  // namespace galley::test
