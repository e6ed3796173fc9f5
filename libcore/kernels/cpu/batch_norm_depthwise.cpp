// batch_norm_depthwise and its gradients on channels_last images of f32 or bf16, an image and a slice of its channels at a time. What the norm gives
// exists line by line only, packed, in a ring of as many lines as the kernel has rows, which the first-level cache mostly holds. Backwards one pass
// makes the weight's gradient, the gradient behind the norm and its sums, a second one the image's gradient of that, in place. Sums run in float
// over a band of lines, in double over the bands of a part of the batch, and parts are added up in one order: bits depend on the logical thread
// count only, where that needs more parts.

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "libcore/base/parallel.h"
#include "libcore/kernels/cpu/batch_norm.h"
#include "libcore/kernels/cpu/depthwise_lines.h"
#include "libcore/kernels/cpu/pointwise.h"
#include "libcore/kernels/cpu/table.h"
#include "libcore/ops/batch_norm_depthwise.h"

namespace galley {
namespace {

using depthwise_lines::Gathered;
using depthwise_lines::kLanes;
using depthwise_lines::Line;
using depthwise_lines::Normalization;
using depthwise_lines::Taps;
using depthwise_lines::WeightSums;

constexpr int64_t kBandPixels = 512;  // that are summed in float
constexpr int64_t kMostParts = 16;
constexpr int64_t kSliceChunks = 2;   // two cache lines of f32: some processors read them in pairs
constexpr int64_t kPixelsAhead = 32;  // between what is computed and what is asked for, at least
constexpr int64_t kMostClasses = 4;   // strides

/// Packed lines, one behind the other; `left` and `right` pixels of each are zero.
struct PackedLines {
  int64_t lines = 0, left = 0, pixels = 0, right = 0, chunks = 0;

  int64_t chunk() const { return (left + pixels + right) * kLanes; }
  int64_t floats() const { return lines * chunks * chunk(); }
  float* line(float* at, int64_t row) const { return at + row % lines * chunks * chunk(); }
  /// Its first pixel behind the halo.
  float* inner(float* at, int64_t row) const { return line(at, row) + left * kLanes; }
  void clear_halos(float* at) const {
    for (int64_t i = 0; i < lines * chunks; ++i, at += chunk()) {
      std::memset(at, 0, static_cast<size_t>(left * kLanes) * 4);
      std::memset(at + (left + pixels) * kLanes, 0, static_cast<size_t>(right * kLanes) * 4);
    }
  }
};

/// Lines [begin, end) of one image.
struct Segment {
  int64_t image, begin, end;
};
/// Some neighbouring channels.
struct Slice {
  int64_t first, channels;
  int64_t chunks() const { return depthwise_lines::chunks_of(channels); }
};

/// What both directions know of the shapes.
struct Geometry {
  /// Of [channel][tap] in a format of the weight.
  std::vector<int64_t> offsets_in(const MemoryFormat& format) const {
    std::vector<int64_t> offsets;
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t tap = 0; tap < taps; ++tap) offsets.push_back(format.offset(w.shape, {c, 0, tap / columns, tap % columns}));
    }
    return offsets;
  }

  Geometry(const TensorType& x_type, const TensorType& y_type, const TensorType& weight, const BatchNormDepthwiseAttrs& a, int thread_count)
      : x(x_type.shape), y(y_type.shape), w(weight), stride(pair(a.stride)), padding(pair(a.padding)), channels(x[1]), chunks(depthwise_lines::chunks_of(channels)),
        rows(w.shape[2]), columns(w.shape[3]), taps(rows * columns), threads(thread_count), eps(a.eps), activation(a.activation), offsets(offsets_in(w.format)) {}

  int64_t padded() const { return chunks * kLanes; }
  int64_t slices() const { return (chunks + kSliceChunks - 1) / kSliceChunks; }
  Slice slice(int64_t i) const { return {i * kSliceChunks * kLanes, std::min(kSliceChunks * kLanes, channels - i * kSliceChunks * kLanes)}; }
  int64_t slice_chunks() const { return std::min(kSliceChunks, chunks); }  // at most
  /// A slice of a line of an image with `shape`.
  template <class T>
  Line<T> line(T* array, const Shape& shape, int64_t image, int64_t row, const Slice& slice) const {
    return {array + (image * shape[2] + row) * shape[3] * channels + slice.first, shape[3], channels, slice.channels, std::max<int64_t>(1, kPixelsAhead / shape[3]) * shape[3] * channels};
  }
  batchnorm::Rows pixels() const { return {x[0] * x[2] * x[3], channels}; }

