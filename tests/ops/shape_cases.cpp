// Cases of the operators that move or relabel elements.

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/resize.h"
#include "libcore/ops/shape.h"
#include "tests/ops/harness.h"

namespace galley::test {

namespace {

using BuildShape = std::function<void(CaseInputs&)>;

/// Adds a case, with its expected values if there are any.
auto shape_adder(std::vector<OpCase>& cases) {
  return [&cases](std::string name, BuildShape build, std::vector<double> expected = {}) {
    cases.push_back({.name = std::move(name), .build = std::move(build), .expected = std::move(expected)});
  };
}

/// Adds a case without a gradient check.
auto kernel_adder(std::vector<OpCase>& cases) {
  return [&cases](std::string name, BuildShape build) {
    cases.push_back({.name = std::move(name), .build = std::move(build), .forward_only = true});
  };
}

SliceAttrs slice_attrs(int64_t axis, int64_t start, int64_t end, int64_t step) {
  SliceAttrs attrs;
  attrs.axis = axis;
  attrs.start = start;
  attrs.end = end;
  attrs.step = step;
  return attrs;
}

Value counted(CaseInputs& in, const Shape& shape, DType dtype) {
  std::vector<double> values;
  for (int64_t i = 0; i < shape.elements(); ++i)
    values.push_back(static_cast<double>(dtype == DType::kBool ? i * 7 % 3 % 2 : i * 37 % 101));
  return in.values(shape, values, dtype);
}

void add_small_cases(std::vector<OpCase>& cases) {
  const auto add = shape_adder(cases);
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
  // Middles between two values of bf16 round to the even one.
  cases.push_back(
      {.name = "reduce_precision_hand",
       .build = [](CaseInputs& in) { reduce_precision(in.values({3}, {1.00390625, -1.01171875, 3}, DType::kF64), DType::kBF16); },
       .expected = {1, -1.015625, 3},
       .straight_through = true});
  cases.push_back({.name = "reduce_precision_image",
                   .build = [=](CaseInputs& in) { reduce_precision(in.real(image), DType::kBF16); },
                   .straight_through = true});
  add("cast_image", [=](CaseInputs& in) { cast(in.real(image), DType::kBF16); });
  cases.back().kernel_tolerance = 0x1p-8;  // the unit roundoff of bf16
  add("reorder_image", [=](CaseInputs& in) { reorder(in.real(image), MemoryFormat::channels_last()); });
}

void add_kernel_cases_of_ranks(std::vector<OpCase>& cases) {
  const auto kernel_case = kernel_adder(cases);
  // For kernels: every rank, channel counts that are not multiples of a vector, steps, several dtypes, and arrays for several threads.
  const std::vector<Shape> ranks{{37}, {5, 9}, {3, 7, 5}, {2, 19, 5, 7}, {2, 5, 3, 4, 6}, {4, 24, 21, 19}, {2, 3, 131, 67}};
  for (const Shape& shape : ranks) {
    const std::string shape_name = cat("rank", shape.rank(), "_", shape.elements());
    for (int axis = 0; axis < shape.rank(); ++axis) {
      if (shape.elements() > 10000 && axis % 2 == 0) continue;  // large arrays are slow on the reference
      const int64_t size = shape[axis];
      kernel_case(cat("slice_kernel_", shape_name, "_", axis),
                  [=](CaseInputs& in) { slice(in.real(shape), slice_attrs(axis, size / 3, size, 1)); });
      kernel_case(cat("slice_step_kernel_", shape_name, "_", axis),
                  [=](CaseInputs& in) { slice(in.real(shape), slice_attrs(axis, -size, -1, 2)); });
      for (int64_t step : {1, 2, 3}) {
        SliceBackwardAttrs attrs;
        attrs.axis = axis - shape.rank();
        attrs.start = 1;
        attrs.step = step;
        attrs.size = size * step + 3;
        attrs.end = 1 + size * step;
        kernel_case(cat("slice_backward_kernel_", shape_name, "_", axis, "_", step),
                    [=](CaseInputs& in) { slice_backward(in.real(shape), attrs); });
      }
      kernel_case(cat("concat_kernel_", shape_name, "_", axis), [=](CaseInputs& in) {
        Shape other = shape;
        other[axis] = 3;
        concat({in.real(other), in.real(shape), in.real(other)}, axis);
      });
      std::vector<int64_t> padding(static_cast<size_t>(2 * shape.rank()));
      padding[static_cast<size_t>(2 * axis)] = 2;
      padding[static_cast<size_t>(2 * axis + 1)] = 1;
      kernel_case(cat("pad_kernel_", shape_name, "_", axis), [=](CaseInputs& in) { pad(in.real(shape), padding, axis == 0 ? -1.5 : 0); });
    }
    kernel_case(cat("pad_everywhere_", shape_name), [=](CaseInputs& in) {
      std::vector<int64_t> padding;
      for (int d = 0; d < 2 * shape.rank(); ++d) padding.push_back(d % 3);
      pad(in.real(shape), padding, 0.25);
    });
    kernel_case(cat("permute_reverse_", shape_name), [=](CaseInputs& in) {
      std::vector<int64_t> order;
      for (int d = shape.rank(); d-- > 0;) order.push_back(d);
      permute(in.real(shape), order);
    });
    kernel_case(cat("permute_rotate_", shape_name), [=](CaseInputs& in) {
      std::vector<int64_t> order;
      for (int d = 0; d < shape.rank(); ++d) order.push_back((d + 1) % shape.rank());
      permute(in.real(shape), order);
    });
    kernel_case(cat("broadcast_kernel_", shape_name), [=](CaseInputs& in) {
      Shape small = shape;
      for (int d = 0; d < shape.rank(); d += 2) small[d] = 1;
      broadcast_to(in.real(small), shape);
    });
    kernel_case(cat("reshape_kernel_", shape_name), [=](CaseInputs& in) { reshape(in.real(shape), {-1}); });
    if (shape.rank() < 4) continue;
    kernel_case(cat("reorder_kernel_", shape_name), [=](CaseInputs& in) {
      reorder(reorder(in.real(shape), MemoryFormat::channels_last_for_rank(shape.rank())), MemoryFormat::contiguous());
    });
  }
}

void add_kernel_cases_of_dtypes(std::vector<OpCase>& cases) {
  const auto kernel_case = kernel_adder(cases);
  for (const DType dtype : {DType::kF64, DType::kBF16, DType::kI64, DType::kI32, DType::kI16, DType::kU8, DType::kBool}) {
    const Shape shape{2, 13, 5, 6};
    kernel_case(cat("slice_of_", dtype), [=](CaseInputs& in) { slice(counted(in, shape, dtype), slice_attrs(3, 1, 6, 2)); });
    kernel_case(cat("slice_channels_of_", dtype), [=](CaseInputs& in) { slice(counted(in, shape, dtype), slice_attrs(1, 3, 12, 4)); });
    kernel_case(cat("concat_of_", dtype), [=](CaseInputs& in) { concat({counted(in, shape, dtype), counted(in, shape, dtype)}, 1); });
    kernel_case(cat("pad_of_", dtype), [=](CaseInputs& in) { pad(counted(in, shape, dtype), {0, 1, 1, 2, 0, 0, 3, 0}, 1); });
    kernel_case(cat("permute_of_", dtype), [=](CaseInputs& in) { permute(counted(in, shape, dtype), {0, 3, 1, 2}); });
    kernel_case(cat("transpose_of_", dtype), [=](CaseInputs& in) { permute(counted(in, {37, 20}, dtype), {1, 0}); });
    kernel_case(cat("broadcast_of_", dtype), [=](CaseInputs& in) { broadcast_to(counted(in, {13, 1, 1}, dtype), shape); });
    kernel_case(cat("reorder_of_", dtype), [=](CaseInputs& in) {
      reorder(reorder(counted(in, shape, dtype), MemoryFormat::channels_last()), MemoryFormat::contiguous());
    });
  }
  for (const Shape& shape : {Shape{37, 19}, Shape{16, 1}, Shape{5, 40}}) {
    kernel_case(cat("reorder_to_panels_", shape[0]), [=](CaseInputs& in) { reorder(in.real(shape), MemoryFormat::blocked("Ab16a")); });
  }
  kernel_case("cast_large", [=](CaseInputs& in) { cast(cast(in.real({2, 19, 31, 33}), DType::kBF16), DType::kF32); });
  cases.back().kernel_tolerance = 0x1p-8;
  kernel_case("slice_long_runs", [=](CaseInputs& in) { slice(counted(in, {3, 1100000}, DType::kU8), slice_attrs(0, 1, 3, 1)); });
  kernel_case("concat_long_rows",
              [=](CaseInputs& in) { concat({counted(in, {2, 700001}, DType::kU8), counted(in, {2, 600003}, DType::kU8)}, 1); });
}

void add_resize_and_full_cases(std::vector<OpCase>& cases) {
  const auto add = shape_adder(cases);
  const auto kernel_case = kernel_adder(cases);
  const Shape image{2, 5, 3, 7};
  const auto resize_attrs = [](int64_t rows, int64_t columns, ResizeMode mode, bool align) {
    ResizeAttrs attrs;
    attrs.size = {rows, columns};
    attrs.mode = mode;
    attrs.align_corners = align;
    return attrs;
  };
  // Half-pixel centers: output x is at (x + 0.5) / 2 - 0.5 = -0.25, 0.25, 0.75, 1.25, clipped to 0..1.
  add("resize_hand", [=](CaseInputs& in) { resize(in.values({1, 1, 1, 2}, {1, 5}), resize_attrs(1, 4, ResizeMode::kBilinear, false)); },
      {1, 2, 4, 5});
  add("resize_corners_hand",
      [=](CaseInputs& in) { resize(in.values({1, 1, 1, 2}, {1, 5}), resize_attrs(1, 5, ResizeMode::kBilinear, true)); }, {1, 2, 3, 4, 5});
  add("resize_nearest_hand",
      [=](CaseInputs& in) { resize(in.values({1, 1, 1, 3}, {1, 5, 7}), resize_attrs(1, 5, ResizeMode::kNearest, false)); },
      {1, 1, 5, 5, 7});
  add("resize_up", [=](CaseInputs& in) { resize(in.real(image), resize_attrs(5, 16, ResizeMode::kBilinear, false)); });
  add("resize_down", [=](CaseInputs& in) { resize(in.real(image), resize_attrs(2, 3, ResizeMode::kBilinear, false)); });
  add("resize_corners", [=](CaseInputs& in) { resize(in.real(image), resize_attrs(6, 1, ResizeMode::kBilinear, true)); });
  add("resize_nearest", [=](CaseInputs& in) { resize(in.real(image), resize_attrs(7, 4, ResizeMode::kNearest, false)); });

  for (const ResizeMode mode : {ResizeMode::kBilinear, ResizeMode::kNearest}) {
    kernel_case(cat("resize_large_", static_cast<int>(mode)),
                [=](CaseInputs& in) { resize(in.real({2, 19, 21, 18}), resize_attrs(43, 25, mode, false)); });
    kernel_case(cat("resize_backward_large_", static_cast<int>(mode)), [=](CaseInputs& in) {
      ResizeBackwardAttrs attrs;
      attrs.input_size = {21, 31};
      attrs.mode = mode;
      resize_backward(in.real({2, 19, 43, 25}), attrs);
    });
  }

  add("full_hand",
      [](CaseInputs& in) {
        TensorType type;
        type.shape = Shape{2, 2};
        full(in.graph(), type, 1.5);
      },
      {1.5, 1.5, 1.5, 1.5});
  for (const DType dtype : {DType::kF32, DType::kI64, DType::kU8}) {
    add(cat("full_large_", dtype), [dtype](CaseInputs& in) {
      TensorType type;
      type.dtype = dtype;
      type.shape = Shape{3, 7, 29, 37};
      full(in.graph(), type, 3);
    });
  }
}

}  // namespace

std::vector<OpCase> shape_cases() {
  std::vector<OpCase> cases;
  for (const auto add : {add_small_cases, add_kernel_cases_of_ranks, add_kernel_cases_of_dtypes, add_resize_and_full_cases}) add(cases);
  return cases;
}

}  // namespace galley::test
