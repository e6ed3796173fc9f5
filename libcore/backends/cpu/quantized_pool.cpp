// Pooling of quantized channels_last images: integer sums and one rounding, and the largest of bytes. Channels fill the vectors; sums of at
// most 256 pixels stay in registers as 16 bits, then join those of 32 bits. One addition or comparison for each byte read: bound by the
// first- and second-level caches, in which windows overlap.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_SSSE3_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/quantized_pool.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace galley::quantized {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The largest of count bytes of each channel (i8 where flip is 0x80) and the number of the first that has it.
void largest_bytes(const uint8_t* const* taps, const uint8_t* numbers, int64_t count, uint8_t flip, uint8_t* best, uint8_t* index,
                   int64_t channels) {
  const auto some = [&](auto d, int64_t c) HWY_ATTR {
    const auto turn = hn::Set(d, flip);
    auto most = hn::Xor(hn::LoadU(d, taps[0] + c), turn), number = hn::Set(d, numbers[0]);
    for (int64_t i = 1; i < count; ++i) {
      const auto v = hn::Xor(hn::LoadU(d, taps[i] + c), turn);
      number = hn::IfThenElse(hn::Gt(v, most), hn::Set(d, numbers[i]), number);
      most = hn::Max(most, v);
    }
    hn::StoreU(hn::Xor(most, turn), d, best + c);
    hn::StoreU(number, d, index + c);
  };
  int64_t c = 0;
  const auto whole = [&](auto d) HWY_ATTR {
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    for (; c + lanes <= channels; c += lanes) some(d, c);
  };
  whole(hn::ScalableTag<uint8_t>());
  whole(hn::CappedTag<uint8_t, 32>());
  whole(hn::CappedTag<uint8_t, 16>());
  whole(hn::CappedTag<uint8_t, 8>());
  whole(hn::CappedTag<uint8_t, 1>());
}

/// sums[c]: the bytes of each of `count` channels (i8 where flip is 0x80), as u8, over `rows` lines of `columns` pixels. Sums of 256 pixels
/// fit 16 bits.
void sum_bytes(const uint8_t* x, int64_t rows, int64_t row_step, int64_t columns, int64_t column_step, uint8_t flip, int32_t* sums,
               int64_t count) {
  const auto some = [&](auto d, int64_t c) HWY_ATTR {
    constexpr int64_t kMost = 256;
    const hn::Rebind<uint8_t, decltype(d)> bytes;
    const auto turn = hn::Set(d, flip);
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    HWY_ALIGN uint16_t part[32];
    for (int64_t i = 0; i < lanes; ++i) sums[c + i] = 0;
    auto sum = hn::Zero(d);
    const auto flush = [&]() HWY_ATTR {
      hn::Store(sum, d, part);
      for (int64_t i = 0; i < lanes; ++i) sums[c + i] += part[i];
      sum = hn::Zero(d);
    };
    int64_t left = kMost;
    for (int64_t row = 0; row < rows; ++row) {
      const uint8_t* at = x + row * row_step + c;
      for (int64_t column = 0; column < columns; ++column, at += column_step) {
        sum = hn::Add(sum, hn::Xor(hn::PromoteTo(d, hn::LoadU(bytes, at)), turn));
        if (--left > 0) continue;
        flush();
        left = kMost;
      }
    }
    flush();
  };
  int64_t c = 0;
  const auto whole = [&](auto d) HWY_ATTR {
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    for (; c + lanes <= count; c += lanes) some(d, c);
  };
  whole(hn::CappedTag<uint16_t, 32>());
  whole(hn::CappedTag<uint16_t, 8>());
  whole(hn::CappedTag<uint16_t, 1>());
}

