// Constant arrays of any dtype.

#include <algorithm>
#include <array>
#include <cstring>

#include "libcore/backends/cpu/table.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/convert.h"
#include "libcore/tensor/tensor.h"

namespace galley {
namespace {

/// The constant's bytes, repeated to 64, are copied: 64 is a multiple of every dtype's size.
class Full : public PreparedKernel {
 public:
  explicit Full(const KernelQuery& q) : bytes_(q.out(0).bytes()) {
    const auto size = static_cast<size_t>(dtype_size(q.out(0).dtype));
    for (size_t i = 0; i < pattern_.size(); i += size) store_element(q.out(0).dtype, pattern_.data() + i, q.attrs<FullAttrs>().value);
  }
  void run(Stream&, const KernelArgs& args) const override {
    auto* out = args.out<std::byte>(0);
    const auto line = static_cast<int64_t>(pattern_.size());
    parallel_for((bytes_ + line - 1) / line, 1024, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * line; i < std::min(bytes_, end * line); i += line)
        std::memcpy(out + i, pattern_.data(), static_cast<size_t>(std::min(line, bytes_ - i)));
    });
  }

 private:
  int64_t bytes_;
  std::array<std::byte, 64> pattern_{};
};

Support supports(const KernelQuery& q) {
  if (q.out(0).format.is_blocked() && q.attrs<FullAttrs>().value != 0) return Support::no("the padding of blocked formats must be zero");
  return Support::yes();
}

const std::array<Kernel, 1> kKernels{
    {{"full", "fill", supports, [](const KernelQuery& q) -> std::unique_ptr<PreparedKernel> { return std::make_unique<Full>(q); }}}};

}  // namespace

std::span<const Kernel> cpu_fill() { return kKernels; }

}  // namespace galley