  /// [chunk][tap][lane]
  template <class T>
  void pack_weights(const T* weight, float* to) const {
    parallel_for(padded(), 64, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        for (int64_t tap = 0; tap < taps; ++tap) to[(c / kLanes * taps + tap) * kLanes + c % kLanes] = c < channels ? static_cast<float>(weight[offsets[static_cast<size_t>(c * taps + tap)]]) : 0;
      }
    });
  }

  /// body(segment, slice, slot) over the lines of all images of that height, from the end, which the pass before left in the cache.
  template <class Body>
  void for_each_segment(int64_t height, const Body& body) const {
    const int64_t whole = x[0] * slices(), cuts = std::clamp<int64_t>((8 * threads + whole - 1) / whole, 1, std::max<int64_t>(1, height / 8)), count = whole * cuts;
    parallel_tasks(count, threads, [&](int64_t task, int64_t slot) {
      const int64_t at = count - 1 - task, cut = at / slices() % cuts;
      body(Segment{at / slices() / cuts, height * cut / cuts, height * (cut + 1) / cuts}, slice(at % slices()), slot);
    });
  }

  Shape x, y;
  TensorType w;
  std::array<int64_t, 2> stride, padding;
  int64_t channels, chunks, rows, columns, taps, threads;
  double eps;
  Activation activation;
  std::vector<int64_t> offsets;
};

/// Arrays of floats, one behind the other in the scratch memory, each on a cache line of its own.
class Scratch {
 public:
  /// Its place.
  int64_t take(int64_t floats) {
    const int64_t at = size_;
    size_ += (floats + 15) / 16 * 16;
    return at;
  }
  int64_t bytes() const { return size_ * 4; }

 private:
  int64_t size_ = 0;
};

/// scale and shift, padded to whole chunks.
Normalization normalization(const Geometry& g, const float* mean, const float* var, const float* gamma, const float* beta, float* padded_mean, float* scale, float* shift) {
  for (int64_t c = 0; c < g.padded(); ++c) {
    const bool real = c < g.channels;
    const batchnorm::Affine affine = real ? batchnorm::affine_of(c, mean, var, gamma, beta, g.eps) : batchnorm::Affine{0, 0};
    padded_mean[c] = real ? mean[c] : 0;
    scale[c] = static_cast<float>(affine.scale);
    shift[c] = static_cast<float>(affine.shift);
  }
  return {g.activation, padded_mean, scale, shift};
}

Normalization of_slice(const Normalization& how, const Slice& slice) { return {how.activation, how.mean + slice.first, how.scale + slice.first, how.shift + slice.first}; }

/// `most_blocks`: of pixels, whose sums the statistics are made of.
template <class T>
class Computation {
 public:
  Computation(const TensorType& x, const TensorType& weight, const TensorType& y, const BatchNormDepthwiseAttrs& a, int threads, int64_t most_blocks = 256)
      : g_(x, y, weight, a, threads), statistics_(g_.pixels(), threads, most_blocks) {
    ring_ = {g_.rows, g_.padding[1], g_.x[3], g_.padding[1], g_.slice_chunks()};
    rings_at_ = scratch_.take(ring_.floats() * g_.threads);
    weights_at_ = scratch_.take(g_.taps * g_.padded());
    for (int64_t& at : channels_at_) at = scratch_.take(g_.padded());
    sums_at_ = scratch_.take(statistics_.scratch_bytes() / 4);
  }
  const Scratch& scratch() const { return scratch_; }

  struct Operands {
    const T *x, *weight;
    const float *gamma, *beta;
    T* y;
    float *mean, *var;
  };

