#pragma once
// How conv_weights_amx.cpp divides a weight gradient: into a stream of pixels, cache blocks, tiles, and the tasks of threads.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "libcore/backends/cpu/amx_tiles.h"
#include "libcore/backends/cpu/conv_thresholds.h"
#include "libcore/backends/cpu/conv_weights.h"
#include "libcore/ops/conv.h"

namespace galley::conv_weights_amx {

constexpr int64_t kSide = amx::kRows;        // channels of a tile
constexpr int64_t kDepth = 2 * amx::kRows;   // pixels of a tile
constexpr int64_t kHalves = kSide * kDepth;  // values of bf16 of a tile
constexpr int64_t kSums = kSide * kSide;     // values of f32 of a tile

constexpr int64_t kSteps = conv_threshold::kAmxSteps.value;            // of 32 pixels, in a block
constexpr int64_t kInnerSteps = conv_threshold::kAmxInnerSteps.value;  // in an inner block
constexpr int64_t kMostTiles = conv_threshold::kAmxTiles.value;        // of channels of a side that are packed at a time,
constexpr int64_t kMostOfTaps = conv_threshold::kAmxInputTiles.value;  // of inputs where there are several taps,
constexpr int64_t kXBytes = conv_threshold::kAmxInputBytes.value;      // of at most this size, in all variants,
constexpr int64_t kSumBytes = conv_threshold::kAmxSumBytes.value;      // and of sums of at most this size

inline int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t whole(int64_t channels) { return up(channels, kSide) * kSide; }
inline int64_t lines(int64_t bytes) { return up(bytes, 64) * 64; }

/// Rows or columns of the stream. For each remainder modulo the stride (a phase) that a tap reads, index u of a line of the stream is index
/// phase + u stride - padding of x.
struct Axis {
  int64_t in = 0, out = 0, taps = 1, stride = 1, padding = 0;
  int64_t pitch = 0;  // of a line

  Axis(int64_t in_size, int64_t out_size, int64_t kernel, int64_t step, int64_t zeros)
      : in(in_size), out(out_size), taps(kernel), stride(step), padding(zeros), pitch(out_size) {
    // After its pitch, a line reads the zeros with which the next line starts.
    for (int64_t phase = 0; phase < phases(); ++phase) pitch = std::max({pitch, first_at(phase, in), read(phase) - first_at(phase, 0)});
  }
  int64_t phases() const { return std::min(taps, stride); }
  int64_t shift() const { return (taps - 1) / stride; }  // of the last tap
  /// The index of x, or -1 for a zero.
  int64_t input(int64_t phase, int64_t u) const {
    const int64_t i = phase + u * stride - padding;
    return u < read(phase) && i >= 0 && i < in ? i : -1;
  }

 private:
  int64_t read(int64_t phase) const { return out + (taps - 1 - phase) / stride; }  // by a line's outputs
  /// The first u that holds index i of x or a later one, among those that are read.
  int64_t first_at(int64_t phase, int64_t i) const {
    return std::clamp<int64_t>(up(std::max<int64_t>(0, i + padding - phase), stride), 0, read(phase));
  }
};

/// The division of a window: a pure function of shapes and logical threads.
struct Plan {
  int64_t images, in_channels, outputs;
  bool merged;     // a row's taps are channels of one: few channels would leave tiles empty
  int64_t inputs;  // channels of the packed x
  Axis rows, columns;
  int64_t out_tiles, in_tiles, taps;
  int64_t in_block, out_block;       // tiles of inputs and outputs that are packed at a time
  int64_t stream_rows;               // of all images
  int64_t block_rows, steps, pairs;  // of a block: rows; tiles of pixels; pairs of pixels of x
  struct Variant {
    int64_t row_phase, column_phase, parity;  // of rows and columns of x; 1: pairs begin with odd pixels
  };
  std::vector<Variant> variants;
  struct Tap {
    int64_t variant, pair;  // from which pair on
  };
  std::vector<Tap> tap_at;
  int64_t pixel_parts = 1, out_parts = 1;

