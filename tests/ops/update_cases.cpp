// Cases of the updates: hand values of one step; five steps against PyTorch are in tests/optim.

#include <cmath>
#include <tuple>

#include "libcore/ops/norm.h"
#include "libcore/ops/update.h"
#include "tests/ops/harness.h"

namespace galley::test {

namespace {

Value step(CaseInputs& in, double n) { return in.values({}, {n}, DType::kI64); }

SgdUpdateAttrs with_momentum() {
  SgdUpdateAttrs momentum;
  momentum.momentum = 0.5;
  momentum.dampening = 0.25;
  momentum.weight_decay = 0.5;
  return momentum;
}

void add_assign_and_sgd(std::vector<OpCase>& cases) {
  const Shape shape{5, 3, 3, 2};
  const SgdUpdateAttrs momentum = with_momentum();
  cases.push_back({.name = "assign_hand",
                   .build = [](CaseInputs& in) { assign(in.values({2}, {4, 5}), in.values({2}, {2, -1})); },
                   .expected = {2, -1}});
  cases.push_back({.name = "assign_image", .build = [=](CaseInputs& in) { assign(in.weight(shape), in.real(shape)); }});
  cases.push_back({.name = "assign_counter",
                   .build = [](CaseInputs& in) { assign(in.values({}, {7}, DType::kI64), in.values({}, {9}, DType::kI64)); },
                   .expected = {9}});

  // g = 2 + 0.5 * 4 = 4; first step: buffer 4, param 4 - 0.125 * 4
  cases.push_back({.name = "sgd_first_hand",
                   .build =
                       [=](CaseInputs& in) {
                         sgd_update(in.values({1}, {4}), in.values({1}, {2}), in.scalar(0.125), step(in, 1), in.values({1}, {99}), {},
                                    momentum);
                       },
                   .expected = {3.5}});
  // later: buffer 0.5 * 8 + 0.75 * 4 = 7, param 4 - 0.125 * 7; the gradient 4 is scaled by 0.5 first
  cases.push_back({.name = "sgd_second_hand",
                   .build =
                       [=](CaseInputs& in) {
                         sgd_update(in.values({1}, {4}), in.values({1}, {4}), in.scalar(0.125), step(in, 2), in.values({1}, {8}),
                                    in.scalar(0.5), momentum);
                       },
                   .expected = {3.125}});
  for (bool nesterov : {false, true}) {
    cases.push_back({.name = nesterov ? "sgd_nesterov" : "sgd_momentum", .build = [=](CaseInputs& in) {
                       SgdUpdateAttrs attrs;
                       attrs.momentum = 0.9;
                       attrs.nesterov = nesterov;
                       attrs.weight_decay = 1e-2;
                       sgd_update(in.weight(shape), in.real(shape), in.scalar(0.1), step(in, 4), in.real(shape), in.scalar(0.75), attrs);
                     }});
  }
  cases.push_back({.name = "sgd_plain", .build = [=](CaseInputs& in) {
                     sgd_update(in.weight({33}), in.real({33}), in.scalar(0.1), step(in, 4), {}, {}, SgdUpdateAttrs());
                   }});
}

void add_adam_and_rmsprop(std::vector<OpCase>& cases) {
  const Fill square{.low = 0.2, .high = 1};
  const Shape shape{5, 3, 3, 2};
  // First step of Adam without eps: mean and root are g and |g|, so the step is lr * sign(g).
  cases.push_back({.name = "adam_first_hand",
                   .build =
                       [=](CaseInputs& in) {
                         AdamUpdateAttrs attrs;
                         attrs.eps = 0;
                         adam_update(in.values({2}, {1, 1}), in.values({2}, {3, -0.01}), in.scalar(0.125), step(in, 1),
                                     in.values({2}, {0, 0}), in.values({2}, {0, 0}), {}, attrs);
                       },
                   .expected = {0.875, 1.125}});
  for (bool decoupled : {false, true}) {
    cases.push_back({.name = decoupled ? "adamw_later" : "adam_later", .build = [=](CaseInputs& in) {
                       AdamUpdateAttrs attrs;
                       attrs.weight_decay = 0.1;
                       attrs.decoupled = decoupled;
                       adam_update(in.weight(shape), in.real(shape), in.scalar(0.01), step(in, 7), in.real(shape), in.real(shape, square),
                                   in.scalar(0.5), attrs);
                     }});
  }

  // As back ends rewrite it: a gradient in the dtype of a product.
  for (const DType half : {DType::kBF16, DType::kF16}) {
    cases.push_back({.name = cat("adam_gradient_", half),
                     .build =
                         [=](CaseInputs& in) {
                           std::vector<double> values;
                           for (int64_t i = 0; i < shape.elements(); ++i) values.push_back(static_cast<double>(i * 37 % 97 - 48) / 16);
                           const Value parameter = in.f32(shape), grad = in.values(shape, values, half);
                           adam_update(parameter, grad, in.scalar(0.01), step(in, 7), in.f32(shape), in.f32(shape, square), {},
                                       AdamUpdateAttrs());
                         },
                     .forward_only = true});
  }

  // square = 0.75 * 4 + 0.25 * 16 = 7, root with eps inside: sqrt(7 + 2) = 3; param 2 - 0.75 * 4 / 3
  cases.push_back({.name = "rmsprop_tf_hand",
                   .build =
                       [=](CaseInputs& in) {
                         RmspropUpdateAttrs attrs;
                         attrs.alpha = 0.75;
                         attrs.eps = 2;
                         attrs.tf_eps = true;
                         rmsprop_update(in.values({1}, {2}), in.values({1}, {4}), in.scalar(0.75), step(in, 2), in.values({1}, {4}), {}, {},
                                        {}, attrs);
                       },
                   .expected = {1}});
  for (bool centered : {false, true}) {
    for (double momentum_factor : {0.0, 0.9}) {
      cases.push_back(
          {.name = cat("rmsprop", centered ? "_centered" : "", momentum_factor > 0 ? "_momentum" : "_plain"), .build = [=](CaseInputs& in) {
             RmspropUpdateAttrs attrs;
             attrs.alpha = 0.9;
             attrs.eps = 0.0316;
             attrs.weight_decay = 1e-2;
             attrs.momentum = momentum_factor;
             attrs.centered = centered;
             // The square of the mean is below the mean square, so that the root is defined.
             rmsprop_update(in.weight(shape), in.real(shape, {.low = -0.2, .high = 0.2}), in.scalar(0.01), step(in, 3),
                            in.real(shape, square), centered ? in.real(shape, {.low = -0.2, .high = 0.2}) : Value(),
                            momentum_factor > 0 ? in.real(shape) : Value(), in.scalar(0.5), attrs);
           }});
    }
  }
}

void add_averages_and_sums(std::vector<OpCase>& cases) {
  const Shape shape{5, 3, 3, 2};
  cases.push_back({.name = "ema_update_hand",
                   .build = [](CaseInputs& in) { ema_update(in.values({2}, {4, 8}), in.values({2}, {0, 4}), in.scalar(0.75)); },
                   .expected = {3, 7}});
  cases.push_back(
      {.name = "ema_update_count",
       .build = [](CaseInputs& in) { ema_update(in.values({}, {3}, DType::kI64), in.values({}, {9}, DType::kI64), in.scalar(0.75)); },
       .expected = {9}});
  cases.push_back({.name = "ema_update_weight",
                   .build = [=](CaseInputs& in) { ema_update(in.real(shape), in.real(shape), in.scalar(0.99)); },
                   .low_precision = true});
  cases.push_back({.name = "accumulate_hand",
                   .build = [](CaseInputs& in) { accumulate(in.values({2}, {1, 2}), in.values({2}, {3, -4})); },
                   .expected = {4, -2}});
  cases.push_back({.name = "accumulate_weight", .build = [=](CaseInputs& in) { accumulate(in.real(shape), in.real(shape)); }});
  cases.push_back({.name = "clear_hand", .build = [](CaseInputs& in) { clear(in.values({2}, {1, 2})); }, .expected = {0, 0}});
}

void add_gated(std::vector<OpCase>& cases) {
  const SgdUpdateAttrs momentum = with_momentum();
  for (const bool open : {false, true}) {
    const auto add = [&](const std::string& name, std::vector<double> closed, std::vector<double> opened,
                         const std::function<void(CaseInputs&, Value)>& build) {
      cases.push_back({.name = cat(name, open ? "_gate_open" : "_gate_closed"),
                       .build = [=](CaseInputs& in) { build(in, in.values({}, {open ? 1.0 : 0.0}, DType::kBool)); },
                       .expected = open ? opened : closed});
    };
    add("sgd", {4}, {3.5}, [=](CaseInputs& in, Value gate) {
      sgd_update(in.values({1}, {4}), in.values({1}, {2}), in.scalar(0.125), step(in, 1), in.values({1}, {99}), {}, momentum, gate);
    });
    add("adam", {1, 1}, {0.875, 1.125}, [=](CaseInputs& in, Value gate) {
      AdamUpdateAttrs attrs;
      attrs.eps = 0;
      adam_update(in.values({2}, {1, 1}), in.values({2}, {3, -0.01}), in.scalar(0.125), step(in, 1), in.values({2}, {0, 0}),
                  in.values({2}, {0, 0}), {}, attrs, gate);
    });
    add("rmsprop", {2}, {1}, [=](CaseInputs& in, Value gate) {
      RmspropUpdateAttrs attrs;
      attrs.alpha = 0.75;
      attrs.eps = 2;
      attrs.tf_eps = true;
      rmsprop_update(in.values({1}, {2}), in.values({1}, {4}), in.scalar(0.75), step(in, 2), in.values({1}, {4}), {}, {}, {}, attrs, gate);
    });
    add("ema_update", {4, 8}, {3, 7},
        [](CaseInputs& in, Value gate) { ema_update(in.values({2}, {4, 8}), in.values({2}, {0, 4}), in.scalar(0.75), gate); });
    add("ema_update_count", {3}, {9}, [](CaseInputs& in, Value gate) {
      ema_update(in.values({}, {3}, DType::kI64), in.values({}, {9}, DType::kI64), in.scalar(0.75), gate);
    });
    add("accumulate", {1, 2}, {4, -2},
        [](CaseInputs& in, Value gate) { accumulate(in.values({2}, {1, 2}), in.values({2}, {3, -4}), gate); });
    add("clear", {1, 2}, {0, 0}, [](CaseInputs& in, Value gate) { clear(in.values({2}, {1, 2}), gate); });
    // 0.9 * 2 + 0.1 * 12
    add("batch_norm_update", {2}, {3}, [](CaseInputs& in, Value gate) {
      std::vector<Value> inputs{
          in.values({1}, {2}), in.values({1}, {2}), in.values({1}, {12}), in.values({1}, {12}), in.values({}, {7}, DType::kI64), gate};
      emit_all("batch_norm_update", std::make_unique<BatchNormUpdateAttrs>(), inputs);
    });
    add("keep_range", {-1}, {-3}, [](CaseInputs& in, Value gate) {
      emit("keep_range", {in.values({}, {-1}), in.values({}, {1}), in.values({}, {-3}), in.values({}, {5}), gate});
    });
  }
}

void add_gates_and_clipping(std::vector<OpCase>& cases) {
  // The state is the first output: 1 after the first value that is not finite.
  for (const auto& [name, stopped, value, expected] :
       {std::tuple{"finite", 0.0, 3.0, 0.0}, {"nan", 0.0, NAN, 1.0}, {"inf", 0.0, -INFINITY, 1.0}, {"stays", 1.0, 3.0, 1.0}}) {
    cases.push_back({.name = cat("finite_gate_", name),
                     .build = [stopped = stopped, value = value](
                                  CaseInputs& in) { finite_gate(in.values({}, {stopped}, DType::kBool), in.values({}, {value})); },
                     .expected = {expected}});
  }
  ClipCoefficientAttrs clip;
  clip.max_norm = 1;
  // 1 / (sqrt(16) + 1e-6), or 1 if the norm is smaller.
  cases.push_back({.name = "clip_coefficient_above",
                   .build = [=](CaseInputs& in) { clip_coefficient(in.scalar(16), clip); },
                   .expected = {1 / 4.000001}});
  cases.push_back(
      {.name = "clip_coefficient_below", .build = [=](CaseInputs& in) { clip_coefficient(in.scalar(0.25), clip); }, .expected = {1}});
}

}  // namespace

std::vector<OpCase> update_cases() {
  std::vector<OpCase> cases;
  for (const auto add : {add_assign_and_sgd, add_adam_and_rmsprop, add_averages_and_sums, add_gated, add_gates_and_clipping}) add(cases);
  return cases;
}

}  // namespace galley::test
