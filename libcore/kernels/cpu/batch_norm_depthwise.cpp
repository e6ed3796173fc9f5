// batch_norm_depthwise and its gradients on channels_last images of f32 or bf16, an image and a slice of its channels at a time. What the norm gives
// exists line by line only, packed, in a ring of as many lines as the kernel has rows, which the first-level cache mostly holds. Backwards one pass
// makes the weight's gradient, the gradient behind the norm and its sums, a second one the image's gradient of that, in place. Sums run in float
// over a band of lines, in double over the bands of a part of the batch, and parts are added up in one order: bits depend on the logical thread
// count only, where that needs more parts.
// With the 1x1 convolution that gives the norm's input, of so few channels that products cost less than reading what they gave, that input is never
// written: each of the two passes, in either direction, makes its lines anew, and the gradient behind the norm is gathered in both.

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

/// The norm's input as an array.
template <class T>
struct Stored {
  const T* x;

  Line<const T> line(const Geometry& g, int64_t image, int64_t row, const Slice& slice, int64_t /*slot*/) const { return g.line(x, g.x, image, row, slice); }
};

/// The norm's input as a 1x1 convolution gives it, a line at a time.
struct Made {
  const PointwiseConvolution* convolution;
  const float *x, *packed;
  int64_t channels;  // of x
  float* lines;      // one for each slot, step floats apart
  int64_t step;

  /// The slice's channels, padded, of a line: to rows `to_step` floats apart.
  void make(const Geometry& g, int64_t image, int64_t row, const Slice& slice, float* to, int64_t to_step) const {
    convolution->run(x + (image * g.x[2] + row) * g.x[3] * channels, packed, g.x[3], {slice.first / kPanel, slice.chunks()}, to, to_step);
  }
  Line<const float> line(const Geometry& g, int64_t image, int64_t row, const Slice& slice, int64_t slot) const {
    static_assert(kPanel == kLanes);
    make(g, image, row, slice, at(slot), slice.chunks() * kLanes);
    return {at(slot), g.x[3], slice.chunks() * kLanes, slice.channels, 0};
  }
  float* at(int64_t slot) const { return lines + slot * step; }
  static int64_t floats(const Geometry& g) { return g.x[3] * g.slice_chunks() * kLanes; }
};

/// Behind the statistics.
template <class T>
class Computation {
 public:
  Computation(const TensorType& x, const TensorType& weight, const TensorType& y, const BatchNormDepthwiseAttrs& a, int threads) : g_(x, y, weight, a, threads) {
    ring_ = {g_.rows, g_.padding[1], g_.x[3], g_.padding[1], g_.slice_chunks()};
    rings_at_ = scratch_.take(ring_.floats() * g_.threads);
    weights_at_ = scratch_.take(g_.taps * g_.padded());
    for (int64_t& at : channels_at_) at = scratch_.take(g_.padded());
  }
  const Scratch& scratch() const { return scratch_; }
  const Geometry& geometry() const { return g_; }

  struct Operands {
    const T* weight;
    const float *mean, *var, *gamma, *beta;
    T* y;
  };

  template <class Source>
  void run(const Source& x, const Operands& o, float* memory) const {
    float* weights = memory + weights_at_;
    const Normalization how = normalization(g_, o.mean, o.var, o.gamma, o.beta, memory + channels_at_[0], memory + channels_at_[1], memory + channels_at_[2]);
    g_.pack_weights(o.weight, weights);
    for (int64_t slot = 0; slot < g_.threads; ++slot) ring_.clear_halos(memory + rings_at_ + slot * ring_.floats());
    g_.for_each_segment(g_.y[2], [&](const Segment& segment, const Slice& slice, int64_t slot) {
      convolve(x, of_slice(how, slice), weights + slice.first * g_.taps, segment, slice, slot, memory + rings_at_ + slot * ring_.floats(), o.y);
    });
  }

