#pragma once
// Profile: a recording, added up. Where the time of the window went, by operator and by module, against what the machine can do.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/profiler/memory_timeline.h"
#include "libcore/profiler/recorder.h"
#include "libcore/runtime/machine.h"

namespace galley {

std::string_view phase_name(Phase phase);  // "forward", "backward", "update"

/// Work and time of calls that are counted together. Times in seconds, all calls.
struct WorkSum {
  int64_t calls = 0;
  double self_s = 0;
  double flops = 0, bytes = 0;  // two flops a multiply-add; each operand read or written once
  Arithmetic executed;          // fewer where Winograd's way is taken: limits are of these
  /// The time that the machine would need at least: of each call, the larger of flops / peak and bytes / bandwidth of memory. Operands
  /// that lie in a cache can be faster than this.
  double limit_s = 0;
  bool compute_bound = false;  // flops / peak is the larger

  double flops_per_s() const { return self_s > 0 ? flops / self_s : 0; }
  double bytes_per_s() const { return self_s > 0 ? bytes / self_s : 0; }
  double limit_percent() const { return self_s > 0 ? 100 * limit_s / self_s : 0; }
};

/// Calls of one operator in one module, phase, shape and kernel. Operators call nothing: their total is their self time.
struct OperatorRow : WorkSum {
  std::string module, type, phase, backend, implementation;
  std::string shape;   // inputs of rank 1 and more, "->", first output: "[8,64,56,56] [64,64,3,3] -> [8,64,56,56]"
  double percent = 0;  // of the window
  bool recomputed = false;
  std::string note;  // a slow kernel and why a faster one declined
};

/// A module with everything below it, in order of the first call; "" is the whole model. An operator that computes functions of several
/// modules (elementwise_chain) counts for the nearest module that contains them all.
struct ModuleRow : WorkSum {
  std::string path;
  int depth = 0;
  int parent = -1;                                                  // index of the row above
  double total_s = 0, forward_s = 0, backward_s = 0, update_s = 0;  // with the modules below
  double total_flops = 0, total_bytes = 0, total_limit_s = 0;
  Arithmetic total_executed;
  int64_t parameter_bytes = 0;  // with the modules below
  int64_t made_bytes = 0;       // outputs of its nodes in one step, with the modules below
  double percent = 0;
};

struct Profile {
  MachineLimits machine;
  int64_t steps = 0;
  std::vector<double> step_s;  // of each step
  /// Wall time of the window: of each run of consecutive steps from its first begin to its last end.
  double wall_s = 0;
  /// wall_s = compute_s + data_s + gap_s: nodes; waiting for batches; what the executor does besides (feeding, looking at the loss).
  double compute_s = 0, data_s = 0, gap_s = 0;
  std::vector<double> waits_s;         // of each step
  WorkSum work;                        // of all nodes
  std::vector<OperatorRow> operators;  // slowest first
  std::vector<ModuleRow> modules;      // a tree, parents before children
  MemoryTimeline memory;               // of the program that runs last
  int64_t resident_bytes = 0;          // largest measured at the end of a step
};

/// Adds up. The recording has at least one finished step.
Profile make_profile(const Recording& recording, const MachineLimits& machine);

/// Rows added up by type and phase ("op"), by module ("module"), by type and shape ("shape"), or as they are ("layer"); slowest first.
/// What rows differ in is empty.
enum class ProfileGroup { kOperator, kModule, kShape, kLayer };
std::vector<OperatorRow> grouped(const Profile& profile, ProfileGroup group);

/// The operator that a row is of; nullptr where `type` is no operator of this version.
const OpDef* operator_of(const OperatorRow& row);

/// The row of a step's operator without calls: names, shape, cost of one call.
OperatorRow describe(const Program& program, size_t step, const MachineLimits& machine);

}  // namespace galley
