// Losses of f32 arrays: cross entropy of classes or probabilities with its gradient, mean squared error, binary cross entropy of logits.
//
// Cross entropy is -sum_c share[c] log softmax(logits)[c], where share[c] = weight[c] ((1 - smoothing) hit[c] + smoothing / C), 0 for an
// ignored target. Positions (samples, pixels) are handled one by one where their classes are consecutive, else in bundles of 64
// neighboring pixels (softmax_lines.h). O(elements); the exponentials bound it in the cache, memory elsewhere. The others are one loop
// over pieces of 1024 elements. Sums run over fixed pieces and are added in double in one order: bits depend on the instruction set, not on
// the threads. Definitions are those of PyTorch's cross_entropy, mse_loss and binary_cross_entropy_with_logits.

#include "libcore/backends/cpu/product_targets.h"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS GALLEY_ONLY_AVX2_AVX512
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "libcore/backends/cpu/loss.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "libcore/backends/cpu/vector_sums-inl.h"

#ifndef GALLEY_LOSS_ONCE
#define GALLEY_LOSS_ONCE

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "libcore/backends/cpu/softmax_lines.h"
#include "libcore/backends/cpu/table.h"
#include "libcore/backends/cpu/vector_math.h"
#include "libcore/base/parallel.h"
#include "libcore/ops/loss.h"

namespace galley::losses {

/// exp(x - largest) = e becomes factor (e scale - kept share). 0 stays 0 though the factor be 1/0, where no target counts.
GALLEY_INLINE float slope_of(float e, float scale, float share, float kept, float factor) {
  const float slope = e * scale - kept * share, product = factor * slope;
  return slope == 0.0f ? 0.0f : product;
}

}  // namespace galley::losses

#endif

