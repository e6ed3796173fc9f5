#pragma once
// Depthwise convolution line by line. Lines of channels_last images of f32 or bf16 are packed to f32 lines [chunk of 16
// channels][pixel][16] with zeros at both ends. Code on packed lines has no edges, no remaining channels, and no address far from the last
// one.

#include <array>
#include <cstdint>

#include "libcore/backends/cpu/bfloat16.h"
#include "libcore/ops/attrs.h"

namespace galley::depthwise_lines {

constexpr int64_t kLanes = 16;       // channels of a chunk
constexpr int64_t kMostColumns = 7;  // of a kernel, and rows: the sums of a row fit the registers

constexpr int64_t chunks_of(int64_t channels) { return (channels + kLanes - 1) / kLanes; }

/// Values of each channel are padded to whole chunks, by zeros. y = activation(x scale + shift).
struct Normalization {
  Activation activation = Activation::kNone;
  const float *mean = nullptr, *scale = nullptr, *shift = nullptr;
};

/// Some channels of a line of an image, from `at` on.
template <class T>
struct Line {
  T* at;
  int64_t count, stride, channels;  // pixels; values from pixel to pixel; channels of the line
  int64_t ahead;                    // values from a pixel to the one that is prefetched
};

/// Packs a line into pixels [0, count) of a packed line whose chunks are `chunk` floats apart.
void pack(const Line<const float>& line, float* to, int64_t chunk);
void pack(const Line<const BFloat16>& line, float* to, int64_t chunk);
/// Packs a line and normalizes it.
void pack(const Line<const float>& line, const Normalization& norm, float* to, int64_t chunk);
void pack(const Line<const BFloat16>& line, const Normalization& norm, float* to, int64_t chunk);

/// to = activation(z) of packed pixels (whole chunks); may run in place.
void activate(const float* z, Activation activation, float* to, int64_t floats);

/// The taps of the pixels of a line: pixel i is the sum over rows and columns of in[row][i step + column kLanes] weight[row][column
/// weight_step], chunk by chunk. Pointers are those of the first chunk.
struct Taps {
  std::array<const float*, kMostColumns> in, weight;
  int rows = 0;
  int64_t columns = 0;
  int64_t step = kLanes;  // floats from what a pixel reads to what the next one reads
  int64_t weight_step = kLanes;
  int64_t in_chunk, weight_chunk;  // floats from chunk to chunk
};

/// Pixel i of the line = the sum of pixel i.
void convolve(const Taps& taps, const Line<float>& out);
void convolve(const Taps& taps, const Line<BFloat16>& out);

/// An input line whose gradient is gathered: g = (sum of the taps) times the slope of the activation. Columns with the same remainder
/// modulo the stride share their taps: pixel i is pixel i / classes of taps[i % classes].
struct Gathered {
  const Taps* taps;
  int64_t classes;
};
/// Writes g with the stride of x; may run in place. Adds g and g (x - mean) to the sums, which are padded to whole chunks.
void gradient_sums(const Gathered& g, const Line<const float>& x, const Normalization& norm, float* to, float* sum, float* dot);
void gradient_sums(const Gathered& g, const Line<const BFloat16>& x, const Normalization& norm, BFloat16* to, float* sum, float* dot);

/// The argument of the activation as a packed line.
struct PackedArgument {
  const float* z;
  int64_t chunk;  // floats from chunk to chunk
};
/// Writes g of whole chunks and adds it to the sums of as many channels.
void gradient_sums(const Gathered& g, const PackedArgument& of, Activation activation, const Line<float>& to, float* sum);

/// g = a g + b (x - mean) + offset; x and g have the same layout. x.ahead is unused.
struct GradientMap {
  const float *mean, *a, *b, *offset;
};
void map_gradient(const Line<const float>& x, float* g, const GradientMap& map);
void map_gradient(const Line<const BFloat16>& x, BFloat16* g, const GradientMap& map);

/// The weight gradients to which one packed line of the input contributes: those of `rows` kernel rows, each with its line of the output's
/// gradient.
struct WeightSums {
  const float* in;                              // the pixel that output pixel 0 reads by its first tap
  std::array<const float*, kMostColumns> grad;  // [row]: output pixel 0
  std::array<float*, kMostColumns> sums;        // [row]: [tap of the row][lane]
  int rows;
  int64_t columns;      // of the kernel, at most kMostColumns
  int64_t count, step;  // output pixels; floats from what one reads to what the next one reads
  int64_t chunks, in_chunk, grad_chunk, sums_chunk;
};
void add_weight_sums(const WeightSums& sums);

}  // namespace galley::depthwise_lines