  /// `make`: writes pixels [first, last) of x before they are read first; on several threads.
  void run(const Operands& o, float* memory, const std::function<void(int64_t first, int64_t last)>& make = nullptr) const {
    float* weights = memory + weights_at_;
    statistics_.run(o.x, o.mean, o.var, memory + sums_at_, make);
    const Normalization how = normalization(g_, o.mean, o.var, o.gamma, o.beta, memory + channels_at_[0], memory + channels_at_[1], memory + channels_at_[2]);
    g_.pack_weights(o.weight, weights);
    for (int64_t slot = 0; slot < g_.threads; ++slot) ring_.clear_halos(memory + rings_at_ + slot * ring_.floats());
    g_.for_each_segment(g_.y[2], [&](const Segment& segment, const Slice& slice, int64_t slot) {
      convolve(o.x, of_slice(how, slice), weights + slice.first * g_.taps, segment, slice, memory + rings_at_ + slot * ring_.floats(), o.y);
    });
  }

 private:
  void convolve(const T* x, const Normalization& how, const float* weights, const Segment& segment, const Slice& slice, float* ring, T* y) const {
    int64_t next = 0;  // line of the image that is packed next
    for (int64_t h = segment.begin; h < segment.end; ++h) {
      const int64_t top = h * g_.stride[0] - g_.padding[0], first = std::max<int64_t>(0, top), behind = std::min(top + g_.rows, g_.x[2]);
      for (next = std::max(next, first); next < behind; ++next) depthwise_lines::pack(g_.line(x, g_.x, segment.image, next, slice), how, ring_.inner(ring, next), ring_.chunk());
      Taps taps;
      taps.step = g_.stride[1] * kLanes;
      taps.in_chunk = ring_.chunk();
      taps.weight_chunk = g_.taps * kLanes;
      taps.columns = g_.columns;
      for (int64_t row = first; row < behind; ++row) {
        const auto at = static_cast<size_t>(taps.rows++);
        taps.in[at] = ring_.line(ring, row);
        taps.weight[at] = weights + (row - top) * g_.columns * kLanes;
      }
      depthwise_lines::convolve(taps, g_.line(y, g_.y, segment.image, h, slice));
    }
  }

  Geometry g_;
  batchnorm::Statistics<T> statistics_;
  PackedLines ring_;
  Scratch scratch_;
  int64_t rings_at_, weights_at_, sums_at_;
  std::array<int64_t, 3> channels_at_{};
};

template <class T>
class Forward : public PreparedKernel {
 public:
  explicit Forward(const KernelQuery& q) : computation_(q.in(0), q.in(1), q.out(0), q.attrs<BatchNormDepthwiseAttrs>(), q.threads) {}
  int64_t scratch_bytes() const override { return computation_.scratch().bytes(); }
  void run(const KernelArgs& args) const override {
    computation_.run({args.in<T>(0), args.in<T>(1), args.in<float>(2), args.in<float>(3), args.out<T>(0), args.out<float>(1), args.out<float>(2)}, static_cast<float*>(args.scratch));
  }

 private:
  Computation<T> computation_;
};

/// With the 1x1 convolution that gives the norm's input, and the statistics of its pixels as they are made.
class PointwiseForward : public PreparedKernel {
 public:
  explicit PointwiseForward(const KernelQuery& q)
      : computation_(q.out(3), q.in(2), q.out(0), q.attrs<BatchNormDepthwiseAttrs>(), q.threads, kMostBlocks), convolution_(q.in(0), q.in(1)), scratch_(computation_.scratch()) {
    convolution_at_ = scratch_.take(convolution_.scratch_floats());
  }
  int64_t scratch_bytes() const override { return scratch_.bytes(); }
  void run(const KernelArgs& args) const override {
    auto* memory = static_cast<float*>(args.scratch);
    float *between = args.out<float>(3), *packed = memory + convolution_at_;
    convolution_.pack(args.in<float>(1), packed);
    computation_.run({between, args.in<float>(2), args.in<float>(3), args.in<float>(4), args.out<float>(0), args.out<float>(1), args.out<float>(2)}, memory,
                     [&](int64_t first, int64_t last) { convolution_.run(args.in<float>(0), packed, first, last, between); });
  }

 private:
  static constexpr int64_t kMostBlocks = 4096;  // so that a block, made and summed, stays in the second-level cache

  Computation<float> computation_;
  PointwiseConvolution convolution_;
  Scratch scratch_;
  int64_t convolution_at_;
};

