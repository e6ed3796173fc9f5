#pragma once
// Depthwise convolution, line by line: lines of channels_last images of f32 or bf16 are packed to float, 16 channels (a chunk) after the other, with
// zeros at both ends; what is computed from packed lines has no edges and no remainders of channels, and no address far from the last.

#include <array>
#include <cstdint>

#include "libcore/kernels/cpu/bfloat16.h"
#include "libcore/ops/attrs.h"

namespace galley::depthwise_lines {

constexpr int64_t kLanes = 16;        // channels of a chunk
constexpr int64_t kMostColumns = 7;   // of a kernel: the sums of its row fit the registers
constexpr int64_t kMostTaps = 49;

constexpr int64_t chunks_of(int64_t channels) { return (channels + kLanes - 1) / kLanes; }

/// Values of each channel are padded to whole chunks, by zeros. y = activation(x scale + shift).
struct Normalization {
  Activation activation = Activation::kNone;
  const float *mean = nullptr, *scale = nullptr, *shift = nullptr;
};

/// A line of an image to pixels [0, count) of a packed line whose chunks are `chunk` floats apart.
void pack(const float* line, int64_t count, int64_t channels, float* to, int64_t chunk);
void pack(const BFloat16* line, int64_t count, int64_t channels, float* to, int64_t chunk);
/// The same, normalised.
void pack(const float* line, int64_t count, int64_t channels, const Normalization& how, float* to, int64_t chunk);
void pack(const BFloat16* line, int64_t count, int64_t channels, const Normalization& how, float* to, int64_t chunk);

/// What the pixels of a line gather: pixel i the sum over taps of in[tap][i step] weight[tap], chunk by chunk. Pointers are those of the first chunk.
struct Taps {
  std::array<const float*, kMostTaps> in, weight;
  int count = 0;
  int64_t step = kLanes;           // floats from what a pixel reads to what the next one reads
  int64_t in_chunk, weight_chunk;  // floats from chunk to chunk
};

/// out[i channels] = the sum of pixel i < count.
void convolve(const Taps& taps, float* out, int64_t count, int64_t channels);
void convolve(const Taps& taps, BFloat16* out, int64_t count, int64_t channels);

/// An input line whose gradient is gathered: g = (sum of the taps) behind the activation. Columns of one remainder by the stride share their taps:
/// pixel i takes taps[i % classes], as that list's pixel i / classes.
template <class T>
struct GradientLine {
  const Taps* taps;
  int64_t classes;
  const T* x;
  T* dx;
  int64_t count, channels;
};
/// Sums, padded to whole chunks, grow by those of g and of g (x - mean).
void gradient_sums(const GradientLine<float>& line, const Normalization& how, float* sum, float* dot);
void gradient_sums(const GradientLine<BFloat16>& line, const Normalization& how, float* sum, float* dot);
/// dx = a g + b (x - mean) + offset.
struct GradientMap {
  const float *a, *b, *offset;
};
void gradient(const GradientLine<float>& line, const Normalization& how, const GradientMap& map);
void gradient(const GradientLine<BFloat16>& line, const Normalization& how, const GradientMap& map);

/// Weight gradients that one packed line of the input takes part in: those of `rows` kernel rows, each with its line of the output's gradient.
struct WeightSums {
  const float* in;                                // the pixel that output pixel 0 reads by its first tap
  std::array<const float*, kMostColumns> grad;    // [row]: output pixel 0
  std::array<float*, kMostColumns> sums;          // [row]: [tap of the row][lane]
  int rows;
  int64_t columns;                                // of the kernel, at most kMostColumns
  int64_t count, step;                            // output pixels; floats from what one reads to what the next one reads
  int64_t chunks, in_chunk, grad_chunk, sums_chunk;
};
void add_weight_sums(const WeightSums& sums);

}  // namespace galley::depthwise_lines
