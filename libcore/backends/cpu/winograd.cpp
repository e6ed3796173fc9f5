// winograd_4x4: winograd_conv2d in f32 on channels_last images, F(4x4, 3x3) of Lavin and Gray, "Fast Algorithms for Convolutional Neural
// Networks" (2016), with the points of rewrite/winograd.h.
//
// Tiles of 6 x 6 pixels are transformed, multiplied by the transformed kernels at each of the 36 positions, and transformed back.
// Transformed images are [position][tile][channel], kernels [position][panel][input][16] (packed_product.h), sums [position][tile][output].
// 36 products for 16 results instead of 144; FMA bounds the products, stores to 36 places the transforms, and the kernels' bytes layers of
// many channels.
//
// With many tiles each thread takes some through all three stages, as many as its second-level cache holds. With few tiles the threads
// divide each stage, so that the kernels, which are then the larger operand, are read once. The bits are the same.

#include "libcore/backends/cpu/winograd.h"

#include <algorithm>
#include <array>
#include <vector>

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/conv_thresholds.h"
#include "libcore/backends/cpu/packed_product.h"
#include "libcore/base/parallel.h"

namespace galley {
namespace {

using namespace winograd;

constexpr int64_t kRowBytes = conv_threshold::kWinogradRowBytes.value;  // of a part's transformed values
constexpr int64_t kFewest = conv_threshold::kWinogradFewestRows.value, kMost = conv_threshold::kWinogradMostRows.value;

class WinogradConv : public PreparedKernel {
 public:
  explicit WinogradConv(const KernelQuery& q)
      : tiling_(q.in(0).shape, q.out(0).shape, pair(q.attrs<WinogradConv2dAttrs>().padding)),
        activation_(q.attrs<WinogradConv2dAttrs>().activation),
        threads_(q.threads) {
    const int64_t row_bytes = 4 * kPositions * (padded(tiling_.channels) + padded(tiling_.outputs));
    rows_ = std::clamp(kRowBytes / row_bytes / 12 * 12, kFewest, kMost);
    few_ = tiling_.count() <= threads_ * rows_;
    if (few_) rows_ = tiling_.count();
    image_position_ = odd_lines(rows_ * padded(tiling_.channels));
    sum_position_ = odd_lines(rows_ * padded(tiling_.outputs));
    zeros_.resize(static_cast<size_t>(padded(tiling_.outputs)));
    if (q.in(1).format.is_contiguous()) packed_floats_ = kPositions * packed_floats(tiling_.outputs, tiling_.channels);
  }
  int64_t scratch_bytes() const override {
    return 4 * ((few_ ? 1 : threads_) * shared_floats() + threads_ * tiling_.edge_floats() + packed_floats_);
  }

