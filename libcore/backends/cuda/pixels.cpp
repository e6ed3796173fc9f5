// Bytes of images as normalized numbers, by the kernel of kernels/pixels.h.

#include "libcore/ops/pixels.h"

#include <algorithm>

#include "libcore/backends/cuda/channel_walk.h"
#include "libcore/backends/cuda/prepare.h"

namespace galley {
namespace {

static_assert(device::kMostPixelTables == kMostPixelChannels);

class NormalizePixels : public PreparedKernel {
 public:
  explicit NormalizePixels(const KernelQuery& query) : call_{.type = type_of(query.out(0)), .elements = query.in(0).shape.elements()} {
    const auto& attrs = query.attrs<NormalizePixelsAttrs>();
    call_.scale = attrs.scale;
    call_.tables = divisor(std::ssize(attrs.mean));
    call_.inner = divisor(std::max<int64_t>(1, channel_view(query.in(0))->inner));
    for (size_t c = 0; c < attrs.mean.size(); ++c) {
      call_.mean[c] = static_cast<float>(attrs.mean[c]);
      call_.std[c] = static_cast<float>(attrs.std[c]);
    }
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::PixelsCall call = call_;
    call.from = args.in<uint8_t>(0);
    call.to = args.outputs[0];
    call.packs = have_packs(call.from, call.to);
    constexpr int64_t kOfThread = 32;  // elements, for which a table is worth its computation
    launch_elements(stream, "normalize_pixels", (call.elements + kOfThread - 1) / kOfThread, call);
  }

 private:
  device::PixelsCall call_{};
};

Support supports_pixels(const KernelQuery& query) {
  if (query.in(0).format != query.out(0).format) return Support::no("operands of different formats");
  constexpr int64_t kMost = int64_t{1} << 31;
  if (query.in(0).elements() >= kMost) return Support::no("2^31 elements and more");
  return no_blocked_formats(query);
}

constexpr Kernel kKernels[] = {{"normalize_pixels", "table", supports_pixels, prepare_cuda<NormalizePixels>}};

}  // namespace

std::span<const Kernel> cuda_pixels() { return kKernels; }

}  // namespace galley
