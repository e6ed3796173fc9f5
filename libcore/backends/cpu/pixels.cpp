// Bytes of images as normalized numbers: a table of the 256 results of each channel. For comparisons with other devices; on the host the
// pipeline of the data normalizes while it copies samples into a batch.

#include "libcore/backends/cpu/pixels.h"

#include <array>
#include <vector>

#include "libcore/base/parallel.h"
#include "libcore/ops/pixels.h"
#include "libcore/tensor/tensor.h"

namespace galley {
namespace {

constexpr int64_t kBytes = 256;

class NormalizePixels : public PreparedKernel {
 public:
  explicit NormalizePixels(const KernelQuery& q) : element_(dtype_size(q.out(0).dtype)), elements_(q.in(0).elements()) {
    const auto& attrs = q.attrs<NormalizePixelsAttrs>();
    const Shape& shape = q.in(0).shape;
    tables_ = std::ssize(attrs.mean);
    if (q.in(0).format.is_contiguous() && elements_ > 0) inner_ = elements_ / (shape[0] * shape[1]);
    table_.resize(static_cast<size_t>(tables_ * kBytes * element_));
    for (int64_t i = 0; i < tables_ * kBytes; ++i)
      store_element(q.out(0).dtype, table_.data() + i * element_, normalized_pixel(attrs, i / kBytes, static_cast<int>(i % kBytes)));
  }
  void run(Stream&, const KernelArgs& args) const override {
    const auto* from = args.in<uint8_t>(0);
    if (element_ == 4) return run_as<uint32_t>(from, args.out<uint32_t>(0));
    run_as<uint16_t>(from, args.out<uint16_t>(0));
  }

 private:
  template <class Word>
  void run_as(const uint8_t* from, Word* to) const {
    const auto* table = reinterpret_cast<const Word*>(table_.data());
    parallel_for(elements_, 16384, [&](int64_t begin, int64_t end) {
      int64_t channel = begin / inner_ % tables_, place = begin % inner_;
      for (int64_t i = begin; i < end; ++i) {
        to[i] = table[channel * kBytes + from[i]];
        if (++place < inner_) continue;
        place = 0;
        channel = channel + 1 == tables_ ? 0 : channel + 1;
      }
    });
  }

  int64_t element_, elements_, tables_ = 1, inner_ = 1;
  std::vector<std::byte> table_;
};

Support supports(const KernelQuery& q) {
  if (!(q.in(0).format == q.out(0).format)) return Support::no("output in another format");
  if (q.in(0).format.is_blocked()) return Support::no("a blocked format");
  return Support::yes();
}

const std::array<Kernel, 1> kKernels{{{"normalize_pixels", "table", supports, [](const KernelQuery& q) -> std::unique_ptr<PreparedKernel> {
                                         return std::make_unique<NormalizePixels>(q);
                                       }}}};

}  // namespace

std::span<const Kernel> cpu_pixels() { return kKernels; }

}  // namespace galley
