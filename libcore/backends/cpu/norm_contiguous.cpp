// Batch normalization on contiguous arrays of rank 3 to 5: statistics of each sample's plane, combined over the samples in their order,
// then an affine map of each plane. Training reads x twice and writes y; bound by memory. The bits do not depend on the threads.
// (channels_last and rank 2: norm.cpp.)

#include <algorithm>
#include <cmath>

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/planes.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/norm.h"

namespace galley {
namespace {

struct Planes {
  explicit Planes(const Shape& x) : batch(x[0]), channels(x[1]), size(x.elements() / (x[0] * x[1])) {}
  int64_t batch, channels, size;
  int64_t count() const { return batch * channels; }
  int64_t grain() const { return std::max<int64_t>(1, 16384 / size); }
};

double value_or(const float* values, int64_t i, double otherwise) { return values != nullptr ? static_cast<double>(values[i]) : otherwise; }

class BatchNormForward : public PreparedKernel {
 public:
  explicit BatchNormForward(const KernelQuery& q)
      : planes_(q.in(0).shape), eps_(q.attrs<BatchNormAttrs>().eps), activation_(q.attrs<BatchNormAttrs>().activation) {}
  int64_t scratch_bytes() const override { return planes_.count() * static_cast<int64_t>(sizeof(Moments)) + planes_.channels * 8; }
  void run(Stream&, const KernelArgs& args) const override {
    const Planes p = planes_;
    auto* moments = static_cast<Moments*>(args.scratch);
    auto* scale = reinterpret_cast<float*>(moments + p.count());
    float* shift = scale + p.channels;
    const float* x = args.in<float>(0);
    parallel_for(p.count(), p.grain(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) moments[i] = plane_moments(x + i * p.size, p.size);
    });
    for (int64_t c = 0; c < p.channels; ++c) {
      Moments total;
      for (int64_t n = 0; n < p.batch; ++n) total.add(moments[n * p.channels + c]);
      const double var = total.m2 / total.count, s = value_or(args.in<float>(1), c, 1) / std::sqrt(var + eps_);
      args.out<float>(1)[c] = static_cast<float>(total.mean);
      args.out<float>(2)[c] = static_cast<float>(var);
      scale[c] = static_cast<float>(s);
      shift[c] = static_cast<float>(value_or(args.in<float>(2), c, 0) - total.mean * s);
    }
    const float* residual = args.in<float>(3);
    parallel_for(p.count(), p.grain(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t c = i % p.channels, at = i * p.size;
        plane_affine(x + at, residual != nullptr ? residual + at : nullptr, args.out<float>(0) + at, p.size, scale[c], shift[c],
                     activation_);
      }
    });
  }

 private:
  Planes planes_;
  double eps_;
  Activation activation_;
};

