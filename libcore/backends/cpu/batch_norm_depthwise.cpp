// line_buffer: batch_norm_depthwise and its gradients on channels_last images of f32 or bf16, one image and one slice of channels at a time
// (batch_norm_depthwise.h has the layout).
//
// Forward: one pass for the statistics, one that normalizes and convolves. Backward: the first pass computes the weight gradient, the
// gradient of the norm's output and its sums; the second one maps that gradient to the one of the image, in place. Memory bounds both
// directions: counted in passes over the image (a written line is read before), 2 instead of 5 forward and 6 instead of 9 backward. Bits
// depend on the logical thread count only, where it needs more parts.

#include "libcore/backends/cpu/batch_norm_depthwise.h"

#include "libcore/backends/cpu/algorithms.h"

namespace galley {
namespace norm_depthwise {

Geometry::Geometry(const TensorType& x_type, const TensorType& y_type, const TensorType& weight, const BatchNormDepthwiseAttrs& a,
                   int thread_count, Direction direction)
    : x(x_type.shape),
      y(y_type.shape),
      w(weight),
      stride(pair(a.stride)),
      padding(pair(a.padding)),
      channels(x[1]),
      chunks(depthwise_lines::chunks_of(channels)),
      rows(w.shape[2]),
      columns(w.shape[3]),
      taps(rows * columns),
      threads(thread_count),
      eps(a.eps),
      activation(a.activation),
      offsets(offsets_in(w.format)) {
  const int64_t chunk_bytes = (rows * y[3] + x[3]) * kLanes * 4;
  slice_chunks = std::min(
      direction == Direction::kForward ? kSliceChunks : std::clamp<int64_t>(kSliceBytes / chunk_bytes, 1, kMostSliceChunks), chunks);
}

std::vector<int64_t> Geometry::offsets_in(const MemoryFormat& format) const {
  std::vector<int64_t> at;
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t tap = 0; tap < taps; ++tap) at.push_back(format.offset(w.shape, {c, 0, tap / columns, tap % columns}));
  }
  return at;
}

Support supports(const KernelQuery& q, std::initializer_list<const TensorType*> images, const TensorType& weight, const TensorType& y,
                 std::initializer_list<int> vectors) {
  const DType dtype = weight.dtype;
  if (dtype != DType::kF32 && dtype != DType::kBF16) return Support::no(cat("dtype ", dtype));
  const Shape& w = weight.shape;
  if (w[3] > depthwise_lines::kMostColumns || w[2] > depthwise_lines::kMostColumns)
    return Support::no(cat("a kernel of ", w[2], " x ", w[3]));
  const auto stride = pair(q.attrs<BatchNormDepthwiseAttrs>().stride);
  if (stride[1] > kMostClasses) return Support::no(cat("a stride of ", stride[1]));
  for (const TensorType* image : images) {
    if (image->dtype != dtype) return Support::no(cat("dtype ", image->dtype));
    if (!image->format.is_channels_last()) return Support::no(cat("format ", image->format));
    if (image->elements() == 0) return Support::no("empty array");
  }
  if (y.elements() == 0) return Support::no("empty array");
  for (int i : vectors) {
    if (q.has(i) && q.in(i).dtype != DType::kF32) return Support::no(cat("parameters in ", q.in(i).dtype));
  }
  return Support::yes();
}

}  // namespace norm_depthwise

namespace {

using namespace norm_depthwise;

/// scale and shift, padded to whole chunks.
Normalization normalization(const Geometry& g, const float* mean, const float* var, const float* gamma, const float* beta,
                            float* padded_mean, float* scale, float* shift) {
  for (int64_t c = 0; c < g.padded(); ++c) {
    const bool real = c < g.channels;
    const batchnorm::Affine affine = real ? batchnorm::affine_of(c, mean, var, gamma, beta, g.eps) : batchnorm::Affine{0, 0};
    padded_mean[c] = real ? mean[c] : 0;
    scale[c] = static_cast<float>(affine.scale);
    shift[c] = static_cast<float>(affine.shift);
  }
  return {g.activation, padded_mean, scale, shift};
}

Normalization of_slice(const Normalization& norm, const Slice& slice) {
  return {norm.activation, norm.mean + slice.first, norm.scale + slice.first, norm.shift + slice.first};
}

template <class T>
class Forward : public PreparedKernel {
 public:
  explicit Forward(const KernelQuery& q)
      : convolution_(q.in(0), q.in(1), q.out(0), q.attrs<BatchNormDepthwiseAttrs>(), q.threads, Together::kOne),
        statistics_({g().pixels(), g().channels}, q.threads),
        scratch_(convolution_.scratch()) {
    sums_at_ = scratch_.take(statistics_.scratch_bytes() / 4);
    for (int64_t& at : channels_at_) at = scratch_.take(g().padded());
  }
  int64_t scratch_bytes() const override { return scratch_.bytes(); }
  void run(Stream&, const KernelArgs& args) const override {
    auto* memory = static_cast<float*>(args.scratch);
    const T* x = args.in<T>(0);
    float *mean = args.out<float>(1), *var = args.out<float>(2);
    statistics_.run(x, mean, var, memory + sums_at_);
    const auto channel = [&](size_t i) { return memory + channels_at_[i]; };
    convolution_.run(
        Source{g(), x, normalization(g(), mean, var, args.in<float>(2), args.in<float>(3), channel(0), channel(1), channel(2))},
        args.in<T>(1), args.out<T>(0), memory);
  }

