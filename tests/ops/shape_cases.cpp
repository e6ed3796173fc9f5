// Cases of the operators that move or relabel elements.

#include "libcore/ops/shape.h"
#include "tests/ops/harness.h"

namespace galley::test {

std::vector<OpCase> shape_cases() {
  std::vector<OpCase> cases;
  const auto add = [&](std::string name, std::function<void(CaseInputs&)> build, std::vector<double> expected = {}) {
    cases.push_back({.name = std::move(name), .build = std::move(build), .expected = std::move(expected)});
  };
  const std::vector<double> six{1, 2, 3, 4, 5, 6};
  const Shape image{2, 5, 3, 7};

  add("concat_hand", [=](CaseInputs& in) { concat({in.values({2, 3}, six), in.values({2, 1}, {7, 8})}, 1); }, {1, 2, 3, 7, 4, 5, 6, 8});
  for (int64_t axis : {0, 1, 2, -1}) {
    add(cat("concat_axis_", axis + 1), [axis](CaseInputs& in) {
      Shape a{2, 5, 3, 7}, b = a, c = a;
      b[static_cast<int>(axis)] = 1;
      c[static_cast<int>(axis)] = 4;
      concat({in.real(a), in.real(b), in.real(c)}, axis);
    });
  }
  add("concat_twice", [](CaseInputs& in) {
    const Value x = in.real({2, 3});
    concat({x, x}, 0);
  });

  const auto slice_attrs = [](int64_t axis, int64_t start, int64_t end, int64_t step) {
    SliceAttrs attrs;
    attrs.axis = axis;
    attrs.start = start;
    attrs.end = end;
    attrs.step = step;
    return attrs;
  };
  add("slice_hand", [=](CaseInputs& in) { slice(in.values({2, 3}, six), slice_attrs(1, -2, 99, 1)); }, {2, 3, 5, 6});
  add("slice_step_hand", [=](CaseInputs& in) { slice(in.values({6}, six), slice_attrs(0, 1, -1, 2)); }, {2, 4});
  add("slice_channels", [=](CaseInputs& in) { slice(in.real(image), slice_attrs(1, 1, 4, 1)); });
  add("slice_strided_rows", [=](CaseInputs& in) { slice(in.real(image), slice_attrs(3, 0, 7, 2)); });
  add("slice_nothing", [=](CaseInputs& in) { slice(in.real(image), slice_attrs(2, 2, 1, 1)); });
  SliceBackwardAttrs back;
  back.axis = 0;
  back.start = 1;
  back.end = 5;
  back.step = 2;
  back.size = 6;
  add("slice_backward_hand", [=](CaseInputs& in) { slice_backward(in.values({2}, {7, 8}), back); }, {0, 7, 0, 8, 0, 0});

  add("pad_hand", [](CaseInputs& in) { pad(in.values({2, 2}, {1, 2, 3, 4}), {0, 1, 1, 0}, 9); }, {9, 1, 2, 9, 3, 4, 9, 9, 9});
  add("pad_image", [=](CaseInputs& in) { pad(in.real(image), {0, 0, 0, 0, 1, 2, 3, 0}); });
  add("pad_channels", [=](CaseInputs& in) { pad(in.real(image), {0, 0, 2, 2, 0, 0, 0, 0}); });

  add("permute_hand", [=](CaseInputs& in) { permute(in.values({2, 3}, six), {1, 0}); }, {1, 4, 2, 5, 3, 6});
  add("permute_cycle", [=](CaseInputs& in) { permute(in.real({2, 3, 4}), {2, 0, 1}); });
  add("permute_image", [=](CaseInputs& in) { permute(in.real(image), {0, 2, 3, 1}); });
  add("reshape_hand", [=](CaseInputs& in) { reshape(in.values({2, 3}, six), {3, -1}); }, six);
  add("reshape_flatten", [=](CaseInputs& in) { flatten(in.real(image)); });

  add("cast_to_integers", [](CaseInputs& in) { cast(in.values({4}, {1.7, -1.7, 0.2, 3}), DType::kI64); }, {1, -1, 0, 3});
  add("cast_from_integers", [](CaseInputs& in) { cast(in.values({3}, {1, -2, 3}, DType::kI64), DType::kF32); }, {1, -2, 3});
  add("cast_to_bool", [](CaseInputs& in) { cast(in.values({3}, {0.5, 0, -3}), DType::kBool); }, {1, 0, 1});
  add("cast_image", [=](CaseInputs& in) { cast(in.real(image), DType::kBF16); });
  cases.back().kernel_tolerance = 0x1p-8;  // the unit roundoff of bf16
  add("reorder_image", [=](CaseInputs& in) { reorder(in.real(image), MemoryFormat::channels_last()); });

  const auto resize_attrs = [](int64_t rows, int64_t columns, ResizeMode mode, bool align) {
    ResizeAttrs attrs;
    attrs.size = {rows, columns};
    attrs.mode = mode;
    attrs.align_corners = align;
    return attrs;
  };
  // Half-pixel centres: output x looks at (x + 0.5) / 2 - 0.5 = -0.25, 0.25, 0.75, 1.25, clipped to 0..1.
  add("resize_hand", [=](CaseInputs& in) { resize(in.values({1, 1, 1, 2}, {1, 5}), resize_attrs(1, 4, ResizeMode::kBilinear, false)); }, {1, 2, 4, 5});
  add("resize_corners_hand", [=](CaseInputs& in) { resize(in.values({1, 1, 1, 2}, {1, 5}), resize_attrs(1, 5, ResizeMode::kBilinear, true)); }, {1, 2, 3, 4, 5});
  add("resize_nearest_hand", [=](CaseInputs& in) { resize(in.values({1, 1, 1, 3}, {1, 5, 7}), resize_attrs(1, 5, ResizeMode::kNearest, false)); }, {1, 1, 5, 5, 7});
  add("resize_up", [=](CaseInputs& in) { resize(in.real(image), resize_attrs(5, 16, ResizeMode::kBilinear, false)); });
  add("resize_down", [=](CaseInputs& in) { resize(in.real(image), resize_attrs(2, 3, ResizeMode::kBilinear, false)); });
  add("resize_corners", [=](CaseInputs& in) { resize(in.real(image), resize_attrs(6, 1, ResizeMode::kBilinear, true)); });
  add("resize_nearest", [=](CaseInputs& in) { resize(in.real(image), resize_attrs(7, 4, ResizeMode::kNearest, false)); });

  add("full_hand", [](CaseInputs& in) {
    TensorType type;
    type.shape = Shape{2, 2};
    full(in.graph(), type, 1.5);
  }, {1.5, 1.5, 1.5, 1.5});
  for (const DType dtype : {DType::kF32, DType::kI64, DType::kU8}) {
    add(cat("full_large_", dtype), [dtype](CaseInputs& in) {
      TensorType type;
      type.dtype = dtype;
      type.shape = Shape{3, 7, 29, 37};
      full(in.graph(), type, 3);
    });
  }
  return cases;
}

}  // namespace galley::test
