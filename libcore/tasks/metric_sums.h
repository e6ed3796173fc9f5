#pragma once
// MetricSums: the metrics of a task over the batches of one evaluation.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "libcore/tasks/capture.h"
#include "libcore/tasks/task.h"

namespace galley {

class MetricSums {
 public:
  /// `names`: of metric_names(task, ...). `results`: what the outputs of the evaluation's graph mean.
  MetricSums(const Task& task, std::vector<std::string> names, const CapturedResults& results);
  /// Adds the first `batch.valid` samples of a batch. `output` gives the graph's outputs for it by name.
  void add(const std::function<Tensor(const std::string&)>& output, const Batch& batch);
  int64_t samples() const { return samples_; }
  /// In the order of the names. Throws Error (kNumeric) where no sample was added.
  MetricValues values() const;

 private:
  struct Sum {
    std::string metric, output;
    double total = 0;
    int64_t count = 0;
  };
  std::vector<std::string> names_;
  std::vector<std::string> results_;
  std::vector<Sum> sums_;
  std::unique_ptr<Collector> collector_;
  int64_t samples_ = 0;
};

}  // namespace galley