  void run(Stream&, const KernelArgs& args) const override {
    const float* weights = args.in<float>(1);
    auto* scratch = static_cast<float*>(args.scratch);
    if (packed_floats_ > 0) {
      pack(weights, scratch);
      weights = scratch;
      scratch += packed_floats_;
    }
    if (few_) {
      float* edges = scratch + shared_floats();
      parallel_for(threads_, 1, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t)
          transform(args, 0, tiling_.count() * t / threads_, tiling_.count() * (t + 1) / threads_, scratch,
                    edges + t * tiling_.edge_floats());
      });
      const int64_t panels = panels_of(tiling_.outputs), tasks = kPositions * panels;
      parallel_for(tasks, 1, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end;) {
          const int64_t position = task / panels, first = task % panels, last = std::min(panels, first + end - task);
          multiply(weights, rows_, position, first, last, scratch);
          task += last - first;
        }
      });
      parallel_for(tiling_.count(), 1, [&](int64_t begin, int64_t end) { finish(args, 0, begin, end, scratch); });
      return;
    }
    float* edges = scratch + threads_ * shared_floats();
    // Equal numbers of rounds for the threads, of whole register tiles.
    const int64_t tiles = tiling_.count(), even = (tiles + threads_ * rows_ - 1) / (threads_ * rows_) * threads_,
                  rows = std::min(rows_, ((tiles + even - 1) / even + 11) / 12 * 12);
    parallel_tasks((tiles + rows - 1) / rows, threads_, [&](int64_t round, int64_t slot) {
      const int64_t tile = round * rows, block_end = std::min(tiles, tile + rows);
      float* workspace = scratch + slot * shared_floats();
      transform(args, tile, tile, block_end, workspace, edges + slot * tiling_.edge_floats());
      for (int64_t position = 0; position < kPositions; ++position)
        multiply(weights, block_end - tile, position, 0, panels_of(tiling_.outputs), workspace);
      finish(args, tile, tile, block_end, workspace);
    });
  }

 private:
  /// Transformed images, then sums.
  int64_t shared_floats() const { return kPositions * (image_position_ + sum_position_); }

  /// Packs contiguous weights, position by position.
  void pack(const float* weights, float* to) const {
    for (int64_t p = 0; p < kPositions; ++p) {
      pack_matrix({weights + p * tiling_.outputs * tiling_.channels, tiling_.outputs, tiling_.channels, tiling_.channels, 1},
                  to + p * packed_floats(tiling_.outputs, tiling_.channels));
    }
  }
  /// Tiles [begin, end), of which `base` has row 0.
  void transform(const KernelArgs& args, int64_t base, int64_t begin, int64_t end, float* workspace, float* edge) const {
    for (int64_t tile = begin; tile < end; ++tile)
      transform_image(tiling_, args.in<float>(0), tile, edge, workspace + (tile - base) * padded(tiling_.channels), image_position_);
  }
  void multiply(const float* weights, int64_t rows, int64_t position, int64_t first, int64_t last, float* workspace) const {
    const int64_t depth = tiling_.channels, columns = padded(tiling_.outputs);
    PackedProduct product{workspace + position * image_position_,
                          padded(depth),
                          rows,
                          depth,
                          weights + position * columns * depth,
                          workspace + kPositions * image_position_ + position * sum_position_,
                          columns,
                          columns,
                          zeros_.data(),
                          first,
                          last};
    multiply_packed(product);
  }
  void finish(const KernelArgs& args, int64_t base, int64_t begin, int64_t end, const float* workspace) const {
    for (int64_t tile = begin; tile < end; ++tile) {
      ResultTile result = result_tile(tiling_, tile, args.out<float>(0), args.in<float>(3));
      result.m = workspace + kPositions * image_position_ + (tile - base) * padded(tiling_.outputs);
      result.position = sum_position_;
      result.bias = args.in<float>(2);
      result.activation = activation_;
      transform_result(result);
    }
  }

  Tiling tiling_;
  Activation activation_;
  int64_t threads_, rows_ = 0, image_position_ = 0, sum_position_ = 0, packed_floats_ = 0;  // of weights that come unpacked
  bool few_ = false;
  std::vector<float> zeros_;  // the initial sums
};

Support supports(const KernelQuery& q) {
  for (const TensorType* type : {&q.in(0), &q.in(1), &q.out(0)}) {
    if (type->dtype != DType::kF32) return Support::no(cat("dtype ", type->dtype));
    if (type->elements() == 0) return Support::no("empty array");
  }
  if (!q.in(0).format.is_channels_last() || !q.out(0).format.is_channels_last()) return Support::no(cat("format ", q.in(0).format));
  if (!q.in(1).format.is_contiguous() && !(q.in(1).format == transformed_format()))
    return Support::no(cat("weight format ", q.in(1).format));
  if (q.has(2) && q.in(2).dtype != DType::kF32) return Support::no("bias dtype");
  if (q.has(3) && !(q.in(3).format == q.out(0).format)) return Support::no("residual in another format");
  if (!has_wide_vectors()) return Support::no("made for AVX2 or wider vectors");
  return Support::yes();
}

MemoryFormat preferred_format(const KernelQuery& q, int input) { return input == 1 ? transformed_format() : q.in(input).format; }

}  // namespace

const Algorithm algorithm::kWinogradConv{supports, prepare_as<WinogradConv>, preferred_format};

}  // namespace galley
