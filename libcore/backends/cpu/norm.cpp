// Batch normalization (Ioffe, Szegedy 2015) on channels_last and rank-2 arrays of f32 or bf16, fused with its activation and residual:
// training, its gradients (also with those of the 1x1 convolution before it, and through a gate after it) and inference.
//
// Arrays are rows of channels. Forward: one pass for the statistics (batch_norm.cpp), one that applies scale, shift, residual and
// activation. Backward: one pass for the sums of the gradient, one for dx; the activation's argument is recomputed from x, which is read
// anyway, unless a residual was added to it. With relu and a residual, the first pass writes the masked gradient, which is the residual's,
// and the second reads only that. Outputs may be in the memory of inputs (OpDef::may_reuse), so that no line is read in order to be
// written. O(elements), bound by memory; the second pass goes from the end, whose rows are still in the cache.

#include "libcore/ops/norm.h"

#include <algorithm>
#include <array>

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/batch_norm.h"
#include "libcore/backends/cpu/batch_norm_rows.h"
#include "libcore/backends/cpu/norm_loops.h"
#include "libcore/backends/cpu/pointwise.h"
#include "libcore/base/parallel.h"
#include "libcore/comm/rank_scope.h"

namespace galley {
namespace batchnorm {
namespace {

bool is_rows(const TensorType& type) { return type.shape.rank() == 2 || type.format.is_channels_last(); }
Rows rows_of(const TensorType& type) {
  const int64_t channels = type.shape[1];
  return {channels == 0 ? 0 : type.elements() / channels, channels};
}

/// `inputs` are the activations: f32 or bf16, channels_last. The remaining inputs must be f32, except `others`, which are not checked.
Support supports_rows(const KernelQuery& q, std::initializer_list<int> inputs, std::initializer_list<int> others = {}) {
  const DType dtype = q.in(*inputs.begin()).dtype;
  if (dtype != DType::kF32 && dtype != DType::kBF16) return Support::no(cat("dtype ", dtype, " is neither f32 nor bf16"));
  for (int i : inputs) {
    if (!q.has(i)) continue;
    const TensorType& type = q.in(i);
    if (!is_rows(type)) return Support::no(cat("format ", type.format, " is not channels_last"));
    if (type.elements() == 0) return Support::no(cat("input ", i, " has no elements"));
  }
  for (size_t i = 0; i < q.node.inputs.size(); ++i) {
    const int input = static_cast<int>(i);
    if (std::find(others.begin(), others.end(), input) != others.end()) continue;
    if (q.has(input) && std::find(inputs.begin(), inputs.end(), input) == inputs.end() && q.in(input).dtype != DType::kF32)
      return Support::no(cat("input ", input, " is ", q.in(input).dtype, ", not f32"));
  }
  return Support::yes();
}

/// Sums over ranks within kernels (BatchNormAttrs::sync), in double.
class RankSums {
 public:
  RankSums(std::string name, int64_t channels) : name_(std::move(name)), channels_(channels) {}
  /// Of `run`'s array; 0 without sums.
  int64_t scratch_bytes() const { return name_.empty() ? 0 : (2 * channels_ + 1) * 8; }
  bool active() const { return !name_.empty(); }
  /// Replaces the count and two sums of each channel by those of all ranks. Alone, they stay.
  void run(double* sums) const {
    RankScope* ranks = RankScope::current();
    if (ranks == nullptr) return;
    ranks->start({.kind = CollectiveKind::kAllReduce,
                  .dtype = DType::kF64,
                  .name = name_,
                  .input = sums,
                  .output = sums,
                  .count = 2 * channels_ + 1});
    ranks->wait(sums);
  }

