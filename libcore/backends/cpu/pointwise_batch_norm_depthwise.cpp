// line_buffer: pointwise_batch_norm_depthwise and its gradients in f32: batch_norm_depthwise of the output of a 1x1 convolution W x with so
// few input channels that computing it costs less than reading it. That wide image is never written.
//
// Forward: its statistics follow from the moments of x, in which they are linear and quadratic: the mean is W m, and the variance of a
// channel is w C w, with w its row of W, and m and C the mean and covariance of x. Then each line is computed, normalized by the
// convolution itself, whose weight is scaled and whose sums start with the shift.
//
// Backward: with g the gradient of the norm's output, the gradient of its input is d = a g + b (W x - mean) + offset, where a is known
// beforehand, and b and the offset follow from sums over g. The first pass recomputes the lines, gathers g, and multiplies it twice: dx =
// (a W)^T g, and G, the sum of g x^T, which also gives the sums of g (W x - mean). The rest of dx is a product of x alone, a second pass
// over narrow arrays: dx += (W^T b W) x + W^T (offset - b mean). dweight is a G plus a term of the moments of x, which the forward pass has
// summed.
//
// 2 operations for each wide value and input channel forward, 6 backward, which take about half of the time; gathering the gradient and the
// depthwise sums take the rest. Bits depend on the logical thread count only, where it needs more parts.

#include <algorithm>

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/batch_norm_depthwise.h"
#include "libcore/backends/cpu/pointwise.h"

