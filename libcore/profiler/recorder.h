#pragma once
// Recorder: records when each node of a program runs. Each node has two events of the stream, whose times are read at the end of the step;
// on the host stream these are clock reads. Where the device records its kernels, a node lasts from the begin of its first kernel to the
// end of its last one. Memory is measured between steps.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "libcore/backends/kernel_records.h"
#include "libcore/runtime/execution.h"

namespace galley {

/// Times in nanoseconds on the steady clock.
struct NodeEvent {
  int64_t begin_ns = 0, end_ns = 0;
  int32_t program = 0;  // index into Recording::programs
  int32_t step = 0;     // index into Program::steps()
};

struct WaitEvent {
  int64_t begin_ns = 0, end_ns = 0;
};

/// A collective or a message between programs.
struct CommunicationEvent {
  std::string what;
  int64_t begin_ns = 0, end_ns = 0;
};

/// A kernel that a node launched, or a copy.
struct KernelEvent {
  int64_t begin_ns = 0, end_ns = 0;
  int32_t name = 0;   // index into Recording::kernel_names
  int64_t node = -1;  // index into Recording::nodes; -1: a copy outside of nodes
};

/// One step: an update, or a forward pass.
struct StepMark {
  int64_t number = 0;
  int64_t begin_ns = 0, end_ns = 0;
  int64_t resident_bytes = 0;           // resident memory at the end, or the most of a GPU so far; 0: not measured
  size_t first_node = 0, end_node = 0;  // range of its events in Recording::nodes
  size_t first_wait = 0, end_wait = 0;
};

struct Recording {
  std::vector<const Program*> programs;  // must outlive the recording
  std::vector<StepMark> steps;
  std::vector<NodeEvent> nodes;
  std::vector<WaitEvent> waits;  // waiting for data
  std::vector<CommunicationEvent> communication;
  std::vector<KernelEvent> kernels;  // of devices that record them, by begin
  std::vector<std::string> kernel_names;
  std::string kernel_source;  // "CUPTI 13.0.1", or why there are no kernels; empty: the device runs kernels when they are enqueued
};

class Recorder final : public NodeObserver {
 public:
  void begin_step(int64_t number);
  /// Waits until the nodes of the step have run. `resident_bytes`: as in StepMark, if measured.
  void end_step(int64_t resident_bytes = 0);
  /// Discards the recorded events but keeps the memory, and ends the recording of kernels until the next node; called at the end of warm-up
  /// and of a recording.
  void clear();
  const Recording& recording() const { return recording_; }

  void before(const Program& program, const Step& step, Stream& stream) override;
  void after(const Program& program, const Step& step, const NodeOutputs& outputs) override;
  void fetched(int64_t begin_ns, int64_t end_ns) override;
  void communicated(const std::string& what, int64_t begin_ns, int64_t end_ns) override;

 private:
  int32_t index_of(const Program& program);
  void record_kernels_of(Device& device);
  void take_kernels(size_t first_node);

  Recording recording_;
  Device* device_ = nullptr;  // whose kernels are recorded, if it does that
  std::unique_ptr<KernelRecords> kernels_;
  std::map<std::string, int32_t> kernel_name_of_;
  const Program* last_program_ = nullptr;
  int32_t last_index_ = 0;
  NodeMarks marks_;  // marks of the current step
};

/// Which steps are recorded: `skip_first` once, then `repeat` cycles of `wait` (off), `warmup` (recorded and discarded) and `active`
/// (kept). The names follow torch.profiler.schedule; `repeat` is at least 1 here.
struct ProfileSchedule {
  int64_t skip_first = 5, wait = 1, warmup = 2, active = 3, repeat = 1;
  enum class Action { kOff, kWarmup, kRecord };
  /// Action for step k, counted from 0; kOff beyond the end.
  Action at(int64_t k) const;
  int64_t steps() const { return skip_first + repeat * (wait + warmup + active); }
};

/// The steady clock in nanoseconds.
int64_t steady_ns();

}  // namespace galley
