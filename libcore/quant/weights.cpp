#include "libcore/quant/weights.h"

#include <algorithm>
#include <cmath>

#include "libcore/base/error.h"
#include "libcore/base/parallel.h"
#include "libcore/quant/scan.h"

namespace galley {
namespace {

using Values = std::span<const float>;

QuantParams params_of(float min, float max, const WeightScheme& scheme) {
  const QuantRange range = scheme.range();
  return scheme.symmetric ? symmetric_params(static_cast<double>(std::max(std::abs(min), std::abs(max))), range)
                          : affine_params(static_cast<double>(min), static_cast<double>(max), range);
}

/// The percentile, linearly interpolated between sorted values; reorders `values`.
float percentile_of(std::vector<float>& values, double percentile) {
  const double at = percentile / 100 * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(below), values.end());
  const float low = values[below];
  if (below + 1 == values.size()) return low;
  const float high = *std::min_element(values.begin() + static_cast<int64_t>(below) + 1, values.end());
  return low + static_cast<float>(at - static_cast<double>(below)) * (high - low);
}

double square_error(Values values, const QuantParams& p) {
  return scan_rounding_error(values.data(), static_cast<int64_t>(values.size()), static_cast<float>(p.scale),
                             static_cast<float>(p.qmin - p.zero_point), static_cast<float>(p.qmax - p.zero_point));
}

/// Smallest squared error over the full range scaled by 1, 79/80, 78/80 ... 20/80.
QuantParams mse_params(Values values, float min, float max, const WeightScheme& scheme) {
  constexpr int kSteps = 80, kLeast = 20;
  QuantParams best = params_of(min, max, scheme);
  double least = square_error(values, best);
  for (int step = kSteps - 1; step >= kLeast; --step) {
    const float share = static_cast<float>(step) / kSteps;
    const QuantParams params = params_of(min * share, max * share, scheme);
    const double error = square_error(values, params);
    if (error < least) {
      least = error;
      best = params;
    }
  }
  return best;
}

QuantParams choose(Values values, const WeightScheme& scheme) {
  const Extent extent = scan_extent(values.data(), static_cast<int64_t>(values.size()));
  switch (scheme.observer.type) {
    case ObserverType::kMse: return mse_params(values, extent.min, extent.max, scheme);
    case ObserverType::kPercentile: {
      std::vector<float> copy(values.begin(), values.end());
      if (scheme.symmetric) {
        for (float& x : copy) x = std::abs(x);
        const float bound = percentile_of(copy, scheme.observer.percentile);
        return params_of(-bound, bound, scheme);
      }
      const float max = percentile_of(copy, scheme.observer.percentile);
      return params_of(std::min(percentile_of(copy, 100 - scheme.observer.percentile), 0.0f), std::max(max, 0.0f), scheme);
    }
    default: return params_of(extent.min, extent.max, scheme);
  }
}

float f8_scale_of(Values values, const ObserverSpec& observer) {
  if (observer.type == ObserverType::kMinMax) {
    const Extent extent = scan_extent(values.data(), static_cast<int64_t>(values.size()));
    return f8_scale(static_cast<double>(std::max(std::abs(extent.min), std::abs(extent.max))));
  }
  std::vector<float> sizes(values.begin(), values.end());
  for (float& x : sizes) x = std::abs(x);
  return f8_scale(static_cast<double>(percentile_of(sizes, observer.percentile)));
}

QuantizedWeight quantize_to_f8(const Tensor& weight, const WeightScheme& scheme, std::string_view name) {
  GALLEY_CHECK(scheme.symmetric && scheme.group_size == 0, "f8_e4m3 weights need a symmetric scheme without groups");
  GALLEY_CHECK(scheme.observer.type != ObserverType::kMse, "the observer mse looks for the error of integers, not of f8_e4m3: weight ",
               name);
  const Shape& shape = weight.shape();
  QuantizedWeight result{.values = Tensor(DType::kF8E4M3, shape), .scale = Tensor(DType::kF32, Shape{shape[0]}), .shape = shape};
  const int64_t each = weight.elements() / shape[0];
  const auto* x = weight.data_as<float>();
  const float common = scheme.per_channel ? 0 : f8_scale_of(Values(x, static_cast<size_t>(weight.elements())), scheme.observer);
  parallel_for(shape[0], std::max<int64_t>(1, 16384 / each), [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      const float scale = scheme.per_channel ? f8_scale_of(Values(x + o * each, static_cast<size_t>(each)), scheme.observer) : common;
      result.scale.data_as<float>()[o] = scale;
      for (int64_t i = o * each; i < (o + 1) * each; ++i) result.values.data_as<uint8_t>()[i] = f8_from_float(x[i] / scale);
    }
  });
  return result;
}

}  // namespace

