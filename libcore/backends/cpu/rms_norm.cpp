// Root mean square normalization of rows, in f32 or bf16 storage; statistics and sums are f32 and double. A row is read for its sum, then
// again from the first-level cache. Gradients of the weight are summed over fixed blocks of rows, which are added in order: the bits do not
// depend on the threads. Bound by memory.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/rms_norm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/bfloat16-inl.h"

#ifndef GALLEY_RMS_NORM_ONCE
#define GALLEY_RMS_NORM_ONCE

#include <algorithm>
#include <array>
#include <cmath>

#include "libcore/backends/cpu/table.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/rms_norm.h"

namespace galley::rms {

/// Rows of `width` values. The weight may be absent.
template <class T>
struct Rows {
  const T *x, *grad;
  const float* weight;
  T* out;             // y or dx
  float* rstd_out;    // forward
  const float* rstd;  // backward
  float* dweight;     // of this block of rows, or nullptr
  int64_t rows, width;
  float offset;
  double eps;
};

}  // namespace galley::rms

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::rms {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if !GALLEY_WIDE_TARGET
// Never called: supports.
template <class T>
void forward(const Rows<T>&) {}
template <class T>
void backward(const Rows<T>&) {}
#else

using galley::HWY_NAMESPACE::load_floats;
using galley::HWY_NAMESPACE::store_floats;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(D()));

/// Sum over i of value(i, vector), and of scalar(i) for what is left.
template <class Vector, class Scalar>
HWY_INLINE double sum_over(int64_t width, const Vector& vector, const Scalar& scalar) {
  const D d;
  V first = hn::Zero(d), second = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * kLanes <= width; i += 2 * kLanes) {
    first = hn::Add(first, vector(i));
    second = hn::Add(second, vector(i + kLanes));
  }
  if (i + kLanes <= width) {
    first = hn::Add(first, vector(i));
    i += kLanes;
  }
  double total = static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(first, second))));
  for (; i < width; ++i) total += static_cast<double>(scalar(i));
  return total;
}

template <class T>
void forward(const Rows<T>& r) {
  const D d;
  const V offset = hn::Set(d, r.offset);
  for (int64_t row = 0; row < r.rows; ++row) {
    const T* x = r.x + row * r.width;
    T* y = r.out + row * r.width;
    const double squares = sum_over(
        r.width,
        [&](int64_t i) HWY_ATTR {
          const V v = load_floats(d, x + i);
          return hn::Mul(v, v);
        },
        [&](int64_t i) { return static_cast<float>(x[i]) * static_cast<float>(x[i]); });
    const auto rstd = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(r.width) + r.eps));
    r.rstd_out[row] = rstd;
    const V factor = hn::Set(d, rstd);
    int64_t i = 0;
    for (; i + kLanes <= r.width; i += kLanes) {
      V v = hn::Mul(load_floats(d, x + i), factor);
      if (r.weight != nullptr) v = hn::Mul(v, hn::Add(hn::LoadU(d, r.weight + i), offset));
      store_floats(v, d, y + i);
    }
    for (; i < r.width; ++i) {
      const float v = static_cast<float>(x[i]) * rstd;
      y[i] = r.weight != nullptr ? v * (r.weight[i] + r.offset) : v;
    }
  }
}

/// dx = rstd d - x rstd^3 mean(d x), d = grad (offset + weight); dweight += grad x rstd.
template <class T>
void backward(const Rows<T>& r) {
  const D d;
  const V offset = hn::Set(d, r.offset);
  const auto weighted = [&](V grad, int64_t i)
                            HWY_ATTR { return r.weight != nullptr ? hn::Mul(grad, hn::Add(hn::LoadU(d, r.weight + i), offset)) : grad; };
  const auto weighted_one = [&](float grad, int64_t i) { return r.weight != nullptr ? grad * (r.weight[i] + r.offset) : grad; };
  for (int64_t row = 0; row < r.rows; ++row) {
    const T *x = r.x + row * r.width, *grad = r.grad + row * r.width;
    T* dx = r.out + row * r.width;
    const double dot = sum_over(
        r.width, [&](int64_t i) HWY_ATTR { return hn::Mul(weighted(load_floats(d, grad + i), i), load_floats(d, x + i)); },
        [&](int64_t i) { return weighted_one(static_cast<float>(grad[i]), i) * static_cast<float>(x[i]); });
    const float rstd = r.rstd[row];
    const auto back = static_cast<float>(static_cast<double>(rstd) * static_cast<double>(rstd) * static_cast<double>(rstd) * dot /
                                         static_cast<double>(r.width));
    const V scale = hn::Set(d, rstd), slope = hn::Set(d, back);
    int64_t i = 0;
    for (; i + kLanes <= r.width; i += kLanes) {
      const V g = load_floats(d, grad + i), v = load_floats(d, x + i);
      if (r.dweight != nullptr) hn::StoreU(hn::MulAdd(g, hn::Mul(v, scale), hn::LoadU(d, r.dweight + i)), d, r.dweight + i);
      store_floats(hn::NegMulAdd(v, slope, hn::Mul(scale, weighted(g, i))), d, dx + i);  // last: dx may have the memory of grad
    }
    for (; i < r.width; ++i) {
      const float g = static_cast<float>(grad[i]), v = static_cast<float>(x[i]);
      if (r.dweight != nullptr) r.dweight[i] += g * (v * rstd);
      dx[i] = rstd * weighted_one(g, i) - v * back;
    }
  }
}

#endif

