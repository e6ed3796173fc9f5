#pragma once
// Definitions of composite operators (OpDef::definition), by family, and the helpers that they share. For definitions in ops and in back
// ends.

#include <vector>

#include "libcore/ops/attrs.h"
#include "libcore/ops/expansion.h"

namespace galley {

struct DequantizeWeightAttrs;

namespace definition {

// define_products.cpp
void conv2d(Expansion& e);
void conv2d_backward_data(Expansion& e);
void conv3d(Expansion& e);
void conv3d_backward_data(Expansion& e);
void conv3d_backward_weights(Expansion& e);
void linear(Expansion& e);
// define_attention.cpp
void attention(Expansion& e);
void attention_backward(Expansion& e);
// define_norm.cpp
void batch_norm(Expansion& e);
void batch_norm_backward(Expansion& e);
void batch_norm_inference(Expansion& e);
void batch_norm_update(Expansion& e);
void layer_norm(Expansion& e);
void layer_norm_backward(Expansion& e);
void group_norm(Expansion& e);
void group_norm_backward(Expansion& e);
// define_loss.cpp
void softmax(Expansion& e);
void softmax_backward(Expansion& e);
void log_softmax(Expansion& e);
void log_softmax_backward(Expansion& e);
void cross_entropy(Expansion& e);
void cross_entropy_backward(Expansion& e);
void mse_loss(Expansion& e);
void bce_with_logits(Expansion& e);
// define_shape.cpp
void dropout(Expansion& e);
void stochastic_depth(Expansion& e);
void embedding(Expansion& e);
void embedding_backward(Expansion& e);
void max_pool2d_backward(Expansion& e);
void adaptive_max_pool2d_backward(Expansion& e);
void channel_shuffle(Expansion& e);
void mean(Expansion& e);
void argmax(Expansion& e);
void sum_squares(Expansion& e);
void sum_to(Expansion& e);
// define_recurrent.cpp
void lstm(Expansion& e);
void lstm_backward(Expansion& e);
void gru(Expansion& e);
void gru_backward(Expansion& e);
void rnn(Expansion& e);
void rnn_backward(Expansion& e);
// define_update.cpp
void sgd_update(Expansion& e);
void adam_update(Expansion& e);
void rmsprop_update(Expansion& e);
void ema_update(Expansion& e);
void accumulate(Expansion& e);
void clear(Expansion& e);
void clip_coefficient(Expansion& e);
void finite_gate(Expansion& e);
// define_quantized.cpp
void quantize(Expansion& e);
void dequantize(Expansion& e);
void dequantize_weight(Expansion& e);
/// The weight of that shape, f64, from the inputs `weight`, scale and zero point, which follow each other.
Value dequantized_weight(Expansion& e, size_t weight, const DequantizeWeightAttrs& attrs, const Shape& shape);
void quantized_conv2d(Expansion& e);
void quantized_linear(Expansion& e);
void dynamic_quantized_linear(Expansion& e);
void quantized_add(Expansion& e);
void quantized_mul(Expansion& e);
void quantized_concat(Expansion& e);
void quantized_avg_pool2d(Expansion& e);
void quantized_adaptive_avg_pool2d(Expansion& e);
void fake_quantize(Expansion& e);
void fake_quantize_backward(Expansion& e);
void fake_quantize_scale_backward(Expansion& e);
void observe_range(Expansion& e);
void keep_range(Expansion& e);
void qparams_from_range(Expansion& e);
// define_quantized_recurrent.cpp
void dynamic_quantized_lstm(Expansion& e);
void dynamic_quantized_gru(Expansion& e);
void dynamic_quantized_rnn(Expansion& e);

// ---- shared by families

/// The activation of x; x itself for kNone.
Value activated(Activation activation, Value x);
/// A vector [C] as [1,C,1,..], for broadcasting against an array [N,C,..] of that rank.
Value per_channel(Value vector, int rank);
/// All dimensions but 1.
std::vector<int64_t> all_but_channels(int rank);
/// The sum over these axes; x itself if there are none (`sum` would take all).
Value sum_over(Value x, const std::vector<int64_t>& axes, bool keepdim = true);

/// Step t of [N,T,F] as [N,F].
Value step_of(Value sequence, int64_t t);
/// Gate g of [N,G H] as [N,H].
Value gate_of(Value gates, int64_t g, int64_t hidden);
/// Rows [N,F] of all steps as [N,T,F] of that dtype; `width` is F where there are no steps.
Value sequence_of(Graph& graph, DType dtype, const std::vector<Value>& steps, int64_t batch, int64_t width);
/// The step that a recurrent layer computes at `turn`.
inline int64_t step_at(int64_t turn, int64_t steps, bool reverse) { return reverse ? steps - 1 - turn : turn; }
/// x [M,I] in integers of its own range, times the integers weight [O,I], scaled; NaN everywhere where a value of x is not finite. All f64.
Value dynamic_product(Value x, Value weight, Value weight_scale, Value bias, bool reduced);

struct Moments {
  Value mean, var;  // biased; with reduced dimensions of size 1; 0 of nothing
};
Moments moments(Value x, const std::vector<int64_t>& axes);

}  // namespace definition
}  // namespace galley
