#include "libcore/backends/cuda/nccl_ranks.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/vendor/cuda/nccl.h"

namespace galley {
namespace {

using cuda::check;
using cuda::driver;
namespace nccl = cuda::nccl;

const nccl::Functions& library() { return nccl::nccl().functions; }

/// Sums of bool and i16 do not exist; other arrays of these types are moved as bytes.
int type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32: return nccl::kF32;
    case DType::kF64: return nccl::kF64;
    case DType::kF16: return nccl::kF16;
    case DType::kBF16: return nccl::kBF16;
    case DType::kI64: return nccl::kI64;
    case DType::kI32: return nccl::kI32;
    case DType::kI8: return nccl::kI8;
    case DType::kU8: return nccl::kU8;
    default: break;
  }
  throw Error(ErrorCode::kInternal, cat("NCCL has no arrays of type ", dtype));
}

class NcclRanks : public DeviceRanks {
 public:
  NcclRanks(CudaDevice& device, Communicator& ranks) : device_(device), ranks_(ranks) {
    device_.make_current();
    check(driver().cuStreamCreateWithPriority(&stream_, cuda::kNonBlockingStream, cuda::kHighestPriority), "creating a stream");
    check(driver().cuEventCreate(&ready_, cuda::kEventWithoutTime), "creating an event");
    connect();
    device_.watch([this] { check_ranks(); });
  }
  ~NcclRanks() override {
    device_.watch(nullptr);
    if (!device_.try_current()) return;
    if (communicator_ != nullptr) {
      // Of a communicator with an error, only this ends the work.
      const bool failed = std::uncaught_exceptions() > 0 || failed_;
      failed ? library().ncclCommAbort(communicator_) : library().ncclCommDestroy(communicator_);
    }
    for (const Flight& flight : flights_) driver().cuEventDestroy(flight.done);
    driver().cuEventDestroy(ready_);
    driver().cuStreamDestroy(stream_);
  }
  NcclRanks(const NcclRanks&) = delete;
  NcclRanks& operator=(const NcclRanks&) = delete;

  std::string transport() const override { return "NCCL " + nccl::nccl().state.version; }

  void start(const Collective& call, Stream& stream) override {
    device_.make_current();
    last_ = cat(collective_name(call.kind), " ", call.name);
    if (call.group.size > 1 && call.group.size != ranks_.size())
      throw Error(ErrorCode::kRecipe, cat(last_, ": device cuda has no collectives of some of the ranks")).key("sharding.mesh");
    check(driver().cuEventRecord(ready_, cuda_stream(stream)), "recording an event");
    check(driver().cuStreamWaitEvent(stream_, ready_, 0), "waiting for an event");
    finish(enqueue(call));
    Flight& flight = free_flight();
    check(driver().cuEventRecord(flight.done, stream_), "recording an event");
    flight.output = call.output;
  }

  void wait(const void* output, Stream& stream) override {
    const auto found = std::find_if(flights_.begin(), flights_.end(), [&](const Flight& flight) { return flight.output == output; });
    GALLEY_ASSERT(found != flights_.end(), "a collective is waited for that was not started");
    found->output = nullptr;
    device_.make_current();
    check(driver().cuStreamWaitEvent(cuda_stream(stream), found->done, 0), "waiting for an event");
  }

 private:
  /// A started collective.
  struct Flight {
    const void* output = nullptr;  // null: free
    cuda::EventHandle done = nullptr;
  };

  void connect() {
    if (const std::string& problem = nccl::nccl().state.problem; !problem.empty()) {
      throw Error(ErrorCode::kResource, cat("device cuda with ", ranks_.size(), " ranks: ", problem))
          .key("device")
          .suggest("start one process, or device=cpu");
    }
    nccl::UniqueId id{};
    if (ranks_.rank() == 0) expect(library().ncclGetUniqueId(&id), "naming the ranks");
    ranks_.broadcast("nccl", &id, sizeof id, DType::kI8, 0);
    nccl::Options options;
    options.blocking = 0;
    last_ = "connecting the ranks";
    finish(library().ncclCommInitRankConfig(&communicator_, ranks_.size(), id, ranks_.rank(), &options));
  }

