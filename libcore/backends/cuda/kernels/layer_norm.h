#pragma once
// Layer norm and root mean square norm (`mean` is null), of x or of its sum with a residual; backward, the residual is added to dx. Memory
// traffic bounds them: of rows that packs divide, threads hold a row in registers, so that operands are read once.

#include "libcore/backends/cuda/kernels/packs.h"
#include "libcore/backends/cuda/kernels/rows.h"
#include "libcore/backends/cuda/kernels/warps.h"

namespace galley::device {

/// Where the packs of a thread are: pack p of its row begins at column(p).
struct RowThreads {
  int threads, at_once, own, lane;  // of a row; rows of a block; this thread's row of them, and its place in the row
  GALLEY_DEVICE int64_t column(int pack) const { return static_cast<int64_t>(pack * threads + lane) * kPack; }
};
GALLEY_DEVICE RowThreads row_threads(int warps) {
  const int threads = warps * kWarp, thread = static_cast<int>(threadIdx.x);
  return {threads, kThreads / threads, thread / threads, thread % threads};
}
/// Packs of a vector with a factor or a shift for each column; null: `value` everywhere.
GALLEY_DEVICE void load_vector(const void* vector, int64_t column, Type type, float value, float (&x)[kPack]) {
  if (vector != nullptr) return load_pack(vector, column, type, x);
  GALLEY_UNROLL
  for (int j = 0; j < kPack; ++j) x[j] = value;
}

/// The factors of columns.
GALLEY_DEVICE void load_gamma(const LayerNormCall& call, int64_t column, float (&x)[kPack]) {
  load_vector(call.gamma, column, call.vector_type, 1, x);
  if (call.gamma == nullptr) return;
  GALLEY_UNROLL
  for (int j = 0; j < kPack; ++j) x[j] += call.offset;
}
GALLEY_DEVICE float gamma_at(const LayerNormCall& call, int64_t i) {
  return call.gamma != nullptr ? load_real(call.gamma, i, call.vector_type) + call.offset : 1.0f;
}

/// What the elements of a row are less in the backward kernels.
GALLEY_DEVICE float mean_of(const LayerNormCall& call, int64_t row) {
  return call.mean != nullptr ? load_real(call.mean, row, call.statistics_type) : 0.0f;
}

template <Type kType>
GALLEY_DEVICE void add_pack(const Packed<kType>& values, float (&x)[kPack]) {
  float y[kPack];
  unpack(values, y);
  GALLEY_UNROLL
  for (int j = 0; j < kPack; ++j) x[j] += y[j];
}

/// A row, or several, of up to kRowPacks packs a thread. All threads of the block come. A thread reads its packs before it writes any: y
/// and the sum may be in the memory of x and of the residual.
template <Type kType, bool kResidual>
GALLEY_DEVICE void layer_norm_of_packs(const LayerNormCall& call, float* shared) {
  const RowThreads at = row_threads(call.warps);
  const int64_t row = blockIdx.x * int64_t{at.at_once} + at.own, begin = row * call.size;
  const bool exists = row < call.rows;
  const float share = 1.0f / static_cast<float>(call.size);
  Packed<kType> read[kRowPacks] = {}, residual[kRowPacks] = {};
  GALLEY_UNROLL
  for (int p = 0; p < kRowPacks; ++p) {
    if (!exists || at.column(p) >= call.size) continue;
    read[p] = read_pack<kType>(call.x, begin + at.column(p));
    if constexpr (kResidual) residual[p] = read_pack<kType>(call.residual, begin + at.column(p));
  }
  float x[kRowPacks][kPack], sum = 0, square = 0;
  GALLEY_UNROLL
  for (int p = 0; p < kRowPacks; ++p) {
    unpack(read[p], x[p]);
    if constexpr (kResidual) {  // the norm is of the sum as it is stored
      add_pack<kType>(residual[p], x[p]);
      read[p] = packed<kType>(x[p]);
      if (call.sum != nullptr && exists && at.column(p) < call.size) write_pack(read[p], call.sum, begin + at.column(p));
      unpack(read[p], x[p]);
    }
    GALLEY_UNROLL
    for (int j = 0; j < kPack; ++j) sum += x[p][j];
  }
  const float mean = call.mean != nullptr ? row_sum(sum, call.warps, shared) * share : 0;
  GALLEY_UNROLL
  for (int p = 0; p < kRowPacks; ++p) {
    if (at.column(p) >= call.size) continue;
    GALLEY_UNROLL
    for (int j = 0; j < kPack; ++j) {
      x[p][j] -= mean;
      square += x[p][j] * x[p][j];
    }
  }
  const float rstd = 1.0f / sqrt(row_sum(square, call.warps, shared + kWarps) * share + call.eps);
  if (!exists) return;
  GALLEY_UNROLL
  for (int p = 0; p < kRowPacks; ++p) {
    if (at.column(p) >= call.size) continue;
    float gamma[kPack], beta[kPack];
    load_gamma(call, at.column(p), gamma);
    load_vector(call.beta, at.column(p), call.vector_type, 0, beta);
    GALLEY_UNROLL
    for (int j = 0; j < kPack; ++j) x[p][j] = x[p][j] * rstd * gamma[j] + beta[j];
    write_pack(packed<kType>(x[p]), call.y, begin + at.column(p));
  }
  if (at.lane == 0) {
    if (call.mean != nullptr) store_real(mean, call.mean, row, call.statistics_type);
    store_real(rstd, call.rstd, row, call.statistics_type);
  }
}
GALLEY_KERNEL_OF(4, layer_norm_packs, (const LayerNormCall call)) {
  GALLEY_SHARED(float, shared, 2 * kWarps);
  with_type(call.type, [&]<Type kType>() {
    if (call.residual != nullptr) return layer_norm_of_packs<kType, true>(call, shared);
    layer_norm_of_packs<kType, false>(call, shared);
  });
}

/// Adds the vectors of the other rows of a block to those of its first one.
template <class... V>
GALLEY_DEVICE void merge_vectors(const RowThreads& at, float* others, V&... vectors) {
  const int thread = static_cast<int>(threadIdx.x);
  float(*const own[])[kPack] = {&vectors...};
  __syncthreads();  // the places have been read for the last vectors
  GALLEY_UNROLL
  for (int v = 0; v < static_cast<int>(sizeof...(V)); ++v) {
    GALLEY_UNROLL
    for (int j = 0; j < kPack; ++j) others[(v * kPack + j) * kThreads + thread] = (*own[v])[j];
  }
  __syncthreads();
  GALLEY_NO_UNROLL
  for (int other = 1; at.own == 0 && other < at.at_once; ++other) {
    GALLEY_UNROLL
    for (int v = 0; v < static_cast<int>(sizeof...(V)); ++v) {
      GALLEY_UNROLL
      for (int j = 0; j < kPack; ++j) (*own[v])[j] += others[(v * kPack + j) * kThreads + other * at.threads + at.lane];
    }
  }
}

/// dx, and the sums over rows of grad * normal and of grad: part p has rows p * at_once to p * at_once + at_once - 1, then those from
/// (p + parts) * at_once on. kSums: and those of dx, as it is stored. `others`: kThreads * 2 kPack places, if a block has several rows at
/// once, with a pack a thread.
template <Type kType, int kPacks, bool kSums>
GALLEY_DEVICE void layer_norm_backward(const LayerNormCall& call, float* shared, float* others) {
  const RowThreads at = row_threads(call.warps);
  const float share = 1.0f / static_cast<float>(call.size);
  constexpr int64_t kVectors = kSums ? 3 : 2;
  int turn = 0;  // of all parts: no barrier follows the last sums of one
  for (int64_t part = blockIdx.x; part < call.parts; part += gridDim.x) {
    float dgamma[kPacks][kPack] = {}, dbeta[kPacks][kPack] = {}, sums[kSums ? kPacks : 1][kPack] = {};
    for (int64_t first = part * at.at_once; first < call.rows; first += call.parts * at.at_once) {
      const int64_t row = first + at.own, begin = row * call.size;
      const bool exists = row < call.rows;
      Packed<kType> of_x[kPacks] = {}, of_grad[kPacks] = {};
      GALLEY_UNROLL
      for (int p = 0; p < kPacks; ++p) {
        if (!exists || at.column(p) >= call.size) continue;
        of_x[p] = read_pack<kType>(call.x, begin + at.column(p));
        of_grad[p] = read_pack<kType>(call.grad, begin + at.column(p));
      }
      const float mean = exists ? mean_of(call, row) : 0;
      const float rstd = exists ? load_real(call.rstd, row, call.statistics_type) : 0;
      float x[kPacks][kPack], grad[kPacks][kPack], sum = 0, product = 0;
      GALLEY_UNROLL
      for (int p = 0; p < kPacks; ++p) {
        if (at.column(p) >= call.size) continue;
        float gamma[kPack];
        load_gamma(call, at.column(p), gamma);
        unpack(of_x[p], x[p]);
        unpack(of_grad[p], grad[p]);
        GALLEY_UNROLL
        for (int j = 0; j < kPack; ++j) {
          x[p][j] = (x[p][j] - mean) * rstd;
          dgamma[p][j] += grad[p][j] * x[p][j];
          dbeta[p][j] += grad[p][j];
          grad[p][j] *= gamma[j];
          sum += grad[p][j];
          product += grad[p][j] * x[p][j];
        }
      }
      row_sums(sum, product, call.warps, shared + turn * 2 * kWarps);
      turn ^= 1;
      sum = call.mean != nullptr ? sum * share : 0;
      product *= share;
      GALLEY_UNROLL
      for (int p = 0; p < kPacks; ++p) {
        if (!exists || at.column(p) >= call.size) continue;
        GALLEY_UNROLL
        for (int j = 0; j < kPack; ++j) x[p][j] = rstd * (grad[p][j] - sum - x[p][j] * product);
        if (call.residual != nullptr) add_pack<kType>(read_pack<kType>(call.residual, begin + at.column(p)), x[p]);
        const Packed<kType> dx = packed<kType>(x[p]);
        write_pack(dx, call.y, begin + at.column(p));
        if constexpr (kSums) add_pack<kType>(dx, sums[p]);
      }
    }
    if (kPacks == 1 && at.at_once > 1) {
      merge_vectors(at, others, dgamma[0], dbeta[0]);
      if constexpr (kSums) merge_vectors(at, others, sums[0]);
    }
    if (at.own != 0) continue;
    GALLEY_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      if (at.column(p) >= call.size) continue;
      write_pack(packed<kF32>(dgamma[p]), call.partial, part * kVectors * call.size + at.column(p));
      write_pack(packed<kF32>(dbeta[p]), call.partial, (part * kVectors + 1) * call.size + at.column(p));
      if constexpr (kSums) write_pack(packed<kF32>(sums[p]), call.partial, (part * kVectors + 2) * call.size + at.column(p));
    }
  }
}
GALLEY_KERNEL_OF(3, layer_norm_backward_pack, (const LayerNormCall call)) {
  GALLEY_SHARED(float, shared, 4 * kWarps);
  GALLEY_SHARED(float, others, kThreads * 2 * kPack);
  with_type(call.type, [&]<Type kType>() { layer_norm_backward<kType, 1, false>(call, shared, others); });
}
GALLEY_KERNEL_OF(3, layer_norm_backward_sums, (const LayerNormCall call)) {
  GALLEY_SHARED(float, shared, 4 * kWarps);
  GALLEY_SHARED(float, others, kThreads * 2 * kPack);
  with_type(call.type, [&]<Type kType>() { layer_norm_backward<kType, 1, true>(call, shared, others); });
}
GALLEY_KERNEL_OF(2, layer_norm_backward_packs, (const LayerNormCall call)) {
  GALLEY_SHARED(float, shared, 4 * kWarps);
  with_type(call.type, [&]<Type kType>() { layer_norm_backward<kType, 2, false>(call, shared, nullptr); });
}

