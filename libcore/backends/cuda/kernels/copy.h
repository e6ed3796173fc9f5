#pragma once
// Kernels that move, fill, convert and index elements. Memory traffic bounds them.

#include "libcore/backends/cuda/kernels/portable.h"

namespace galley::device {

template <class T>
GALLEY_DEVICE void copy_elements(const CopyCall& call) {
  if (call.gate != nullptr && *call.gate == 0) return;
  for (int64_t i = first_element(); i < call.elements; i += all_threads()) {
    int64_t from = 0, to = 0, rest = i;
    for (int d = call.dimensions - 1; d >= 0; --d) {
      const int64_t outer = d > 0 ? rest / call.sizes[d] : 0, place = rest - outer * call.sizes[d];
      from += place * call.from_steps[d];
      to += place * call.to_steps[d];
      rest = outer;
    }
    static_cast<T*>(call.to)[to] = static_cast<const T*>(call.from)[from];
  }
}
GALLEY_KERNEL(copy_1, (const CopyCall call)) { copy_elements<uint8_t>(call); }
GALLEY_KERNEL(copy_2, (const CopyCall call)) { copy_elements<uint16_t>(call); }
GALLEY_KERNEL(copy_4, (const CopyCall call)) { copy_elements<uint32_t>(call); }
GALLEY_KERNEL(copy_8, (const CopyCall call)) { copy_elements<uint64_t>(call); }

template <class T>
GALLEY_DEVICE void fill_elements(const FillCall& call) {
  for (int64_t i = first_element(); i < call.elements; i += all_threads()) static_cast<T*>(call.to)[i] = static_cast<T>(call.bits);
}
GALLEY_KERNEL(fill_1, (const FillCall call)) { fill_elements<uint8_t>(call); }
GALLEY_KERNEL(fill_2, (const FillCall call)) { fill_elements<uint16_t>(call); }
GALLEY_KERNEL(fill_4, (const FillCall call)) { fill_elements<uint32_t>(call); }
GALLEY_KERNEL(fill_8, (const FillCall call)) { fill_elements<uint64_t>(call); }

GALLEY_DEVICE bool is_real(Type type) { return type <= kBF16; }

GALLEY_KERNEL(cast_elements, (const CastCall call)) {
  for (int64_t i = first_element(); i < call.elements; i += all_threads()) {
    if (!is_real(call.from_type)) {
      store(load<int64_t>(call.from, i, call.from_type), call.to, i, call.to_type);
      continue;
    }
    double x = load<double>(call.from, i, call.from_type);
    if (call.rounded == kF32) x = static_cast<float>(x);
    if (call.rounded == kBF16) x = from_bf16(to_bf16(static_cast<float>(x)));
    if (call.rounded == kF16) x = from_f16(to_f16(static_cast<float>(x)));
    store(x, call.to, i, call.to_type);
  }
}

/// to[o, p, i] = from[o, index[o, p, i], i]. An index outside gives 0.
GALLEY_KERNEL(gather_elements, (const GatherCall call)) {
  const int64_t elements = call.outer * call.picked * call.inner;
  for (int64_t i = first_element(); i < elements; i += all_threads()) {
    const int64_t place = load<int64_t>(call.index, i, call.index_type), outer = i / (call.picked * call.inner), inner = i % call.inner;
    const bool inside = place >= 0 && place < call.whole;
    const int64_t from = (outer * call.whole + (inside ? place : 0)) * call.inner + inner;
    if (is_real(call.type)) {
      store(inside ? load<double>(call.from, from, call.type) : 0.0, call.to, i, call.type);
    } else {
      store(inside ? load<int64_t>(call.from, from, call.type) : int64_t{0}, call.to, i, call.type);
    }
  }
}

/// to[o, w, i] = the sum of from[o, p, i] with index[o, p, i] = w, in the order of p: a thread adds up one element of the result.
GALLEY_KERNEL(scatter_add_elements, (const GatherCall call)) {
  const int64_t elements = call.outer * call.whole * call.inner;
  for (int64_t i = first_element(); i < elements; i += all_threads()) {
    const int64_t outer = i / (call.whole * call.inner), place = i / call.inner % call.whole, inner = i % call.inner;
    float sum = 0;
    for (int64_t p = 0; p < call.picked; ++p) {
      const int64_t from = (outer * call.picked + p) * call.inner + inner;
      if (load<int64_t>(call.index, from, call.index_type) == place) sum += load<float>(call.from, from, call.type);
    }
    store(sum, call.to, i, call.type);
  }
}

GALLEY_KERNEL(one_hot_elements, (const OneHotCall call)) {
  const int64_t elements = call.outer * call.size * call.inner;
  for (int64_t i = first_element(); i < elements; i += all_threads()) {
    const int64_t outer = i / (call.size * call.inner), place = i / call.inner % call.size, inner = i % call.inner;
    const int64_t index = load<int64_t>(call.index, outer * call.inner + inner, call.index_type);
    store(index == place ? 1.0f : 0.0f, call.to, i, call.type);
  }
}

GALLEY_KERNEL(iota_elements, (const IotaCall call)) {
  const int64_t elements = call.outer * call.size * call.inner;
  for (int64_t i = first_element(); i < elements; i += all_threads()) store(i / call.inner % call.size, call.to, i, call.type);
}

GALLEY_KERNEL(lookup_elements, (const LookupCall call)) {
  const int low = call.from_type == kU8 ? 0 : -128;
  for (int64_t i = first_element(); i < call.elements; i += all_threads()) {
    static_cast<int8_t*>(call.to)[i] = call.table[load<int>(call.from, i, call.from_type) - low];
  }
}

}  // namespace galley::device
