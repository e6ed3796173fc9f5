// Element-wise functions and their backward operators over arrays as they lie in memory (padding included: none of the arrays here is
// blocked). Plain loops that the compiler vectorises for each instruction set; NaN passes through all of them.

#include <array>
#include <cmath>
#include <cstdint>

#include "libcore/backends/cpu/activate.h"
#include "libcore/backends/cpu/bfloat16.h"
#include "libcore/backends/cpu/table.h"
#include "libcore/backends/cpu/vector_math.h"
#include "libcore/base/parallel.h"
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

template <class T>
using Loop = void (*)(const T* first, const T* second, T* out, int64_t count, Numbers);
/// A function's loops over either type.
struct Loops {
  Loop<float> wide;
  Loop<BFloat16> narrow;
};

// out[i] = expression of x = in[i] (and of g = grad[i]).
#define GALLEY_LOOPS(name)                                                                                                                                  \
  GALLEY_CLONES void name##_loop(const float* a, const float* b, float* out, int64_t count, Numbers k) { name##_as(a, b, out, count, k); }                  \
  GALLEY_CLONES void name##_loop(const BFloat16* a, const BFloat16* b, BFloat16* out, int64_t count, Numbers k) { name##_as(a, b, out, count, k); }         \
  constexpr Loops name{name##_loop, name##_loop};
#define GALLEY_MAP(name, expression)                                                                                                                        \
  template <class T>                                                                                                                                        \
  GALLEY_INLINE void name##_as(const T* in, const T*, T* out, int64_t count, [[maybe_unused]] Numbers k) {                                                  \
    GALLEY_ELEMENTWISE                                                                                                                                      \
    for (int64_t i = 0; i < count; ++i) {                                                                                                                   \
      const float x = in[i];                                                                                                                                \
      out[i] = (expression);                                                                                                                                \
    }                                                                                                                                                       \
  }                                                                                                                                                         \
  GALLEY_LOOPS(name)
#define GALLEY_BACKWARD(name, expression)                                                                                                                   \
  template <class T>                                                                                                                                        \
  GALLEY_INLINE void name##_as(const T* grad, const T* in, T* out, int64_t count, [[maybe_unused]] Numbers k) {                                             \
    GALLEY_ELEMENTWISE                                                                                                                                      \
    for (int64_t i = 0; i < count; ++i) {                                                                                                                   \
      const float g = grad[i], x = in[i];                                                                                                                   \
      out[i] = (expression);                                                                                                                                \
    }                                                                                                                                                       \
  }                                                                                                                                                         \
  GALLEY_LOOPS(name)

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
GALLEY_INLINE float gelu_tanh_slope_of(float x, float t) { return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * (kTanhInner * (1.0f + 3.0f * kTanhCubic * x * x)); }
GALLEY_INLINE float silu_slope_of(float x, float s) { return s * (1.0f + x * (1.0f - s)); }
GALLEY_BACKWARD(gelu_tanh_slope, g * gelu_tanh_slope_of(x, tanh_of(gelu_inner(x))))
GALLEY_BACKWARD(silu_slope, g * silu_slope_of(x, sigmoid_of(x)))

template <class T>
class Map : public PreparedKernel {
 public:
  Map(Loop<T> loop, int64_t count, Numbers numbers) : loop_(loop), count_(count), numbers_(numbers) {}
  void run(Stream&, const KernelArgs& args) const override {
    const T* other = args.in<T>(1);
    parallel_for(count_, kGrain, [&](int64_t begin, int64_t end) {
      loop_(args.in<T>(0) + begin, other != nullptr ? other + begin : nullptr, args.out<T>(0) + begin, end - begin, numbers_);
    });
  }

 private:
  Loop<T> loop_;
  int64_t count_;
  Numbers numbers_;
};

Support supports(const KernelQuery& q) {
  const TensorType& x = q.in(0);
  if (x.dtype != DType::kF32 && x.dtype != DType::kBF16) return Support::no(cat("dtype ", x.dtype));
  if (x.format.is_blocked()) return Support::no(cat("format ", x.format));
  if (!(q.out(0).format == x.format)) return Support::no("output in another format");
  if (q.has(1) && (q.in(1).dtype != x.dtype || !(q.in(1).format == x.format))) return Support::no("inputs of different formats");
  return Support::yes();
}

/// The loop of the operand's type.
std::unique_ptr<PreparedKernel> map_of(const Loops& loops, const KernelQuery& q, Numbers numbers) {
  if (q.in(0).dtype == DType::kBF16) return std::make_unique<Map<BFloat16>>(loops.narrow, q.in(0).elements(), numbers);
  return std::make_unique<Map<float>>(loops.wide, q.in(0).elements(), numbers);
}
template <const Loops& kLoops>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return map_of(kLoops, q, {});
}
template <const Loops& kLoops>
std::unique_ptr<PreparedKernel> prepare_clamp(const KernelQuery& q) {
  const auto& a = q.attrs<ClampAttrs>();
  return map_of(kLoops, q, {static_cast<float>(a.min), static_cast<float>(a.max)});
}
std::unique_ptr<PreparedKernel> prepare_affine(const KernelQuery& q) {
  const auto& a = q.attrs<AffineAttrs>();
  return map_of(map_affine, q, {static_cast<float>(a.scale), static_cast<float>(a.shift)});
}
std::unique_ptr<PreparedKernel> prepare_pow(const KernelQuery& q) { return map_of(map_pow, q, {static_cast<float>(q.attrs<PowAttrs>().exponent), 0}); }
template <const Loops& kPlain, const Loops& kTanh>
std::unique_ptr<PreparedKernel> prepare_gelu(const KernelQuery& q) {
  return map_of(q.attrs<GeluAttrs>().approximate == GeluApproximation::kTanh ? kTanh : kPlain, q, {});
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
    case Activation::kRelu: return map_relu_loop(y, nullptr, y, count, {});
    case Activation::kRelu6: return map_relu6_loop(y, nullptr, y, count, {});
    case Activation::kHardswish: return map_hardswish_loop(y, nullptr, y, count, {});
    case Activation::kHardsigmoid: return map_hardsigmoid_loop(y, nullptr, y, count, {});
    case Activation::kSigmoid: return map_sigmoid_loop(y, nullptr, y, count, {});
    case Activation::kSilu: return map_silu_loop(y, nullptr, y, count, {});
    case Activation::kGelu: return map_gelu_loop(y, nullptr, y, count, {});
    case Activation::kTanh: return map_tanh_loop(y, nullptr, y, count, {});
  }
}

std::span<const Kernel> cpu_unary() { return kKernels; }

}  // namespace galley
