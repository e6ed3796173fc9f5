#pragma once
// Communicator: collectives between the ranks of a run. Every rank starts the same collectives in the same order.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/comm/position.h"
#include "libcore/comm/reduction_tree.h"

namespace galley {

class DeviceRanks;  // device_ranks.h
struct PartOfCall;

enum class CollectiveKind : uint8_t { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kBarrier, kSend, kReceive };
inline constexpr size_t kCollectiveKinds = 7;
/// "all_reduce"
std::string_view collective_name(CollectiveKind kind);
/// Identifies a started collective: its number, from 1.
using Ticket = uint64_t;

/// The ranks among which a rank shares a collective. The ranks of a job form groups of equal size, whose members are `stride` apart; all
/// ranks start the collective, each in its group.
struct RankGroup {
  int stride = 1;
  int size = 0;  ///< 0: all ranks.
  friend bool operator==(const RankGroup&, const RankGroup&) = default;

  int index_of(int rank) const { return rank / stride % size; }
  int first_of(int rank) const { return rank - index_of(rank) * stride; }
};

/// One collective, as each rank starts it. Arrays have `count` elements and are divided into one segment for each rank of the group
/// (segment_of).
struct Collective {
  CollectiveKind kind = CollectiveKind::kBarrier;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  /// What the collective is about, for messages: "grads.bucket3". The text must live until the wait.
  std::string_view name;
  /// all_reduce, reduce_scatter: the rank's partial sums (ReductionTree), one array after the other. all_gather: the rank's own segment.
  /// send: the message. broadcast: the array of the root.
  const void* input = nullptr;
  /// all_reduce, all_gather: the array. reduce_scatter: the rank's own segment. broadcast, receive: the array.
  /// The output of all_reduce may be the first partial sum. Segments that are input and output may be at the same place in one array.
  void* output = nullptr;
  int64_t count = 0;
  int peer = 0;  ///< broadcast: the root; send, receive: the other rank.
  /// all_reduce, reduce_scatter: leaves of the tree over all ranks, as GroupOrder says; 0: one for each rank of the group.
  int leaves = 0;
  bool of_group = false;  ///< The leaves are those of the group, not of all ranks.
  RankGroup group;        ///< all_reduce, reduce_scatter, all_gather.
  /// Set where the ranks of one machine do their part of a collective of more ranks; it must live until the wait.
  const PartOfCall* part = nullptr;

  bool between_two_ranks() const { return kind == CollectiveKind::kSend || kind == CollectiveKind::kReceive; }
};

/// The order of sums in groups, which sum in turn, those with the smaller stride first (inside nodes, then between them), so that the tree
/// over all leaves is computed. A member contributes the partial sums of the block of `stride` ranks that it is in, of all N / stride
/// blocks; the result are the partial sums of the group's ranks, among N / (stride * size) such groups: one, if their leaves are one
/// subtree or if they are all leaves.
class GroupOrder {
 public:
  /// `alone`: the leaves are those of the group's members only.
  GroupOrder(int leaves, bool alone, RankGroup group, int rank, int ranks);

  int members() const { return group_.size; }
  /// This rank's place in the group.
  int index() const { return index_; }
  /// The rank at a place.
  int rank_at(int index) const { return first_ + index * group_.stride; }
  /// Partial sums that a member contributes.
  int inputs(int index) const { return inputs_[static_cast<size_t>(index)]; }
  int most_inputs() const;
  int all_inputs() const;
  /// Partial sums of the result.
  int outputs() const { return static_cast<int>(trees_.size()); }
  /// result[o * stride + i] = the sums of parts[p][i], p in the order of members and their partial sums, for each output o; `stride` in
  /// elements. `from` and `to`: as ReductionTree::reduce.
  void reduce(std::span<const void* const> parts, void* result, int64_t stride, int64_t count, DType from, DType to, ReduceOp op) const;
  void reduce(std::span<const void* const> parts, void* result, int64_t stride, int64_t count, DType dtype, ReduceOp op) const {
    reduce(parts, result, stride, count, dtype, dtype, op);
  }
  /// The same sums where the members are called rank `first`, `first + stride` and so on.
  GroupOrder renamed(int first, int stride) const;

 private:
  RankGroup group_;
  int index_, first_;
  std::vector<int> inputs_;
  std::vector<ReductionTree> trees_;  // by output, each over consecutive parts
};

/// The elements of a rank's segment. Segments begin at multiples of 16 elements; the last ones may be shorter or empty.
struct Segment {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};
/// Elements from the start of one segment to that of the next: ceil(count / (16 ranks)) * 16.
int64_t segment_stride(int64_t count, int ranks);
Segment segment_of(int64_t count, int ranks, int rank);

/// What a part of a collective has of its own. The segments of the group's members are `segment_stride` elements apart.
struct PartOfCall {
  Ticket ticket = 0;                  ///< Of the whole, for messages.
  const GroupOrder* order = nullptr;  ///< In the numbers of the ranks that do the part.
  int64_t segment_stride = 0;         ///< 0: as segment_of says.
  int64_t partial_stride = 0;         ///< Elements from one partial sum of the input to the next; 0: Collective::count.
  bool wide = false;                  ///< reduce_scatter: the result has sum_dtype.
};

/// Bytes that a rank sent to others, or that others read from its memory: what a network between all ranks would carry.
struct Traffic {
  int64_t calls = 0;
  int64_t bytes = 0;
};

/// Not thread-safe, except `abort`: one thread of a rank starts and waits.
class Communicator {
 public:
  Communicator(int rank, int size);
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// How ranks reach each other, for the first lines of a run: "threads", "shared memory", "messages (MPI)".
  virtual std::string transport() const = 0;