/// The first pass backwards, which leaves the image's gradient as it is behind the norm.
template <class T>
class Gradient {
 public:
  Gradient(const TensorType& grad, const TensorType& weight, const TensorType& x, const TensorType& dweight, const BatchNormDepthwiseAttrs& a, int threads)
      : g_(x, grad, weight, a, threads), dweight_(dweight), offsets_(g_.offsets_in(dweight.format)) {
    const int64_t reach = g_.columns - 1 - g_.padding[1], last = (g_.x[3] - 1 + g_.padding[1]) / g_.stride[1];
    ring_ = {g_.rows, reach > 0 ? (reach + g_.stride[1] - 1) / g_.stride[1] : 0, g_.y[3], std::max<int64_t>(0, last - (g_.y[3] - 1)), g_.slice_chunks()};
    line_ = {1, g_.padding[1], g_.x[3], g_.padding[1], g_.slice_chunks()};
    const int64_t lines = g_.x[0] * g_.x[2], totals = (g_.taps + 2) * g_.padded(), fitting = g_.x.elements() / (totals * 8);  // their bytes as many as the image has values
    while (parts_ < kMostParts && 2 * parts_ <= fitting) parts_ *= 2;
    parts_ = std::min(std::max(parts_, (g_.threads + g_.slices() - 1) / g_.slices()), lines);
    rings_at_ = scratch_.take(ring_.floats() * g_.threads);
    lines_at_ = scratch_.take(line_.floats() * g_.threads);
    bands_at_ = scratch_.take((g_.taps + 2) * g_.slice_chunks() * kLanes * g_.threads);
    totals_at_ = scratch_.take(totals * parts_ * 2);
    weights_at_ = scratch_.take(g_.taps * g_.padded());
    for (int64_t& at : channels_at_) at = scratch_.take(g_.padded());
  }
  const Scratch& scratch() const { return scratch_; }
  batchnorm::Rows pixels() const { return g_.pixels(); }

  struct Operands {
    const T *grad, *weight, *x;
    const float *mean, *var, *gamma, *beta;
    T *behind, *dweight;  // the gradient behind the norm, as x
    float *dgamma, *dbeta;
  };

  /// Returns, in the scratch memory, how `behind` is mapped to the gradient of x.
  depthwise_lines::GradientMap sum(const Operands& o, float* memory) const {
    const auto channel = [&](size_t i) { return memory + channels_at_[i]; };
    const Call call{o.grad, o.x, o.behind, memory + weights_at_, normalization(g_, o.mean, o.var, o.gamma, o.beta, channel(0), channel(1), channel(2)), memory};
    g_.pack_weights(o.weight, memory + weights_at_);
    for (int64_t slot = 0; slot < g_.threads; ++slot) {
      ring_.clear_halos(ring(memory, slot));
      line_.clear_halos(memory + lines_at_ + slot * line_.floats());
    }
    parallel_tasks(parts_ * g_.slices(), g_.threads, [&](int64_t task, int64_t slot) { sum_part(call, task / g_.slices(), g_.slice(task % g_.slices()), slot); });
    add_parts(o, memory);
    return {channel(0), channel(3), channel(4), channel(5)};
  }

 private:
  struct Call {
    const T *grad, *x;
    T* behind;
    const float* weights;
    Normalization how;
    float* memory;
  };

  float* ring(float* memory, int64_t slot) const { return memory + rings_at_ + slot * ring_.floats(); }

  /// The output lines that read a line of the image: [first, behind).
  std::array<int64_t, 2> readers(int64_t row) const {
    const int64_t below = row + g_.padding[0] - g_.rows + 1, stride = g_.stride[0];
    return {below <= 0 ? 0 : (below + stride - 1) / stride, std::min((row + g_.padding[0]) / stride + 1, g_.y[2])};
  }

