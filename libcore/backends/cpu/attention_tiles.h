#pragma once
// The tiles of attention: what one thread does. attention.cpp distributes tasks.

#include <cstdint>
#include <limits>

#include "libcore/tensor/dtype.h"

namespace galley::attention_tiles {

/// Sizes and masks (ops/attention.h).
struct Problem {
  int64_t batch, queries, keys, heads, group, width, value_width;  // group: query heads for each key head
  float scale, softcap;                                            // softcap 0: none
  bool causal, pad_queries;
  int64_t window;
  int32_t threshold;  // dropout keeps a word whose upper 24 bits are at least this
  float kept;         // the factor of what is kept; 0 without dropout
  bool drops;
  int64_t first_head;                        // of the masks
  int64_t bias_sample, bias_head, bias_row;  // steps of the bias in floats; 0: broadcast; bias_sample -1: no bias
  int64_t biases;                            // samples of the bias: sample b reads number b mod biases
};

/// Rows of heads: head h of row t of sample b is at data + b * sample + t * row + h * width.
template <class T>
struct Heads {
  T* data = nullptr;
  int64_t sample = 0, row = 0;
  T* at(int64_t b, int64_t t, int64_t h, int64_t width) const { return data + b * sample + t * row + h * width; }
};

/// Keys and values of new tokens, and of those before them in the rows of a cache (ops/cached_attention.h). Steps in elements.
struct CachedRows {
  DType dtype;
  const void* cache;    // [batch][capacity][2 first_value][width]
  const float* scales;  // [batch][capacity][2 first_value]; of i8
  int64_t capacity, first_value;
  const void *k, *v;        // new ones, as the cache stores them: of token 0, head 0
  const float* new_scales;  // [batch][tokens][2 first_value]
  int64_t tokens, row;      // of a sample; from a token to the next
};

template <class T>
struct Arrays {
  Heads<const T> q, k, v, o, grad;
  Heads<T> out, dq, dk, dv;
  const float *bias = nullptr, *lse = nullptr, *grad_lse = nullptr;
  float *lse_out = nullptr, *dbias = nullptr;
  const int64_t *lengths = nullptr, *position = nullptr;
  uint64_t key = 0, first_sample = 0;  // of dropout
  const CachedRows* cached = nullptr;  // in place of k and v; `position` is given
};

/// Rows of a tile of queries, and the memory of a thread, for the vectors of this machine. Memory in floats.
struct Sizes {
  int64_t rows = 0;
  int64_t forward = 0, backward = 0, bias = 0;
  int64_t sums = 0;  // of the gradients of all keys and values of one key head
};
Sizes sizes_of(const Problem& problem);
bool has_wide_vectors();

/// Query rows [row, row + sizes.rows) of head h of sample b.
struct Rows {
  int64_t b, h, row;
};
/// Writes o and lse of these rows.
template <class T>
void forward(const Problem& problem, const Arrays<T>& arrays, const Rows& rows, float* memory);
/// Writes dq of these rows and adds to the gradients of their keys and values: `sums` floats, which begin as 0.
template <class T>
void backward(const Problem& problem, const Arrays<T>& arrays, const Rows& rows, float* memory, float* sums);
/// Adds the gradient of the scores of these rows to arrays.dbias.
template <class T>
void bias_backward(const Problem& problem, const Arrays<T>& arrays, const Rows& rows, float* memory);
/// Writes dk and dv of key head g of sample b: the sum of `parts` arrays of sums, in order.
template <class T>
void write_sums(const Problem& problem, const Arrays<T>& arrays, int64_t b, int64_t g, const float* sums, int64_t parts);

}  // namespace galley::attention_tiles
