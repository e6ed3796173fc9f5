// Dropout and stochastic depth by the law of ops/random_mask.h: a pure function of sample and logical element, so the bits depend neither
// on threads nor on the memory format. Philox 4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011) in vector
// code, 256 words at a time, so that they stay in the first-level cache; channels_last images in tiles of 64 channels by 64 pixels. Bound
// by arithmetic: 10 rounds of two multiplications for 4 elements.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/random.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstdint>

#include "libcore/backends/cpu/vector_math.h"
#include "libcore/ops/random_mask.h"

HWY_BEFORE_NAMESPACE();
namespace galley::random_loops {
namespace HWY_NAMESPACE {

/// The words of a sample's elements 4 * block .. 4 * (block + blocks) - 1.
void draw(uint64_t key, uint64_t sample, uint64_t block, int64_t blocks, uint32_t* words) {
  for (int64_t i = 0; i < blocks; ++i) {
    const PhiloxBlock four = mask_block(key, sample, block + static_cast<uint64_t>(i));
    for (size_t j = 0; j < 4; ++j) words[4 * static_cast<size_t>(i) + j] = four[j];
  }
}

void drop(const float* x, const uint32_t* words, int32_t threshold, float scale, float* y, int64_t count) {
  GALLEY_ELEMENTWISE
  for (int64_t i = 0; i < count; ++i) {
    const float kept = x[i] * scale;
    y[i] = static_cast<int32_t>(words[i] >> 8) >= threshold ? kept : 0.0f;
  }
}

void scale_by(const float* x, float factor, float* y, int64_t count) {
  GALLEY_ELEMENTWISE
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] * factor;
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::random_loops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <array>
#include <cmath>

#include "libcore/backends/cpu/table.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/random.h"

namespace galley {
namespace random_loops {

HWY_EXPORT(draw);
HWY_EXPORT(drop);
HWY_EXPORT(scale_by);

}  // namespace random_loops

namespace {

constexpr int64_t kWords = 256;  // drawn at a time
constexpr int64_t kTile = 64;    // channels, and pixels, of a tile of channels_last images

/// mask_keeps in integers: a word is kept where its upper 24 bits are at least p 2^24.
int32_t threshold_of(double p) { return static_cast<int32_t>(std::ceil(p * 0x1p24)); }

/// Draws the words of elements [begin, begin + count), count <= kWords, and returns the position of the word of `begin`.
const uint32_t* draw_range(uint64_t key, uint64_t sample, int64_t begin, int64_t count, uint32_t* words) {
  const int64_t first = begin / 4, last = (begin + count - 1) / 4;
  HWY_DYNAMIC_DISPATCH(random_loops::draw)(key, sample, static_cast<uint64_t>(first), last - first + 1, words);
  return words + begin % 4;
}

struct Draws {
  Draws(const KernelArgs& args, int64_t stream)
      : key(mask_key(args.in<int64_t>(1)[0], stream, args.in<int64_t>(1)[1])), first(static_cast<uint64_t>(args.in<int64_t>(1)[2])) {}
  uint64_t key, first;  // first: the batch's first sample
};

class Dropout : public PreparedKernel {
 public:
  explicit Dropout(const KernelQuery& q)
      : attrs_(q.attrs<DropoutAttrs>()),
        samples_(q.in(0).shape[0]),
        elements_(samples_ == 0 ? 0 : q.in(0).elements() / samples_),
        threshold_(threshold_of(attrs_.p)),
        scale_(static_cast<float>(mask_scale(attrs_.p))) {
    if (q.in(0).format.is_channels_last()) channels_ = q.in(0).shape[1];
  }
  void run(Stream&, const KernelArgs& args) const override {
    const Draws draws(args, attrs_.stream);
    const float* x = args.in<float>(0);
    float* y = args.out<float>(0);
    if (channels_ > 1 && elements_ > channels_) {
      run_tiles(draws, x, y);
      return;
    }
    const int64_t pieces = (elements_ + kWords - 1) / kWords;
    parallel_for(samples_ * pieces, 16, [&](int64_t begin, int64_t end) {
      uint32_t words[kWords + 8];
      for (int64_t task = begin; task < end; ++task) {
        const int64_t sample = task / pieces, first = task % pieces * kWords, count = std::min(kWords, elements_ - first),
                      at = sample * elements_ + first;
        const uint32_t* drawn = draw_range(draws.key, draws.first + static_cast<uint64_t>(sample), first, count, words);
        HWY_DYNAMIC_DISPATCH(random_loops::drop)(x + at, drawn, threshold_, scale_, y + at, count);
      }
    });
  }

