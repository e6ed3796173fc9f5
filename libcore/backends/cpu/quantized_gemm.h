#pragma once
// Products of quantized activations and packed weights with their epilogue: the inner loops of quantized_conv2d and of the quantized linear
// layers. Compiled for each vector instruction set (Google Highway) and chosen at run time.
//
// Weights are [outputs / 16][quads][16][4] i8, where a quad is four consecutive inputs of one tap (the blocked formats AcdB16a4b and
// AB16a4b): one layout for the four ways to multiply (quantized_paths.cpp):
//
// amx: u8 x i8, 16 x 16 sums of 64 products in one instruction (tdpbusd); vnni: u8 x i8, four products per 32-bit lane in one instruction
// (vpdpbusd); reduced: u8 x i8, two products in 16 bits (vpmaddubsw), only where the node promises that they fit; exact: both operands
// widened to i16 (vpmaddwd), always right.
//
// All but exact read activations as bytes, i8 ones offset by 128, and correct for the zero point by the sum of an output's weights; exact
// subtracts the zero point as it widens. The 32-bit sums are the same on all paths. The scheme is that of gemmlowp (Jacob et al.,
// "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", 2018).

#include <cstddef>
#include <cstdint>

#include "libcore/backends/cpu/quantized_paths.h"
#include "libcore/ops/quantized.h"

namespace galley::quantized {

inline constexpr int64_t kBlock = 16;     // outputs of a block of weights
inline constexpr int64_t kQuad = 4;       // consecutive inputs
inline constexpr int64_t kMostStep = 32;  // outputs that one pass computes: one block, or two with 512 bits
/// Arrays with one number per output are padded to a multiple of this.
inline int64_t padded_outputs(int64_t outputs) { return (outputs + kMostStep - 1) / kMostStep * kMostStep + kMostStep; }
inline int64_t quads_of(int64_t channels) { return (channels + kQuad - 1) / kQuad; }

/// How a sum becomes a result: v = sum * scale[o] + bias[o] + residual_scale * residual, then the activation, then
/// round(clamp(v * to_levels, low, high)) + zero_point; `activation` none, relu and relu6 are in the bounds, and to_levels in the scales.
/// Zero points and integers are those of u8; i8 arrays are u8 ones with the highest bit inverted (`flip` 0x80).
struct Epilogue {
  const float* scale = nullptr;  // [padded outputs], as bias
  const float* bias = nullptr;
  Activation activation = Activation::kNone;
  float to_levels = 1, low = 0, high = 0;
  int32_t zero_point = 0;
  uint8_t flip = 0;
  bool real = false;                  // the result is f32: v after the activation, bounded
  const uint8_t* residual = nullptr;  // same layout as the result
  uint8_t residual_flip = 0;
  float residual_scale = 0;  // its zero point is part of bias
  void* out = nullptr;       // of the first pixel, output 0
  int64_t channels = 0;      // of the result: elements between pixels
};

/// Pixels times a range of outputs.
struct Product {
  Path path = Path::kExact;
  const void* a = nullptr;            // i16 (exact) or u8 values
  const int32_t* pixel_at = nullptr;  // offset of each pixel's window in `a`, in elements
  int64_t pixels = 0;
  const int32_t* run_at = nullptr;  // offset of each run of the window from there
  int64_t runs = 0, run_quads = 0;  // runs of consecutive quads
  const int8_t* weights = nullptr;  // of output block 0
  int64_t begin = 0, end = 0;       // outputs; `begin` need not begin a block
  int32_t zero_point = 0;           // of the bytes (not of exact)
  /// The second-level cache holds the weights of all outputs: they are prepared once, and each pixel is computed for all outputs, so
  /// that its results are written together. Otherwise outputs are computed one step at a time.
  bool resident = false;
  bool far = false;            // the layer's inputs and results exceed the second-level caches: prefetch them
  bool few = false;            // exact: weights are read in place; each quad of a pixel holds the values 0, 2, 1, 3
  int16_t* wide = nullptr;     // exact: memory for wide_values() of the outputs, or of one step
  int32_t* starts = nullptr;   // others: memory for padded_outputs() of them
  std::byte* tiles = nullptr;  // amx: tile_workspace() bytes, 64-byte aligned
  int64_t a_bytes = 0;         // amx: that can be read from `a` on
  Epilogue epilogue;
};

/// Values that widened weights take: `quads` for each of `outputs` outputs, which may start anywhere in a block.
int64_t wide_values(int64_t quads, int64_t outputs);
/// Bytes of scratch memory of a product by amx with at most this number of pixels and outputs.
int64_t tile_workspace(int64_t runs, int64_t run_quads, int64_t pixels, int64_t outputs);
/// The sums and results of all pixels.
void multiply(const Product& product);

/// count values of `in`, i8 where flip is 0x80, less their zero point (of u8).
void widen(const uint8_t* in, uint8_t flip, int32_t zero_point, int16_t* out, int64_t count);
/// count bytes, with the highest bit inverted where flip is 0x80.
void copy_bytes(const uint8_t* in, uint8_t flip, uint8_t* out, int64_t count);

/// widen and copy_bytes for pixels of three values, to which a fourth is added: 0, or any byte.
void widen_rgb(const uint8_t* in, uint8_t flip, int32_t zero_point, int16_t* out, int64_t pixels);
void copy_rgb(const uint8_t* in, uint8_t flip, uint8_t* out, int64_t pixels);

/// What the copy of this code that the machine runs is compiled for.
struct VectorCode {
  bool vectors;     ///< Of 128 bits or more.
  bool byte_pairs;  ///< vpmaddubsw.
  bool avx512;
  const char* target;  ///< As Highway names it.
};
VectorCode vector_code();

}  // namespace galley::quantized
