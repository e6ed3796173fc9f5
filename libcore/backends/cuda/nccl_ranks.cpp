#include "libcore/backends/cuda/nccl_ranks.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
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

/// The stream on which all collectives of a rank run, and what they belong to.
class Lane {
 public:
  explicit Lane(CudaDevice& device) : device_(device) {
    device_.make_current();
    check(driver().cuStreamCreateWithPriority(&stream_, cuda::kNonBlockingStream, cuda::kHighestPriority), "creating a stream");
  }
  ~Lane() {
    device_.watch(nullptr);
    if (device_.try_current()) driver().cuStreamDestroy(stream_);
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  cuda::StreamHandle stream() const { return stream_; }
  void add(class NcclRanks* each) { members_.push_back(each); }
  void remove(class NcclRanks* each) { members_.erase(std::find(members_.begin(), members_.end(), each)); }
  /// Throws if a rank failed.
  void check_all() const;
  /// Ends the work of all communicators.
  void abort_all() const noexcept;

 private:
  CudaDevice& device_;
  cuda::StreamHandle stream_ = nullptr;
  std::vector<NcclRanks*> members_;
};

class NcclRanks : public DeviceRanks {
 public:
  NcclRanks(CudaDevice& device, Communicator& ranks, const NcclRanks* before)
      : device_(device),
        ranks_(ranks),
        lane_(before != nullptr ? before->lane_ : std::make_shared<Lane>(device)),
        stream_(lane_->stream()) {
    device_.make_current();
    check(driver().cuEventCreate(&ready_, cuda::kEventWithoutTime), "creating an event");
    connect();
    lane_->add(this);
    if (before == nullptr) device_.watch([lane = lane_.get()] { lane->check_all(); });
  }
  ~NcclRanks() override {
    lane_->remove(this);
    if (!device_.try_current()) return;
    // Of a communicator with an error, only this ends the work.
    const bool failed = std::uncaught_exceptions() > 0 || failed_;
    if (!failed) release();
    for (const nccl::Handle each : all_communicators()) failed ? library().ncclCommAbort(each) : library().ncclCommDestroy(each);
    for (const Flight& flight : flights_) driver().cuEventDestroy(flight.done);
    driver().cuEventDestroy(ready_);
  }
  NcclRanks(const NcclRanks&) = delete;
  NcclRanks& operator=(const NcclRanks&) = delete;

  /// Throws if a rank failed. Called again and again by a thread that waits.
  void check_ranks() {
    if (Position* position = ranks_.position()) position->polls.fetch_add(1, std::memory_order_relaxed);
    if (communicator_ == nullptr || failed_) return;
    for (const nccl::Handle each : all_communicators()) {
      nccl::Result result = nccl::kSuccess;
      const nccl::Result asked = library().ncclCommGetAsyncError(each, &result);
      if (asked != nccl::kSuccess) result = asked;
      if (result != nccl::kInProgress) expect(result, last_);
    }
  }
  /// Ends kernels that wait for other ranks.
  void abort() noexcept {
    failed_ = true;
    for (const nccl::Handle each : all_communicators()) library().ncclCommAbort(each);
    communicator_ = nullptr;
    groups_.clear();
    registered_.clear();
  }

  std::string transport() const override { return "NCCL " + nccl::nccl().state.version; }

  void release() override {
    if (registered_.empty() || !device_.try_current()) return;
    for (const auto& [array, registration] : registered_) library().ncclCommDeregister(array.communicator, registration);
    registered_.clear();
  }

  void start(const Collective& call, Stream& stream) override {
    device_.make_current();
    last_ = cat(collective_name(call.kind), " ", call.name);
    check_sums(call);
    const nccl::Handle among = communicator_of(call.group);
    check(driver().cuEventRecord(ready_, cuda_stream(stream)), "recording an event");
    check(driver().cuStreamWaitEvent(stream_, ready_, 0), "waiting for an event");
    register_array(call, among);
    finish(enqueue(call, among), among);
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
  /// An array that a communicator knows.
  struct Registered {
    nccl::Handle communicator;
    const void* address;
    size_t bytes;
    auto operator<=>(const Registered&) const = default;
  };
  /// A started collective.
  struct Flight {
    const void* output = nullptr;  // null: free
    cuda::EventHandle done = nullptr;
  };

  /// Registers the array of a collective when it is first used, which is in a run that is not recorded: arrays have one place in all runs.
  /// NCCL then moves it without copies of its own where the GPUs allow that. All ranks must do so: a failure ends the job.
  void register_array(const Collective& call, nccl::Handle among) {
    const bool scatters = call.kind == CollectiveKind::kReduceScatter;  // the output is a part of the input
    const Registered array{among, scatters ? call.input : call.output, static_cast<size_t>(call.count * dtype_size(call.dtype))};
    if (array.bytes == 0 || registered_.contains(array)) return;
    void* registration = nullptr;
    finish(library().ncclCommRegister(among, const_cast<void*>(array.address), array.bytes, &registration), among);
    registered_.emplace(array, registration);
  }

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
    finish(library().ncclCommInitRankConfig(&communicator_, ranks_.size(), id, ranks_.rank(), &options), communicator_);
  }

