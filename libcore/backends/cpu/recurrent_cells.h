#pragma once
// The cells of recurrent layers: what one row of one step becomes, `hidden` units. Formulas and the order of gates: ops/recurrent.h. For
// backends/cpu.

#include <cstdint>

namespace galley::recurrent {

/// gates [i, f, g, o]: arguments in, activated gates out. `before`: the cell before the step, `cell` after it, which may be the same.
void lstm_row(float* gates, const float* before, float* cell, float* y, int64_t hidden);
/// `state`: the gradient of the cell after the step in, before the step out. `d`: of the gates' arguments; may be `gates`.
void lstm_row_backward(const float* grad, const float* carried, const float* gates, const float* cell, const float* before, float* state,
                       float* d, int64_t hidden);

/// gates: arguments of r and z, the input's part of n, the state's part of n (kept); r, z, n out.
void gru_row(float* gates, const float* before, float* y, int64_t hidden);
/// `carried`: the gradient of h after the step in, the part of it that passes by z out. `input`, `of_state`: gradients of the arguments'
/// parts.
void gru_row_backward(const float* grad, float* carried, const float* gates, const float* before, float* input, float* of_state,
                      int64_t hidden);

/// y: arguments in, results out.
void tanh_row(float* y, int64_t hidden);
void relu_row(float* y, int64_t hidden);
void tanh_row_backward(const float* grad, const float* carried, const float* y, float* d, int64_t hidden);
void relu_row_backward(const float* grad, const float* carried, const float* y, float* d, int64_t hidden);

// Where the product with the state is not added to the input's part: x the input's part, q the state's, `state` h in and out, and `cell` c.
void lstm_row_of_parts(const float* x, const float* q, float* cell, float* state, float* y, int64_t hidden);
void gru_row_of_parts(const float* x, const float* q, float* state, float* y, int64_t hidden);
void tanh_row_of_parts(const float* x, const float* q, float* state, float* y, int64_t hidden);
void relu_row_of_parts(const float* x, const float* q, float* state, float* y, int64_t hidden);

}  // namespace galley::recurrent
