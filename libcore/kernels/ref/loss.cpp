#include "libcore/ops/loss.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "libcore/kernels/ref/table.h"

namespace galley {
namespace {

/// One position of the logits: log-probabilities along the classes, and what its target asks for.
struct Position {
  std::vector<double> log_p;
  std::vector<double> target;  // weight of each class: class weight x smoothed target
  double normaliser = 0;       // what the mean divides by: the target's class weight, or 1 for probabilities
};

class CrossEntropy {
 public:
  CrossEntropy(const RefArray& logits, const RefArray& target, const RefArray* weight, bool probabilities, const CrossEntropyAttrs& attrs)
      : logits_(logits), target_(target), weight_(weight), probabilities_(probabilities), attrs_(attrs), classes_(logits.shape[1]) {
    for (int d = 2; d < logits.shape.rank(); ++d) inner_ *= logits.shape[d];
  }
  int64_t positions() const { return logits_.shape[0] * inner_; }
  int64_t index(int64_t position, int64_t c) const { return (position / inner_ * classes_ + c) * inner_ + position % inner_; }

  Position at(int64_t position) const {
    Position p;
    double top = logits_[index(position, 0)], sum = 0;
    for (int64_t c = 0; c < classes_; ++c) top = std::max(top, logits_[index(position, c)]);
    for (int64_t c = 0; c < classes_; ++c) sum += std::exp(logits_[index(position, c)] - top);
    const auto truth = probabilities_ ? int64_t{-1} : static_cast<int64_t>(target_[position]);
    const bool ignored = !probabilities_ && truth == attrs_.ignore_index;
    for (int64_t c = 0; c < classes_; ++c) {
      p.log_p.push_back(logits_[index(position, c)] - top - std::log(sum));
      const double given = probabilities_ ? target_[index(position, c)] : c == truth ? 1.0 : 0.0;
      const double smoothed = given * (1 - attrs_.label_smoothing) + attrs_.label_smoothing / static_cast<double>(classes_);
      p.target.push_back(ignored ? 0.0 : smoothed * (weight_ ? (*weight_)[c] : 1.0));
    }
    p.normaliser = ignored ? 0.0 : probabilities_ ? 1.0 : weight_ ? (*weight_)[truth] : 1.0;
    return p;
  }
  double normaliser() const {
    double sum = 0;
    for (int64_t i = 0; i < positions(); ++i) sum += at(i).normaliser;
    return sum;
  }
  int64_t classes() const { return classes_; }

 private:
  const RefArray& logits_;
  const RefArray& target_;
  const RefArray* weight_;
  bool probabilities_;
  const CrossEntropyAttrs& attrs_;
  int64_t classes_, inner_ = 1;
};

void cross_entropy_ref(RefCall& call) {
  const auto& attrs = call.attrs<CrossEntropyAttrs>();
  const CrossEntropy ce(call.in(0), call.in(1), call.has(2) ? &call.in(2) : nullptr, is_floating(call.context().in(1).dtype), attrs);
  double total = 0;
  for (int64_t i = 0; i < ce.positions(); ++i) {
    const Position p = ce.at(i);
    double loss = 0;
    for (int64_t c = 0; c < ce.classes(); ++c) {
      if (p.target[static_cast<size_t>(c)] != 0) loss -= p.target[static_cast<size_t>(c)] * p.log_p[static_cast<size_t>(c)];
    }
    if (attrs.reduction == Reduction::kNone) call.out()[i] = loss;
    total += loss;
  }
  if (attrs.reduction == Reduction::kSum) call.out()[0] = total;
  if (attrs.reduction == Reduction::kMean) call.out()[0] = total / ce.normaliser();
}

void cross_entropy_backward_ref(RefCall& call) {
  const auto& attrs = call.attrs<CrossEntropyAttrs>();
  const RefArray& grad = call.in(0);
  const CrossEntropy ce(call.in(1), call.in(2), call.has(3) ? &call.in(3) : nullptr, is_floating(call.context().in(2).dtype), attrs);
  const double scale = attrs.reduction == Reduction::kMean ? 1 / ce.normaliser() : 1;
  for (int64_t i = 0; i < ce.positions(); ++i) {
    const Position p = ce.at(i);
    double sum = 0;
    for (double target : p.target) sum += target;
    const double g = grad[attrs.reduction == Reduction::kNone ? i : 0] * scale;
    for (int64_t c = 0; c < ce.classes(); ++c) {
      const auto k = static_cast<size_t>(c);
      call.out()[ce.index(i, c)] = g * (std::exp(p.log_p[k]) * sum - p.target[k]);
    }
  }
}

template <class Term>
void elementwise_loss(RefCall& call, Term term) {
  const Reduction reduction = call.attrs<LossAttrs>().reduction;
  const int64_t count = call.in(0).shape.elements();
  double total = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double loss = term(i);
    if (reduction == Reduction::kNone) call.out()[i] = loss;
    total += loss;
  }
  if (reduction == Reduction::kSum) call.out()[0] = total;
  if (reduction == Reduction::kMean) call.out()[0] = total / static_cast<double>(count);
}

void mse_ref(RefCall& call) {
  elementwise_loss(call, [&](int64_t i) { return (call.in(0)[i] - call.in(1)[i]) * (call.in(0)[i] - call.in(1)[i]); });
}

void bce_ref(RefCall& call) {
  elementwise_loss(call, [&](int64_t i) {
    const double x = call.in(0)[i];
    const double loss = std::max(x, 0.0) - x * call.in(1)[i] + std::log1p(std::exp(-std::fabs(x)));
    return call.has(2) ? call.in(2)[i] * loss : loss;
  });
}

constexpr std::array kEntries{RefEntry{"cross_entropy", cross_entropy_ref}, RefEntry{"cross_entropy_backward", cross_entropy_backward_ref},
                              RefEntry{"mse_loss", mse_ref}, RefEntry{"bce_with_logits", bce_ref}};

}  // namespace

std::span<const RefEntry> ref_loss() { return kEntries; }

}  // namespace galley
