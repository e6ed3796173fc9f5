// Layer normalisation: rows of contiguous values, each normalised while it is in the cache. Sums run in 32 float lanes over fixed runs that
// are added in double; gradients of gamma and beta over fixed blocks of rows: the bits do not depend on the threads.

#include <algorithm>
#include <array>
#include <cmath>

#include "libcore/backends/cpu/table.h"
#include "libcore/backends/cpu/vector_math.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/norm.h"

namespace galley {
namespace {

constexpr int64_t kLanes = 32;
constexpr int64_t kRun = 64 * kLanes;

/// Sum over a row of value(i), which the compiler sees.
template <class Value>
GALLEY_INLINE double sum_over(int64_t count, Value value) {
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kRun) {
    const int64_t end = begin + kRun < count ? begin + kRun : count;
    float lanes[kLanes] = {};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (int64_t l = 0; l < kLanes; ++l) lanes[l] += value(i + l);
    }
    for (int64_t l = 0; i + l < end; ++l) lanes[l] += value(i + l);
    for (int64_t l = 0; l < kLanes; ++l) total += static_cast<double>(lanes[l]);
  }
  return total;
}

GALLEY_CLONES double sum_of(const float* x, int64_t count) {
  return sum_over(count, [=](int64_t i) { return x[i]; });
}
GALLEY_CLONES double squares_about(const float* x, int64_t count, float mean) {
  return sum_over(count, [=](int64_t i) { return (x[i] - mean) * (x[i] - mean); });
}
GALLEY_CLONES double scaled_sum(const float* grad, const float* gamma, int64_t count) {
  if (gamma == nullptr) return sum_over(count, [=](int64_t i) { return grad[i]; });
  return sum_over(count, [=](int64_t i) { return grad[i] * gamma[i]; });
}
GALLEY_CLONES double scaled_dot(const float* grad, const float* gamma, const float* x, float mean, int64_t count) {
  if (gamma == nullptr) return sum_over(count, [=](int64_t i) { return grad[i] * (x[i] - mean); });
  return sum_over(count, [=](int64_t i) { return grad[i] * gamma[i] * (x[i] - mean); });
}

GALLEY_CLONES void normalise(const float* x, const float* gamma, const float* beta, float* y, int64_t count, float mean, float rstd) {
  if (gamma != nullptr && beta != nullptr) {
    GALLEY_ELEMENTWISE
    for (int64_t i = 0; i < count; ++i) y[i] = (x[i] - mean) * rstd * gamma[i] + beta[i];
  } else {
    GALLEY_ELEMENTWISE
    for (int64_t i = 0; i < count; ++i) y[i] = (x[i] - mean) * rstd;
    if (gamma != nullptr) {
      for (int64_t i = 0; i < count; ++i) y[i] *= gamma[i];
    }
    if (beta != nullptr) {
      for (int64_t i = 0; i < count; ++i) y[i] += beta[i];
    }
  }
}

/// dx = scale d + slope (x - mean) + offset with d = gamma grad.
GALLEY_CLONES void row_gradient(const float* grad, const float* x, const float* gamma, float* dx, int64_t count, float mean, float scale,
                                float slope, float offset) {
  if (gamma != nullptr) {
    GALLEY_ELEMENTWISE
    for (int64_t i = 0; i < count; ++i) dx[i] = scale * (grad[i] * gamma[i]) + slope * (x[i] - mean) + offset;
  } else {
    GALLEY_ELEMENTWISE
    for (int64_t i = 0; i < count; ++i) dx[i] = scale * grad[i] + slope * (x[i] - mean) + offset;
  }
}

GALLEY_CLONES void add_parameter_gradients(const float* grad, const float* x, int64_t count, float mean, float rstd, float* dgamma,
                                           float* dbeta) {
  for (int64_t i = 0; i < count; ++i) {
    dgamma[i] += grad[i] * ((x[i] - mean) * rstd);
    dbeta[i] += grad[i];
  }
}

int64_t row_grain(int64_t width) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width)); }

