#pragma once
// Matrix products and convolutions where no vendor library is used: for types and forms that it declines, and as what tests compare it
// with. A block computes a tile of 64 x 64 results, a thread 4 x 4 of them, over slices of 16 that the block keeps in shared memory.
// Products are bound by arithmetic without tensor cores; convolutions compute each result in a thread and are bound by their loads.

#include "libcore/backends/cuda/kernels/activations.h"
#include "libcore/backends/cuda/kernels/packs.h"

namespace galley::device {

inline constexpr int kTile = 64, kSlice = 16, kPart = 4;

/// a, b: shared, kSlice * kTile each.
template <class V>
GALLEY_DEVICE void multiply_tiles(const MatmulCall& call, V* a, V* b) {
  const int64_t columns = (call.n + kTile - 1) / kTile, rows = (call.m + kTile - 1) / kTile;
  const int thread = static_cast<int>(threadIdx.x), part_row = thread / 16 * kPart, part_column = thread % 16 * kPart;
  for (int64_t tile = blockIdx.x; tile < call.batch * rows * columns; tile += gridDim.x) {
    const int64_t batch = tile / (rows * columns), row = tile / columns % rows * kTile, column = tile % columns * kTile;
    V sums[kPart][kPart] = {};
    for (int64_t k = 0; k < call.k; k += kSlice) {
      for (int i = thread; i < kSlice * kTile; i += kThreads) {
        // Neighboring threads read neighboring elements, whichever way the operand is stored.
        const int a_slice = call.a_column == 1 ? i % kSlice : i / kTile, a_place = call.a_column == 1 ? i / kSlice : i % kTile;
        const int b_slice = call.b_row == 1 ? i % kSlice : i / kTile, b_place = call.b_row == 1 ? i / kSlice : i % kTile;
        const bool a_inside = row + a_place < call.m && k + a_slice < call.k, b_inside = column + b_place < call.n && k + b_slice < call.k;
        a[a_slice * kTile + a_place] =
            a_inside ? load<V>(call.a, batch * call.a_batch + (row + a_place) * call.a_row + (k + a_slice) * call.a_column, call.a_type)
                     : 0;
        b[b_slice * kTile + b_place] =
            b_inside ? load<V>(call.b, batch * call.b_batch + (k + b_slice) * call.b_row + (column + b_place) * call.b_column, call.b_type)
                     : 0;
      }
      __syncthreads();
      GALLEY_UNROLL
      for (int s = 0; s < kSlice; ++s) {
        GALLEY_UNROLL
        for (int i = 0; i < kPart; ++i) {
          GALLEY_UNROLL
          for (int j = 0; j < kPart; ++j) sums[i][j] += a[s * kTile + part_row + i] * b[s * kTile + part_column + j];
        }
      }
      __syncthreads();
    }
    GALLEY_UNROLL
    for (int i = 0; i < kPart; ++i) {
      GALLEY_UNROLL
      for (int j = 0; j < kPart; ++j) {
        const int64_t y_row = row + part_row + i, y_column = column + part_column + j;
        if (y_row >= call.m || y_column >= call.n) continue;
        V sum = sums[i][j];
        if (call.bias != nullptr) sum += load<V>(call.bias, y_column, call.bias_type);
        if (call.relu != 0) sum = sum < 0 ? 0 : sum;
        store(sum, call.y, (batch * call.m + y_row) * call.n + y_column, call.y_type);
      }
    }
  }
}

GALLEY_KERNEL(matmul_tiles, (const MatmulCall call)) {
  GALLEY_SHARED(float, a, kSlice* kTile);
  GALLEY_SHARED(float, b, kSlice* kTile);
  multiply_tiles(call, a, b);
}
GALLEY_KERNEL(matmul_tiles_double, (const MatmulCall call)) {
  GALLEY_SHARED(double, a, kSlice* kTile);
  GALLEY_SHARED(double, b, kSlice* kTile);
  multiply_tiles(call, a, b);
}

/// The four indices of element i of an array of these sizes, in logical order.
GALLEY_DEVICE void indices_of(int64_t i, const int64_t* sizes, int64_t* index) {
  for (int d = 3; d >= 0; --d) {
    index[d] = i % sizes[d];
    i /= sizes[d];
  }
}
GALLEY_DEVICE int64_t place_of(const int64_t* index, const int64_t* steps) {
  return index[0] * steps[0] + index[1] * steps[1] + index[2] * steps[2] + index[3] * steps[3];
}

GALLEY_KERNEL(conv2d_direct, (const ConvCall call)) {
  const int64_t elements = call.y_size[0] * call.y_size[1] * call.y_size[2] * call.y_size[3];
  const int64_t per_group = call.weight_size[0] / call.groups;
  for (int64_t i = first_element(); i < elements; i += all_threads()) {
    int64_t y[4];
    indices_of(i, call.y_size, y);
    const int64_t first_channel = y[1] / per_group * call.weight_size[1];
    float sum = 0;
    for (int64_t c = 0; c < call.weight_size[1]; ++c) {
      for (int64_t kh = 0; kh < call.weight_size[2]; ++kh) {
        for (int64_t kw = 0; kw < call.weight_size[3]; ++kw) {
          const int64_t x[4] = {y[0], first_channel + c, y[2] * call.stride[0] - call.padding[0] + kh * call.dilation[0],
                                y[3] * call.stride[1] - call.padding[1] + kw * call.dilation[1]};
          if (x[2] < 0 || x[2] >= call.x_size[2] || x[3] < 0 || x[3] >= call.x_size[3]) continue;
          const int64_t w[4] = {y[1], c, kh, kw};
          sum += load<float>(call.x, place_of(x, call.x_steps), call.x_type) *
                 load<float>(call.weight, place_of(w, call.weight_steps), call.weight_type);
        }
      }
    }
    const int64_t place = place_of(y, call.y_steps);
    if (call.bias != nullptr) sum += load<float>(call.bias, y[1], call.bias_type);
    if (call.residual != nullptr) sum += load<float>(call.residual, place, call.y_type);
    store(activated(call.activation, sum), const_cast<void*>(call.y), place, call.y_type);
  }
}
/// y = activation(y + bias + residual); packs: of channels beside each other.
GALLEY_KERNEL(epilogue_packs, (const EpilogueCall call)) {
  for (int64_t i = kPack * first_element(); i < call.elements; i += kPack * all_threads()) {
    float y[kPack], bias[kPack] = {}, residual[kPack] = {};
    load_pack(call.y, i, call.type, y);
    if (call.bias != nullptr) load_pack(call.bias, i % call.channels, call.bias_type, bias);
    if (call.residual != nullptr) load_pack(call.residual, i, call.type, residual);
    GALLEY_UNROLL
    for (int j = 0; j < kPack; ++j) y[j] = activated(call.activation, y[j] + bias[j] + residual[j]);
    store_pack(y, call.y, i, call.type);
  }
}
GALLEY_KERNEL(convolution_epilogue, (const EpilogueCall call)) {
  for (int64_t i = first_element(); i < call.elements; i += all_threads()) {
    float y = load<float>(call.y, i, call.type);
    if (call.bias != nullptr) y += load<float>(call.bias, i / call.inner % call.channels, call.bias_type);
    if (call.residual != nullptr) y += load<float>(call.residual, i, call.type);
    store(activated(call.activation, y), call.y, i, call.type);
  }
}

/// The gradient of x: a thread adds up what reaches one pixel.
GALLEY_KERNEL(conv2d_backward_data_direct, (const ConvCall call)) {
  const int64_t elements = call.x_size[0] * call.x_size[1] * call.x_size[2] * call.x_size[3];
  const int64_t per_group = call.weight_size[0] / call.groups;
  for (int64_t i = first_element(); i < elements; i += all_threads()) {
    int64_t x[4];
    indices_of(i, call.x_size, x);
    const int64_t group = x[1] / call.weight_size[1], c = x[1] % call.weight_size[1];
    float sum = 0;
    for (int64_t kh = 0; kh < call.weight_size[2]; ++kh) {
      const int64_t row = x[2] + call.padding[0] - kh * call.dilation[0];
      if (row < 0 || row % call.stride[0] != 0 || row / call.stride[0] >= call.y_size[2]) continue;
      for (int64_t kw = 0; kw < call.weight_size[3]; ++kw) {
        const int64_t column = x[3] + call.padding[1] - kw * call.dilation[1];
        if (column < 0 || column % call.stride[1] != 0 || column / call.stride[1] >= call.y_size[3]) continue;
        for (int64_t o = group * per_group; o < (group + 1) * per_group; ++o) {
          const int64_t y[4] = {x[0], o, row / call.stride[0], column / call.stride[1]}, w[4] = {o, c, kh, kw};
          sum += load<float>(call.y, place_of(y, call.y_steps), call.y_type) *
                 load<float>(call.weight, place_of(w, call.weight_steps), call.weight_type);
        }
      }
    }
    store(sum, const_cast<void*>(call.x), place_of(x, call.x_steps), call.x_type);
  }
}

/// The gradient of the weight: a block adds up one element over samples and pixels, in a fixed order.
GALLEY_KERNEL(conv2d_backward_weights_direct, (const ConvCall call)) {
  GALLEY_SHARED(float, shared, kThreads);
  const int64_t elements = call.weight_size[0] * call.weight_size[1] * call.weight_size[2] * call.weight_size[3];
  const int64_t per_group = call.weight_size[0] / call.groups, pixels = call.y_size[2] * call.y_size[3];
  for (int64_t i = blockIdx.x; i < elements; i += gridDim.x) {
    int64_t w[4];
    indices_of(i, call.weight_size, w);
    const int64_t channel = w[0] / per_group * call.weight_size[1] + w[1];
    float sum = 0;
    for (int64_t p = threadIdx.x; p < call.y_size[0] * pixels; p += kThreads) {
      const int64_t y[4] = {p / pixels, w[0], p / call.y_size[3] % call.y_size[2], p % call.y_size[3]};
      const int64_t x[4] = {y[0], channel, y[2] * call.stride[0] - call.padding[0] + w[2] * call.dilation[0],
                            y[3] * call.stride[1] - call.padding[1] + w[3] * call.dilation[1]};
      if (x[2] < 0 || x[2] >= call.x_size[2] || x[3] < 0 || x[3] >= call.x_size[3]) continue;
      sum += load<float>(call.x, place_of(x, call.x_steps), call.x_type) * load<float>(call.y, place_of(y, call.y_steps), call.y_type);
    }
    shared[threadIdx.x] = sum;
    for (int half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (static_cast<int>(threadIdx.x) < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    }
    if (threadIdx.x == 0) store(shared[0], const_cast<void*>(call.weight), place_of(w, call.weight_steps), call.weight_type);
    __syncthreads();  // before the next element overwrites the sums
  }
}

}  // namespace galley::device
