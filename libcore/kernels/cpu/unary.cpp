// Element-wise functions and their backward operators over arrays as they lie in memory (padding included: none of the arrays here is
// blocked). Plain loops that the compiler vectorises for each instruction set; NaN passes through all of them.

#include <array>
#include <cmath>
#include <cstdint>

#include "libcore/base/parallel.h"
#include "libcore/kernels/cpu/activate.h"
#include "libcore/kernels/cpu/table.h"
#include "libcore/kernels/cpu/vector_math.h"
#include "libcore/ops/unary.h"

namespace galley {
namespace {

constexpr int64_t kGrain = 16384;

/// What attributes give: clamp's bounds, affine's factor and shift.
struct Numbers {
  float a = 0, b = 0;
};

constexpr float kNormalDensity = 0.39894228f;  // 1 / sqrt(2 pi)
constexpr float kTanhInner = 0.79788456f;      // sqrt(2 / pi)
constexpr float kTanhCubic = 0.044715f;
GALLEY_INLINE float gelu_inner(float x) { return kTanhInner * (x + kTanhCubic * x * x * x); }

#define GALLEY_MAP(name, expression)                                                                            \
  GALLEY_CLONES void name(const float* in, const float*, float* out, int64_t count, [[maybe_unused]] Numbers k) { \
    GALLEY_ELEMENTWISE                                                                                          \
    for (int64_t i = 0; i < count; ++i) {                                                                       \
      const float x = in[i];                                                                                    \
      out[i] = (expression);                                                                                    \
    }                                                                                                           \
  }
#define GALLEY_BACKWARD(name, expression)                                                                          \
  GALLEY_CLONES void name(const float* grad, const float* in, float* out, int64_t count, [[maybe_unused]] Numbers k) { \
    GALLEY_ELEMENTWISE                                                                                          \
    for (int64_t i = 0; i < count; ++i) {                                                                          \
      const float g = grad[i], x = in[i];                                                                          \
      out[i] = (expression);                                                                                       \
    }                                                                                                              \
  }

GALLEY_MAP(map_relu, at_least(x, 0.0f))
GALLEY_MAP(map_relu6, at_most(at_least(x, 0.0f), 6.0f))
GALLEY_MAP(map_hardswish, x * hardsigmoid_of(x))
GALLEY_MAP(map_hardsigmoid, hardsigmoid_of(x))
GALLEY_MAP(map_sigmoid, sigmoid_of(x))
GALLEY_MAP(map_silu, x * sigmoid_of(x))
GALLEY_MAP(map_tanh, tanh_of(x))
GALLEY_MAP(map_exp, exp_of(x))
GALLEY_MAP(map_neg, -x)
GALLEY_MAP(map_abs, std::fabs(x))
GALLEY_MAP(map_square, x * x)
GALLEY_MAP(map_sqrt, __builtin_sqrtf(x))
GALLEY_MAP(map_rsqrt, 1.0f / __builtin_sqrtf(x))
GALLEY_MAP(map_reciprocal, 1.0f / x)
GALLEY_MAP(map_clamp, at_most(at_least(x, k.a), k.b))
GALLEY_MAP(map_affine, x * k.a + k.b)
GALLEY_MAP(map_log, log_of(x))
GALLEY_MAP(map_gelu, x * normal_of(x))
GALLEY_MAP(map_gelu_tanh, 0.5f * x * (1.0f + tanh_of(gelu_inner(x))))
// Calls of the library, an element at a time: rare, and exact for large arguments.
GALLEY_MAP(map_sin, std::sin(x))
GALLEY_MAP(map_cos, std::cos(x))
GALLEY_MAP(map_pow, std::pow(x, k.a))

GALLEY_BACKWARD(relu_slope, x > 0.0f ? g : 0.0f)
GALLEY_BACKWARD(relu6_slope, (x > 0.0f) & (x < 6.0f) ? g : 0.0f)
GALLEY_BACKWARD(hardswish_slope, g * (x <= -3.0f ? 0.0f : x >= 3.0f ? 1.0f : x * (1.0f / 3.0f) + 0.5f))
GALLEY_BACKWARD(hardsigmoid_slope, (x > -3.0f) & (x < 3.0f) ? g * (1.0f / 6.0f) : 0.0f)
GALLEY_BACKWARD(sigmoid_slope, g * (x * (1.0f - x)))
GALLEY_BACKWARD(tanh_slope, g * (1.0f - x * x))
GALLEY_BACKWARD(clamp_slope, (x >= k.a) & (x <= k.b) ? g : 0.0f)
GALLEY_BACKWARD(gelu_slope, g * (normal_of(x) + x * (kNormalDensity * exp_of(-0.5f * x * x))))
GALLEY_CLONES void gelu_tanh_slope(const float* grad, const float* in, float* out, int64_t count, Numbers) {
  GALLEY_ELEMENTWISE
  for (int64_t i = 0; i < count; ++i) {
    const float x = in[i], t = tanh_of(gelu_inner(x));
    out[i] = grad[i] * (0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * (kTanhInner * (1.0f + 3.0f * kTanhCubic * x * x)));
  }
}
GALLEY_CLONES void silu_slope(const float* grad, const float* in, float* out, int64_t count, Numbers) {
  GALLEY_ELEMENTWISE
  for (int64_t i = 0; i < count; ++i) {
    const float s = sigmoid_of(in[i]);
    out[i] = grad[i] * (s * (1.0f + in[i] * (1.0f - s)));
  }
}

using Loop = void (*)(const float*, const float*, float*, int64_t, Numbers);

class Map : public PreparedKernel {
 public:
  Map(Loop loop, int64_t count, Numbers numbers) : loop_(loop), count_(count), numbers_(numbers) {}
  void run(const KernelArgs& args) const override {
    const float* other = args.in<float>(1);
    parallel_for(count_, kGrain, [&](int64_t begin, int64_t end) {
      loop_(args.in<float>(0) + begin, other != nullptr ? other + begin : nullptr, args.out<float>(0) + begin, end - begin, numbers_);
    });
  }