HWY_BEFORE_NAMESPACE();
namespace galley::losses {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using galley::HWY_NAMESPACE::Floats;

/// Shares of classes whose targets are probabilities: of the classes of a line, and of one class of a bundle.
void line_shares(const float* hit, const float* probability, const float* smooth, float* share, int64_t count) {
  for (int64_t i = 0; i < count; ++i) share[i] = hit[i] * probability[i] + smooth[i];
}
void bundle_shares(float hit, const float* probability, float smooth, float* share, int64_t count) {
  for (int64_t i = 0; i < count; ++i) share[i] = hit * probability[i] + smooth;
}

double sum_of(const float* x, int64_t count) {
  constexpr int64_t kSums = 16;
  double sums[kSums] = {};
  const int64_t whole = count - count % kSums;
  for (int64_t i = 0; i < whole; i += kSums) {
    for (int64_t c = 0; c < kSums; ++c) sums[c] += static_cast<double>(x[i + c]);
  }
  for (int64_t c = 0; c < count - whole; ++c) sums[c] += static_cast<double>(x[whole + c]);
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

/// Sum of share (log sum exp - x) over classes; one without a share does not count, whatever its logit.
float line_loss(const float* x, const float* share, float largest, float log_sum, int64_t count) {
  return static_cast<float>(galley::HWY_NAMESPACE::sum_over(count, [=](auto part, int64_t i) GALLEY_LOOP {
    const Floats s = part.load(share + i), term = s * ((Floats(largest) - part.load(x + i)) + Floats(log_sum));
    return select(s == Floats(0), Floats(0), term);
  }));
}
void bundle_loss(const float* x, const float* share, const float* largest, const float* log_sum, float* loss, int64_t count) {
  for (int64_t l = 0; l < count; ++l) {
    const float term = share[l] * ((largest[l] - x[l]) + log_sum[l]);
    loss[l] += share[l] != 0.0f ? term : 0.0f;
  }
}

/// slope_of for some classes of a line, and for one class of a bundle.
void line_slopes(float* dx, const float* share, float scale, float kept, float factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) dx[i] = slope_of(dx[i], scale, share[i], kept, factor);
}
void bundle_slopes(float* dx, const float* share, const float* scale, const float* kept, const float* factor, int64_t count) {
  for (int64_t l = 0; l < count; ++l) dx[l] = slope_of(dx[l], scale[l], share[l], kept[l], factor[l]);
}

void squared_errors(const float* x, const float* target, const float*, float* loss, int64_t count) {
  for (int64_t i = 0; i < count; ++i) loss[i] = (x[i] - target[i]) * (x[i] - target[i]);
}
void binary_entropies(const float* x, const float* target, const float* weight, float* loss, int64_t count) {
  for (int64_t i = 0; i < count; ++i) loss[i] = at_least(x[i], 0.0f) - x[i] * target[i] + log1p_of(exp_of(-__builtin_fabsf(x[i])));
  if (weight == nullptr) return;
  for (int64_t i = 0; i < count; ++i) loss[i] *= weight[i];
}

}  // namespace HWY_NAMESPACE
}  // namespace galley::losses
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace galley {
namespace losses {
HWY_EXPORT(line_shares);
HWY_EXPORT(bundle_shares);
HWY_EXPORT(sum_of);
HWY_EXPORT(line_loss);
HWY_EXPORT(bundle_loss);
HWY_EXPORT(line_slopes);
HWY_EXPORT(bundle_slopes);
HWY_EXPORT(squared_errors);
HWY_EXPORT(binary_entropies);

namespace {

constexpr int64_t kRun = 256;  // classes of a line handled at a time

/// Positions in bundles: neighboring pixels of a sample, or (without pixels) neighboring samples. The shares of a class are
/// hit[c] = weight[c] (1 - label_smoothing) times the target, and smooth[c] = weight[c] label_smoothing / C.
class CrossEntropy : public PreparedKernel {
 public:
  CrossEntropy(const KernelQuery& q, int logits)
      : attrs_(q.attrs<CrossEntropyAttrs>()),
        lines_(lines_of(q.in(logits), 1)),
        logits_(static_cast<size_t>(logits)),
        probabilities_(is_floating(q.in(logits + 1).dtype)) {
    per_sample_ = lines_.inner == 1 ? 1 : bundles_of(lines_);
    tasks_ = lines_.inner == 1 ? (lines_.outer + kBundle - 1) / kBundle : lines_.outer * per_sample_;
    grain_ = std::max<int64_t>(1, 16384 / (kBundle * std::max<int64_t>(1, lines_.length)));
  }
  /// Two numbers per bundle (the sums' parts), then hit and smooth.
  int64_t scratch_bytes() const override { return tasks_ * 16 + lines_.length * 8; }

 protected:
  /// Positions [begin, begin + count), the first with its logits at `at`.
  struct Bundle {
    int64_t begin, count, at;
  };
  Bundle bundle(int64_t task) const {
    if (lines_.inner == 1) return {task * kBundle, std::min(kBundle, lines_.outer - task * kBundle), task * kBundle * lines_.length};
    const int64_t sample = task / per_sample_, first = task % per_sample_ * kBundle;
    return {sample * lines_.inner + first, std::min(kBundle, lines_.inner - first), sample * lines_.length * lines_.inner + first};
  }

  struct Targets {
    int64_t classes[kBundle];  // -1: ignored, or probabilities
    float kept[kBundle];
    double weight = 0;  // the divisor of the mean
  };
  /// Throws on a class that the logits do not have.
  Targets targets(const KernelArgs& args, const Bundle& b) const {
    Targets t;
    const float* weight = args.in<float>(logits_ + 2);
    for (int64_t l = 0; l < b.count; ++l) {
      t.classes[l] = -1;
      t.kept[l] = 1;
      if (probabilities_) {
        t.weight += 1;
        continue;
      }
      const int64_t c = args.in<int64_t>(logits_ + 1)[b.begin + l];
      t.kept[l] = c == attrs_.ignore_index ? 0 : 1;
      if (c == attrs_.ignore_index) continue;
      GALLEY_CHECK_INPUT(c >= 0 && c < lines_.length, "target ", b.begin + l, " is class ", c, ", the logits have ", lines_.length,
                         " classes");
      t.classes[l] = c;
      t.weight += weight != nullptr ? static_cast<double>(weight[c]) : 1.0;
    }
    return t;
  }

  double* parts(const KernelArgs& args) const { return static_cast<double*>(args.scratch); }
  struct Shares {
    const float *hit, *smooth;
    double total = 0;  // of smooth
  };
  Shares shares(const KernelArgs& args) const {
    float* hit = static_cast<float*>(args.scratch) + 4 * tasks_;
    float* smooth = hit + lines_.length;
    const float* weight = args.in<float>(logits_ + 2);
    double total = 0;
    for (int64_t c = 0; c < lines_.length; ++c) {
      const double w = weight != nullptr ? static_cast<double>(weight[c]) : 1.0;
      hit[c] = static_cast<float>(w * (1 - attrs_.label_smoothing));
      smooth[c] = static_cast<float>(w * attrs_.label_smoothing / static_cast<double>(lines_.length));
      total += w * attrs_.label_smoothing / static_cast<double>(lines_.length);
    }
    return {hit, smooth, total};
  }
  const float* probabilities(const KernelArgs& args, int64_t at) const {
    return probabilities_ ? args.in<float>(logits_ + 1) + at : nullptr;
  }
  /// Offset of class c of line l from the start of its bundle.
  int64_t place(int64_t l, int64_t c) const { return lines_.inner == 1 ? l * lines_.length + c : c * lines_.inner + l; }

  /// Calls visit(first class, how many, their shares) for runs of a line.
  template <class Visit>
  void for_each_run(const Shares& s, const float* probability, Visit visit) const {
    float share[kRun];
    for (int64_t c = 0; c < lines_.length; c += kRun) {
      const int64_t count = std::min(kRun, lines_.length - c);
      if (probability != nullptr) HWY_DYNAMIC_DISPATCH(line_shares)(s.hit + c, probability + c, s.smooth + c, share, count);
      visit(c, count, probability != nullptr ? share : s.smooth + c);
    }
  }
  /// Calls visit(class, shares) for the classes of a bundle of pixels.
  template <class Visit>
  void for_each_class(const Shares& s, const float* probability, int64_t count, Visit visit) const {
    float share[kBundle];
    for (int64_t c = 0; c < lines_.length; ++c) {
      if (probability != nullptr) {
        HWY_DYNAMIC_DISPATCH(bundle_shares)(s.hit[c], probability + c * lines_.inner, s.smooth[c], share, count);
      } else {
        std::fill_n(share, count, s.smooth[c]);
      }
      visit(c, static_cast<const float*>(share));
    }
  }

  CrossEntropyAttrs attrs_;
  Lines lines_;
  size_t logits_;
  bool probabilities_;
  int64_t per_sample_ = 1, tasks_ = 0, grain_ = 1;
};

class CrossEntropyForward : public CrossEntropy {
 public:
  explicit CrossEntropyForward(const KernelQuery& q) : CrossEntropy(q, 0) {}
  void run(Stream&, const KernelArgs& args) const override {
    const bool each = attrs_.reduction == Reduction::kNone;
    const Shares s = shares(args);
    double* part = parts(args);  // of each bundle: loss, weight
    parallel_for(tasks_, grain_, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const Bundle b = bundle(task);
        const Targets t = targets(args, b);
        float loss[kBundle];
        losses(args, b, t, s, loss);
        double sum = 0;
        for (int64_t l = 0; l < b.count; ++l) {
          if (each) args.out<float>(0)[b.begin + l] = loss[l];
          sum += static_cast<double>(loss[l]);
        }
        part[2 * task] = sum;
        part[2 * task + 1] = t.weight;
      }
    });
    if (each) return;
    double loss = 0, weight = 0;
    for (int64_t task = 0; task < tasks_; ++task) {
      loss += part[2 * task];
      weight += part[2 * task + 1];
    }
    *args.out<float>(0) = static_cast<float>(attrs_.reduction == Reduction::kMean ? loss / weight : loss);
  }

 private:
  void losses(const KernelArgs& args, const Bundle& b, const Targets& t, const Shares& s, float* loss) const {
    const float* x = args.in<float>(0) + b.at;
    const float* probability = probabilities(args, b.at);
    const int64_t length = lines_.length;
    const bool all_classes = probabilities_ || attrs_.label_smoothing != 0;
    float largest[kBundle], log_sum[kBundle];
    std::fill_n(loss, b.count, 0.0f);
    if (lines_.inner == 1) {
      for (int64_t l = 0; l < b.count; ++l) {
        const float* row = x + l * length;
        largest[l] = line_maximum(row, length);
        log_sum[l] = std::log(line_exp_sum(row, largest[l], nullptr, length));
        if (!all_classes) continue;
        for_each_run(s, probability != nullptr ? probability + l * length : nullptr, [&](int64_t c, int64_t count, const float* share) {
          loss[l] += HWY_DYNAMIC_DISPATCH(line_loss)(row + c, share, largest[l], log_sum[l], count);
        });
      }
    } else {
      bundle_maximum(x, length, lines_.inner, b.count, largest);
      bundle_exp_sum(x, largest, nullptr, length, lines_.inner, b.count, log_sum);
      for (int64_t l = 0; l < b.count; ++l) log_sum[l] = std::log(log_sum[l]);
      if (all_classes) {
        for_each_class(s, probability, b.count, [&](int64_t c, const float* share) {
          HWY_DYNAMIC_DISPATCH(bundle_loss)(x + c * lines_.inner, share, largest, log_sum, loss, b.count);
        });
      }
    }
    if (probabilities_) return;
    for (int64_t l = 0; l < b.count; ++l) {
      const int64_t c = t.classes[l];
      if (c < 0) {
        loss[l] = 0;
      } else if (s.hit[c] != 0) {
        loss[l] += s.hit[c] * ((largest[l] - x[place(l, c)]) + log_sum[l]);
      }
    }
  }
};

class CrossEntropyBackward : public CrossEntropy {
 public:
  explicit CrossEntropyBackward(const KernelQuery& q) : CrossEntropy(q, 1) {}
  void run(Stream&, const KernelArgs& args) const override {
    const Shares s = shares(args);
    const double divisor = attrs_.reduction == Reduction::kMean ? total_weight(args) : 1;
    parallel_for(tasks_, grain_, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) slopes(args, bundle(task), s, divisor);
    });
  }

 private:
  double total_weight(const KernelArgs& args) const {
    double* part = parts(args);
    parallel_for(tasks_, 64, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) part[task] = targets(args, bundle(task)).weight;
    });
    double weight = 0;
    for (int64_t task = 0; task < tasks_; ++task) weight += part[task];
    return weight;
  }

  void add_shares(const Shares& s, const float* probability, int64_t count, double* totals) const {
    if (lines_.inner > 1) {
      for_each_class(s, probability, count, [&](int64_t, const float* share) {
        for (int64_t l = 0; l < count; ++l) totals[l] += static_cast<double>(share[l]);
      });
      return;
    }
    for (int64_t l = 0; l < count; ++l) {
      for_each_run(s, probability + l * lines_.length,
                   [&](int64_t, int64_t classes, const float* share) { totals[l] += HWY_DYNAMIC_DISPATCH(sum_of)(share, classes); });
    }
  }

  /// The slope of a class is exp(x - largest) / sum * (all shares) - share.
  void slopes(const KernelArgs& args, const Bundle& b, const Shares& s, double divisor) const {
    const Targets t = targets(args, b);
    const float* x = args.in<float>(1) + b.at;
    const float* probability = probabilities(args, b.at);
    float* dx = args.out<float>(0) + b.at;
    const int64_t length = lines_.length;
    float largest[kBundle], sum[kBundle], scale[kBundle], factor[kBundle], of_target[kBundle];
    if (lines_.inner > 1) {
      bundle_maximum(x, length, lines_.inner, b.count, largest);
      bundle_exp_sum(x, largest, dx, length, lines_.inner, b.count, sum);
    }
    double totals[kBundle] = {};  // of the same floats that are subtracted below, so that a single class has slope 0
    if (probabilities_) add_shares(s, probability, b.count, totals);
    for (int64_t l = 0; l < b.count; ++l) {
      if (lines_.inner == 1) {
        largest[l] = line_maximum(x + l * length, length);
        sum[l] = line_exp_sum(x + l * length, largest[l], dx + l * length, length);
      }
      const int64_t c = t.classes[l];
      double total = s.total + (c < 0 ? 0.0 : static_cast<double>(s.hit[c]));
      if (probabilities_) total = totals[l];
      scale[l] = static_cast<float>(static_cast<double>(t.kept[l]) * total / static_cast<double>(sum[l]));
      factor[l] =
          static_cast<float>(static_cast<double>(args.in<float>(0)[attrs_.reduction == Reduction::kNone ? b.begin + l : 0]) / divisor);
      of_target[l] = c < 0 ? 0 : dx[place(l, c)];
    }
    if (lines_.inner > 1) {
      for_each_class(s, probability, b.count, [&](int64_t c, const float* share) {
        HWY_DYNAMIC_DISPATCH(bundle_slopes)(dx + c * lines_.inner, share, scale, t.kept, factor, b.count);
      });
    } else {
      for (int64_t l = 0; l < b.count; ++l) {
        for_each_run(s, probability != nullptr ? probability + l * length : nullptr, [&](int64_t c, int64_t count, const float* share) {
          HWY_DYNAMIC_DISPATCH(line_slopes)(dx + l * length + c, share, scale[l], t.kept[l], factor[l], count);
        });
      }
    }
    for (int64_t l = 0; l < b.count; ++l) {
      const int64_t c = t.classes[l];
      if (c >= 0) dx[place(l, c)] = slope_of(of_target[l], scale[l], s.hit[c] + s.smooth[c], t.kept[l], factor[l]);
    }
  }
};