  /// body(line of the image, how its gradient is gathered) with the output's lines that it needs in the ring.
  template <class Body>
  void each_line(const Call& call, const Segment& segment, const Slice& slice, float* ring, const Body& body) const {
    const float* weights = call.weights + slice.first * g_.taps;
    int64_t next = 0;
    for (int64_t row = segment.begin; row < segment.end; ++row) {
      const auto [first, behind] = readers(row);
      for (next = std::max(next, first); next < behind; ++next) {
        depthwise_lines::pack(g_.line(call.grad, g_.y, segment.image, next, slice), ring_.inner(ring, next), ring_.chunk());
      }
      const int64_t stride = g_.stride[1];
      std::array<Taps, kMostClasses> taps;
      for (int64_t remainder = 0; remainder < stride; ++remainder) {
        Taps& own = taps[static_cast<size_t>(remainder)];
        own.in_chunk = ring_.chunk();
        own.weight_chunk = g_.taps * kLanes;
        // The kernel's columns from the last one on: so they read the gradient from left to right.
        const int64_t column = (remainder + g_.padding[1]) % stride;
        own.columns = column < g_.columns ? (g_.columns - 1 - column) / stride + 1 : 0;
        const int64_t last = column + (own.columns - 1) * stride;
        own.weight_step = -stride * kLanes;
        for (int64_t h = first; h < behind && own.columns > 0; ++h) {
          const auto at = static_cast<size_t>(own.rows++);
          own.in[at] = ring_.inner(ring, h) + (remainder + g_.padding[1] - last) / stride * kLanes;
          own.weight[at] = weights + ((row + g_.padding[0] - h * g_.stride[0]) * g_.columns + last) * kLanes;
        }
      }
      body(row, Gathered{taps.data(), stride});
    }
  }

  /// Where a chunk's totals are in a part's: [tap][lane] of the weight, then sums and dots of the channels.
  int64_t chunk_totals() const { return (g_.taps + 2) * kLanes; }

  void sum_part(const Call& call, int64_t part, const Slice& slice, int64_t slot) const {
    const int64_t lines = g_.x[0] * g_.x[2], weights = slice.chunks() * g_.taps * kLanes, padded = slice.chunks() * kLanes, band = std::max<int64_t>(1, kBandPixels / g_.x[3]);
    float* sums = call.memory + bands_at_ + slot * chunk_totals() * g_.slice_chunks();
    float *sum = sums + weights, *dot = sum + padded;
    float* packed = call.memory + lines_at_ + slot * line_.floats();
    float* lines_of_gradient = ring(call.memory, slot);
    auto* totals = reinterpret_cast<double*>(call.memory + totals_at_) + (part * g_.chunks + slice.first / kLanes) * chunk_totals();
    const int64_t count = slice.chunks() * chunk_totals();
    std::fill_n(totals, count, 0.0);
    std::fill_n(sums, count, 0.0f);
    int64_t summed = 0;
    const auto flush = [&] {
      for (int64_t chunk = 0; chunk < slice.chunks(); ++chunk) {
        double* to = totals + chunk * chunk_totals();
        for (int64_t i = 0; i < g_.taps * kLanes; ++i) to[i] += static_cast<double>(sums[chunk * g_.taps * kLanes + i]);
        for (int64_t i = 0; i < kLanes; ++i) {
          to[g_.taps * kLanes + i] += static_cast<double>(sum[chunk * kLanes + i]);
          to[(g_.taps + 1) * kLanes + i] += static_cast<double>(dot[chunk * kLanes + i]);
        }
      }
      std::fill_n(sums, count, 0.0f);
      summed = 0;
    };
    const Normalization how = of_slice(call.how, slice);
    const int64_t end = lines * (part + 1) / parts_;
    for (int64_t at = lines * part / parts_; at < end;) {
      const int64_t image = at / g_.x[2], begin = at % g_.x[2], behind = std::min(g_.x[2], begin + end - at);
      each_line(call, {image, begin, behind}, slice, lines_of_gradient, [&](int64_t row, const Gathered& gathered) {
        const Line<const T> line = g_.line(call.x, g_.x, image, row, slice);
        depthwise_lines::pack(line, how, line_.inner(packed, 0), line_.chunk());
        add_weight_sums(row, slice, packed, lines_of_gradient, sums);
        depthwise_lines::gradient_sums(gathered, line, how, g_.line(call.behind, g_.x, image, row, slice).at, sum, dot);
        if (++summed == band) flush();
      });
      at += behind - begin;
    }
    flush();
  }