  /// Replaces mean and variance of `count` elements by those of all ranks' elements. `sums`: scratch.
  void merge_statistics(int64_t count, float* mean, float* var, double* sums) const {
    const auto n = static_cast<double>(count);
    double *total = sums + 1, *squares = total + channels_;
    sums[0] = n;
    for (int64_t c = 0; c < channels_; ++c) {
      const auto m = static_cast<double>(mean[c]);
      total[c] = n * m;
      squares[c] = n * (static_cast<double>(var[c]) + m * m);
    }
    run(sums);
    for (int64_t c = 0; c < channels_; ++c) {
      const double m = total[c] / sums[0];
      mean[c] = static_cast<float>(m);
      var[c] = static_cast<float>(std::max(0.0, squares[c] / sums[0] - m * m));
    }
  }

 private:
  std::string name_;
  int64_t channels_;
};

// Below, coefficients are repeated for rows_together.

template <class T>
void apply_rows(const T* x, const T* residual, T* y, int64_t rows, int64_t channels, const float* scale, const float* shift,
                Activation activation) {
  const int64_t together = rows_together<T>(channels), wide = rows / together, at = wide * together * channels;
  const auto apply = loops<T>().apply;
  apply(x, residual, y, wide, together * channels, scale, shift, activation);
  apply(x + at, residual != nullptr ? residual + at : nullptr, y + at, rows - wide * together, channels, scale, shift, activation);
}

template <class T>
void gradient_row_sums(const T* grad, const T* x, Mask<T> mask, int64_t rows, int64_t channels, const Coefficients& k, float* sum,
                       float* dot) {
  const auto gradient_sums = loops<T>().gradient_sums;
  if (rows_together<T>(channels) == 1) return gradient_sums(grad, x, mask, rows, channels, k, sum, dot);
  sum_rows<T>(rows, channels, sum, dot, [&](int64_t first, int64_t count, int64_t width, float* one, float* other) {
    const int64_t at = first * channels;
    gradient_sums(grad + at, x + at, mask.from(at), count, width, k, one, other);
  });
}

template <class T>
void apply_gradient_rows(const T* grad, const T* x, Mask<T> mask, T* dx, T* dresidual, int64_t rows, int64_t channels,
                         const Coefficients& k) {
  const int64_t together = rows_together<T>(channels), wide = rows / together, at = wide * together * channels;
  const auto apply_gradient = loops<T>().apply_gradient;
  apply_gradient(grad, x, mask, dx, dresidual, wide, together * channels, k);
  apply_gradient(grad + at, x + at, mask.from(at), dx + at, dresidual != nullptr ? dresidual + at : nullptr, rows - wide * together,
                 channels, k);
}

/// The second pass over the pixels: each thread walks its range from the end, whose rows are still in the cache after the first pass.
template <class Body>
void for_rows_from_end(Rows rows, const Body& body) {
  parallel_ranges(
      rows.pixels, std::max<int64_t>(1, 16384 / rows.channels),
      [&](int64_t begin, int64_t end) { body(begin * rows.channels, end - begin); }, true);
}

template <class T>
class BatchNormForward : public PreparedKernel {
 public:
  explicit BatchNormForward(const KernelQuery& q)
      : rows_(rows_of(q.in(0))),
        statistics_(rows_, q.threads),
        ranks_(q.attrs<BatchNormAttrs>().sync, rows_.channels),
        eps_(q.attrs<BatchNormAttrs>().eps),
        activation_(q.attrs<BatchNormAttrs>().activation) {}
  int64_t scratch_bytes() const override {
    return 2 * together_ * rows_.channels * 4 + std::max(statistics_.scratch_bytes(), ranks_.scratch_bytes());
  }
  void run(Stream&, const KernelArgs& args) const override {
    const int64_t channels = rows_.channels;
    const T* x = args.in<T>(0);
    float *mean = args.out<float>(1), *var = args.out<float>(2);
    auto* scale = static_cast<float*>(args.scratch);
    float* shift = scale + together_ * channels;
    statistics_.run(x, mean, var, shift + together_ * channels);
    if (ranks_.active()) ranks_.merge_statistics(rows_.pixels, mean, var, reinterpret_cast<double*>(shift + together_ * channels));
    for (int64_t c = 0; c < channels; ++c) {
      const Affine affine = affine_of(c, mean, var, args.in<float>(1), args.in<float>(2), eps_);
      scale[c] = static_cast<float>(affine.scale);
      shift[c] = static_cast<float>(affine.shift);
    }
    for (float* values : {scale, shift}) repeat(values, channels, together_);
    const T* residual = args.in<T>(3);
    T* y = args.out<T>(0);
    for_rows_from_end(rows_, [&](int64_t at, int64_t rows) {
      apply_rows(x + at, residual != nullptr ? residual + at : nullptr, y + at, rows, channels, scale, shift, activation_);
    });
  }

