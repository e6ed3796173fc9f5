#pragma once
// MetricSums: accumulates the metrics of a task over the batches of one evaluation.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "libcore/tasks/capture.h"
#include "libcore/tasks/task.h"

namespace galley {

class DataLoader;
class Source;

/// The metrics of one evaluation.
class MetricSums {
 public:
  /// `names`: from metric_names(task, ...). `results`: the meanings of the outputs of the evaluation's graph.
  MetricSums(const Task& task, std::vector<std::string> names, const CapturedResults& results);
  /// The source of the samples (SourceCollector).
  void begin(const Source& source);
  /// The same for the samples of a loader, whose places in the original images are known.
  void begin(const DataLoader& loader);
  /// Adds the first `batch.valid` samples of a batch. `output` returns an output of the graph for this batch by name.
  void add(const std::function<Tensor(const std::string&)>& output, const Batch& batch);
  /// Names of the outputs that `add` passes to the collector, all of one batch together.
  const std::vector<std::string>& results() const { return results_; }
  int64_t samples() const { return samples_; }
  /// Whether sums over samples determine all metrics, so that ranks can evaluate parts of a batch and add their sums.
  bool only_sums() const;
  /// Adds the sums of other ranks. `sum` replaces each number by its sum over ranks. Only if only_sums().
  void add_others(const std::function<void(std::span<double>)>& sum);
  /// The metrics in the order of the names. Throws Error (kNumeric) if no sample was added.
  MetricValues values() const;
  /// Metrics of each class, where the task has them.
  std::vector<ClassMetrics> classes() const;

 private:
  struct Sum {
    std::string metric, output;
    double total = 0;
    int64_t count = 0;
  };
  std::vector<std::string> names_;
  std::vector<std::string> results_;  // those that the collector reads
  std::vector<Sum> sums_;
  std::unique_ptr<Collector> collector_;
  int64_t samples_ = 0;
};

}  // namespace galley