Support supports_cross_entropy(const KernelQuery& q, int logits) {
  const TensorType &x = q.in(logits), &target = q.in(logits + 1);
  if (x.dtype != DType::kF32) return Support::no(cat("logits of dtype ", x.dtype, ", not f32"));
  if (target.dtype != DType::kF32 && target.dtype != DType::kI64)
    return Support::no(cat("targets of dtype ", target.dtype, ", neither f32 nor i64"));
  if (q.has(logits + 2) && q.in(logits + 2).dtype != DType::kF32)
    return Support::no(cat("weights of dtype ", q.in(logits + 2).dtype, ", not f32"));
  if (!x.format.is_contiguous() || !target.format.is_contiguous() || !q.out(0).format.is_contiguous())
    return Support::no("logits, targets and output are not all contiguous");
  if (logits == 1 && q.in(0).dtype != DType::kF32) return Support::no(cat("gradient of dtype ", q.in(0).dtype, ", not f32"));
  if (x.shape[1] == 0 || x.shape[1] > (int64_t{1} << 30)) return Support::no(cat(x.shape[1], " classes, not 1 to 2^30"));
  return Support::yes();
}

constexpr int64_t kPiece = 1024;  // elements whose losses are computed before they are summed

enum class ElementLoss : uint8_t { kSquaredError, kBinaryEntropy };