 private:
  Rows rows_;
  Statistics<T> statistics_;
  RankSums ranks_;
  int64_t together_ = rows_together<T>(rows_.channels);
  double eps_;
  Activation activation_;
};

/// The gradients of a batch norm: those of its parameters, and then, in any order of its rows, that of its input.
template <class T>
class Gradient {
 public:
  /// `gated`: each block of pixels is within one image.
  Gradient(const TensorType& x, const BatchNormBackwardAttrs& a, int threads, bool gated = false)
      : rows_(rows_of(x)),
        images_(gated ? x.shape[0] : 0),
        blocks_(rows_, threads, std::max<int64_t>(1, images_)),
        ranks_(a.sync, rows_.channels),
        eps_(a.eps),
        activation_(a.activation) {}
  int64_t scratch_floats() const {
    return (blocks_.count * 2 + (6 + 2 * images_) * together_) * rows_.channels + ranks_.scratch_bytes() / 4;
  }
  Rows rows() const { return rows_; }

  struct Operands {
    const T *grad, *x;
    const float *mean, *var, *gamma, *beta;
    const T* y = nullptr;  // nullptr: the activation's argument comes from x
    float *dgamma = nullptr, *dbeta = nullptr;
    T* dresidual = nullptr;  // nullptr: not computed
    const T *gate = nullptr, *spread = nullptr;
  };
  /// Inputs 0 to 5, outputs 1 and 2.
  static Operands operands_of(const KernelArgs& args) {
    Operands o{args.in<T>(0), args.in<T>(1), args.in<float>(2), args.in<float>(3), args.in<float>(4), args.in<float>(5)};
    o.dgamma = args.out<float>(1);
    o.dbeta = args.out<float>(2);
    return o;
  }
  /// All gradients; output 0 is dx.
  void run(const Operands& o, const KernelArgs& args) const {
    const Coefficients k = sum(o, static_cast<float*>(args.scratch));
    for_rows_from_end(rows_, [&](int64_t at, int64_t rows) { apply(o, k, at, rows, args.out<T>(0) + at); });
  }
  /// The gradient that apply reads: that of the activation's argument, if sum writes it.
  const T* gradient(const Operands& o) const { return writes(o) ? o.dresidual : o.grad; }

