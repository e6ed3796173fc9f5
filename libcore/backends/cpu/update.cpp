// Optimizer steps, fused: one pass over parameter, gradient and state; also the moving averages of weights and of batch norm's statistics,
// accumulation of gradients and the values that gate a step.
//
// They walk the arrays in the order of memory, in any format: the padding of blocked formats holds zeros and stays zero, since a zero
// gradient does not change a zero parameter. O(parameters), bound by memory: SGD with momentum reads 12 and writes 8 bytes per parameter,
// Adam 16 and 12. Formulas are those of torch.optim: SGD, Adam and AdamW (Kingma, Ba 2015; Loshchilov, Hutter 2019), RMSprop (Hinton 2012).

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/update.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef GALLEY_UPDATE_ONCE
#define GALLEY_UPDATE_ONCE

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "libcore/backends/cpu/gated.h"
#include "libcore/backends/cpu/table.h"
#include "libcore/backends/cpu/vector_math.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/update.h"
#include "libcore/tensor/tensor.h"

namespace galley::updates {

struct SgdNumbers {
  float lr, scale, decay, momentum;
  float keep, damp;  // momentum and 1 - dampening; 0 and 1 at the first step, whose buffer is the gradient itself, as torch
  bool nesterov;
};

struct AdamNumbers {
  float scale, decay, beta1, beta2, step_size, root_correction, eps, shrink;
};

struct RmspropNumbers {
  float lr, scale, decay, alpha, momentum;
  float inner_eps, outer_eps;  // added inside the root, or outside
  double exact_alpha;
};
struct RmspropArrays {
  const float *p, *g, *v, *mean, *buffer;
  float *p_out, *v_out, *mean_out, *buffer_out;
};

}  // namespace galley::updates

#endif

