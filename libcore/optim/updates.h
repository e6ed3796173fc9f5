#pragma once
// The optimizer as part of the graph: appends, for each trained parameter, the nodes that clip its gradient, update it and its
// states in place, and average it.

#include <map>
#include <string>
#include <vector>

#include "libcore/graph/graph.h"
#include "libcore/optim/optimizer.h"

namespace galley {

enum class ClipMode { kNone, kNorm, kValue };

struct UpdateOptions {
  ParameterGroups groups;
  ClipMode clip = ClipMode::kNone;
  double clip_max = 1;       // largest norm of all gradients together, or largest magnitude of an element
  bool grad_norm = true;     // give the output "grad_norm", the norm before clipping: f32 []
  int64_t accumulation = 1;  // passes an update: gradients are sums in "<parameter>.grad", their mean is what updates
  bool ema = false;          // moving averages "<parameter>.ema" of the trained parameters, and of buffers
  bool ema_buffers = true;   // average floating buffers; false: copy them (integer buffers are always copied)
};

/// A named state input of the graph, and what it holds before the first step.
struct StateSpec {
  std::string name;  // "conv1.weight.exp_avg"
  TensorType type;
  std::string of;               // the parameter or buffer it belongs to
  bool starts_as_copy = false;  // of the parameter's or buffer's value (EMA)
  double starts_at = 0;         // else: every element
  ValueRole role = ValueRole::kState;
};

/// What add_updates made. Scalar inputs of the graph, fed each run: "lr.<group>" f32 [], "step" i64 [] (from 1), and with EMA
/// "ema_decay" f32 [].
struct UpdateTable {
  std::vector<StateSpec> states;  // every state, in order of parameters
};

/// Gradients by parameter: ids of kParameter inputs and of values of the same type.
using Gradients = std::map<ValueId, ValueId>;

/// Appends the update phase (passes/order_updates moves its nodes later) for every parameter that has a gradient, in the order in which
/// parameters were declared. With accumulation, the states "<parameter>.grad" are added to the gradients and cleared. Throws Error where a
/// group names a parameter that the graph does not have.
UpdateTable add_updates(Graph& graph, const Gradients& gradients, const UpdateOptions& options);

/// The other program of a run with accumulation: adds the gradients to the states "<parameter>.grad" and updates nothing.
UpdateTable add_accumulation(Graph& graph, const Gradients& gradients);

}  // namespace galley