void scale_sums(const int32_t* sums, int32_t shift, float scale, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(sums[i] - shift) * scale;
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::quantized
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/quantized_epilogue.h"
#include "libcore/base/parallel.h"

namespace galley {
namespace quantized {
HWY_EXPORT(largest_bytes);
HWY_EXPORT(sum_bytes);
HWY_EXPORT(scale_sums);
}  // namespace quantized

namespace {

using namespace quantized;

constexpr int64_t kChannels = 32;  // of a task

Support supports(const KernelQuery& q) {
  if (!q.in(0).format.is_channels_last() || !q.out(0).format.is_channels_last()) return Support::no(cat("format ", q.in(0).format));
  if (q.in(0).elements() == 0 || q.out(0).elements() == 0) return Support::no("empty array");
  return Support::yes();
}

/// Windowed or adaptive: the cells of each output pixel and what its sum is divided by.
class QuantizedAverage : public PreparedKernel {
 public:
  struct Cell {
    PoolRange rows, columns;
    int64_t divisor = 1;
  };
  template <class Attrs>
  QuantizedAverage(const KernelQuery& q, const Attrs& a) : x_(q.in(0).shape), y_(q.out(0).shape), out_bytes_(dtype_size(q.out(0).dtype)) {
    set_results(epilogue_, a, Activation::kNone);
    flip_ = flip_of(q.in(0).dtype);
    zero_point_ = static_cast<int32_t>(a.input_zero_point) + flip_;
    scale_ = a.input_scale / (epilogue_.real ? 1 : a.output_scale);
  }
  std::vector<Cell> cells;

  void run(Stream&, const KernelArgs& args) const override {
    const int64_t channels = x_[1], chunks = (channels + kChannels - 1) / kChannels, pixels = y_[2] * y_[3];
    const int64_t work = x_.elements() / (x_[0] * pixels * chunks) + kChannels;  // bytes of a task
    parallel_for(x_[0] * pixels * chunks, std::max<int64_t>(1, 16384 / work), [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t pixel = task / chunks, first = task % chunks * kChannels, count = std::min(kChannels, channels - first),
                      image = pixel / pixels;
        const Cell& cell = cells[static_cast<size_t>(pixel % pixels)];
        int32_t sums[kChannels];
        float values[kChannels];
        HWY_DYNAMIC_DISPATCH(quantized::sum_bytes)
        (args.in<uint8_t>(0) + ((image * x_[2] + cell.rows.begin) * x_[3] + cell.columns.begin) * channels + first,
         cell.rows.end - cell.rows.begin, x_[3] * channels, cell.columns.end - cell.columns.begin, channels, flip_, sums, count);
        const int64_t inside = (cell.rows.end - cell.rows.begin) * (cell.columns.end - cell.columns.begin);
        HWY_DYNAMIC_DISPATCH(quantized::scale_sums)
        (sums, static_cast<int32_t>(inside) * zero_point_, static_cast<float>(scale_ / static_cast<double>(cell.divisor)), values, count);
        finish_values(epilogue_, values, count, static_cast<std::byte*>(args.outputs[0]) + (pixel * channels + first) * out_bytes_);
      }
    });
  }

 private:
  Shape x_, y_;
  int64_t out_bytes_;
  Epilogue epilogue_;
  uint8_t flip_ = 0;
  int32_t zero_point_ = 0;
  double scale_ = 1;
};

std::unique_ptr<PreparedKernel> prepare_avg(const KernelQuery& q) {
  const auto& a = q.attrs<QuantizedAvgPool2dAttrs>();
  const auto kernel = pair(a.kernel_size), stride = pair(a.stride.empty() ? a.kernel_size : a.stride), padding = pair(a.padding);
  auto prepared = std::make_unique<QuantizedAverage>(q, a);
  for (int64_t h = 0; h < q.out(0).shape[2]; ++h) {
    for (int64_t w = 0; w < q.out(0).shape[3]; ++w) {
      const PoolRange rows = pool_range(h, q.in(0).shape[2], kernel[0], stride[0], padding[0]),
                      columns = pool_range(w, q.in(0).shape[3], kernel[1], stride[1], padding[1]);
      prepared->cells.push_back(
          {rows, columns, a.count_include_pad ? rows.size * columns.size : (rows.end - rows.begin) * (columns.end - columns.begin)});
    }
  }
  return prepared;
}

std::unique_ptr<PreparedKernel> prepare_adaptive(const KernelQuery& q) {
  auto prepared = std::make_unique<QuantizedAverage>(q, q.attrs<QuantizedAdaptiveAvgPool2dAttrs>());
  for (int64_t h = 0; h < q.out(0).shape[2]; ++h) {
    for (int64_t w = 0; w < q.out(0).shape[3]; ++w) {
      const PoolRange rows = adaptive_range(h, q.in(0).shape[2], q.out(0).shape[2]),
                      columns = adaptive_range(w, q.in(0).shape[3], q.out(0).shape[3]);
      prepared->cells.push_back({rows, columns, rows.size * columns.size});
    }
  }
  return prepared;
}

class MaxPoolBytes : public PreparedKernel {
 public:
  explicit MaxPoolBytes(const KernelQuery& q) : x_(q.in(0).shape), y_(q.out(0).shape), flip_(flip_of(q.in(0).dtype)) {
    const auto& a = q.attrs<MaxPool2dAttrs>();
    kernel_ = pair(a.kernel_size);
    stride_ = pair(a.stride.empty() ? a.kernel_size : a.stride);
    padding_ = pair(a.padding);
    dilation_ = pair(a.dilation);
  }
  void run(Stream&, const KernelArgs& args) const override {
    const int64_t channels = x_[1];
    parallel_for(y_[0] * y_[2], 1, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const int64_t n = line / y_[2], h = line % y_[2];
        for (int64_t w = 0; w < y_[3]; ++w) {
          std::array<const uint8_t*, 256> taps;
          std::array<uint8_t, 256> numbers;
          int64_t count = 0;
          for (int64_t i = 0; i < kernel_[0]; ++i) {
            const int64_t row = h * stride_[0] - padding_[0] + i * dilation_[0];
            if (row < 0 || row >= x_[2]) continue;
            for (int64_t j = 0; j < kernel_[1]; ++j) {
              const int64_t column = w * stride_[1] - padding_[1] + j * dilation_[1];
              if (column < 0 || column >= x_[3]) continue;
              taps[static_cast<size_t>(count)] = args.in<uint8_t>(0) + ((n * x_[2] + row) * x_[3] + column) * channels;
              numbers[static_cast<size_t>(count++)] = static_cast<uint8_t>(i * kernel_[1] + j);
            }
          }
          const int64_t at = (line * y_[3] + w) * channels;
          HWY_DYNAMIC_DISPATCH(quantized::largest_bytes)(taps.data(), numbers.data(), count, flip_, args.out<uint8_t>(0) + at,
                                                         args.out<uint8_t>(1) + at, channels);
        }
      }
    });
  }

 private:
  Shape x_, y_;
  uint8_t flip_;
  std::array<int64_t, 2> kernel_{}, stride_{}, padding_{}, dilation_{};
};

Support supports_max(const KernelQuery& q) {
  if (q.in(0).dtype != DType::kU8 && q.in(0).dtype != DType::kI8) return Support::no(cat("dtype ", q.in(0).dtype));
  return supports(q);
}

/// Means of images that fill their arrays; extents.cpp has those of others.
Support supports_whole_images(const KernelQuery& q) {
  if (q.has(1)) return Support::no("extents");
  return supports(q);
}

}  // namespace

const Algorithm algorithm::kQuantizedAvgPool{supports, prepare_avg};
const Algorithm algorithm::kQuantizedAdaptiveAvgPool{supports_whole_images, prepare_adaptive};
const Algorithm algorithm::kMaxPoolBytes{supports_max, prepare_as<MaxPoolBytes>};

}  // namespace galley

#endif  // HWY_ONCE