  /// dgamma and dbeta, and what apply needs, in the scratch memory.
  Coefficients sum(const Operands& o, float* scratch) const {
    const int64_t channels = rows_.channels;
    float* sums = scratch;
    float* scale = sums + blocks_.count * 2 * channels;
    float* shift = scale + together_ * channels;
    float* mean = shift + together_ * channels;
    float* a = mean + together_ * channels;
    float* b = a + together_ * channels;
    float* offset = b + together_ * channels;
    float* gates = offset + together_ * channels;
    auto* of_ranks = reinterpret_cast<double*>(gates + 2 * images_ * together_ * channels);
    const Coefficients k{mean, scale, shift, a, b, offset, gates};
    for (int64_t image = 0; image < images_; ++image) pack_gate(o, image, gates);
    std::copy_n(o.mean, channels, mean);
    const auto affine_of = [&](int64_t c) { return batchnorm::affine_of(c, mean, o.var, o.gamma, o.beta, eps_); };
    for (int64_t c = 0; c < channels; ++c) {
      scale[c] = static_cast<float>(affine_of(c).scale);
      shift[c] = static_cast<float>(affine_of(c).shift);
    }
    for (float* values : {scale, shift, mean}) repeat(values, channels, together_);
    parallel_ranges(blocks_.count, 1, [&](int64_t block, int64_t) {
      const int64_t at = blocks_.begin(block) * channels;
      gradient_row_sums(o.grad + at, o.x + at, mask(o, k, blocks_.begin(block)).from(at), blocks_.begin(block + 1) - blocks_.begin(block),
                        channels, k, sums + block * 2 * channels, sums + (block * 2 + 1) * channels);
    });
    parallel_for((channels + kLanes - 1) / kLanes, 4, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task * kLanes, lanes = std::min(kLanes, channels - first);
        double sum[kLanes] = {}, dot[kLanes] = {};
        for (int64_t block = 0; block < blocks_.count; ++block) {
          const float* part = sums + block * 2 * channels + first;
          for (int64_t c = 0; c < lanes; ++c) {
            sum[c] += static_cast<double>(part[c]);
            dot[c] += static_cast<double>(part[channels + c]);
          }
        }
        for (int64_t c = 0; c < lanes; ++c) {
          const int64_t channel = first + c;
          const auto g = gradient_of(sum[c], dot[c], rows_.pixels, affine_of(channel).scale, static_cast<double>(o.var[channel]), eps_);
          o.dgamma[channel] = static_cast<float>(g.dgamma);
          o.dbeta[channel] = static_cast<float>(g.dbeta);
          if (ranks_.active()) {
            of_ranks[1 + channel] = sum[c];
            of_ranks[1 + channels + channel] = dot[c];
          }
          a[channel] = static_cast<float>(g.a);
          b[channel] = static_cast<float>(g.b);
          offset[channel] = static_cast<float>(g.offset);
        }
      }
    });
    if (ranks_.active()) {
      of_ranks[0] = static_cast<double>(rows_.pixels);
      ranks_.run(of_ranks);
      for (int64_t c = 0; c < channels; ++c) {
        const double n = of_ranks[0], share = 1 / n, rstd2 = 1 / (static_cast<double>(o.var[c]) + eps_), slope = affine_of(c).scale;
        b[c] = static_cast<float>(-slope * rstd2 * of_ranks[1 + channels + c] * share);
        offset[c] = static_cast<float>(-slope * of_ranks[1 + c] * share);
      }
    }
    for (float* values : {a, b, offset}) repeat(values, channels, together_);
    return k;
  }

  /// `rows` rows from value `at` on; dx is theirs.
  void apply(const Operands& o, const Coefficients& k, int64_t at, int64_t rows, T* dx) const {
    T* dresidual = o.dresidual != nullptr ? o.dresidual + at : nullptr;
    if (writes(o)) return apply_gradient_rows(dresidual, o.x + at, Mask<T>(), dx, static_cast<T*>(nullptr), rows, rows_.channels, k);
    const int64_t first = at / rows_.channels;
    for (int64_t done = 0, count = rows; done < rows; done += count) {
      if (images_ > 0) count = std::min(rows - done, pixels() - (first + done) % pixels());
      const int64_t offset = done * rows_.channels, here = at + offset;
      apply_gradient_rows(o.grad + here, o.x + here, mask(o, k, first + done).from(here), dx + offset, dresidual, count, rows_.channels, k);
    }
  }

