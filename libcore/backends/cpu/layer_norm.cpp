// Layer normalization (Ba, Kiros, Hinton 2016) over rows of contiguous f32 values, forward and backward.
//
// Forward: two passes for mean and variance about it, then one that normalizes, each row while it is in the cache. Backward: two sums, the
// parameters' gradients and dx, row by row. Work is O(elements); memory bounds rows that leave the first-level cache, the additions bound
// shorter ones. Sums are vectors of float over runs that are added in double (vector_sums-inl.h). The gradients of gamma and beta are
// summed over fixed blocks of rows, then over the blocks in double: bits depend on the instruction set, not on the threads.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/layer_norm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/vector_sums-inl.h"

#ifndef GALLEY_LAYER_NORM_ONCE
#define GALLEY_LAYER_NORM_ONCE

#include <algorithm>
#include <array>
#include <cmath>

#include "libcore/backends/cpu/table.h"
#include "libcore/backends/cpu/vector_math.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/norm.h"

namespace galley::layernorm {

/// Rows of `width` values; gamma and beta may be nullptr.
struct ForwardRows {
  const float *x, *gamma, *beta;
  float *y, *mean, *rstd;
  int64_t width;
  double eps;
};
struct BackwardRows {
  const float *grad, *x, *mean, *rstd, *gamma;
  float* dx;  // may be grad
  int64_t width;
};

}  // namespace galley::layernorm

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::layernorm {
namespace HWY_NAMESPACE {
using galley::HWY_NAMESPACE::dot_of;
using galley::HWY_NAMESPACE::Floats;
using galley::HWY_NAMESPACE::sum_of;
using galley::HWY_NAMESPACE::sum_over;

double squares_about(const float* x, int64_t count, float mean) {
  return sum_over(count, [=](auto part, int64_t i) GALLEY_LOOP {
    const Floats d = part.load(x + i) - Floats(mean);
    return d * d;
  });
}
double scaled_sum(const float* grad, const float* gamma, int64_t count) {
  return gamma == nullptr ? sum_of(grad, count) : dot_of(grad, gamma, count);
}
double scaled_dot(const float* grad, const float* gamma, const float* x, float mean, int64_t count) {
  if (gamma == nullptr)
    return sum_over(count, [=](auto part, int64_t i) GALLEY_LOOP { return part.load(grad + i) * (part.load(x + i) - Floats(mean)); });
  return sum_over(count, [=](auto part, int64_t i)
                             GALLEY_LOOP { return part.load(grad + i) * part.load(gamma + i) * (part.load(x + i) - Floats(mean)); });
}

void normalize(const float* x, const float* gamma, const float* beta, float* y, int64_t count, float mean, float rstd) {
  if (gamma != nullptr && beta != nullptr) {
    GALLEY_ELEMENTWISE
    for (int64_t i = 0; i < count; ++i) y[i] = (x[i] - mean) * rstd * gamma[i] + beta[i];
    return;
  }
  GALLEY_ELEMENTWISE
  for (int64_t i = 0; i < count; ++i) y[i] = (x[i] - mean) * rstd;
  if (gamma != nullptr) {
    for (int64_t i = 0; i < count; ++i) y[i] *= gamma[i];
  }
  if (beta != nullptr) {
    for (int64_t i = 0; i < count; ++i) y[i] += beta[i];
  }
}

void forward_rows(const ForwardRows& a, int64_t begin, int64_t end) {
  const auto count = static_cast<double>(a.width);
  for (int64_t r = begin; r < end; ++r) {
    const float* x = a.x + r * a.width;
    const auto mean = static_cast<float>(sum_of(x, a.width) / count);
    const auto rstd = static_cast<float>(1 / std::sqrt(squares_about(x, a.width, mean) / count + a.eps));
    a.mean[r] = mean;
    a.rstd[r] = rstd;
    normalize(x, a.gamma, a.beta, a.y + r * a.width, a.width, mean, rstd);
  }
}

void add_parameter_gradients(const float* grad, const float* x, int64_t count, float mean, float rstd, float* dgamma, float* dbeta) {
  for (int64_t i = 0; i < count; ++i) {
    dgamma[i] += grad[i] * ((x[i] - mean) * rstd);
    dbeta[i] += grad[i];
  }
}

/// dx = scale d + slope (x - mean) + offset with d = gamma grad.
void row_gradient(const float* grad, const float* x, const float* gamma, float* dx, int64_t count, float mean, float scale, float slope,
                  float offset) {
  if (gamma != nullptr) {
    GALLEY_ELEMENTWISE
    for (int64_t i = 0; i < count; ++i) dx[i] = scale * (grad[i] * gamma[i]) + slope * (x[i] - mean) + offset;
  } else {
    GALLEY_ELEMENTWISE
    for (int64_t i = 0; i < count; ++i) dx[i] = scale * grad[i] + slope * (x[i] - mean) + offset;
  }
}

/// dx of the rows; their part of dgamma and dbeta is added.
void backward_rows(const BackwardRows& a, int64_t begin, int64_t end, float* dgamma, float* dbeta) {
  const int64_t width = a.width;
  const auto count = static_cast<double>(width);
  for (int64_t r = begin; r < end; ++r) {
    const float *grad = a.grad + r * width, *x = a.x + r * width;
    const double rstd = static_cast<double>(a.rstd[r]), sum = scaled_sum(grad, a.gamma, width),
                 dot = scaled_dot(grad, a.gamma, x, a.mean[r], width) * rstd;
    add_parameter_gradients(grad, x, width, a.mean[r], a.rstd[r], dgamma, dbeta);
    // Last, since dx may replace the gradient.
    row_gradient(grad, x, a.gamma, a.dx + r * width, width, a.mean[r], a.rstd[r], static_cast<float>(-rstd * rstd * dot / count),
                 static_cast<float>(-rstd * sum / count));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::layernorm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace galley {
namespace layernorm {
HWY_EXPORT(forward_rows);
HWY_EXPORT(backward_rows);

namespace {

class Forward : public PreparedKernel {
 public:
  explicit Forward(const KernelQuery& q)
      : rows_(q.out(1).elements()), width_(q.in(0).elements() / rows_), eps_(q.attrs<LayerNormAttrs>().eps) {}
  void run(Stream&, const KernelArgs& args) const override {
    const ForwardRows rows{.x = args.in<float>(0),
                           .gamma = args.in<float>(1),
                           .beta = args.in<float>(2),
                           .y = args.out<float>(0),
                           .mean = args.out<float>(1),
                           .rstd = args.out<float>(2),
                           .width = width_,
                           .eps = eps_};
    parallel_for(rows_, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width_)),
                 [&](int64_t begin, int64_t end) { HWY_DYNAMIC_DISPATCH(forward_rows)(rows, begin, end); });
  }

 private:
  int64_t rows_, width_;
  double eps_;
};

class Backward : public PreparedKernel {
 public:
  explicit Backward(const KernelQuery& q) : width_(q.out(1).elements()), rows_(q.in(1).elements() / width_) {
    // About 16 Ki values per block; their partial sums stay below 16 MiB.
    const int64_t most = std::clamp<int64_t>((int64_t{1} << 21) / width_, 1, 64);
    blocks_ = std::clamp<int64_t>(rows_ * width_ / 16384, 1, std::min(most, rows_));
  }
  int64_t scratch_bytes() const override { return blocks_ * 2 * width_ * 4; }
  void run(Stream&, const KernelArgs& args) const override {
    const BackwardRows rows{.grad = args.in<float>(0),
                            .x = args.in<float>(1),
                            .mean = args.in<float>(2),
                            .rstd = args.in<float>(3),
                            .gamma = args.in<float>(4),
                            .dx = args.out<float>(0),
                            .width = width_};
    auto* partial = static_cast<float*>(args.scratch);
    parallel_for(blocks_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        float* dgamma = partial + block * 2 * width_;
        std::fill(dgamma, dgamma + 2 * width_, 0.0f);
        HWY_DYNAMIC_DISPATCH(backward_rows)
        (rows, rows_ * block / blocks_, rows_ * (block + 1) / blocks_, dgamma, dgamma + width_);
      }
    });
    add_blocks(partial, args.out<float>(1), args.out<float>(2));
  }

 private:
  void add_blocks(const float* partial, float* dgamma, float* dbeta) const {
    parallel_for(width_, std::max<int64_t>(1, 16384 / blocks_), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double gamma_sum = 0, beta_sum = 0;
        for (int64_t block = 0; block < blocks_; ++block) {
          gamma_sum += static_cast<double>(partial[block * 2 * width_ + i]);
          beta_sum += static_cast<double>(partial[(block * 2 + 1) * width_ + i]);
        }
        dgamma[i] = static_cast<float>(gamma_sum);
        dbeta[i] = static_cast<float>(beta_sum);
      }
    });
  }

  int64_t width_, rows_, blocks_ = 1;
};

Support supports(const KernelQuery& q) {
  for (const TensorType* type : q.context.inputs) {
    if (type == nullptr) continue;
    if (type->dtype != DType::kF32) return Support::no(cat("dtype ", type->dtype, " is not f32"));
    if (!type->format.is_contiguous()) return Support::no(cat("format ", type->format, " is not contiguous"));
    if (type->elements() == 0) return Support::no("an input has no elements");
  }
  return Support::yes();
}

template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<T>(q);
}

const std::array<Kernel, 2> kKernels{
    {{"layer_norm", "rows", supports, prepare<Forward>}, {"layer_norm_backward", "rows", supports, prepare<Backward>}}};

}  // namespace
}  // namespace layernorm

std::span<const Kernel> cpu_layer_norm() { return layernorm::kKernels; }

}  // namespace galley
#endif  // HWY_ONCE
