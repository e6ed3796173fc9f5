#pragma once
// The arguments of kernels, for the host and the device.

#include <cstdint>

namespace galley::device {

/// Threads of a block in all launches.
inline constexpr int kThreads = 256;

/// Element types: the values of DType.
enum Type : int { kF32, kF64, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool };

inline constexpr int kMaxDimensions = 8;

/// y = f(inputs), with inputs that broadcast. Dimensions are from outer to inner in the order of y's memory, joined where all walk alike.
struct ElementwiseCall {
  const void* inputs[3];
  void* output;
  Type input_types[3];
  Type output_type;
  double numbers[2];
  int function;    // position in Functions
  int dimensions;  // 1: all operands are walked by one step
  int64_t elements;
  int64_t sizes[kMaxDimensions];
  int64_t steps[3][kMaxDimensions];  // in elements, of each input; 0: broadcast
};

/// dx = grad * slope(from), where `from` is x or y.
struct ElementwiseBackwardCall {
  const void *grad, *from;
  void* output;
  Type type;
  int function;
  double numbers[2];
  int64_t elements;
};

/// Elements between two arrays, each walked by its own steps along common dimensions, from outer to inner. A gate that is false: nothing is
/// copied.
struct CopyCall {
  const void* from;
  void* to;
  const uint8_t* gate;  // or null
  int64_t elements;
  int dimensions;
  int64_t sizes[kMaxDimensions];
  int64_t from_steps[kMaxDimensions], to_steps[kMaxDimensions];  // in elements
};

/// All elements = the low bytes of `bits`.
struct FillCall {
  void* to;
  int64_t elements;
  uint64_t bits;
};

/// to = from in another type: real numbers to integers by truncation, to bool by != 0. `rounded`: rounded to this type before.
struct CastCall {
  const void* from;
  void* to;
  Type from_type, to_type, rounded;
  int64_t elements;
};

enum Reduction : int { kSum, kMaximum, kMinimum };
/// A reduction of `reduced` elements for each of `outputs` results: result o begins at the place that the kept dimensions give; the others
/// are walked by the reduced ones. `to_steps`: of the result, along the kept dimensions.
struct ReduceCall {
  const void* from;
  void* to;
  Type type;
  Reduction kind;
  int64_t outputs, reduced;
  int kept_dimensions, reduced_dimensions;
  int64_t kept_sizes[kMaxDimensions], kept_steps[kMaxDimensions], to_steps[kMaxDimensions];
  int64_t reduced_sizes[kMaxDimensions], reduced_steps[kMaxDimensions];
};

/// y[b] = a[b] b[b] for matrices m x k and k x n; then a bias (or null), an element for each column, and relu. Steps in elements; y is
/// contiguous.
struct MatmulCall {
  const void *a, *b, *bias;
  void* y;
  Type a_type, b_type, bias_type, y_type;
  int relu;
  int64_t batch, m, n, k;
  int64_t a_batch, a_row, a_column, b_batch, b_row, b_column;
};

/// The sizes and steps of a convolution: of x [N,C,H,W], the weight [O,C/groups,kh,kw] and y [N,O,h,w].
struct ConvCall {
  const void *x, *weight, *y;  // two of them are read, the third is written
  Type x_type, weight_type, y_type;
  int64_t groups, x_size[4], weight_size[4], y_size[4];
  int64_t x_steps[4], weight_steps[4], y_steps[4];
  int64_t stride[2], padding[2], dilation[2];
};

/// Elements along an axis: an array is [outer, size, inner], where the axis is the middle.
struct GatherCall {
  const void *from, *index;
  void* to;
  Type type, index_type;
  int64_t outer, picked, whole, inner;  // sizes of the axis of the index and of the array that is indexed
};

/// One element per place: 1 at the index.
struct OneHotCall {
  const void* index;
  void* to;
  Type index_type, type;
  int64_t outer, size, inner;
};

/// Elements are their index along the axis.
struct IotaCall {
  void* to;
  Type type;
  int64_t outer, size, inner;
};

/// y = table[x], where x is an integer of 8 bits.
struct LookupCall {
  const void* from;
  void* to;
  Type from_type;
  int64_t elements;
  int8_t table[256];
};

/// Random bits of dropout masks (ops/random_mask.h).
struct RandomBitsCall {
  const int64_t* rng;  // seed, step, global index of sample 0
  void* to;
  int64_t stream, elements, per_sample;
  int whole_batch;
};

/// The k largest along the middle axis of [outer, size, inner], in descending order, and their indices.
struct TopkCall {
  const void* from;
  void *values, *indices;  // i64
  Type type;
  int64_t outer, size, inner, k;
};

inline constexpr int kMaxPairs = 128;
/// Rows of rotary positions: cosines, then sines.
struct RotaryTableCall {
  const int64_t *positions, *lengths;  // null: row p has position p; null: no sequence is stretched
  float* to;
  int64_t rows, per_sequence, limit;
  int pairs;
  double growth, factor;
  double frequencies[kMaxPairs];
};

/// Attention of new tokens with a cache (ops/cached_attention.h). `stored`: scratch, the new heads of keys and values as the cache stores
/// them, f32 [batch, tokens, 2 kv_heads, width]; `scores`: scratch, f32 [batch, tokens, heads, reach].
struct CachedAttentionCall {
  const void *q, *k, *v;
  void *cache, *to;
  float *scales, *stored, *scores;
  const int64_t *position, *last;  // last: null: all tokens are new
  Type type, cache_type;
  int64_t batch, tokens, heads, kv_heads, width, capacity, q_heads, new_heads, first_key, first_value, reach;
  float scale;
};

enum Softmax : int { kSoftmax, kLogSoftmax };
/// Along the middle axis of [outer, size, inner]. Backward: from is y, and grad is read.
struct SoftmaxCall {
  const void *from, *grad;
  void* to;
  Type type;
  Softmax kind;
  int64_t outer, size, inner;
};

/// Cross entropy of logits [outer, classes, inner] with class indices [outer, inner]. Forward: `to` is the loss of each position, or with
/// `sums`, scratch [2, positions], their total. Backward: `to` is the gradient of the logits; `sums`: scratch [1], the sum of weights.
struct CrossEntropyCall {
  const void *logits, *target, *weight, *grad;  // weight: null: 1
  void* to;
  float* sums;
  Type type, target_type, weight_type;
  int mean, each;  // divides by the sum of the targets' weights; grad has an element for each position
  int64_t positions, classes, inner, ignored;
  float smoothing;
};

/// to[row] = the sum of the rows of grad [tokens, width] whose index is `row`. Scratch: begins [rows + 1], 0 at first; ranks, order
/// [tokens].
struct EmbeddingCall {
  const void *grad, *index;
  void* to;
  unsigned *begins, *ranks, *order;
  Type type, to_type, index_type;
  int64_t tokens, rows, width;
};

/// Sums of squares: parts of an array to sums[first_part ...]; then `parts` sums to one number.
struct SquaresCall {
  const void* from;
  void* to;
  double* sums;
  Type type;  // of `from`, then of `to`
  int64_t elements, parts, part_size, first_part;
};

/// Layer norm of rows of `size` elements. gamma, beta: null: 1, 0. Backward: grad is read, y is dx; `partial`: scratch [parts, 2 size].
struct LayerNormCall {
  const void *x, *gamma, *beta, *grad;
  void *y, *mean, *rstd, *dgamma, *dbeta;
  float* partial;
  Type type, vector_type, statistics_type;
  int64_t rows, size, parts;
  float eps;
};

/// Batch norm of [N, C, ...]: element i of channel c is at c * channel_step + the place of i along the other dimensions.
/// Backward: grad is read, y is dx.
struct BatchNormCall {
  const void *x, *gamma, *beta, *grad;
  void *y, *mean, *var, *dgamma, *dbeta;
  Type type, vector_type;
  int relu;
  int64_t channels, count, channel_step;
  int dimensions;
  int64_t sizes[kMaxDimensions], steps[kMaxDimensions];
  float eps;
};

/// An optimizer step in place. Null: scale 1; gate open.
struct UpdateCall {
  void* parameter;
  const void* grad;
  void *first, *second;  // moments, or the momentum buffer
  const void *lr, *grad_scale;
  const int64_t* step;
  const uint8_t* gate;
  Type type, grad_type;  // type: of the parameter and its states
  int64_t elements;
  double beta1, beta2, eps, weight_decay;  // SGD: momentum, dampening
  int decoupled, nesterov;
};

/// Resampling of images, bilinear or nearest; backward: from is dy, to is dx, and sizes are those of the forward pass.
struct ResizeCall {
  const void* from;
  void* to;
  Type type;
  int nearest, align_corners;
  int64_t planes, channels;
  int64_t in_size[2], out_size[2], in_steps[4], out_steps[4];
};

enum Pool : int { kMaxPool, kAveragePool, kAdaptiveMaxPool, kAdaptiveAveragePool };
/// Pools of [N,C,H,W]. Forward: x -> y and, of maxima, `index`: the place in the window or, adaptive, in the image. Backward of means:
/// x is dy, y is dx, and sizes are those of the forward pass.
struct PoolCall {
  const void* x;
  void *y, *index;
  Type type, index_type;
  Pool kind;
  int64_t planes, channels;  // planes = N * C
  int64_t x_size[2], y_size[2], x_steps[4], y_steps[4], index_steps[4];
  int64_t kernel[2], stride[2], padding[2], dilation[2];
  int count_include_pad;
};

}  // namespace galley::device