  explicit Plan(const KernelQuery& q)
      : images(q.in(0).shape[0]),
        in_channels(q.in(0).shape[1]),
        outputs(q.in(1).shape[1]),
        merged(merges(in_channels, q.out(0).shape[3])),
        inputs(merged ? q.out(0).shape[3] * in_channels : in_channels),
        rows(axis(q, 0, q.out(0).shape[2])),
        columns(axis(q, 1, merged ? 1 : q.out(0).shape[3])) {
    out_tiles = up(outputs, kSide);
    in_tiles = up(inputs, kSide);
    taps = rows.taps * columns.taps;
    stream_rows = images * rows.pitch;
    block_rows = std::clamp<int64_t>(kSteps * kDepth / columns.pitch, 1, stream_rows);
    steps = up(block_rows * columns.pitch, kDepth);
    for (int64_t r = 0; r < rows.taps; ++r) {
      for (int64_t c = 0; c < columns.taps; ++c) {
        const int64_t shift = r / rows.stride * columns.pitch + c / columns.stride;
        const Variant wanted{r % rows.stride, c % columns.stride, shift % 2};
        const auto same = [&](const Variant& v) {
          return v.row_phase == wanted.row_phase && v.column_phase == wanted.column_phase && v.parity == wanted.parity;
        };
        const auto found = std::find_if(variants.begin(), variants.end(), same);
        tap_at.push_back({found - variants.begin(), shift / 2});
        if (found == variants.end()) variants.push_back(wanted);
      }
    }
    pairs = steps * kSide + tap_at.back().pair;
    const auto even = [](int64_t count, int64_t most) { return std::clamp<int64_t>(count / 2 * 2, 2, most); };
    const int64_t variant_bytes = pairs * amx::kBytes * static_cast<int64_t>(variants.size()), tile_bytes = taps * kSums * 4;
    in_block =
        std::min(in_tiles, even(std::min(kXBytes / variant_bytes, kSumBytes / (2 * tile_bytes)), taps == 1 ? kMostTiles : kMostOfTaps));
    out_block = std::min(out_tiles, even(kSumBytes / (in_block * tile_bytes), kMostTiles));
    share_out(q.threads);
  }

  double useful_fraction() const {
    return static_cast<double>(images * rows.out * columns.out * outputs * inputs) /
           static_cast<double>(up(stream_rows * columns.pitch, kDepth) * kDepth * out_tiles * in_tiles * kSums);
  }

 private:
  static bool merges(int64_t channels, int64_t width) {
    return width > 1 && up(width * channels, kSide) * 2 <= up(channels, kSide) * width;
  }
  static Axis axis(const KernelQuery& q, int a, int64_t kernel) {
    const auto& window = q.attrs<Conv2dBackwardWeightsAttrs>();
    return {q.in(0).shape[2 + a], q.in(1).shape[2 + a], kernel, pair(window.stride)[static_cast<size_t>(a)],
            pair(window.padding)[static_cast<size_t>(a)]};
  }

  /// Threads divide the pixels, the output channels or both, whichever takes the fewest counted cycles. Divided pixels cost sums that go
  /// through memory and are added at the end; divided outputs cost that each thread packs x.
  void share_out(int64_t threads) {
    int64_t least = 0;
    const int64_t out_pairs = up(out_tiles, 2), sum_bytes = out_tiles * in_tiles * taps * kSums * 4;
    for (int64_t parts = 1; parts <= threads && parts <= stream_rows; ++parts) {
      if (threads % parts != 0 || (parts > 1 && parts * sum_bytes > conv_threshold::kWeightSumBytes.value)) continue;
      const int64_t shares = std::min(threads / parts, out_pairs), tiles = std::min(out_tiles, 2 * up(out_pairs, shares));
      const int64_t depth = up(up(stream_rows, parts) * columns.pitch, kDepth), x_packings = up(tiles, out_block),
                    grad_packings = up(in_tiles, in_block);
      // Cycles: 16 per product; about 50 to transpose a tile, 20 to interleave one; 8 bytes per cycle where sums and images come from
      // memory or a shared cache.
      const int64_t packing = tiles * 50 * grad_packings + in_tiles * 20 * static_cast<int64_t>(variants.size()) * x_packings;
      const int64_t moved = parts > 1 ? sum_bytes * tiles / out_tiles + sum_bytes * parts / threads : 0,
                    read = depth * kDepth * 2 * (inputs * x_packings + tiles * kSide * grad_packings);
      const int64_t cycles = depth * (tiles * in_tiles * taps * 16 + packing) + (moved + read) / 8;
      if (parts > 1 && cycles > least) continue;
      least = cycles;
      pixel_parts = parts;
      out_parts = shares;
    }
  }
};

}  // namespace galley::conv_weights_amx