 private:
  /// channels_last: words are drawn along each channel's pixels, then read across.
  void run_tiles(const Draws& draws, const float* x, float* y) const {
    const int64_t pixels = elements_ / channels_, down = (pixels + kTile - 1) / kTile, across = (channels_ + kTile - 1) / kTile;
    parallel_for(samples_ * down * across, 1, [&](int64_t begin, int64_t end) {
      uint32_t words[kTile + 8], turned[kTile * kTile];
      for (int64_t task = begin; task < end; ++task) {
        const int64_t sample = task / (down * across), pixel = task / across % down * kTile, channel = task % across * kTile;
        const int64_t rows = std::min(kTile, pixels - pixel), lanes = std::min(kTile, channels_ - channel);
        for (int64_t c = 0; c < lanes; ++c) {
          const uint32_t* drawn =
              draw_range(draws.key, draws.first + static_cast<uint64_t>(sample), (channel + c) * pixels + pixel, rows, words);
          for (int64_t r = 0; r < rows; ++r) turned[r * kTile + c] = drawn[r];
        }
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t at = sample * elements_ + (pixel + r) * channels_ + channel;
          HWY_DYNAMIC_DISPATCH(random_loops::drop)(x + at, turned + r * kTile, threshold_, scale_, y + at, lanes);
        }
      }
    });
  }

  DropoutAttrs attrs_;
  int64_t samples_, elements_, channels_ = 0;
  int32_t threshold_;
  float scale_;
};

class StochasticDepth : public PreparedKernel {
 public:
  explicit StochasticDepth(const KernelQuery& q)
      : attrs_(q.attrs<StochasticDepthAttrs>()), samples_(q.in(0).shape[0]), elements_(samples_ == 0 ? 0 : q.in(0).elements() / samples_) {}
  void run(Stream&, const KernelArgs& args) const override {
    constexpr int64_t kPiece = 16384;
    const Draws draws(args, attrs_.stream);
    const int64_t pieces = (elements_ + kPiece - 1) / kPiece;
    parallel_for(samples_ * pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t sample = task / pieces, first = task % pieces * kPiece, count = std::min(kPiece, elements_ - first),
                      at = sample * elements_ + first;
        const uint64_t drawn_for = attrs_.mode == StochasticDepthMode::kBatch ? kWholeBatch : draws.first + static_cast<uint64_t>(sample);
        if (mask_keeps(mask_block(draws.key, drawn_for, 0)[0], attrs_.p)) {
          HWY_DYNAMIC_DISPATCH(random_loops::scale_by)(args.in<float>(0) + at, static_cast<float>(mask_scale(attrs_.p)),
                                                       args.out<float>(0) + at, count);
        } else {
          std::fill_n(args.out<float>(0) + at, count, 0.0f);
        }
      }
    });
  }

 private:
  StochasticDepthAttrs attrs_;
  int64_t samples_, elements_;
};

Support supports(const KernelQuery& q) {
  const TensorType& x = q.in(0);
  if (x.dtype != DType::kF32) return Support::no(cat("dtype ", x.dtype));
  if (x.format.is_blocked()) return Support::no(cat("format ", x.format));
  if (!(q.out(0).format == x.format)) return Support::no("output in another format");
  return Support::yes();
}

template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<T>(q);
}

const std::array<Kernel, 2> kKernels{
    {{"dropout", "philox", supports, prepare<Dropout>}, {"stochastic_depth", "philox", supports, prepare<StochasticDepth>}}};

}  // namespace

std::span<const Kernel> cpu_random() { return kKernels; }

}  // namespace galley

#endif  // HWY_ONCE
