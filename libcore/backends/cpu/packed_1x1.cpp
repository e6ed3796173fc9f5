// 1x1 convolutions of stride 1 and their input gradients in f32 on channels_last images, with weights small enough for the second-level
// cache. The image is a matrix [pixels][channels], so the convolution is one matrix product.
//
// The weight is packed once a run into panels [panel][depth][16] (packed_product.h); the last panel may overlap the one before it, so that
// all are full. Rows of pixels are read where they are, a block at a time, and the rows to come are prefetched. 2 pixels inputs outputs
// operations. With few channels memory bounds it. The packing follows Goto and van de Geijn, "Anatomy of High-Performance Matrix
// Multiplication" (2008), without packing the left operand.

#include <algorithm>

#include "libcore/backends/cpu/activate.h"
#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/conv_thresholds.h"
#include "libcore/backends/cpu/pointwise.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/conv.h"

namespace galley {
namespace {

constexpr int64_t kTaskRows = conv_threshold::kPacked1x1TaskRows.value, kBlockRows = conv_threshold::kPacked1x1BlockRows.value;

class Forward : public PreparedKernel {
 public:
  explicit Forward(const KernelQuery& q)
      : product_(PointwiseProduct::Of::kOutput, q.in(1)),
        activation_(q.attrs<Conv2dAttrs>().activation),
        from_(q.in(0).shape[1]),
        to_(q.out(0).shape[1]),
        pixels_(q.in(0).elements() / from_) {}
  int64_t scratch_bytes() const override { return product_.scratch_floats() * 4; }
  void run(Stream&, const KernelArgs& args) const override {
    auto* packed = static_cast<float*>(args.scratch);
    product_.pack(args.in<float>(1), nullptr, args.in<float>(2), packed);
    const float *x = args.in<float>(0), *residual = args.in<float>(3);
    parallel_ranges(pixels_, kTaskRows, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; row += kBlockRows) {
        const int64_t rows = std::min(kBlockRows, end - row);
        float* y = args.out<float>(0) + row * to_;
        product_.run(x + row * from_, from_, rows, packed, y);
        if (residual != nullptr) add_rows(residual + row * to_, to_, rows, to_, y);
        if (activation_ != Activation::kNone) activate(activation_, y, rows * to_);
      }
    });
  }

 private:
  PointwiseProduct product_;
  Activation activation_;
  int64_t from_, to_, pixels_;
};

class InputGradient : public PreparedKernel {
 public:
  explicit InputGradient(const KernelQuery& q)
      : product_(PointwiseProduct::Of::kInputGradient, q.in(1), q.has(2) ? PointwiseProduct::Into::kAdd : PointwiseProduct::Into::kWrite),
        from_(q.in(0).shape[1]),
        to_(q.out(0).shape[1]),
        pixels_(q.in(0).elements() / from_) {}
  int64_t scratch_bytes() const override { return product_.scratch_floats() * 4; }
  void run(Stream&, const KernelArgs& args) const override {
    auto* packed = static_cast<float*>(args.scratch);
    product_.pack(args.in<float>(1), nullptr, nullptr, packed);
    const float *grad = args.in<float>(0), *residual = args.in<float>(2);
    float* dx = args.out<float>(0);
    parallel_ranges(pixels_, kTaskRows, [&](int64_t begin, int64_t end) {
      if (residual != nullptr && residual != dx) std::copy_n(residual + begin * to_, (end - begin) * to_, dx + begin * to_);
      product_.run(grad + begin * from_, from_, end - begin, packed, dx + begin * to_);
    });
  }

 private:
  PointwiseProduct product_;
  int64_t from_, to_, pixels_;
};

/// `residual`: the input that is one.
Support supports(const KernelQuery& q, const Conv2dWindow& window, int residual) {
  constexpr std::array<int64_t, 2> kOne{1, 1}, kZero{0, 0};
  const Shape& w = q.in(1).shape;
  if (w[2] * w[3] != 1 || pair(window.stride) != kOne || pair(window.padding) != kZero || window.groups != 1)
    return Support::no("not a plain 1x1 kernel");
  for (const TensorType* type : {&q.in(0), &q.in(1), &q.out(0)}) {
    if (type->dtype != DType::kF32) return Support::no(cat("dtype ", type->dtype));
    if (type->elements() == 0) return Support::no("empty array");
  }
  for (const TensorType* type : {&q.in(0), &q.out(0), &q.in(q.has(residual) ? residual : 0)}) {
    if (type->dtype != DType::kF32 || !type->format.is_channels_last()) return Support::no(cat(type->dtype, " in format ", type->format));
  }
  if (w[0] * w[1] > conv_threshold::kPacked1x1Weight.value)
    return Support::no(cat(w[0], " channels of ", w[1], ": worth the library's blocks"));
  if (q.in(0).elements() / q.in(0).shape[1] < conv_threshold::kPacked1x1Pixels.value) return Support::no("few pixels");
  return Support::yes();
}
Support supports_forward(const KernelQuery& q) {
  if (q.has(2) && q.in(2).dtype != DType::kF32) return Support::no("bias dtype");
  // The library applies it to what its registers hold, but reads a residual slowly.
  if (q.attrs<Conv2dAttrs>().activation != Activation::kNone && !q.has(3))
    return Support::no("an activation alone: the library's is faster");
  return supports(q, q.attrs<Conv2dAttrs>(), 3);
}
Support supports_backward(const KernelQuery& q) { return supports(q, q.attrs<Conv2dBackwardDataAttrs>(), 2); }

}  // namespace

const Algorithm algorithm::kPacked1x1{supports_forward, prepare_as<Forward>};
const Algorithm algorithm::kPacked1x1Data{supports_backward, prepare_as<InputGradient>};

}  // namespace galley
