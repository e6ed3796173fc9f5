// Sums of outer products over pixels without packing: S[o][i] = sum over p of grad[p][o] x[p][i], the weight gradient of 1x1 convolutions
// with few channels, and the moments of an image (PointwiseMoments).
//
// Both operands are read where they are, rows of channels: with few channels, packing would take as long as the products. The wider side is
// loaded as vectors, the narrower one is broadcast; a register tile of 3 vectors by 4 values (4 by 6 with AVX-512) is accumulated over a
// block of pixels that the first-level cache holds, then added to the sums in memory. Tiles at an end overlap the ones before, so that all
// are full. 2 pixels inputs outputs operations; loads and memory bound it. Bits depend on the instruction set and the logical thread count
// only.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/pointwise_sums.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/unrolled-inl.h"

#ifndef GALLEY_POINTWISE_SUMS_ONCE
#define GALLEY_POINTWISE_SUMS_ONCE

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "libcore/backends/cpu/conv_thresholds.h"
#include "libcore/backends/cpu/pointwise.h"
#include "libcore/base/parallel.h"

namespace galley::pointwise_sums {

constexpr int64_t kLine = 64;  // bytes

/// Pixels of both sides from a tile's first channels on, and the floats from one row to the next.
struct Block {
  const float *wide, *narrow;  // taken by vectors; by single values
  int64_t wide_step, narrow_step, pixels;
  int64_t last;          // channels from the first vector to the last one; the others are consecutive
  const char* prefetch;  // a cache line at each of the first `prefetch_lines` pixels
  int64_t prefetch_lines;
};

}  // namespace galley::pointwise_sums

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::pointwise_sums {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if !GALLEY_WIDE_TARGET
void add(const float* HWY_RESTRICT from, int64_t from_step, int64_t rows, int64_t channels, float* HWY_RESTRICT to) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t c = 0; c < channels; ++c) to[row * channels + c] += from[row * from_step + c];
  }
}
// Never called: PointwiseSums::supports says no.
int lanes() { return 1; }
int most_vectors() { return 1; }
int singles(int) { return 1; }
void center(const float*, int64_t, int64_t, const float*, float*, float*) {}
void add_tile(const Block&, int, float*) {}
#else
using D = hn::CappedTag<float, 16>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
// Of 32 or 16 registers, sums take 24 or 12 at least.
constexpr int kMostVectors = kLanes == 16 ? 4 : 3;
constexpr int singles_of(int vectors) {
  return kLanes == 16 ? (vectors == 4 ? 6 : vectors == 3 ? 8 : vectors == 2 ? 12 : 16) : (vectors == 3 ? 4 : vectors == 2 ? 6 : 10);
}

int lanes() { return kLanes; }

/// body(first channel, load, store) for each vector of channels, of the last one those that are there. Whole vectors are stored without a
/// mask: with AVX2 one takes AMD's processors twelve cycles.
template <class Body>
HWY_INLINE void each_vector(int64_t channels, const Body& body) {
  const D d;
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) {
    body(
        c, [d](const float* from) GALLEY_LOOP { return hn::LoadU(d, from); },
        [d](auto value, float* to) GALLEY_LOOP { hn::StoreU(value, d, to); });
  }
  if (c == channels) return;
  const auto mask = hn::FirstN(d, static_cast<size_t>(channels - c));
  body(
      c, [=](const float* from) GALLEY_LOOP { return hn::MaskedLoad(mask, d, from); },
      [=](auto value, float* to) GALLEY_LOOP { hn::BlendedStore(value, mask, d, to); });
}

/// to = x - pivot; adds `to` to the sums.
void center(const float* HWY_RESTRICT x, int64_t rows, int64_t channels, const float* HWY_RESTRICT pivot, float* HWY_RESTRICT to,
            float* HWY_RESTRICT sums) {
  each_vector(channels, [&](int64_t c, auto load, auto store) GALLEY_LOOP {
    const auto shift = load(pivot + c);
    // Two sums: with one, each addition would wait for the one before.
    hn::Vec<D> sum[] = {load(sums + c), hn::Zero(D())};
    const auto take_row = [&](int64_t at, hn::Vec<D>& own) GALLEY_LOOP {
      const auto value = hn::Sub(load(x + at), shift);
      store(value, to + at);
      own = hn::Add(own, value);
    };
    int64_t at = c;
    const int64_t end = rows * channels;
    for (; at + channels < end; at += 2 * channels) {
      take_row(at, sum[0]);
      take_row(at + channels, sum[1]);
    }
    if (at < end) take_row(at, sum[0]);
    store(hn::Add(sum[0], sum[1]), sums + c);
  });
}

