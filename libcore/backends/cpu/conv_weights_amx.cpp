// implicit_gemm_amx: the weight gradient of dense convolutions in bf16 on channels_last images, by the tile products of Intel AMX
// (tdpbf16ps). W[o][i][tap] = sum over output pixels p of grad[p][o] x[p stride + tap][i], so a product sums over pixels, 32 at a time.
//
// Layout. The left operand is the gradient, transposed while it is packed: tiles [16 outputs][32 pixels]. The right operand is x with two
// pixels interleaved: tiles [16 pairs of pixels][16 inputs][2]. Each tap reads the same packed x from another pixel on. A pair of pixels is
// a row of 64 bytes, so a tile that starts at an even pixel is 16 whole cache lines; for taps that start at odd pixels x is packed a second
// time. (With x as the left operand any pixel would do, but each row of a tile would span two cache lines: as much to load as to multiply.)
// For a stride of s, the columns and rows of each phase (remainder modulo s) that some tap reads are packed separately, so that a tap is
// always a shift.
//
// Pixels form one stream, line after line and image after image, with zeros between the lines of the gradient where those of x are longer;
// the zeros after one line of x are the ones before the next. So only the last tile of a block of pixels is partly empty. Since a pixel of
// x may meet those zeros, an inf or NaN in x may turn other taps of its channel into NaN, too.
//
// Cost. 2 x 2 tiles of sums are accumulated at a time, which load 2 + 2 tiles: 32 cycles of loads to 64 of products, so the tile unit
// bounds it. An inner block of pixels of two tiles of outputs (24 KiB) stays in the first-level cache while all inputs and taps pass; a
// packed block of at most 256 outputs (384 KiB), as many inputs (768 KiB at most) and their sums (640 KiB) stay in the second-level cache.
// Tile layouts follow the chapter on AMX of Intel's Optimization Reference Manual. Bits depend on the logical thread count only.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/conv_weights_amx.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/bfloat16-inl.h"
#include "libcore/backends/cpu/unrolled-inl.h"

#ifndef GALLEY_CONV_WEIGHTS_AMX_ONCE
#define GALLEY_CONV_WEIGHTS_AMX_ONCE

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/amx_tiles.h"
#include "libcore/backends/cpu/conv_weights.h"
#include "libcore/backends/cpu/conv_weights_amx.h"
#include "libcore/backends/cpu/conv_weights_amx_plan.h"
#include "libcore/base/error.h"
#include "libcore/base/parallel.h"
#include "libcore/base/processor.h"
#include "libcore/ops/conv.h"

