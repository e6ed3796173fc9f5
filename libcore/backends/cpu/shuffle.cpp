// channel_shuffle of any dtype. Contiguous: whole planes are copied. channels_last: the channels of a pixel are a small matrix that is
// transposed; with two to four rows or columns, as networks have it, vectors are interleaved or deinterleaved.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/shuffle.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace galley::shuffle {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Places of whole vectors that cover `length` elements, at least one vector: the last reaches back over what is done already.
template <class Some>
HWY_ATTR void each_vector(int64_t length, int64_t lanes, const Some& some) {
  for (int64_t i = 0; i + lanes <= length; i += lanes) some(i);
  if (length % lanes != 0) some(length - lanes);
}

/// out[i * kStreams + s] = in[s * length + i], of each pixel.
template <int kStreams, class T>
HWY_ATTR void interleave(const T* in, T* out, int64_t length, int64_t pixels) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (; pixels > 0; --pixels, in += kStreams * length, out += kStreams * length) {
    if (length < lanes) {
      for (int64_t i = 0; i < length; ++i) {
        for (int64_t s = 0; s < kStreams; ++s) out[i * kStreams + s] = in[s * length + i];
      }
      continue;
    }
    each_vector(length, lanes, [&](int64_t i) HWY_ATTR {
      const auto a = hn::LoadU(d, in + i), b = hn::LoadU(d, in + length + i);
      if constexpr (kStreams == 2) {
        hn::StoreInterleaved2(a, b, d, out + 2 * i);
      } else if constexpr (kStreams == 3) {
        hn::StoreInterleaved3(a, b, hn::LoadU(d, in + 2 * length + i), d, out + 3 * i);
      } else {
        hn::StoreInterleaved4(a, b, hn::LoadU(d, in + 2 * length + i), hn::LoadU(d, in + 3 * length + i), d, out + 4 * i);
      }
    });
  }
}

/// out[s * length + i] = in[i * kStreams + s], of each pixel.
template <int kStreams, class T>
HWY_ATTR void part(const T* in, T* out, int64_t length, int64_t pixels) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (; pixels > 0; --pixels, in += kStreams * length, out += kStreams * length) {
    if (length < lanes) {
      for (int64_t i = 0; i < length; ++i) {
        for (int64_t s = 0; s < kStreams; ++s) out[s * length + i] = in[i * kStreams + s];
      }
      continue;
    }
    each_vector(length, lanes, [&](int64_t i) HWY_ATTR {
      hn::Vec<decltype(d)> a, b;
      if constexpr (kStreams == 2) {
        hn::LoadInterleaved2(d, in + 2 * i, a, b);
      } else if constexpr (kStreams == 3) {
        hn::Vec<decltype(d)> c;
        hn::LoadInterleaved3(d, in + 3 * i, a, b, c);
        hn::StoreU(c, d, out + 2 * length + i);
      } else {
        hn::Vec<decltype(d)> c, e;
        hn::LoadInterleaved4(d, in + 4 * i, a, b, c, e);
        hn::StoreU(c, d, out + 2 * length + i);
        hn::StoreU(e, d, out + 3 * length + i);
      }
      hn::StoreU(a, d, out + i);
      hn::StoreU(b, d, out + length + i);
    });
  }
}

template <class T>
HWY_ATTR void shuffle_of(const void* in, void* out, int64_t streams, bool inverse, int64_t length, int64_t pixels) {
  const auto* x = static_cast<const T*>(in);
  auto* y = static_cast<T*>(out);
  switch (streams) {
    case 2: inverse ? part<2>(x, y, length, pixels) : interleave<2>(x, y, length, pixels); return;
    case 3: inverse ? part<3>(x, y, length, pixels) : interleave<3>(x, y, length, pixels); return;
    default: inverse ? part<4>(x, y, length, pixels) : interleave<4>(x, y, length, pixels);
  }
}

/// Elements of 1, 2, 4 or 8 bytes; two to four streams of `length` elements in each of the pixels.
void shuffle_pixels(int64_t element, const void* in, void* out, int64_t streams, bool inverse, int64_t length, int64_t pixels) {
  switch (element) {
    case 1: return shuffle_of<uint8_t>(in, out, streams, inverse, length, pixels);
    case 2: return shuffle_of<uint16_t>(in, out, streams, inverse, length, pixels);
    case 4: return shuffle_of<uint32_t>(in, out, streams, inverse, length, pixels);
    default: return shuffle_of<uint64_t>(in, out, streams, inverse, length, pixels);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::shuffle
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <array>

#include "libcore/backends/cpu/strided_copy.h"
#include "libcore/backends/cpu/table.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/shuffle.h"

namespace galley {
namespace shuffle {
HWY_EXPORT(shuffle_pixels);
}

namespace {

constexpr int64_t kTaskBytes = 65536;
constexpr int64_t kMostStreams = 4;

Support supports(const KernelQuery& q) {
  if (!(q.in(0).format == q.out(0).format)) return Support::no("input and output of different formats");
  if (q.in(0).format.is_blocked()) return Support::no(cat("format ", q.in(0).format));
  return Support::yes();
}

/// Pixels of dense channels, in few streams.
class Interleave : public PreparedKernel {
 public:
  /// `inverse`: separates `streams` that are interleaved; otherwise interleaves consecutive ones.
  Interleave(const TensorType& x, int64_t streams, bool inverse)
      : element_(dtype_size(x.dtype)), channels_(x.shape[1]), pixels_(x.elements() / x.shape[1]), streams_(streams), inverse_(inverse) {}
  void run(Stream&, const KernelArgs& args) const override {
    const int64_t bytes = channels_ * element_;
    parallel_for(pixels_, std::max<int64_t>(1, kTaskBytes / bytes), [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(shuffle::shuffle_pixels)
      (element_, args.in<std::byte>(0) + begin * bytes, args.out<std::byte>(0) + begin * bytes, streams_, inverse_, channels_ / streams_,
       end - begin);
    });
  }

 private:
  int64_t element_, channels_, pixels_, streams_;
  bool inverse_;
};

class Planes : public PreparedKernel {
 public:
  Planes(int64_t element, std::vector<CopyDim> dims) : copy_(element, std::move(dims)) {}
  void run(Stream&, const KernelArgs& args) const override { copy_.run(args.in<std::byte>(0), args.out<std::byte>(0)); }

 private:
  StridedCopy copy_;
};

std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  const TensorType& x = q.in(0);
  const int64_t groups = q.attrs<ChannelShuffleAttrs>().groups, part = x.shape[1] / groups;
  const bool dense = x.format.is_channels_last() || x.shape.rank() == 2, mixes = groups > 1 && part > 1;
  if (dense && mixes && x.elements() > 0) {
    if (groups <= kMostStreams) return std::make_unique<Interleave>(x, groups, false);
    if (part <= kMostStreams) return std::make_unique<Interleave>(x, part, true);
  }
  const Shape steps = x.format.strides(x.shape);
  std::vector<CopyDim> dims;
  for (const int d : x.format.order(x.shape.rank())) {
    if (d == 1) {
      dims.push_back({part, steps[1], groups * steps[1]});
      dims.push_back({groups, part * steps[1], steps[1]});
    } else {
      dims.push_back({x.shape[d], steps[d], steps[d]});
    }
  }
  return std::make_unique<Planes>(dtype_size(x.dtype), std::move(dims));
}

const std::array<Kernel, 1> kKernels{{{"channel_shuffle", "interleave", supports, prepare}}};

}  // namespace

std::span<const Kernel> cpu_shuffle() { return kKernels; }

}  // namespace galley

#endif  // HWY_ONCE
