// winograd_4x4 of integers: quantized_winograd_conv2d on channels_last images (rewrite/quantized_winograd.h has the arithmetic).
//
// Tiles are transformed to 16 bits, multiplied by the transformed kernels at each of the 36 positions, and their sums transformed back, one
// step of outputs after the other. Transformed images are [position][tile][channel], kernels [block of 16 outputs][position][pair of
// inputs][16][2]. 36 products for 16 results instead of 144; the 16-bit products bound it (vpmaddwd).
//
// With many tiles each thread takes some at a time, as many as its second-level cache holds. With few tiles all are transformed first and
// the threads divide the outputs, so that the kernels are read once.

#include "libcore/backends/cpu/quantized_winograd.h"

#include <algorithm>
#include <array>
#include <vector>

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/quantized_epilogue.h"
#include "libcore/backends/cpu/quantized_pack.h"
#include "libcore/backends/cpu/quantized_thresholds.h"
#include "libcore/backends/cpu/rewrite/quantized_winograd.h"
#include "libcore/base/parallel.h"

namespace galley {
namespace {

using namespace quantized;
using winograd::kIn, winograd::kOut, winograd::kPositions, winograd::kTaps, winograd::padded, winograd::place_of, winograd::Tiling;

constexpr int64_t kImageBytes = quantized_threshold::kWinogradImageBytes.value;  // of a part's transformed images
constexpr int64_t kSumBytes = quantized_threshold::kWinogradSumBytes.value;      // of a step of its outputs' sums
constexpr int64_t kFewest = quantized_threshold::kWinogradFewestTiles.value;     // tiles of a part
constexpr int64_t kFew = quantized_threshold::kWinogradFewTiles.value;  // tiles that all threads transform before they divide the outputs

/// Elements of `bytes` each in an odd number of cache lines: positions do not share a few sets of the first-level cache.
constexpr int64_t odd_lines(int64_t elements, int64_t bytes) { return ((elements * bytes + 63) / 64 | 1) * (64 / bytes); }

class QuantizedWinograd : public PreparedKernel {
 public:
  explicit QuantizedWinograd(const KernelQuery& q)
      : results_(q.attrs<QuantizedConv2dAttrs>(), q.attrs<QuantizedConv2dAttrs>().activation, q.out(0).shape[1]),
        tiling_(q.in(0).shape, q.out(0).shape, pair(q.attrs<QuantizedConv2dAttrs>().padding)),
        threads_(q.threads),
        flip_(flip_of(q.in(0).dtype)),
        zero_point_(static_cast<int32_t>(q.attrs<QuantizedConv2dAttrs>().input_zero_point) + flip_),
        step_(winograd_step()) {
    const auto& a = q.attrs<QuantizedConv2dAttrs>();
    if (q.has(4)) results_.set_residual(a.residual_scale, a.residual_zero_point, q.in(4).dtype);
    const int64_t count = tiling_.count();
    if (kPositions * count * tiling_.channels * tiling_.outputs < quantized_threshold::kOneThreadProducts.value) threads_ = 1;
    few_ = count <= kFew;
    const int64_t most =
        few_ ? count
             : std::max(kFewest, std::min(kImageBytes / (2 * kPositions * padded(tiling_.channels)), kSumBytes / (4 * kPositions * step_)));
    const int64_t parts = few_ ? 1 : ((count + most - 1) / most + threads_ - 1) / threads_ * threads_;
    for (int64_t i = 0; i < parts; ++i) {
      const int64_t begin = count * i / parts, end = count * (i + 1) / parts;
      parts_.push_back({begin, end, runs_of(begin, end)});
      tiles_ = std::max(tiles_, end - begin);
    }
    image_position_ = odd_lines(tiles_ * padded(tiling_.channels), 2);
    sum_position_ = odd_lines(tiles_ * step_, 4);
  }
  int64_t scratch_bytes() const override {
    return results_.scratch_bytes() + (few_ ? 1 : threads_) * image_bytes() + threads_ * workspace_bytes();
  }
  std::string implementation() const override { return cat("winograd:", path_name(Path::kExact)); }

