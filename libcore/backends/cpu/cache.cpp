// Tokens written into a cache: copies of rows.

#include "libcore/ops/cache.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "libcore/backends/cpu/table.h"
#include "libcore/base/parallel.h"
#include "libcore/tensor/dtype.h"

namespace galley {
namespace {

constexpr int64_t kGrainBytes = 16384;  // of a task

class CacheWrite : public PreparedKernel {
 public:
  explicit CacheWrite(const KernelQuery& q) {
    const Shape &cache = q.in(0).shape, &values = q.in(1).shape;
    const int64_t size = dtype_size(q.in(0).dtype);
    batch_ = cache[0];
    capacity_ = cache[1];
    tokens_ = values[1];
    row_ = cache[2] * cache[3] * size;
    step_ = values[2] * values[3] * size;
    first_ = q.attrs<CacheWriteAttrs>().first * values[3] * size;
  }
  void run(Stream&, const KernelArgs& args) const override {
    auto* cache = args.out<char>(0);
    const auto* values = args.in<char>(1);
    const auto* position = args.in<int64_t>(2);
    if (args.in<char>(0) != cache) std::memcpy(cache, args.in<char>(0), static_cast<size_t>(batch_ * capacity_ * row_));
    parallel_for(batch_ * tokens_, std::max<int64_t>(1, kGrainBytes / std::max<int64_t>(1, row_)), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t b = i / tokens_, at = position[b] + i % tokens_;
        if (at < 0 || at >= capacity_) continue;
        std::memcpy(cache + (b * capacity_ + at) * row_, values + i * step_ + first_, static_cast<size_t>(row_));
      }
    });
  }

 private:
  int64_t batch_, capacity_, tokens_, row_, step_, first_;  // the last three in bytes
};

Support supports(const KernelQuery& q) {
  for (int i : {0, 1}) {
    if (!q.in(i).format.is_contiguous()) return Support::no(cat("format ", q.in(i).format));
  }
  return Support::yes();
}

const std::array<Kernel, 1> kKernels{{{"cache_write", "row_copies", supports, [](const KernelQuery& q) -> std::unique_ptr<PreparedKernel> {
                                         return std::make_unique<CacheWrite>(q);
                                       }}}};

}  // namespace

std::span<const Kernel> cpu_cache() { return kKernels; }

}  // namespace galley
