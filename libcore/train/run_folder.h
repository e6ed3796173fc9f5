#pragma once
// The files of a RUN folder besides weights and checkpoints: recipe.yaml (resolved), metrics.jsonl (one line per logged step and per
// evaluation), result.json (written at the end). Scripts rely on the keys.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "libcore/runtime/engine.h"
#include "libcore/tasks/metrics.h"

namespace galley {

/// One update. `samples` is cumulative. `loss` is that of the step's batch before its update, with label smoothing, without weight decay.
/// `lr` is the learning rate of this update, `grad_norm` the norm before clipping; with a loss scale, an update with a norm that is not
/// finite was skipped.
struct TrainRow {
  int64_t step = 0;
  double epoch = 0;
  int64_t samples = 0;
  double loss = 0, lr = 0, grad_norm = 0, step_ms = 0, data_ms = 0, samples_per_s = 0;
  int64_t peak_bytes = 0;
  std::optional<double> loss_scale;  ///< After the update; empty: the loss is not scaled.
  MetricValues losses;               ///< Parts of `loss`, each without its weight; empty if there is only one.
};

/// One evaluation.
struct EvalRow {
  int64_t step = 0;
  double epoch = 0;
  std::string split;
  int64_t samples = 0;
  double wall_s = 0;
  MetricValues metrics;
  std::vector<std::pair<std::string, std::string>> texts;  ///< Prompts and their continuations (train.validate.prompts).
};

/// The best value of a metric so far.
struct BestValue {
  std::string metric;
  double value = 0;
  int64_t step = 0;
  std::string weights;  ///< File name in RUN; "" if no weights are kept.
};

/// The contents of result.json.
struct TrainResult {
  MetricValues metrics;  ///< Of the final evaluation; empty without one.
  MetricValues losses;   ///< Parts of the objective at the last step, as in TrainRow.
  BestValue best;        ///< `metric` is empty without a best value.
  int64_t steps = 0;
  double epochs = 0;
  int64_t samples = 0;
  double wall_s = 0;                      ///< Of the whole run.
  double session_s = 0;                   ///< Of this process.
  std::string stopped = "done";           ///< done | early_stop | signal | nan.
  std::string digest;                     ///< Of all parameters (digest_of_tensors); "" in results of old versions.
  std::vector<Compilation> compilations;  ///< Of this process, in order.
  int64_t micro = 0, ranks = 1;
  std::string strategy = "none";  ///< How training was divided among the ranks.
  int64_t planned_peak_bytes = 0, peak_bytes = 0;
  /// The same of each rank, where ranks are processes.
  std::vector<int64_t> planned_peak_of_ranks, peak_of_ranks;
  int64_t skipped = 0;     ///< Damaged samples that were replaced (on_error: skip), over the whole run.
  int64_t irregular = 0;   ///< Samples from files with format errors that were read in full (e.g. JPEGs without an end marker).
  std::string provenance;  ///< A JSON object.
};

/// JSON text in one line, without newline. Non-finite numbers are the strings "nan", "inf", "-inf".
std::string to_json(const TrainRow& row);
std::string to_json(const EvalRow& row);
std::string to_json(const TrainResult& result);
/// Parses result.json. Throws Error (kInput) if it is damaged.
TrainResult parse_result(const std::string& text, const std::string& path);

/// Writes the files of a RUN folder.
class RunFolder {
 public:
  /// Creates the folder if it does not exist. Throws Error (kResource) if it cannot be written.
  /// `writes`: false for ranks other than 0, which write nothing.
  explicit RunFolder(std::string path, bool writes = true);
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

  /// Appends a line to metrics.jsonl.
  void append(const std::string& json_line);
  /// Removes the lines of metrics.jsonl after this step. A resumed run writes them again.
  void truncate_after(int64_t step);
  /// Replaces a small text file durably (fsync before the rename).
  void write_text(const std::string& name, const std::string& text);

 private:
  std::string path_;
  bool writes_;
};

}  // namespace galley
