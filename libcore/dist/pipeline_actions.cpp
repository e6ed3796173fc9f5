#include "libcore/dist/pipeline_actions.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <tuple>

#include "libcore/base/error.h"

namespace galley {
namespace {

using Kind = PipelineActionKind;

constexpr std::array<std::string_view, 8> kKinds{"receive activation", "forward",       "send activation",  "receive gradient",
                                                 "backward",           "send gradient", "reduce gradients", "update"};
/// Enough for any schedule: no send waits.
constexpr int64_t kAnyNumber = INT64_MAX;

bool receives(Kind kind) { return kind == Kind::kReceiveActivation || kind == Kind::kReceiveGradient; }
bool sends(Kind kind) { return kind == Kind::kSendActivation || kind == Kind::kSendGradient; }
bool passes(Kind kind) { return kind == Kind::kForward || kind == Kind::kBackward; }

/// Chunk and micro-batch for which a message is.
using Message = std::pair<int64_t, int64_t>;
/// Sender, receiver, and whether it carries gradients.
using Channel = std::tuple<int64_t, int64_t, bool>;

/// The message of an action on its channel, by the chunk that reads it.
std::pair<Channel, Message> message_of(const PipelineAction& action, int64_t stage, int64_t stages) {
  const int64_t part = action.chunk * stages + stage;
  switch (action.kind) {
    case Kind::kReceiveActivation: return {{action.peer, stage, false}, {action.chunk, action.micro_batch}};
    case Kind::kReceiveGradient: return {{action.peer, stage, true}, {action.chunk, action.micro_batch}};
    case Kind::kSendActivation: return {{stage, action.peer, false}, {(part + 1) / stages, action.micro_batch}};
    case Kind::kSendGradient: return {{stage, action.peer, true}, {(part - 1) / stages, action.micro_batch}};
    default: break;
  }
  GALLEY_ASSERT(false);
}

std::string text_of(const PipelineAction& action) {
  if (action.kind == Kind::kUpdate) return "update";
  if (action.kind == Kind::kReduceGradients) return cat("reduce gradients of chunk ", action.chunk);
  return cat(name_of(action.kind), " of micro-batch ", action.micro_batch, " in chunk ", action.chunk);
}

/// The actions of one stage.
class StageList {
 public:
  StageList(int64_t stage, int64_t stages, int64_t chunks) : stage_(stage), stages_(stages), parts_(stages * chunks), chunks_(chunks) {}

  StageActions make(const std::vector<PipelinePass>& order) {
    std::vector<int64_t> left(static_cast<size_t>(chunks_), 0);
    for (const PipelinePass& pass : order) left[static_cast<size_t>(pass.chunk)] += pass.backward ? 1 : 0;
    for (const PipelinePass& pass : order) {
      const int64_t part = pass.chunk * stages_ + stage_, before = part - 1, after = part + 1;
      if (!pass.backward) {
        message(Kind::kReceiveActivation, pass, before);
        add(Kind::kForward, pass, -1, take(pass));
        message(Kind::kSendActivation, pass, after);
        continue;
      }
      message(Kind::kReceiveGradient, pass, after);
      add(Kind::kBackward, pass, -1, give_back(pass));
      message(Kind::kSendGradient, pass, before);
      if (--left[static_cast<size_t>(pass.chunk)] == 0) list_.actions.push_back({.kind = Kind::kReduceGradients, .chunk = pass.chunk});
    }
    list_.actions.push_back({.kind = Kind::kUpdate});
    return std::move(list_);
  }

 private:
  void add(Kind kind, const PipelinePass& pass, int64_t peer, int64_t slot) {
    list_.actions.push_back({.kind = kind, .chunk = pass.chunk, .micro_batch = pass.micro_batch, .peer = peer, .slot = slot});
  }
  /// A message from or to a part, unless it is on this stage or does not exist.
  void message(Kind kind, const PipelinePass& pass, int64_t part) {
    if (part < 0 || part >= parts_ || part % stages_ == stage_) return;
    add(kind, pass, part % stages_, -1);
  }
  int64_t take(const PipelinePass& pass) {
    int64_t slot = list_.slots;
    if (free_.empty()) {
      ++list_.slots;
    } else {
      slot = *std::min_element(free_.begin(), free_.end());
      std::erase(free_, slot);
    }
    used_[{pass.chunk, pass.micro_batch}] = slot;
    return slot;
  }
  int64_t give_back(const PipelinePass& pass) {
    const auto found = used_.find({pass.chunk, pass.micro_batch});
    if (found == used_.end()) return -1;  // a faulty schedule: check_actions says so
    const int64_t slot = found->second;
    used_.erase(found);
    free_.push_back(slot);
    return slot;
  }