 private:
  bool writes(const Operands& o) const { return activation_ == Activation::kRelu && o.y != nullptr && o.dresidual != nullptr; }
  /// The mask from pixel `first` of all images on; with a gate, to the end of its image.
  Mask<T> mask(const Operands& o, const Coefficients& k, int64_t first) const {
    const float* gate = k.gates + (images_ > 0 ? first / pixels() * 2 * together_ * rows_.channels : 0);
    return {activation_, o.y, writes(o) ? o.dresidual : nullptr, images_ > 0 ? Gate{gate, gate + together_ * rows_.channels} : Gate()};
  }
  /// Pixels of an image.
  int64_t pixels() const { return rows_.pixels / images_; }
  void pack_gate(const Operands& o, int64_t image, float* gates) const {
    const int64_t channels = rows_.channels;
    float *factor = gates + image * 2 * together_ * channels, *spread = factor + together_ * channels;
    const float share = 1 / static_cast<float>(pixels());
    for (int64_t c = 0; c < channels; ++c) {
      factor[c] = o.gate[image * channels + c];
      spread[c] = o.spread[image * channels + c] * share;
    }
    for (float* values : {factor, spread}) repeat(values, channels, together_);
  }

  Rows rows_;
  int64_t images_;  // 0: no gate
  Blocks blocks_;
  RankSums ranks_;
  int64_t together_ = rows_together<T>(rows_.channels);
  double eps_;
  Activation activation_;
};

template <class T>
class BatchNormBackward : public PreparedKernel {
 public:
  explicit BatchNormBackward(const KernelQuery& q)
      : gradient_(q.in(1), q.attrs<BatchNormBackwardAttrs>(), q.threads), residual_(q.attrs<BatchNormBackwardAttrs>().residual) {}
  int64_t scratch_bytes() const override { return gradient_.scratch_floats() * 4; }
  void run(Stream&, const KernelArgs& args) const override {
    typename Gradient<T>::Operands operands = Gradient<T>::operands_of(args);
    operands.y = args.in<T>(6);
    if (residual_) operands.dresidual = args.out<T>(3);
    gradient_.run(operands, args);
  }

 private:
  Gradient<T> gradient_;
  bool residual_;
};

template <class T>
class GatedBatchNormBackward : public PreparedKernel {
 public:
  explicit GatedBatchNormBackward(const KernelQuery& q) : gradient_(q.in(1), q.attrs<BatchNormBackwardAttrs>(), q.threads, true) {}
  int64_t scratch_bytes() const override { return gradient_.scratch_floats() * 4; }
  void run(Stream&, const KernelArgs& args) const override {
    typename Gradient<T>::Operands operands = Gradient<T>::operands_of(args);
    operands.gate = args.in<T>(6);
    operands.spread = args.in<T>(7);
    gradient_.run(operands, args);
  }

 private:
  Gradient<T> gradient_;
};

/// Also computes the gradients of the 1x1 convolution whose output is the norm's input.
class PointwiseBatchNormBackward : public PreparedKernel {
 public:
  explicit PointwiseBatchNormBackward(const KernelQuery& q)
      : gradient_(q.in(1), q.attrs<BatchNormBackwardAttrs>(), q.threads),
        residual_(q.attrs<BatchNormBackwardAttrs>().residual),
        convolution_(q.in(7), q.in(8), q.out(1), q.threads) {}
  int64_t scratch_bytes() const override { return (gradient_floats() + convolution_.scratch_floats()) * 4; }
  void run(Stream&, const KernelArgs& args) const override {
    auto* scratch = static_cast<float*>(args.scratch);
    const Gradient<float>::Operands operands{
        args.in<float>(0), args.in<float>(1), args.in<float>(2),  args.in<float>(3),  args.in<float>(4),
        args.in<float>(5), args.in<float>(6), args.out<float>(2), args.out<float>(3), residual_ ? args.out<float>(4) : nullptr};
    const Coefficients k = gradient_.sum(operands, scratch);
    convolution_.run({args.in<float>(7), args.in<float>(8), args.out<float>(0), args.out<float>(1)}, scratch + gradient_floats(),
                     std::array{gradient_.gradient(operands), operands.x}, [&](int64_t first, int64_t count, float* to) {
                       gradient_.apply(operands, k, first * gradient_.rows().channels, count, to);
                     });
  }

 private:
  int64_t gradient_floats() const { return (gradient_.scratch_floats() + 15) / 16 * 16; }

