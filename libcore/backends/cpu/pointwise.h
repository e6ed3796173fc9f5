#pragma once
// 1x1 convolutions of stride 1 and few channels, and their gradients, in f32 on channels_last images, a block of pixels at a time: pieces
// of operators that compute the wide side of the convolution block by block and never store it. PointwiseSums and PointwiseMoments are in
// pointwise_sums.cpp, the rest in pointwise.cpp.

#include <memory_resource>
#include <span>
#include <vector>

#include "libcore/backends/cpu/packed_product.h"
#include "libcore/backends/kernel.h"
#include "libcore/base/function_ref.h"

namespace galley {

/// The weight's gradient: sums over pixels of grad[pixel][o] x[pixel][i], in tiles of registers.
class PointwiseSums {
 public:
  /// `weight` [O,C,1,1]: the gradient's type, in any format.
  explicit PointwiseSums(const TensorType& weight);
  /// Whether there are products for these numbers of channels on this machine; if not, the reason.
  static Support supports(const Shape& weight);

  int64_t floats() const { return floats_; }  // of the sums of one part
  /// Pixels whose values of both sides stay in the second-level cache.
  int64_t block() const;
  /// An array that will be read next and is prefetched; it may be outside the allocated memory.
  struct Next {
    const float* at;
    int64_t floats;
  };
  /// Adds a block of consecutive pixels, `grad_step` and I floats apart, and prefetches the next one.
  void add(const float* grad, int64_t grad_step, const float* x, int64_t pixels, std::span<const Next> next, float* sums) const;
  /// Adds the sums of parts, which are `step` floats apart, in their order and writes them in the weight's format. On the compute threads.
  void write(const float* sums, int64_t step, int64_t parts, float* dweight) const;
  /// Sums in double, in the same places, as a matrix [O][I].
  void unpack(const double* sums, double* matrix) const;

 private:
  struct Tile {
    int64_t wide, last, narrow;  // first channels of the vectors; from there to the last vector; of the single values
    int vectors;
    int64_t sums;                      // their offset
    int64_t lanes_seen, singles_seen;  // how many of the last vector's lanes, and of the single values, other tiles hold too
  };
  /// body(channel of the wide side, channel of the narrow side, offset of their sum), for the sums that belong to this tile.
  template <class Body>
  void each_sum(const Tile& tile, const Body& body) const;

  TensorType weight_;
  int64_t wide_, narrow_, lanes_, floats_ = 0;
  bool out_is_wide_;
  std::vector<Tile> tiles_;
  std::vector<int64_t> wide_at_, narrow_at_;  // of channels, in the weight's format
};

/// The output of the convolution, scaled and shifted for each channel, some pixels and channels at a time.
class PointwiseConvolution {
 public:
  /// `weight` [O,I,1,1] in any format.
  explicit PointwiseConvolution(const TensorType& weight);
  int64_t scratch_floats() const;
  /// Fills the scratch memory that run reads. `scale` and `shift`: [O], or nullptr for 1 and 0.
  void pack(const float* weight, const float* scale, const float* shift, float* scratch) const;
  /// Panels of kPanel channels, from `first` on; channels after the last one are zero.
  struct Panels {
    int64_t first, count;
  };
  /// Floats from pixel to pixel and from panel to panel.
  struct Rows {
    float* at;
    int64_t step, panel_step = kPanel;
  };
  /// `prefetch`: prefetches the rows of x after these. `relu`: applied to the output.
  void run(const float* x, const float* packed, int64_t pixels, const Panels& panels, const Rows& y, bool prefetch,
           bool relu = false) const;

 private:
  int64_t in_, out_;
  std::vector<int64_t> in_at_, out_at_;  // of channels, in the weight's format
};
/// Are x [N,C,H,W] and the weight those of a convolution with so few channels that recomputing it costs less than writing and reading it?
Support supports_pointwise_convolution(const TensorType& x, const TensorType& weight);

/// The output of the convolution, or the gradient of its input, some pixels at a time.
class PointwiseProduct {
 public:
  enum class Of { kOutput, kInputGradient };
  enum class Into { kWrite, kAdd };
  /// `weight` [O,I,1,1] in any format. kAdd: adds to the output.
  PointwiseProduct(Of of, const TensorType& weight, Into into = Into::kWrite);
  int64_t scratch_floats() const;
  /// `scale` of the input channels of run, `shift` of its output channels (kWrite only), or nullptr.
  void pack(const float* weight, const float* scale, const float* shift, float* scratch) const;
  /// Rows of `from` are `step` floats apart, those of `to` consecutive.
  void run(const float* from, int64_t step, int64_t pixels, const float* packed, float* to) const;

 private:
  int64_t in_turn() const;
  int64_t panel_at(int64_t panel) const;

  std::vector<int64_t> to_at_, from_at_;  // of channels, in the weight's format
  Into into_;
};

/// The means of the channels of x and their covariance. Pixels are summed relative to values near the means (the pivot), so that large
/// means lose no precision.
class PointwiseMoments {
 public:
  PointwiseMoments(const TensorType& x, int threads);
  int64_t scratch_floats() const;

  /// [I] and [I][I]. The parts are added in a fixed order: bits depend on the logical thread count only.
  struct Result {
    std::pmr::vector<double> mean, covariance;
  };
  /// `workspace`: memory for twice the result.
  Result run(const float* x, float* scratch, std::pmr::memory_resource& workspace) const;

 private:
  int64_t slot_floats() const;
  /// The means of some pixels, evenly spread over x.
  std::pmr::vector<float> pivot(const float* x, std::pmr::memory_resource& workspace) const;

  int64_t pixels_, channels_, threads_, parts_, block_;
  PointwiseSums products_;
};
/// to += from; rows are `from_step` and `channels` floats apart. Prefetches the rows of `to` after these.
void add_rows(const float* from, int64_t from_step, int64_t rows, int64_t channels, float* to);

/// Both gradients of the convolution. The gradient of its output is computed when a block needs it and is never stored.
class PointwiseGradients {
 public:
  /// x [N,C,H,W], weight and dweight [O,C,1,1] in any format.
  PointwiseGradients(const TensorType& x, const TensorType& weight, const TensorType& dweight, int threads);
  int64_t scratch_floats() const;

  struct Operands {
    const float *x, *weight;
    float *dx, *dweight;
  };
  /// Writes the gradient of pixels [first, first + count), rows of O floats.
  using Make = FunctionRef<void(int64_t first, int64_t count, float* to)>;
  /// `from`: arrays of O floats per pixel that make reads; they are prefetched.
  void run(const Operands& operands, float* scratch, std::span<const float* const> from, Make make) const;

 private:
  int64_t pixels_, in_, out_, block_, parts_;
  PointwiseProduct input_;
  PointwiseSums sums_;
};

/// Are the inputs x and weight, and their gradients (outputs 0 and 1), those of a convolution with so few channels that this is faster than
/// two separate products?
Support supports_pointwise_gradients(const KernelQuery& query, int x, int weight);

}  // namespace galley