/// A block adds up the parts of kSumColumns columns of dgamma, dbeta and the sums of dx: thread t those of column t % kSumColumns with
/// every kThreads / kSumColumns-th part, then one thread of each column the threads' sums.
GALLEY_KERNEL(layer_norm_sums, (const LayerNormCall call)) {
  constexpr int kSumColumns = 8, kGroups = kThreads / kSumColumns;
  GALLEY_SHARED(float, shared, kThreads);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t of_part = (call.dx_sums != nullptr ? 3 : 2) * call.size, columns = call.dbeta != nullptr ? of_part : call.size;
  for (int64_t begin = blockIdx.x * int64_t{kSumColumns}; begin < columns; begin += gridDim.x * int64_t{kSumColumns}) {
    const int64_t column = begin + thread % kSumColumns;
    float sum = 0;
    if (column < columns) {
      GALLEY_UNROLL_BY_4
      for (int64_t part = thread / kSumColumns; part < call.parts; part += kGroups) sum += call.partial[part * of_part + column];
    }
    __syncthreads();  // the last sums have been read
    shared[thread] = sum;
    __syncthreads();
    if (thread >= kSumColumns || column >= columns) continue;
    for (int group = 1; group < kGroups; ++group) sum += shared[group * kSumColumns + thread];
    if (column < call.size) {
      store(sum, call.dgamma, column, call.vector_type);
    } else if (column < 2 * call.size) {
      store(sum, call.dbeta, column - call.size, call.vector_type);
    } else {
      store(sum, call.dx_sums, column - 2 * call.size, call.type);
    }
  }
}

