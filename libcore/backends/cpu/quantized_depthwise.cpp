// depthwise: quantized depthwise convolutions on channels_last images, one chunk of 16 channels per task.
//
// Input rows are packed in pairs: a 32-bit lane holds the values of a channel in two rows, widened to 16 bits and less the zero point, so
// one vpmaddwd (vpdpwssd with VNNI) adds two taps of a column. A pair serves every output row whose window contains both rows; windows that
// start in an odd row use the same pairs with weights shifted by one row. Sums are exact. One product for two taps and a vector bounds it;
// with hardswish the epilogue takes as long as the products of a 3x3 kernel.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_SSSE3_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/quantized_depthwise.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/quantized_epilogue-inl.h"

#ifndef GALLEY_QUANTIZED_DEPTHWISE_ONCE
#define GALLEY_QUANTIZED_DEPTHWISE_ONCE

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/quantized_epilogue.h"
#include "libcore/backends/cpu/quantized_pack.h"
#include "libcore/base/parallel.h"

namespace galley::quantized {

constexpr int64_t kChunk = 16;

/// Output rows [begin, end) of one image and one chunk of channels.
struct DepthwiseTask {
  const uint8_t* x = nullptr;                  // of the image, channel 0
  const int8_t* weight = nullptr;              // [kh][kw][channels]
  int64_t channels = 0, first = 0, lanes = 0;  // of the image; this task's
  int64_t height = 0, width = 0, out_width = 0;
  int64_t kernel_h = 0, kernel_w = 0, stride_h = 1, stride_w = 1, padding_h = 0, padding_w = 0;
  int64_t begin = 0, end = 0;
  int32_t zero_point = 0;
  uint8_t flip = 0;
  bool vnni = false;                 // vpdpwssd
  int64_t columns = 0;               // of a packed row
  int32_t* rows = nullptr;           // workspace: [kernel_h / 2 + 1][columns][16]
  const int32_t** row_at = nullptr;  // workspace: [kernel_h / 2 + 1]
  int32_t* weights = nullptr;        // workspace: [parity][kernel_h / 2 + 1][kernel_w][16]
  int32_t* sums = nullptr;           // workspace: [out_width][16]
  Epilogue epilogue;                 // of the image
};

}  // namespace galley::quantized

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::quantized {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if GALLEY_QUANTIZED_VECTORS

constexpr int kParts = static_cast<int>(kChunk) / kLanes;  // vectors of a chunk
constexpr int kAtOnce = 8 / kParts < 2 ? 2 : 8 / kParts;   // output pixels: 8 sums

/// Two rows' values of each channel in one lane: first | second << 16, as i16.
template <class D8, class T>
HWY_INLINE hn::Vec<D16> paired(D8 d8, const T* first, const T* second) {
  const D32 d32;
  const auto low = hn::PromoteTo(d32, hn::LoadU(d8, first)), high = hn::PromoteTo(d32, hn::LoadU(d8, second));
  return hn::BitCast(D16(), hn::Or(hn::And(low, hn::Set(d32, 0xFFFF)), hn::ShiftLeft<16>(high)));
}

/// Weights of both parities: pair p holds the kernel's rows 2p - parity and the next, 0 where there is none.
void lay_weights(const DepthwiseTask& t) {
  const hn::Rebind<int8_t, D32> d8;
  const D16 d16;
  const int64_t pairs = t.kernel_h / 2 + 1;
  HWY_ALIGN int8_t taps[2][kChunk];
  for (int64_t parity = 0; parity < 2; ++parity) {
    for (int64_t pair = 0; pair < pairs; ++pair) {
      for (int64_t column = 0; column < t.kernel_w; ++column) {
        for (int64_t i = 0; i < 2; ++i) {
          const int64_t row = 2 * pair - parity + i;
          if (row < 0 || row >= t.kernel_h) {
            std::memset(taps[i], 0, kChunk);
          } else if (t.lanes == kChunk) {
            std::memcpy(taps[i], t.weight + (row * t.kernel_w + column) * t.channels + t.first, kChunk);
          } else {
            std::memset(taps[i], 0, kChunk);
            std::memcpy(taps[i], t.weight + (row * t.kernel_w + column) * t.channels + t.first, static_cast<size_t>(t.lanes));
          }
        }
        auto* out = reinterpret_cast<int16_t*>(t.weights + ((parity * pairs + pair) * t.kernel_w + column) * kChunk);
        for (int p = 0; p < kParts; ++p) hn::Store(paired(d8, taps[0] + p * kLanes, taps[1] + p * kLanes), d16, out + p * 2 * kLanes);
      }
    }
  }
}

/// Packs rows `top` and top + 1 of the image (the zero point where they are outside) into `out`.
void lay_rows(const DepthwiseTask& t, int64_t top, int32_t* HWY_RESTRICT out) {
  const hn::Rebind<uint8_t, D32> d8;
  const D16 d16;
  const auto zero = hn::Set(d16, static_cast<int16_t>(t.zero_point));
  const auto turn = hn::BitCast(D32(), hn::Set(d16, t.flip));
  HWY_ALIGN uint8_t outside[kChunk];
#if HWY_TARGET <= HWY_AVX3
  const auto mine = hn::FirstN(d8, static_cast<size_t>(t.lanes));
#else
  HWY_ALIGN uint8_t piece[2][kChunk] = {};
#endif
  std::memset(outside, t.zero_point ^ t.flip, kChunk);
  const int64_t step = t.channels;
  const uint8_t* line[2];
  int64_t advance[2];
  for (int64_t i = 0; i < 2; ++i) {
    const bool inside = top + i >= 0 && top + i < t.height;
    line[i] = inside ? t.x + (top + i) * t.width * step + t.first : outside;
    advance[i] = inside ? step : 0;
  }
  const int64_t left = std::min(t.padding_w, t.columns), right = std::clamp(t.width + t.padding_w, left, t.columns);
  std::memset(out, 0, static_cast<size_t>(left * kChunk) * 4);
  std::memset(out + right * kChunk, 0, static_cast<size_t>((t.columns - right) * kChunk) * 4);
  const D32 d32;
  for (int64_t c = left; c < right; ++c) {
    const uint8_t* a = line[0];
    const uint8_t* b = line[1];
#if HWY_TARGET <= HWY_AVX3
    const auto load = [&](const uint8_t* from, int) HWY_ATTR { return hn::MaskedLoad(mine, d8, from); };
#else
    if (t.lanes < kChunk) {
      for (int64_t i = 0; i < t.lanes; ++i) {
        piece[0][i] = a[i];
        piece[1][i] = b[i];
      }
      a = piece[0];
      b = piece[1];
    }
    const auto load = [&](const uint8_t* from, int part) HWY_ATTR { return hn::LoadU(d8, from + part * kLanes); };
#endif
    auto* to = reinterpret_cast<int16_t*>(out + c * kChunk);
    for (int p = 0; p < kParts; ++p) {
      const auto low = hn::PromoteTo(d32, load(a, p)), high = hn::PromoteTo(d32, load(b, p));
      hn::Store(hn::Sub(hn::BitCast(d16, hn::Xor3(low, hn::ShiftLeft<16>(high), turn)), zero), d16, to + p * 2 * kLanes);
    }
    line[0] += advance[0];
    line[1] += advance[1];
  }
}

/// Sums of kCount neighboring pixels.
template <class Products, int kCount>
struct Pixels {
  Vectors<D32, kParts> sums;
  Pixels<Products, kCount - 1> next;
  HWY_INLINE void begin() {
    set_zero(sums);
    next.begin();
  }
  HWY_INLINE void add(const int32_t* x, int64_t step, const Vectors<D16, kParts>& weights) {
    add_lanes(sums, x, weights);
    next.add(x + step, step, weights);
  }
  HWY_INLINE void store(int32_t* to) const {
    store_sums(sums, to);
    next.store(to + kChunk);
  }

 private:
  template <int kLeft>
  static HWY_INLINE void add_lanes(Vectors<D32, kLeft>& sum, const int32_t* x, const Vectors<D16, kLeft>& weights) {
    if constexpr (kLeft > 0) {
      sum.head = Products::dot(hn::Load(D16(), reinterpret_cast<const int16_t*>(x)), weights.head, sum.head);
      add_lanes(sum.tail, x + kLanes, weights.tail);
    }
  }
};
template <class Products>
struct Pixels<Products, 0> {
  HWY_INLINE void begin() {}
  HWY_INLINE void add(const int32_t*, int64_t, const Vectors<D16, kParts>&) {}
  HWY_INLINE void store(int32_t*) const {}
};

/// Pairs of packed rows times their weights.
template <class Products, int kCount>
HWY_NOINLINE void pixel_sums(const int32_t* const* rows, int64_t pairs, int64_t at, int64_t step, int64_t kernel_w,
                             const int32_t* HWY_RESTRICT weights, int32_t* HWY_RESTRICT sums) {
  Pixels<Products, kCount> pixels;
  pixels.begin();
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const int32_t* x = rows[pair] + at;
    for (int64_t column = 0; column < kernel_w; ++column, x += kChunk, weights += kChunk) {
      Vectors<D16, kParts> w;
      load(w, reinterpret_cast<const int16_t*>(weights), 2 * kLanes);
      pixels.add(x, step, w);
    }
  }
  pixels.store(sums);
}

