#pragma once
// The line buffer: a batch norm, or a 1x1 convolution with its norm, is computed one line at a time into a ring that holds as many packed
// lines as the depthwise kernel has rows, and is convolved from there. The ring mostly stays in the first-level cache, so the normalized
// image is never written to memory (line buffering as in Alwani et al., "Fused-Layer CNN Accelerators", 2016). Shared by
// batch_norm_depthwise.cpp and pointwise_batch_norm_depthwise.cpp, each of which is the source of the lines.

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "libcore/backends/cpu/batch_norm.h"
#include "libcore/backends/cpu/conv_thresholds.h"
#include "libcore/backends/cpu/depthwise_lines.h"
#include "libcore/backends/cpu/rewrite/batch_norm_depthwise.h"
#include "libcore/backends/kernel.h"
#include "libcore/base/parallel.h"

namespace galley::norm_depthwise {

using depthwise_lines::Gathered;
using depthwise_lines::kLanes;
using depthwise_lines::Line;
using depthwise_lines::Normalization;
using depthwise_lines::Taps;
using depthwise_lines::WeightSums;

constexpr int64_t kBandPixels = conv_threshold::kLineBandPixels.value;    // that are summed in float
constexpr int64_t kBlockPixels = conv_threshold::kLineBlockPixels.value;  // whose gradients are in the second-level cache
constexpr int64_t kMostParts = conv_threshold::kLineParts.value;
constexpr int64_t kSliceChunks = conv_threshold::kLineSliceChunks.value;              // forward: some processors read pairs of cache lines
constexpr int64_t kMostSliceChunks = conv_threshold::kLineSliceChunksBackward.value;  // backward, within kSliceBytes
constexpr int64_t kSliceBytes = conv_threshold::kLineSliceBytes.value;
constexpr int64_t kPixelsAhead = conv_threshold::kLinePrefetchPixels.value;
constexpr int64_t kMostClasses = 4;  // strides

/// Consecutive packed lines; `left` and `right` pixels of each are zero.
struct PackedLines {
  int64_t lines = 0, left = 0, pixels = 0, right = 0, chunks = 0;

  int64_t chunk() const { return (left + pixels + right) * kLanes; }
  int64_t floats() const { return lines * chunks * chunk(); }
  float* line(float* at, int64_t row) const { return at + row % lines * chunks * chunk(); }
  /// The first pixel of a line after the left halo.
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
/// Some neighboring channels.
struct Slice {
  int64_t first, channels;
  int64_t chunks() const { return depthwise_lines::chunks_of(channels); }
};

enum class Direction { kForward, kBackward };

/// Shapes and their divisions, for both directions.
struct Geometry {
  Geometry(const TensorType& x_type, const TensorType& y_type, const TensorType& weight, const BatchNormDepthwiseAttrs& attrs,
           int thread_count, Direction direction);

  /// Offsets of the weights [channel][tap] in the given format.
  std::vector<int64_t> offsets_in(const MemoryFormat& format) const;
  int64_t padded() const { return chunks * kLanes; }
  int64_t slices() const { return (chunks + slice_chunks - 1) / slice_chunks; }
  Slice slice(int64_t i) const {
    return {i * slice_chunks * kLanes, std::min(slice_chunks * kLanes, channels - i * slice_chunks * kLanes)};
  }
  /// A slice of a line of an image with `shape`.
  template <class T>
  Line<T> line(T* array, const Shape& shape, int64_t image, int64_t row, const Slice& slice) const {
    return {array + (image * shape[2] + row) * shape[3] * channels + slice.first, shape[3], channels, slice.channels,
            std::max<int64_t>(1, kPixelsAhead / shape[3]) * shape[3] * channels};
  }
  int64_t pixels() const { return x[0] * x[2] * x[3]; }

  /// [chunk][tap][lane]
  template <class T>
  void pack_weights(const T* weight, float* to) const {
    parallel_for(padded(), 64, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        for (int64_t tap = 0; tap < taps; ++tap)
          to[(c / kLanes * taps + tap) * kLanes + c % kLanes] =
              c < channels ? static_cast<float>(weight[offsets[static_cast<size_t>(c * taps + tap)]]) : 0;
      }
    });
  }