// Of other rows.

/// What the norm is of: x, or its sum with the residual, rounded to the type.
GALLEY_DEVICE float normed_at(const LayerNormCall& call, int64_t i) {
  const float x = load<float>(call.x, i, call.type);
  return call.residual != nullptr ? rounded(x + load<float>(call.residual, i, call.type), call.type) : x;
}
/// The same after the sum has been written, which may have taken the memory of x or the residual.
GALLEY_DEVICE float normed_again_at(const LayerNormCall& call, int64_t i) {
  return call.sum != nullptr ? load<float>(call.sum, i, call.type) : normed_at(call, i);
}

GALLEY_KERNEL(layer_norm_rows, (const LayerNormCall call)) {
  GALLEY_SHARED(float, shared, kThreads);
  const float share = 1.0f / static_cast<float>(call.size);
  for (int64_t row = blockIdx.x; row < call.rows; row += gridDim.x) {
    const int64_t begin = row * call.size;
    float sum = 0, square = 0;
    for (int64_t i = threadIdx.x; i < call.size; i += kThreads) {
      const float x = normed_at(call, begin + i);
      if (call.sum != nullptr) store(x, call.sum, begin + i, call.type);
      sum += x;
    }
    const float mean = call.mean != nullptr ? block_sum(sum, shared) * share : 0;
    for (int64_t i = threadIdx.x; i < call.size; i += kThreads) {
      const float d = normed_again_at(call, begin + i) - mean;
      square += d * d;
    }
    const float rstd = 1.0f / sqrt(block_sum(square, shared) * share + call.eps);
    for (int64_t i = threadIdx.x; i < call.size; i += kThreads) {
      const float normal = (normed_again_at(call, begin + i) - mean) * rstd;
      store(normal * gamma_at(call, i) + shift_of(call.beta, i, call.vector_type), call.y, begin + i, call.type);
    }
    if (threadIdx.x == 0) {
      if (call.mean != nullptr) store(mean, call.mean, row, call.statistics_type);
      store(rstd, call.rstd, row, call.statistics_type);
    }
  }
}

