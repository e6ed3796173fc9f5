#pragma once
// The maps of integers of operators (ops/quantized.h) as kernels take them, and how x of a dynamic quantization becomes integers.

#include <algorithm>

#include "libcore/backends/cuda/kernels/integer_calls.h"
#include "libcore/backends/cuda/prepare.h"
#include "libcore/ops/quantized.h"

namespace galley {

inline device::IntegerMap map_of(DType dtype, double scale, int64_t zero_point, int64_t low = 0, int64_t high = 0) {
  return {.type = type_of(dtype),
          .scale = static_cast<float>(scale),
          .zero_point = static_cast<int>(zero_point),
          .low = static_cast<int>(low),
          .high = static_cast<int>(high)};
}
inline device::IntegerMap map_of(const QuantizedOutput& output) {
  return map_of(output.output_dtype, output.output_scale, output.output_zero_point, output.output_qmin, output.output_qmax);
}

/// x of a dynamic quantization as integers, with the map that its range gives, in scratch memory.
class DynamicRange {
 public:
  explicit DynamicRange(const KernelQuery& query) {
    call_.type = type_of(query.in(0));
    call_.elements = query.in(0).elements();
    call_.high = query.attrs<DynamicQuantizedLinearAttrs>().saturation == Saturation::kReduced ? 127 : 255;
    call_.parts = static_cast<int>(std::min<int64_t>(kMostParts, (call_.elements + device::kThreads - 1) / device::kThreads));
  }
  int64_t scratch_bytes() const { return (2 * kMostParts + 4) * 4 + call_.elements; }
  struct Result {
    const uint8_t* q = nullptr;
    const float* map = nullptr;  ///< Null: x is empty.
  };
  Result run(Stream& stream, const void* x, void* scratch) const {
    device::DynamicQuantizeCall call = call_;
    call.x = x;
    call.ranges = static_cast<float*>(scratch);
    call.map = call.ranges + 2 * kMostParts;
    call.q = reinterpret_cast<uint8_t*>(call.map + 4);
    if (call.elements == 0) return {call.q, nullptr};
    cuda_launch(stream, "range_parts", call.parts, call);
    launch_elements(stream, "quantize_by_range", call.elements, call);
    return {call.q, call.map};
  }

 private:
  static constexpr int64_t kMostParts = device::kThreads;
  device::DynamicQuantizeCall call_{};
};

}  // namespace galley
