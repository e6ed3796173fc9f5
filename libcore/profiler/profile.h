#pragma once
// Profile: the totals of a recording. Shows how the time of the recorded window divides among operators and modules, compared with the
// machine's limits.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/profiler/memory_timeline.h"
#include "libcore/profiler/recorder.h"
#include "libcore/runtime/machine.h"

namespace galley {

std::string_view phase_name(Phase phase);  // "forward", "backward", "update"

/// Work and time of a group of calls. Times are in seconds, summed over all calls.
struct WorkSum {
  int64_t calls = 0;
  double self_s = 0;
  double flops = 0, bytes = 0;  // two flops per multiply-add; each operand is read or written once
  Arithmetic executed;          // executed operations, fewer with Winograd convolutions; limits refer to these
  /// Minimum time on this machine: for each call, the larger of flops / peak rate and bytes / memory bandwidth. Operands in a cache can be
  /// faster.
  double limit_s = 0;
  bool compute_bound = false;  // flops / peak rate is the larger

  double flops_per_s() const { return self_s > 0 ? flops / self_s : 0; }
  double bytes_per_s() const { return self_s > 0 ? bytes / self_s : 0; }
  double limit_percent() const { return self_s > 0 ? 100 * limit_s / self_s : 0; }
};

/// Calls of one operator with equal module, phase, shape and kernel. Operators do not call others: total time equals self time.
struct OperatorRow : WorkSum {
  std::string module, type, phase, backend, implementation;
  std::string shape;   // inputs of rank at least 1, "->", first output: "[8,64,56,56] [64,64,3,3] -> [8,64,56,56]"
  double percent = 0;  // percentage of the window
  bool recomputed = false;
  std::string note;  // for a slow kernel: why a faster one declined
};

/// A module with everything below it, in order of the first call; "" is the whole model. An operator that computes functions of several
/// modules (elementwise_chain) counts for the nearest module that contains them all.
struct ModuleRow : WorkSum {
  std::string path;
  int depth = 0;
  int parent = -1;                                                  // index of the parent's row
  double total_s = 0, forward_s = 0, backward_s = 0, update_s = 0;  // including submodules
  double total_flops = 0, total_bytes = 0, total_limit_s = 0;
  Arithmetic total_executed;
  int64_t parameter_bytes = 0;  // including submodules
  int64_t made_bytes = 0;       // bytes of the outputs of its nodes in one step, including submodules
  double percent = 0;
};

struct Profile {
  MachineLimits machine;
  int64_t steps = 0;
  std::vector<double> step_s;  // time of each step
  /// Wall time of the window: the sum over runs of consecutive steps, each from its first begin to its last end.
  double wall_s = 0;
  /// wall_s = compute_s + data_s + gap_s: nodes; waiting for batches; other work of the executor (feeding inputs, reading the loss).
  double compute_s = 0, data_s = 0, gap_s = 0;
  std::vector<double> waits_s;         // waiting for data in each step
  WorkSum work;                        // total of all nodes
  std::vector<OperatorRow> operators;  // slowest first
  std::vector<ModuleRow> modules;      // a tree; parents come before children
  MemoryTimeline memory;               // memory of the program that ran last
  int64_t resident_bytes = 0;          // largest value measured at the end of a step

  /// What `seconds` of the window are in a step.
  double per_step(double seconds) const { return seconds / static_cast<double>(steps); }
  /// Mean time of a step.
  double mean_step_s() const { return per_step(wall_s); }
};

/// Computes the profile. The recording must have at least one finished step.
Profile make_profile(const Recording& recording, const MachineLimits& machine);

/// Rows summed by type and phase ("op"), by module ("module"), by type and shape ("shape"), or unchanged ("layer"); slowest first. Fields
/// in which summed rows differ are empty.
enum class ProfileGroup { kOperator, kModule, kShape, kLayer };
std::vector<OperatorRow> grouped(const Profile& profile, ProfileGroup group);

/// The operator of a row; nullptr if `type` is not an operator of this version.
const OpDef* operator_of(const OperatorRow& row);

/// The row for one call of a step's operator: names, shape and cost, without times.
OperatorRow describe(const Program& program, size_t step, const MachineLimits& machine);

}  // namespace galley