  /// body(segment, group, slot) over the lines of all images of that height, each `groups` times, starting at the end, which the pass
  /// before left in the cache.
  template <class Body>
  void for_each_segment(int64_t height, int64_t groups, const Body& body) const {
    const int64_t whole = x[0] * groups, cuts = std::clamp<int64_t>((8 * threads + whole - 1) / whole, 1, std::max<int64_t>(1, height / 8)),
                  count = whole * cuts;
    parallel_tasks(count, threads, [&](int64_t task, int64_t slot) {
      const int64_t at = count - 1 - task, cut = at / groups % cuts;
      body(Segment{at / groups / cuts, height * cut / cuts, height * (cut + 1) / cuts}, at % groups, slot);
    });
  }

  Shape x, y;
  TensorType w;
  std::array<int64_t, 2> stride, padding;
  int64_t channels, chunks, rows, columns, taps, threads;
  double eps;
  Activation activation;
  std::vector<int64_t> offsets;
  int64_t slice_chunks;  // of a slice, at most
};

/// Consecutive arrays of floats in the scratch memory, each on a cache line of its own.
class Scratch {
 public:
  /// Reserves an array and returns its offset.
  int64_t take(int64_t floats) {
    const int64_t at = size_;
    size_ += (floats + 15) / 16 * 16;
    return at;
  }
  int64_t bytes() const { return size_ * 4; }

 private:
  int64_t size_ = 0;
};

/// A slice of a line of the image, and on which slot it is computed.
struct LineSlice {
  int64_t image, row;
  Slice slice;
  int64_t slot;
  int64_t in_block = 0;  // backwards: the line's place among those that are done together
};
/// Lines of the batch: those of an image follow those of the image before.
struct Lines {
  int64_t first, end;
};

/// How many slices of a line a task computes.
enum class Together { kOne, kAll };

/// The forward pass after the statistics: convolves the output of the norm.
template <class T>
class Convolution {
 public:
  /// x: the norm's input.
  Convolution(const TensorType& x, const TensorType& weight, const TensorType& y, const BatchNormDepthwiseAttrs& a, int threads,
              Together together)
      : g_(x, y, weight, a, threads, Direction::kForward), together_(together == Together::kAll ? g_.slices() : 1) {
    ring_ = {g_.rows, g_.padding[1], g_.x[3], g_.padding[1], g_.slice_chunks};
    rings_at_ = scratch_.take(ring_.floats() * together_ * g_.threads);
    weights_at_ = scratch_.take(g_.taps * g_.padded());
  }
  const Scratch& scratch() const { return scratch_; }
  const Geometry& geometry() const { return g_; }

  /// source.normalized(line slice, to, chunk): writes the output of norm and activation, packed, with chunks `chunk` floats apart.
  template <class Source>
  void run(const Source& source, const T* weight, T* y, float* memory) const {
    float* weights = memory + weights_at_;
    g_.pack_weights(weight, weights);
    for (int64_t i = 0; i < together_ * g_.threads; ++i) ring_.clear_halos(memory + rings_at_ + i * ring_.floats());
    g_.for_each_segment(g_.y[2], g_.slices() / together_, [&](const Segment& segment, int64_t group, int64_t slot) {
      int64_t next = 0;  // line of the image that is computed next
      for (int64_t h = segment.begin; h < segment.end; ++h) {
        const int64_t top = h * g_.stride[0] - g_.padding[0], first = std::max<int64_t>(0, top), end = std::min(top + g_.rows, g_.x[2]);
        for (int64_t i = 0; i < together_; ++i) {
          const Slice slice = g_.slice(group * together_ + i);
          float* ring = memory + rings_at_ + (slot * together_ + i) * ring_.floats();
          for (int64_t row = std::max(next, first); row < end; ++row)
            source.normalized({segment.image, row, slice, slot}, ring_.inner(ring, row), ring_.chunk());
          convolve(weights + slice.first * g_.taps, top, ring, g_.line(y, g_.y, segment.image, h, slice));
        }
        next = std::max(next, end);
      }
    });
  }

 private:
  void convolve(const float* weights, int64_t top, float* ring, const Line<T>& y) const {
    Taps taps;
    taps.step = g_.stride[1] * kLanes;
    taps.in_chunk = ring_.chunk();
    taps.weight_chunk = g_.taps * kLanes;
    taps.columns = g_.columns;
    for (int64_t row = std::max<int64_t>(0, top); row < std::min(top + g_.rows, g_.x[2]); ++row) {
      const auto at = static_cast<size_t>(taps.rows++);
      taps.in[at] = ring_.line(ring, row);
      taps.weight[at] = weights + (row - top) * g_.columns * kLanes;
    }
    depthwise_lines::convolve(taps, y);
  }

