#pragma once
// RUN: what a training leaves on disk besides weights and checkpoints. recipe.yaml (resolved), metrics.jsonl (a line a logged step and a
// line an evaluation), result.json (the end). The keys are the tools' contract.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "libcore/runtime/engine.h"
#include "libcore/tasks/metrics.h"

namespace galley {

/// One update. `samples` is cumulative; `loss` is the step's batch before its update, label smoothing included, weight decay not;
/// `lr` as used in this update; `grad_norm` before clipping.
struct TrainRow {
  int64_t step = 0;
  double epoch = 0;
  int64_t samples = 0;
  double loss = 0, lr = 0, grad_norm = 0, step_ms = 0, data_ms = 0, samples_per_s = 0;
  int64_t peak_bytes = 0;
  MetricValues losses;  // parts of `loss`, each without its weight; empty where there is one
};

struct EvalRow {
  int64_t step = 0;
  double epoch = 0;
  std::string split;
  int64_t samples = 0;
  double wall_s = 0;
  MetricValues metrics;
};

struct BestValue {
  std::string metric;
  double value = 0;
  int64_t step = 0;
  std::string weights;  // file name below RUN, "" where none is kept
};

struct TrainResult {
  MetricValues metrics;  // of the final evaluation, empty where there is none
  MetricValues losses;   // parts of the objective at the last step, as TrainRow has them
  BestValue best;        // metric empty: none
  int64_t steps = 0;
  double epochs = 0;
  int64_t samples = 0;
  double wall_s = 0;
  std::string stopped = "done";  // done | early_stop | signal | nan
  std::string digest;            // of all parameters (weights/safetensors.h: digest_of_tensors); "": a result of before there was one
  std::vector<Compilation> compilations;  // of this process, in order
  int64_t micro = 0, ranks = 1;
  int64_t planned_peak_bytes = 0, peak_bytes = 0;
  int64_t skipped = 0;     // damaged samples that were replaced (on_error: skip), over the whole run
  int64_t irregular = 0;   // samples of irregular files that were read in full (JPEGs without an end marker, ...), over the whole run
  std::string provenance;  // a JSON object
};

/// JSON text of each, one line without newline; non-finite numbers are the strings "nan", "inf", "-inf".
std::string to_json(const TrainRow& row);
std::string to_json(const EvalRow& row);
std::string to_json(const TrainResult& result);
/// Reads result.json back; throws Error (kInput) where it is damaged.
TrainResult parse_result(const std::string& text, const std::string& path);

class RunFolder {
 public:
  /// Makes the folder where it is missing. Throws Error (kResource) where it cannot be written.
  explicit RunFolder(std::string path);
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

  /// Appends a line to metrics.jsonl.
  void append(const std::string& json_line);
  /// Removes the lines of metrics.jsonl past that step (a resume writes them again).
  void truncate_after(int64_t step);
  /// Replaces a small text file durably.
  void write_text(const std::string& name, const std::string& text);

 private:
  std::string path_;
};

}  // namespace galley