  Gradient<float> gradient_;
  bool residual_;
  PointwiseGradients convolution_;
};

template <class T>
class BatchNormInference : public PreparedKernel {
 public:
  explicit BatchNormInference(const KernelQuery& q)
      : rows_(rows_of(q.in(0))), eps_(q.attrs<BatchNormInferenceAttrs>().eps), activation_(q.attrs<BatchNormInferenceAttrs>().activation) {}
  int64_t scratch_bytes() const override { return 2 * together_ * rows_.channels * 4; }
  void run(Stream&, const KernelArgs& args) const override {
    const int64_t channels = rows_.channels;
    auto* scale = static_cast<float*>(args.scratch);
    float* shift = scale + together_ * channels;
    for (int64_t c = 0; c < channels; ++c) {
      const Affine affine = affine_of(c, args.in<float>(3), args.in<float>(4), args.in<float>(1), args.in<float>(2), eps_);
      scale[c] = static_cast<float>(affine.scale);
      shift[c] = static_cast<float>(affine.shift);
    }
    for (float* values : {scale, shift}) repeat(values, channels, together_);
    parallel_ranges(rows_.pixels, std::max<int64_t>(1, 16384 / channels), [&](int64_t begin, int64_t end) {
      apply_rows(args.in<T>(0) + begin * channels, static_cast<const T*>(nullptr), args.out<T>(0) + begin * channels, end - begin, channels,
                 scale, shift, activation_);
    });
  }

 private:
  Rows rows_;
  int64_t together_ = rows_together<T>(rows_.channels);
  double eps_;
  Activation activation_;
};

Support supports_forward(const KernelQuery& q) { return supports_rows(q, {0, 3}); }
Support supports_backward(const KernelQuery& q) { return supports_rows(q, {0, 1, 6}); }
/// The fused gradients do not sum over ranks.
Support supports_alone(const KernelQuery& q) {
  return q.attrs<BatchNormBackwardAttrs>().sync.empty() ? Support::yes() : Support::no("statistics of all ranks");
}
Support supports_gated(const KernelQuery& q) {
  if (const Support alone = supports_alone(q); !alone) return alone;
  for (int i : {6, 7}) {
    if (q.in(i).format.is_blocked()) return Support::no(cat("input ", i, " has the blocked format ", q.in(i).format));
  }
  return supports_rows(q, {0, 1}, {6, 7});
}
Support supports_pointwise(const KernelQuery& q) {
  if (const Support alone = supports_alone(q); !alone) return alone;
  if (const Support norm = supports_rows(q, {0, 1, 6}, {7, 8}); !norm) return norm;
  return supports_pointwise_gradients(q, 7, 8);
}
Support supports_inference(const KernelQuery& q) {
  if (!batch_norm_takes(q.attrs<BatchNormInferenceAttrs>().activation))
    return Support::no("batch norm is not fused with this activation, only with relu, relu6 and hardswish");
  return supports_rows(q, {0});
}

template <template <class> class K>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  if (q.out(0).dtype == DType::kBF16) return std::make_unique<K<BFloat16>>(q);
  return std::make_unique<K<float>>(q);
}

}  // namespace
}  // namespace batchnorm

const Algorithm algorithm::kBatchNormRows{batchnorm::supports_forward, batchnorm::prepare<batchnorm::BatchNormForward>};
const Algorithm algorithm::kBatchNormRowsBackward{batchnorm::supports_backward, batchnorm::prepare<batchnorm::BatchNormBackward>};
const Algorithm algorithm::kBatchNormRowsInference{batchnorm::supports_inference, batchnorm::prepare<batchnorm::BatchNormInference>};
const Algorithm algorithm::kGatedBatchNormBackward{batchnorm::supports_gated, batchnorm::prepare<batchnorm::GatedBatchNormBackward>};
const Algorithm algorithm::kPointwiseBatchNormBackward{batchnorm::supports_pointwise, prepare_as<batchnorm::PointwiseBatchNormBackward>};

}  // namespace galley
