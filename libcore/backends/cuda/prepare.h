#pragma once
// What the files that prepare kernels share.

#include <memory>
#include <string>

#include "libcore/backends/cuda/kernels.h"
#include "libcore/backends/cuda/kernels/calls.h"
#include "libcore/backends/cuda/table.h"
#include "libcore/base/error.h"

namespace galley {

inline device::Type type_of(DType dtype) {
  static_assert(device::kF32 == static_cast<int>(DType::kF32) && device::kBF16 == static_cast<int>(DType::kBF16) &&
                device::kBool == static_cast<int>(DType::kBool));
  GALLEY_ASSERT(dtype <= DType::kBool, "no kernel but those of f8.h reads ", dtype_name(dtype));
  return static_cast<device::Type>(dtype);
}
inline device::Type type_of(const TensorType& type) { return type_of(type.dtype); }

/// Kernel::prepare for a class with a constructor that takes a query.
template <class K>
std::unique_ptr<PreparedKernel> prepare_cuda(const KernelQuery& query) {
  return std::make_unique<K>(query);
}

/// The GPU on which the kernel of a node would run.
inline CudaDevice& gpu_of(const KernelQuery& query) {
  GALLEY_ASSERT(query.device != nullptr && !query.device->is_host(), "a query of no GPU");
  return static_cast<CudaDevice&>(*query.device);
}

/// No kernel of this back end reads or writes blocked formats.
inline Support no_blocked_formats(const KernelQuery& query) {
  for (const TensorType* type : query.context.inputs)
    if (type != nullptr && type->format.is_blocked()) return Support::no("a blocked format");
  for (const TensorType* type : query.context.outputs)
    if (type != nullptr && type->format.is_blocked()) return Support::no("a blocked format");
  return Support::yes();
}

/// For kernels that take elements in their logical order.
inline Support only_contiguous(const KernelQuery& query) {
  for (const auto* types : {&query.context.inputs, &query.context.outputs}) {
    for (const TensorType* type : *types)
      if (type != nullptr && !type->format.is_contiguous()) return Support::no(cat("format ", type->format));
  }
  return Support::yes();
}

/// For kernels that divide by 1 <= value <= 2^31 (kernels/divide.h).
inline device::Divisor divisor(int64_t value) {
  uint32_t shift = 0;
  while ((int64_t{1} << shift) < value) ++shift;
  return {static_cast<uint32_t>(value), static_cast<uint32_t>((((int64_t{1} << shift) - value) << 32) / value + 1), shift};
}

/// Whether packs (kernels/packs.h) of arrays may be read; null: of none.
template <class... P>
bool have_packs(const P*... arrays) {
  return ((reinterpret_cast<uintptr_t>(arrays) % 16 == 0) && ...);
}

/// How many packs have so many elements, the last of which may have fewer.
inline int64_t packs_of(int64_t elements) { return (elements + 7) / 8; }

/// Enqueues a kernel whose threads share so many elements.
template <class Call>
void launch_elements(Stream& stream, const char* kernel, int64_t elements, const Call& call) {
  cuda_launch(stream, kernel, cuda_blocks(stream, elements), call);
}

}  // namespace galley
