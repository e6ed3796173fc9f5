#pragma once
// The arguments of kernels on integers that stand for real values, and on f8.

#include "libcore/backends/cuda/kernels/calls.h"

namespace galley::device {

/// Integers of 8 bits for real values: scale * (q - zero_point), low <= q <= high. kF32: real values themselves.
struct IntegerMap {
  Type type;
  float scale;
  int zero_point, low, high;
};
struct QuantizeCall {
  const void* from;
  void* to;
  IntegerMap from_map, to_map;  // one of them of real values
  int64_t elements;
};

/// Sums and products of integers. b_step_sample > 0: b has a value for each channel, so many for a sample; `sample`: elements of one,
/// `step_channel`: of a channel.
struct QuantizedPairCall {
  const void *a, *b;
  void* to;
  IntegerMap a_map, b_map, to_map;
  int activation, product;
  int64_t elements, sample, step_channel, channels, b_step_sample;
};

/// x as integers 0..high by its range. Scratch: ranges [parts, 2], map [3], q [elements]. There is an element.
struct DynamicQuantizeCall {
  const void* x;
  float *ranges, *map;
  uint8_t* q;
  Type type;
  int parts, high;
  int64_t elements;
};

/// y = activation((x - zero point) weight^T * scales + bias). map: scale and zero point of x in the device's memory; null: x_map.
struct QuantizedProductCall {
  const void* x;
  const int8_t* weight;
  const float *weight_scale, *bias, *map;
  void* y;
  IntegerMap x_map, y_map;
  int activation;
  int64_t m, n, k;
};
struct QuantizedConvCall {
  ConvCall conv;  // types are in the maps
  const float *weight_scale, *bias;
  const void* residual;
  IntegerMap x_map, y_map, residual_map;
  int activation;
};

/// The windows of images [N,C,H,W] as i8, less `shift`, a row for each of the `result` pixels: [N,h,w,row], of which a row is
/// [kernel,kernel,channels] and then 0. What lies outside of the image or is added to its channels has the value `border_value`.
struct PackCall {
  const void* from;
  void* to;
  Type type;
  int shift, border_value;
  int64_t size[4], steps[4];  // of `from`
  int kernel[2], stride[2], padding[2], dilation[2], result[2];
  int channels, row;  // multiples of 4
};
/// Weights [O,C,h,w] as [outputs,row], of which a row is [h,w,channels], with zeros for what is added, and the sum of each output.
struct PackWeightsCall {
  const int8_t* from;
  int8_t* to;
  int* sums;
  int64_t size[4], steps[4];
  int64_t outputs, channels, row;
};
/// Results y [N,O,h,w] of sums [N,h,w,line] of products of x less `shift`. map: as in QuantizedProductCall.
struct IntegerResultCall {
  const int *sums, *weight_sums;
  const float *weight_scale, *bias, *map;
  const void* residual;
  void* y;
  IntegerMap x_map, y_map, residual_map;
  int activation, shift;
  int64_t size[4], steps[4];
  int64_t line;
};

/// Weights as integers of 8 or 4 bits: rows of `row`, of which `group` share a scale, `groups` in a row.
struct StoredWeight {
  const void* weight;
  const float* scale;
  const int8_t* zero_point;  // or null: 0
  int bits;
  int64_t row, group, groups;
};
/// As real values. last: size of the last axis, along which numbers of 4 bits are packed.
struct StoredWeightCall {
  StoredWeight stored;
  void* to;
  int64_t rows, last;
};

inline constexpr int kMostStoredRows = 16;
/// y = activation(x weight^T + bias) for few rows of x and stored weights.
struct StoredLinearCall {
  StoredWeight stored;
  const float *x, *bias;
  float* y;
  int activation;
  int64_t rows, outputs;
};

/// scale * (x / scale rounded to f8_e4m3), in f32, bf16 or f16.
struct RoundToF8Call {
  const void* from;
  void* to;
  Type type;
  float scale;
  int64_t elements;
};
/// Weights as f32: rows of `row` codes, each with a scale.
struct F8WeightCall {
  const uint8_t* from;
  const float* scale;
  float* to;
  int64_t row, elements;
};
/// As PackCall, of real values: x / scale in f8_e4m3. Outside of an image is 0.
struct F8PackCall {
  const void* from;
  uint32_t* to;
  Type type;
  float scale;
  int64_t size[4], steps[4];  // of `from`
  int kernel[2], stride[2], padding[2], dilation[2], result[2];
  int channels, row;  // multiples of 4
};
/// As PackWeightsCall, of codes of f8_e4m3, without sums.
struct F8PackWeightsCall {
  const uint8_t* from;
  uint8_t* to;
  int64_t size[4], steps[4];
  int64_t outputs, channels, row;
};
inline constexpr int kF8Tile = 16;
/// sums [m,n] = a [m,k] b [n,k]^T of codes of f8_e4m3. A block computes kF8Tile x kF8Tile of them.
struct F8ProductCall {
  const uint8_t *a, *b;
  float* sums;
  int64_t m, n, k;
};
/// y = activation(sums * (x_scale * weight_scale[o]) + bias[o] + residual): y and the residual [N,O,h,w] in `type`, sums [N,h,w,line].
struct F8ResultCall {
  const float *sums, *weight_scale, *bias;
  const void* residual;
  void* y;
  Type type;
  float x_scale;
  int activation;
  int64_t size[4], steps[4];
  int64_t line;
};

/// Means of windows of integers. Types are in the maps.
struct QuantizedPoolCall {
  PoolCall pool;
  IntegerMap x_map, y_map;
};

}  // namespace galley::device
