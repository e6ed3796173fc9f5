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
  /// Why there are none for so many channels on this machine, or yes.
  static Support supports(const Shape& weight);

  int64_t floats() const { return floats_; }  // of the sums of one part
  /// Pixels whose values of both sides stay in the second-level cache.
  int64_t block() const;
  /// An array that will be read next; it may lie outside of what there is.
  struct Next {
    const float* at;
    int64_t floats;
  };
  /// A block of neighbouring pixels, `grad_step` and I floats apart, while the next is asked for.
  void add(const float* grad, int64_t grad_step, const float* x, int64_t pixels, std::span<const Next> next, float* sums) const;
  /// The sums of parts that lie `step` floats apart, added up in their order, to where the weight's format wants them. On the compute
  /// threads.
  void write(const float* sums, int64_t step, int64_t parts, float* dweight) const;
  /// Sums in double, in the same places, as a matrix [O][I].
  void unpack(const double* sums, double* matrix) const;

 private:
  struct Tile {
    int64_t wide, last, narrow;  // first channels of the vectors; from there to the last vector; of the single values
    int vectors;
    int64_t sums;                      // where they lie
    int64_t lanes_seen, singles_seen;  // how many of the last vector's lanes, and of the single values, other tiles hold too
  };
  /// body(channel of the wide side, of the narrow side, where their sum lies), those that are no other tile's.
  template <class Body>
  void each_sum(const Tile& tile, const Body& body) const;

  TensorType weight_;
  int64_t wide_, narrow_, lanes_, floats_ = 0;
  bool out_is_wide_;
  std::vector<Tile> tiles_;
  std::vector<int64_t> wide_at_, narrow_at_;  // of channels, in the weight's format
};

/// What the convolution gives, times a scale and plus a shift of each channel, some pixels and channels at a time.
class PointwiseConvolution {
 public:
  /// `weight` [O,I,1,1] in any format.
  explicit PointwiseConvolution(const TensorType& weight);
  int64_t scratch_floats() const;
  /// Makes the scratch memory what run reads. `scale` and `shift`: [O], or nullptr for 1.
  void pack(const float* weight, const float* scale, const float* shift, float* scratch) const;
  /// Panels of kPanel channels, from `first` on; those behind the last channel are zero.
  struct Panels {
    int64_t first, count;
  };
  /// Floats from pixel to pixel and from panel to panel.
  struct Rows {
    float* at;
    int64_t step, panel_step = kPanel;
  };
  /// `ask`: for the rows of x that come behind these. `relu`: of what the convolution gives.
  void run(const float* x, const float* packed, int64_t pixels, const Panels& panels, const Rows& y, bool ask, bool relu = false) const;

 private:
  int64_t in_, out_;
  std::vector<int64_t> in_at_, out_at_;  // of channels, in the weight's format
};
/// Are x [N,C,H,W] and the weight such a convolution's, of so few channels that making it again costs less than writing and reading it?
Support supports_pointwise_convolution(const TensorType& x, const TensorType& weight);

/// What the convolution gives, or the gradient of its input, some pixels at a time.
class PointwiseProduct {
 public:
  enum class Of { kOutput, kInputGradient };
  enum class Into { kWrite, kAdd };
  /// `weight` [O,I,1,1] in any format. kAdd: to what is there.
  PointwiseProduct(Of of, const TensorType& weight, Into into = Into::kWrite);
  int64_t scratch_floats() const;
  /// `scale` of the channels that run gets, `shift` of those that it makes (kWrite), or nullptr.
  void pack(const float* weight, const float* scale, const float* shift, float* scratch) const;
  /// Rows of `from`, `step` apart; those of `to` lie close.
  void run(const float* from, int64_t step, int64_t pixels, const float* packed, float* to) const;

 private:
  int64_t in_turn() const;
  int64_t panel_at(int64_t panel) const;

  std::vector<int64_t> to_at_, from_at_;  // of channels, in the weight's format
  Into into_;
};

/// The means of x's channels and their covariance, by sums over all pixels around values near the means (the pivot), so that large means
/// lose nothing.
class PointwiseMoments {
 public:
  PointwiseMoments(const TensorType& x, int threads);
  int64_t scratch_floats() const;

  /// [I] and [I][I]. Sums of parts are added up in one order: bits depend on the logical thread count only.
  struct Result {
    std::pmr::vector<double> mean, covariance;
  };
  /// `room`: for the result and as much again.
  Result run(const float* x, float* scratch, std::pmr::memory_resource& room) const;

 private:
  int64_t slot_floats() const;
  /// The means of some pixels, which lie spread over x.
  std::pmr::vector<float> pivot(const float* x, std::pmr::memory_resource& room) const;

  int64_t pixels_, channels_, threads_, parts_, block_;
  PointwiseSums products_;
};
/// to += from; rows `from_step` and `channels` floats apart. Asks for the rows of `to` behind these.
void add_rows(const float* from, int64_t from_step, int64_t rows, int64_t channels, float* to);

/// Both gradients of the convolution, where the gradient of what it gave is made when a block needs it, and held nowhere else.
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
  /// `from`: arrays of O floats a pixel that make reads, which are asked for.
  void run(const Operands& operands, float* scratch, std::span<const float* const> from, Make make) const;

 private:
  int64_t pixels_, in_, out_, block_, parts_;
  PointwiseProduct input_;
  PointwiseSums sums_;
};

/// Are the inputs x and weight, and outputs 0 and 1, their gradients, such a convolution's, of so few channels that this is faster than
/// products of their own?
Support supports_pointwise_gradients(const KernelQuery& query, int x, int weight);

}  // namespace galley
