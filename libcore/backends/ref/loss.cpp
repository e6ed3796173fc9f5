#include "libcore/ops/loss.h"

#include <algorithm>
#include <cmath>

#include "libcore/backends/ref/ref.h"

namespace galley {
namespace {

/// Cross entropy, one position (sample, pixel) at a time: loss = -sum_c share[c] log softmax(logits)[c], where `share` holds class weight,
/// target and label smoothing; 0 everywhere for an ignored target. By torch.nn.functional.cross_entropy's definition.
class CrossEntropy {
 public:
  CrossEntropy(const CrossEntropyAttrs& attrs, const RefArray& logits, const RefArray& target, const RefArray* weight, bool probabilities)
      : attrs_(attrs), logits_(logits), target_(target), weight_(weight), probabilities_(probabilities), classes_(logits.shape[1]) {
    for (int axis = 2; axis < logits.shape.rank(); ++axis) inner_ *= logits.shape[axis];
    positions_ = logits.shape[0] * inner_;
  }

  int64_t positions() const { return positions_; }
  int64_t index(int64_t position, int64_t c) const { return (position / inner_ * classes_ + c) * inner_ + position % inner_; }

  std::vector<double> log_probabilities(int64_t position) const {
    std::vector<double> log_p(static_cast<size_t>(classes_));
    for (int64_t c = 0; c < classes_; ++c) log_p[static_cast<size_t>(c)] = logits_[index(position, c)];
    const double largest = *std::max_element(log_p.begin(), log_p.end());
    double sum = 0;
    for (double value : log_p) sum += std::exp(value - largest);
    for (double& value : log_p) value -= largest + std::log(sum);
    return log_p;
  }

  std::vector<double> shares(int64_t position) const {
    std::vector<double> share(static_cast<size_t>(classes_));
    const double smoothing = attrs_.label_smoothing / static_cast<double>(classes_);
    if (ignored(position)) return share;
    for (int64_t c = 0; c < classes_; ++c) {
      const double hit = probabilities_ ? target_[index(position, c)] : c == class_of(position) ? 1 : 0;
      share[static_cast<size_t>(c)] = weight_of(c) * ((1 - attrs_.label_smoothing) * hit + smoothing);
    }
    return share;
  }

  /// What the sum is divided by: the weights of the targets, or the positions where targets are probabilities.
  double divisor() const {
    if (attrs_.reduction != Reduction::kMean) return 1;
    if (probabilities_) return static_cast<double>(positions_);
    double sum = 0;
    for (int64_t position = 0; position < positions_; ++position) sum += ignored(position) ? 0 : weight_of(class_of(position));
    return sum;
  }

 private:
  bool ignored(int64_t position) const { return !probabilities_ && static_cast<int64_t>(target_[position]) == attrs_.ignore_index; }
  int64_t class_of(int64_t position) const {
    const auto c = static_cast<int64_t>(target_[position]);
    GALLEY_CHECK_INPUT(c >= 0 && c < classes_, "target ", position, " is class ", c, ", the logits have ", classes_, " classes");
    return c;
  }
  double weight_of(int64_t c) const { return weight_ == nullptr ? 1 : (*weight_)[c]; }

  const CrossEntropyAttrs& attrs_;
  const RefArray& logits_;
  const RefArray& target_;
  const RefArray* weight_;
  bool probabilities_;
  int64_t classes_, inner_ = 1, positions_ = 0;
};

CrossEntropy cross_entropy_of(RefCall& call, size_t logits) {
  return {call.attrs<CrossEntropyAttrs>(), call.in(logits), call.in(logits + 1), call.has(logits + 2) ? &call.in(logits + 2) : nullptr,
          is_floating(call.context().in(static_cast<int>(logits) + 1).dtype)};
}

void cross_entropy_ref(RefCall& call) {
  const CrossEntropy of = cross_entropy_of(call, 0);
  const bool each = call.attrs<CrossEntropyAttrs>().reduction == Reduction::kNone;
  for (int64_t position = 0; position < of.positions(); ++position) {
    const std::vector<double> log_p = of.log_probabilities(position), share = of.shares(position);
    for (size_t c = 0; c < share.size(); ++c) {
      if (share[c] != 0) call.out()[each ? position : 0] -= share[c] * log_p[c];  // a logit of -inf without a share does not count
    }
  }
  if (!each) call.out()[0] /= of.divisor();
}

void cross_entropy_backward_ref(RefCall& call) {
  const CrossEntropy of = cross_entropy_of(call, 1);
  const bool each = call.attrs<CrossEntropyAttrs>().reduction == Reduction::kNone;
  const double divisor = of.divisor();
  for (int64_t position = 0; position < of.positions(); ++position) {
    const std::vector<double> log_p = of.log_probabilities(position), share = of.shares(position);
    double total = 0;
    for (double value : share) total += value;
    for (size_t c = 0; c < share.size(); ++c) {
      const double slope = std::exp(log_p[c]) * total - share[c];
      // Nothing counted in the mean: no gradient, rather than 0/0.
      call.out()[of.index(position, static_cast<int64_t>(c))] = slope == 0 ? 0 : call.in(0)[each ? position : 0] * slope / divisor;
    }
  }
}

template <double (*kLoss)(double x, double target)>
void elementwise_loss_ref(RefCall& call) {
  const Reduction reduction = call.attrs<LossAttrs>().reduction;
  const RefArray& x = call.in(0);
  for (int64_t i = 0; i < x.shape.elements(); ++i) {
    const double loss = kLoss(x[i], call.in(1)[i]) * (call.has(2) ? call.in(2)[i] : 1);
    call.out()[reduction == Reduction::kNone ? i : 0] += loss;
  }
  if (reduction == Reduction::kMean) call.out()[0] /= static_cast<double>(x.shape.elements());
}

double squared_error(double x, double target) { return (x - target) * (x - target); }
double binary_cross_entropy(double x, double target) { return std::max(x, 0.0) - x * target + std::log1p(std::exp(-std::abs(x))); }

constexpr RefEntry kEntries[] = {
    {"cross_entropy", cross_entropy_ref},
    {"cross_entropy_backward", cross_entropy_backward_ref},
    {"mse_loss", elementwise_loss_ref<squared_error>},
    {"bce_with_logits", elementwise_loss_ref<binary_cross_entropy>},
};

}  // namespace

std::span<const RefEntry> ref_loss() { return kEntries; }

}  // namespace galley
