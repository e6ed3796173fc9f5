// 1x1 convolutions of stride 1 and their input gradients in f32 on channels_last images, of so few channels on one side that the library's blocks of
// channels are mostly empty: rows of pixels times a matrix that is packed once, in panels the last of which may overlap the one before.

#include <algorithm>

#include "libcore/base/parallel.h"
#include "libcore/kernels/cpu/pointwise.h"
#include "libcore/kernels/cpu/table.h"
#include "libcore/ops/conv.h"

namespace galley {
namespace {

constexpr int64_t kTaskRows = 768;
constexpr int64_t kMostProducts = 98304;  // of channels: the matrix, with rows of both sides, stays in the second-level cache
constexpr int64_t kLeastPixels = 1024;    // that packing is little beside

template <PointwiseProduct::Of kOf>
class Pointwise : public PreparedKernel {
 public:
  explicit Pointwise(const KernelQuery& q)
      : residual_(kOf == PointwiseProduct::Of::kInputGradient && q.has(2)),
        product_(kOf, q.in(1), residual_ ? PointwiseProduct::Into::kAdd : PointwiseProduct::Into::kWrite), from_(q.in(0).shape[1]), to_(q.out(0).shape[1]), pixels_(q.in(0).elements() / from_) {}
  int64_t scratch_bytes() const override { return product_.scratch_floats() * 4; }
  void run(const KernelArgs& args) const override {
    auto* packed = static_cast<float*>(args.scratch);
    product_.pack(args.in<float>(1), nullptr, packed);
    const float* from = args.in<float>(0);
    const float* residual = residual_ ? args.in<float>(2) : nullptr;
    float* to = args.out<float>(0);
    parallel_for(pixels_, kTaskRows, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; row += kTaskRows) {
        const int64_t rows = std::min(kTaskRows, end - row);
        if (residual != nullptr && residual != to) std::copy_n(residual + row * to_, rows * to_, to + row * to_);
        product_.run(from + row * from_, from_, rows, packed, to + row * to_);
      }
    });
  }

 private:
  bool residual_;
  PointwiseProduct product_;
  int64_t from_, to_, pixels_;
};

Support supports(const KernelQuery& q, const Conv2dWindow& window) {
  constexpr std::array<int64_t, 2> kOne{1, 1}, kZero{0, 0};
  const Shape& w = q.in(1).shape;
  if (w[2] * w[3] != 1 || pair(window.stride) != kOne || pair(window.padding) != kZero || window.groups != 1) return Support::no("not a plain 1x1 kernel");
  for (const TensorType* type : {&q.in(0), &q.in(1), &q.out(0)}) {
    if (type->dtype != DType::kF32) return Support::no(cat("dtype ", type->dtype));
    if (type->elements() == 0) return Support::no("empty array");
  }
  for (const TensorType* type : {&q.in(0), &q.out(0)}) {
    if (!type->format.is_channels_last()) return Support::no(cat("format ", type->format));
  }
  // Measured against the library's kernels (docs/performance.md).
  if (w[0] * w[1] > kMostProducts) return Support::no(cat(w[0], " channels of ", w[1], ": worth the library's blocks"));
  if (q.in(0).elements() / q.in(0).shape[1] < kLeastPixels) return Support::no("few pixels");
  return Support::yes();
}
Support supports_forward(const KernelQuery& q) {
  const auto& a = q.attrs<Conv2dAttrs>();
  if (q.has(2) || q.has(3) || a.activation != Activation::kNone) return Support::no("a bias, residual or activation");
  return supports(q, a);
}
Support supports_backward(const KernelQuery& q) {
  if (q.has(2) && (q.in(2).dtype != DType::kF32 || !(q.in(2).format == q.out(0).format))) return Support::no("residual in another format");
  return supports(q, q.attrs<Conv2dBackwardDataAttrs>());
}

template <PointwiseProduct::Of kOf>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<Pointwise<kOf>>(q);
}

constexpr std::array<Kernel, 2> kKernels{{{"conv2d", "cpu_pointwise", supports_forward, prepare<PointwiseProduct::Of::kOutput>},
                                          {"conv2d_backward_data", "cpu_pointwise", supports_backward, prepare<PointwiseProduct::Of::kInputGradient>}}};

}  // namespace

std::span<const Kernel> cpu_pointwise_conv() { return kKernels; }

}  // namespace galley
