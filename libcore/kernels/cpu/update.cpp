// Optimizer steps, fused: one pass over parameter, gradient and state. They work on the arrays as they lie in memory: the padding of
// blocked formats holds zeros and stays zero, since a zero gradient moves a zero parameter nowhere.

#include <array>
#include <cmath>
#include <cstring>

#include "libcore/base/parallel.h"
#include "libcore/kernels/cpu/table.h"
#include "libcore/ops/update.h"

namespace galley {
namespace {

#define GALLEY_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))

constexpr int64_t kGrain = 16384;

Support supports(const KernelQuery& q, std::initializer_list<int> arrays) {
  const MemoryFormat& format = q.in(0).format;
  for (int i : arrays) {
    if (!q.has(i)) continue;
    if (q.in(i).dtype != DType::kF32) return Support::no(cat("dtype ", q.in(i).dtype));
    if (!(q.in(i).format == format)) return Support::no(cat("formats ", format, " and ", q.in(i).format));
  }
  return Support::yes();
}

struct SgdNumbers {
  float lr, scale, decay, momentum;
  float keep, damp;  // momentum and 1 - dampening; 0 and 1 at the first step, whose buffer is the gradient itself, as torch
  bool nesterov;
};

GALLEY_CLONES void sgd(const float* p, const float* g, const float* m, float* p_out, float* m_out, int64_t count, SgdNumbers s) {
  if (m == nullptr) {
    for (int64_t i = 0; i < count; ++i) p_out[i] = p[i] - s.lr * (g[i] * s.scale + s.decay * p[i]);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const float grad = g[i] * s.scale + s.decay * p[i];
    const float buffer = s.keep * m[i] + s.damp * grad;
    m_out[i] = buffer;
    p_out[i] = p[i] - s.lr * (s.nesterov ? grad + s.momentum * buffer : buffer);
  }
}

class Sgd : public PreparedKernel {
 public:
  explicit Sgd(const KernelQuery& q) : attrs_(q.attrs<SgdUpdateAttrs>()), count_(q.in(0).format.padded_elements(q.in(0).shape)) {}
  void run(const KernelArgs& args) const override {
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
      sgd(args.in<float>(0) + begin, args.in<float>(1) + begin, momentum != nullptr ? momentum + begin : nullptr, args.out<float>(0) + begin,
          momentum != nullptr ? args.out<float>(1) + begin : nullptr, end - begin, s);
    });
  }

 private:
  SgdUpdateAttrs attrs_;
  int64_t count_;
};

struct AdamNumbers {
  float scale, decay, beta1, beta2, step_size, root_correction, eps, shrink;
};

GALLEY_CLONES void adam(const float* p, const float* g, const float* m, const float* v, float* p_out, float* m_out, float* v_out, int64_t count, AdamNumbers a) {
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

class Adam : public PreparedKernel {
 public:
  explicit Adam(const KernelQuery& q) : attrs_(q.attrs<AdamUpdateAttrs>()), count_(q.in(0).format.padded_elements(q.in(0).shape)) {}
  void run(const KernelArgs& args) const override {
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
      adam(args.in<float>(0) + begin, args.in<float>(1) + begin, args.in<float>(4) + begin, args.in<float>(5) + begin, args.out<float>(0) + begin, args.out<float>(1) + begin,
           args.out<float>(2) + begin, end - begin, a);
    });
  }

 private:
  AdamUpdateAttrs attrs_;
  int64_t count_;
};

GALLEY_CLONES void blend(const float* ema, const float* value, float* out, int64_t count, float decay) {
  for (int64_t i = 0; i < count; ++i) out[i] = decay * ema[i] + (1 - decay) * value[i];
}

class Ema : public PreparedKernel {
 public:
  explicit Ema(const KernelQuery& q) : count_(q.in(0).format.padded_elements(q.in(0).shape)) {}
  void run(const KernelArgs& args) const override {
    parallel_for(count_, kGrain, [&](int64_t begin, int64_t end) {
      blend(args.in<float>(0) + begin, args.in<float>(1) + begin, args.out<float>(0) + begin, end - begin, *args.in<float>(2));
    });
  }

 private:
  int64_t count_;
};

