// Pools, by the kernels of kernels/pool.h.

#include "libcore/ops/pool.h"

#include <algorithm>
#include <type_traits>

#include "libcore/backends/cuda/pool_call.h"
#include "libcore/backends/cuda/prepare.h"

namespace galley {
namespace {

using device::PoolCall;

/// Kernels count the elements of a sample in 32 bits.
Support small_samples(const KernelQuery& query) {
  for (const auto* types : {&query.context.inputs, &query.context.outputs})
    for (const TensorType* type : *types)
      if (type != nullptr && type->shape.rank() > 0 && type->elements() / std::max<int64_t>(1, type->shape[0]) >= int64_t{1} << 31)
        return Support::no("a sample of 2^31 elements");
  return Support::yes();
}
/// Maxima also of integers of 8 bits (ops/quantized.h).
Support supports_maximum(const KernelQuery& query) {
  if (const Support small = small_samples(query); !small) return small;
  const DType dtype = query.in(0).dtype;
  if ((!is_floating(dtype) || dtype == DType::kF64) && dtype != DType::kU8 && dtype != DType::kI8) return Support::no(cat("dtype ", dtype));
  return no_blocked_formats(query);
}
Support supports(const KernelQuery& query) {
  if (const Support small = small_samples(query); !small) return small;
  if (!is_floating(query.in(0).dtype) || query.in(0).dtype == DType::kF64) return Support::no(cat("dtype ", query.in(0).dtype));
  return no_blocked_formats(query);
}

Support supports_whole_images(const KernelQuery& query) {
  if (query.has(1)) return Support::no("extents");
  return supports(query);
}

/// Cells are pixels of y, backward of dx.
class Pool : public PreparedKernel {
 public:
  struct Arrays {
    const TensorType *x, *y;  // in a call
    const TensorType* index;  // or null
  };
  Pool(const char* kernel, const device::PoolCall& call, const Arrays& arrays, const TensorType& written)
      : kernel_(kernel), call_(call), samples_(written.shape[0]), element_bytes_(dtype_size(written.dtype)) {
    call_.type = type_of(*arrays.x);
    set_steps(*arrays.x, call_.x_steps);
    set_steps(*arrays.y, call_.y_steps);
    if (arrays.index != nullptr) {
      call_.index_type = type_of(*arrays.index);
      set_steps(*arrays.index, call_.index_steps);
      index_bytes_ = dtype_size(arrays.index->dtype);
    }
    call_.channels_inner = call_.x_steps[1] == 1 && call_.y_steps[1] == 1 && (arrays.index == nullptr || call_.index_steps[1] == 1);
    packs_ = call_.channels_inner != 0 && written.shape[1] % device::kPack == 0 && is_floating(written.dtype);
    if (written.shape.elements() == 0) samples_ = 0;
    for (int d = 0; d < 3; ++d) image_[d] = written.shape[d + 1];
    const int64_t largest = std::max(arrays.x->shape.elements(), arrays.y->shape.elements()) / std::max<int64_t>(1, samples_);
    samples_per_launch_ = std::max<int64_t>(1, kMostElements / std::max<int64_t>(1, largest));
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    PoolCall call = call_;
    const auto* x = static_cast<const std::byte*>(args.inputs[0]);
    auto* y = static_cast<std::byte*>(args.outputs[0]);
    auto* index = index_bytes_ == 0         ? nullptr
                  : args.outputs.size() > 1 ? args.out<std::byte>(1)
                                            : const_cast<std::byte*>(args.in<std::byte>(1));
    call.packs = packs_ && have_packs(x, y, index);
    const int64_t channels = call.packs != 0 ? image_[0] / device::kPack : image_[0];
    const int64_t sizes[] = {call.channels_inner != 0 ? channels : image_[2], call.channels_inner != 0 ? image_[2] : image_[1],
                             call.channels_inner != 0 ? image_[1] : channels};
    for (int d = 0; d < 3; ++d) call.sizes[d] = divisor(std::max<int64_t>(1, sizes[d]));
    for (int64_t first = 0; first < samples_; first += samples_per_launch_) {
      const int64_t samples = std::min(samples_per_launch_, samples_ - first);
      call.x = x + first * call.x_steps[0] * element_bytes_;
      call.y = y + first * call.y_steps[0] * element_bytes_;
      if (index != nullptr) call.index = index + first * call.index_steps[0] * index_bytes_;
      call.cells = samples * call.sizes[0].value * call.sizes[1].value * call.sizes[2].value;
      launch_elements(stream, kernel_, call.cells, call);
    }
  }

 private:
  static constexpr int64_t kMostElements = int64_t{1} << 30;
  const char* kernel_;
  PoolCall call_;
  int64_t samples_, samples_per_launch_ = 1, element_bytes_, index_bytes_ = 0;
  int64_t image_[3];  // of the images that are written
  bool packs_ = false;
};

template <class Attrs, device::Pool kKind>
std::unique_ptr<PreparedKernel> prepare_forward(const KernelQuery& query) {
  constexpr bool kMaximum = kKind == device::kMaxPool || kKind == device::kAdaptiveMaxPool;
  const PoolCall call = pool_call(query.attrs<Attrs>(), kKind, query.in(0).shape, query.out(0).shape);
  return std::make_unique<Pool>(kMaximum ? "max_pool" : "average_pool", call,
                                Pool::Arrays{&query.in(0), &query.out(0), kMaximum ? &query.out(1) : nullptr}, query.out(0));
}
template <class Attrs, device::Pool kKind>
std::unique_ptr<PreparedKernel> prepare_backward(const KernelQuery& query) {
  constexpr bool kMaximum = kKind == device::kMaxPool || kKind == device::kAdaptiveMaxPool;
  const PoolCall call = pool_call(query.attrs<Attrs>(), kKind, query.out(0).shape, query.in(0).shape);
  return std::make_unique<Pool>(kMaximum ? "max_pool_backward" : "average_pool_backward", call,
                                Pool::Arrays{&query.in(0), &query.out(0), kMaximum ? &query.in(1) : nullptr}, query.out(0));
}

constexpr Kernel kKernels[] = {
    {"max_pool2d", "windows", supports_maximum, prepare_forward<MaxPool2dAttrs, device::kMaxPool>},
    {"max_pool2d_backward", "windows", supports, prepare_backward<MaxPool2dBackwardAttrs, device::kMaxPool>},
    {"avg_pool2d", "windows", supports, prepare_forward<AvgPool2dAttrs, device::kAveragePool>},
    {"avg_pool2d_backward", "windows", supports, prepare_backward<AvgPool2dBackwardAttrs, device::kAveragePool>},
    {"adaptive_avg_pool2d", "windows", supports_whole_images, prepare_forward<AdaptiveAvgPool2dAttrs, device::kAdaptiveAveragePool>},
    {"adaptive_avg_pool2d_backward", "windows", supports, prepare_backward<AdaptiveAvgPool2dBackwardAttrs, device::kAdaptiveAveragePool>},
    {"adaptive_max_pool2d", "windows", supports_maximum, prepare_forward<AdaptiveMaxPool2dAttrs, device::kAdaptiveMaxPool>},
    {"adaptive_max_pool2d_backward", "windows", supports, prepare_backward<AdaptiveMaxPool2dBackwardAttrs, device::kAdaptiveMaxPool>},
};

}  // namespace

std::span<const Kernel> cuda_pool() { return kKernels; }

}  // namespace galley
