#pragma once
// Evaluator: computes the metrics of a model over a split as sums over samples. Used during training and by galley-evaluate.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "libcore/infer/session.h"
#include "libcore/runtime/engine.h"
#include "libcore/tasks/metric_sums.h"

namespace galley {

class Communicator;
struct QuantizationPlan;

/// A compiled evaluation that can be repeated.
class Evaluator {
 public:
  /// Compiles the evaluation program for batches of `batch` samples: on integers if there is a plan (loaded_plan(recipe): that of the
  /// weights), else in float. `samples`: the largest number of samples; 0: all. `fake_quantize` rewrites the fused graph
  /// (QuantizationAware::fake_quantize). `cache`: keys and values are read as a key-value cache of this kind stores them
  /// (Session::capture_evaluation). `divide` rewrites the captured graph (passes/tensor_parallel.h); absent: nothing does. `bytes`: images
  /// are bytes where the device takes them (Session::takes_bytes), unless the program is quantized. The engine must outlive the evaluator.
  Evaluator(Session& session, Engine& engine, std::shared_ptr<const QuantizationPlan> plan, const std::string& split, int64_t batch,
            int64_t samples = 0, std::function<void(Graph&)> fake_quantize = nullptr, std::optional<CacheStorage> cache = {},
            const std::function<void(Graph&)>& divide = nullptr, bool bytes = true);
  ~Evaluator();

  const Program& program() const { return *program_; }
  std::shared_ptr<const Program> shared_program() const { return program_; }
  /// The meanings of the program's outputs.
  const CapturedResults& results() const { return results_; }
  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  /// Shape of a sample of the model's first input, without the batch.
  const Shape& sample_shape() const { return sample_shape_; }
  /// Null if the program computes in float.
  const std::shared_ptr<const QuantizationPlan>& plan() const { return plan_; }
  /// Host memory of a pass in bytes: data buffers, and copies of the results for collectors.
  int64_t data_bytes() const { return data_bytes_; }
  /// Binds the engine's parameters and scratch space. If `average` is a suffix of averaged parameters (".ema"), run() makes a second pass
  /// with these, whose metrics have the prefix "ema/".
  void bind(const std::string& average = "");
  /// Computes the metrics of the split; nullopt if `stop`, which is asked after each batch, returned true. Throws (kNumeric) if the split
  /// has no samples.
  /// `ranks`: each rank evaluates a part of every batch, and `stop` returns the same on all of them; nullptr: this rank alone.
  std::optional<MetricValues> run(const std::function<bool()>& stop, Communicator* ranks = nullptr);
  /// As the ranks' run, with equal bits for any number of ranks and threads: logical replicas evaluate parts of batches of `batch` samples
  /// each, and sums are added in the order of their tree. `ranks`: nullptr: one rank, which has all replicas.
  struct Replicas {
    int count = 1;
    int threads = 1;           ///< Of this rank, each of which runs one replica at a time.
    bool collectives = false;  ///< The program gathers parameters, so one thread runs it, equally often on all ranks.
  };
  std::optional<MetricValues> run(const std::function<bool()>& stop, Communicator* ranks, const Replicas& replicas);
  /// Whether ranks can divide the samples: all metrics are sums over samples.
  bool divides() const;
  MetricValues run() {
    return *run([] { return false; });
  }
  /// Number of samples of the last run.
  int64_t samples() const { return seen_; }
  /// Metrics of each class in the last run, where the task has them.
  const std::vector<ClassMetrics>& classes() const { return classes_; }
  /// Damaged samples of the last run that were replaced by others (on_error: skip).
  int64_t skipped() const { return skipped_; }
  /// Samples of the last run whose files have format errors but were read in full.
  int64_t irregular() const { return irregular_; }

 private:
  std::shared_ptr<const Program> compile(const BatchTypes& types);
  /// The execution for the size of the batch's images: `whole`, or one whose program is compiled when a batch first has that size.
  Execution& execution_for(const Batch& batch, Execution& whole);
  std::optional<MetricValues> pass(Execution& execution, const std::function<bool()>& stop, Communicator* ranks);
  std::optional<MetricValues> pass(const std::string& average, const std::function<bool()>& stop, Communicator* ranks,
                                   const Replicas& replicas);
  std::map<std::string, std::string> names_of(const std::string& average) const;
  void feed_cache_inputs(Execution& execution) const;
  std::string pipeline_key() const { return "data." + split_ + ".pipeline"; }

  std::vector<std::string> metrics_;
  CapturedResults results_;

  Session& session_;
  Engine& engine_;
  std::string split_;
  std::vector<ClassMetrics> classes_;
  int64_t batch_, limit_, seen_ = 0, skipped_ = 0, irregular_ = 0, data_bytes_ = 0;
  std::shared_ptr<const QuantizationPlan> plan_;
  std::function<void(Graph&)> fake_quantize_, divide_;
  std::optional<CacheStorage> cache_;
  bool bytes_;                                                           // whether loaders may hold images in bytes
  std::vector<BatchTypes> types_;                                        // of all sizes of images; the first are those of `program_`
  std::map<std::pair<size_t, bool>, std::unique_ptr<Execution>> sized_;  // by number in types_, and whether parameters are averages
  std::vector<ParameterSpec> parameters_;
  Shape sample_shape_;
  int64_t tokens_ = 0;  // of a sample that is read with a cache
  std::shared_ptr<const Program> program_;
  std::string average_suffix_;
  std::unique_ptr<Execution> execution_, average_;
};

}  // namespace galley
