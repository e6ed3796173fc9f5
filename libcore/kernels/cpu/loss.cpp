// Losses. Cross entropy goes one position (sample, pixel) at a time, or by bundles of neighbouring pixels; its loss is -sum_c share[c] log
// softmax(logits)[c], where share[c] = weight[c] ((1 - smoothing) hit[c] + smoothing / C), 0 for an ignored target. Sums run over fixed
// pieces, added in double in one order: bits do not depend on the thread count.

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "libcore/base/parallel.h"
#include "libcore/kernels/cpu/softmax_lines.h"
#include "libcore/kernels/cpu/table.h"
#include "libcore/kernels/cpu/vector_math.h"
#include "libcore/ops/loss.h"

namespace galley {
namespace {

/// One line or a bundle of lines of classes, `step` apart, as the loops below want it. The target of line l is `classes[l]` (ignored: kept[l]
/// is 0), or `probabilities` that lie as the logits.
struct Shares {
  const float* weight;  // [C] or nullptr
  const float* probabilities;
  float hit, smoothing;  // 1 - label_smoothing, label_smoothing / C
};

GALLEY_INLINE float share_of(const Shares& s, float weight, bool of_class, float probability) {
  return weight * (s.hit * (s.probabilities != nullptr ? probability : of_class ? 1.0f : 0.0f) + s.smoothing);
}

/// One line: sum of share (log sum exp - x); a class without a share does not count, whatever its logit. `total`: of shares.
GALLEY_CLONES float line_loss(const float* x, float largest, float log_sum, int32_t target, int32_t length, Shares s, float* total) {
  constexpr int32_t kLanes = 16;
  float loss[kLanes] = {}, shares[kLanes] = {};
  for (int32_t begin = 0; begin < length; begin += kLanes) {
    const int32_t count = std::min(kLanes, length - begin);
    for (int32_t l = 0; l < count; ++l) {
      const int32_t c = begin + l;
      const float share = share_of(s, s.weight != nullptr ? s.weight[c] : 1.0f, c == target, s.probabilities != nullptr ? s.probabilities[c] : 0.0f);
      loss[l] += share != 0.0f ? share * ((largest - x[c]) + log_sum) : 0.0f;
      shares[l] += share;
    }
  }
  float sum = 0;
  *total = 0;
  for (int32_t l = 0; l < kLanes; ++l) {
    sum += loss[l];
    *total += shares[l];
  }
  return sum;
}

/// One line: dx, which holds exp(x - largest), becomes factor (dx scale - share).
GALLEY_CLONES void line_slope(float* dx, float scale, float factor, float kept, int32_t target, int32_t length, Shares s) {
  for (int32_t c = 0; c < length; ++c) {
    const float share = kept * share_of(s, s.weight != nullptr ? s.weight[c] : 1.0f, c == target, s.probabilities != nullptr ? s.probabilities[c] : 0.0f);
    const float slope = dx[c] * scale - share;
    dx[c] = slope == 0.0f ? 0.0f : factor * slope;  // nothing counted in the mean: 0 rather than 0/0
  }
}

/// As line_loss for a bundle.
GALLEY_CLONES void bundle_loss(const float* x, const float* largest, const float* sum, const int32_t* target, int32_t length, int64_t step, int64_t count, Shares s, float* loss,
                               float* total) {
  float log_sum[kBundle];
  for (int64_t l = 0; l < count; ++l) {
    log_sum[l] = log_of(sum[l]);
    loss[l] = total[l] = 0;
  }
  for (int32_t c = 0; c < length; ++c) {
    const float weight = s.weight != nullptr ? s.weight[c] : 1.0f;
    const float* row = x + c * step;
    const float* probability = s.probabilities != nullptr ? s.probabilities + c * step : row;
    for (int64_t l = 0; l < count; ++l) {
      const float share = share_of(s, weight, c == target[l], probability[l]);
      loss[l] += share != 0.0f ? share * ((largest[l] - row[l]) + log_sum[l]) : 0.0f;
      total[l] += share;
    }
  }
}

/// As line_slope for a bundle.
GALLEY_CLONES void bundle_slope(float* dx, const float* scale, const float* factor, const float* kept, const int32_t* target, int32_t length, int64_t step, int64_t count, Shares s) {
  for (int32_t c = 0; c < length; ++c) {
    const float weight = s.weight != nullptr ? s.weight[c] : 1.0f;
    float* row = dx + c * step;
    const float* probability = s.probabilities != nullptr ? s.probabilities + c * step : row;
    for (int64_t l = 0; l < count; ++l) {
      const float slope = row[l] * scale[l] - kept[l] * share_of(s, weight, c == target[l], probability[l]);
      row[l] = slope == 0.0f ? 0.0f : factor[l] * slope;
    }
  }
}

/// Positions in bundles: neighbouring pixels of a sample, or (without pixels) neighbouring samples.
class CrossEntropy : public PreparedKernel {
 public:
  CrossEntropy(const KernelQuery& q, int logits)
      : attrs_(q.attrs<CrossEntropyAttrs>()), lines_(lines_of(q.in(logits), 1)), logits_(static_cast<size_t>(logits)), probabilities_(is_floating(q.in(logits + 1).dtype)) {
    per_sample_ = lines_.inner == 1 ? 1 : bundles_of(lines_);
    tasks_ = lines_.inner == 1 ? (lines_.outer + kBundle - 1) / kBundle : lines_.outer * per_sample_;
    grain_ = std::max<int64_t>(1, 16384 / (kBundle * std::max<int64_t>(1, lines_.length)));
  }

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
    int32_t classes[kBundle];
    float kept[kBundle];
    double weight = 0;  // what the mean is divided by
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
      GALLEY_CHECK_INPUT(c >= 0 && c < lines_.length, "target ", b.begin + l, " is class ", c, ", the logits have ", lines_.length, " classes");
      t.classes[l] = static_cast<int32_t>(c);
      t.weight += weight != nullptr ? static_cast<double>(weight[c]) : 1.0;
    }
    return t;
  }