 private:
  struct Source {
    const Geometry& g;
    const T* x;
    Normalization how;
    void normalized(const LineSlice& at, float* to, int64_t chunk) const {
      depthwise_lines::pack(g.line(x, g.x, at.image, at.row, at.slice), of_slice(how, at.slice), to, chunk);
    }
  };
  const Geometry& g() const { return convolution_.geometry(); }

  Convolution<T> convolution_;
  batchnorm::Statistics<T> statistics_;
  Scratch scratch_;
  int64_t sums_at_;
  std::array<int64_t, 3> channels_at_{};
};

template <class T>
class Backward : public PreparedKernel {
 public:
  explicit Backward(const KernelQuery& q)
      : gradient_(q.in(0), q.in(1), q.in(2), q.out(1), q.attrs<BatchNormDepthwiseAttrs>(), q.threads, Together::kOne),
        scratch_(gradient_.scratch()) {
    for (int64_t& at : channels_at_) at = scratch_.take(g().padded());
  }
  int64_t scratch_bytes() const override { return scratch_.bytes(); }

  void run(Stream&, const KernelArgs& args) const override {
    auto* memory = static_cast<float*>(args.scratch);
    const T* x = args.in<T>(2);
    T* dx = args.out<T>(0);
    const float *mean = args.in<float>(3), *var = args.in<float>(4), *gamma = args.in<float>(5), *beta = args.in<float>(6);
    const auto channel = [&](size_t i) { return memory + channels_at_[i]; };
    const Source source{g(), x, dx, normalization(g(), mean, var, gamma, beta, channel(0), channel(1), channel(2))};
    gradient_.begin(args.in<T>(1), args.out<T>(1), memory);
    gradient_.sum(source, args.in<T>(0), memory);
    gradient_.add_parts(args.out<T>(1), memory, [&](int64_t c, double sum, double dot) {
      const batchnorm::ChannelGradient d = batchnorm::gradient_of(
          sum, dot, g().pixels(), batchnorm::affine_of(c, mean, var, gamma, beta, g().eps).scale, static_cast<double>(var[c]), g().eps);
      args.out<float>(2)[c] = static_cast<float>(d.dgamma);
      args.out<float>(3)[c] = static_cast<float>(d.dbeta);
      channel(3)[c] = static_cast<float>(d.a);
      channel(4)[c] = static_cast<float>(d.b);
      channel(5)[c] = static_cast<float>(d.offset);
    });
    // Backwards, from what each thread wrote last.
    const depthwise_lines::GradientMap map{channel(0), channel(3), channel(4), channel(5)};
    const auto body = [&](int64_t first, int64_t last) {
      const int64_t at = first * g().channels;
      depthwise_lines::map_gradient({x + at, last - first, g().channels, g().channels, 0}, dx + at, map);
    };
    parallel_ranges(g().pixels(), std::max<int64_t>(1, 16384 / g().channels), body, true);
  }

 private:
  struct Source {
    const Geometry& g;
    const T* x;
    T* dx;  // until it is mapped, the gradient of the norm's output
    Normalization how;
    void normalized(const LineSlice& at, float* to, int64_t chunk) const {
      depthwise_lines::pack(g.line(x, g.x, at.image, at.row, at.slice), of_slice(how, at.slice), to, chunk);
    }
    void gradients(const LineSlice& at, const float* /*normalized*/, const Gathered& gathered, float* sum, float* dot) const {
      depthwise_lines::gradient_sums(gathered, g.line(x, g.x, at.image, at.row, at.slice), of_slice(how, at.slice),
                                     g.line(dx, g.x, at.image, at.row, at.slice).at, sum, dot);
    }
    void lines_done(int64_t /*part*/, int64_t /*slot*/, const Lines& /*lines*/, bool /*last*/) const {}
  };
  const Geometry& g() const { return gradient_.geometry(); }

  Gradient<T> gradient_;
  Scratch scratch_;
  std::array<int64_t, 6> channels_at_{};
};

Support supports_forward(const KernelQuery& q) { return supports(q, {&q.in(0)}, q.in(1), q.out(0), {2, 3}); }
Support supports_backward(const KernelQuery& q) { return supports(q, {&q.in(2), &q.in(0)}, q.in(1), q.in(0), {3, 4, 5, 6}); }

template <template <class> class K>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  if (q.in(1).dtype == DType::kBF16) return std::make_unique<K<BFloat16>>(q);
  return std::make_unique<K<float>>(q);
}

}  // namespace

const Algorithm algorithm::kBatchNormDepthwise{supports_forward, prepare<Forward>};
const Algorithm algorithm::kBatchNormDepthwiseBackward{supports_backward, prepare<Backward>};

}  // namespace galley
