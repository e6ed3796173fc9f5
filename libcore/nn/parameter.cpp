#include "libcore/nn/parameter.h"

#include <cmath>

#include "libcore/base/parallel.h"
#include "libcore/base/philox.h"

namespace galley {
namespace {

constexpr float kTwoPi = 6.2831853071795864769f;

/// Two standard normal numbers from two random words (Box-Muller). The radius uses all 32 bits, so that values reach 6.6 standard
/// deviations.
inline void normal_pair(uint32_t a, uint32_t b, float* out) {
  const float radius = std::sqrt(-2.0f * std::log((static_cast<float>(a) + 0.5f) * 0x1p-32f));
  const float angle = kTwoPi * uniform_from_bits(b);
  out[0] = radius * std::cos(angle);
  out[1] = radius * std::sin(angle);
}

void fill_uniform(float* out, int64_t count, uint64_t key, float bound) {
  parallel_for((count + 3) / 4, 4096, [=](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const PhiloxBlock words = philox(key, static_cast<uint64_t>(block), 0);
      for (int64_t i = 0; i < 4 && 4 * block + i < count; ++i) {
        out[4 * block + i] = bound * (2.0f * uniform_from_bits(words[static_cast<size_t>(i)]) - 1.0f);
      }
    }
  });
}

void fill_normal(float* out, int64_t count, uint64_t key, float stddev) {
  parallel_for((count + 3) / 4, 4096, [=](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const PhiloxBlock words = philox(key, static_cast<uint64_t>(block), 0);
      float z[4];
      normal_pair(words[0], words[1], z);
      normal_pair(words[2], words[3], z + 2);
      for (int64_t i = 0; i < 4 && 4 * block + i < count; ++i) out[4 * block + i] = stddev * z[i];
    }
  });
}

void fill_truncated_normal(float* out, int64_t count, uint64_t key, float stddev, float cut) {
  parallel_for(count, 4096, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      // Each element draws from its own sequence. The upper half of the counter is the attempt.
      for (uint64_t attempt = 0;; ++attempt) {
        const PhiloxBlock words = philox(key, static_cast<uint64_t>(i), attempt);
        float z[2];
        normal_pair(words[0], words[1], z);
        out[i] = stddev * z[0];
        if (std::fabs(out[i]) <= cut) break;
        out[i] = stddev * z[1];
        if (std::fabs(out[i]) <= cut) break;
      }
    }
  });
}

}  // namespace

Init Init::table(std::vector<double> elements) {
  Init init;
  init.kind = Kind::kValues;
  init.values = std::make_shared<const std::vector<double>>(std::move(elements));
  return init;
}

Init Init::given(Tensor values) {
  Init init;
  init.kind = Kind::kTensor;
  init.tensor = std::make_shared<const Tensor>(std::move(values));
  return init;
}

Init Init::kaiming_normal(Fan fan) { return {Kind::kKaimingNormal, std::sqrt(2.0), 0, fan}; }

Init Init::kaiming_uniform(double a) { return {Kind::kKaimingUniform, std::sqrt(2.0 / (1.0 + a * a)), 0, Fan::kIn}; }

Init Init::xavier_uniform(int64_t fan_in, int64_t fan_out) { return uniform(std::sqrt(6.0 / static_cast<double>(fan_in + fan_out))); }

std::string Init::str() const {
  switch (kind) {
    case Kind::kZeros: return "zeros";
    case Kind::kOnes: return "ones";
    case Kind::kConstant: return cat("constant(", spread, ")");
    case Kind::kValues: return cat("table of ", values->size());
    case Kind::kTensor: return cat("given ", tensor->str());
    case Kind::kNormal: return cat("normal(", spread, ")");
    case Kind::kTruncatedNormal: return cat("truncated_normal(", spread, ", ", cut, ")");
    case Kind::kUniform: return cat("uniform(", spread, ")");
    case Kind::kKaimingNormal: return fan == Fan::kIn ? "kaiming_normal(fan_in)" : "kaiming_normal(fan_out)";
    case Kind::kKaimingUniform: return cat("kaiming_uniform(gain ", spread, ")");
  }
  GALLEY_ASSERT(false);
}

int64_t fan_of(const Shape& shape, Init::Fan fan) {
  GALLEY_ASSERT(shape.rank() >= 2, "a Kaiming initializer needs a weight of rank 2 or more, not ", shape);
  int64_t area = 1;
  for (int axis = 2; axis < shape.rank(); ++axis) area *= shape[axis];
  return area * shape[fan == Init::Fan::kIn ? 1 : 0];
}

Tensor initialize(const ParameterSpec& spec, uint64_t seed) {
  const Init& init = spec.init;
  if (init.kind == Init::Kind::kTensor) {
    GALLEY_ASSERT(init.tensor->shape() == spec.type.shape, spec.name, ": ", init.tensor->str(), " for ", spec.type);
    return init.tensor->to(spec.type.dtype);
  }
  const DType made = is_floating(spec.type.dtype) ? DType::kF32 : spec.type.dtype;
  Tensor tensor(made, spec.type.shape);
  if (init.kind == Init::Kind::kZeros) return tensor.to(spec.type.dtype);
  if (init.kind == Init::Kind::kOnes || init.kind == Init::Kind::kConstant) {
    tensor.from_doubles(std::vector<double>(static_cast<size_t>(tensor.elements()), init.kind == Init::Kind::kOnes ? 1.0 : init.spread));
    return tensor.to(spec.type.dtype);
  }
  if (init.kind == Init::Kind::kValues) {
    GALLEY_ASSERT(static_cast<int64_t>(init.values->size()) == tensor.elements(), spec.name, ": ", init.values->size(), " values for ",
                  spec.type);
    tensor.from_doubles(*init.values);
    return tensor.to(spec.type.dtype);
  }
  GALLEY_ASSERT(made == DType::kF32, spec.name, " does not have a floating-point dtype");
  const uint64_t key = stream_key(seed, spec.name);
  const int64_t count = tensor.elements();
  float* out = tensor.data_as<float>();
  const auto kaiming = [&] { return init.spread / std::sqrt(static_cast<double>(fan_of(spec.type.shape, init.fan))); };
  switch (init.kind) {
    case Init::Kind::kNormal: fill_normal(out, count, key, static_cast<float>(init.spread)); break;
    case Init::Kind::kTruncatedNormal:
      fill_truncated_normal(out, count, key, static_cast<float>(init.spread), static_cast<float>(init.cut));
      break;
    case Init::Kind::kUniform: fill_uniform(out, count, key, static_cast<float>(init.spread)); break;
    case Init::Kind::kKaimingNormal: fill_normal(out, count, key, static_cast<float>(kaiming())); break;
    case Init::Kind::kKaimingUniform: fill_uniform(out, count, key, static_cast<float>(std::sqrt(3.0) * kaiming())); break;
    case Init::Kind::kZeros:
    case Init::Kind::kOnes:
    case Init::Kind::kConstant:
    case Init::Kind::kValues:
    case Init::Kind::kTensor: break;
  }
  return tensor.to(spec.type.dtype);
}

int64_t parameter_count(const std::vector<ParameterSpec>& specs) {
  int64_t count = 0;
  for (const ParameterSpec& spec : specs) {
    if (spec.role == ValueRole::kParameter) count += spec.type.elements();
  }
  return count;
}

}  // namespace galley