class BatchNormBackward : public PreparedKernel {
 public:
  explicit BatchNormBackward(const KernelQuery& q)
      : planes_(q.in(1).shape),
        eps_(q.attrs<BatchNormBackwardAttrs>().eps),
        activation_(q.attrs<BatchNormBackwardAttrs>().activation),
        residual_(q.attrs<BatchNormBackwardAttrs>().residual) {}
  int64_t scratch_bytes() const override {
    return planes_.count() * static_cast<int64_t>(sizeof(GradientSums)) + planes_.channels * static_cast<int64_t>(sizeof(GradientMap));
  }
  void run(Stream&, const KernelArgs& args) const override {
    const Planes p = planes_;
    const auto rstd_of = [&](int64_t c) { return 1 / std::sqrt(static_cast<double>(args.in<float>(3)[c]) + eps_); };
    auto* sums = static_cast<GradientSums*>(args.scratch);
    auto* maps = reinterpret_cast<GradientMap*>(sums + p.count());
    const float *grad = args.in<float>(0), *x = args.in<float>(1), *mean = args.in<float>(2), *y = args.in<float>(6);
    const auto through = [&](int64_t i) {
      const int64_t c = i % p.channels;
      const double scale = value_or(args.in<float>(4), c, 1) * rstd_of(c),
                   shift = value_or(args.in<float>(5), c, 0) - static_cast<double>(mean[c]) * scale;
      return Through{activation_, y != nullptr ? y + i * p.size : nullptr, static_cast<float>(scale), static_cast<float>(shift)};
    };
    parallel_for(p.count(), p.grain(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = i * p.size;
        sums[i] = plane_gradient_sums(grad + at, x + at, p.size, mean[i % p.channels], through(i));
      }
    });
    const auto count = static_cast<double>(p.batch * p.size);
    for (int64_t c = 0; c < p.channels; ++c) {
      GradientSums total;
      for (int64_t n = 0; n < p.batch; ++n) {
        total.sum += sums[n * p.channels + c].sum;
        total.dot += sums[n * p.channels + c].dot;
      }
      const double rstd = rstd_of(c), a = value_or(args.in<float>(4), c, 1) * rstd;
      args.out<float>(1)[c] = static_cast<float>(total.dot * rstd);
      args.out<float>(2)[c] = static_cast<float>(total.sum);
      maps[c] = {mean[c], static_cast<float>(a), static_cast<float>(-a * rstd * rstd * total.dot / count),
                 static_cast<float>(-a * total.sum / count)};
    }
    float* dresidual = residual_ ? args.out<float>(3) : nullptr;
    parallel_for(p.count(), p.grain(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = i * p.size;
        plane_gradient(grad + at, x + at, args.out<float>(0) + at, dresidual != nullptr ? dresidual + at : nullptr, p.size,
                       maps[i % p.channels], through(i));
      }
    });
  }

 private:
  Planes planes_;
  double eps_;
  Activation activation_;
  bool residual_;
};

class BatchNormInference : public PreparedKernel {
 public:
  explicit BatchNormInference(const KernelQuery& q)
      : planes_(q.in(0).shape), eps_(q.attrs<BatchNormInferenceAttrs>().eps), activation_(q.attrs<BatchNormInferenceAttrs>().activation) {}
  void run(Stream&, const KernelArgs& args) const override {
    const Planes p = planes_;
    parallel_for(p.count(), p.grain(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t c = i % p.channels, at = i * p.size;
        const double scale = value_or(args.in<float>(1), c, 1) / std::sqrt(static_cast<double>(args.in<float>(4)[c]) + eps_);
        const double shift = value_or(args.in<float>(2), c, 0) - static_cast<double>(args.in<float>(3)[c]) * scale;
        plane_affine(args.in<float>(0) + at, nullptr, args.out<float>(0) + at, p.size, static_cast<float>(scale), static_cast<float>(shift),
                     activation_);
      }
    });
  }

 private:
  Planes planes_;
  double eps_;
  Activation activation_;
};

Support supports(const KernelQuery& q) {
  for (const TensorType* type : q.context.inputs) {
    if (type == nullptr) continue;
    if (type->dtype != DType::kF32) return Support::no(cat("dtype ", type->dtype));
    if (!type->format.is_contiguous()) return Support::no(cat("format ", type->format));
    if (type->elements() == 0) return Support::no("empty array");
  }
  if (q.in(0).shape.rank() < 3) return Support::no("rank 2");
  return Support::yes();
}
Support supports_forward(const KernelQuery& q) {
  return q.attrs<BatchNormAttrs>().sync.empty() ? supports(q) : Support::no("statistics of all ranks");
}
Support supports_backward(const KernelQuery& q) {
  return q.attrs<BatchNormBackwardAttrs>().sync.empty() ? supports(q) : Support::no("statistics of all ranks");
}
Support supports_inference(const KernelQuery& q) {
  if (!batch_norm_takes(q.attrs<BatchNormInferenceAttrs>().activation)) return Support::no("this activation is not fused");
  return supports(q);
}

}  // namespace

const Algorithm algorithm::kBatchNormPlanes{supports_forward, prepare_as<BatchNormForward>};
const Algorithm algorithm::kBatchNormPlanesBackward{supports_backward, prepare_as<BatchNormBackward>};
const Algorithm algorithm::kBatchNormPlanesInference{supports_inference, prepare_as<BatchNormInference>};

}  // namespace galley