  Geometry g_;
  int64_t together_;
  PackedLines ring_;
  Scratch scratch_;
  int64_t rings_at_, weights_at_;
};

/// The backward pass: the weight gradient and the sums of each channel. Parts of the batch's lines are added in a fixed order. Sums are
/// float over a band of lines and double over the bands of a part.
template <class T>
class Gradient {
 public:
  Gradient(const TensorType& grad, const TensorType& weight, const TensorType& x, const TensorType& dweight,
           const BatchNormDepthwiseAttrs& a, int threads, Together together)
      : g_(x, grad, weight, a, threads, Direction::kBackward),
        dweight_(dweight),
        offsets_(g_.offsets_in(dweight.format)),
        together_(together == Together::kAll ? g_.slices() : 1) {
    for (int64_t i = 0; i < g_.stride[1]; ++i) classes_[static_cast<size_t>(i)] = column_class(i);
    const int64_t reach = g_.columns - 1 - g_.padding[1], last = (g_.x[3] - 1 + g_.padding[1]) / g_.stride[1];
    ring_ = {g_.rows, reach > 0 ? (reach + g_.stride[1] - 1) / g_.stride[1] : 0, g_.y[3], std::max<int64_t>(0, last - (g_.y[3] - 1)),
             g_.slice_chunks};
    line_ = {1, g_.padding[1], g_.x[3], g_.padding[1], g_.slice_chunks};
    const int64_t totals = (g_.taps + 2) * g_.padded(),
                  fitting = g_.x.elements() / (totals * 8);  // their bytes as many as the image has values
    while (parts_ < kMostParts && 2 * parts_ <= fitting) parts_ *= 2;
    parts_ = std::min(std::max(parts_, (g_.threads + groups() - 1) / groups()), lines());
    rings_at_ = scratch_.take(ring_.floats() * together_ * g_.threads);
    lines_at_ = scratch_.take(line_.floats() * g_.threads);
    bands_at_ = scratch_.take(band_floats() * together_ * g_.threads);
    totals_at_ = scratch_.take(totals * parts_ * 2);
    weights_at_ = scratch_.take(g_.taps * g_.padded());
  }
  const Scratch& scratch() const { return scratch_; }
  const Geometry& geometry() const { return g_; }
  int64_t parts() const { return parts_; }
  Lines part(int64_t i) const { return {lines() * i / parts_, lines() * (i + 1) / parts_}; }
  int64_t block_lines() const { return std::max<int64_t>(1, kBlockPixels / g_.x[3]); }
  /// A packed slice of a line of the image, with halos.
  const PackedLines& packed_line() const { return line_; }

  /// Clears dweight and packs the weight. Call it before sum.
  void begin(const T* weight, T* dweight, float* memory) const {
    std::memset(dweight, 0, static_cast<size_t>(dweight_.bytes()));  // padding of blocked formats stays zero
    g_.pack_weights(weight, memory + weights_at_);
    for (int64_t i = 0; i < together_ * g_.threads; ++i) ring_.clear_halos(ring(memory, i));
    for (int64_t slot = 0; slot < g_.threads; ++slot) line_.clear_halos(memory + lines_at_ + slot * line_.floats());
  }
  /// For each line of a part, slice by slice:
  /// source.normalized(line slice, to, chunk) as in the forward pass;
  /// source.gradients(line slice, where normalized wrote, gathered, sum, dot): gathers the gradient of that output and adds it to the sums,
  /// which are padded to whole chunks. After at most block_lines consecutive lines: source.lines_done(part, slot, lines, whether they are
  /// the last of the part).
  template <class Source>
  void sum(const Source& source, const T* grad, float* memory) const {
    parallel_tasks(parts_ * groups(), g_.threads,
                   [&](int64_t task, int64_t slot) { sum_part(source, grad, task / groups(), task % groups(), slot, memory); });
  }

