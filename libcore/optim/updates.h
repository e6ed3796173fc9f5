#pragma once
// Adds the optimizer to the graph: for each trained parameter, the nodes that clip its gradient, update it and its states in place, and
// update its moving average.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "libcore/graph/graph.h"
#include "libcore/optim/optimizer.h"
#include "libcore/passes/shard.h"

namespace galley {

/// Gradient clipping: none, by the norm of all gradients together, or by the magnitude of each element.
enum class ClipMode { kNone, kNorm, kValue };

/// Options of add_updates.
struct UpdateOptions {
  ParameterGroups groups;
  ClipMode clip = ClipMode::kNone;
  double clip_max = 1;          // limit of the norm (kNorm), or of the magnitude of an element (kValue)
  bool grad_norm = true;        // adds the output "grad_norm", the norm before clipping: f32 []
  int64_t accumulation = 1;     // passes per update: "<parameter>.grad" sums the gradients, and the update uses their mean
  bool ema = false;             // moving averages "<parameter>.ema" of the trained parameters, and of buffers
  bool ema_buffers = true;      // average floating-point buffers; false: copy them (integer buffers are always copied)
  bool given_squares = false;   // the sum of squares of the gradients is an input, "grad_squares" f32 []
  bool loss_scale = false;      // gradients are those of the loss times a factor (passes/loss_scale.h); adds the output "grad_squares"
  double first_loss_scale = 0;  // the factor at first
  /// Tensor parallelism: the parameters of which this rank has a part. Empty: it has all of each.
  std::function<bool(const std::string& parameter)> divided = {};
  RankUpdates* ranks = nullptr;  // sums gradients, accumulated ones included, over ranks, and divides updates; nullptr: one rank
};

/// A named state input of the graph, and its initial value.
struct StateSpec {
  std::string name;  // "conv1.weight.exp_avg"
  TensorType type;
  std::string of;               // its parameter or buffer
  bool starts_as_copy = false;  // starts as the value of the parameter or buffer (EMA)
  double starts_at = 0;         // otherwise: initial value of every element
  ValueRole role = ValueRole::kState;
  bool random = false;  // starts as normal random numbers, equal on all ranks (HookState)
  bool own = false;     // each rank has values of its own
};

/// The states that add_updates added. It also adds scalar inputs that each run sets: "lr.<group>" f32 [], "step" i64 [] (from 1), and with
/// EMA "ema_decay" f32 [].
struct UpdateTable {
  std::vector<StateSpec> states;  // all states, in the order of parameters
};

/// The gradient of each parameter: maps ids of kParameter inputs to ids of values of the same type.
using Gradients = std::map<ValueId, ValueId>;

/// Appends the update phase (passes/order_updates moves its nodes later) for every parameter with a gradient, in the order of declaration.
/// With accumulation, the states "<parameter>.grad" are added to the gradients and cleared. Throws Error if a group names a parameter that
/// is not in the graph. With a loss scale, the optimizer's step counts the updates that were not skipped.
UpdateTable add_updates(Graph& graph, const Gradients& gradients, const UpdateOptions& options);

/// The parameters with gradients, in the order of declaration, for RankUpdates::reduce in a graph that updates nothing. Reads of the
/// options `groups` and `divided`.
std::vector<UpdatePiece> gradient_pieces(Graph& graph, const Gradients& gradients, const UpdateOptions& options);

/// For the second program of a run with accumulation: adds the gradients to the states "<parameter>.grad" without updating parameters.
/// Reads of the options `groups` and `ranks`.
UpdateTable add_accumulation(Graph& graph, const Gradients& gradients, const UpdateOptions& options);

}  // namespace galley
