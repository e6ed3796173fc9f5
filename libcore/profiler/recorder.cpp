#include "libcore/profiler/recorder.h"

#include <algorithm>
#include <chrono>
#include <tuple>

namespace galley {
namespace {
constexpr size_t kFirstEvents = 4096;
}

int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ProfileSchedule::Action ProfileSchedule::at(int64_t k) const {
  if (k < skip_first || k >= steps()) return Action::kOff;
  const int64_t place = (k - skip_first) % (wait + warmup + active);
  return place < wait ? Action::kOff : place < wait + warmup ? Action::kWarmup : Action::kRecord;
}

void Recorder::begin_step(int64_t number) {
  // Reserve twice the events of the longest step so far, so that nothing is allocated while nodes are timed.
  size_t longest = kFirstEvents;
  for (const StepMark& step : recording_.steps) longest = std::max(longest, step.end_node - step.first_node);
  std::vector<NodeEvent>& nodes = recording_.nodes;
  if (nodes.capacity() - nodes.size() < 2 * longest) nodes.reserve(2 * (nodes.size() + 2 * longest));
  recording_.waits.reserve(2 * (recording_.waits.size() + 64));
  StepMark mark;
  mark.number = number;
  mark.first_node = nodes.size();
  mark.first_wait = recording_.waits.size();
  recording_.steps.push_back(mark);
  recording_.steps.back().begin_ns = steady_ns();
}

void Recorder::end_step(int64_t resident_bytes) {
  GALLEY_ASSERT(!recording_.steps.empty() && recording_.steps.back().end_ns == 0, "end_step without begin_step");
  StepMark& mark = recording_.steps.back();
  mark.end_ns = steady_ns();
  std::vector<NodeEvent>& nodes = recording_.nodes;
  for (size_t i = 0, first = nodes.size() - marks_.size(); i < marks_.size(); ++i) {
    std::tie(nodes[first + i].begin_ns, nodes[first + i].end_ns) = marks_.times(i);
    mark.end_ns = std::max(mark.end_ns, nodes[first + i].end_ns);
  }
  marks_.clear();
  mark.resident_bytes = resident_bytes;
  mark.end_node = recording_.nodes.size();
  mark.end_wait = recording_.waits.size();
}

void Recorder::clear() {
  recording_.steps.clear();
  recording_.nodes.clear();
  recording_.waits.clear();
  recording_.communication.clear();
  marks_.clear();
}

void Recorder::before(const Program&, const Step&, Stream& stream) { marks_.begin(stream); }

void Recorder::after(const Program& program, const Step& step, const NodeOutputs& outputs) {
  marks_.end(outputs.stream());
  const int32_t index = &program == last_program_ ? last_index_ : index_of(program);
  recording_.nodes.push_back({0, 0, index, static_cast<int32_t>(&step - program.steps().data())});  // end_step sets the times
}

void Recorder::fetched(int64_t begin_ns, int64_t end_ns) { recording_.waits.push_back({begin_ns, end_ns}); }

void Recorder::communicated(const std::string& what, int64_t begin_ns, int64_t end_ns) {
  recording_.communication.push_back({what, begin_ns, end_ns});
}

int32_t Recorder::index_of(const Program& program) {
  size_t i = 0;
  while (i < recording_.programs.size() && recording_.programs[i] != &program) ++i;
  if (i == recording_.programs.size()) recording_.programs.push_back(&program);
  last_program_ = &program;
  return last_index_ = static_cast<int32_t>(i);
}

}  // namespace galley