using PixelSums = void (*)(const int32_t* const*, int64_t, int64_t, int64_t, int64_t, const int32_t*, int32_t*);
template <class Products, int... kOthers>
constexpr std::array<PixelSums, sizeof...(kOthers)> pixel_sums_of(std::integer_sequence<int, kOthers...>) {
  return {pixel_sums<Products, kOthers + 1>...};
}
/// Indexed by the number of pixels. The last pixels of a line are computed together, since a single one would wait for each of its sums.
template <class Products>
constexpr std::array<PixelSums, kAtOnce> kPixelSums = pixel_sums_of<Products>(std::make_integer_sequence<int, kAtOnce>());

template <class Products>
void rows_by(const DepthwiseTask& t) {
  lay_weights(t);
  const int64_t slots = t.kernel_h / 2 + 1, row_size = t.columns * kChunk, step = t.stride_w * kChunk;
  const int64_t top = t.begin * t.stride_h - t.padding_h;
  int64_t laid = 0;  // pairs that have been packed, of rows top + 2 pair
  for (int64_t h = t.begin; h < t.end; ++h) {
    const int64_t from = (h - t.begin) * t.stride_h, parity = from % 2, first = from / 2, pairs = (parity + t.kernel_h + 1) / 2;
    laid = std::max(laid, first);
    for (; laid < first + pairs; ++laid) lay_rows(t, top + 2 * laid, t.rows + laid % slots * row_size);
    for (int64_t pair = 0; pair < pairs; ++pair) t.row_at[pair] = t.rows + (first + pair) % slots * row_size;
    const int32_t* weights = t.weights + parity * slots * t.kernel_w * kChunk;
    for (int64_t w = 0; w < t.out_width; w += kAtOnce) {
      const auto count = static_cast<size_t>(std::min<int64_t>(kAtOnce, t.out_width - w));
      kPixelSums<Products>[count - 1](t.row_at, pairs, w * step, step, t.kernel_w, weights, t.sums + w * kChunk);
    }
    finish<kChunk>(t.epilogue, t.sums, t.out_width, h * t.out_width, t.first, t.first, t.first + t.lanes);
  }
}

