// The cells of recurrent layers (recurrent_cells.h): plain loops over the units of a row, which the compiler vectorizes with the elementary
// functions of vector_math.h. O(H) for a row, bound by the arithmetic of sigmoid and tanh.

#include "libcore/backends/cpu/recurrent_cells.h"

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/recurrent_cells.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/vector_math.h"

HWY_BEFORE_NAMESPACE();
namespace galley::recurrent {
namespace HWY_NAMESPACE {

void lstm_row(float* gates, const float* before, float* cell, float* y, int64_t hidden) {
  float *input = gates, *forget = gates + hidden, *candidate = gates + 2 * hidden, *out = gates + 3 * hidden;
  GALLEY_ELEMENTWISE
  for (int64_t u = 0; u < hidden; ++u) {
    const float i = sigmoid_of(input[u]), f = sigmoid_of(forget[u]), g = tanh_of(candidate[u]), o = sigmoid_of(out[u]);
    const float c = f * before[u] + i * g;
    input[u] = i;
    forget[u] = f;
    candidate[u] = g;
    out[u] = o;
    cell[u] = c;
    y[u] = o * tanh_of(c);
  }
}

void lstm_row_backward(const float* grad, const float* carried, const float* gates, const float* cell, const float* before, float* state,
                       float* d, int64_t hidden) {
  GALLEY_ELEMENTWISE
  for (int64_t u = 0; u < hidden; ++u) {
    const float i = gates[u], f = gates[hidden + u], g = gates[2 * hidden + u], o = gates[3 * hidden + u];
    const float t = tanh_of(cell[u]), dh = grad[u] + carried[u], dc = state[u] + dh * o * (1.0f - t * t);
    d[u] = dc * g * i * (1.0f - i);
    d[hidden + u] = dc * before[u] * f * (1.0f - f);
    d[2 * hidden + u] = dc * i * (1.0f - g * g);
    d[3 * hidden + u] = dh * t * o * (1.0f - o);
    state[u] = dc * f;
  }
}

void gru_row(float* gates, const float* before, float* y, int64_t hidden) {
  float *reset = gates, *update = gates + hidden, *candidate = gates + 2 * hidden, *state = gates + 3 * hidden;
  GALLEY_ELEMENTWISE
  for (int64_t u = 0; u < hidden; ++u) {
    const float r = sigmoid_of(reset[u]), z = sigmoid_of(update[u]), n = tanh_of(candidate[u] + r * state[u]);
    reset[u] = r;
    update[u] = z;
    candidate[u] = n;
    y[u] = (1.0f - z) * n + z * before[u];
  }
}

void gru_row_backward(const float* grad, float* carried, const float* gates, const float* before, float* input, float* of_state,
                      int64_t hidden) {
  GALLEY_ELEMENTWISE
  for (int64_t u = 0; u < hidden; ++u) {
    const float r = gates[u], z = gates[hidden + u], n = gates[2 * hidden + u], q = gates[3 * hidden + u];
    const float dh = grad[u] + carried[u], dn = dh * (1.0f - z) * (1.0f - n * n), dz = dh * (before[u] - n) * z * (1.0f - z),
                dr = dn * q * r * (1.0f - r);
    input[u] = dr;
    input[hidden + u] = dz;
    input[2 * hidden + u] = dn;
    of_state[u] = dr;
    of_state[hidden + u] = dz;
    of_state[2 * hidden + u] = dn * r;
    carried[u] = dh * z;
  }
}

void tanh_row(float* y, int64_t hidden) {
  for (int64_t u = 0; u < hidden; ++u) y[u] = tanh_of(y[u]);
}

void relu_row(float* y, int64_t hidden) {
  for (int64_t u = 0; u < hidden; ++u) y[u] = y[u] < 0.0f ? 0.0f : y[u];
}

void tanh_row_backward(const float* grad, const float* carried, const float* y, float* d, int64_t hidden) {
  GALLEY_ELEMENTWISE
  for (int64_t u = 0; u < hidden; ++u) d[u] = (grad[u] + carried[u]) * (1.0f - y[u] * y[u]);
}

void relu_row_backward(const float* grad, const float* carried, const float* y, float* d, int64_t hidden) {
  GALLEY_ELEMENTWISE
  for (int64_t u = 0; u < hidden; ++u) d[u] = y[u] > 0.0f ? grad[u] + carried[u] : 0.0f;
}

void lstm_row_of_parts(const float* x, const float* q, float* cell, float* state, float* y, int64_t hidden) {
  GALLEY_ELEMENTWISE
  for (int64_t u = 0; u < hidden; ++u) {
    const float i = sigmoid_of(x[u] + q[u]), f = sigmoid_of(x[hidden + u] + q[hidden + u]),
                g = tanh_of(x[2 * hidden + u] + q[2 * hidden + u]);
    const float c = f * cell[u] + i * g, h = sigmoid_of(x[3 * hidden + u] + q[3 * hidden + u]) * tanh_of(c);
    cell[u] = c;
    state[u] = h;
    y[u] = h;
  }
}

void gru_row_of_parts(const float* x, const float* q, float* state, float* y, int64_t hidden) {
  GALLEY_ELEMENTWISE
  for (int64_t u = 0; u < hidden; ++u) {
    const float r = sigmoid_of(x[u] + q[u]), z = sigmoid_of(x[hidden + u] + q[hidden + u]),
                n = tanh_of(x[2 * hidden + u] + r * q[2 * hidden + u]);
    const float h = (1.0f - z) * n + z * state[u];
    state[u] = h;
    y[u] = h;
  }
}

void tanh_row_of_parts(const float* x, const float* q, float* state, float* y, int64_t hidden) {
  GALLEY_ELEMENTWISE
  for (int64_t u = 0; u < hidden; ++u) state[u] = y[u] = tanh_of(x[u] + q[u]);
}

void relu_row_of_parts(const float* x, const float* q, float* state, float* y, int64_t hidden) {
  GALLEY_ELEMENTWISE
  for (int64_t u = 0; u < hidden; ++u) {
    const float a = x[u] + q[u];
    state[u] = y[u] = a < 0.0f ? 0.0f : a;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::recurrent
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace galley::recurrent {

HWY_EXPORT(lstm_row);
HWY_EXPORT(lstm_row_backward);
HWY_EXPORT(gru_row);
HWY_EXPORT(gru_row_backward);
HWY_EXPORT(tanh_row);
HWY_EXPORT(relu_row);
HWY_EXPORT(tanh_row_backward);
HWY_EXPORT(relu_row_backward);
HWY_EXPORT(lstm_row_of_parts);
HWY_EXPORT(gru_row_of_parts);
HWY_EXPORT(tanh_row_of_parts);
HWY_EXPORT(relu_row_of_parts);

void lstm_row(float* gates, const float* before, float* cell, float* y, int64_t hidden) {
  HWY_DYNAMIC_DISPATCH(lstm_row)(gates, before, cell, y, hidden);
}
void lstm_row_backward(const float* grad, const float* carried, const float* gates, const float* cell, const float* before, float* state,
                       float* d, int64_t hidden) {
  HWY_DYNAMIC_DISPATCH(lstm_row_backward)(grad, carried, gates, cell, before, state, d, hidden);
}
void gru_row(float* gates, const float* before, float* y, int64_t hidden) { HWY_DYNAMIC_DISPATCH(gru_row)(gates, before, y, hidden); }
void gru_row_backward(const float* grad, float* carried, const float* gates, const float* before, float* input, float* of_state,
                      int64_t hidden) {
  HWY_DYNAMIC_DISPATCH(gru_row_backward)(grad, carried, gates, before, input, of_state, hidden);
}
void tanh_row(float* y, int64_t hidden) { HWY_DYNAMIC_DISPATCH(tanh_row)(y, hidden); }
void relu_row(float* y, int64_t hidden) { HWY_DYNAMIC_DISPATCH(relu_row)(y, hidden); }
void tanh_row_backward(const float* grad, const float* carried, const float* y, float* d, int64_t hidden) {
  HWY_DYNAMIC_DISPATCH(tanh_row_backward)(grad, carried, y, d, hidden);
}
void relu_row_backward(const float* grad, const float* carried, const float* y, float* d, int64_t hidden) {
  HWY_DYNAMIC_DISPATCH(relu_row_backward)(grad, carried, y, d, hidden);
}
void lstm_row_of_parts(const float* x, const float* q, float* cell, float* state, float* y, int64_t hidden) {
  HWY_DYNAMIC_DISPATCH(lstm_row_of_parts)(x, q, cell, state, y, hidden);
}
void gru_row_of_parts(const float* x, const float* q, float* state, float* y, int64_t hidden) {
  HWY_DYNAMIC_DISPATCH(gru_row_of_parts)(x, q, state, y, hidden);
}
void tanh_row_of_parts(const float* x, const float* q, float* state, float* y, int64_t hidden) {
  HWY_DYNAMIC_DISPATCH(tanh_row_of_parts)(x, q, state, y, hidden);
}
void relu_row_of_parts(const float* x, const float* q, float* state, float* y, int64_t hidden) {
  HWY_DYNAMIC_DISPATCH(relu_row_of_parts)(x, q, state, y, hidden);
}

}  // namespace galley::recurrent

#endif  // HWY_ONCE