  std::vector<nccl::Handle> all_communicators() const {
    std::vector<nccl::Handle> all;
    for (const auto& [group, handle] : groups_) all.push_back(handle);
    if (communicator_ != nullptr) all.push_back(communicator_);
    return all;
  }
  int members_of(RankGroup group) const { return group.size == 0 ? ranks_.size() : group.size; }
  /// The communicator of this rank's group. All ranks start the first collective of such groups, so each makes one then: in the first run
  /// of a program, which is not recorded.
  nccl::Handle communicator_of(RankGroup group) {
    if (members_of(group) == ranks_.size()) return communicator_;
    for (const auto& [known, handle] : groups_)
      if (known == group) return handle;
    nccl::Options options;
    options.blocking = 0;
    nccl::Handle made = nullptr;
    const int rank = ranks_.rank();
    finish(library().ncclCommSplit(communicator_, group.first_of(rank), group.index_of(rank), &made, &options), communicator_);
    groups_.emplace_back(group, made);
    finish(nccl::kInProgress, made);
    return made;
  }
  /// NCCL adds one array of each member to one result.
  void check_sums(const Collective& call) {
    if (call.kind != CollectiveKind::kAllReduce && call.kind != CollectiveKind::kReduceScatter) return;
    if (members_of(call.group) == ranks_.size()) return;
    const GroupOrder& order = ranks_.order(call.leaves, call.group, call.of_group);
    if (order.outputs() == 1 && order.most_inputs() == 1) return;
    throw Error(ErrorCode::kRecipe, cat(last_, ": device cuda adds the arrays of groups of ", call.group.size, " of ", ranks_.size(),
                                        " ranks only where the size of a group is a power of two"))
        .key("sharding.mesh")
        .suggest("sharding=fsdp");
  }

  nccl::Result enqueue(const Collective& call, nccl::Handle among) {
    const size_t count = static_cast<size_t>(call.count), own = count / static_cast<size_t>(members_of(call.group));
    const bool bytes = call.kind == CollectiveKind::kAllGather || call.kind == CollectiveKind::kBroadcast;
    const size_t size = bytes ? static_cast<size_t>(dtype_size(call.dtype)) : 1;
    const int type = bytes ? nccl::kI8 : type_of(call.dtype), operation = call.op == ReduceOp::kMax ? nccl::kMaximum : nccl::kSum;
    switch (call.kind) {
      case CollectiveKind::kAllReduce: return library().ncclAllReduce(call.input, call.output, count, type, operation, among, stream_);
      case CollectiveKind::kReduceScatter:
        return library().ncclReduceScatter(call.input, call.output, own, type, operation, among, stream_);
      case CollectiveKind::kAllGather: return library().ncclAllGather(call.input, call.output, own * size, type, among, stream_);
      case CollectiveKind::kBroadcast:
        return library().ncclBroadcast(call.input, call.output, count * size, type, call.peer, communicator_, stream_);
      default: break;
    }
    throw Error(ErrorCode::kRecipe, cat(last_, ": device cuda has no messages between two ranks, which pipelines need"))
        .key("sharding")
        .suggest("sharding=fsdp");
  }

  /// Waits until a call that goes on in the background has done its work on the host.
  void finish(nccl::Result result, const nccl::Handle& of) {
    while (result == nccl::kInProgress) {
      lane_->check_all();
      const nccl::Result asked = library().ncclCommGetAsyncError(of, &result);
      if (asked != nccl::kSuccess) result = asked;
      if (result == nccl::kInProgress) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    expect(result, last_);
  }

  void expect(nccl::Result result, const std::string& what) {
    if (result == nccl::kSuccess) return;
    std::string text = cat("NCCL: ", what, ": ", library().ncclGetErrorString(result), " (", result, ")");
    if (communicator_ != nullptr) {
      const char* more = library().ncclGetLastError(communicator_);
      if (more != nullptr && *more != '\0') text += cat(", ", more);
    }
    lane_->abort_all();
    abort();  // also before it is connected
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
  std::shared_ptr<Lane> lane_;
  cuda::StreamHandle stream_;            // of all collectives
  cuda::EventHandle ready_ = nullptr;    // the inputs of the next one
  nccl::Handle communicator_ = nullptr;  // of all ranks
  std::vector<std::pair<RankGroup, nccl::Handle>> groups_;
  std::map<Registered, void*> registered_;
  std::vector<Flight> flights_;
  std::string last_;  // for messages
  bool failed_ = false;
};

void Lane::check_all() const {
  for (NcclRanks* each : members_) each->check_ranks();
}
void Lane::abort_all() const noexcept {
  for (NcclRanks* each : members_) each->abort();
}

}  // namespace

std::unique_ptr<DeviceRanks> connect_nccl(CudaDevice& device, Communicator& ranks, DeviceRanks* before) {
  return std::make_unique<NcclRanks>(device, ranks, static_cast<NcclRanks*>(before));
}

}  // namespace galley