template <ElementLoss kLoss>
class ElementwiseLoss : public PreparedKernel {
 public:
  explicit ElementwiseLoss(const KernelQuery& q)
      : reduction_(q.attrs<LossAttrs>().reduction), count_(q.in(0).elements()), pieces_((count_ + kPiece - 1) / kPiece) {}
  int64_t scratch_bytes() const override { return reduction_ == Reduction::kNone ? 0 : pieces_ * 8; }
  void run(Stream&, const KernelArgs& args) const override {
    const float *x = args.in<float>(0), *target = args.in<float>(1), *weight = args.in<float>(2);
    auto* parts = static_cast<double*>(args.scratch);
    const bool each = reduction_ == Reduction::kNone;
    const auto losses = kLoss == ElementLoss::kSquaredError ? HWY_DYNAMIC_DISPATCH(squared_errors) : HWY_DYNAMIC_DISPATCH(binary_entropies);
    parallel_for(pieces_, 16, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const int64_t at = p * kPiece, count = std::min(kPiece, count_ - at);
        float piece[kPiece];
        float* loss = each ? args.out<float>(0) + at : piece;
        losses(x + at, target + at, weight != nullptr ? weight + at : nullptr, loss, count);
        if (!each) parts[p] = HWY_DYNAMIC_DISPATCH(sum_of)(loss, count);
      }
    });
    if (each) return;
    double total = 0;
    for (int64_t p = 0; p < pieces_; ++p) total += parts[p];
    *args.out<float>(0) = static_cast<float>(reduction_ == Reduction::kMean ? total / static_cast<double>(count_) : total);
  }

 private:
  Reduction reduction_;
  int64_t count_, pieces_;
};

