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

}  // namespace galley