  void add_weight_sums(int64_t row, const Slice& slice, const float* packed, float* ring, float* sums) const {
    const auto [first, behind] = readers(row);
    WeightSums w{};
    w.in = packed;
    w.columns = g_.columns;
    w.count = g_.y[3];
    w.step = g_.stride[1] * kLanes;
    w.chunks = slice.chunks();
    w.in_chunk = line_.chunk();
    w.grad_chunk = ring_.chunk();
    w.sums_chunk = g_.taps * kLanes;
    for (int64_t h = first; h < behind; ++h) {
      const auto at = static_cast<size_t>(w.rows++);
      w.grad[at] = ring_.inner(ring, h);
      w.sums[at] = sums + (row + g_.padding[0] - h * g_.stride[0]) * g_.columns * kLanes;
    }
    depthwise_lines::add_weight_sums(w);
  }

  /// The gradients of weight, gamma and beta, and what dx needs of each channel.
  void add_parts(const Operands& o, float* memory) const {
    const auto* totals = reinterpret_cast<const double*>(memory + totals_at_);
    std::memset(o.dweight, 0, static_cast<size_t>(dweight_.bytes()));  // padding of blocked formats stays zero
    parallel_for(g_.chunks, 4, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin * kLanes; c < end * kLanes; ++c) {
        // `row`: a tap, or behind them the sum and the dot.
        const auto total = [&](int64_t row) {
          double sum = 0;
          for (int64_t part = 0; part < parts_; ++part) sum += totals[(part * g_.chunks + c / kLanes) * chunk_totals() + row * kLanes + c % kLanes];
          return sum;
        };
        batchnorm::ChannelGradient d{};
        if (c < g_.channels) {
          for (int64_t tap = 0; tap < g_.taps; ++tap) o.dweight[offsets_[static_cast<size_t>(c * g_.taps + tap)]] = static_cast<float>(total(tap));
          const batchnorm::Affine affine = batchnorm::affine_of(c, o.mean, o.var, o.gamma, o.beta, g_.eps);
          d = batchnorm::gradient_of(total(g_.taps), total(g_.taps + 1), g_.pixels().pixels, affine.scale, static_cast<double>(o.var[c]), g_.eps);
          o.dgamma[c] = static_cast<float>(d.dgamma);
          o.dbeta[c] = static_cast<float>(d.dbeta);
        }
        memory[channels_at_[3] + c] = static_cast<float>(d.a);
        memory[channels_at_[4] + c] = static_cast<float>(d.b);
        memory[channels_at_[5] + c] = static_cast<float>(d.offset);
      }
    });
  }

  Geometry g_;
  TensorType dweight_;
  std::vector<int64_t> offsets_;  // of the weight's gradient
  PackedLines ring_, line_;  // of the gradient; of what the norm gave
  int64_t parts_ = 1;
  Scratch scratch_;
  int64_t rings_at_, lines_at_, bands_at_, totals_at_, weights_at_;
  std::array<int64_t, 6> channels_at_{};
};

template <class T>
class Backward : public PreparedKernel {
 public:
  explicit Backward(const KernelQuery& q) : gradient_(q.in(0), q.in(1), q.in(2), q.out(1), q.attrs<BatchNormDepthwiseAttrs>(), q.threads) {}
  int64_t scratch_bytes() const override { return gradient_.scratch().bytes(); }

  void run(const KernelArgs& args) const override {
    const T* x = args.in<T>(2);
    T* dx = args.out<T>(0);
    const depthwise_lines::GradientMap map = gradient_.sum({args.in<T>(0), args.in<T>(1), x, args.in<float>(3), args.in<float>(4), args.in<float>(5), args.in<float>(6), dx, args.out<T>(1),
                                                            args.out<float>(2), args.out<float>(3)}, static_cast<float*>(args.scratch));
    // From the end of what each thread wrote, which a cache may still hold.
    const auto [pixels, channels] = gradient_.pixels();
    const int64_t piece = std::max<int64_t>(1, 16384 / channels);
    parallel_for(pixels, piece, [&, channels = channels](int64_t begin, int64_t end) {
      for (int64_t last = end; last > begin; last -= piece) {
        const int64_t first = std::max(begin, last - piece);
        depthwise_lines::map_gradient(x + first * channels, dx + first * channels, dx + first * channels, last - first, channels, map);
      }
    });
  }

 private:
  Gradient<T> gradient_;
};