GALLEY_KERNEL(layer_norm_backward_rows, (const LayerNormCall call)) {
  GALLEY_SHARED(float, shared, kThreads);
  const float share = 1.0f / static_cast<float>(call.size);
  for (int64_t row = blockIdx.x; row < call.rows; row += gridDim.x) {
    const int64_t begin = row * call.size;
    const float mean = mean_of(call, row), rstd = load_real(call.rstd, row, call.statistics_type);
    float sum = 0, product = 0;
    for (int64_t i = threadIdx.x; i < call.size; i += kThreads) {
      const float d = load<float>(call.grad, begin + i, call.type) * gamma_at(call, i);
      sum += d;
      product += d * (load<float>(call.x, begin + i, call.type) - mean) * rstd;
    }
    sum = call.mean != nullptr ? block_sum(sum, shared) * share : 0;
    product = block_sum(product, shared) * share;
    for (int64_t i = threadIdx.x; i < call.size; i += kThreads) {
      const float d = load<float>(call.grad, begin + i, call.type) * gamma_at(call, i);
      const float normal = (load<float>(call.x, begin + i, call.type) - mean) * rstd;
      const float addend = call.residual != nullptr ? load<float>(call.residual, begin + i, call.type) : 0.0f;
      store(rstd * (d - sum - normal * product) + addend, call.y, begin + i, call.type);
    }
  }
}

/// Sums over rows of grad * normal and of grad: part p adds rows p, p + parts, ...
GALLEY_KERNEL(layer_norm_partial_sums, (const LayerNormCall call)) {
  for (int64_t part = blockIdx.x; part < call.parts; part += gridDim.x) {
    for (int64_t i = threadIdx.x; i < call.size; i += kThreads) {
      float dgamma = 0, dbeta = 0;
      for (int64_t row = part; row < call.rows; row += call.parts) {
        const float grad = load<float>(call.grad, row * call.size + i, call.type);
        const float mean = mean_of(call, row), rstd = load_real(call.rstd, row, call.statistics_type);
        dgamma += grad * (load<float>(call.x, row * call.size + i, call.type) - mean) * rstd;
        dbeta += grad;
      }
      call.partial[part * 2 * call.size + i] = dgamma;
      call.partial[(part * 2 + 1) * call.size + i] = dbeta;
    }
  }
}

}  // namespace galley::device
