#include "libcore/ops/pixels.h"

#include <algorithm>

#include "libcore/ops/convert.h"
#include "libcore/ops/rules.h"

namespace galley {

void NormalizePixelsAttrs::options(OptionVisitor& v) {
  v.option({.name = "mean", .doc = "subtracted: one number, or one for each channel"}, mean);
  v.option({.name = "std", .doc = "divisors: one number, or one for each channel"}, std);
  v.option({.name = "scale", .doc = "divide the bytes by 255 first"}, scale);
  v.choice({.name = "dtype", .doc = "element type of the result"}, dtype, kDTypeNames);
}

namespace {

std::vector<TensorType> infer_pixels(const OpContext& c) {
  const auto& attrs = c.attrs<NormalizePixelsAttrs>();
  const TensorType& x = c.in(0);
  GALLEY_CHECK(x.dtype == DType::kU8 && x.shape.rank() >= 2, "the input must be u8 [N,C,...], not ", x);
  const auto constants = std::ssize(attrs.mean);
  GALLEY_CHECK(constants == std::ssize(attrs.std), "mean has ", constants, " numbers, but std has ", attrs.std.size());
  GALLEY_CHECK(constants == 1 || (constants == x.shape[1] && constants <= kMostPixelChannels), "mean has ", constants,
               " numbers; it needs one, or one for each of at most ", kMostPixelChannels, " channels of ", x);
  GALLEY_CHECK(std::none_of(attrs.std.begin(), attrs.std.end(), [](double d) { return d == 0; }), "std must not be 0");
  GALLEY_CHECK(is_floating(attrs.dtype) && attrs.dtype != DType::kF64, "dtype must be f32, bf16 or f16, not ", attrs.dtype);
  TensorType y = x;
  y.dtype = attrs.dtype;
  y.format = {};
  return {y};
}

}  // namespace

const OpDef& normalize_pixels_op() {
  static const OpDef def{.name = "normalize_pixels",
                         .doc = "bytes of images as normalized numbers, computed in f32",
                         .inputs = {"x"},
                         .outputs = {"y"},
                         .make_attrs = make_options<NormalizePixelsAttrs>,
                         .infer = infer_pixels,
                         .no_gradient = "its input is bytes",
                         .cost = elementwise_cost<3>,
                         .place = keeps_ranges,
                         .precision = PrecisionRule::kFollow,
                         .cases = {"normalize_pixels:16x3x224x224@u8:mean=[0.485,0.456,0.406],std=[0.229,0.224,0.225]"}};
  return def;
}

Value normalize_pixels(Value x, const NormalizePixelsAttrs& attrs) { return emit("normalize_pixels", {x}, attrs); }

OpTable pixel_ops() { return {&normalize_pixels_op()}; }

}  // namespace galley