  void run(Stream&, const KernelArgs& args) const override {
    auto* scratch = static_cast<std::byte*>(args.scratch);
    Epilogue epilogue = results_.epilogue(args.in<float>(2), args.in<float>(3), scratch);
    epilogue.residual = args.in<uint8_t>(4);
    epilogue.out = args.outputs[0];
    std::byte *images = scratch + results_.scratch_bytes(), *workspaces = images + (few_ ? 1 : threads_) * image_bytes();
    if (few_) {
      const int64_t steps = (tiling_.outputs + step_ - 1) / step_;
      parallel_for(threads_, 1, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t)
          transform(args, 0, tiling_.count() * t / threads_, tiling_.count() * (t + 1) / threads_, images,
                    workspaces + t * workspace_bytes());
      });
      parallel_tasks(steps, threads_, [&](int64_t step, int64_t t) {
        compute(args, epilogue, parts_.front(), step * step_, images, workspaces + t * workspace_bytes());
      });
      return;
    }
    parallel_tasks(static_cast<int64_t>(parts_.size()), threads_, [&](int64_t i, int64_t t) {
      std::byte *own = images + t * image_bytes(), *workspace = workspaces + t * workspace_bytes();
      const Part& part = parts_[static_cast<size_t>(i)];
      transform(args, part.begin, part.begin, part.end, own, workspace);
      for (int64_t output = 0; output < tiling_.outputs; output += step_) compute(args, epilogue, part, output, own, workspace);
    });
  }

 private:
  /// Tiles that are transformed and multiplied together.
  struct Part {
    int64_t begin, end;
    std::vector<TileRun> runs;
  };
  int64_t image_bytes() const { return 2 * kPositions * image_position_; }
  int64_t sum_bytes() const { return 4 * kPositions * sum_position_; }
  /// Sums, results, and the tile at an image's edge.
  int64_t workspace_bytes() const {
    return sum_bytes() + aligned_bytes(4 * kOut * kOut * tiles_ * step_) + aligned_bytes(kPositions * padded(tiling_.channels));
  }

  /// Tiles [begin, end), of which `base` has row 0.
  void transform(const KernelArgs& args, int64_t base, int64_t begin, int64_t end, std::byte* images, std::byte* workspace) const {
    const Tiling& t = tiling_;
    auto* edge = reinterpret_cast<uint8_t*>(workspace + workspace_bytes() - aligned_bytes(kPositions * padded(t.channels)));
    const int64_t pixel = padded(t.channels), bytes = t.images * t.x_rows * t.x_columns * t.channels;
    const auto turn = static_cast<uint8_t>(flip_ ^ 0x80);
    for (int64_t tile = begin; tile < end; ++tile) {
      const auto at = place_of(t, tile);
      const auto* x = args.in<uint8_t>(0);
      const winograd::Window<uint8_t> window{x + at.image * t.x_rows * t.x_columns * t.channels,
                                             t.x_rows,
                                             t.x_columns,
                                             t.channels,
                                             at.row - t.padding[0],
                                             at.column - t.padding[1],
                                             kIn};
      auto* to = reinterpret_cast<int16_t*>(images) + (tile - base) * pixel;
      // The last vector of channels reads into the next pixel, which must exist.
      const bool whole = window.inside() && window.first() - x + ((kIn - 1) * t.x_columns + kIn - 1) * t.channels + pixel <= bytes;
      if (whole) {
        transform_bytes(window.first(), {t.x_columns * t.channels, t.channels}, turn, t.channels, to, image_position_);
      } else {
        window.copy(edge, static_cast<uint8_t>(zero_point_ ^ flip_), pixel);
        transform_bytes(edge, {kIn * pixel, pixel}, turn, t.channels, to, image_position_);
      }
    }
  }

  /// Tiles [begin, end), of which `begin` has row 0.
  std::vector<TileRun> runs_of(int64_t begin, int64_t end) const {
    std::vector<TileRun> runs;
    for (int64_t tile = begin; tile < end;) {
      const auto at = place_of(tiling_, tile);
      const int64_t block_end = std::min(end, tile + tiling_.across() - at.column / kOut);
      runs.push_back({tile - begin, (at.image * tiling_.rows + at.row) * tiling_.columns + at.column, std::min(kOut, tiling_.rows - at.row),
                      std::min((block_end - tile) * kOut, tiling_.columns - at.column)});
      tile = block_end;
    }
    return runs;
  }