namespace galley {
namespace {

using namespace norm_depthwise;

constexpr int64_t kBandBlocks = conv_threshold::kLineFloatBlocks.value;  // of lines, whose products are summed in float
constexpr int64_t kNarrowFloats =
    conv_threshold::kLineNarrowFloats.value;  // of pixels of x whose part of the gradient is computed together

/// The output of the 1x1 convolution before the norm: the shape of x with the channels of the weight.
TensorType made_by(const TensorType& x, const TensorType& weight) {
  TensorType type = x;
  type.shape[1] = weight.shape[0];
  return type;
}

using Doubles = std::pmr::vector<double>;

/// Scratch memory for the small arrays of one run: a step allocates nothing.
class Workspace : public std::pmr::monotonic_buffer_resource {
 public:
  Workspace(float* memory, int64_t floats)
      : monotonic_buffer_resource(memory, static_cast<size_t>(floats) * 4, std::pmr::null_memory_resource()) {}
};
/// Size of a workspace: at most three matrices [O][I] and three [I][I] of doubles, and a few vectors.
int64_t workspace_floats(int64_t in, int64_t out) { return 2 * (3 * out * in + 3 * in * in + 16 * (in + out) + 64); }

/// A weight [O,I,1,1] in any format as a matrix [O][I].
Doubles matrix_of(const TensorType& type, const float* weight, Workspace& workspace) {
  Doubles matrix(static_cast<size_t>(type.shape[0] * type.shape[1]), &workspace);
  auto to = matrix.begin();
  for (int64_t o = 0; o < type.shape[0]; ++o) {
    for (int64_t i = 0; i < type.shape[1]; ++i) *to++ = static_cast<double>(weight[type.format.offset(type.shape, {o, i, 0, 0})]);
  }
  return matrix;
}

template <class A, class B>
double dot(const A* a, const B* b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

float to_float(double value) { return static_cast<float>(value); }

/// Lines of the convolution, normalized.
struct MadeLines {
  const Geometry& g;
  const PointwiseConvolution& convolution;
  const float *x, *packed;
  int64_t channels;  // of x

  /// A slice of a line before the activation, packed; relu is applied already.
  void make(const LineSlice& at, float* to, int64_t chunk) const {
    convolution.run(x + (at.image * g.x[2] + at.row) * g.x[3] * channels, packed, g.x[3], {at.slice.first / kPanel, at.slice.chunks()},
                    {to, kPanel, chunk}, at.slice.first == 0, g.activation == Activation::kRelu);
  }
  /// The rest of the activation: from `z`, which may be `to`.
  void activate(const float* z, const Slice& slice, float* to, int64_t chunk) const {
    if (g.activation == Activation::kRelu || g.activation == Activation::kNone) return;
    for (int64_t i = 0; i < slice.chunks(); ++i) depthwise_lines::activate(z + i * chunk, g.activation, to + i * chunk, g.x[3] * kLanes);
  }
};
static_assert(kPanel == kLanes);

/// Packs the convolution with the norm in it.
void pack_normalized(const Geometry& g, const PointwiseConvolution& convolution, const float* weight, const float* mean, const float* var,
                     const float* gamma, const float* beta, float* packed, Workspace& workspace) {
  std::pmr::vector<float> scale(static_cast<size_t>(g.channels), &workspace), shift(static_cast<size_t>(g.channels), &workspace);
  for (int64_t c = 0; c < g.channels; ++c) {
    const batchnorm::Affine affine = batchnorm::affine_of(c, mean, var, gamma, beta, g.eps);
    scale[static_cast<size_t>(c)] = static_cast<float>(affine.scale);
    shift[static_cast<size_t>(c)] = static_cast<float>(affine.shift);
  }
  convolution.pack(weight, scale.data(), shift.data(), packed);
}

class Forward : public PreparedKernel {
 public:
  explicit Forward(const KernelQuery& q)
      : depthwise_(made_by(q.in(0), q.in(1)), q.in(2), q.out(0), q.attrs<BatchNormDepthwiseAttrs>(), q.threads, Together::kAll),
        weight_(q.in(1)),
        convolution_(weight_),
        moments_(q.in(0), q.threads),
        scratch_(depthwise_.scratch()) {
    convolution_at_ = scratch_.take(convolution_.scratch_floats());
    moments_at_ = scratch_.take(moments_.scratch_floats());
    workspace_at_ = scratch_.take(workspace_floats(weight_.shape[1], weight_.shape[0]));
  }
  int64_t scratch_bytes() const override { return scratch_.bytes(); }

  void run(Stream&, const KernelArgs& args) const override {
    auto* memory = static_cast<float*>(args.scratch);
    Workspace workspace(memory + workspace_at_, workspace_floats(weight_.shape[1], weight_.shape[0]));
    const Geometry& g = depthwise_.geometry();
    const auto *x = args.in<float>(0), *weight = args.in<float>(1);
    float *mean = args.out<float>(1), *var = args.out<float>(2), *packed = memory + convolution_at_;
    statistics(x, weight, mean, var, args.out<float>(3), memory + moments_at_, workspace);
    pack_normalized(g, convolution_, weight, mean, var, args.in<float>(3), args.in<float>(4), packed, workspace);
    depthwise_.run(Source{{g, convolution_, x, packed, weight_.shape[1]}}, args.in<float>(2), args.out<float>(0), memory);
  }

 private:
  struct Source {
    MadeLines lines;
    void normalized(const LineSlice& at, float* to, int64_t chunk) const {
      lines.make(at, to, chunk);
      lines.activate(to, at.slice, to, chunk);
    }
  };

  void statistics(const float* x, const float* weight, float* mean, float* var, float* moments, float* memory, Workspace& workspace) const {
    const int64_t in = weight_.shape[1];
    const Doubles w = matrix_of(weight_, weight, workspace);
    const PointwiseMoments::Result of_x = moments_.run(x, memory, workspace);
    for (int64_t o = 0; o < weight_.shape[0]; ++o) {
      const double* row = w.data() + o * in;
      double square = 0;
      for (int64_t i = 0; i < in; ++i) square += row[i] * dot(row, of_x.covariance.data() + i * in, in);
      mean[o] = static_cast<float>(dot(row, of_x.mean.data(), in));
      var[o] = static_cast<float>(std::max(0.0, square));
    }
    std::transform(of_x.mean.begin(), of_x.mean.end(), moments, to_float);
    std::transform(of_x.covariance.begin(), of_x.covariance.end(), moments + in, to_float);
  }

  Convolution<float> depthwise_;
  TensorType weight_;
  PointwiseConvolution convolution_;
  PointwiseMoments moments_;
  Scratch scratch_;
  int64_t convolution_at_, moments_at_, workspace_at_;
};

class Backward : public PreparedKernel {
 public:
  explicit Backward(const KernelQuery& q)
      : weight_(q.in(7)),
        dweight_(q.out(1)),
        in_(weight_.shape[1]),
        out_(weight_.shape[0]),
        gradient_(q.in(0), q.in(1), made_by(q.in(6), weight_), q.out(2), q.attrs<BatchNormDepthwiseAttrs>(), q.threads, Together::kAll),
        convolution_(weight_),
        data_(PointwiseProduct::Of::kInputGradient, weight_),
        products_(weight_),
        narrow_({DType::kF32, {in_, in_, 1, 1}, {}, {}}),
        moments_(q.in(6), q.threads),
        scratch_(gradient_.scratch()) {
    convolution_at_ = scratch_.take(convolution_.scratch_floats());
    data_at_ = scratch_.take(data_.scratch_floats());
    arguments_at_ = scratch_.take(argument_floats() * q.threads);
    rows_at_ = scratch_.take(row_floats() * q.threads);
    products_at_ = scratch_.take(products_.floats() * q.threads);
    totals_at_ = scratch_.take(2 * products_.floats() * gradient_.parts());
    narrow_at_ = scratch_.take(narrow_.scratch_floats());
    added_at_ = scratch_.take(narrow_pixels() * panels_of(in_) * kPanel * q.threads);
    moments_at_ = scratch_.take(moments_.scratch_floats());
    workspace_at_ = scratch_.take(workspace_floats(in_, out_));
  }
  int64_t scratch_bytes() const override { return scratch_.bytes(); }

  void run(Stream&, const KernelArgs& args) const override {
    auto* memory = static_cast<float*>(args.scratch);
    Workspace workspace(memory + workspace_at_, workspace_floats(in_, out_));
    const auto *mean = args.in<float>(2), *var = args.in<float>(3), *gamma = args.in<float>(4), *beta = args.in<float>(5),
               *x = args.in<float>(6), *weight = args.in<float>(7);
    const float* residual = args.in<float>(8);
    float* dx = args.out<float>(0);
    const auto scale_of = [&](int64_t c) { return batchnorm::affine_of(c, mean, var, gamma, beta, g().eps).scale; };
    std::pmr::vector<float> scale(static_cast<size_t>(out_), &workspace);
    for (int64_t c = 0; c < out_; ++c) scale[static_cast<size_t>(c)] = static_cast<float>(scale_of(c));
    pack_normalized(g(), convolution_, weight, mean, var, gamma, beta, memory + convolution_at_, workspace);
    data_.pack(weight, scale.data(), nullptr, memory + data_at_);
    std::fill_n(memory + products_at_, products_.floats() * g().threads, 0.0f);
    std::fill_n(totals(memory, 0), products_.floats() * gradient_.parts(), 0.0);
    gradient_.begin(args.in<float>(1), args.out<float>(2), memory);
    gradient_.sum(Source{*this, {g(), convolution_, x, memory + convolution_at_, in_}, dx, memory}, args.in<float>(0), memory);

    const Doubles w = matrix_of(weight_, weight, workspace), products = gradient_products(memory, workspace);
    std::pmr::vector<batchnorm::ChannelGradient> channels(static_cast<size_t>(out_), &workspace);
    gradient_.add_parts(args.out<float>(2), memory, [&](int64_t c, double sum, double) {
      const double about_mean = dot(w.data() + c * in_, products.data() + c * in_, in_) - static_cast<double>(mean[c]) * sum;
      const batchnorm::ChannelGradient d =
          batchnorm::gradient_of(sum, about_mean, g().pixels(), scale_of(c), static_cast<double>(var[c]), g().eps);
      args.out<float>(3)[c] = static_cast<float>(d.dgamma);
      args.out<float>(4)[c] = static_cast<float>(d.dbeta);
      channels[static_cast<size_t>(c)] = d;
    });

    pack_narrow(w, channels, mean, memory + narrow_at_, workspace);
    const int64_t block = narrow_pixels(), pixels = g().pixels(), panels = panels_of(in_), step = panels * kPanel;
    parallel_tasks((pixels + block - 1) / block, g().threads, [&](int64_t task, int64_t slot) {
      const int64_t first = task * block, count = std::min(block, pixels - first), at = first * in_;
      float* added = memory + added_at_ + slot * block * step;
      narrow_.run(x + at, memory + narrow_at_, count, {0, panels}, {added, step}, true);
      add_rows(added, step, count, in_, dx + at);
      if (residual != nullptr) add_rows(residual + at, in_, count, in_, dx + at);
    });

    const PointwiseMoments::Result moments = moments_of(x, args.in<float>(9), memory + moments_at_, workspace);
    float* dweight = args.out<float>(1);
    if (dweight_.bytes() > dweight_.shape.elements() * 4)
      std::memset(dweight, 0, static_cast<size_t>(dweight_.bytes()));  // a blocked format's padding
    const auto n = static_cast<double>(pixels);
    parallel_for(out_, 8, [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) {
        const batchnorm::ChannelGradient& d = channels[static_cast<size_t>(o)];
        const double *row = w.data() + o * in_, off = dot(row, moments.mean.data(), in_) - static_cast<double>(mean[o]);
        for (int64_t i = 0; i < in_; ++i) {
          // The mean of (W x - mean) x^T.
          const double m = moments.mean[static_cast<size_t>(i)], of_x = dot(row, moments.covariance.data() + i * in_, in_) + off * m;
          dweight[dweight_.format.offset(dweight_.shape, {o, i, 0, 0})] =
              static_cast<float>(d.a * products[static_cast<size_t>(o * in_ + i)] + n * (d.b * of_x + d.offset * m));
        }
      }
    });
  }

 private:
  struct Source {
    const Backward& self;
    MadeLines lines;
    float *dx, *memory;

    /// The packed argument of the activation. It shares the memory of `normalized` where the output of the activation determines its slope.
    float* argument(const LineSlice& at, float* normalized) const {
      if (lines.g.activation != Activation::kHardswish) return normalized;
      return self.gradient_.packed_line().inner(memory + self.arguments_at_ + at.slot * self.argument_floats(), 0);
    }
    void normalized(const LineSlice& at, float* to, int64_t chunk) const {
      float* z = argument(at, to);
      lines.make(at, z, chunk);
      lines.activate(z, at.slice, to, chunk);
    }
    void gradients(const LineSlice& at, float* normalized, const Gathered& gathered, float* sum, float* /*dot*/) const {
      const Geometry& g = lines.g;
      float* to = self.rows(memory, at.slot) + at.in_block * g.x[3] * g.padded() + at.slice.first;
      depthwise_lines::gradient_sums(gathered, {argument(at, normalized), self.gradient_.packed_line().chunk()}, g.activation,
                                     {to, g.x[3], g.padded(), at.slice.chunks() * kLanes, 0}, sum);
    }
    /// Both products of the gradients that are gathered.
    void lines_done(int64_t part, int64_t slot, const Lines& done, bool last) const {
      const Geometry& g = lines.g;
      const int64_t first = done.first * g.x[3], count = (done.end - done.first) * g.x[3], step = g.padded();
      const float* gradients = self.rows(memory, slot);
      float* sums = memory + self.products_at_ + slot * self.products_.floats();
      self.products_.add(gradients, step, lines.x + first * self.in_, count, {}, sums);
      self.data_.run(gradients, step, count, memory + self.data_at_, dx + first * self.in_);
      if (!last && (done.end - self.gradient_.part(part).first) % (kBandBlocks * self.gradient_.block_lines()) != 0) return;
      double* total = self.totals(memory, part);
      for (int64_t i = 0; i < self.products_.floats(); ++i) total[i] += static_cast<double>(sums[i]);
      std::fill_n(sums, self.products_.floats(), 0.0f);
    }
  };

  const Geometry& g() const { return gradient_.geometry(); }
  int64_t argument_floats() const { return g().activation == Activation::kHardswish ? gradient_.packed_line().floats() : 0; }
  int64_t row_floats() const { return gradient_.block_lines() * g().x[3] * g().padded(); }
  int64_t narrow_pixels() const { return std::max<int64_t>(1, kNarrowFloats / in_); }
  float* rows(float* memory, int64_t slot) const { return memory + rows_at_ + slot * row_floats(); }
  double* totals(float* memory, int64_t part) const { return reinterpret_cast<double*>(memory + totals_at_) + part * products_.floats(); }

  /// G [O][I].
  Doubles gradient_products(float* memory, Workspace& workspace) const {
    double* sum = totals(memory, 0);
    for (int64_t part = 1; part < gradient_.parts(); ++part) {
      for (int64_t i = 0; i < products_.floats(); ++i) sum[i] += totals(memory, part)[i];
    }
    Doubles matrix(static_cast<size_t>(out_ * in_), &workspace);
    products_.unpack(sum, matrix.data());
    return matrix;
  }

  /// The convolution that dx still lacks: W^T b W, with W^T (offset - b mean).
  void pack_narrow(const Doubles& w, const std::pmr::vector<batchnorm::ChannelGradient>& channels, const float* mean, float* packed,
                   Workspace& workspace) const {
    Doubles square(static_cast<size_t>(in_ * in_), &workspace), shift(static_cast<size_t>(in_), &workspace);
    for (int64_t o = 0; o < out_; ++o) {
      const batchnorm::ChannelGradient& d = channels[static_cast<size_t>(o)];
      const double* row = w.data() + o * in_;
      for (int64_t i = 0; i < in_; ++i) {
        const double scaled = d.b * row[i];
        for (int64_t j = 0; j < in_; ++j) square[static_cast<size_t>(i * in_ + j)] += scaled * row[j];
        shift[static_cast<size_t>(i)] += row[i] * d.offset - scaled * static_cast<double>(mean[o]);
      }
    }
    narrow_.pack(std::pmr::vector<float>(square.begin(), square.end(), &workspace).data(), nullptr,
                 std::pmr::vector<float>(shift.begin(), shift.end(), &workspace).data(), packed);
  }

  /// The moments of x: `given`, or computed.
  PointwiseMoments::Result moments_of(const float* x, const float* given, float* memory, Workspace& workspace) const {
    if (given == nullptr) return moments_.run(x, memory, workspace);
    return {Doubles(given, given + in_, &workspace), Doubles(given + in_, given + in_ + in_ * in_, &workspace)};
  }

  TensorType weight_, dweight_;
  int64_t in_, out_;
  Gradient<float> gradient_;
  PointwiseConvolution convolution_;
  PointwiseProduct data_;
  PointwiseSums products_;       // G
  PointwiseConvolution narrow_;  // of x alone
  PointwiseMoments moments_;
  Scratch scratch_;
  int64_t convolution_at_, data_at_, arguments_at_, rows_at_, products_at_, totals_at_, narrow_at_, added_at_, moments_at_, workspace_at_;
};

Support supports_forward(const KernelQuery& q) {
  if (const Support inner = supports(q, {&q.in(0), &q.out(0)}, q.in(2), q.out(0), {3, 4}); !inner) return inner;
  return supports_pointwise_convolution(q.in(0), q.in(1));
}
Support supports_backward(const KernelQuery& q) {
  if (const Support inner = supports(q, {&q.in(6), &q.in(0), &q.in(q.has(8) ? 8 : 6)}, q.in(1), q.in(0), {2, 3, 4, 5}); !inner)
    return inner;
  if (const Support again = supports_pointwise_convolution(q.in(6), q.in(7)); !again) return again;
  return supports_pointwise_gradients(q, 6, 7);
}

}  // namespace

const Algorithm algorithm::kPointwiseBatchNormDepthwise{supports_forward, prepare_as<Forward>};
const Algorithm algorithm::kPointwiseBatchNormDepthwiseBackward{supports_backward, prepare_as<Backward>};

}  // namespace galley
