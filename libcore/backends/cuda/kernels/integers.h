#pragma once
// Products of integers by the vendor's libraries, which multiply i8 by i8 into i32 and pad with 0: operands in the form that they take, and
// their sums as results. Sums are exact, so that results have the bits of the kernels in quantized.h.

#include "libcore/backends/cuda/kernels/integer_calls.h"
#include "libcore/backends/cuda/kernels/quantized.h"

namespace galley::device {

inline constexpr int kPacked = 4;  // integers of a thread: one write

/// Windows of images as rows. The host gives less than 2^31 words at once.
GALLEY_KERNEL(pack_integers, (const PackCall call)) {
  const auto chunks = static_cast<uint32_t>(call.row / kPacked), pixels = static_cast<uint32_t>(call.result[0] * call.result[1]);
  const auto words = static_cast<int64_t>(call.size[0]) * pixels * chunks;
  for (int64_t i = first_element(); i < words; i += all_threads()) {
    const auto word_number = static_cast<uint32_t>(i);
    const uint32_t pixel = word_number / chunks, place = (word_number - pixel * chunks) * kPacked, n = pixel / pixels;
    const auto at = static_cast<int>(pixel - n * pixels), tap = static_cast<int>(place) / call.channels;
    const int channel = static_cast<int>(place) - tap * call.channels, kh = tap / call.kernel[1], kw = tap - kh * call.kernel[1];
    const int h = at / call.result[1], w = at - h * call.result[1];
    const int row = h * call.stride[0] - call.padding[0] + kh * call.dilation[0];
    const int column = w * call.stride[1] - call.padding[1] + kw * call.dilation[1];
    const bool used = kh < call.kernel[0], inside = row >= 0 && row < call.size[2] && column >= 0 && column < call.size[3];
    const int64_t from = n * call.steps[0] + row * call.steps[2] + column * call.steps[3];
    uint32_t word = 0;
    for (int j = 0; j < kPacked; ++j) {
      const bool real = used && inside && channel + j < call.size[1];
      const int value = real ? load<int>(call.from, from + (channel + j) * call.steps[1], call.type) - call.shift : call.border_value;
      word |= static_cast<uint32_t>(static_cast<uint8_t>(used ? value : 0)) << (8 * j);
    }
    static_cast<uint32_t*>(call.to)[i] = word;
  }
}

/// Weights as rows with zeros for what is added, and the sum of each output, by a block.
GALLEY_KERNEL(pack_integer_weights, (const PackWeightsCall call)) {
  GALLEY_SHARED(int, shared, kThreads);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t each = call.row;
  for (int64_t o = blockIdx.x; o < call.outputs; o += gridDim.x) {
    int sum = 0;
    for (int64_t i = thread; i < each; i += kThreads) {
      const int64_t channel = i % call.channels, column = i / call.channels % call.size[3], row = i / call.channels / call.size[3];
      const bool real = o < call.size[0] && channel < call.size[1] && row < call.size[2];
      const int64_t from = o * call.steps[0] + channel * call.steps[1] + row * call.steps[2] + column * call.steps[3];
      const int8_t value = real ? call.from[from] : static_cast<int8_t>(0);
      call.to[o * each + i] = value;
      sum += value;
    }
    shared[thread] = sum;
    for (int half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (thread < half) shared[thread] += shared[thread + half];
    }
    if (thread == 0) call.sums[o] = shared[0];
    __syncthreads();  // before the next output overwrites the sums
  }
}

/// y = activation((sums - zero point * sums of weights) * scales + bias + residual).
GALLEY_KERNEL(integer_results, (const IntegerResultCall call)) {
  IntegerMap x_map = call.x_map;
  const float invalid = take_dynamic_map(call.map, x_map);
  const int zero = x_map.zero_point - call.shift;
  const int64_t pixels = call.size[2] * call.size[3];
  for (int64_t i = first_element(); i < call.size[0] * call.size[1] * pixels; i += all_threads()) {
    const int64_t o = i % call.size[1], place = i / call.size[1], n = place / pixels, pixel = place % pixels;
    const int64_t y = n * call.steps[0] + o * call.steps[1] + pixel / call.size[3] * call.steps[2] + pixel % call.size[3] * call.steps[3];
    const int sum = call.sums[place * call.line + o] - zero * call.weight_sums[o];
    float real = static_cast<float>(sum) * (x_map.scale * call.weight_scale[o]);
    if (call.bias != nullptr) real += call.bias[o];
    if (call.residual != nullptr) real += real_of(call.residual, y, call.residual_map);
    store_real(activated(call.activation, real) + invalid, call.y_map, call.y, y);
  }
}

}  // namespace galley::device