void depthwise_rows(const DepthwiseTask& t) {
#if HWY_TARGET <= HWY_AVX3
  if (t.vnni) return rows_by<PairProductsVnni>(t);
#endif
  rows_by<PairProducts>(t);
}

#else

void depthwise_rows(const DepthwiseTask&) {}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace galley::quantized
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley {
namespace quantized {
HWY_EXPORT(depthwise_rows);
}

namespace {

using namespace quantized;

/// [kh][kw][channels].
MemoryFormat packed() { return MemoryFormat::blocked("cdba"); }

class QuantizedDepthwise : public PreparedKernel {
 public:
  QuantizedDepthwise(const KernelQuery& q, const QuantizedConv2dAttrs& a)
      : x_(q.in(0).shape),
        y_(q.out(0).shape),
        results_(a, a.activation, y_[1]),
        weight_(q.in(1), packed()),
        out_bytes_(dtype_size(q.out(0).dtype)),
        threads_(q.threads) {
    const auto stride = pair(a.stride), padding = pair(a.padding);
    const Shape& w = q.in(1).shape;
    task_.channels = x_[1];
    task_.height = x_[2];
    task_.width = x_[3];
    task_.out_width = y_[3];
    task_.kernel_h = w[2];
    task_.kernel_w = w[3];
    task_.stride_h = stride[0];
    task_.stride_w = stride[1];
    task_.padding_h = padding[0];
    task_.padding_w = padding[1];
    task_.flip = flip_of(q.in(0).dtype);
    task_.zero_point = static_cast<int32_t>(a.input_zero_point) + task_.flip;
    const Path path = best_path(Saturation::kExact);
    task_.vnni = path == Path::kVnni || path == Path::kAmx;
    task_.columns = (y_[3] - 1) * stride[1] + w[3];
    if (q.has(4)) results_.set_residual(a.residual_scale, a.residual_zero_point, q.in(4).dtype);
    chunks_ = (x_[1] + kChunk - 1) / kChunk;
    // Bands repeat the rows that their windows share: no more bands than the threads need.
    const int64_t wanted = threads_ == 1 ? 1 : 4 * threads_;
    bands_ = std::clamp<int64_t>((wanted + x_[0] * chunks_ - 1) / (x_[0] * chunks_), 1, std::max<int64_t>(1, y_[2] / 8));
    rows_bytes_ = (w[2] / 2 + 1) * task_.columns * kChunk * 4;
    weights_bytes_ = 2 * (w[2] / 2 + 1) * w[3] * kChunk * 4;
    sums_bytes_ = y_[3] * kChunk * 4;
    workspace_bytes_ =
        rows_bytes_ + weights_bytes_ + sums_bytes_ + ((w[2] / 2 + 1) * static_cast<int64_t>(sizeof(int32_t*)) + 63) / 64 * 64;
  }
  int64_t scratch_bytes() const override { return results_.scratch_bytes() + weight_.scratch_bytes() + threads_ * workspace_bytes_; }
  std::string implementation() const override { return "depthwise-" + path_name(task_.vnni ? Path::kVnni : Path::kExact); }

  void run(Stream&, const KernelArgs& args) const override {
    auto* scratch = static_cast<std::byte*>(args.scratch);
    Epilogue e = results_.epilogue(args.in<float>(2), args.in<float>(3), scratch);
    e.residual = args.in<uint8_t>(4);
    scratch += results_.scratch_bytes();
    const int8_t* weight = weight_.get(args.in<int8_t>(1), scratch);
    scratch += weight_.scratch_bytes();
    parallel_tasks(x_[0] * bands_ * chunks_, threads_, [&](int64_t i, int64_t slot) {
      DepthwiseTask t = task_;
      const int64_t image = i / chunks_ / bands_, band = i / chunks_ % bands_, results = image * y_[1] * y_[2] * y_[3];
      t.x = args.in<uint8_t>(0) + image * x_[1] * x_[2] * x_[3];
      t.weight = weight;
      t.first = i % chunks_ * kChunk;
      t.lanes = std::min(kChunk, x_[1] - t.first);
      t.begin = y_[2] * band / bands_;
      t.end = y_[2] * (band + 1) / bands_;
      t.rows = reinterpret_cast<int32_t*>(scratch + slot * workspace_bytes_);
      t.weights = reinterpret_cast<int32_t*>(scratch + slot * workspace_bytes_ + rows_bytes_);
      t.sums = reinterpret_cast<int32_t*>(scratch + slot * workspace_bytes_ + rows_bytes_ + weights_bytes_);
      t.row_at = reinterpret_cast<const int32_t**>(scratch + slot * workspace_bytes_ + rows_bytes_ + weights_bytes_ + sums_bytes_);
      t.epilogue = e;
      t.epilogue.out = static_cast<std::byte*>(args.outputs[0]) + results * out_bytes_;
      if (e.residual) t.epilogue.residual = e.residual + results;
      HWY_DYNAMIC_DISPATCH(depthwise_rows)(t);
    });
  }

 private:
  Shape x_, y_;
  Results results_;
  Packed weight_;
  DepthwiseTask task_;
  int64_t out_bytes_ = 1, threads_ = 1, chunks_ = 1, bands_ = 1, rows_bytes_ = 0, weights_bytes_ = 0, sums_bytes_ = 0, workspace_bytes_ = 0;
};

Support supports(const KernelQuery& q) {
  const auto& a = q.attrs<QuantizedConv2dAttrs>();
  if (!available()) return Support::no("no vectors of 128 bits");
  if (a.groups == 1 || a.groups != q.in(0).shape[1] || q.in(1).shape[0] != a.groups) return Support::no("not depthwise");
  for (const int i : {0, 4}) {
    if (q.has(i) && !q.in(i).format.is_channels_last()) return Support::no(cat("format ", q.in(i).format));
  }
  if (!q.out(0).format.is_channels_last()) return Support::no(cat("format ", q.out(0).format));
  if (q.in(0).elements() == 0 || q.out(0).elements() == 0) return Support::no("empty array");
  const auto dilation = pair(a.dilation);
  if (dilation[0] != 1 || dilation[1] != 1) return Support::no("dilation");
  return Support::yes();
}

std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<QuantizedDepthwise>(q, q.attrs<QuantizedConv2dAttrs>());
}

MemoryFormat preferred_format(const KernelQuery& q, int input) { return input == 1 ? packed() : q.in(input).format; }

}  // namespace

const Algorithm algorithm::kQuantizedDepthwise{supports, prepare, preferred_format};

}  // namespace galley

#endif  // HWY_ONCE