class LayerNormForward : public PreparedKernel {
 public:
  explicit LayerNormForward(const KernelQuery& q)
      : rows_(q.out(1).elements()), width_(q.in(0).elements() / rows_), eps_(q.attrs<LayerNormAttrs>().eps) {}
  void run(Stream&, const KernelArgs& args) const override {
    parallel_for(rows_, row_grain(width_), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* x = args.in<float>(0) + r * width_;
        const auto count = static_cast<double>(width_);
        const auto mean = static_cast<float>(sum_of(x, width_) / count);
        const auto rstd = static_cast<float>(1 / std::sqrt(squares_about(x, width_, mean) / count + eps_));
        args.out<float>(1)[r] = mean;
        args.out<float>(2)[r] = rstd;
        normalise(x, args.in<float>(1), args.in<float>(2), args.out<float>(0) + r * width_, width_, mean, rstd);
      }
    });
  }

 private:
  int64_t rows_, width_;
  double eps_;
};

class LayerNormBackward : public PreparedKernel {
 public:
  explicit LayerNormBackward(const KernelQuery& q) : width_(q.out(1).elements()), rows_(q.in(1).elements() / width_) {
    // About 16 Ki values a block; their partial sums stay below 16 MiB.
    const int64_t most = std::clamp<int64_t>((int64_t{1} << 21) / width_, 1, 64);
    blocks_ = std::clamp<int64_t>(rows_ * width_ / 16384, 1, std::min(most, rows_));
  }
  int64_t scratch_bytes() const override { return blocks_ * 2 * width_ * 4; }
  void run(Stream&, const KernelArgs& args) const override {
    const float *grad = args.in<float>(0), *x = args.in<float>(1), *mean = args.in<float>(2), *rstd = args.in<float>(3),
                *gamma = args.in<float>(4);
    auto* partial = static_cast<float*>(args.scratch);
    const auto count = static_cast<double>(width_);
    parallel_for(blocks_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        float* dgamma = partial + block * 2 * width_;
        std::fill(dgamma, dgamma + 2 * width_, 0.0f);
        for (int64_t r = rows_ * block / blocks_; r < rows_ * (block + 1) / blocks_; ++r) {
          const float *g = grad + r * width_, *in = x + r * width_;
          const double s = static_cast<double>(rstd[r]), sum = scaled_sum(g, gamma, width_),
                       dot = scaled_dot(g, gamma, in, mean[r], width_) * s;
          add_parameter_gradients(g, in, width_, mean[r], rstd[r], dgamma, dgamma + width_);
          // Last: dx may lie where the gradient did.
          row_gradient(g, in, gamma, args.out<float>(0) + r * width_, width_, mean[r], rstd[r], static_cast<float>(-s * s * dot / count),
                       static_cast<float>(-s * sum / count));
        }
      }
    });
    parallel_for(width_, std::max<int64_t>(1, 16384 / blocks_), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double dgamma = 0, dbeta = 0;
        for (int64_t block = 0; block < blocks_; ++block) {
          dgamma += static_cast<double>(partial[block * 2 * width_ + i]);
          dbeta += static_cast<double>(partial[(block * 2 + 1) * width_ + i]);
        }
        args.out<float>(1)[i] = static_cast<float>(dgamma);
        args.out<float>(2)[i] = static_cast<float>(dbeta);
      }
    });
  }

 private:
  int64_t width_, rows_, blocks_ = 1;
};

Support supports(const KernelQuery& q) {
  for (const TensorType* type : q.context.inputs) {
    if (type == nullptr) continue;
    if (type->dtype != DType::kF32) return Support::no(cat("dtype ", type->dtype));
    if (!type->format.is_contiguous()) return Support::no(cat("format ", type->format));
    if (type->elements() == 0) return Support::no("empty array");
  }
  return Support::yes();
}

template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<T>(q);
}

const std::array<Kernel, 2> kKernels{
    {{"layer_norm", "cpu", supports, prepare<LayerNormForward>}, {"layer_norm_backward", "cpu", supports, prepare<LayerNormBackward>}}};

}  // namespace

std::span<const Kernel> cpu_layer_norm() { return kKernels; }

}  // namespace galley
