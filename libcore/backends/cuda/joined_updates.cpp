#include "libcore/backends/cuda/joined_updates.h"

#include <string_view>

#include "libcore/backends/cuda/prepare.h"
#include "libcore/base/error.h"

namespace galley {
namespace {

/// The kernel of many parameters of a call; nullptr: it cannot be joined.
const JoinableUpdate* joinable(const BoundCall& call) { return dynamic_cast<const JoinableUpdate*>(call.kernel); }

}  // namespace

/// Updates in one launch.
class JoinedCalls::Joined : public PreparedKernel {
 public:
  Joined(CudaDevice& device, std::span<const BoundCall> calls) : device_(device), kernel_(joinable(calls[0])->joined_kernel()) {
    std::vector<device::UpdateCall> updates;
    std::vector<device::UpdatePart> parts;
    for (const BoundCall& call : calls) {
      updates.push_back(joinable(call)->bound(call.args));
      for (int64_t begin = 0; begin < updates.back().elements; begin += device::kUpdatePart)
        parts.push_back({.call = std::ssize(updates) - 1, .begin = begin});
    }
    const int64_t update_bytes = std::ssize(updates) * static_cast<int64_t>(sizeof updates[0]);
    const int64_t part_bytes = std::ssize(parts) * static_cast<int64_t>(sizeof(device::UpdatePart));
    bytes_ = update_bytes + part_bytes;
    memory_ = static_cast<std::byte*>(device.memory().allocate(bytes_, kAlignment));
    if (memory_ == nullptr) throw Error(ErrorCode::kResource, cat("no memory for the tables of ", updates.size(), " parameters"));
    device.stream().copy(memory_, updates.data(), update_bytes);
    device.stream().copy(memory_ + update_bytes, parts.data(), part_bytes);
    device.stream().synchronize();
    call_.calls = reinterpret_cast<const device::UpdateCall*>(memory_);
    call_.parts = reinterpret_cast<const device::UpdatePart*>(memory_ + update_bytes);
    call_.count = std::ssize(parts);
  }
  ~Joined() override { device_.memory().free(memory_, bytes_, kAlignment); }
  Joined(const Joined&) = delete;
  Joined& operator=(const Joined&) = delete;
  void run(Stream& stream, const KernelArgs&) const override { cuda_launch(stream, kernel_, call_.count, call_); }

 private:
  static constexpr int64_t kAlignment = 256;
  CudaDevice& device_;
  const char* kernel_;
  std::byte* memory_ = nullptr;
  int64_t bytes_ = 0;
  device::UpdatesCall call_{};
};

JoinedCalls::JoinedCalls(CudaDevice& device, std::span<const BoundCall> calls) : device_(device) {
  for (size_t begin = 0; begin < calls.size();) {
    size_t end = begin + 1;
    if (const JoinableUpdate* first = joinable(calls[begin])) {
      const auto follows = [&](const BoundCall& call) {
        const JoinableUpdate* other = joinable(call);
        return other != nullptr && std::string_view(other->joined_kernel()) == first->joined_kernel();
      };
      while (end < calls.size() && follows(calls[end])) ++end;
    }
    if (end == begin + 1) {
      calls_.push_back(calls[begin]);
    } else {
      joined_.push_back(std::make_unique<Joined>(device_, calls.subspan(begin, end - begin)));
      calls_.push_back({.kernel = joined_.back().get(), .args = {}, .node = calls[begin].node});
    }
    begin = end;
  }
}
JoinedCalls::~JoinedCalls() = default;

}  // namespace galley