namespace galley::conv_weights_amx {

/// Attribute of a lambda that is inlined.
#define GALLEY_IN_PLACE __attribute__((always_inline))

using Pixels = const uint16_t* const*;  // the channels of each pixel

/// The channel that a column of a tile of packed x holds. Channels are interleaved in groups of eight, 32 at a time while more than 16 are
/// left: one tile takes the first four of each group, the next tile the others.
inline int64_t channel_of(int64_t channels, int64_t tile, int64_t column) {
  const int64_t pair = tile / 2 * 2 * kSide;
  if (pair + kSide < channels) return pair + column / 4 * 8 + tile % 2 * 4 + column % 4;
  return pair + column / 4 % 2 * 8 + column / 8 * 4 + column % 4;
}

/// A row of sums as it is written: those of `parts` parts, `part_step` floats apart, of `taps` taps, a tile apart.
struct SumRow {
  const float* first;
  int64_t parts, part_step, taps;
};

}  // namespace galley::conv_weights_amx

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::conv_weights_amx {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_HAVE_SCALABLE || HWY_TARGET == HWY_SCALAR
void interleave(Pixels at, int64_t pairs, int64_t channels, uint16_t* HWY_RESTRICT to, int64_t tile_step) {
  for (int64_t tile = 0; tile * kSide < channels; ++tile) {
    for (int64_t i = 0; i < pairs * kDepth; ++i)
      to[tile * tile_step + i] = at[i / kDepth * 2 + i % 2][channel_of(channels, tile, i % kDepth / 2)];
  }
}
void transpose(Pixels at, int64_t steps, int64_t channels, uint16_t* HWY_RESTRICT to, int64_t tile_step) {
  for (int64_t tile = 0; tile * kSide < channels; ++tile) {
    for (int64_t i = 0; i < steps * kHalves; ++i)
      to[tile * tile_step + i] = at[i / kHalves * kDepth + i % kDepth][tile * kSide + i / kDepth % kSide];
  }
}
void write_row(const SumRow& row, const int64_t* columns, uint16_t* HWY_RESTRICT to) {
  for (int64_t i = 0; i < row.taps * kSide; ++i) {
    float total = row.first[i / kSide * kSums + i % kSide];
    for (int64_t part = 1; part < row.parts; ++part) total += row.first[part * row.part_step + i / kSide * kSums + i % kSide];
    BFloat16 value;
    value = total;
    if (columns[i % kSide] >= 0) to[columns[i % kSide] * row.taps + i / kSide] = value.bits;
  }
}
#else

using galley::HWY_NAMESPACE::each;

/// Interleaves the channels of two pixels: of each eight, the first four into `lower`, the others into `upper`.
template <int64_t kChannels>
HWY_INLINE void interleave_two(const uint16_t* even, const uint16_t* odd, uint16_t* HWY_RESTRICT lower, uint16_t* HWY_RESTRICT upper) {
  const hn::CappedTag<uint16_t, kChannels> d;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  each<static_cast<int>(kChannels) / kLanes>([&](auto v) GALLEY_LOOP {
    const auto a = hn::LoadU(d, even + v * kLanes), b = hn::LoadU(d, odd + v * kLanes);
    hn::StoreU(hn::InterleaveLower(d, a, b), d, lower + v * kLanes);
    hn::StoreU(hn::InterleaveUpper(d, a, b), d, upper + v * kLanes);
  });
}

/// Writes pixels at[2j] and at[2j + 1] as row j of a tile [pair][16 channels][2] for every 16 channels, tiles `tile_step` values apart.
/// Reads `channels` rounded up to a multiple of 16. Sixteen pixels at a time: whole cache lines are read once.
void interleave(Pixels at, int64_t pairs, int64_t channels, uint16_t* HWY_RESTRICT to, int64_t tile_step) {
  for (int64_t first = 0; first < pairs; first += 8) {
    const int64_t last = std::min(pairs, first + 8);
    for (int64_t c = 0; c < channels; c += kDepth) {
      uint16_t* HWY_RESTRICT tile = to + c / kSide * tile_step;
      if (c + kSide < channels) {
        for (int64_t j = first; j < last; ++j)
          interleave_two<kDepth>(at[2 * j] + c, at[2 * j + 1] + c, tile + j * kDepth, tile + tile_step + j * kDepth);
      } else {
        for (int64_t j = first; j < last; ++j)
          interleave_two<kSide>(at[2 * j] + c, at[2 * j + 1] + c, tile + j * kDepth, tile + j * kDepth + kSide);
      }
    }
  }
}

/// Eight rows of eight values (of each half of a vector) as columns. Three times, row i and row i + 4 become rows 2i and 2i + 1: each turns
/// the six bits of a value's place by one.
template <class D, class V>
HWY_INLINE void transpose_eight(D d, V (&rows)[8]) {
  each<3>([&](auto) GALLEY_LOOP {
    V next[8];
    each<4>([&](auto i) GALLEY_LOOP {
      next[2 * i] = hn::InterleaveLower(d, rows[i], rows[i + 4]);
      next[2 * i + 1] = hn::InterleaveUpper(d, rows[i], rows[i + 4]);
    });
    each<8>([&](auto i) GALLEY_LOOP { rows[i] = next[i]; });
  });
}

/// Writes tiles [16 channels][32 pixels] of 32 pixels each; the tiles of the next 16 channels are `tile_step` values on. Reads as many
/// channels as `interleave`.
void transpose(Pixels at, int64_t steps, int64_t channels, uint16_t* HWY_RESTRICT to, int64_t tile_step) {
  const hn::CappedTag<uint16_t, 16> d;
  const hn::CappedTag<uint16_t, 8> d8;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  for (int64_t step = 0; step < steps; ++step, at += kDepth, to += kHalves) {
    for (int64_t c = 0; c < channels; c += kSide) {
      for (int64_t half = 0; half < kSide; half += 8) {
        uint16_t* HWY_RESTRICT row = to + c / kSide * tile_step + half * kDepth;
        each<static_cast<int>(kDepth) / kLanes>([&](auto part) GALLEY_LOOP {
          const Pixels pixels = at + part * kLanes;
          hn::Vec<decltype(d)> rows[8];
          each<8>([&](auto i) GALLEY_LOOP {
            const auto lower = hn::LoadU(d8, pixels[i] + c + half);
            if constexpr (kLanes == 16) {
              rows[i] = hn::Combine(d, hn::LoadU(d8, pixels[i + 8] + c + half), lower);
            } else {
              rows[i] = lower;
            }
          });
          transpose_eight(d, rows);
          each<8>([&](auto i) GALLEY_LOOP { hn::StoreU(rows[i], d, row + i * kDepth + part * kLanes); });
        });
      }
    }
  }
}

/// Rounds a row of sums to to[columns[j]][tap], for the columns j that have a channel (others: -1).
void write_row(const SumRow& row, const int64_t* columns, uint16_t* HWY_RESTRICT to) {
  using galley::HWY_NAMESPACE::store_floats;
  const hn::CappedTag<float, kSide> d;
  const hn::CappedTag<uint16_t, 8> d8;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  for (int64_t tap = 0; tap < row.taps; tap += 8) {
    const int64_t count = std::min<int64_t>(8, row.taps - tap);
    HWY_ALIGN BFloat16 values[8 * kSide];
    for (int64_t t = 0; t < count; ++t) {
      each<static_cast<int>(kSide) / kLanes>([&](auto v) GALLEY_LOOP {
        const float* from = row.first + (tap + t) * kSums + v * kLanes;
        auto total = hn::LoadU(d, from);
        for (int64_t part = 1; part < row.parts; ++part) total = hn::Add(total, hn::LoadU(d, from + part * row.part_step));
        store_floats(total, d, values + t * kSide + v * kLanes);
      });
    }
    if (row.taps == 1) {  // channels go by fours
      for (int64_t j = 0; j < kSide; j += 4) {
        if (columns[j] >= 0 && columns[j + 3] == columns[j] + 3) {
          std::memcpy(to + columns[j], values + j, 4 * sizeof(BFloat16));
        } else {
          for (int64_t i = j; i < j + 4; ++i) {
            if (columns[i] >= 0) to[columns[i]] = values[i].bits;
          }
        }
      }
    } else if (count == 8) {
      for (int64_t j = 0; j < kSide; j += 8) {
        hn::Vec<decltype(d8)> rows[8];
        each<8>([&](auto t) GALLEY_LOOP { rows[t] = hn::LoadU(d8, &values[t * kSide + j].bits); });
        transpose_eight(d8, rows);
        each<8>([&](auto i) GALLEY_LOOP {
          if (columns[j + i] >= 0) hn::StoreU(rows[i], d8, to + columns[j + i] * row.taps + tap);
        });
      }
    } else {
      for (int64_t j = 0; j < kSide; ++j) {
        for (int64_t t = 0; t < count && columns[j] >= 0; ++t) to[columns[j] * row.taps + tap + t] = values[t * kSide + j].bits;
      }
    }
  }
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace galley::conv_weights_amx
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley {
namespace conv_weights_amx {
HWY_EXPORT(interleave);
HWY_EXPORT(transpose);
HWY_EXPORT(write_row);

namespace {

/// sums [kRows][kColumns] of tiles += (or =, where `first`) products over `steps` tiles of pixels of tiles left + row left_step and
/// right[column]; sums of a row of tiles `row_step` floats on.
template <class Tiles, int kRows, int kColumns>
__attribute__((noinline)) void multiply(Tiles& tiles, const uint16_t* left, int64_t left_step, const uint16_t* const* right, int64_t steps,
                                        bool first, float* sums, int64_t row_step) {
  constexpr int64_t kFloats = kSide * 4;  // bytes of a row of sums
  const auto each_sum = [&](auto body) GALLEY_IN_PLACE {
    [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) GALLEY_IN_PLACE {
      (body(std::integral_constant<int, kIndex>(), sums + kIndex / kColumns * row_step + kIndex % kColumns * kSums), ...);
    }(std::make_integer_sequence<int, kRows * kColumns>());
  };
  each_sum([&](auto i, const float* at) GALLEY_IN_PLACE {
    if (first) {
      tiles.template clear<i>();
    } else {
      tiles.template load<i>(at, kFloats);
    }
  });
  for (int64_t step = 0; step < steps; ++step) {
    tiles.template load<4>(left + step * kHalves, amx::kBytes);
    if constexpr (kRows == 2) tiles.template load<5>(left + left_step + step * kHalves, amx::kBytes);
    [&]<int... kColumn>(std::integer_sequence<int, kColumn...>) GALLEY_IN_PLACE {
      const auto column = [&](auto c) GALLEY_IN_PLACE {
        constexpr int kRight = 6 + c % 2;
        tiles.template load<kRight>(right[c] + step * kHalves, amx::kBytes);
        tiles.template multiply_bf16<c, 4, kRight>();
        if constexpr (kRows == 2) tiles.template multiply_bf16<kColumns + c, 5, kRight>();
      };
      (column(std::integral_constant<int, kColumn>()), ...);
    }(std::make_integer_sequence<int, kColumns>());
  }
  each_sum([&](auto i, float* at) GALLEY_IN_PLACE { tiles.template store<i>(at, kFloats); });
}

/// The task of a thread: rows of the stream, tiles of outputs.
struct Task {
  const KernelArgs& args;
  char* workspace;
  float* sums;
  int64_t first_row, last_row, first_tile, last_tile;
  template <class T>
  T* at(int64_t bytes) const {
    return reinterpret_cast<T*>(workspace + bytes);
  }
};

template <class Tiles>
class AmxConvWeights : public PreparedKernel {
 public:
  explicit AmxConvWeights(const KernelQuery& q) : plan_(q), x_(q.in(0).shape), w_(q.out(0)), offsets_(w_) {
    const Plan& p = plan_;
    GALLEY_ASSERT(q.in(0).dtype == DType::kBF16 && q.in(1).dtype == DType::kBF16 && (w_.dtype == DType::kBF16 || w_.dtype == DType::kF32));
    in_rows_ = w_.dtype == DType::kBF16 && w_.format.is_contiguous() && !p.merged;
    for (int64_t tile = 0; tile < p.in_tiles; ++tile) {
      for (int64_t column = 0; column < kSide; ++column) {
        const int64_t channel = channel_of(p.inputs, tile, column);
        channels_.push_back(channel < p.inputs ? channel : -1);
      }
    }
    // Consecutive, in bytes.
    const auto workspace = [this](int64_t bytes) { return std::exchange(workspace_, workspace_ + lines(bytes)); };
    grad_at_ = workspace(p.out_block * p.steps * amx::kSize);
    x_at_ = workspace(static_cast<int64_t>(p.variants.size()) * p.in_block * x_tile() * 2);
    pixels_ = std::max(p.steps * kDepth, 2 * p.pairs + 2);
    list_at_ = workspace(pixels_ * static_cast<int64_t>(sizeof(uint16_t*)));
    zeros_at_ = workspace(std::max(whole(p.inputs), whole(p.outputs)) * 2);
    grad_copies_at_ = workspace(up(whole(p.outputs), p.outputs) * whole(p.outputs) * 2);
    x_copies_at_ = workspace((p.merged ? pixels_ : up(whole(p.inputs), p.inputs)) * whole(p.inputs) * 2);
    sums_at_ = workspace(p.pixel_parts == 1 ? p.out_block * p.in_block * p.taps * kSums * 4 : 0);
    sums_ = p.pixel_parts == 1 ? 0 : p.out_tiles * p.in_tiles * p.taps * kSums;
  }
  int64_t scratch_bytes() const override { return plan_.pixel_parts * sums_ * 4 + plan_.pixel_parts * plan_.out_parts * workspace_; }

  void run(Stream&, const KernelArgs& args) const override {
    const Plan& p = plan_;
    auto* sums = static_cast<float*>(args.scratch);
    auto* workspaces = reinterpret_cast<char*>(sums + p.pixel_parts * sums_);
    if (w_.bytes() > w_.shape.elements() * item())
      std::memset(args.outputs[0], 0, static_cast<size_t>(w_.bytes()));  // a blocked format's padding
    const int64_t out_pairs = up(p.out_tiles, 2);
    parallel_for(p.pixel_parts * p.out_parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t part = task / p.out_parts, share = task % p.out_parts;
        add({args, workspaces + task * workspace_, sums + part * sums_, p.stream_rows * part / p.pixel_parts,
             p.stream_rows * (part + 1) / p.pixel_parts, 2 * (out_pairs * share / p.out_parts),
             std::min(p.out_tiles, 2 * (out_pairs * (share + 1) / p.out_parts))});
      }
    });
    if (sums_ == 0) return;
    parallel_for(p.out_tiles, 1, [&](int64_t begin, int64_t end) {
      for (int64_t tile = begin; tile < end; ++tile) write(args, sums + tile * p.in_tiles * p.taps * kSums, tile, 0, p.in_tiles);
    });
  }

 private:
  int64_t item() const { return w_.dtype == DType::kBF16 ? 2 : 4; }
  int64_t x_tile() const { return plan_.pairs * kDepth; }  // values of 16 channels of a block

  void add(const Task& task) const {
    const Plan& p = plan_;
    Tiles tiles;
    tiles.begin();
    std::memset(task.at<char>(zeros_at_), 0, static_cast<size_t>(grad_copies_at_ - zeros_at_));
    const int64_t rows = task.last_row - task.first_row, blocks = up(rows, p.block_rows);
    // A block's sums stay in the second-level cache while all pixels pass.
    for (int64_t tile = task.first_tile; tile < task.last_tile; tile += p.out_block) {
      const int64_t last_tile = std::min(task.last_tile, tile + p.out_block);
      for (int64_t in_tile = 0; in_tile < p.in_tiles; in_tile += p.in_block) {
        const int64_t in_tiles = std::min(p.in_block, p.in_tiles - in_tile),
                      row_step = (sums_ == 0 ? in_tiles : p.in_tiles) * p.taps * kSums;
        float* sums = sums_ == 0 ? task.at<float>(sums_at_) : task.sums + tile * row_step + in_tile * p.taps * kSums;
        for (int64_t block = 0; block < blocks; ++block) {
          const int64_t first = task.first_row + rows * block / blocks, last = task.first_row + rows * (block + 1) / blocks,
                        steps = up((last - first) * p.columns.pitch, kDepth);
          if (in_tile == 0 || blocks > 1) pack_gradient(task, first, last, steps, tile * kSide, std::min(p.outputs, last_tile * kSide));
          pack_x(task, first, last, steps, in_tile * kSide, std::min(p.inputs, (in_tile + in_tiles) * kSide));
          for (int64_t o = tile; o < last_tile; o += 2) {
            add_products(tiles, task, (o - tile) * p.steps, last_tile - o > 1 ? 2 : 1, in_tiles * p.taps, steps, block == 0,
                         sums + (o - tile) * row_step, row_step);
          }
        }
        if (sums_ != 0) continue;
        for (int64_t o = tile; o < last_tile; ++o) write(task.args, sums + (o - tile) * row_step, o, in_tile, in_tiles);
      }
    }
    tiles.end();
  }

  /// Products of one or two tiles of outputs, from tile `at` of the packed gradient on, with all packed inputs and taps.
  void add_products(Tiles& tiles, const Task& task, int64_t at, int outputs, int64_t columns, int64_t steps, bool first_block, float* sums,
                    int64_t row_step) const {
    const Plan& p = plan_;
    const int64_t inner_blocks = up(steps, kInnerSteps), together = outputs == 2 ? 2 : 4;
    for (int64_t inner = 0; inner < inner_blocks; ++inner) {
      const int64_t first = steps * inner / inner_blocks, count = steps * (inner + 1) / inner_blocks - first;
      const uint16_t* left = task.at<uint16_t>(grad_at_) + (at + first) * kHalves;
      const bool clear = first_block && inner == 0;
      for (int64_t column = 0; column < columns; column += together) {
        const uint16_t* right[4];
        const int64_t now = std::min(together, columns - column);
        for (int64_t c = 0; c < now; ++c) {
          const auto& tap = p.tap_at[static_cast<size_t>((column + c) % p.taps)];
          right[c] = x_workspace(task, tap.variant, (column + c) / p.taps) + (tap.pair + first * kSide) * kDepth;
        }
        constexpr auto kOne = std::array{multiply<Tiles, 1, 1>, multiply<Tiles, 1, 2>, multiply<Tiles, 1, 3>, multiply<Tiles, 1, 4>};
        constexpr auto kTwo = std::array{multiply<Tiles, 2, 1>, multiply<Tiles, 2, 2>};
        const auto of_tiles = outputs == 2 ? kTwo[static_cast<size_t>(now - 1)] : kOne[static_cast<size_t>(now - 1)];
        of_tiles(tiles, left, p.steps * kHalves, right, count, clear, sums + column * kSums, row_step);
      }
    }
  }

  uint16_t* x_workspace(const Task& task, int64_t variant, int64_t tile) const {
    return task.at<uint16_t>(x_at_) + (variant * plan_.in_block + tile) * x_tile();
  }

  /// The channels of a pixel: in place where `count` of them are inside the array (tiles are read whole), else a copy followed by zeros.
  static const uint16_t* within(const uint16_t* pixel, int64_t channels, int64_t count, const uint16_t* end, uint16_t*& copies) {
    if (end - pixel >= count) return pixel;
    std::memcpy(copies, pixel, static_cast<size_t>(channels) * 2);
    std::memset(copies + channels, 0, static_cast<size_t>(count - channels) * 2);
    return std::exchange(copies, copies + count);
  }

  /// Rows [first, last) of the stream, followed by zeros.
  void pack_gradient(const Task& task, int64_t first, int64_t last, int64_t steps, int64_t channel, int64_t last_channel) const {
    const Plan& p = plan_;
    const auto* grad = task.args.in<uint16_t>(1);
    const uint16_t* end = grad + p.images * p.rows.out * p.columns.out * p.outputs;
    const uint16_t* zeros = task.at<uint16_t>(zeros_at_);
    auto* copies = task.at<uint16_t>(grad_copies_at_);
    auto* list = task.at<const uint16_t*>(list_at_);
    auto* next = list;
    for (int64_t row = first; row < last; ++row) {
      const int64_t image = row / p.rows.pitch, h = row % p.rows.pitch, width = h < p.rows.out ? p.columns.out : 0;
      const uint16_t* pixel = grad + (image * p.rows.out + h) * p.columns.out * p.outputs;
      for (int64_t w = 0; w < width; ++w, pixel += p.outputs) *next++ = within(pixel, p.outputs, whole(p.outputs), end, copies) + channel;
      next = std::fill_n(next, p.columns.pitch - width, zeros);
    }
    std::fill(next, list + steps * kDepth, zeros);
    HWY_DYNAMIC_DISPATCH(transpose)(list, steps, last_channel - channel, task.at<uint16_t>(grad_at_), p.steps * kHalves);
  }

  /// Rows [first, last) of the stream and the pixels after them that taps read, in all variants.
  void pack_x(const Task& task, int64_t first, int64_t last, int64_t steps, int64_t channel, int64_t last_channel) const {
    const Plan& p = plan_;
    const int64_t pairs = steps * kSide + p.tap_at.back().pair;
    const auto* list = task.at<const uint16_t*>(list_at_);
    for (size_t v = 0; v < p.variants.size(); ++v) {
      const Plan::Variant& variant = p.variants[v];
      bool listed = false;
      for (size_t before = 0; before < v; ++before)
        listed |= p.variants[before].row_phase == variant.row_phase && p.variants[before].column_phase == variant.column_phase;
      if (listed) continue;
      list_x(task, first, last + p.rows.shift(), variant, channel, 2 * pairs + 1);
      for (size_t same = v; same < p.variants.size(); ++same) {
        if (p.variants[same].row_phase != variant.row_phase || p.variants[same].column_phase != variant.column_phase) continue;
        HWY_DYNAMIC_DISPATCH(interleave)(list + p.variants[same].parity, pairs, last_channel - channel,
                                         x_workspace(task, static_cast<int64_t>(same), 0), x_tile());
      }
    }
  }

  /// Lists the addresses of `count` pixels of x from row `first` of the stream on; zeros from row `last` on.
  void list_x(const Task& task, int64_t first, int64_t last, const Plan::Variant& variant, int64_t channel, int64_t count) const {
    const Plan& p = plan_;
    const auto* x = task.args.in<uint16_t>(0);
    const uint16_t* end = x + x_.elements();
    const uint16_t* zeros = task.at<uint16_t>(zeros_at_);
    auto* copies = task.at<uint16_t>(x_copies_at_);
    auto* list = task.at<const uint16_t*>(list_at_);
    auto* next = list;
    for (int64_t row = first; row < last && next < list + count; ++row) {
      const int64_t image = row / p.rows.pitch, h = image < p.images ? p.rows.input(variant.row_phase, row % p.rows.pitch) : -1;
      const int64_t width = std::min(p.columns.pitch, list + count - next);
      if (h < 0) {
        next = std::fill_n(next, width, zeros);
        continue;
      }
      const uint16_t* line = x + (image * x_[2] + h) * x_[3] * p.in_channels;
      for (int64_t u = 0; u < width; ++u) {
        if (p.merged) {
          *next++ = merged_pixel(line, u * p.columns.stride - p.columns.padding, end, copies) + channel;
        } else {
          const int64_t w = p.columns.input(variant.column_phase, u);
          *next++ = w < 0 ? zeros : within(line + w * p.in_channels, p.inputs, whole(p.inputs), end, copies) + channel;
        }
      }
    }
    std::fill(next, list + count, zeros);
  }

  /// A row of taps from column w of a line on.
  const uint16_t* merged_pixel(const uint16_t* line, int64_t w, const uint16_t* end, uint16_t*& copies) const {
    const Plan& p = plan_;
    const int64_t width = p.inputs / p.in_channels;
    if (w >= 0 && w + width <= x_[3]) return within(line + w * p.in_channels, p.inputs, whole(p.inputs), end, copies);
    uint16_t* copy = std::exchange(copies, copies + whole(p.inputs));
    std::memset(copy, 0, static_cast<size_t>(whole(p.inputs)) * 2);
    const int64_t from = std::max<int64_t>(0, w), to = std::min(x_[3], w + width);
    if (from < to)
      std::memcpy(copy + (from - w) * p.in_channels, line + from * p.in_channels, static_cast<size_t>((to - from) * p.in_channels) * 2);
    return copy;
  }

  /// Adds the sums [input][tap] of all parts in their order, for one tile of outputs and some of inputs, and writes them in the weight's
  /// format.
  void write(const KernelArgs& args, const float* sums, int64_t out_tile, int64_t in_tile, int64_t in_tiles) const {
    const Plan& p = plan_;
    for (int64_t row = 0; row < std::min(kSide, p.outputs - out_tile * kSide); ++row) {
      const int64_t o = out_tile * kSide + row;
      for (int64_t i = 0; i < in_tiles; ++i) {
        const SumRow from{sums + i * p.taps * kSums + row * kSide, p.pixel_parts, sums_, p.taps};
        const int64_t* columns = channels_.data() + (in_tile + i) * kSide;
        if (in_rows_) {
          HWY_DYNAMIC_DISPATCH(write_row)(from, columns, args.out<uint16_t>(0) + o * p.inputs * p.taps);
        } else if (w_.dtype == DType::kBF16) {
          write_each(from, columns, offsets_.out[static_cast<size_t>(o)], args.out<BFloat16>(0));
        } else {
          write_each(from, columns, offsets_.out[static_cast<size_t>(o)], args.out<float>(0));
        }
      }
    }
  }

  template <class T>
  void write_each(const SumRow& row, const int64_t* columns, int64_t offset, T* out) const {
    const Plan& p = plan_;
    for (int64_t i = 0; i < row.taps * kSide; ++i) {
      const int64_t tap = i / kSide, channel = columns[i % kSide];
      if (channel < 0) continue;
      float total = row.first[tap * kSums + i % kSide];
      for (int64_t part = 1; part < row.parts; ++part) total += row.first[part * row.part_step + tap * kSums + i % kSide];
      const int64_t in = channel % p.in_channels,
                    tap_of_weight = p.merged ? tap * (p.inputs / p.in_channels) + channel / p.in_channels : tap;
      out[offset + offsets_.in[static_cast<size_t>(in)] + offsets_.tap[static_cast<size_t>(tap_of_weight)]] = total;
    }
  }

  Plan plan_;
  Shape x_;
  TensorType w_;
  WeightTerms offsets_;
  std::vector<int64_t> channels_;  // of each tile's columns; -1: none
  bool in_rows_ = false;           // the gradient has the layout of its sums, tap after tap
  int64_t sums_ = 0;               // of a part of the pixels; 0 where there is one part, whose sums are written at once
  int64_t pixels_ = 0, workspace_ = 0;
  int64_t grad_at_ = 0, x_at_ = 0, list_at_ = 0, zeros_at_ = 0, grad_copies_at_ = 0, x_copies_at_ = 0, sums_at_ = 0;
};

Support supports(const KernelQuery& q) {
  if (!tile_unit().bf16) return Support::no("no tile unit that multiplies bf16");
  if (const Support dense = is_dense_weight_gradient(q, DType::kBF16); !dense) return dense;
  const auto dilation = pair(q.attrs<Conv2dBackwardWeightsAttrs>().dilation);
  if (dilation[0] != 1 || dilation[1] != 1) return Support::no("dilation");
  const double useful = useful_fraction_of_tiles(q);
  if (useful * 100 < static_cast<double>(conv_threshold::kAmxUsefulPercent.value))
    return Support::no(cat("channels and pixels fill ", static_cast<int>(useful * 100), " % of tiles"));
  return Support::yes();
}

std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
#if defined(__x86_64__)
  return std::make_unique<AmxConvWeights<amx::Hardware>>(q);
#else
  return emulated_conv_weights_amx(q);
#endif
}

}  // namespace
}  // namespace conv_weights_amx

const Algorithm algorithm::kConvWeightsAmx{conv_weights_amx::supports, conv_weights_amx::prepare};

std::unique_ptr<PreparedKernel> emulated_conv_weights_amx(const KernelQuery& query) {
  return std::make_unique<conv_weights_amx::AmxConvWeights<amx::Emulated>>(query);
}

double useful_fraction_of_tiles(const KernelQuery& query) { return conv_weights_amx::Plan(query).useful_fraction(); }

}  // namespace galley

#endif  // HWY_ONCE