Support supports_elementwise(const KernelQuery& q) {
  const TensorType& x = q.in(0);
  for (const int i : {0, 1, 2}) {
    if (!q.has(i)) continue;
    if (q.in(i).dtype != DType::kF32) return Support::no(cat("input ", i, " has dtype ", q.in(i).dtype, ", not f32"));
    if (q.in(i).format.is_blocked() || !(q.in(i).format == x.format))
      return Support::no(
          cat("inputs 0 and ", i, " have formats ", x.format, " and ", q.in(i).format, "; they must be the same and not blocked"));
  }
  if (q.attrs<LossAttrs>().reduction == Reduction::kNone && !(q.out(0).format == x.format))
    return Support::no(cat("the output has format ", q.out(0).format, ", the input ", x.format));
  return Support::yes();
}

template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<T>(q);
}

const std::array<Kernel, 4> kKernels{
    {{"cross_entropy", "lines", [](const KernelQuery& q) { return supports_cross_entropy(q, 0); }, prepare<CrossEntropyForward>},
     {"cross_entropy_backward", "lines", [](const KernelQuery& q) { return supports_cross_entropy(q, 1); }, prepare<CrossEntropyBackward>},
     {"mse_loss", "pieces", supports_elementwise, prepare<ElementwiseLoss<ElementLoss::kSquaredError>>},
     {"bce_with_logits", "pieces", supports_elementwise, prepare<ElementwiseLoss<ElementLoss::kBinaryEntropy>>}}};

}  // namespace
}  // namespace losses

std::span<const Kernel> cpu_loss() { return losses::kKernels; }

}  // namespace galley
#endif  // HWY_ONCE
