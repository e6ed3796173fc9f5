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
  if (kernels_) take_kernels(mark.first_node);
  mark.resident_bytes = resident_bytes;
  mark.end_node = recording_.nodes.size();
  mark.end_wait = recording_.waits.size();
}

void Recorder::clear() {
  recording_.steps.clear();
  recording_.nodes.clear();
  recording_.waits.clear();
  recording_.communication.clear();
  recording_.kernels.clear();
  kernels_.reset();  // else those of steps that are not recorded would pile up
  device_ = nullptr;
  marks_.clear();
}

/// The library takes up to a second to begin. The step does not count it.
void Recorder::record_kernels_of(Device& device) {
  const int64_t began = steady_ns();
  device_ = &device;
  kernels_.reset();
  std::string why;
  if (!device.is_host()) kernels_ = record_kernels(device, why);
  recording_.kernel_source = kernels_ ? kernels_->source() : why;
  if (!kernels_ || recording_.steps.empty() || recording_.steps.back().first_node != recording_.nodes.size()) return;
  StepMark& mark = recording_.steps.back();
  const int64_t taken = steady_ns() - began;
  mark.begin_ns += taken;
  for (size_t w = mark.first_wait; w < recording_.waits.size(); ++w) {
    recording_.waits[w].begin_ns += taken;
    recording_.waits[w].end_ns += taken;
  }
}

/// The kernels of the nodes from `first` on. Events measure the way of a kernel to the device too, so nodes get the times of their kernels.
void Recorder::take_kernels(size_t first_node) {
  std::vector<NodeEvent>& nodes = recording_.nodes;
  const auto begin = static_cast<int64_t>(first_node), end = std::ssize(nodes);
  std::vector<bool> launches(nodes.size() - first_node, false);
  for (const KernelRecord& record : kernels_->take()) {
    const bool of_node = record.region >= begin && record.region < end;
    if (!of_node && !record.is_copy) continue;  // of a step that is not recorded
    const auto [name, added] = kernel_name_of_.try_emplace(record.name, static_cast<int32_t>(recording_.kernel_names.size()));
    if (added) recording_.kernel_names.push_back(record.name);
    recording_.kernels.push_back({record.begin_ns, record.end_ns, name->second, of_node ? record.region : -1});
    if (!of_node) continue;
    NodeEvent& node = nodes[static_cast<size_t>(record.region)];
    const auto at = static_cast<size_t>(record.region) - first_node;
    node.begin_ns = launches[at] ? std::min(node.begin_ns, record.begin_ns) : record.begin_ns;
    node.end_ns = launches[at] ? std::max(node.end_ns, record.end_ns) : record.end_ns;
    launches[at] = true;
  }
  if (std::none_of(launches.begin(), launches.end(), [](bool launched) { return launched; })) return;
  // A node without records, which waited for other ranks, launched nothing or lost its records, keeps the time by events.
  StepMark& mark = recording_.steps.back();
  int64_t last = mark.begin_ns;
  for (size_t n = first_node; n < nodes.size(); ++n) {
    if (!launches[n - first_node]) {
      nodes[n].begin_ns = std::max(nodes[n].begin_ns, last);
      nodes[n].end_ns = std::max(nodes[n].end_ns, nodes[n].begin_ns);
    }
    last = nodes[n].end_ns;
  }
  mark.end_ns = std::max(mark.end_ns, last);
}

void Recorder::before(const Program&, const Step&, Stream& stream) {
  if (device_ != &stream.device()) record_kernels_of(stream.device());
  marks_.begin(stream);
  if (kernels_) kernels_->enter(std::ssize(recording_.nodes));
}

void Recorder::after(const Program& program, const Step& step, const NodeOutputs& outputs) {
  if (kernels_) kernels_->leave();
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
