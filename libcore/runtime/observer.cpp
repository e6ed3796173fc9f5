#include "libcore/runtime/observer.h"

namespace galley {

NodeOutputs::NodeOutputs(const Program& program, const Step& step, std::span<void* const> addresses, Stream& stream)
    : graph_(program.graph()), node_(graph_.nodes()[static_cast<size_t>(step.node)]), addresses_(addresses), stream_(stream) {}

const void* NodeOutputs::host(size_t i) const {
  if (addresses_[i] == nullptr || stream_.device().is_host()) return addresses_[i];
  const int64_t bytes = graph_.type(node_.outputs[i]).bytes();
  const std::shared_ptr<Storage>& copied = copies_.emplace_back(Storage::allocate(bytes));
  stream_.copy(copied->data(), addresses_[i], bytes);
  stream_.synchronize();
  return copied->data();
}

void NodeMarks::begin(Stream& stream) {
  if (device_ != &stream.device()) {
    GALLEY_ASSERT(marked_ == 0, "one NodeMarks marks nodes on two devices");
    marks_.clear();
    device_ = &stream.device();
  }
  if (marked_ == marks_.size()) marks_.push_back({device_->make_event(), device_->make_event()});
  stream.record(*marks_[marked_].begin);
}

void NodeMarks::end(Stream& stream) { stream.record(*marks_[marked_++].end); }

std::pair<int64_t, int64_t> NodeMarks::times(size_t i) const {
  GALLEY_ASSERT(i < marked_);
  return {marks_[i].begin->time_ns(), marks_[i].end->time_ns()};
}

}  // namespace galley
