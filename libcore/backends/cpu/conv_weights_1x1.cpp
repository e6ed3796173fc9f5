// unpacked_1x1: the weight gradient of 1x1 convolutions of stride 1 with few channels, f32, channels_last. W[o][i] = sum over pixels p of
// grad[p][o] x[p][i], by PointwiseSums (pointwise_sums.cpp), which packs nothing.
//
// Threads take parts of the pixels and keep sums of their own, which are added in the order of the parts. With few channels memory bounds
// it. Bits depend on the instruction set and the logical thread count only.

#include <algorithm>
#include <array>

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/conv_thresholds.h"
#include "libcore/backends/cpu/conv_weights.h"
#include "libcore/backends/cpu/pointwise.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/conv.h"

namespace galley {
namespace {

class PointwiseWeights : public PreparedKernel {
 public:
  explicit PointwiseWeights(const KernelQuery& q)
      : sums_(q.out(0)), pixels_(q.in(1).elements() / q.in(1).shape[1]), in_(q.in(0).shape[1]), out_(q.in(1).shape[1]) {
    // More parts than threads, so that threads can take over work, where the sums are small for their pixels.
    using namespace conv_threshold;
    const int64_t bytes = sums_.floats() * 4, few = std::min<int64_t>(q.threads, kWeightSumBytes.value / bytes),
                  many = std::min({kUnpacked1x1Parts.value, kUnpacked1x1PartBytes.value / bytes, pixels_ / kUnpacked1x1PartPixels.value});
    parts_ = std::clamp<int64_t>(std::max(few, many), 1, pixels_);
  }
  int64_t scratch_bytes() const override { return parts_ * sums_.floats() * 4; }

  void run(Stream&, const KernelArgs& args) const override {
    auto* sums = static_cast<float*>(args.scratch);
    parallel_ranges(parts_, 1, [&](int64_t part, int64_t) {
      add(args, pixels_ * part / parts_, pixels_ * (part + 1) / parts_, sums + part * sums_.floats());
    });
    sums_.write(sums, sums_.floats(), parts_, args.out<float>(0));
  }

 private:
  void add(const KernelArgs& args, int64_t begin, int64_t end, float* sums) const {
    std::fill_n(sums, sums_.floats(), 0.0f);
    const int64_t step = sums_.block();
    for (int64_t p = begin; p < end; p += step) {
      const int64_t count = std::min(step, end - p);
      const float *grad = args.in<float>(1) + p * out_, *x = args.in<float>(0) + p * in_;
      const PointwiseSums::Next next[] = {{grad + count * out_, count * out_}, {x + count * in_, count * in_}};
      sums_.add(grad, out_, x, count, next, sums);
    }
  }

  PointwiseSums sums_;
  int64_t pixels_, in_, out_, parts_;
};

Support supports(const KernelQuery& q) {
  const auto& a = q.attrs<Conv2dBackwardWeightsAttrs>();
  const TensorType &x = q.in(0), &grad = q.in(1);
  const Shape& w = q.out(0).shape;
  if (const Support dense = is_dense_weight_gradient(q); !dense) return dense;
  if (w[2] * w[3] != 1 || x.shape[2] != grad.shape[2] || x.shape[3] != grad.shape[3] || pair(a.padding) != std::array<int64_t, 2>{0, 0})
    return Support::no("not each pixel once");
  if (const Support sums = PointwiseSums::supports(w); !sums) return sums;
  using namespace conv_threshold;
  const bool many_pixels = grad.elements() / grad.shape[1] >= kUnpacked1x1ManyPixels.value;
  if (std::min(w[0], w[1]) > (many_pixels ? kUnpacked1x1ChannelsManyPixels : kUnpacked1x1Channels).value)
    return Support::no(cat("channels ", x.shape[1], " and ", grad.shape[1], ": worth packing"));
  return Support::yes();
}

}  // namespace

const Algorithm algorithm::kConvWeights1x1{supports, prepare_as<PointwiseWeights>};

}  // namespace galley
