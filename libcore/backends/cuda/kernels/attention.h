#pragma once
// Attention of new tokens with a cache, in three launches: the new heads are converted to what the cache stores; a block computes a head of
// a token from them and the cache of before; then they are written to the cache. The cache's traffic bounds it.

#include "libcore/backends/cuda/kernels/functions.h"

namespace galley::device {

/// The new tokens of a sequence: 0 .. count - 1 at positions start, start + 1, ...
GALLEY_DEVICE int64_t new_tokens(const CachedAttentionCall& call, int64_t sequence) {
  if (call.position[sequence] < 0) return 0;
  const int64_t count = call.last != nullptr ? call.last[sequence] + 1 : call.tokens;
  return count < call.tokens ? count : call.tokens;
}

/// A thread converts one head of a key or a value: to bf16, or to i8 with the scale largest / 127.
GALLEY_KERNEL(cache_heads, (const CachedAttentionCall call)) {
  const int64_t heads = 2 * call.kv_heads;
  for (int64_t i = first_element(); i < call.batch * call.tokens * heads; i += all_threads()) {
    const int64_t token = i / heads, head = i % heads;
    const bool key = head < call.kv_heads;
    const void* from = key ? call.k : call.v;
    const int64_t begin = (token * call.new_heads + (key ? call.first_key + head : call.first_value + head - call.kv_heads)) * call.width;
    float largest = 0, scale = 1, inverse = 1;
    bool finite = true;
    for (int64_t d = 0; call.cache_type == kI8 && d < call.width; ++d) {
      const float x = abs(load<float>(from, begin + d, call.type));
      finite = finite && x - x == 0;
      largest = x > largest ? x : largest;
    }
    if (call.cache_type == kI8) {
      inverse = largest > 0 && finite ? 127.0f / largest : 0.0f;
      scale = finite ? largest / 127.0f : largest - largest;  // NaN
    }
    for (int64_t d = 0; d < call.width; ++d) {
      const float x = load<float>(from, begin + d, call.type);
      const float code = call.cache_type == kI8 ? round(x * inverse) : call.cache_type == kBF16 ? from_bf16(to_bf16(x)) : x;
      call.stored[i * call.width + d] = finite ? code * scale : scale;
    }
  }
}

/// Element d of head `head` of the token at a position of a sequence whose new tokens begin at `start`.
GALLEY_DEVICE float cached(const CachedAttentionCall& call, int64_t sequence, int64_t start, int64_t position, int64_t head, int64_t d) {
  const int64_t heads = 2 * call.kv_heads;
  if (position >= start) return call.stored[((sequence * call.tokens + position - start) * heads + head) * call.width + d];
  const int64_t row = (sequence * call.capacity + position % call.capacity) * heads + head;
  const float stored = load<float>(call.cache, row * call.width + d, call.cache_type);
  return call.scales != nullptr ? stored * call.scales[row] : stored;
}

/// A block computes one head of one token; blocks of padding write 0.
GALLEY_KERNEL(attend_cached, (const CachedAttentionCall call)) {
  GALLEY_SHARED(float, shared, kThreads);
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t o = blockIdx.x; o < call.batch * call.tokens * call.heads; o += gridDim.x) {
    const int64_t head = o % call.heads, token = o / call.heads % call.tokens, sequence = o / call.heads / call.tokens;
    const int64_t start = call.position[sequence], position = start + token;
    if (token >= new_tokens(call, sequence)) {
      for (int64_t d = thread; d < call.width; d += kThreads) store(0.0f, call.to, o * call.width + d, call.type);
      continue;  // the same for all threads of the block
    }
    const int64_t first = position - call.reach + 1 > 0 ? position - call.reach + 1 : 0, keys = position - first + 1;
    const int64_t key_head = head / (call.heads / call.kv_heads), q = ((sequence * call.tokens + token) * call.q_heads + head) * call.width;
    float* scores = call.scores + o * call.reach;
    float largest = 0;
    bool any = false;
    for (int64_t key = thread; key < keys; key += kThreads) {
      float score = 0;
      for (int64_t d = 0; d < call.width; ++d)
        score += load<float>(call.q, q + d, call.type) * cached(call, sequence, start, first + key, key_head, d);
      score *= call.scale;
      scores[key] = score;
      largest = !any || score > largest || score != score ? score : largest;
      any = true;
    }
    shared[thread] = largest;
    for (int half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (thread < half && thread + half < keys) {
        const float other = shared[thread + half];
        shared[thread] = other > shared[thread] || other != other ? other : shared[thread];
      }
    }
    __syncthreads();
    largest = shared[0];
    __syncthreads();
    float sum = 0;
    for (int64_t key = thread; key < keys; key += kThreads) sum += scores[key] = exp(scores[key] - largest);
    shared[thread] = sum;
    for (int half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (thread < half) shared[thread] += shared[thread + half];
    }
    __syncthreads();
    const float total = shared[0];
    for (int64_t d = thread; d < call.width; d += kThreads) {
      float value = 0;
      for (int64_t key = 0; key < keys; ++key)
        value += scores[key] * cached(call, sequence, start, first + key, call.kv_heads + key_head, d);
      store(value / total, call.to, o * call.width + d, call.type);
    }
    __syncthreads();  // before the next head overwrites the sums
  }
}

/// Writes the new heads. Of tokens that share a row of a ring, the last one.
GALLEY_KERNEL(write_cache, (const CachedAttentionCall call)) {
  const int64_t heads = 2 * call.kv_heads;
  for (int64_t i = first_element(); i < call.batch * call.tokens * heads; i += all_threads()) {
    const int64_t head = i % heads, token = i / heads % call.tokens, sequence = i / heads / call.tokens;
    const int64_t count = new_tokens(call, sequence);
    if (token >= count || token + call.capacity < count) continue;
    const int64_t row = (sequence * call.capacity + (call.position[sequence] + token) % call.capacity) * heads + head;
    float scale = 1;
    if (call.cache_type == kI8) {
      float largest = 0;
      for (int64_t d = 0; d < call.width; ++d) {
        const float x = call.stored[i * call.width + d];
        largest = abs(x) > largest || x != x ? abs(x) : largest;
      }
      scale = largest / 127.0f;  // the largest code is 127
      call.scales[row] = scale;
    }
    for (int64_t d = 0; d < call.width; ++d) {
      const float x = call.stored[i * call.width + d];
      const float code = call.cache_type == kI8 ? (scale > 0 ? round(x / scale) : 0.0f) : x;
      store(code, call.cache, row * call.width + d, call.cache_type);
    }
  }
}

}  // namespace galley::device