// The compiler vectorizes these loops for each target: they are element-wise.
HWY_BEFORE_NAMESPACE();
namespace galley::updates {
namespace HWY_NAMESPACE {

void sgd(const float* p, const float* g, const float* m, float* p_out, float* m_out, int64_t count, SgdNumbers s) {
  if (m == nullptr) {
    GALLEY_ELEMENTWISE
    for (int64_t i = 0; i < count; ++i) p_out[i] = p[i] - s.lr * (g[i] * s.scale + s.decay * p[i]);
    return;
  }
  GALLEY_ELEMENTWISE
  for (int64_t i = 0; i < count; ++i) {
    const float grad = g[i] * s.scale + s.decay * p[i];
    const float buffer = s.keep * m[i] + s.damp * grad;
    m_out[i] = buffer;
    p_out[i] = p[i] - s.lr * (s.nesterov ? grad + s.momentum * buffer : buffer);
  }
}

void adam(const float* p, const float* g, const float* m, const float* v, float* p_out, float* m_out, float* v_out, int64_t count,
          AdamNumbers a) {
  GALLEY_ELEMENTWISE
  for (int64_t i = 0; i < count; ++i) {
    const float param = p[i] * a.shrink;
    const float grad = g[i] * a.scale + a.decay * p[i];
    const float mean = a.beta1 * m[i] + (1 - a.beta1) * grad;
    const float square = a.beta2 * v[i] + (1 - a.beta2) * grad * grad;
    m_out[i] = mean;
    v_out[i] = square;
    p_out[i] = param - a.step_size * mean / (std::sqrt(square) * a.root_correction + a.eps);
  }
}

void blend(const float* ema, const float* value, float* out, int64_t count, float decay) {
  GALLEY_ELEMENTWISE
  for (int64_t i = 0; i < count; ++i) out[i] = decay * ema[i] + (1 - decay) * value[i];
}

void plus(const float* a, const float* b, float* out, int64_t count) {
  GALLEY_ELEMENTWISE
  for (int64_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}

/// Centered: the variance is taken in double, since the difference of the two averages may be far smaller than either.
template <bool kCentered, bool kBuffer>
GALLEY_INLINE void rmsprop_loop(RmspropArrays x, int64_t begin, int64_t end, RmspropNumbers a) {
  GALLEY_ELEMENTWISE
  for (int64_t i = begin; i < end; ++i) {
    const float param = x.p[i], grad = x.g[i] * a.scale + a.decay * param;
    float variance = 0;
    if (kCentered) {
      const double exact =
          static_cast<double>(x.g[i]) * static_cast<double>(a.scale) + static_cast<double>(a.decay) * static_cast<double>(param);
      const double square = a.exact_alpha * static_cast<double>(x.v[i]) + (1 - a.exact_alpha) * exact * exact;
      const double average = a.exact_alpha * static_cast<double>(x.mean[i]) + (1 - a.exact_alpha) * exact;
      x.v_out[i] = static_cast<float>(square);
      x.mean_out[i] = static_cast<float>(average);
      variance = static_cast<float>(square - average * average);
    } else {
      variance = a.alpha * x.v[i] + (1 - a.alpha) * grad * grad;
      x.v_out[i] = variance;
    }
    float direction = grad / (__builtin_sqrtf(variance + a.inner_eps) + a.outer_eps);
    if (kBuffer) {
      direction += a.momentum * x.buffer[i];
      x.buffer_out[i] = direction;
    }
    x.p_out[i] = param - a.lr * direction;
  }
}

void rmsprop(const RmspropArrays& x, int64_t begin, int64_t end, RmspropNumbers a) { rmsprop_loop<false, false>(x, begin, end, a); }
void rmsprop_momentum(const RmspropArrays& x, int64_t begin, int64_t end, RmspropNumbers a) { rmsprop_loop<false, true>(x, begin, end, a); }
void rmsprop_centered(const RmspropArrays& x, int64_t begin, int64_t end, RmspropNumbers a) { rmsprop_loop<true, false>(x, begin, end, a); }
void rmsprop_centered_momentum(const RmspropArrays& x, int64_t begin, int64_t end, RmspropNumbers a) {
  rmsprop_loop<true, true>(x, begin, end, a);
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::updates
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace galley {
namespace updates {
HWY_EXPORT(sgd);
HWY_EXPORT(adam);
HWY_EXPORT(blend);
HWY_EXPORT(plus);
HWY_EXPORT(rmsprop);
HWY_EXPORT(rmsprop_momentum);
HWY_EXPORT(rmsprop_centered);
HWY_EXPORT(rmsprop_centered_momentum);

namespace {

constexpr int64_t kGrain = 16384;

Support supports(const KernelQuery& q, std::initializer_list<int> arrays) {
  const MemoryFormat& format = q.in(0).format;
  for (int i : arrays) {
    if (!q.has(i)) continue;
    if (q.in(i).dtype != DType::kF32) return Support::no(cat("input ", i, " has dtype ", q.in(i).dtype, ", not f32"));
    if (!(q.in(i).format == format)) return Support::no(cat("inputs 0 and ", i, " have formats ", format, " and ", q.in(i).format));
  }
  return Support::yes();
}

class Sgd : public PreparedKernel {
 public:
  explicit Sgd(const KernelQuery& q) : attrs_(q.attrs<SgdUpdateAttrs>()), count_(q.in(0).format.padded_elements(q.in(0).shape)) {}
  void run(Stream&, const KernelArgs& args) const override {
    const bool first = *args.in<int64_t>(3) <= 1;
    const float* momentum = args.in<float>(4);
    const float* scale = args.in<float>(5);
    SgdNumbers s;
    s.lr = *args.in<float>(2);
    s.scale = scale != nullptr ? *scale : 1.0f;
    s.decay = static_cast<float>(attrs_.weight_decay);
    s.momentum = static_cast<float>(attrs_.momentum);
    s.keep = first ? 0.0f : s.momentum;
    s.damp = first ? 1.0f : static_cast<float>(1 - attrs_.dampening);
    s.nesterov = attrs_.nesterov;
    parallel_for(count_, kGrain, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(sgd)(args.in<float>(0) + begin, args.in<float>(1) + begin, momentum != nullptr ? momentum + begin : nullptr,
                                args.out<float>(0) + begin, momentum != nullptr ? args.out<float>(1) + begin : nullptr, end - begin, s);
    });
  }

 private:
  SgdUpdateAttrs attrs_;
  int64_t count_;
};

class Adam : public PreparedKernel {
 public:
  explicit Adam(const KernelQuery& q) : attrs_(q.attrs<AdamUpdateAttrs>()), count_(q.in(0).format.padded_elements(q.in(0).shape)) {}
  void run(Stream&, const KernelArgs& args) const override {
    const double lr = static_cast<double>(*args.in<float>(2)), step = static_cast<double>(*args.in<int64_t>(3));
    AdamNumbers a;
    a.scale = args.in<float>(6) != nullptr ? *args.in<float>(6) : 1.0f;
    a.decay = attrs_.decoupled ? 0.0f : static_cast<float>(attrs_.weight_decay);
    a.beta1 = static_cast<float>(attrs_.beta1);
    a.beta2 = static_cast<float>(attrs_.beta2);
    a.step_size = static_cast<float>(lr / (1 - std::pow(attrs_.beta1, step)));
    a.root_correction = static_cast<float>(1 / std::sqrt(1 - std::pow(attrs_.beta2, step)));
    a.eps = static_cast<float>(attrs_.eps);
    a.shrink = attrs_.decoupled ? static_cast<float>(1 - lr * attrs_.weight_decay) : 1.0f;
    parallel_for(count_, kGrain, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(adam)(args.in<float>(0) + begin, args.in<float>(1) + begin, args.in<float>(4) + begin, args.in<float>(5) + begin,
                                 args.out<float>(0) + begin, args.out<float>(1) + begin, args.out<float>(2) + begin, end - begin, a);
    });
  }

 private:
  AdamUpdateAttrs attrs_;
  int64_t count_;
};

class Ema : public PreparedKernel {
 public:
  explicit Ema(const KernelQuery& q) : count_(q.in(0).format.padded_elements(q.in(0).shape)) {}
  void run(Stream&, const KernelArgs& args) const override {
    parallel_for(count_, kGrain, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(blend)(args.in<float>(0) + begin, args.in<float>(1) + begin, args.out<float>(0) + begin, end - begin,
                                  *args.in<float>(2));
    });
  }

 private:
  int64_t count_;
};

/// Of short arrays: statistics of batch norms.
class EmaHalf : public PreparedKernel {
 public:
  explicit EmaHalf(const KernelQuery& q) : dtype_(q.in(0).dtype), count_(q.in(0).format.padded_elements(q.in(0).shape)) {}
  void run(Stream&, const KernelArgs& args) const override {
    const uint16_t *ema = args.in<uint16_t>(0), *value = args.in<uint16_t>(1);
    const double decay = static_cast<double>(*args.in<float>(2));
    for (int64_t i = 0; i < count_; ++i)
      store_element(dtype_, args.out<uint16_t>(0) + i,
                    decay * load_element(dtype_, ema + i) + (1 - decay) * load_element(dtype_, value + i));
  }

 private:
  DType dtype_;
  int64_t count_;
};

/// The average of a counter is the counter.
class EmaCopy : public PreparedKernel {
 public:
  explicit EmaCopy(const KernelQuery& q) : bytes_(q.out(0).bytes()) {}
  void run(Stream&, const KernelArgs& args) const override { std::memcpy(args.outputs[0], args.inputs[1], static_cast<size_t>(bytes_)); }

 private:
  int64_t bytes_;
};

bool is_half(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

Support supports_ema(const KernelQuery& q) {
  if (q.in(1).dtype != q.in(0).dtype) return Support::no(cat("inputs 0 and 1 have dtypes ", q.in(0).dtype, " and ", q.in(1).dtype));
  if (is_floating(q.in(0).dtype) && !is_half(q.in(0).dtype)) return supports(q, {0, 1});
  return q.in(0).format == q.in(1).format ? Support::yes()
                                          : Support::no(cat("inputs 0 and 1 have formats ", q.in(0).format, " and ", q.in(1).format));
}

class Accumulate : public PreparedKernel {
 public:
  explicit Accumulate(const KernelQuery& q) : count_(q.in(0).format.padded_elements(q.in(0).shape)) {}
  void run(Stream&, const KernelArgs& args) const override {
    parallel_for(count_, kGrain, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(plus)(args.in<float>(0) + begin, args.in<float>(1) + begin, args.out<float>(0) + begin, end - begin);
    });
  }

 private:
  int64_t count_;
};

class Clear : public PreparedKernel {
 public:
  explicit Clear(const KernelQuery& q) : bytes_(q.out(0).bytes()) {}
  void run(Stream&, const KernelArgs& args) const override { std::memset(args.outputs[0], 0, static_cast<size_t>(bytes_)); }

 private:
  int64_t bytes_;
};

class Rmsprop : public PreparedKernel {
 public:
  explicit Rmsprop(const KernelQuery& q) : attrs_(q.attrs<RmspropUpdateAttrs>()), count_(q.in(0).format.padded_elements(q.in(0).shape)) {}
  void run(Stream&, const KernelArgs& args) const override {
    const float* scale = args.in<float>(7);
    const auto eps = static_cast<float>(attrs_.eps);
    const RmspropNumbers a{.lr = *args.in<float>(2),
                           .scale = scale != nullptr ? *scale : 1.0f,
                           .decay = static_cast<float>(attrs_.weight_decay),
                           .alpha = static_cast<float>(attrs_.alpha),
                           .momentum = static_cast<float>(attrs_.momentum),
                           .inner_eps = attrs_.tf_eps ? eps : 0.0f,
                           .outer_eps = attrs_.tf_eps ? 0.0f : eps,
                           .exact_alpha = attrs_.alpha};
    const bool moves = args.in<float>(6) != nullptr;
    const RmspropArrays x{args.in<float>(0),
                          args.in<float>(1),
                          args.in<float>(4),
                          attrs_.centered ? args.in<float>(5) : nullptr,
                          args.in<float>(6),
                          args.out<float>(0),
                          args.out<float>(1),
                          attrs_.centered ? args.out<float>(2) : nullptr,
                          moves ? args.out<float>(3) : nullptr};
    const auto centered = moves ? HWY_DYNAMIC_DISPATCH(rmsprop_centered_momentum) : HWY_DYNAMIC_DISPATCH(rmsprop_centered);
    const auto plain = moves ? HWY_DYNAMIC_DISPATCH(rmsprop_momentum) : HWY_DYNAMIC_DISPATCH(rmsprop);
    const auto step = attrs_.centered ? centered : plain;
    parallel_for(count_, kGrain, [&](int64_t begin, int64_t end) { step(x, begin, end, a); });
  }

 private:
  RmspropUpdateAttrs attrs_;
  int64_t count_;
};

/// Running statistics are a few thousand numbers at most: one thread, in double.
/// Statistics are blended in double, and stored in the dtype of the state.
class BatchNormUpdate : public PreparedKernel {
 public:
  explicit BatchNormUpdate(const KernelQuery& q)
      : dtype_(q.in(0).dtype),
        channels_(q.in(0).elements()),
        counts_(q.has(4)),
        momentum_(q.attrs<BatchNormUpdateAttrs>().momentum),
        unbiased_(momentum_) {
    const int64_t count = q.attrs<BatchNormUpdateAttrs>().count;
    if (count > 1) unbiased_ = momentum_ * static_cast<double>(count) / static_cast<double>(count - 1);
  }
  void run(Stream&, const KernelArgs& args) const override {
    const auto blend_into = [&](size_t state, double factor) {
      const float* batch = args.in<float>(state + 2);
      const auto blended = [&](double old, int64_t c) {
        return static_cast<float>((1 - momentum_) * old + factor * static_cast<double>(batch[c]));
      };
      if (dtype_ == DType::kF32) {
        const float* old = args.in<float>(state);
        float* out = args.out<float>(state);
        for (int64_t c = 0; c < channels_; ++c) out[c] = blended(static_cast<double>(old[c]), c);
      } else {
        const uint16_t* old = args.in<uint16_t>(state);
        uint16_t* out = args.out<uint16_t>(state);
        for (int64_t c = 0; c < channels_; ++c)
          store_element(dtype_, out + c, static_cast<double>(blended(load_element(dtype_, old + c), c)));
      }
    };
    blend_into(0, momentum_);
    blend_into(1, unbiased_);
    if (counts_) *args.out<int64_t>(2) = *args.in<int64_t>(4) + 1;
  }

 private:
  DType dtype_;
  int64_t channels_;
  bool counts_;
  double momentum_, unbiased_;  // weights of the batch's mean and of its variance
};

Support supports_batch_norm(const KernelQuery& q) {
  if (q.in(0).dtype != DType::kF32 && !is_half(q.in(0).dtype))
    return Support::no(cat("input 0 has dtype ", q.in(0).dtype, ", not f32, bf16 or f16"));
  if (q.in(1).dtype != q.in(0).dtype) return Support::no(cat("inputs 0 and 1 have dtypes ", q.in(0).dtype, " and ", q.in(1).dtype));
  for (const int i : {2, 3}) {
    if (q.in(i).dtype != DType::kF32) return Support::no(cat("input ", i, " has dtype ", q.in(i).dtype, ", not f32"));
  }
  return q.has(4) && q.in(4).dtype != DType::kI64 ? Support::no(cat("counter of dtype ", q.in(4).dtype, ", not i64")) : Support::yes();
}

class ClipCoefficient : public PreparedKernel {
 public:
  explicit ClipCoefficient(const KernelQuery& q) : max_norm_(q.attrs<ClipCoefficientAttrs>().max_norm) {}
  void run(Stream&, const KernelArgs& args) const override {
    const double coefficient = max_norm_ / (std::sqrt(static_cast<double>(*args.in<float>(0))) + 1e-6);
    *args.out<float>(0) = static_cast<float>(coefficient > 1 ? 1 : coefficient);  // NaN stays
  }

 private:
  double max_norm_;
};

class FiniteGate : public PreparedKernel {
 public:
  explicit FiniteGate(const KernelQuery& q) : dtype_(q.in(1).dtype) {}
  void run(Stream&, const KernelArgs& args) const override {
    const bool stopped = *args.in<uint8_t>(0) != 0 || !std::isfinite(load_element(dtype_, args.inputs[1]));
    *args.out<uint8_t>(0) = stopped ? 1 : 0;
    *args.out<uint8_t>(1) = stopped ? 0 : 1;
  }

 private:
  DType dtype_;
};

template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return gated(q, std::make_unique<T>(q));
}

const std::array<Kernel, 9> kKernels{
    {{"sgd_update", "one_pass", [](const KernelQuery& q) { return supports(q, {0, 1, 4}); }, prepare<Sgd>},
     {"adam_update", "one_pass", [](const KernelQuery& q) { return supports(q, {0, 1, 4, 5}); }, prepare<Adam>},
     {"rmsprop_update", "one_pass", [](const KernelQuery& q) { return supports(q, {0, 1, 4, 5, 6}); }, prepare<Rmsprop>},
     {"ema_update", "one_pass", supports_ema,
      [](const KernelQuery& q) {
        return is_half(q.in(0).dtype) ? prepare<EmaHalf>(q) : is_floating(q.in(0).dtype) ? prepare<Ema>(q) : prepare<EmaCopy>(q);
      }},
     {"accumulate", "one_pass", [](const KernelQuery& q) { return supports(q, {0, 1}); }, prepare<Accumulate>},
     {"clear", "fill", [](const KernelQuery&) { return Support::yes(); }, prepare<Clear>},
     {"batch_norm_update", "channels", supports_batch_norm, prepare<BatchNormUpdate>},
     {"clip_coefficient", "scalar", [](const KernelQuery&) { return Support::yes(); }, prepare<ClipCoefficient>},
     {"finite_gate", "scalar", [](const KernelQuery&) { return Support::yes(); }, prepare<FiniteGate>}}};

}  // namespace
}  // namespace updates

std::span<const Kernel> cpu_update() { return updates::kKernels; }

}  // namespace galley
#endif  // HWY_ONCE
