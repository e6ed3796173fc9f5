// Cases of normalize_pixels.

#include "libcore/ops/pixels.h"
#include "tests/ops/harness.h"

namespace galley::test {

std::vector<OpCase> pixel_cases();
std::vector<OpCase> pixel_cases() {
  std::vector<OpCase> cases;
  const auto attrs_of = [](std::vector<double> mean, std::vector<double> std, bool scale, DType dtype) {
    NormalizePixelsAttrs attrs;
    attrs.mean = std::move(mean);
    attrs.std = std::move(std);
    attrs.scale = scale;
    attrs.dtype = dtype;
    return attrs;
  };
  // One rounding of the dtype.
  const auto tolerance_of = [](DType dtype) { return dtype == DType::kF32 ? 2e-5 : dtype == DType::kF16 ? 0x1p-11 : 0x1p-8; };
  const auto add = [&](std::string name, const Shape& shape, const NormalizePixelsAttrs& attrs) {
    cases.push_back({.name = std::move(name),
                     .build = [=](CaseInputs& in) { normalize_pixels(in.quantized(DType::kU8, shape, 0, 255), attrs); },
                     .kernel_tolerance = tolerance_of(attrs.dtype)});
  };
  // Channels of two pixels: (0, 255), (51, 102); means 0 and 1, deviations 1 and 0.5.
  cases.push_back({.name = "normalize_pixels_hand",
                   .build =
                       [=](CaseInputs& in) {
                         normalize_pixels(in.values({1, 2, 1, 2}, {0, 255, 51, 102}, DType::kU8),
                                          attrs_of({0, 1}, {1, 0.5}, true, DType::kF32));
                       },
                   .expected = {0, 1, -1.6, -1.2}});
  cases.push_back(
      {.name = "normalize_pixels_unscaled_hand",
       .build =
           [=](CaseInputs& in) { normalize_pixels(in.values({1, 1, 3}, {0, 7, 255}, DType::kU8), attrs_of({5}, {2}, false, DType::kF32)); },
       .expected = {-2.5, 1, 125}});
  const std::vector<double> mean{0.485, 0.456, 0.406}, std{0.229, 0.224, 0.225};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    add(cat("normalize_pixels_image_", dtype), {2, 3, 5, 7}, attrs_of(mean, std, true, dtype));
    add(cat("normalize_pixels_packs_", dtype), {2, 3, 24, 16}, attrs_of(mean, std, true, dtype));
  }
  add("normalize_pixels_gray", {3, 1, 9, 5}, attrs_of({0.5}, {0.25}, true, DType::kF32));
  add("normalize_pixels_four", {2, 4, 3, 11}, attrs_of({0.1, 0.2, 0.3, 0.4}, {1, 2, 3, 4}, false, DType::kF32));
  add("normalize_pixels_one_for_all", {2, 6, 3, 5}, attrs_of({0.5}, {0.25}, true, DType::kF32));
  add("normalize_pixels_clip", {1, 3, 4, 5, 6}, attrs_of(mean, std, true, DType::kF32));
  add("normalize_pixels_nothing", {0, 3, 4, 4}, attrs_of(mean, std, true, DType::kF32));
  return cases;
}

}  // namespace galley::test