GALLEY_CLONES void plus(const float* a, const float* b, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}

class Accumulate : public PreparedKernel {
 public:
  explicit Accumulate(const KernelQuery& q) : count_(q.in(0).format.padded_elements(q.in(0).shape)) {}
  void run(const KernelArgs& args) const override {
    parallel_for(count_, kGrain, [&](int64_t begin, int64_t end) { plus(args.in<float>(0) + begin, args.in<float>(1) + begin, args.out<float>(0) + begin, end - begin); });
  }

 private:
  int64_t count_;
};

class Clear : public PreparedKernel {
 public:
  explicit Clear(const KernelQuery& q) : bytes_(q.out(0).bytes()) {}
  void run(const KernelArgs& args) const override { std::memset(args.outputs[0], 0, static_cast<size_t>(bytes_)); }

 private:
  int64_t bytes_;
};

struct RmspropNumbers {
  float lr, scale, decay, alpha, eps, momentum;
  bool tf_eps;
};

/// Not centered. buffer is nullptr without momentum.
GALLEY_CLONES void rmsprop(const float* p, const float* g, const float* v, const float* buffer, float* p_out, float* v_out, float* buffer_out,
                           int64_t count, RmspropNumbers a) {
  for (int64_t i = 0; i < count; ++i) {
    const float param = p[i], grad = g[i] * a.scale + a.decay * param;
    const float square = a.alpha * v[i] + (1 - a.alpha) * grad * grad;
    v_out[i] = square;
    const float root = a.tf_eps ? __builtin_sqrtf(square + a.eps) : __builtin_sqrtf(square) + a.eps;
    float direction = grad / root;
    if (buffer != nullptr) {
      direction += a.momentum * buffer[i];
      buffer_out[i] = direction;
    }
    p_out[i] = param - a.lr * direction;
  }
}

class Rmsprop : public PreparedKernel {
 public:
  explicit Rmsprop(const KernelQuery& q) : attrs_(q.attrs<RmspropUpdateAttrs>()), count_(q.in(0).format.padded_elements(q.in(0).shape)) {}
  void run(const KernelArgs& args) const override {
    const float* scale = args.in<float>(7);
    const RmspropNumbers a{*args.in<float>(2), scale != nullptr ? *scale : 1.0f, static_cast<float>(attrs_.weight_decay), static_cast<float>(attrs_.alpha),
                           static_cast<float>(attrs_.eps), static_cast<float>(attrs_.momentum), attrs_.tf_eps};
    const float* buffer = args.in<float>(6);
    parallel_for(count_, kGrain, [&](int64_t begin, int64_t end) {
      rmsprop(args.in<float>(0) + begin, args.in<float>(1) + begin, args.in<float>(4) + begin, buffer != nullptr ? buffer + begin : nullptr, args.out<float>(0) + begin,
              args.out<float>(1) + begin, buffer != nullptr ? args.out<float>(3) + begin : nullptr, end - begin, a);
    });
  }

 private:
  RmspropUpdateAttrs attrs_;
  int64_t count_;
};

template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<T>(q);
}

const std::array<Kernel, 6> kKernels{{{"sgd_update", "cpu", [](const KernelQuery& q) { return supports(q, {0, 1, 4}); }, prepare<Sgd>},
                                      {"adam_update", "cpu", [](const KernelQuery& q) { return supports(q, {0, 1, 4, 5}); }, prepare<Adam>},
                                      {"rmsprop_update", "cpu", [](const KernelQuery& q) { return q.attrs<RmspropUpdateAttrs>().centered ? Support::no("centered: the variance cancels in float") : supports(q, {0, 1, 4, 6}); }, prepare<Rmsprop>},
                                      {"ema_update", "cpu", [](const KernelQuery& q) { return supports(q, {0, 1}); }, prepare<Ema>},
                                      {"accumulate", "cpu", [](const KernelQuery& q) { return supports(q, {0, 1}); }, prepare<Accumulate>},
                                      {"clear", "cpu", [](const KernelQuery&) { return Support::yes(); }, prepare<Clear>}}};

}  // namespace

std::span<const Kernel> cpu_update() { return kKernels; }

}  // namespace galley
