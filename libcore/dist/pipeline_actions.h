#pragma once
// What each rank of a pipeline does in a step: a list of actions in order, made before the run. Planner and training execute the same
// lists.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/dist/pipeline.h"

namespace galley {

/// Activations go from part to part of the model, gradients back. A message of a micro-batch arrives in the order in which it was sent, on
/// one channel for each pair of stages and kind.
enum class PipelineActionKind : uint8_t {
  kReceiveActivation,  ///< Waits for the input of a forward pass.
  kForward,
  kSendActivation,   ///< Hands the output of a forward pass over; does not wait until it arrives.
  kReceiveGradient,  ///< Waits for the gradient of the output.
  kBackward,         ///< Adds to the gradients of the part's parameters, and frees the slot.
  kSendGradient,     ///< Hands the gradient of the input over.
  kReduceGradients,  ///< The gradients of the part's parameters are final: replicas of the stage sum them.
  kUpdate,           ///< Once, at the end.
};
std::string_view name_of(PipelineActionKind kind);

/// One thing that a stage does: a pass, or an end of a message.
struct PipelineAction {
  PipelineActionKind kind = PipelineActionKind::kForward;
  int64_t chunk = 0, micro_batch = 0;  ///< micro_batch: of passes and messages.
  int64_t peer = -1;                   ///< Messages: the stage at the other end.
  int64_t slot = -1;                   ///< Passes: which of the stage's sets of buffers holds what the backward pass reads.
  friend bool operator==(const PipelineAction&, const PipelineAction&) = default;
};

struct StageActions {
  std::vector<PipelineAction> actions;
  int64_t slots = 0;  ///< Sets of buffers: micro-batches (of one chunk) whose backward pass is still to come.
};

/// The actions of each stage for a schedule of passes. A part and the next one on the same stage exchange no messages.
std::vector<StageActions> pipeline_actions(const std::vector<std::vector<PipelinePass>>& stages, int64_t chunks);

/// Runs the actions of all stages in one thread, each as soon as its messages are there and its channel holds fewer than `messages`.
/// `perform` is called for each. Returns where the stages stop, "" if all actions ran and all messages were received.
std::string run_actions(const std::vector<StageActions>& stages, int64_t messages,
                        const std::function<void(int64_t stage, const PipelineAction&)>& perform);

/// Checks lists of actions: forward and backward pass of each micro-batch in each chunk once and in this order, no slot used twice at once,
/// gradients reduced once and after the last backward pass of their chunk, one update, no deadlock with channels of so many messages.
/// Returns a description of the first fault, "" if there is none.
std::string check_actions(const std::vector<StageActions>& stages, int64_t micro_batches, int64_t chunks, int64_t messages);

/// When each pass of a pipeline begins and ends.
struct TimedPass {
  PipelinePass pass;
  double begin = 0, end = 0;
};
/// How long passes and messages of all stages take.
struct StageTimes {
  std::vector<double> forward, backward;  ///< Seconds, by part of the model: part = chunk * stages + stage.
  double transfer = 0;                    ///< Seconds of a message.
  std::vector<double> begin;              ///< When each stage may begin; empty: at once.
};
/// The passes of a stage with times, and when the gradients of each chunk are final.
struct TimedStage {
  std::vector<TimedPass> passes;
  std::vector<double> reduce;
};
/// The actions must have passed check_actions.
std::vector<TimedStage> time_actions(const std::vector<StageActions>& stages, const StageTimes& times);

}  // namespace galley