void add(const float* HWY_RESTRICT from, int64_t from_step, int64_t rows, int64_t channels, float* HWY_RESTRICT to) {
  const int64_t ahead = rows * channels;
  each_vector(channels, [&](int64_t c, auto load, auto store) GALLEY_LOOP {
    for (int64_t row = 0; row < rows; ++row) {
      float* at = to + row * channels + c;
      __builtin_prefetch(at + ahead, 1, 2);
      store(hn::Add(load(at), load(from + row * from_step + c)), at);
    }
  });
}
int most_vectors() { return kMostVectors; }
int singles(int vectors) { return singles_of(vectors); }

/// sums [single value][vector][lane] += those of the block's pixels.
template <int kVectors>
void add_vectors(const Block& block, float* HWY_RESTRICT sums) {
  using galley::HWY_NAMESPACE::each;
  constexpr int kSingles = singles_of(kVectors), kSums = kSingles * kVectors;
  const D d;
  hn::Vec<D> sum[kSums];
  each<kSums>([&](auto i) GALLEY_LOOP { sum[i] = hn::Zero(d); });
  const float *HWY_RESTRICT wide = block.wide, *HWY_RESTRICT narrow = block.narrow;
  const int64_t last = block.last, prefetch_lines = block.prefetch_lines;
  const char* prefetch = block.prefetch;
  for (int64_t p = 0; p < block.pixels; ++p, wide += block.wide_step, narrow += block.narrow_step) {
    hn::Vec<D> values[kVectors];
    each<kVectors>([&](auto v) GALLEY_LOOP { values[v] = hn::LoadU(d, wide + (v == kVectors - 1 ? last : v * kLanes)); });
    each<kSingles>([&](auto s) GALLEY_LOOP {
      const auto single = hn::Set(d, narrow[s]);
      each<kVectors>([&](auto v) GALLEY_LOOP { sum[s * kVectors + v] = hn::MulAdd(single, values[v], sum[s * kVectors + v]); });
    });
    if (p < prefetch_lines) __builtin_prefetch(prefetch + p * kLine, 0, 2);
  }
  each<kSums>([&](auto i) GALLEY_LOOP { hn::StoreU(hn::Add(hn::LoadU(d, sums + i * kLanes), sum[i]), d, sums + i * kLanes); });
}

