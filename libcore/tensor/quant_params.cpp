#include "libcore/tensor/quant_params.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "libcore/base/error.h"

namespace galley {
namespace {

constexpr float kLeastScale = std::numeric_limits<float>::epsilon();  // 2^-23, as PyTorch's observers

void check_scale(double scale) {
  GALLEY_CHECK(scale > 0 && scale <= static_cast<double>(std::numeric_limits<float>::max()), "a scale must be positive and finite, not ",
               scale);
  GALLEY_CHECK(static_cast<double>(static_cast<float>(scale)) == scale, "a scale must be a float32 value, not ", scale, "; the nearest is ",
               static_cast<double>(static_cast<float>(scale)));
}
void check_absmax(double absmax) {
  if (!std::isfinite(absmax)) fail(ErrorCode::kNumeric, "the largest absolute value, ", absmax, ", is not finite");
  if (absmax < 0) fail(ErrorCode::kNumeric, "the largest absolute value is negative: ", absmax, "; no values were observed");
}

QuantParams make_params(float scale, int64_t zero_point, const QuantRange& range) {
  return {static_cast<double>(std::max(scale, kLeastScale)), zero_point, range.dtype, range.min, range.max};
}

template <class Real>
int64_t rounded(Real x, const QuantParams& p) {
  const Real q = std::nearbyint(x / static_cast<Real>(p.scale)) + static_cast<Real>(p.zero_point);
  const auto low = static_cast<Real>(p.qmin), high = static_cast<Real>(p.qmax);
  return static_cast<int64_t>(!(q > low) ? low : q > high ? high : q);
}

}  // namespace

QuantRange quant_range(QuantDType dtype, bool reduced) {
  switch (dtype) {
    case QuantDType::kInt8: return reduced ? QuantRange{-64, 64, DType::kI8} : QuantRange{-128, 127, DType::kI8};
    case QuantDType::kUint8: return reduced ? QuantRange{0, 127, DType::kU8} : QuantRange{0, 255, DType::kU8};
    case QuantDType::kInt4: return {-8, 7, DType::kI8};
    case QuantDType::kF8E4M3: break;
  }
  GALLEY_ASSERT(false);
}

void check_quant_range(const QuantRange& range) {
  const int64_t low = range.dtype == DType::kU8 ? 0 : -128, high = range.dtype == DType::kU8 ? 255 : 127;
  GALLEY_CHECK(range.dtype == DType::kU8 || range.dtype == DType::kI8, "quantized values must be u8 or i8, not ", range.dtype);
  GALLEY_CHECK(range.min < range.max && range.min >= low && range.max <= high, "the range ", range.min, "..", range.max,
               " is not within the range of ", range.dtype, ", ", low, "..", high);
}

std::ostream& operator<<(std::ostream& out, const QuantParams& p) {
  return out << p.dtype << " " << p.qmin << ".." << p.qmax << " scale " << p.scale << " zero point " << p.zero_point;
}

void check_quant_params(const QuantParams& p) {
  check_quant_range({p.qmin, p.qmax, p.dtype});
  check_scale(p.scale);
  GALLEY_CHECK(p.zero_point >= p.qmin && p.zero_point <= p.qmax, "the zero point ", p.zero_point, " is not within ", p.qmin, "..", p.qmax);
}

QuantParams affine_params(double min, double max, const QuantRange& range) {
  check_quant_range(range);
  if (!std::isfinite(min) || !std::isfinite(max)) fail(ErrorCode::kNumeric, "the range to quantize, ", min, "..", max, ", is not finite");
  if (min > max) fail(ErrorCode::kNumeric, "the range to quantize is empty: ", min, "..", max, "; no values were observed");
  const float low = std::min(static_cast<float>(min), 0.0f), high = std::max(static_cast<float>(max), 0.0f);
  const auto levels = static_cast<float>(range.max - range.min);
  float scale = (high - low) / levels;
  if (!std::isfinite(scale))
    scale = static_cast<float>((static_cast<double>(high) - static_cast<double>(low)) / static_cast<double>(levels));
  scale = std::max(scale, kLeastScale);
  const double zero_point = static_cast<double>(range.min) - static_cast<double>(std::nearbyint(low / scale));
  return make_params(scale, static_cast<int64_t>(std::clamp(zero_point, static_cast<double>(range.min), static_cast<double>(range.max))),
                     range);
}

QuantParams symmetric_params(double absmax, const QuantRange& range) {
  check_quant_range(range);
  check_absmax(absmax);
  const float half = static_cast<float>(range.max - range.min) / 2;
  const int64_t middle = range.dtype == DType::kU8 ? (range.min + range.max + 1) / 2 : 0;
  return make_params(static_cast<float>(absmax) / half, std::clamp(middle, range.min, range.max), range);
}

float f8_scale(double absmax) {
  check_absmax(absmax);
  // A quotient below the normal numbers would lose bits.
  return absmax == 0 ? 1 : std::max(static_cast<float>(absmax) / kLargestF8, std::numeric_limits<float>::min());
}
void check_f8_scale(double scale) { check_scale(scale); }

int64_t quantize_value(float x, const QuantParams& params) { return rounded<float>(x, params); }
int64_t quantize_real(double x, const QuantParams& params) { return rounded<double>(x, params); }

}  // namespace galley