 private:
  template <class Source>
  void convolve(const Source& x, const Normalization& how, const float* weights, const Segment& segment, const Slice& slice, int64_t slot, float* ring, T* y) const {
    int64_t next = 0;  // line of the image that is packed next
    for (int64_t h = segment.begin; h < segment.end; ++h) {
      const int64_t top = h * g_.stride[0] - g_.padding[0], first = std::max<int64_t>(0, top), behind = std::min(top + g_.rows, g_.x[2]);
      for (next = std::max(next, first); next < behind; ++next) depthwise_lines::pack(x.line(g_, segment.image, next, slice, slot), how, ring_.inner(ring, next), ring_.chunk());
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
  PackedLines ring_;
  Scratch scratch_;
  int64_t rings_at_, weights_at_;
  std::array<int64_t, 3> channels_at_{};
};

template <class T>
class Forward : public PreparedKernel {
 public:
  explicit Forward(const KernelQuery& q)
      : computation_(q.in(0), q.in(1), q.out(0), q.attrs<BatchNormDepthwiseAttrs>(), q.threads), statistics_(computation_.geometry().pixels(), q.threads), scratch_(computation_.scratch()) {
    sums_at_ = scratch_.take(statistics_.scratch_bytes() / 4);
  }
  int64_t scratch_bytes() const override { return scratch_.bytes(); }
  void run(const KernelArgs& args) const override {
    auto* memory = static_cast<float*>(args.scratch);
    float *mean = args.out<float>(1), *var = args.out<float>(2);
    statistics_.run(args.in<T>(0), mean, var, memory + sums_at_);
    computation_.run(Stored<T>{args.in<T>(0)}, {args.in<T>(1), mean, var, args.in<float>(2), args.in<float>(3), args.out<T>(0)}, memory);
  }

 private:
  Computation<T> computation_;
  batchnorm::Statistics<T> statistics_;
  Scratch scratch_;
  int64_t sums_at_;
};

/// What the 1x1 convolution before the norm gives: of x's shape, with the channels of its weight.
TensorType made_by(const TensorType& x, const TensorType& weight) {
  TensorType type = x;
  type.shape[1] = weight.shape[0];
  return type;
}

/// With the 1x1 convolution that gives the norm's input.
class PointwiseForward : public PreparedKernel {
 public:
  explicit PointwiseForward(const KernelQuery& q)
      : computation_(made_by(q.in(0), q.in(1)), q.in(2), q.out(0), q.attrs<BatchNormDepthwiseAttrs>(), q.threads), convolution_(q.in(1)), in_(q.in(0).shape[1]),
        padded_({g().pixels().pixels, g().padded()}), statistics_(padded_, q.threads, kMostBlocks), scratch_(computation_.scratch()) {
    convolution_at_ = scratch_.take(convolution_.scratch_floats());
    block_ = statistics_.most_pixels() * padded_.channels;
    blocks_at_ = scratch_.take(std::max(block_, Made::floats(g())) * q.threads);
    sums_at_ = scratch_.take(statistics_.scratch_bytes() / 4);
    for (int64_t& at : channels_at_) at = scratch_.take(padded_.channels);
  }
  int64_t scratch_bytes() const override { return scratch_.bytes(); }
  void run(const KernelArgs& args) const override {
    auto* memory = static_cast<float*>(args.scratch);
    const auto* x = args.in<float>(0);
    float *packed = memory + convolution_at_, *mean = memory + channels_at_[0], *var = memory + channels_at_[1];
    convolution_.pack(args.in<float>(1), packed);
    const auto pixels = [&](int64_t slot, int64_t first, int64_t last) {
      float* to = memory + blocks_at_ + slot * block_;
      convolution_.run(x + first * in_, packed, last - first, {0, g().chunks}, to, padded_.channels);
      return to;
    };
    statistics_.run(pixels, mean, var, memory + sums_at_);
    std::copy_n(mean, g().channels, args.out<float>(1));
    std::copy_n(var, g().channels, args.out<float>(2));
    computation_.run(Made{&convolution_, x, packed, in_, memory + blocks_at_, Made::floats(g())},
                     {args.in<float>(2), mean, var, args.in<float>(3), args.in<float>(4), args.out<float>(0)}, memory);
  }

 private:
  static constexpr int64_t kMostBlocks = 4096;  // so that a block, made and summed, stays in the second-level cache
  const Geometry& g() const { return computation_.geometry(); }

  Computation<float> computation_;
  PointwiseConvolution convolution_;
  int64_t in_;
  batchnorm::Rows padded_;
  batchnorm::Statistics<float> statistics_;
  Scratch scratch_;
  int64_t convolution_at_, block_, blocks_at_, sums_at_;
  std::array<int64_t, 2> channels_at_{};
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
  const Geometry& geometry() const { return g_; }

  struct Operands {
    const T *grad, *weight;
    const float *mean, *var, *gamma, *beta;
    T* dweight;
    float *dgamma, *dbeta;
  };
  /// In the scratch memory: what the norm does, and how the gradient behind it is mapped to that of its input.
  struct Result {
    Normalization how;
    depthwise_lines::GradientMap map;
  };

  /// `behind`: where the gradient behind the norm goes, as x; nullptr: nowhere.
  template <class Source>
  Result sum(const Source& x, const Operands& o, T* behind, float* memory) const {
    const auto channel = [&](size_t i) { return memory + channels_at_[i]; };
    const Call<Source> call{x, o.grad, behind, memory + weights_at_, normalization(g_, o.mean, o.var, o.gamma, o.beta, channel(0), channel(1), channel(2)), memory};
    g_.pack_weights(o.weight, memory + weights_at_);
    for (int64_t slot = 0; slot < g_.threads; ++slot) {
      ring_.clear_halos(ring(memory, slot));
      line_.clear_halos(memory + lines_at_ + slot * line_.floats());
    }
    parallel_tasks(parts_ * g_.slices(), g_.threads, [&](int64_t task, int64_t slot) { sum_part(call, task / g_.slices(), g_.slice(task % g_.slices()), slot); });
    add_parts(o, memory);
    return {call.how, {channel(0), channel(3), channel(4), channel(5)}};
  }

  /// All channels of a ring's lines.
  PackedLines whole_ring() const {
    PackedLines ring = ring_;
    ring.chunks = g_.chunks;
    return ring;
  }
  Slice all() const { return {0, g_.channels}; }

  /// body(line of the image, how its gradient is gathered) with the output's lines that it needs in the ring, of which `next` is made next. `weights`: packed.
  template <class Body>
  void each_line(const T* grad, const float* all_weights, const Segment& segment, const Slice& slice, const PackedLines& lines, float* ring, int64_t& next, const Body& body) const {
    const float* weights = all_weights + slice.first * g_.taps;
    for (int64_t row = segment.begin; row < segment.end; ++row) {
      const auto [first, behind] = readers(row);
      for (next = std::max(next, first); next < behind; ++next) {
        depthwise_lines::pack(g_.line(grad, g_.y, segment.image, next, slice), lines.inner(ring, next), lines.chunk());
      }
      const int64_t stride = g_.stride[1];
      std::array<Taps, kMostClasses> taps;
      for (int64_t remainder = 0; remainder < stride; ++remainder) {
        Taps& own = taps[static_cast<size_t>(remainder)];
        own.in_chunk = lines.chunk();
        own.weight_chunk = g_.taps * kLanes;
        // The kernel's columns from the last one on: so they read the gradient from left to right.
        const int64_t column = (remainder + g_.padding[1]) % stride;
        own.columns = column < g_.columns ? (g_.columns - 1 - column) / stride + 1 : 0;
        const int64_t last = column + (own.columns - 1) * stride;
        own.weight_step = -stride * kLanes;
        for (int64_t h = first; h < behind && own.columns > 0; ++h) {
          const auto at = static_cast<size_t>(own.rows++);
          own.in[at] = lines.inner(ring, h) + (remainder + g_.padding[1] - last) / stride * kLanes;
          own.weight[at] = weights + ((row + g_.padding[0] - h * g_.stride[0]) * g_.columns + last) * kLanes;
        }
      }
      body(row, Gathered{taps.data(), stride});
    }
  }
  /// The weights as sum has packed them.
  const float* packed_weights(const float* memory) const { return memory + weights_at_; }

 private:
  template <class Source>
  struct Call {
    const Source& x;
    const T* grad;
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

  /// Where a chunk's totals are in a part's: [tap][lane] of the weight, then sums and dots of the channels.
  int64_t chunk_totals() const { return (g_.taps + 2) * kLanes; }

  template <class Source>
  void sum_part(const Call<Source>& call, int64_t part, const Slice& slice, int64_t slot) const {
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
      int64_t next = 0;
      each_line(call.grad, call.weights, {image, begin, behind}, slice, ring_, lines_of_gradient, next, [&](int64_t row, const Gathered& gathered) {
        const auto line = call.x.line(g_, image, row, slice, slot);
        depthwise_lines::pack(line, how, line_.inner(packed, 0), line_.chunk());
        add_weight_sums(row, slice, packed, lines_of_gradient, sums);
        depthwise_lines::gradient_sums(gathered, line, how, behind_of(call, image, row, slice, slot), sum, dot);
        if (++summed == band) flush();
      });
      at += behind - begin;
    }
    flush();
  }

  /// Where the gradient behind the norm goes: where the line was, if nowhere else.
  T* behind_of(const Call<Stored<T>>& call, int64_t image, int64_t row, const Slice& slice, int64_t /*slot*/) const { return g_.line(call.behind, g_.x, image, row, slice).at; }
  float* behind_of(const Call<Made>& call, int64_t, int64_t, const Slice&, int64_t slot) const { return call.x.at(slot); }

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
    const auto result = gradient_.sum(Stored<T>{x}, {args.in<T>(0), args.in<T>(1), args.in<float>(3), args.in<float>(4), args.in<float>(5), args.in<float>(6), args.out<T>(1),
                                                     args.out<float>(2), args.out<float>(3)}, dx, static_cast<float*>(args.scratch));
    // From the end of what each thread wrote, which a cache may still hold.
    const auto [pixels, channels] = gradient_.geometry().pixels();
    const int64_t piece = std::max<int64_t>(1, 16384 / channels);
    parallel_for(pixels, piece, [&, channels = channels](int64_t begin, int64_t end) {
      for (int64_t last = end; last > begin; last -= piece) {
        const int64_t first = std::max(begin, last - piece);
        depthwise_lines::map_gradient(x + first * channels, dx + first * channels, dx + first * channels, last - first, channels, result.map);
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
      : gradient_(q.in(0), q.in(1), made_by(q.in(6), q.in(7)), q.out(2), q.attrs<BatchNormDepthwiseAttrs>(), q.threads), convolution_(q.in(7)), in_(q.in(6).shape[1]),
        gradients_(q.in(6), q.in(7), q.out(1), q.threads, {g().x[3], g().padded()}), ring_(gradient_.whole_ring()), scratch_(gradient_.scratch()) {
    convolution_at_ = scratch_.take(convolution_.scratch_floats());
    gradients_at_ = scratch_.take(gradients_.scratch_floats());
    rings_at_ = scratch_.take(ring_.floats() * gradients_.parts());
    lines_at_ = scratch_.take(Made::floats(g()) * q.threads);
  }
  int64_t scratch_bytes() const override { return scratch_.bytes(); }

  void run(const KernelArgs& args) const override {
    auto* memory = static_cast<float*>(args.scratch);
    const auto *grad = args.in<float>(0), *x = args.in<float>(6), *weight = args.in<float>(7);
    convolution_.pack(weight, memory + convolution_at_);
    const Made between{&convolution_, x, memory + convolution_at_, in_, memory + lines_at_, Made::floats(g())};
    const auto result = gradient_.sum(between, {grad, args.in<float>(1), args.in<float>(2), args.in<float>(3), args.in<float>(4), args.in<float>(5), args.out<float>(2), args.out<float>(3),
                                                args.out<float>(4)}, nullptr, memory);
    for (int64_t part = 0; part < gradients_.parts(); ++part) ring_.clear_halos(ring(memory, part));
    std::vector<int64_t> next(static_cast<size_t>(gradients_.parts()));  // lines of the rings
    const int64_t width = g().x[3], height = g().x[2];
    gradients_.run({x, weight, args.out<float>(0), args.out<float>(1)}, memory + gradients_at_, {}, [&](int64_t part, int64_t first, int64_t count, float* to) {
      for (int64_t line = first / width; line < (first + count) / width; ++line, to += width * g().padded()) {
        const Segment segment{line / height, line % height, line % height + 1};
        if (segment.begin == 0) next[static_cast<size_t>(part)] = 0;
        gradient_.each_line(grad, gradient_.packed_weights(memory), segment, gradient_.all(), ring_, ring(memory, part), next[static_cast<size_t>(part)], [&](int64_t row, const Gathered& gathered) {
          between.make(g(), segment.image, row, gradient_.all(), to, g().padded());
          depthwise_lines::map_gradient(gathered, {to, width, g().padded(), g().channels, 0}, result.how, result.map);
        });
      }
    });
  }

 private:
  const Geometry& g() const { return gradient_.geometry(); }
  float* ring(float* memory, int64_t part) const { return memory + rings_at_ + part * ring_.floats(); }

  Gradient<float> gradient_;
  PointwiseConvolution convolution_;
  int64_t in_;
  PointwiseGradients gradients_;
  PackedLines ring_;
  Scratch scratch_;
  int64_t convolution_at_, gradients_at_, rings_at_, lines_at_;
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
  if (const Support inner = supports(q, {&q.in(0), &q.out(0)}, q.in(2), q.out(0), {3, 4}); !inner) return inner;
  return supports_pointwise_convolution(q.in(0), q.in(1));
}
Support supports_pointwise(const KernelQuery& q) {
  if (const Support norm = supports(q, {&q.in(6), &q.in(0)}, q.in(1), q.in(0), {2, 3, 4, 5}); !norm) return norm;
  if (const Support again = supports_pointwise_convolution(q.in(6), q.in(7)); !again) return again;
  return supports_pointwise_gradients(q, 6, 7);
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