  Shares shares(const KernelArgs& args, int64_t at) const {
    return {args.in<float>(logits_ + 2), probabilities_ ? args.in<float>(logits_ + 1) + at : nullptr, static_cast<float>(1 - attrs_.label_smoothing),
            static_cast<float>(attrs_.label_smoothing / static_cast<double>(lines_.length))};
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
  int64_t scratch_bytes() const override { return attrs_.reduction == Reduction::kNone ? 0 : tasks_ * 16; }
  void run(const KernelArgs& args) const override {
    const bool each = attrs_.reduction == Reduction::kNone;
    auto* parts = static_cast<double*>(args.scratch);  // of each bundle: loss, weight
    parallel_for(tasks_, grain_, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const Bundle b = bundle(task);
        const Targets t = targets(args, b);
        float loss[kBundle];
        bundle_losses(args, b, t, loss);
        double sum = 0;
        for (int64_t l = 0; l < b.count; ++l) {
          if (t.kept[l] == 0) loss[l] = 0;
          sum += static_cast<double>(loss[l]);
          if (each) args.out<float>(0)[b.begin + l] = loss[l];
        }
        if (each) continue;
        parts[2 * task] = sum;
        parts[2 * task + 1] = t.weight;
      }
    });
    if (each) return;
    double loss = 0, weight = 0;
    for (int64_t task = 0; task < tasks_; ++task) {
      loss += parts[2 * task];
      weight += parts[2 * task + 1];
    }
    *args.out<float>(0) = static_cast<float>(attrs_.reduction == Reduction::kMean ? loss / weight : loss);
  }

 private:
  void bundle_losses(const KernelArgs& args, const Bundle& b, const Targets& t, float* loss) const {
    const float* x = args.in<float>(0) + b.at;
    const auto length = static_cast<int32_t>(lines_.length);
    const Shares s = shares(args, b.at);
    const bool only_target = !probabilities_ && attrs_.label_smoothing == 0;
    float largest[kBundle], sum[kBundle], total[kBundle];
    if (lines_.inner > 1) {
      bundle_maximum(x, length, lines_.inner, b.count, largest);
      bundle_exp_sum(x, largest, nullptr, length, lines_.inner, b.count, sum);
      if (!only_target) {
        bundle_loss(x, largest, sum, t.classes, length, lines_.inner, b.count, s, loss, total);
        return;
      }
    }
    for (int64_t l = 0; l < b.count; ++l) {
      if (lines_.inner == 1) {
        largest[l] = line_maximum(x + l * length, length);
        sum[l] = line_exp_sum(x + l * length, largest[l], nullptr, length);
      }
      const float log_sum = std::log(sum[l]);
      if (!only_target) {
        Shares of_line = s;
        if (s.probabilities != nullptr) of_line.probabilities += l * length;
        loss[l] = line_loss(x + l * length, largest[l], log_sum, t.classes[l], length, of_line, &total[l]);
        continue;
      }
      const int32_t c = t.classes[l];
      const float weight = c < 0 ? 0.0f : s.weight != nullptr ? s.weight[c] : 1.0f;
      loss[l] = weight != 0 ? weight * ((largest[l] - x[lines_.inner == 1 ? l * length + c : c * lines_.inner + l]) + log_sum) : 0.0f;
    }
  }
};