 private:
  Loop loop_;
  int64_t count_;
  Numbers numbers_;
};

Support supports(const KernelQuery& q) {
  const TensorType& x = q.in(0);
  if (x.dtype != DType::kF32) return Support::no(cat("dtype ", x.dtype));
  if (x.format.is_blocked()) return Support::no(cat("format ", x.format));
  if (!(q.out(0).format == x.format)) return Support::no("output in another format");
  if (q.has(1) && (q.in(1).dtype != DType::kF32 || !(q.in(1).format == x.format))) return Support::no("inputs of different formats");
  return Support::yes();
}

template <Loop kLoop>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<Map>(kLoop, q.in(0).elements(), Numbers{});
}
template <Loop kLoop>
std::unique_ptr<PreparedKernel> prepare_clamp(const KernelQuery& q) {
  const auto& a = q.attrs<ClampAttrs>();
  return std::make_unique<Map>(kLoop, q.in(0).elements(), Numbers{static_cast<float>(a.min), static_cast<float>(a.max)});
}
std::unique_ptr<PreparedKernel> prepare_affine(const KernelQuery& q) {
  const auto& a = q.attrs<AffineAttrs>();
  return std::make_unique<Map>(map_affine, q.in(0).elements(), Numbers{static_cast<float>(a.scale), static_cast<float>(a.shift)});
}

std::unique_ptr<PreparedKernel> prepare_pow(const KernelQuery& q) {
  return std::make_unique<Map>(map_pow, q.in(0).elements(), Numbers{static_cast<float>(q.attrs<PowAttrs>().exponent), 0});
}
template <Loop kPlain, Loop kTanh>
std::unique_ptr<PreparedKernel> prepare_gelu(const KernelQuery& q) {
  const bool by_tanh = q.attrs<GeluAttrs>().approximate == GeluApproximation::kTanh;
  return std::make_unique<Map>(by_tanh ? kTanh : kPlain, q.in(0).elements(), Numbers{});
}

const std::array<Kernel, 30> kKernels{{{"relu", "cpu", supports, prepare<map_relu>},
                                       {"relu6", "cpu", supports, prepare<map_relu6>},
                                       {"hardswish", "cpu", supports, prepare<map_hardswish>},
                                       {"hardsigmoid", "cpu", supports, prepare<map_hardsigmoid>},
                                       {"sigmoid", "cpu", supports, prepare<map_sigmoid>},
                                       {"silu", "cpu", supports, prepare<map_silu>},
                                       {"tanh", "cpu", supports, prepare<map_tanh>},
                                       {"exp", "cpu", supports, prepare<map_exp>},
                                       {"log", "cpu", supports, prepare<map_log>},
                                       {"sin", "cpu", supports, prepare<map_sin>},
                                       {"cos", "cpu", supports, prepare<map_cos>},
                                       {"pow", "cpu", supports, prepare_pow},
                                       {"gelu", "cpu", supports, prepare_gelu<map_gelu, map_gelu_tanh>},
                                       {"gelu_backward", "cpu", supports, prepare_gelu<gelu_slope, gelu_tanh_slope>},
                                       {"neg", "cpu", supports, prepare<map_neg>},
                                       {"abs", "cpu", supports, prepare<map_abs>},
                                       {"square", "cpu", supports, prepare<map_square>},
                                       {"sqrt", "cpu", supports, prepare<map_sqrt>},
                                       {"rsqrt", "cpu", supports, prepare<map_rsqrt>},
                                       {"reciprocal", "cpu", supports, prepare<map_reciprocal>},
                                       {"clamp", "cpu", supports, prepare_clamp<map_clamp>},
                                       {"affine", "cpu", supports, prepare_affine},
                                       {"relu_backward", "cpu", supports, prepare<relu_slope>},
                                       {"relu6_backward", "cpu", supports, prepare<relu6_slope>},
                                       {"hardswish_backward", "cpu", supports, prepare<hardswish_slope>},
                                       {"hardsigmoid_backward", "cpu", supports, prepare<hardsigmoid_slope>},
                                       {"sigmoid_backward", "cpu", supports, prepare<sigmoid_slope>},
                                       {"silu_backward", "cpu", supports, prepare<silu_slope>},
                                       {"tanh_backward", "cpu", supports, prepare<tanh_slope>},
                                       {"clamp_backward", "cpu", supports, prepare_clamp<clamp_slope>}}};

}  // namespace

void activate(Activation activation, float* y, int64_t count) {
  switch (activation) {
    case Activation::kNone: return;
    case Activation::kRelu: return map_relu(y, nullptr, y, count, {});
    case Activation::kRelu6: return map_relu6(y, nullptr, y, count, {});
    case Activation::kHardswish: return map_hardswish(y, nullptr, y, count, {});
    case Activation::kHardsigmoid: return map_hardsigmoid(y, nullptr, y, count, {});
    case Activation::kSigmoid: return map_sigmoid(y, nullptr, y, count, {});
    case Activation::kSilu: return map_silu(y, nullptr, y, count, {});
    case Activation::kGelu: return map_gelu(y, nullptr, y, count, {});
    case Activation::kTanh: return map_tanh(y, nullptr, y, count, {});
  }
}

std::span<const Kernel> cpu_unary() { return kKernels; }

}  // namespace galley