  nccl::Result enqueue(const Collective& call) {
    const size_t count = static_cast<size_t>(call.count), own = count / static_cast<size_t>(ranks_.size());
    const bool bytes = call.kind == CollectiveKind::kAllGather || call.kind == CollectiveKind::kBroadcast;
    const size_t size = bytes ? static_cast<size_t>(dtype_size(call.dtype)) : 1;
    const int type = bytes ? nccl::kI8 : type_of(call.dtype), operation = call.op == ReduceOp::kMax ? nccl::kMaximum : nccl::kSum;
    switch (call.kind) {
      case CollectiveKind::kAllReduce:
        return library().ncclAllReduce(call.input, call.output, count, type, operation, communicator_, stream_);
      case CollectiveKind::kReduceScatter:
        return library().ncclReduceScatter(call.input, call.output, own, type, operation, communicator_, stream_);
      case CollectiveKind::kAllGather: return library().ncclAllGather(call.input, call.output, own * size, type, communicator_, stream_);
      case CollectiveKind::kBroadcast:
        return library().ncclBroadcast(call.input, call.output, count * size, type, call.peer, communicator_, stream_);
      default: break;
    }
    throw Error(ErrorCode::kInternal, cat("NCCL does not compute ", last_));
  }

  /// Waits until a call that goes on in the background has done its work on the host.
  void finish(nccl::Result result) {
    while (result == nccl::kInProgress) {
      check_ranks();
      const nccl::Result asked = library().ncclCommGetAsyncError(communicator_, &result);
      if (asked != nccl::kSuccess) result = asked;
      if (result == nccl::kInProgress) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    expect(result, last_);
  }

  /// Throws if a rank failed. Called again and again by a thread that waits.
  void check_ranks() {
    if (Position* position = ranks_.position()) position->polls.fetch_add(1, std::memory_order_relaxed);
    if (communicator_ == nullptr || failed_) return;
    nccl::Result result = nccl::kSuccess;
    const nccl::Result asked = library().ncclCommGetAsyncError(communicator_, &result);
    if (asked != nccl::kSuccess) result = asked;
    if (result != nccl::kInProgress) expect(result, last_);
  }

  void expect(nccl::Result result, const std::string& what) {
    if (result == nccl::kSuccess) return;
    std::string text = cat("NCCL: ", what, ": ", library().ncclGetErrorString(result), " (", result, ")");
    if (communicator_ != nullptr) {
      const char* more = library().ncclGetLastError(communicator_);
      if (more != nullptr && *more != '\0') text += cat(", ", more);
    }
    failed_ = true;
    if (communicator_ != nullptr) library().ncclCommAbort(std::exchange(communicator_, nullptr));  // ends kernels that wait for others
    throw Error(ErrorCode::kWorker, text + (result == nccl::kRemoteError ? "; another rank has failed" : ""));
  }

  Flight& free_flight() {
    const auto free = std::find_if(flights_.begin(), flights_.end(), [](const Flight& flight) { return flight.output == nullptr; });
    if (free != flights_.end()) return *free;
    Flight& made = flights_.emplace_back();
    check(driver().cuEventCreate(&made.done, cuda::kEventWithoutTime), "creating an event");
    return made;
  }

  CudaDevice& device_;
  Communicator& ranks_;
  cuda::StreamHandle stream_ = nullptr;  // of all collectives
  cuda::EventHandle ready_ = nullptr;    // the inputs of the next one
  nccl::Handle communicator_ = nullptr;
  std::vector<Flight> flights_;
  std::string last_;  // for messages
  bool failed_ = false;
};

}  // namespace

std::unique_ptr<DeviceRanks> connect_nccl(CudaDevice& device, Communicator& ranks) { return std::make_unique<NcclRanks>(device, ranks); }

}  // namespace galley