  /// Starts a collective. Its arrays belong to the communicator until `wait`. Threads and shared memory allocate nothing once a collective
  /// of the same number of leaves has run.
  Ticket start(const Collective& call);
  /// Waits until the output is complete and the input may change. Tickets may be waited for in any order, each once. Throws Error (kWorker)
  /// if another rank failed, or if ranks started different collectives.
  void wait(Ticket ticket);
  void run(const Collective& call) { wait(start(call)); }

  void all_reduce(std::string_view name, const void* input, void* output, int64_t count, DType dtype, ReduceOp op = ReduceOp::kSum);
  void reduce_scatter(std::string_view name, const void* input, void* segment, int64_t count, DType dtype);
  void all_gather(std::string_view name, const void* segment, void* output, int64_t count, DType dtype, RankGroup group = {});
  void broadcast(std::string_view name, void* array, int64_t count, DType dtype, int root);
  void barrier(std::string_view name);
  void send(std::string_view name, const void* array, int64_t count, DType dtype, int to);
  void receive(std::string_view name, void* array, int64_t count, DType dtype, int from);

  /// Memory from which and to which collectives need no copies: other ranks read it directly where the transport can. All ranks must call
  /// it, in the same order of calls; sizes may differ. Aligned to 64 bytes, zero at first.
  virtual std::shared_ptr<std::byte> allocate(int64_t bytes);
  /// Allocates memory that all ranks of a machine share, for outputs of gathers: a collective writes it once, and all ranks may read it
  /// until the next gather into it starts. Returns nullptr if ranks do not share memory or, with a warning, if /dev/shm is too small. All
  /// ranks call it.
  virtual std::shared_ptr<std::byte> allocate_common(int64_t bytes);

  /// Ends the waiting of the other ranks, now and later: their waits throw Error (kWorker) with this message. Any thread may call it.
  virtual void abort(const std::string& message) = 0;
  /// Called when this rank ends by an exception while its collectives run, before it frees their arrays: after the call no other rank
  /// or thread reads or writes them.
  virtual void leave() {}

  Traffic traffic(CollectiveKind kind) const { return traffic_[static_cast<size_t>(kind)]; }
  Traffic traffic() const;
  /// The order of a collective of this rank.
  const GroupOrder& order(int leaves = 0, RankGroup group = {}, bool of_group = false);
  const GroupOrder& order_of(const Collective& call) {
    return call.part != nullptr ? *call.part->order : order(call.leaves, call.group, call.of_group);
  }
  /// The ranks of one machine, which are consecutive; 0: machines have different numbers of ranks, or theirs are not consecutive.
  virtual int per_machine() const { return size_; }
  /// The ranks that share memory with this one as processes, itself too: 1, all of its machine, or all.
  virtual int sharing_memory() const { return 1; }
  /// The most memory of this rank, beyond the array, that a sum of an array of so many bytes over all ranks takes.
  virtual int64_t buffer_bytes(int64_t bytes) const { return static_cast<void>(bytes), 0; }

  /// Collectives between arrays in the memory of the ranks' devices; nullptr: arrays are in the host's memory. It must outlive its uses.
  void use_devices(DeviceRanks* devices) { devices_ = devices; }
  DeviceRanks* devices() const { return devices_; }

  /// Where this rank is, for supervisor and heartbeat: starts and waits are recorded there. nullptr: nowhere.
  void report_to(Position* position) {
    position_ = position;
    report_polls_to(position);
  }
  /// Only that a waiting rank is alive: of a communicator that does the work of another one.
  virtual void report_polls_to(Position* position) { polled_ = position; }
  Position* position() const { return position_; }
  /// The training step, for messages.
  void set_step(int64_t step);
  int64_t step() const { return step_; }

 protected:
  /// Called again and again by a thread that waits.
  void poll() {
    if (polled_ != nullptr) polled_->polls.fetch_add(1, std::memory_order_relaxed);
  }
  virtual void begin(const Collective& call, Ticket ticket) = 0;
  virtual void finish(Ticket ticket) = 0;

 private:
  int64_t bytes_sent(const Collective& call);

  int rank_, size_;
  int64_t step_ = 0;
  Ticket started_ = 0;
  std::array<Traffic, kCollectiveKinds> traffic_{};
  std::map<std::array<int, 4>, GroupOrder> orders_;
  Position *position_ = nullptr, *polled_ = nullptr;
  DeviceRanks* devices_ = nullptr;
};

/// "collective 21 (all_reduce grads.bucket3)"
std::string collective_text(Ticket ticket, const Collective& call);

}  // namespace galley