QuantizedWeight quantize_weight(const Tensor& given, const WeightScheme& scheme, std::string_view name, const Tensor* bounds) {
  const Tensor weight = given.to(MemoryFormat::contiguous());
  const Shape& shape = weight.shape();
  GALLEY_ASSERT(weight.dtype() == DType::kF32 && shape.rank() >= 1 && weight.elements() > 0, "the weight ", name, " is ", weight.str());
  const ObserverType observer = scheme.observer.type;
  GALLEY_CHECK(observer == ObserverType::kMinMax || observer == ObserverType::kPercentile || observer == ObserverType::kMse,
               "the observer of weights must be min_max, percentile or mse, not ", observer_name(observer));
  GALLEY_CHECK(scheme.dtype != QuantDType::kUint8, "weights must be int8, int4 or f8_e4m3, not uint8");
  GALLEY_CHECK(scheme.group_size == 0 || scheme.per_channel, "group_size requires a scheme per channel, because groups divide channels");
  const int64_t outputs = shape[0], each = weight.elements() / outputs;
  const int64_t group = scheme.group_size > 0 ? std::min(scheme.group_size, each) : each;
  const int64_t groups = (each + group - 1) / group;
  const auto* x = weight.data_as<float>();
  const Extent extent = scan_extent(x, weight.elements());
  if (!std::isfinite(extent.min) || !std::isfinite(extent.max))
    fail(ErrorCode::kNumeric, "the weight ", name, " has values that are not finite");
  if (scheme.dtype == QuantDType::kF8E4M3) {
    if (bounds != nullptr)
      throw Error(ErrorCode::kRecipe, cat("the trained bounds of ", name, " are those of integers, but its weights are f8_e4m3"))
          .key("quantize.weights.dtype")
          .suggest("calibrate the float weights again, or write int8");
    return quantize_to_f8(weight, scheme, name);
  }

  QuantizedWeight result{.shape = shape, .bits = scheme.dtype == QuantDType::kInt4 ? 4 : 8, .group_size = scheme.group_size};
  result.values = Tensor(DType::kI8, shape);
  const Shape scales = scheme.group_size > 0 ? Shape{outputs, groups} : Shape{outputs};
  result.scale = Tensor(DType::kF32, scales);
  result.zero_point = Tensor(DType::kI8, scales);
  auto* q = result.values.data_as<int8_t>();
  auto* scale = result.scale.data_as<float>();
  auto* zero_point = result.zero_point.data_as<int8_t>();
  std::span<const float> limits;
  if (bounds != nullptr) {
    limits = {bounds->data_as<float>(), static_cast<size_t>(bounds->elements())};
    GALLEY_CHECK_INPUT(limits.size() == 1 || static_cast<int64_t>(limits.size()) == outputs, "the trained bounds of ", name, " have shape ",
                       bounds->shape(), ", but the weight has ", outputs, " channels");
    GALLEY_CHECK(scheme.symmetric && scheme.group_size == 0, "the trained bounds of ", name, " require a symmetric scheme without groups");
  }
  const auto chosen = [&](Values values, int64_t channel) {
    if (limits.empty()) return choose(values, scheme);
    const float largest =
        limits.size() == 1 || channel < 0 ? *std::max_element(limits.begin(), limits.end()) : limits[static_cast<size_t>(channel)];
    return params_of(-largest, largest, scheme);
  };
  QuantParams common;
  if (!scheme.per_channel) common = chosen(Values(x, static_cast<size_t>(weight.elements())), -1);
  parallel_for(outputs * groups, std::max<int64_t>(1, 16384 / group), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t from = i / groups * each + i % groups * group, to = std::min(from + group, (i / groups + 1) * each);
      const QuantParams p = scheme.per_channel ? chosen(Values(x + from, static_cast<size_t>(to - from)), i / groups) : common;
      for (int64_t j = from; j < to; ++j) q[j] = static_cast<int8_t>(quantize_value(x[j], p));
      scale[i] = static_cast<float>(p.scale);
      zero_point[i] = static_cast<int8_t>(p.zero_point);
    }
  });
  if (result.bits == 4) result.values = pack_int4(result.values);
  return result;
}

