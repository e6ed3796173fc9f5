#pragma once
// Workload: a recipe's work on random batches, ready to be repeated: a forward pass as inference runs it, or an update. What
// galley-benchmark, galley-profile and the layout doctor time. No data is read.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "libcore/infer/session.h"
#include "libcore/runtime/execution.h"
#include "libcore/runtime/machine.h"

namespace galley {

struct Batch;
struct QuantizationPlan;

enum class WorkKind { kForward, kTrainStep };

class Workload {
 public:
  /// Compiles and takes memory. `batch`: samples a run; for updates the recipe's train.batch.micro cuts it where it divides it. The
  /// session must outlive it. Throws as training and prediction would.
  Workload(const Session& session, WorkKind kind, int64_t batch);
  ~Workload();
  /// The program that a workload of these would run (of an update: the last one), without taking memory for it.
  static std::shared_ptr<const Program> compiled(const Session& session, WorkKind kind, int64_t batch);

  /// One run.
  void run(NodeObserver* observer = nullptr) { run_(observer); }
  /// The program that runs (of an update: the last one).
  const Program& program() const { return *program_; }
  int64_t samples() const { return samples_; }
  /// Of one run: two flops a multiply-add; every operand of every operator read or written once.
  double flops() const { return flops_; }
  /// Less what Winograd's way saves.
  const Arithmetic& executed() const { return executed_; }
  double bytes() const { return bytes_; }
  /// Parameters, state, scratch, packed weights and the batch.
  int64_t planned_bytes() const { return planned_bytes(*program_); }
  static int64_t planned_bytes(const Program& program);

 private:
  struct Forward;
  struct Update;
  void make_forward(const Session& session, int64_t batch);
  void make_update(const Session& session, int64_t batch);
  void add_cost(const Program& program, double times);

  std::shared_ptr<const Program> program_;
  std::shared_ptr<void> parts_;  // what run_ uses
  std::function<void(NodeObserver*)> run_;
  int64_t samples_ = 0;
  double flops_ = 0, bytes_ = 0;
  Arithmetic executed_;
};

}  // namespace galley
