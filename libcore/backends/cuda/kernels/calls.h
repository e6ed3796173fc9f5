#pragma once
// The arguments of kernels, for the host and the device. NVRTC, which takes functions for the host's, compiles it: there is none here.

#include <cstdint>

namespace galley::device {

/// Threads of a block in all launches.
inline constexpr int kThreads = 256;

/// Element types: the values of DType. f8_e4m3 is none of them: only the kernels of f8.h read and write it.
enum Type : int { kF32, kF64, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool };

inline constexpr int kMaxDimensions = 8;

/// Elements that a thread reads or writes at once (kernels/packs.h).
inline constexpr int kPack = 8;

/// A number 1 .. 2^31 by which kernels divide others below 2^31 (kernels/divide.h).
struct Divisor {
  uint32_t value, multiplier, shift;
};

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

inline constexpr int kMostChainInputs = 6, kMostChainSteps = 8;
/// A function of a chain. Operands: inputs, then results of steps, from kMostChainInputs on.
struct ChainStepCall {
  enum Kind : int { kOne, kTwo, kBackward };
  Kind kind;
  int function;  // position in Functions
  int operands[2];
  float numbers[2];
};
/// The last result of steps, each of which rounds to the type of all arrays. Dimensions as in ElementwiseCall.
struct ChainCall {
  const void* inputs[kMostChainInputs];
  void* output;
  Type type;
  int inputs_count, steps_count, dimensions;
  int64_t elements;
  ChainStepCall chain[kMostChainSteps];
  int64_t sizes[kMaxDimensions];
  int64_t steps[kMostChainInputs][kMaxDimensions];
};

/// Elements between two arrays, each walked by its own steps along common dimensions, from outer to inner. A gate that is false: nothing is
/// copied.
struct CopyCall {
  const void* from;
  void* to;
  const uint8_t* gate;  // or null
  int64_t elements;     // 2^31 and more: without divisors
  int dimensions;
  int64_t sizes[kMaxDimensions];
  int64_t from_steps[kMaxDimensions], to_steps[kMaxDimensions];  // in elements
  Divisor divisors[kMaxDimensions];
};
/// The same where elements beside each other in `to`, along the last dimension, are apart in `from`, and those of the dimension `across`
/// are beside each other in `from`: in tiles, of which `tiles` are along each dimension (1 along others).
inline constexpr int kCopyTileOfShort = 64, kCopyTileOfLong = 32;  // of elements of 1 and 2 bytes; of 4 and 8
struct CopyTilesCall {
  CopyCall copy;
  int across;
  Divisor tiles[kMaxDimensions];
  int64_t tile_count;
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

inline constexpr int kMostPixelTables = 4;
/// to = (from - mean) / std, of bytes that are divided by 255 first if `scale` is set. Element i has the constants i / inner % tables.
/// Fewer than 2^31 elements.
struct PixelsCall {
  const uint8_t* from;
  void* to;
  Type type;
  int scale, packs;  // packs: both addresses are multiples of 16
  int64_t elements;
  Divisor tables, inner;
  float mean[kMostPixelTables], std[kMostPixelTables];
};

/// Rows of elements of 16 bits, from lines of one length to lines of another one, with at most 32 zeros where these are longer than the
/// rows and `pad` is set. The result begins at a multiple of 4 bytes.
struct CopyLinesCall {
  const uint16_t* from;
  uint16_t* to;
  int64_t rows, columns, from_line, to_line;
  int pad;
};

/// How blocks share the elements of channels. A block has `lanes` threads beside each other, which have a pack of channels each, and
/// kThreads / lanes rows of them. In planes, the elements of a pack are of one channel, and rows are beside each other. Unit j of channel
/// c, a pack or one element, is at j / inner * outer_step + j % inner * unit + c * channel_step. Block b has part b % parts of the units
/// and tile b / parts of channels.
struct ChannelWalk {
  int packs, lanes, planes;
  int channels, units, parts, part_units;
  int64_t outer_step, unit, channel_step;
  Divisor inner;
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

/// Reductions of all channels of `batches` views, in `blocks` blocks each. Views are batch_step apart, results to_batch and to_channel.
/// `partial`: scratch, f32 [parts, batches, channels], if there are several parts.
struct ReduceChannelsCall {
  const void* from;
  void* to;
  float* partial;
  Type type;
  Reduction kind;
  ChannelWalk walk;
  int batches, blocks;
  int64_t batch_step, to_batch, to_channel;
};

/// dx = grad * slope of gelu at x, of rows of channels (no planes), and the sums of dx over rows: in `sums`, or, if there are several
/// parts, in `partial`, f32 [parts, channels].
struct GeluSumsCall {
  const void *grad, *x;
  void *dx, *sums;
  float* partial;
  Type type;
  int by_tanh;
  ChannelWalk walk;
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
  // Of the result of the forward convolution, as EpilogueCall.
  const void *bias, *residual;
  Type bias_type;
  int activation;
};

/// y = activation(y + bias + residual) in place: a bias for each channel, which element i has as i / inner % channels. Null: none.
struct EpilogueCall {
  void* y;
  const void *bias, *residual;
  Type type, bias_type;  // type: of y and the residual
  int activation;
  int64_t elements, channels, inner;
};

/// Elements along an axis: an array is [outer, size, inner], where the axis is the middle.
struct GatherCall {
  const void *from, *index;
  void* to;
  Type type, index_type;
  int64_t outer, picked, whole, inner;  // sizes of the axis of the index and of the array that is indexed
};

/// Sums that do not depend on their order: of integers of 64 bits, in steps of the largest number / 2^36, where that is the product of
/// largest[0] and largest[1]. `place`: which of them is the largest of |from|.
struct FixedSumCall {
  const float* from;
  float* to;
  unsigned long long* sums;
  float *parts, *largest;
  int part_count, place;
  int64_t numbers, elements;
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

/// Dropout of samples of `per_sample` elements; an element is kept where 24 random bits are at least `least`, and multiplied by `scale`.
struct DropoutCall {
  const void* from;
  void* to;
  const int64_t* rng;  // as above
  Type type;
  uint32_t least;
  float scale;
  int64_t stream, elements, per_sample;
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

/// Attention by tiles, and its gradients. Element d of row i of head h of sample b of an array: ((b * rows + i) * heads + h) * width + d,
/// where the heads of the array are q_heads, k_heads or v_heads; keys begin at head first_key of theirs, values at first_value.
struct AttentionCall {
  const void *q, *k, *v, *bias, *grad, *o;
  const float *lse, *grad_lse;              // grad_lse: or null
  const int64_t *lengths, *position, *rng;  // or null
  void *to, *dq, *dk, *dv, *dbias;          // forward: to; dbias: or null
  float *lse_to, *along;                    // along: scratch [batch, heads, queries], sum of grad o, less grad_lse
  Type type, bias_type;                     // of all other arrays, and of bias and dbias
  int64_t batch, queries, keys, heads, kv_heads, width, value_width;
  int64_t q_heads, k_heads, v_heads, first_key, first_value;
  int64_t window, bias_samples, bias_heads, bias_rows;  // sizes of the bias, each 1 or the whole; samples: also a divisor of batch
  int64_t stream, first_head;                           // of dropout
  uint32_t least;                                       // dropout keeps where 24 random bits are at least that
  float scale, softcap, kept;                           // kept: the factor of what dropout keeps; 0: everything is dropped
  int causal, pad_queries, drops;
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
  Type type, target_type, weight_type, loss_type;  // loss_type: of the loss, or of grad
  int mean, each;                                  // divides by the sum of the targets' weights; grad has an element for each position
  int64_t positions, classes, inner, ignored;
  float smoothing;
};

/// to[row] = the sum of the rows of grad [tokens, width] whose index is `row`. Scratch: counts [rows], ranks [tokens] and cursor [1], 0 at
/// first; begins [rows], order [tokens].
struct EmbeddingCall {
  const void *grad, *index;
  void* to;
  unsigned *counts, *ranks, *cursor, *begins, *order;
  Type type, to_type, index_type;
  int64_t tokens, rows, width;
};

/// to[token] = table[index[token]], copied in words. An index outside the table gives words with all bits set.
struct EmbeddingLookupCall {
  const void *table, *index;
  void* to;
  Type index_type;
  int64_t tokens, rows, words;  // words: of a row
};

/// Sums of squares: parts of an array to sums[first_part ...]; then `parts` sums to one number.
inline constexpr int kMostSquares = 64;  // arrays of a launch
struct SquaresCall {
  const void* from[kMostSquares];
  Type types[kMostSquares];
  int64_t elements[kMostSquares], first_part[kMostSquares];  // the parts of an array are those up to the first of the next one
  void* to;                                                  // the total, in f32
  double* sums;
  int64_t begin, parts, part_size;  // the first part of the launch, and how many
  int arrays;
};

inline constexpr int kRowPacks = 2;  // a thread of layer_norm_packs has so many packs at most
/// Layer norm of rows of `size` elements; mean: null: root mean square norm. gamma, beta: null: 1, 0; offset: added to gamma. Backward:
/// grad is read, y is dx; `partial`: scratch [parts, 2 size], or [parts, 3 size] with dx_sums, those of dx over rows; dbeta, dx_sums: or
/// null. `residual`: added to x, or to dx; `sum`: x + residual, or null. warps: of a row, in kernels of packs.
struct LayerNormCall {
  const void *x, *gamma, *beta, *grad, *residual;
  void *sum, *y, *mean, *rstd, *dgamma, *dbeta, *dx_sums;
  float* partial;
  Type type, vector_type, statistics_type;
  int warps;
  int64_t rows, size, parts;
  float eps, offset;
};

inline constexpr int kNormRows = 5;
/// Batch norm of [N, C, ...]. Backward: grad is read, y is dx; `mask`: the result of the forward pass, whose sign is the activation's
/// gradient. `addend`: another gradient, with a mask. sum, squares: those of x and its squares, where they are given. Scratch, f32: `table`
/// [kNormRows, channels], `partial` [parts, 2, channels].
struct BatchNormCall {
  const void *x, *gamma, *beta, *grad, *addend, *residual, *mask;
  void *y, *dresidual, *mean, *var, *dgamma, *dbeta;
  const float *sum, *squares;
  float *table, *partial;
  Type type, statistics_type, gamma_type, beta_type, gradient_type;
  int activation;  // the position in Activation (ops/attrs.h)
  int64_t count;   // elements of a channel
  ChannelWalk walk;
  float eps;
};

/// Running statistics of a batch norm in place, rounded to `type`: running = keep * running + take * batch. Null: no count; the gate is
/// open.
struct BatchNormUpdateCall {
  const float *mean, *var;
  void *running_mean, *running_var;
  Type type;       // of the running statistics
  int64_t* count;  // plus 1
  const uint8_t* gate;
  int64_t channels;
  float keep, take, take_var;
};

/// An optimizer step, or that of an average, in place. Null: scale 1; gate open.
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
  double log_beta1, log_beta2;
  int decoupled, nesterov;
};

/// A gate that closes for ever after a value that is not finite.
struct FiniteGateCall {
  const uint8_t* stopped;
  const void* value;
  uint8_t *stopped_to, *gate;
  Type type;
};

inline constexpr int64_t kUpdatePart = 16 << 10;  // elements of a block in steps of many parameters
struct UpdatePart {
  int64_t call, begin;
};
/// Steps of many parameters: `count` parts of them. Both tables are in the device's memory.
struct UpdatesCall {
  const UpdateCall* calls;
  const UpdatePart* parts;
  int64_t count;
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
/// Pools of [N,C,H,W]. Forward: x -> y and, of maxima, `index`: the place in the window or, adaptive, in the image. Backward: x is dy, y is
/// dx, and sizes are those of the forward pass.
struct PoolCall {
  const void* x;
  void *y, *index;  // backward, index is read
  Type type, index_type;
  Pool kind;
  int64_t planes, channels;  // planes = N * C
  int64_t x_size[2], y_size[2], x_steps[4], y_steps[4], index_steps[4];
  int64_t kernel[2], stride[2], padding[2], dilation[2];
  int count_include_pad;
  // Threads share `cells`: channels (or packs of them), columns and rows of the images that are written, from inner to outer, or columns,
  // rows and channels; then samples. All arrays have less than 2^31 elements.
  int channels_inner, packs;
  int64_t cells;
  Divisor sizes[3];
};

}  // namespace galley::device