void forward_floats(const Rows<float>& r) { forward(r); }
void forward_bfloats(const Rows<BFloat16>& r) { forward(r); }
void backward_floats(const Rows<float>& r) { backward(r); }
void backward_bfloats(const Rows<BFloat16>& r) { backward(r); }

}  // namespace HWY_NAMESPACE
}  // namespace galley::rms
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley {
namespace rms {
HWY_EXPORT(forward_floats);
HWY_EXPORT(forward_bfloats);
HWY_EXPORT(backward_floats);
HWY_EXPORT(backward_bfloats);

void run_forward(const Rows<float>& r) { HWY_DYNAMIC_DISPATCH(forward_floats)(r); }
void run_forward(const Rows<BFloat16>& r) { HWY_DYNAMIC_DISPATCH(forward_bfloats)(r); }
void run_backward(const Rows<float>& r) { HWY_DYNAMIC_DISPATCH(backward_floats)(r); }
void run_backward(const Rows<BFloat16>& r) { HWY_DYNAMIC_DISPATCH(backward_bfloats)(r); }
}  // namespace rms

namespace {

constexpr int64_t kGrain = 16384;  // values that are worth a second thread

template <class T>
class RmsNormForward : public PreparedKernel {
 public:
  explicit RmsNormForward(const KernelQuery& q)
      : width_(q.in(0).shape[-1]), rows_(q.in(0).elements() / width_), attrs_(q.attrs<RmsNormAttrs>()) {}
  void run(Stream&, const KernelArgs& args) const override {
    parallel_for(rows_, std::max<int64_t>(1, kGrain / width_), [&](int64_t begin, int64_t end) {
      rms::run_forward(rms::Rows<T>{args.in<T>(0) + begin * width_, nullptr, args.in<float>(1), args.out<T>(0) + begin * width_,
                                    args.out<float>(1) + begin, nullptr, nullptr, end - begin, width_, static_cast<float>(attrs_.offset),
                                    attrs_.eps});
    });
  }

 private:
  int64_t width_, rows_;
  RmsNormAttrs attrs_;
};

template <class T>
class RmsNormBackward : public PreparedKernel {
 public:
  explicit RmsNormBackward(const KernelQuery& q)
      : width_(q.in(1).shape[-1]), rows_(q.in(1).elements() / width_), offset_(static_cast<float>(q.attrs<RmsNormAttrs>().offset)) {
    // About 16 Ki values per block; at most 64 blocks.
    blocks_ = std::clamp<int64_t>(rows_ * width_ / kGrain, 1, std::min<int64_t>(64, rows_));
  }
  int64_t scratch_bytes() const override { return blocks_ * width_ * 4; }
  void run(Stream&, const KernelArgs& args) const override {
    auto* partial = static_cast<float*>(args.scratch);
    parallel_for(blocks_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = rows_ * block / blocks_, last = rows_ * (block + 1) / blocks_;
        float* dweight = partial + block * width_;
        std::fill_n(dweight, width_, 0.0f);
        rms::run_backward(rms::Rows<T>{args.in<T>(1) + first * width_, args.in<T>(0) + first * width_, args.in<float>(3),
                                       args.out<T>(0) + first * width_, nullptr, args.in<float>(2) + first, dweight, last - first, width_,
                                       offset_, 0});
      }
    });
    parallel_for(width_, std::max<int64_t>(1, kGrain / blocks_), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double sum = 0;
        for (int64_t block = 0; block < blocks_; ++block) sum += static_cast<double>(partial[block * width_ + i]);
        args.out<float>(1)[i] = static_cast<float>(sum);
      }
    });
  }

 private:
  int64_t width_, rows_, blocks_ = 1;
  float offset_;
};

Support supports(const KernelQuery& q) {
  if ((hwy::SupportedTargets() & (HWY_AVX3 | HWY_AVX2)) == 0) return Support::no("vectors of 8 floats are missing");
  const DType dtype = q.in(0).dtype;
  if (dtype != DType::kF32 && dtype != DType::kBF16) return Support::no(cat("dtype ", dtype));
  for (const auto* types : {&q.context.inputs, &q.context.outputs}) {
    for (const TensorType* type : *types) {
      if (type == nullptr) continue;
      if (type->dtype != DType::kF32 && type->dtype != dtype) return Support::no(cat("dtype ", type->dtype));
      if (!type->format.is_contiguous()) return Support::no(cat("format ", type->format));
      if (type->elements() == 0) return Support::no("empty array");
    }
  }
  return Support::yes();
}

Support supports_forward(const KernelQuery& q) {
  if (q.has(1) && q.in(1).dtype != DType::kF32) return Support::no(cat("weight of dtype ", q.in(1).dtype));
  return supports(q);
}
Support supports_backward(const KernelQuery& q) {
  if (q.has(3) && q.in(3).dtype != DType::kF32) return Support::no(cat("weight of dtype ", q.in(3).dtype));
  return supports(q);
}

template <template <class> class Run>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  if (q.in(0).dtype == DType::kBF16) return std::make_unique<Run<BFloat16>>(q);
  return std::make_unique<Run<float>>(q);
}

const std::array<Kernel, 2> kKernels{{{"rms_norm", "rows", supports_forward, prepare<RmsNormForward>},
                                      {"rms_norm_backward", "rows", supports_backward, prepare<RmsNormBackward>}}};

}  // namespace

std::span<const Kernel> cpu_rms_norm() { return kKernels; }

}  // namespace galley

#endif  // HWY_ONCE
