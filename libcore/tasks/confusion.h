#pragma once
// Confusion: how often each class was predicted for each true class, and the scores that follow from it.

#include <cmath>
#include <cstdint>
#include <vector>

namespace galley {

class Confusion {
 public:
  /// The number of classes; must not change once counts were added.
  void resize(int64_t classes) {
    classes_ = classes;
    counts_.resize(static_cast<size_t>(classes * classes));
  }
  void add(int64_t truth, int64_t predicted) { ++counts_[static_cast<size_t>(truth * classes_ + predicted)]; }

  /// Of two classes the F1 score of class 1, else the mean F1 score of the classes that occur as truth or prediction; 0 if there are none.
  double f1() const {
    if (classes_ == 2) return f1_of(1);
    double sum = 0;
    int64_t occurring = 0;
    for (int64_t k = 0; k < classes_; ++k) {
      if (truths(k) + predictions(k) == 0) continue;
      sum += f1_of(k);
      ++occurring;
    }
    return occurring == 0 ? 0 : sum / static_cast<double>(occurring);
  }
  /// Matthews' correlation coefficient (Gorodkin 2004 for more than two classes); 0 where truth or prediction is constant.
  double mcc() const {
    double correct = 0, all = 0, product = 0, predicted = 0, truth = 0;
    for (int64_t k = 0; k < classes_; ++k) {
      const auto p = static_cast<double>(predictions(k)), t = static_cast<double>(truths(k));
      correct += static_cast<double>(at(k, k));
      all += t;
      product += p * t;
      predicted += p * p;
      truth += t * t;
    }
    const double spread = (all * all - predicted) * (all * all - truth);
    return spread > 0 ? (correct * all - product) / std::sqrt(spread) : 0;
  }

 private:
  int64_t at(int64_t truth, int64_t predicted) const { return counts_[static_cast<size_t>(truth * classes_ + predicted)]; }
  int64_t truths(int64_t k) const {
    int64_t sum = 0;
    for (int64_t j = 0; j < classes_; ++j) sum += at(k, j);
    return sum;
  }
  int64_t predictions(int64_t k) const {
    int64_t sum = 0;
    for (int64_t j = 0; j < classes_; ++j) sum += at(j, k);
    return sum;
  }
  double f1_of(int64_t k) const {
    const int64_t both = truths(k) + predictions(k);
    return both == 0 ? 0 : 2 * static_cast<double>(at(k, k)) / static_cast<double>(both);
  }

  int64_t classes_ = 0;
  std::vector<int64_t> counts_;
};

}  // namespace galley