  /// Writes dweight and calls take(channel, sum of its gradients, dot) on several threads. Call it after sum.
  template <class Take>
  void add_parts(T* dweight, float* memory, const Take& take) const {
    const auto* totals = reinterpret_cast<const double*>(memory + totals_at_);
    parallel_for(g_.chunks, 4, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin * kLanes; c < std::min(end * kLanes, g_.channels); ++c) {
        // `row`: a tap; after the taps come the sum and the dot.
        const auto total = [&](int64_t row) {
          double sum = 0;
          for (int64_t part = 0; part < parts_; ++part)
            sum += totals[(part * g_.chunks + c / kLanes) * chunk_totals() + row * kLanes + c % kLanes];
          return sum;
        };
        for (int64_t tap = 0; tap < g_.taps; ++tap)
          dweight[offsets_[static_cast<size_t>(c * g_.taps + tap)]] = static_cast<float>(total(tap));
        take(c, total(g_.taps), total(g_.taps + 1));
      }
    });
  }

 private:
  int64_t lines() const { return g_.x[0] * g_.x[2]; }
  /// The number of groups of slices; a task computes one group.
  int64_t groups() const { return g_.slices() / together_; }
  float* ring(float* memory, int64_t i) const { return memory + rings_at_ + i * ring_.floats(); }
  /// Where a chunk's totals are in a part's: [tap][lane] of the weight, then sums and dots of the channels.
  int64_t chunk_totals() const { return (g_.taps + 2) * kLanes; }
  int64_t band_floats() const { return chunk_totals() * g_.slice_chunks; }

  /// A line of the image and the output lines that read it: [first, end).
  struct Readers {
    int64_t row, first, end;
  };
  Readers readers(int64_t row) const {
    const int64_t below = row + g_.padding[0] - g_.rows + 1, stride = g_.stride[0];
    return {row, below <= 0 ? 0 : (below + stride - 1) / stride, std::min((row + g_.padding[0]) / stride + 1, g_.y[2])};
  }

  template <class Source>
  void sum_part(const Source& source, const T* grad, int64_t part, int64_t group, int64_t slot, float* memory) const {
    const Lines own = this->part(part);
    const int64_t band = std::max<int64_t>(1, kBandPixels / g_.x[3]);
    float* bands = memory + bands_at_ + slot * together_ * band_floats();
    float* packed = memory + lines_at_ + slot * line_.floats();
    auto* totals = reinterpret_cast<double*>(memory + totals_at_) + part * g_.chunks * chunk_totals();
    const auto each_slice = [&](const auto& body) {
      for (int64_t i = 0; i < together_; ++i) {
        const Slice slice = g_.slice(group * together_ + i);
        body(i, slice, bands + i * band_floats());
      }
    };
    each_slice([&](int64_t, const Slice& slice, float* sums) {
      std::fill_n(totals + slice.first / kLanes * chunk_totals(), slice.chunks() * chunk_totals(), 0.0);
      std::fill_n(sums, band_floats(), 0.0f);
    });
    for (int64_t at = own.first, next = 0; at < own.end; ++at) {
      const int64_t image = at / g_.x[2], row = at % g_.x[2];
      if (row == 0) next = 0;
      const Readers by = readers(row);
      each_slice([&](int64_t i, const Slice& slice, float* sums) {
        float* gradients = ring(memory, slot * together_ + i);
        for (int64_t h = std::max(next, by.first); h < by.end; ++h)
          depthwise_lines::pack(g_.line(grad, g_.y, image, h, slice), ring_.inner(gradients, h), ring_.chunk());
        const LineSlice here{image, row, slice, slot, (at - own.first) % block_lines()};
        float* line = line_.inner(packed, 0);
        source.normalized(here, line, line_.chunk());
        add_weight_sums(by, slice, packed, gradients, sums);
        std::array<Taps, kMostClasses> taps;
        float* sum = sums + slice.chunks() * g_.taps * kLanes;
        source.gradients(here, line, gathered(by, memory + weights_at_ + slice.first * g_.taps, gradients, taps), sum,
                         sum + slice.chunks() * kLanes);
      });
      next = std::max(next, by.end);
      const int64_t done = at + 1 - own.first;
      const bool last = at + 1 == own.end;
      if (done % block_lines() == 0 || last)
        source.lines_done(part, slot, {own.first + (done - 1) / block_lines() * block_lines(), at + 1}, last);
      if (done % band == 0 || last) each_slice([&](int64_t, const Slice& slice, float* sums) { flush(slice, sums, totals); });
    }
  }

  /// Adds the sums of a band to the totals.
  void flush(const Slice& slice, float* sums, double* totals) const {
    const float *sum = sums + slice.chunks() * g_.taps * kLanes, *dot = sum + slice.chunks() * kLanes;
    for (int64_t chunk = 0; chunk < slice.chunks(); ++chunk) {
      double* to = totals + (slice.first / kLanes + chunk) * chunk_totals();
      for (int64_t i = 0; i < g_.taps * kLanes; ++i) to[i] += static_cast<double>(sums[chunk * g_.taps * kLanes + i]);
      for (int64_t i = 0; i < kLanes; ++i) {
        to[g_.taps * kLanes + i] += static_cast<double>(sum[chunk * kLanes + i]);
        to[(g_.taps + 1) * kLanes + i] += static_cast<double>(dot[chunk * kLanes + i]);
      }
    }
    std::fill_n(sums, band_floats(), 0.0f);
  }

  /// Columns of the image with the same remainder modulo the stride: which columns of the kernel read them, from the last one, so that they
  /// read the gradient from left to right.
  struct ColumnClass {
    int64_t columns, last;  // their number, and the last one of the kernel
    int64_t from;           // floats from a line's first pixel to what the first of the image's columns reads
  };
  ColumnClass column_class(int64_t remainder) const {
    const int64_t stride = g_.stride[1], column = (remainder + g_.padding[1]) % stride,
                  columns = column < g_.columns ? (g_.columns - 1 - column) / stride + 1 : 0;
    const int64_t last = column + (columns - 1) * stride;
    return {columns, last, (remainder + g_.padding[1] - last) / stride * kLanes};
  }

  /// How the gradient of a line of the image is gathered from the ring.
  Gathered gathered(const Readers& by, const float* weights, float* ring, std::array<Taps, kMostClasses>& taps) const {
    for (int64_t remainder = 0; remainder < g_.stride[1]; ++remainder) {
      const ColumnClass& from = classes_[static_cast<size_t>(remainder)];
      Taps& own = taps[static_cast<size_t>(remainder)];
      own.in_chunk = ring_.chunk();
      own.weight_chunk = g_.taps * kLanes;
      own.columns = from.columns;
      own.weight_step = -g_.stride[1] * kLanes;
      for (int64_t h = by.first; h < by.end && own.columns > 0; ++h) {
        const auto at = static_cast<size_t>(own.rows++);
        own.in[at] = ring_.inner(ring, h) + from.from;
        own.weight[at] = weights + ((by.row + g_.padding[0] - h * g_.stride[0]) * g_.columns + from.last) * kLanes;
      }
    }
    return {taps.data(), g_.stride[1]};
  }

  void add_weight_sums(const Readers& by, const Slice& slice, const float* packed, float* ring, float* sums) const {
    WeightSums w;
    w.in = packed;
    w.rows = 0;
    w.columns = g_.columns;
    w.count = g_.y[3];
    w.step = g_.stride[1] * kLanes;
    w.chunks = slice.chunks();
    w.in_chunk = line_.chunk();
    w.grad_chunk = ring_.chunk();
    w.sums_chunk = g_.taps * kLanes;
    for (int64_t h = by.first; h < by.end; ++h) {
      const auto at = static_cast<size_t>(w.rows++);
      w.grad[at] = ring_.inner(ring, h);
      w.sums[at] = sums + (by.row + g_.padding[0] - h * g_.stride[0]) * g_.columns * kLanes;
    }
    depthwise_lines::add_weight_sums(w);
  }

  Geometry g_;
  TensorType dweight_;
  std::vector<int64_t> offsets_;  // of the weight's gradient
  int64_t together_;
  std::array<ColumnClass, kMostClasses> classes_{};
  PackedLines ring_, line_;  // of the gradient; of the norm's output
  int64_t parts_ = 1;
  Scratch scratch_;
  int64_t rings_at_, lines_at_, bands_at_, totals_at_, weights_at_;
};

/// Does a kernel support these? `images` and the weight must have one dtype; inputs `vectors` of the query, with one value per channel,
/// must be f32.
Support supports(const KernelQuery& q, std::initializer_list<const TensorType*> images, const TensorType& weight, const TensorType& y,
                 std::initializer_list<int> vectors);

}  // namespace galley::norm_depthwise
