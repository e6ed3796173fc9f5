#pragma once
// Embeddings: a thread copies a word of a row. Their gradient: rows of tokens are added to rows of a table in an order that does not depend
// on the GPU. Tokens are sorted by counting, in three launches that take little time (each token is compared with all before it: 2^25 times
// for 8192); memory traffic bounds the last one.

#include "libcore/backends/cuda/kernels/functions.h"
#include "libcore/backends/cuda/kernels/packs.h"
#include "libcore/backends/cuda/kernels/warps.h"

namespace galley::device {

template <class W>
GALLEY_DEVICE void look_up(const EmbeddingLookupCall& call, W none) {
  for (int64_t i = first_element(); i < call.tokens * call.words; i += all_threads()) {
    const int64_t token = i / call.words, word = i - token * call.words, row = load<int64_t>(call.index, token, call.index_type);
    static_cast<W*>(call.to)[i] = row >= 0 && row < call.rows ? static_cast<const W*>(call.table)[row * call.words + word] : none;
  }
}
GALLEY_KERNEL(embedding_words_2, (const EmbeddingLookupCall call)) { look_up<uint16_t>(call, 0xffff); }
GALLEY_KERNEL(embedding_words_4, (const EmbeddingLookupCall call)) { look_up<uint32_t>(call, ~0u); }
GALLEY_KERNEL(embedding_words_16, (const EmbeddingLookupCall call)) { look_up<Word>(call, Word{~0u, ~0u, ~0u, ~0u}); }

inline constexpr unsigned kNoRow = ~0u;
/// The row of a token. Returns kNoRow if the index is outside the table, or if there are fewer tokens.
GALLEY_DEVICE unsigned token_row(const EmbeddingCall& call, int64_t token) {
  if (token >= call.tokens) return kNoRow;
  const int64_t row = load<int64_t>(call.index, token, call.index_type);
  return row >= 0 && row < call.rows ? static_cast<unsigned>(row) : kNoRow;
}

/// Block b compares kThreads tokens (tile `own`) with kThreads of those up to them (tile `other`), where b = own (own + 1) / 2 + other. It
/// adds to each token's rank how many of them are before it and have its row. Tokens are counted where both tiles are one.
GALLEY_KERNEL(embedding_ranks, (const EmbeddingCall call)) {
  GALLEY_SHARED(unsigned, others, kThreads);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t b = blockIdx.x;
  int64_t own = static_cast<int64_t>((sqrt(8.0 * static_cast<double>(b) + 1) - 1) / 2);
  while (own * (own + 1) / 2 > b) --own;
  while ((own + 1) * (own + 2) / 2 <= b) ++own;
  const int64_t other = b - own * (own + 1) / 2, token = own * kThreads + thread;
  const unsigned row = token_row(call, token);
  others[thread] = own == other ? row : token_row(call, other * kThreads + thread);
  __syncthreads();
  if (row == kNoRow) return;
  const int end = own == other ? thread : kThreads;
  unsigned rank = 0;
  for (int q = 0; q < end; ++q) rank += others[q] == row ? 1u : 0u;
  if (rank > 0) atomicAdd(call.ranks + token, rank);
  if (own == other) atomicAdd(call.counts + row, 1u);
}

/// A block gives kThreads rows their places in `order`, after those that other blocks have taken before: where they are does not change
/// sums.
GALLEY_KERNEL(embedding_begins, (const EmbeddingCall call)) {
  GALLEY_SHARED(unsigned, shared, kThreads);
  GALLEY_SHARED(unsigned, taken, 1);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + thread;
  const unsigned count = row < call.rows ? call.counts[row] : 0;
  unsigned sum = count;  // of this thread's row and those before it
  shared[thread] = sum;
  for (int distance = 1; distance < kThreads; distance *= 2) {
    __syncthreads();
    const unsigned before = thread >= distance ? shared[thread - distance] : 0;
    __syncthreads();
    sum += before;
    shared[thread] = sum;
  }
  if (thread == kThreads - 1) taken[0] = atomicAdd(call.cursor, sum);
  __syncthreads();
  if (row < call.rows) call.begins[row] = taken[0] + sum - count;
}

GALLEY_KERNEL(embedding_order, (const EmbeddingCall call)) {
  for (int64_t token = first_element(); token < call.tokens; token += all_threads()) {
    const unsigned row = token_row(call, token);
    if (row != kNoRow) call.order[call.begins[row] + call.ranks[token]] = static_cast<unsigned>(token);
  }
}

/// A block adds up the gradients of the tokens of a row of the table: warp w those of tokens w, w + 8, ... for kWarp packs at once, then
/// the warps' sums are added in order.
template <Type kType>
GALLEY_DEVICE void embedding_row(const EmbeddingCall& call, int64_t row, float* shared) {
  constexpr int kSpan = kWarp * kPack, kAtOnce = 4;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const unsigned first = call.begins[row], count = call.counts[row];
  for (int64_t begin = 0; begin < call.width; begin += kSpan) {
    const int64_t column = begin + lane * kPack;
    float sum[kPack] = {};
    for (unsigned i = static_cast<unsigned>(warp); i < count; i += kWarps * kAtOnce) {
      Packed<kType> packs[kAtOnce] = {};
      GALLEY_UNROLL
      for (unsigned p = 0; p < kAtOnce; ++p) {
        if (i + p * kWarps < count && column < call.width)
          packs[p] = read_pack<kType>(call.grad, static_cast<int64_t>(call.order[first + i + p * kWarps]) * call.width + column);
      }
      GALLEY_UNROLL
      for (int p = 0; p < kAtOnce; ++p) {
        float x[kPack];
        unpack(packs[p], x);
        GALLEY_UNROLL
        for (int j = 0; j < kPack; ++j) sum[j] += x[j];
      }
    }
    __syncthreads();  // the last sums have been read
    GALLEY_UNROLL
    for (int j = 0; j < kPack; ++j) shared[warp * kSpan + j * kWarp + lane] = sum[j];
    __syncthreads();
    if (warp != 0 || column >= call.width) continue;
    for (int other = 1; other < kWarps; ++other) {
      GALLEY_UNROLL
      for (int j = 0; j < kPack; ++j) sum[j] += shared[other * kSpan + j * kWarp + lane];
    }
    store_pack(sum, call.to, row * call.width + column, call.to_type);
  }
}
GALLEY_KERNEL(embedding_packs, (const EmbeddingCall call)) {
  GALLEY_SHARED(float, shared, kThreads* kPack);
  for (int64_t row = blockIdx.x; row < call.rows; row += gridDim.x) {
    if (call.counts[row] == 0) {
      const float zeros[kPack] = {};
      for (int64_t column = static_cast<int64_t>(threadIdx.x) * kPack; column < call.width; column += kThreads * kPack)
        store_pack(zeros, call.to, row * call.width + column, call.to_type);
    } else {
      with_type(call.type, [&]<Type kType>() { embedding_row<kType>(call, row, shared); });
    }
  }
}
/// The same of rows of any width and place.
GALLEY_KERNEL(embedding_rows, (const EmbeddingCall call)) {
  for (int64_t row = blockIdx.x; row < call.rows; row += gridDim.x) {
    const unsigned first = call.begins[row], last = first + call.counts[row];
    for (int64_t d = threadIdx.x; d < call.width; d += kThreads) {
      float sum = 0;
      for (unsigned i = first; i < last; ++i) sum += load_real(call.grad, static_cast<int64_t>(call.order[i]) * call.width + d, call.type);
      store_real(sum, call.to, row * call.width + d, call.to_type);
    }
  }
}

}  // namespace galley::device