class CrossEntropyBackward : public CrossEntropy {
 public:
  explicit CrossEntropyBackward(const KernelQuery& q) : CrossEntropy(q, 1) {}
  int64_t scratch_bytes() const override { return tasks_ * 8; }
  void run(const KernelArgs& args) const override {
    const float* grad = args.in<float>(0);
    const float* x = args.in<float>(1);
    const float* weight = args.in<float>(3);
    const bool each = attrs_.reduction == Reduction::kNone;
    const double divisor = attrs_.reduction == Reduction::kMean ? total_weight(args) : 1;
    const auto length = static_cast<int32_t>(lines_.length);
    double weights = static_cast<double>(length);
    if (weight != nullptr) {
      weights = 0;
      for (int32_t c = 0; c < length; ++c) weights += static_cast<double>(weight[c]);
    }
    parallel_for(tasks_, grain_, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const Bundle b = bundle(task);
        const Targets t = targets(args, b);
        const Shares s = shares(args, b.at);
        float largest[kBundle], sum[kBundle], scale[kBundle], factor[kBundle];
        float* dx = args.out<float>(0) + b.at;
        if (lines_.inner > 1) {
          bundle_maximum(x + b.at, length, lines_.inner, b.count, largest);
          bundle_exp_sum(x + b.at, largest, dx, length, lines_.inner, b.count, sum);
          if (probabilities_) {
            float loss[kBundle];
            bundle_loss(x + b.at, largest, sum, t.classes, length, lines_.inner, b.count, s, loss, scale);
          }
        }
        for (int64_t l = 0; l < b.count; ++l) {
          Shares of_line = s;
          if (lines_.inner == 1) {
            const float* row = x + b.at + l * length;
            largest[l] = line_maximum(row, length);
            sum[l] = line_exp_sum(row, largest[l], dx + l * length, length);
            if (probabilities_) {
              of_line.probabilities += l * length;
              line_loss(row, largest[l], 0, -1, length, of_line, &scale[l]);
            }
          }
          // The sum of all shares, over the sum of exponentials.
          const double hit = t.classes[l] < 0 ? 0 : weight != nullptr ? static_cast<double>(weight[t.classes[l]]) : 1;
          const double total = probabilities_ ? static_cast<double>(scale[l]) : static_cast<double>(s.hit) * hit + static_cast<double>(s.smoothing) * weights;
          scale[l] = static_cast<float>(static_cast<double>(t.kept[l]) * total / static_cast<double>(sum[l]));
          factor[l] = static_cast<float>(static_cast<double>(grad[each ? b.begin + l : 0]) / divisor);
          if (lines_.inner == 1) line_slope(dx + l * length, scale[l], factor[l], t.kept[l], t.classes[l], length, of_line);
        }
        if (lines_.inner > 1) bundle_slope(dx, scale, factor, t.kept, t.classes, length, lines_.inner, b.count, s);
      }
    });
  }

 private:
  double total_weight(const KernelArgs& args) const {
    auto* parts = static_cast<double*>(args.scratch);
    parallel_for(tasks_, 64, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) parts[task] = targets(args, bundle(task)).weight;
    });
    double weight = 0;
    for (int64_t task = 0; task < tasks_; ++task) weight += parts[task];
    return weight;
  }
};