/// With the gradients of the 1x1 convolution that gave the norm's input.
class PointwiseBackward : public PreparedKernel {
 public:
  explicit PointwiseBackward(const KernelQuery& q)
      : gradient_(q.in(0), q.in(1), q.in(2), q.out(2), q.attrs<BatchNormDepthwiseAttrs>(), q.threads), convolution_(q.in(7), q.in(8), q.out(1), q.threads), scratch_(gradient_.scratch()) {
    behind_at_ = scratch_.take(q.in(2).elements());
    convolution_at_ = scratch_.take(convolution_.scratch_floats());
  }
  int64_t scratch_bytes() const override { return scratch_.bytes(); }

  void run(const KernelArgs& args) const override {
    auto* memory = static_cast<float*>(args.scratch);
    const auto *between = args.in<float>(2);
    float* behind = memory + behind_at_;
    const depthwise_lines::GradientMap map = gradient_.sum({args.in<float>(0), args.in<float>(1), between, args.in<float>(3), args.in<float>(4), args.in<float>(5), args.in<float>(6), behind,
                                                            args.out<float>(2), args.out<float>(3), args.out<float>(4)}, memory);
    const int64_t channels = gradient_.pixels().channels;
    convolution_.run({args.in<float>(7), args.in<float>(8), args.out<float>(0), args.out<float>(1)}, memory + convolution_at_, {between, behind}, [&](int64_t first, int64_t count, float* to) {
      depthwise_lines::map_gradient(between + first * channels, behind + first * channels, to, count, channels, map);
    });
  }

 private:
  Gradient<float> gradient_;
  PointwiseGradients convolution_;
  Scratch scratch_;
  int64_t behind_at_, convolution_at_;
};

/// `images` are of one dtype with the weight; `vectors`, of one value a channel, are in f32.
Support supports(const KernelQuery& q, std::initializer_list<const TensorType*> images, const TensorType& weight, const TensorType& y, std::initializer_list<int> vectors) {
  const DType dtype = weight.dtype;
  if (dtype != DType::kF32 && dtype != DType::kBF16) return Support::no(cat("dtype ", dtype));
  const Shape& w = weight.shape;
  if (w[3] > depthwise_lines::kMostColumns || w[2] > depthwise_lines::kMostColumns) return Support::no(cat("a kernel of ", w[2], " x ", w[3]));
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

Support supports_forward(const KernelQuery& q) { return supports(q, {&q.in(0)}, q.in(1), q.out(0), {2, 3}); }
Support supports_backward(const KernelQuery& q) { return supports(q, {&q.in(2), &q.in(0)}, q.in(1), q.in(0), {3, 4, 5, 6}); }
Support supports_pointwise_forward(const KernelQuery& q) {
  if (const Support inner = supports(q, {&q.out(3), &q.out(0)}, q.in(2), q.out(0), {3, 4}); !inner) return inner;
  return supports_pointwise_convolution(q.in(0), q.in(1), q.out(3));
}
Support supports_pointwise(const KernelQuery& q) {
  if (const Support norm = supports_backward(q); !norm) return norm;
  return supports_pointwise_gradients(q, 7, 8);
}

template <template <class> class K>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  if (q.in(1).dtype == DType::kBF16) return std::make_unique<K<BFloat16>>(q);
  return std::make_unique<K<float>>(q);
}

std::unique_ptr<PreparedKernel> prepare_pointwise(const KernelQuery& q) { return std::make_unique<PointwiseBackward>(q); }

std::unique_ptr<PreparedKernel> prepare_pointwise_forward(const KernelQuery& q) { return std::make_unique<PointwiseForward>(q); }

constexpr std::array<Kernel, 4> kKernels{{{"batch_norm_depthwise", "cpu", supports_forward, prepare<Forward>},
                                          {"batch_norm_depthwise_backward", "cpu", supports_backward, prepare<Backward>},
                                          {"pointwise_batch_norm_depthwise_backward", "cpu", supports_pointwise, prepare_pointwise},
                                          {"pointwise_batch_norm_depthwise", "cpu", supports_pointwise_forward, prepare_pointwise_forward}}};

}  // namespace

std::span<const Kernel> cpu_batch_norm_depthwise() { return kKernels; }

}  // namespace galley
