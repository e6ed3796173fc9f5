#pragma once
// Sums that do not depend on their order (kernels/sampling.h: add_fixed).

#include <algorithm>

#include "libcore/backends/cuda/prepare.h"

namespace galley {

/// The scratch memory of such sums, and launches around them.
class FixedSums {
 public:
  /// Of `elements` sums.
  explicit FixedSums(int64_t elements) : elements_(elements) {}
  int64_t bytes() const { return 8 * elements_ + 4 * (kMostParts + 2); }
  unsigned long long* sums(void* scratch) const { return static_cast<unsigned long long*>(scratch); }
  float* largest(void* scratch) const { return reinterpret_cast<float*>(sums(scratch) + elements_) + kMostParts; }
  /// Sets the sums to 0, and largest[0] to the largest of these numbers.
  void begin(Stream& stream, void* scratch, const float* numbers, int64_t count) const {
    stream.fill(scratch, 0, 8 * elements_);
    find(stream, scratch, numbers, count, 0);
  }
  /// For kernels that find the largest of `count` numbers and set largest[place].
  device::FixedSumCall call_of(void* scratch, const float* numbers, int64_t count, int place) const {
    return {.from = numbers,
            .to = nullptr,
            .sums = sums(scratch),
            .parts = largest(scratch) - kMostParts,
            .largest = largest(scratch),
            .part_count = static_cast<int>(std::clamp<int64_t>(count / device::kThreads, 1, kMostParts)),
            .place = place,
            .numbers = count,
            .elements = elements_};
  }
  /// Sets largest[place].
  void find(Stream& stream, void* scratch, const float* numbers, int64_t count, int place) const {
    const device::FixedSumCall call = call_of(scratch, numbers, count, place);
    cuda_launch(stream, "largest_parts", call.part_count, call);
    cuda_launch(stream, "largest_of_parts", 1, call);
  }
  void end(Stream& stream, void* scratch, float* to) const {
    device::FixedSumCall call = call_of(scratch, nullptr, 0, 0);
    call.to = to;
    launch_elements(stream, "fixed_sums", elements_, call);
  }

 private:
  static constexpr int64_t kMostParts = device::kThreads;
  int64_t elements_;
};

}  // namespace galley