Support supports_cross_entropy(const KernelQuery& q, int logits) {
  const TensorType &x = q.in(logits), &target = q.in(logits + 1);
  if (x.dtype != DType::kF32) return Support::no(cat("dtype ", x.dtype));
  if (target.dtype != DType::kF32 && target.dtype != DType::kI64) return Support::no(cat("targets of dtype ", target.dtype));
  if (q.has(logits + 2) && q.in(logits + 2).dtype != DType::kF32) return Support::no(cat("weights of dtype ", q.in(logits + 2).dtype));
  if (!x.format.is_contiguous() || !target.format.is_contiguous() || !q.out(0).format.is_contiguous()) return Support::no(cat("format ", x.format));
  if (logits == 1 && q.in(0).dtype != DType::kF32) return Support::no(cat("gradient of dtype ", q.in(0).dtype));
  if (x.shape[1] == 0 || x.shape[1] > (int64_t{1} << 30)) return Support::no("no or too many classes");
  return Support::yes();
}

constexpr int64_t kPiece = 1024;  // elements whose losses are made before they are summed

GALLEY_CLONES void squared_errors(const float* x, const float* target, const float*, float* loss, int64_t count) {
  for (int64_t i = 0; i < count; ++i) loss[i] = (x[i] - target[i]) * (x[i] - target[i]);
}
GALLEY_CLONES void binary_entropies(const float* x, const float* target, const float* weight, float* loss, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float one = at_least(x[i], 0.0f) - x[i] * target[i] + log1p_of(exp_of(-__builtin_fabsf(x[i])));
    loss[i] = weight != nullptr ? one * weight[i] : one;
  }
}
GALLEY_CLONES double sum_piece(const float* x, int64_t count) {
  constexpr int64_t kLanes = 32;
  double lanes[kLanes] = {};
  const int64_t whole = count - count % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t c = 0; c < kLanes; ++c) lanes[c] += static_cast<double>(x[i + c]);
  }
  for (int64_t c = 0; c < count - whole; ++c) lanes[c] += static_cast<double>(x[whole + c]);
  double total = 0;
  for (const double lane : lanes) total += lane;
  return total;
}

using ElementLoss = void (*)(const float*, const float*, const float*, float*, int64_t);

template <ElementLoss kLoss>
class ElementwiseLoss : public PreparedKernel {
 public:
  explicit ElementwiseLoss(const KernelQuery& q) : reduction_(q.attrs<LossAttrs>().reduction), count_(q.in(0).elements()), pieces_((count_ + kPiece - 1) / kPiece) {}
  int64_t scratch_bytes() const override { return reduction_ == Reduction::kNone ? 0 : pieces_ * 8; }
  void run(const KernelArgs& args) const override {
    const float *x = args.in<float>(0), *target = args.in<float>(1), *weight = args.in<float>(2);
    auto* parts = static_cast<double*>(args.scratch);
    const bool each = reduction_ == Reduction::kNone;
    parallel_for(pieces_, 16, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const int64_t at = p * kPiece, count = std::min(kPiece, count_ - at);
        float losses[kPiece];
        float* loss = each ? args.out<float>(0) + at : losses;
        kLoss(x + at, target + at, weight != nullptr ? weight + at : nullptr, loss, count);
        if (!each) parts[p] = sum_piece(loss, count);
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
    if (q.in(i).dtype != DType::kF32) return Support::no(cat("dtype ", q.in(i).dtype));
    if (q.in(i).format.is_blocked() || !(q.in(i).format == x.format)) return Support::no(cat("formats ", x.format, " and ", q.in(i).format));
  }
  if (q.attrs<LossAttrs>().reduction == Reduction::kNone && !(q.out(0).format == x.format)) return Support::no("output in another format");
  return Support::yes();
}

template <class T>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  return std::make_unique<T>(q);
}

const std::array<Kernel, 4> kKernels{{{"cross_entropy", "cpu", [](const KernelQuery& q) { return supports_cross_entropy(q, 0); }, prepare<CrossEntropyForward>},
                                      {"cross_entropy_backward", "cpu", [](const KernelQuery& q) { return supports_cross_entropy(q, 1); }, prepare<CrossEntropyBackward>},
                                      {"mse_loss", "cpu", supports_elementwise, prepare<ElementwiseLoss<squared_errors>>},
                                      {"bce_with_logits", "cpu", supports_elementwise, prepare<ElementwiseLoss<binary_entropies>>}}};

}  // namespace

std::span<const Kernel> cpu_loss() { return kKernels; }

}  // namespace galley