void add_tile(const Block& block, int vectors, float* HWY_RESTRICT sums) {
  switch (vectors) {
    case 1: return add_vectors<1>(block, sums);
    case 2: return add_vectors<2>(block, sums);
    case 3: return add_vectors<3>(block, sums);
    default: return add_vectors<kMostVectors>(block, sums);
  }
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace galley::pointwise_sums
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley {
namespace pointwise_sums {
HWY_EXPORT(lanes);
HWY_EXPORT(most_vectors);
HWY_EXPORT(singles);
HWY_EXPORT(add_tile);
HWY_EXPORT(center);
HWY_EXPORT(add);
}  // namespace pointwise_sums

namespace {

/// Bytes of both sides of a block, which tiles read several times. Tiles with vectors of 8 floats take few channels at once, and would load
/// a larger block from the second-level cache again.
int64_t block_bytes(int64_t lanes) {
  return (lanes == 16 ? conv_threshold::kUnpacked1x1BlockBytesAvx512 : conv_threshold::kUnpacked1x1BlockBytes).value;
}
constexpr int64_t kLeast = 16;                                           // channels that fill a vector, and the single values of any tile
constexpr int64_t kMostParts = conv_threshold::kUnpacked1x1Parts.value;  // of the pixels, whose moments are summed on their own
constexpr int64_t kSamples = conv_threshold::kPivotSamples.value;

/// Rounds up to whole cache lines.
int64_t lines(int64_t floats) { return (floats + 15) / 16 * 16; }

TensorType products_of(int64_t channels) { return {DType::kF32, {channels, channels, 1, 1}}; }

}  // namespace

PointwiseSums::PointwiseSums(const TensorType& weight)
    : weight_(weight),
      wide_(std::max(weight.shape[0], weight.shape[1])),
      narrow_(std::min(weight.shape[0], weight.shape[1])),
      lanes_(HWY_DYNAMIC_DISPATCH(pointwise_sums::lanes)()),
      out_is_wide_(weight.shape[0] >= weight.shape[1]) {
  const int64_t vectors = (wide_ + lanes_ - 1) / lanes_, most = HWY_DYNAMIC_DISPATCH(pointwise_sums::most_vectors)(),
                groups = (vectors + most - 1) / most;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t first = vectors * g / groups, count = vectors * (g + 1) / groups - first,
                  singles = HWY_DYNAMIC_DISPATCH(pointwise_sums::singles)(static_cast<int>(count));
    const int64_t last = (first + count - 1) * lanes_, last_at = std::min(last, wide_ - lanes_);
    for (int64_t s = 0; s < narrow_; s += singles) {
      const int64_t at = std::min(s, narrow_ - singles);
      tiles_.push_back({first * lanes_, last_at - first * lanes_, at, static_cast<int>(count), floats_, last - last_at, s - at});
      floats_ += count * lanes_ * singles;
    }
  }
  for (int64_t o = 0; o < weight.shape[0]; ++o)
    (out_is_wide_ ? wide_at_ : narrow_at_).push_back(weight.format.offset(weight.shape, {o, 0, 0, 0}));
  for (int64_t i = 0; i < weight.shape[1]; ++i)
    (out_is_wide_ ? narrow_at_ : wide_at_).push_back(weight.format.offset(weight.shape, {0, i, 0, 0}));
}

Support PointwiseSums::supports(const Shape& weight) {
  if ((hwy::SupportedTargets() & (HWY_AVX3 | HWY_AVX2)) == 0) return Support::no("vectors of 8 floats are missing");
  if (std::min(weight[0], weight[1]) < kLeast) return Support::no(cat("channels ", weight[1], " and ", weight[0], ": too few for a tile"));
  return Support::yes();
}

int64_t PointwiseSums::block() const { return std::max<int64_t>(1, block_bytes(lanes_) / 4 / (wide_ + narrow_)); }

void PointwiseSums::add(const float* grad, int64_t grad_step, const float* x, int64_t pixels, std::span<const Next> next,
                        float* sums) const {
  using pointwise_sums::kLine;
  const float *wide = out_is_wide_ ? grad : x, *narrow = out_is_wide_ ? x : grad;
  const int64_t wide_step = out_is_wide_ ? grad_step : wide_, narrow_step = out_is_wide_ ? narrow_ : grad_step;
  int64_t lines = 0, tile_number = 0;
  for (const Next& array : next) lines += array.floats * 4 / kLine;
  const auto count = static_cast<int64_t>(tiles_.size());
  for (const Tile& tile : tiles_) {
    // Each tile prefetches a part: all at once would fill the queue of outstanding loads, and memory would idle later.
    int64_t from = lines * tile_number / count, share = lines * (tile_number + 1) / count - from;
    const Next* array = next.data();
    for (; array != next.data() + next.size() && from >= array->floats * 4 / kLine; ++array) from -= array->floats * 4 / kLine;
    const char* prefetch = nullptr;
    if (array == next.data() + next.size()) {
      share = 0;
    } else {
      prefetch = reinterpret_cast<const char*>(array->at) + from * kLine;
    }
    HWY_DYNAMIC_DISPATCH(pointwise_sums::add_tile)
    ({wide + tile.wide, narrow + tile.narrow, wide_step, narrow_step, pixels, tile.last, prefetch, share}, tile.vectors, sums + tile.sums);
    ++tile_number;
  }
}

template <class Body>
void PointwiseSums::each_sum(const Tile& tile, const Body& body) const {
  const int64_t singles = HWY_DYNAMIC_DISPATCH(pointwise_sums::singles)(tile.vectors);
  for (int64_t s = tile.singles_seen; s < singles; ++s) {
    for (int64_t v = 0; v < tile.vectors; ++v) {
      const bool is_last = v == tile.vectors - 1;
      const int64_t at = tile.sums + (s * tile.vectors + v) * lanes_, wide = tile.wide + (is_last ? tile.last : v * lanes_);
      for (int64_t l = is_last ? tile.lanes_seen : 0; l < lanes_; ++l) body(wide + l, tile.narrow + s, at + l);
    }
  }
}

void PointwiseSums::write(const float* sums, int64_t step, int64_t parts, float* dweight) const {
  if (weight_.bytes() > weight_.shape.elements() * 4)
    std::memset(dweight, 0, static_cast<size_t>(weight_.bytes()));  // a blocked format's padding
  parallel_for(static_cast<int64_t>(tiles_.size()), 4, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      each_sum(tiles_[static_cast<size_t>(tile)], [&](int64_t wide, int64_t narrow, int64_t at) {
        float total = sums[at];
        for (int64_t part = 1; part < parts; ++part) total += sums[part * step + at];
        dweight[wide_at_[static_cast<size_t>(wide)] + narrow_at_[static_cast<size_t>(narrow)]] =
            total;  // a format's offsets are sums of one term for each index
      });
    }
  });
}