  int64_t stage_, stages_, parts_, chunks_;
  StageActions list_;
  std::vector<int64_t> free_;
  std::map<Message, int64_t> used_;
};

/// Whether a stage runs each pass once, in slots of their own. Returns the first fault.
std::string check_stage(const StageActions& list, int64_t stage, int64_t micro_batches, int64_t chunks) {
  std::map<int64_t, Message> in_slot;
  std::map<Message, int> done;  // 1: forward, 2: backward too
  std::vector<int64_t> backward(static_cast<size_t>(chunks), 0), reduced(static_cast<size_t>(chunks), 0);
  int64_t updates = 0;
  const auto fault = [&](const PipelineAction& action, std::string_view text) {
    return cat("stage ", stage, ": ", text_of(action), " ", text);
  };
  for (const PipelineAction& action : list.actions) {
    const Message key{action.chunk, action.micro_batch};
    if (action.chunk < 0 || action.chunk >= chunks || action.micro_batch < 0 || action.micro_batch >= micro_batches)
      return fault(action, "does not exist");
    const auto chunk = static_cast<size_t>(action.chunk);
    if (updates > 0) return fault(action, "stands after the update");
    updates += action.kind == Kind::kUpdate ? 1 : 0;
    if (action.kind == Kind::kReduceGradients && (++reduced[chunk] > 1 || backward[chunk] < micro_batches))
      return fault(action, "stands before the last backward pass, or twice");
    if (!passes(action.kind)) continue;
    if (action.slot < 0 || action.slot >= list.slots) return fault(action, "has no slot");
    if (action.kind == Kind::kForward) {
      if (done[key]++ != 0) return fault(action, "stands twice");
      if (!in_slot.emplace(action.slot, key).second) return fault(action, "overwrites a slot that a backward pass still reads");
    } else {
      if (done[key]++ != 1) return fault(action, "does not follow its forward pass, or stands twice");
      const auto slot = in_slot.find(action.slot);
      if (slot == in_slot.end() || slot->second != key) return fault(action, "reads the slot of another micro-batch");
      in_slot.erase(slot);
      ++backward[chunk];
    }
  }
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    if (backward[static_cast<size_t>(chunk)] != micro_batches) return cat("stage ", stage, ": a pass of chunk ", chunk, " is missing");
    if (reduced[static_cast<size_t>(chunk)] != 1) return cat("stage ", stage, ": the gradients of chunk ", chunk, " are not reduced");
  }
  return updates == 1 ? "" : cat("stage ", stage, ": the update is missing");
}

}  // namespace

std::string_view name_of(PipelineActionKind kind) { return kKinds[static_cast<size_t>(kind)]; }

std::vector<StageActions> pipeline_actions(const std::vector<std::vector<PipelinePass>>& stages, int64_t chunks) {
  std::vector<StageActions> all;
  const auto count = static_cast<int64_t>(stages.size());
  for (int64_t s = 0; s < count; ++s) all.push_back(StageList(s, count, chunks).make(stages[static_cast<size_t>(s)]));
  return all;
}

std::string run_actions(const std::vector<StageActions>& stages, int64_t messages,
                        const std::function<void(int64_t stage, const PipelineAction&)>& perform) {
  const auto count = static_cast<int64_t>(stages.size());
  std::map<Channel, std::deque<Message>> channels;
  std::vector<size_t> next(stages.size(), 0);
  /// Whether the action can run now; takes or leaves its message.
  const auto runs = [&](int64_t stage, const PipelineAction& action) {
    if (!receives(action.kind) && !sends(action.kind)) return true;
    const auto [channel, message] = message_of(action, stage, count);
    std::deque<Message>& waiting = channels[channel];
    if (sends(action.kind)) {
      if (static_cast<int64_t>(waiting.size()) >= messages) return false;
      waiting.push_back(message);
      return true;
    }
    if (waiting.empty() || waiting.front() != message) return false;
    waiting.pop_front();
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int64_t s = 0; s < count; ++s) {
      const std::vector<PipelineAction>& actions = stages[static_cast<size_t>(s)].actions;
      for (size_t& at = next[static_cast<size_t>(s)]; at < actions.size() && runs(s, actions[at]); ++at) {
        perform(s, actions[at]);
        moved = true;
      }
    }
  }
  std::string stopped;
  for (size_t s = 0; s < stages.size(); ++s) {
    if (next[s] < stages[s].actions.size())
      stopped += cat(stopped.empty() ? "deadlock: " : "; ", "stage ", s, " waits in ", text_of(stages[s].actions[next[s]]));
  }
  if (!stopped.empty()) return stopped;
  for (const auto& item : channels) {
    if (!item.second.empty())
      return cat("stage ", std::get<1>(item.first), " does not receive a message of stage ", std::get<0>(item.first));
  }
  return "";
}

std::string check_actions(const std::vector<StageActions>& stages, int64_t micro_batches, int64_t chunks, int64_t messages) {
  for (size_t s = 0; s < stages.size(); ++s) {
    const std::string fault = check_stage(stages[s], static_cast<int64_t>(s), micro_batches, chunks);
    if (!fault.empty()) return fault;
  }
  return run_actions(stages, messages, [](int64_t, const PipelineAction&) {});
}

std::vector<TimedStage> time_actions(const std::vector<StageActions>& stages, const StageTimes& times) {
  const auto count = static_cast<int64_t>(stages.size());
  std::vector<TimedStage> timed(stages.size());
  std::vector<double> now = times.begin.empty() ? std::vector<double>(stages.size(), 0) : times.begin;
  std::map<Channel, std::deque<double>> arrivals;
  const std::string stopped = run_actions(stages, kAnyNumber, [&](int64_t stage, const PipelineAction& action) {
    const auto s = static_cast<size_t>(stage);
    const auto part = static_cast<size_t>(action.chunk * count + stage);
    if (sends(action.kind)) {
      arrivals[message_of(action, stage, count).first].push_back(now[s] + times.transfer);
    } else if (receives(action.kind)) {
      std::deque<double>& waiting = arrivals[message_of(action, stage, count).first];
      now[s] = std::max(now[s], waiting.front());
      waiting.pop_front();
    } else if (passes(action.kind)) {
      const bool backward = action.kind == Kind::kBackward;
      const double begin = now[s];
      now[s] += (backward ? times.backward : times.forward)[part];
      timed[s].passes.push_back({{action.micro_batch, action.chunk, backward}, begin, now[s]});
    } else if (action.kind == Kind::kReduceGradients) {
      timed[s].reduce.resize(std::max(timed[s].reduce.size(), static_cast<size_t>(action.chunk) + 1));
      timed[s].reduce[static_cast<size_t>(action.chunk)] = now[s];
    }
  });
  GALLEY_ASSERT(stopped.empty(), stopped);
  return timed;
}

}  // namespace galley
