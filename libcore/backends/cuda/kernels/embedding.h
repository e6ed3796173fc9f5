#pragma once
// The gradient of an embedding: rows of tokens are added to rows of a table, those of one row in the order of the tokens, so that bits do
// not depend on the GPU. Tokens are sorted by counting, in four launches. Memory traffic bounds the last; the first compares each token
// with all before it.

#include "libcore/backends/cuda/kernels/portable.h"

namespace galley::device {

/// A thread finds how many tokens before its own have the same index, and counts its own.
GALLEY_KERNEL(embedding_ranks, (const EmbeddingCall call)) {
  for (int64_t p = first_element(); p < call.tokens; p += all_threads()) {
    const int64_t row = load<int64_t>(call.index, p, call.index_type);
    unsigned rank = 0;
    for (int64_t q = 0; q < p; ++q) rank += load<int64_t>(call.index, q, call.index_type) == row ? 1u : 0u;
    call.ranks[p] = rank;
    if (row >= 0 && row < call.rows) atomicAdd(call.begins + row, 1u);
  }
}

/// One block turns the counts of rows into the begins of their tokens: thread t has a range of rows.
GALLEY_KERNEL(embedding_begins, (const EmbeddingCall call)) {
  GALLEY_SHARED(unsigned, shared, kThreads);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t part = (call.rows + kThreads - 1) / kThreads, first = part * thread;
  const int64_t last = first + part < call.rows ? first + part : call.rows;
  unsigned sum = 0;
  for (int64_t row = first; row < last; ++row) sum += call.begins[row];
  shared[thread] = sum;
  __syncthreads();
  unsigned begin = 0;
  for (int t = 0; t < thread; ++t) begin += shared[t];
  for (int64_t row = first; row < last; ++row) {
    const unsigned count = call.begins[row];
    call.begins[row] = begin;
    begin += count;
  }
  if (thread == kThreads - 1) call.begins[call.rows] = begin;
}

GALLEY_KERNEL(embedding_order, (const EmbeddingCall call)) {
  for (int64_t p = first_element(); p < call.tokens; p += all_threads()) {
    const int64_t row = load<int64_t>(call.index, p, call.index_type);
    if (row >= 0 && row < call.rows) call.order[call.begins[row] + call.ranks[p]] = static_cast<unsigned>(p);
  }
}

/// A block adds up the gradients of the tokens of a row of the table, in the order of the tokens.
GALLEY_KERNEL(embedding_rows, (const EmbeddingCall call)) {
  for (int64_t row = blockIdx.x; row < call.rows; row += gridDim.x) {
    const unsigned first = call.begins[row], last = call.begins[row + 1];
    for (int64_t d = threadIdx.x; d < call.width; d += kThreads) {
      float sum = 0;
      for (unsigned i = first; i < last; ++i)
        sum += load<float>(call.grad, static_cast<int64_t>(call.order[i]) * call.width + d, call.type);
      store(sum, call.to, row * call.width + d, call.to_type);
    }
  }
}

}  // namespace galley::device