void PointwiseSums::unpack(const double* sums, double* matrix) const {
  const int64_t wide_step = out_is_wide_ ? narrow_ : 1, narrow_step = out_is_wide_ ? 1 : wide_;
  for (const Tile& tile : tiles_)
    each_sum(tile, [&](int64_t wide, int64_t narrow, int64_t at) { matrix[wide * wide_step + narrow * narrow_step] = sums[at]; });
}

void add_rows(const float* from, int64_t from_step, int64_t rows, int64_t channels, float* to) {
  HWY_DYNAMIC_DISPATCH(pointwise_sums::add)(from, from_step, rows, channels, to);
}

PointwiseMoments::PointwiseMoments(const TensorType& x, int threads)
    : pixels_(x.elements() / x.shape[1]),
      channels_(x.shape[1]),
      threads_(threads),
      parts_(std::min(std::max<int64_t>(kMostParts, threads), pixels_)),
      products_(products_of(channels_)) {
  block_ = std::min(products_.block(), pixels_);
}

int64_t PointwiseMoments::slot_floats() const { return lines(block_ * channels_) + lines(channels_) + lines(products_.floats()); }
// Totals in double: two floats each.
int64_t PointwiseMoments::scratch_floats() const { return threads_ * slot_floats() + parts_ * lines(2 * (channels_ + products_.floats())); }

std::pmr::vector<float> PointwiseMoments::pivot(const float* x, std::pmr::memory_resource& workspace) const {
  const int64_t count = std::min(kSamples, pixels_);
  std::pmr::vector<double> sums(static_cast<size_t>(channels_), &workspace);
  for (int64_t i = 0; i < count; ++i) {
    const float* row = x + pixels_ * i / count * channels_;
    for (int64_t c = 0; c < channels_; ++c) sums[static_cast<size_t>(c)] += static_cast<double>(row[c]);
  }
  std::pmr::vector<float> pivot(sums.size(), &workspace);
  for (size_t c = 0; c < sums.size(); ++c) pivot[c] = static_cast<float>(sums[c] / static_cast<double>(count));
  return pivot;
}

PointwiseMoments::Result PointwiseMoments::run(const float* x, float* scratch, std::pmr::memory_resource& workspace) const {
  const int64_t count = channels_ + products_.floats(), step = lines(2 * count);
  const std::pmr::vector<float> pivot = this->pivot(x, workspace);
  float* totals = scratch + threads_ * slot_floats();
  const auto total_of = [&](int64_t part) { return reinterpret_cast<double*>(totals + part * step); };
  parallel_tasks(parts_, threads_, [&](int64_t part, int64_t slot) {
    float* centered = scratch + slot * slot_floats();
    float* sums = centered + lines(block_ * channels_);
    float* products = sums + lines(channels_);
    double* own = total_of(part);
    std::fill_n(own, count, 0.0);
    const int64_t end = pixels_ * (part + 1) / parts_;
    for (int64_t first = pixels_ * part / parts_; first < end; first += block_) {
      const int64_t pixels = std::min(block_, end - first), next_offset = (first + pixels) * channels_;
      std::fill_n(sums, channels_, 0.0f);
      std::fill_n(products, products_.floats(), 0.0f);
      HWY_DYNAMIC_DISPATCH(pointwise_sums::center)(x + first * channels_, pixels, channels_, pivot.data(), centered, sums);
      const PointwiseSums::Next next[] = {{x + next_offset, pixels * channels_}};
      products_.add(centered, channels_, centered, pixels, next, products);
      for (int64_t i = 0; i < channels_; ++i) own[i] += static_cast<double>(sums[i]);
      for (int64_t i = 0; i < products_.floats(); ++i) own[channels_ + i] += static_cast<double>(products[i]);
    }
  });
  for (int64_t part = 1; part < parts_; ++part) {
    for (int64_t i = 0; i < count; ++i) total_of(0)[i] += total_of(part)[i];
  }
  Result result{std::pmr::vector<double>(total_of(0), total_of(0) + channels_, &workspace),
                std::pmr::vector<double>(static_cast<size_t>(channels_ * channels_), &workspace)};
  products_.unpack(total_of(0) + channels_, result.covariance.data());
  for (double& sum : result.mean) sum /= static_cast<double>(pixels_);  // from the pivot
  for (size_t i = 0; i < result.covariance.size(); ++i) {
    const auto channels = static_cast<size_t>(channels_);
    result.covariance[i] = result.covariance[i] / static_cast<double>(pixels_) - result.mean[i / channels] * result.mean[i % channels];
  }
  for (size_t i = 0; i < pivot.size(); ++i) result.mean[i] += static_cast<double>(pivot[i]);
  return result;
}

}  // namespace galley

#endif  // HWY_ONCE