Tensor dequantize_weight(const QuantizedWeight& weight) {
  if (weight.values.dtype() == DType::kF8E4M3) {
    Tensor real = weight.values.to(DType::kF32);
    const int64_t each = real.elements() / weight.shape[0];
    for (int64_t i = 0; i < real.elements(); ++i) real.data_as<float>()[i] *= weight.scale.data_as<float>()[i / each];
    return real;
  }
  const Tensor values = weight.bits == 4 ? unpack_int4(weight.values, weight.shape) : weight.values;
  Tensor result(DType::kF32, weight.shape);
  const int64_t outputs = weight.shape[0], each = values.elements() / outputs, groups = weight.scale.elements() / outputs;
  const int64_t group = weight.group_size > 0 ? weight.group_size : each;
  const auto* q = values.data_as<int8_t>();
  const auto* scale = weight.scale.data_as<float>();
  const auto* zero_point = weight.zero_point.data_as<int8_t>();
  auto* x = result.data_as<float>();
  for (int64_t i = 0; i < values.elements(); ++i) {
    const int64_t at = i / each * groups + i % each / group;
    x[i] = scale[at] * static_cast<float>(q[i] - zero_point[at]);
  }
  return result;
}

Tensor pack_int4(const Tensor& values) {
  const Shape& shape = values.shape();
  GALLEY_ASSERT(values.dtype() == DType::kI8 && shape.rank() >= 1);
  const int64_t last = shape[-1], half = (last + 1) / 2, rows = last == 0 ? 0 : values.elements() / last;
  Shape packed_shape = shape;
  packed_shape[-1] = half;
  Tensor packed(DType::kU8, packed_shape);
  const auto* q = values.data_as<int8_t>();
  auto* bytes = packed.data_as<uint8_t>();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < last; ++i) {
      const int value = q[r * last + i];
      GALLEY_ASSERT(value >= -8 && value <= 7, "an int4 is ", value);
      bytes[r * half + i / 2] = static_cast<uint8_t>(bytes[r * half + i / 2] | ((value & 15) << (i % 2 * 4)));
    }
  }
  return packed;
}

Tensor unpack_int4(const Tensor& packed, const Shape& shape) {
  Shape held = shape;
  GALLEY_CHECK_INPUT(packed.dtype() == DType::kU8 && shape.rank() >= 1, "packed int4 values must be u8, not ", packed.str());
  const int64_t last = shape[-1], half = (last + 1) / 2;
  held[-1] = half;
  GALLEY_CHECK_INPUT(packed.shape() == held, "an int4 weight of shape ", shape, " must be packed as ", held, ", not as ", packed.shape());
  Tensor values(DType::kI8, shape);
  const auto* bytes = packed.data_as<uint8_t>();
  auto* q = values.data_as<int8_t>();
  for (int64_t i = 0; i < values.elements(); ++i) {
    const int64_t row = i / last, column = i % last;
    const int nibble = (bytes[row * half + column / 2] >> (column % 2 * 4)) & 15;
    q[i] = static_cast<int8_t>(nibble < 8 ? nibble : nibble - 16);
  }
  return values;
}

}  // namespace galley