  void compute(const KernelArgs& args, const Epilogue& epilogue, const Part& part, int64_t output, std::byte* images,
               std::byte* workspace) const {
    WinogradStep s;
    s.images = reinterpret_cast<const int16_t*>(images);
    s.image_row = padded(tiling_.channels);
    s.image_position = image_position_;
    s.tiles = part.end - part.begin;
    s.weights = args.in<int16_t>(1);
    s.channels = tiling_.channels;
    s.outputs = tiling_.outputs;
    s.first = output;
    s.off = 128 - zero_point_;
    s.sums = reinterpret_cast<int32_t*>(workspace);
    s.sum_position = sum_position_;
    s.results = reinterpret_cast<int32_t*>(workspace + sum_bytes());
    s.runs = part.runs;
    s.width = tiling_.columns;
    s.epilogue = epilogue;
    compute_step(s);
  }

  Results results_;
  Tiling tiling_;
  int64_t threads_;
  uint8_t flip_;
  int32_t zero_point_;
  int64_t step_;
  bool few_ = false;
  std::vector<Part> parts_;
  int64_t tiles_ = 0, image_position_ = 0, sum_position_ = 0;  // of the largest part; elements from a position to the next
};

Support supports_conv(const KernelQuery& q) {
  for (const int i : {0, 4}) {
    if (q.has(i) && !q.in(i).format.is_channels_last()) return Support::no(cat("format ", q.in(i).format));
  }
  if (!q.out(0).format.is_channels_last()) return Support::no(cat("format ", q.out(0).format));
  if (!(q.in(1).format == winograd::whole_format())) return Support::no(cat("weight format ", q.in(1).format));
  if (q.in(0).elements() == 0 || q.out(0).elements() == 0) return Support::no("empty array");
  if (!winograd::has_wide_vectors()) return Support::no("made for AVX2 or wider vectors");
  if (best_path(Saturation::kExact) != Path::kExact) return Support::no("made for machines that multiply in 16 bits");
  return Support::yes();
}

class TransformWeights : public PreparedKernel {
 public:
  explicit TransformWeights(const KernelQuery& q) : outputs_(q.in(0).shape[0]), channels_(q.in(0).shape[1]) {}
  void run(Stream&, const KernelArgs& args) const override {
    const int64_t pairs = (channels_ + 1) / 2, blocks = (outputs_ + kBlock - 1) / kBlock;
    parallel_for(blocks * pairs, 8, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t block = task / pairs, pair = task % pairs;
        for (int64_t lane = 0; lane < 2 * kBlock; ++lane) {
          const int64_t o = block * kBlock + lane / 2, c = pair * 2 + lane % 2;
          int16_t made[kPositions] = {};
          if (o < outputs_ && c < channels_) transform(args.in<int8_t>(0) + (o * channels_ + c) * kTaps * kTaps, made);
          for (int64_t p = 0; p < kPositions; ++p)
            args.out<int16_t>(0)[((block * kPositions + p) * pairs + pair) * 2 * kBlock + lane] = made[p];
        }
      }
    });
  }

 private:
  static void transform(const int8_t* taps, int16_t* made) {
    int half[kIn][kTaps] = {};
    for (int64_t i = 0; i < kIn; ++i) {
      for (int64_t j = 0; j < kTaps; ++j) {
        for (int64_t k = 0; k < kTaps; ++k) half[i][j] += winograd::kWholeKernel[i][k] * taps[k * kTaps + j];
      }
    }
    for (int64_t p = 0; p < kPositions; ++p) {
      int sum = 0;
      for (int64_t k = 0; k < kTaps; ++k) sum += half[p / kIn][k] * winograd::kWholeKernel[p % kIn][k];
      made[p] = static_cast<int16_t>(sum);
    }
  }
  int64_t outputs_, channels_;
};

Support supports_weights(const KernelQuery& q) {
  if (!q.in(0).format.is_contiguous()) return Support::no(cat("format ", q.in(0).format));
  if (!(q.out(0).format == winograd::whole_format())) return Support::no(cat("format ", q.out(0).format));
  return q.in(0).elements() == 0 ? Support::no("empty array") : Support::yes();
}

MemoryFormat preferred_conv(const KernelQuery& q, int input) { return input == 1 ? winograd::whole_format() : q.in(input).format; }
MemoryFormat preferred_weights(const KernelQuery&, int) { return MemoryFormat::contiguous(); }

}  // namespace

const Algorithm algorithm::kQuantizedWinogradConv{supports_conv, prepare_as<QuantizedWinograd>, preferred_conv};
const Algorithm algorithm::kQuantizedWinogradTransform{supports_weights, prepare_as<TransformWeights>, preferred_weights};

}  // namespace galley
