// Cases of normalization.

#include <cmath>

#include "libcore/backends/bias_sums.h"
#include "libcore/backends/convolution_sums.h"
#include "libcore/backends/cpu/rewrite/gates.h"
#include "libcore/backends/residual_norms.h"
#include "libcore/ops/norm.h"
#include "tests/ops/harness.h"

namespace galley::test {

namespace {

void add_batch_norms(std::vector<OpCase>& cases) {
  const Fill off_center{.low = -1, .high = 3};
  struct Batch {
    std::string name;
    Shape x;
    bool affine = true, relu = false, residual = false;
    Activation activation = Activation::kNone;  // relu6 or hardswish
  };
  for (const Batch& b : std::vector<Batch>{{"plain", {3, 5, 4, 3}},
                                           {"features", {7, 5}},
                                           {"signal", {3, 4, 6}},
                                           {"volume", {2, 3, 2, 3, 2}},
                                           {"many_channels", {2, 35, 3, 3}},
                                           {"vectors_and_a_half", {3, 40, 3, 5}, true, true, true},
                                           {"packs_of_planes", {2, 3, 4, 6}, true, true, true},
                                           {"parts", {2, 130, 3, 3}},
                                           {"parts_of_packs", {1, 136, 5, 7}, true, true},
                                           {"no_affine", {3, 5, 4, 3}, false},
                                           {"residual", {3, 5, 4, 3}, true, false, true},
                                           {"relu", {3, 5, 4, 3}, true, true},
                                           {"relu_residual", {3, 19, 4, 3}, true, true, true},
                                           {"relu_features", {9, 37}, true, true},
                                           {"residual_no_affine", {3, 33, 3, 3}, false, false, true},
                                           {"relu6", {3, 11, 4, 3}, true, true, false, Activation::kRelu6},
                                           {"hardswish", {3, 35, 4, 3}, true, false, false, Activation::kHardswish},
                                           {"relu6_vectors_and_a_half", {2, 72, 3, 5}, true, true, false, Activation::kRelu6},
                                           {"hardswish_no_affine", {5, 5, 3, 3}, false, false, false, Activation::kHardswish},
                                           {"empty_batch", {0, 5, 4, 3}}}) {
    // An element near the kink of relu would invalidate finite differences: gamma is small and beta far from 0, so no element is near.
    const Fill gamma = b.relu ? Fill{.low = 0.05, .high = 0.1} : Fill{.low = 0.5, .high = 1.5};
    const Fill beta =
        b.relu ? Fill{.low = -2, .high = b.activation == Activation::kRelu6 ? 8.0 : 2.0, .kinks = {0, 6}, .margin = 0.6} : Fill{};
    const Fill residual = b.relu ? Fill{.low = -0.05, .high = 0.05} : Fill{};
    cases.push_back({.name = "batch_norm_" + b.name,
                     .build =
                         [=](CaseInputs& in) {
                           BatchNormAttrs a;
                           a.activation = b.relu && b.activation == Activation::kNone ? Activation::kRelu : b.activation;
                           const Value x = in.real(b.x, off_center);
                           const Value g = b.affine ? in.vector(b.x[1], gamma) : Value(), s = b.affine ? in.vector(b.x[1], beta) : Value();
                           batch_norm(x, g, s, a, b.residual ? in.real(b.x, residual) : Value());
                         },
                     .differentiable_outputs = 1,
                     .low_precision = b.x.rank() == 4});
  }
}

void add_gated_batch_norms(std::vector<OpCase>& cases) {
  const Fill off_center{.low = -1, .high = 3};
  // A gate per channel and image. Values are as far from the kinks as in pointwise_cases.cpp.
  struct Gated {
    std::string name;
    Shape x;
    Activation activation = Activation::kNone;
    bool affine = true;
  };
  for (const Gated& b : std::vector<Gated>{{"plain", {3, 5, 4, 3}},
                                           {"relu", {2, 19, 5, 3}, Activation::kRelu},
                                           {"relu6", {3, 72, 4, 7}, Activation::kRelu6},
                                           {"hardswish", {5, 40, 3, 5}, Activation::kHardswish},
                                           {"no_affine", {2, 33, 6, 5}, Activation::kNone, false},
                                           {"blocks", {3, 130, 31, 29}, Activation::kHardswish},
                                           {"one_pixel", {4, 17, 1, 1}, Activation::kRelu}}) {
    cases.push_back(
        {.name = "gated_batch_norm_backward_" + b.name,
         .build =
             [=](CaseInputs& in) {
               BatchNormBackwardAttrs a;
               a.activation = b.activation;
               const std::vector<double> kinks =
                   b.activation == Activation::kHardswish ? std::vector<double>{-3, 3} : std::vector<double>{0, 6};
               const bool bent = b.activation != Activation::kNone;
               const Value grad = in.real(b.x), x = in.real(b.x, off_center), mean = in.vector(b.x[1], {.low = 0.9, .high = 1.1}),
                           var = in.vector(b.x[1], {.low = 0.8, .high = 1.2});
               const Value g =
                   b.affine ? in.vector(b.x[1], bent ? Fill{.low = 0.1, .high = 0.25} : Fill{.low = 0.5, .high = 1.5}) : Value();
               const Value s =
                   b.affine
                       ? in.vector(b.x[1], bent ? Fill{.low = kinks[0] - 2, .high = kinks[1] + 2, .kinks = kinks, .margin = 0.65} : Fill{})
                       : Value();
               const Shape each{b.x[0], b.x[1], 1, 1};
               gated_batch_norm_backward(grad, x, mean, var, g, s, in.real(each), in.real(each), a);
             },
         .forward_only = true,
         .low_precision = true});
  }
}

void add_batch_norms_of_inference_and_updates(std::vector<OpCase>& cases) {
  // Mean 2, variance 1 (eps 0): -1 and 1; times 2, plus 1.
  cases.push_back({.name = "batch_norm_hand",
                   .build =
                       [](CaseInputs& in) {
                         BatchNormAttrs a;
                         a.eps = 0;
                         batch_norm(in.values({2, 1}, {1, 3}), in.values({1}, {2}), in.values({1}, {1}), a);
                       },
                   .expected = {-1, 3},
                   .differentiable_outputs = 1,
                   .forward_only = true});
  for (bool affine : {true, false}) {
    for (const Shape& shape : {Shape{3, 5, 4, 3}, Shape{4, 7}, Shape{0, 5, 4, 3}}) {
      cases.push_back({.name = cat("batch_norm_inference_", shape.rank(), shape[0] == 0 ? "_empty" : "", affine ? "" : "_no_affine"),
                       .build =
                           [=](CaseInputs& in) {
                             const Value x = in.real(shape), g = affine ? in.vector(shape[1]) : Value(),
                                         b = affine ? in.vector(shape[1]) : Value();
                             const Value mean = in.fixed(in.vector(shape[1])), var = in.fixed(in.vector(shape[1], {.low = 0.2, .high = 2}));
                             batch_norm_inference(x, g, b, mean, var);
                           },
                       .low_precision = shape.rank() == 4});
    }
  }
  cases.push_back({.name = "batch_norm_inference_hand",
                   .build =
                       [](CaseInputs& in) {
                         BatchNormInferenceAttrs a;
                         a.eps = 1;
                         a.activation = Activation::kRelu;
                         batch_norm_inference(in.values({2, 1}, {4, -4}), in.values({1}, {2}), in.values({1}, {1}), in.values({1}, {1}),
                                              in.values({1}, {3}), a);
                       },
                   .expected = {4, 0},
                   .forward_only = true});
  // momentum 0.25, count 5: mean 0.75*1 + 0.25*3, variance 0.75*2 + 0.25*8*5/4.
  cases.push_back({.name = "batch_norm_update_hand",
                   .build =
                       [](CaseInputs& in) {
                         BatchNormUpdateAttrs a;
                         a.momentum = 0.25;
                         a.count = 5;
                         batch_norm_update(in.values({1}, {1}), in.values({1}, {2}), in.values({1}, {3}), in.values({1}, {8}),
                                           in.values({}, {6}, DType::kI64), a);
                       },
                   .expected = {1.5}});
  cases.push_back({.name = "batch_norm_update_channels",
                   .build =
                       [](CaseInputs& in) {
                         BatchNormUpdateAttrs a;
                         a.count = 12;
                         const Value mean = in.real({19}), var = in.real({19}, {.low = 0.2, .high = 2}), batch_mean = in.vector(19);
                         batch_norm_update(mean, var, batch_mean, in.vector(19, {.low = 0.2, .high = 2}), {}, a);
                       },
                   .low_precision = true});
}

void add_layer_norms(std::vector<OpCase>& cases) {
  const Fill off_center{.low = -1, .high = 3};
  for (int64_t dims : {int64_t{1}, int64_t{2}}) {
    for (bool affine : {true, false}) {
      for (int64_t batch : {int64_t{3}, int64_t{0}}) {
        cases.push_back({.name = cat("layer_norm_", dims, affine ? "" : "_no_affine", batch == 0 ? "_empty" : ""),
                         .build =
                             [=](CaseInputs& in) {
                               LayerNormAttrs a;
                               a.dims = dims;
                               const Value x = in.real({batch, 4, 7}, off_center);
                               const Shape inner = dims == 1 ? Shape{7} : Shape{4, 7};
                               const Value g = affine ? in.weight(inner) : Value();
                               layer_norm(x, g, affine ? in.weight(inner) : Value(), a);
                             },
                         .differentiable_outputs = 1});
      }
    }
  }
  // For kernels: rows of one value, shorter than a vector, longer than a run of lanes, and enough rows for several threads and blocks.
  for (const Shape& shape : {Shape{3, 1}, Shape{5, 33}, Shape{1, 2500}, Shape{7, 13, 197}, Shape{190, 257}, Shape{4, 3, 5, 29},
                             Shape{45, 24}, Shape{3, 264}, Shape{2, 2056}, Shape{300, 24}, Shape{100, 264}}) {
    for (const int affine : {0, 1, 2}) {
      const bool packs = shape[-1] % 8 == 0;  // of the CUDA kernels: rows of one warp and of several, and several packs a thread
      if (packs && affine == 1) continue;
      cases.push_back({.name = cat("layer_norm_kernel_", shape.rank(), "_", shape.elements(), "_", affine),
                       .build =
                           [=](CaseInputs& in) {
                             LayerNormAttrs a;
                             a.eps = 1e-3;
                             const Value x = in.real(shape, off_center);
                             layer_norm(x, affine > 0 ? in.vector(shape[-1]) : Value(), affine > 1 ? in.vector(shape[-1]) : Value(), a);
                           },
                       .differentiable_outputs = 1,
                       .low_precision = packs});
    }
  }
  cases.push_back({.name = "layer_norm_hand",
                   .build =
                       [](CaseInputs& in) {
                         LayerNormAttrs a;
                         a.eps = 0;
                         layer_norm(in.values({1, 2}, {1, 5}), in.values({2}, {2, 3}), in.values({2}, {0, 1}), a);
                       },
                   .expected = {-2, 4},
                   .forward_only = true});
}

/// Gradients with their sums over rows: of rows with and without packs, in several parts, and too long for the kernel of packs.
void add_bias_sums(std::vector<OpCase>& cases) {
  ensure_bias_sum_operators();
  for (const Shape& shape : {Shape{5, 33}, Shape{45, 24}, Shape{2, 17, 264}, Shape{2, 2056}, Shape{600, 16}, Shape{0, 16}}) {
    const Shape rows = shape.rank() == 2 ? Shape{shape[0]} : Shape{shape[0], shape[1]};
    for (const bool plain : {false, true}) {
      const auto add = [&](const char* name, auto build) {
        cases.push_back({.name = cat(name, shape.elements(), "_", shape[-1], plain ? "_plain" : ""),
                         .build = [=](CaseInputs& in) { build(in, in.real(shape), in.real(shape, {.low = -1, .high = 3})); },
                         .forward_only = true,
                         .low_precision = shape[-1] % 8 == 0 && shape[0] > 0});
      };
      add("layer_norm_backward_sums_", [=](CaseInputs& in, Value grad, Value x) {
        const Value mean = in.fixed(in.real(rows)), rstd = in.fixed(in.real(rows, {.low = 0.5, .high = 1.5}));
        layer_norm_backward_sums(grad, x, mean, rstd, plain ? Value() : in.vector(shape[-1]), plain ? Value() : in.real(shape));
      });
      add("gelu_backward_sums_", [=](CaseInputs&, Value grad, Value x) {
        GeluAttrs a;
        if (!plain) a.approximate = GeluApproximation::kTanh;
        gelu_backward_sums(grad, x, a);
      });
    }
  }
}

/// Norms with additions. Rows with and without packs, of a block and of several; the sum is kept, or not.
void add_residual_norms(std::vector<OpCase>& cases) {
  ensure_residual_norm_operators();
  for (const Shape& shape : {Shape{5, 33}, Shape{45, 24}, Shape{2, 3, 264}, Shape{2, 2056}, Shape{0, 16}}) {
    for (const bool plain : {false, true}) {
      const Shape rows = shape.rank() == 2 ? Shape{shape[0]} : Shape{shape[0], shape[1]};
      const auto add = [&](const char* name, auto build) {
        cases.push_back({.name = cat(name, shape.elements(), "_", shape[-1], plain ? "_plain" : ""),
                         .build =
                             [=](CaseInputs& in) {
                               const Value first = in.real(shape), x = in.real(shape, {.low = -1, .high = 3});
                               const Value gamma = plain ? Value() : in.vector(shape[-1]);
                               build(in, first, x, gamma);
                             },
                         .forward_only = true,
                         .low_precision = shape[-1] % 8 == 0 && shape[0] > 0});
      };
      add("add_layer_norm_", [=](CaseInputs& in, Value residual, Value x, Value gamma) {
        AddLayerNormAttrs a;
        a.keep_sum = !plain;
        add_layer_norm(x, residual, gamma, plain ? Value() : in.vector(shape[-1]), a);
      });
      add("add_rms_norm_", [=](CaseInputs&, Value residual, Value x, Value gamma) {
        AddRmsNormAttrs a;
        a.norm.offset = 0.5;
        a.keep_sum = plain;
        add_rms_norm(x, residual, gamma, a);
      });
      add("layer_norm_backward_add_", [=](CaseInputs& in, Value grad, Value x, Value gamma) {
        const Value mean = in.real(rows), rstd = in.real(rows, {.low = 0.5, .high = 1.5});
        layer_norm_backward_add(grad, x, in.fixed(mean), in.fixed(rstd), gamma, in.real(shape), {});
      });
      add("rms_norm_backward_add_", [=](CaseInputs& in, Value grad, Value x, Value gamma) {
        const Value rstd = in.real(rows, {.low = 0.5, .high = 1.5});
        rms_norm_backward_add(grad, x, in.fixed(rstd), gamma, in.real(shape), {});
      });
    }
  }
  for (const int64_t width : {8, 11}) {  // of the last two dimensions
    const Shape shape{5, 3, width}, last{3, width};
    cases.push_back({.name = cat("add_layer_norm_planes_", width),
                     .build =
                         [=](CaseInputs& in) {
                           AddLayerNormAttrs a;
                           a.norm.dims = 2;
                           a.keep_sum = true;
                           add_layer_norm(in.real(shape), in.real(shape), in.f32(last), in.f32(last), a);
                         },
                     .forward_only = true,
                     .low_precision = width == 8});
    cases.push_back({.name = cat("layer_norm_backward_add_planes_", width),
                     .build =
                         [=](CaseInputs& in) {
                           LayerNormBackwardAttrs a;
                           a.dims = 2;
                           const Value grad = in.real(shape), x = in.real(shape), mean = in.real({5}),
                                       rstd = in.real({5}, {.low = 0.5, .high = 1.5});
                           layer_norm_backward_add(grad, x, in.fixed(mean), in.fixed(rstd), in.f32(last), in.real(shape), a);
                         },
                     .forward_only = true,
                     .low_precision = width == 8});
  }
  for (const Shape& shape : {Shape{3, 19, 4, 3}, Shape{3, 40, 3, 5}, Shape{2, 3, 4, 6}, Shape{0, 8, 2, 2}}) {
    cases.push_back({.name = cat("add_batch_norm_backward_", shape[0], "_", shape[1]),
                     .build =
                         [=](CaseInputs& in) {
                           BatchNormBackwardAttrs a;
                           a.activation = Activation::kRelu;
                           a.residual = true;
                           const Value grad = in.real(shape), x = in.real(shape), addend = in.real(shape);
                           const Value mean = in.vector(shape[1]), var = in.vector(shape[1], {.low = 0.5, .high = 1.5});
                           const Value y = in.real(shape, {.low = -1, .high = 1, .kinks = {0}, .margin = 0.05});
                           add_batch_norm_backward({grad, x, mean, var, in.vector(shape[1]), in.vector(shape[1]), y, addend}, a);
                         },
                     .forward_only = true,
                     .low_precision = shape[0] > 0});
  }
}

/// Convolutions in f16 with sums, and norms by sums of other types too.
void add_norms_by_sums(std::vector<OpCase>& cases) {
  ensure_convolution_sum_operators();
  const auto halves = [](CaseInputs& in, const Shape& shape, int64_t step) {
    std::vector<double> values;  // of f16
    for (int64_t i = 0; i < shape.elements(); ++i) values.push_back(static_cast<double>(i * step % 31 - 11) / 16);
    return in.values(shape, values, DType::kF16);
  };
  cases.push_back({.name = "conv2d_sums",
                   .build =
                       [=](CaseInputs& in) {
                         Conv2dAttrs window;
                         window.padding = {1};
                         window.stride = {2};
                         conv2d_sums(halves(in, {3, 8, 5, 4}, 7), halves(in, {16, 8, 3, 3}, 5), window);
                       },
                   .kernel_tolerance = 1e-3,
                   .forward_only = true});
  for (const bool plain : {false, true}) {
    for (const Shape& shape : {Shape{3, 19, 4, 3}, Shape{2, 40, 3, 5}, Shape{0, 8, 2, 2}}) {
      cases.push_back({.name = cat("batch_norm_of_sums_", shape[0], "_", shape[1], plain ? "_plain" : ""),
                       .build =
                           [=](CaseInputs& in) {
                             BatchNormAttrs a;
                             a.activation = plain ? Activation::kNone : Activation::kRelu;
                             const Value x = in.real(shape), gamma = plain ? Value() : in.vector(shape[1]);
                             const Value beta = plain ? Value() : in.vector(shape[1]), residual = plain ? Value() : in.real(shape);
                             const Value sum = in.f32({shape[1]}, {.low = -9, .high = 9}),
                                         squares = in.f32({shape[1]}, {.low = 30, .high = 90});
                             batch_norm_of_sums({x, gamma, beta, residual, sum, squares}, a);
                           },
                       .forward_only = true,
                       .low_precision = shape[0] > 0});
    }
  }
}

/// Sums whose difference is below 0 by rounding, or not a number.
void add_norms_by_strange_sums(std::vector<OpCase>& cases) {
  cases.push_back({.name = "batch_norm_of_sums_strange",
                   .build =
                       [](CaseInputs& in) {
                         const Value x = in.values({2, 2, 1, 1}, {1, 2, 3, 4});
                         const Value sum = in.values({2}, {4, HUGE_VAL}, DType::kF32),
                                     squares = in.values({2}, {7.5, HUGE_VAL}, DType::kF32);
                         BatchNormAttrs a;
                         a.eps = 1;
                         batch_norm_of_sums({x, {}, {}, {}, sum, squares}, a);
                       },
                   .forward_only = true});
}

void add_group_norms(std::vector<OpCase>& cases) {
  const Fill off_center{.low = -1, .high = 3};
  for (int64_t groups : {int64_t{1}, int64_t{3}, int64_t{6}}) {
    for (bool affine : {true, false}) {
      cases.push_back({.name = cat("group_norm_", groups, affine ? "" : "_no_affine"),
                       .build =
                           [=](CaseInputs& in) {
                             GroupNormAttrs a;
                             a.groups = groups;
                             const Value x = in.real({2, 6, 3, 5}, off_center), g = affine ? in.vector(6) : Value();
                             group_norm(x, g, affine ? in.vector(6) : Value(), a);
                           },
                       .differentiable_outputs = 1});
    }
  }
  // For kernels: several blocks of pixels and runs of lanes, other ranks, a large mean, one channel per group.
  for (const Shape& shape : {Shape{1, 38, 31, 29}, Shape{2, 6, 2300}, Shape{5, 40}, Shape{2, 4, 3, 5, 7}}) {
    for (int64_t groups : {int64_t{1}, int64_t{2}, shape[1]}) {
      if (shape.rank() == 2 && groups > 1) continue;  // with so few values, finite differences are inaccurate
      cases.push_back({.name = cat("group_norm_kernel_", shape.rank(), "_", shape.elements(), "_", groups),
                       .build =
                           [=](CaseInputs& in) {
                             GroupNormAttrs a;
                             a.groups = groups;
                             a.eps = 1e-3;
                             group_norm(in.real(shape, {.low = 40, .high = 43}), in.vector(shape[1]), in.vector(shape[1]), a);
                           },
                       .differentiable_outputs = 1});
    }
  }
  cases.push_back({.name = "batch_norm_planes",
                   .build =
                       [](CaseInputs& in) {
                         batch_norm(in.real({3, 5, 47, 51}, {.low = 40, .high = 43}), in.vector(5), in.vector(5), {},
                                    in.real({3, 5, 47, 51}));
                       },
                   .differentiable_outputs = 1});
  cases.push_back({.name = "group_norm_hand",
                   .build =
                       [](CaseInputs& in) {
                         GroupNormAttrs a;
                         a.groups = 2;
                         a.eps = 0;
                         group_norm(in.values({1, 4}, {1, 3, 10, 30}), {}, {}, a);
                       },
                   .expected = {-1, 1, -1, 1},
                   .forward_only = true});
}

}  // namespace

std::vector<OpCase> norm_cases() {
  std::vector<OpCase> cases;
  for (const auto add : {add_batch_norms, add_gated_batch_norms, add_batch_norms_of_inference_and_updates, add_layer_norms,
                         add_residual_norms, add_bias_sums, add_norms_by_sums, add_norms_by_strange_sums, add_group_norms})
    add(cases);
  return cases;
}

}  // namespace galley::test
