#include "libcore/comm/nodes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <vector>

#include "libcore/base/error.h"

namespace galley {
namespace {

const std::byte* part_at(const void* base, int64_t offset) { return static_cast<const std::byte*>(base) + offset; }
std::byte* part_at(void* base, int64_t offset) { return static_cast<std::byte*>(base) + offset; }

/// The levels of a collective of groups; std::nullopt also for other collectives.
std::optional<NodeLevels> levels_of_call(const Collective& call, int ranks, int per_machine) {
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllGather: return levels_of(call.group.size == 0 ? RankGroup{1, ranks} : call.group, per_machine);
    default: return std::nullopt;
  }
}

/// Collectives between machines, and of groups that are not in one machine.
class NodeMessages : public MessageCommunicator {
 public:
  /// `machine` communicates for the thread, `caller` for the thread that starts and waits.
  NodeMessages(std::unique_ptr<PointToPoint> messages, const MessageOptions& options, std::unique_ptr<DirectCommunicator> machine,
               DirectCommunicator& caller)
      : MessageCommunicator(std::move(messages), options), machine_(std::move(machine)), caller_(caller) {
    machine_->call_while_waiting([this] { return test_flights(); });
  }
  ~NodeMessages() override { stop(); }
  void abort(const std::string& message) override {
    machine_->abort(message);
    MessageCommunicator::abort(message);
  }
  void leave() override {
    machine_->stop_waiting();
    MessageCommunicator::leave();
  }

 protected:
  void run_one(const Job& job) override;
  void failed(const std::string& message) override {
    machine_->abort(message);
    caller_.abort(message);
  }
  bool idle() override { return caller_.advance(); }

 private:
  /// How this rank takes part in a collective. Members of the group are numbered in its order: inside a machine, then machine by machine.
  struct Levels {
    NodeLevels size;
    RankGroup group;      // of all ranks
    RankGroup neighbors;  // the members on this machine, in its numbers
    int place, machine;   // of this rank: among those members, and of its machine
    int64_t stride;       // of segments
    int rank_of(int of_machine, int rank) const { return group.first_of(rank) + (of_machine * size.inside + place) * group.stride; }
    /// The segments of the members of a machine.
    Segment block(int of_machine, int64_t count) const {
      const int64_t each = size.inside * stride;
      return {std::min(count, of_machine * each), std::min(count, (of_machine + 1) * each)};
    }
    /// The segment of the member at this rank's place of a machine.
    Segment segment(int of_machine, int64_t count) const {
      const int64_t index = int64_t{of_machine} * size.inside + place;
      return {std::min(count, index * stride), std::min(count, (index + 1) * stride)};
    }
  };
  struct Orders {
    GroupOrder inside, between;
  };
  Levels levels(const Job& job, const NodeLevels& size) const;
  const Orders& orders(const Job& job, const Levels& levels);
  void sum(const Job& job, const Levels& levels);
  void gather_between(const Job& job, const Levels& levels, const std::byte* own);
  void broadcast_levels(const Job& job);

  std::unique_ptr<DirectCommunicator> machine_;
  DirectCommunicator& caller_;
  std::map<std::array<int, 4>, Orders> orders_;
  std::vector<std::byte> sums_;  // of this machine's ranks: of the segments at this rank's place of all machines
};

NodeMessages::Levels NodeMessages::levels(const Job& job, const NodeLevels& size) const {
  const RankGroup group = job.call.group.size == 0 ? RankGroup{1, this->size()} : job.call.group;
  const int index = group.index_of(rank());
  return {.size = size,
          .group = group,
          .neighbors = {group.stride, size.inside},
          .place = index % size.inside,
          .machine = index / size.inside,
          .stride = segment_stride(job.call.count, group.size)};
}

/// The order of a group's sum, in two steps. Where its leaves are its own, the group is as all ranks are.
const NodeMessages::Orders& NodeMessages::orders(const Job& job, const Levels& levels) {
  const Collective& call = job.call;
  const RankGroup& group = levels.group;
  const std::array<int, 4> key{call.leaves, group.stride, group.size, call.of_group};
  const auto found = orders_.find(key);
  if (found != orders_.end()) return found->second;
  const bool alone = call.of_group || call.leaves == 0;
  const int leaves = call.leaves == 0 ? group.size : call.leaves, inside = levels.size.inside;
  const int stride = alone ? 1 : group.stride, own = alone ? group.index_of(rank()) : rank(), all = alone ? group.size : size();
  const GroupOrder first(leaves, false, {stride, inside}, own, all);
  const int neighbor = levels.neighbors.first_of(machine_->rank());
  return orders_
      .emplace(key,
               Orders{first.renamed(neighbor, group.stride), GroupOrder(leaves, false, {stride * inside, levels.size.between}, own, all)})
      .first->second;
}

void NodeMessages::run_one(const Job& job) {
  const Collective& call = job.call;
  const std::optional<NodeLevels> size = levels_of_call(call, this->size(), per_machine());
  if (call.kind == CollectiveKind::kBroadcast) return broadcast_levels(job);
  if (call.kind == CollectiveKind::kBarrier) {
    machine_->barrier(call.name);
    return meet(machine_->rank(), machine_->size(), this->size() / machine_->size());
  }
  if (!size || size->inside == 1) return MessageCommunicator::run_one(job);
  const Levels own = levels(job, *size);
  if (call.kind != CollectiveKind::kAllGather) return sum(job, own);
  // The output may be memory that all ranks of the machine read until they start.
  machine_->barrier(call.name);
  gather_between(job, own, part_at(call.input, 0));
}

/// Sums within the machine the segments of the ranks at this rank's place of all machines, sends them there, and sums what comes.
void NodeMessages::sum(const Job& job, const Levels& levels) {
  const Collective& call = job.call;
  const Orders& order = orders(job, levels);
  const DType wide = sum_dtype(call.dtype);
  const int64_t element = dtype_size(call.dtype), width = dtype_size(wide);
  const int machines = levels.size.between, outputs = order.inside.outputs();
  const Segment own = levels.segment(levels.machine, call.count);
  received_.resize(std::max(received_.size(), static_cast<size_t>(order.between.all_inputs() * own.size() * width)));
  sums_.resize(std::max(sums_.size(), static_cast<size_t>(outputs * machines * levels.stride * width)));
  parts_.clear();
  for (int m = 0; m < machines; ++m) {
    for (int part = 0; part < order.between.inputs(m); ++part) {
      std::byte* place = received_.data() + std::ssize(parts_) * own.size() * width;
      if (m == levels.machine) place = sums_.data() + (m * outputs * levels.stride + part * own.size()) * width;
      parts_.push_back(place);
      if (m != levels.machine) receive_all(levels.rank_of(m, rank()), place, own.size() * width);
    }
  }
  // Machines begin with the next one, so that they send to different ones.
  std::vector<PartOfCall> parts(static_cast<size_t>(machines));
  std::vector<Ticket> tickets(parts.size());
  const auto start = [&](int i) {
    const int m = (levels.machine + i) % machines;
    const Segment block = levels.block(m, call.count);
    PartOfCall& part = parts[static_cast<size_t>(i - 1)];
    part = {job.ticket, &order.inside, levels.stride, call.count, true};
    tickets[static_cast<size_t>(i - 1)] = machine_->start({.kind = CollectiveKind::kReduceScatter,
                                                           .dtype = call.dtype,
                                                           .op = call.op,
                                                           .name = call.name,
                                                           .input = part_at(call.input, block.begin * element),
                                                           .output = sums_.data() + m * outputs * levels.stride * width,
                                                           .count = block.size(),
                                                           .leaves = call.leaves,
                                                           .group = levels.neighbors,
                                                           .part = &part});
  };
  start(1);
  for (int i = 1; i <= machines; ++i) {
    if (i < machines) start(i + 1);
    machine_->wait(tickets[static_cast<size_t>(i - 1)]);
    const int m = (levels.machine + i) % machines;
    const int64_t bytes = levels.segment(m, call.count).size() * width;
    for (int part = 0; part < outputs && m != levels.machine; ++part)
      send_all(levels.rank_of(m, rank()), sums_.data() + m * outputs * levels.stride * width + part * bytes, bytes);
  }
  complete();
  const bool all = call.kind == CollectiveKind::kAllReduce;
  std::byte* result = part_at(call.output, all ? own.begin * element : 0);
  order.between.reduce(parts_, result, own.size(), own.size(), wide, call.dtype, call.op);
  if (all) gather_between(job, levels, result);
}

/// Sends the rank's own segment to the ranks of its place on other machines; then the ranks of a machine hand each other what they have.
void NodeMessages::gather_between(const Job& job, const Levels& levels, const std::byte* own) {
  const Collective& call = job.call;
  const int64_t element = dtype_size(call.dtype);
  const int machines = levels.size.between;
  const Segment mine = levels.segment(levels.machine, call.count);
  for (int i = 1; i < machines; ++i) {
    const int m = (levels.machine + machines - i) % machines;
    const Segment theirs = levels.segment(m, call.count);
    receive_all(levels.rank_of(m, rank()), part_at(call.output, theirs.begin * element), theirs.size() * element);
  }
  for (int i = 1; i < machines; ++i) send_all(levels.rank_of((levels.machine + i) % machines, rank()), own, mine.size() * element);
  std::byte* to = part_at(call.output, mine.begin * element);
  if (to != own && mine.size() > 0) std::memcpy(to, own, static_cast<size_t>(mine.size() * element));
  const PartOfCall part{.ticket = job.ticket, .order = &machine_->order(0, levels.neighbors), .segment_stride = levels.stride};
  const auto hand_out = [&](int m) {
    const Segment block = levels.block(m, call.count);
    return machine_->start({.kind = CollectiveKind::kAllGather,
                            .dtype = call.dtype,
                            .name = call.name,
                            .input = part_at(call.output, levels.segment(m, call.count).begin * element),
                            .output = part_at(call.output, block.begin * element),
                            .count = block.size(),
                            .group = levels.neighbors,
                            .part = &part});
  };
  Ticket last = hand_out(levels.machine);
  complete();
  for (int i = 1; i < machines; ++i) {
    const Ticket next = hand_out((levels.machine + i) % machines);
    machine_->wait(last);
    last = next;
  }
  machine_->wait(last);
}

/// The root sends to the rank of its place on each other machine, which hands the array to its neighbors.
void NodeMessages::broadcast_levels(const Job& job) {
  const Collective& call = job.call;
  const int each = machine_->size(), place = call.peer % each;
  std::vector<int> ranks;
  for (int m = 1; m < size() / each; ++m) ranks.push_back((call.peer + m * each) % size());
  broadcast_to(ranks, call);
  const PartOfCall part{.ticket = job.ticket, .order = &machine_->order()};
  const bool root = call.peer == rank();
  machine_->run({.kind = CollectiveKind::kBroadcast,
                 .dtype = call.dtype,
                 .name = call.name,
                 .input = root ? call.input : call.output,
                 .output = call.output,
                 .count = call.count,
                 .peer = place,
                 .part = &part});
}

class NodeCommunicator : public Communicator {
 public:
  NodeCommunicator(SharedPair machine, std::unique_ptr<PointToPoint> messages, const MessageOptions& options)
      : Communicator(messages->rank(), messages->size()),
        transport_(cat("shared memory and messages (", messages->name(), ")")),
        machine_(std::move(machine.first)),
        ranks_(std::make_unique<NodeMessages>(std::move(messages), options, std::move(machine.second), *machine_)) {}
  std::string transport() const override { return transport_; }
  void abort(const std::string& message) override {
    machine_->abort(message);
    ranks_->abort(message);
  }
  void leave() override { ranks_->leave(); }
  int per_machine() const override { return machine_->size(); }
  int sharing_memory() const override { return machine_->size(); }
  // The sums of the machine's ranks for all machines, and what comes from these.
  int64_t buffer_bytes(int64_t bytes) const override { return 2 * bytes / machine_->size(); }
  std::shared_ptr<std::byte> allocate(int64_t bytes) override { return machine_->allocate(bytes); }
  std::shared_ptr<std::byte> allocate_common(int64_t bytes) override { return machine_->allocate_common(bytes); }
  void report_polls_to(Position* position) override {
    Communicator::report_polls_to(position);
    machine_->report_polls_to(position);
    ranks_->report_polls_to(position);
  }

 protected:
  void begin(const Collective& call, Ticket ticket) override;
  void finish(Ticket ticket) override;

 private:
  struct Flight {
    Ticket ticket = 0;  // 0: free
    Ticket inner = 0;
    bool on_machine = false;
    PartOfCall part;
  };
  /// Runs `work`. After an exception the arrays of collectives may be freed, so that the thread of the messages ends first.
  template <class Work>
  auto guarded(Work&& work) {
    try {
      return work();
    } catch (...) {
      ranks_->leave();
      throw;
    }
  }
  bool on_machine(const Collective& call) const;
  Collective of_machine(const Collective& call, PartOfCall& part);

  std::string transport_;
  std::unique_ptr<DirectCommunicator> machine_;
  std::unique_ptr<NodeMessages> ranks_;
  std::map<std::array<int, 4>, GroupOrder> orders_;
  std::deque<Flight> flights_;  // keeps addresses
};

bool NodeCommunicator::on_machine(const Collective& call) const {
  if (call.between_two_ranks()) return call.peer / machine_->size() == rank() / machine_->size();
  const std::optional<NodeLevels> levels = levels_of_call(call, size(), machine_->size());
  return levels && levels->between == 1;
}

/// The same in the numbers of the machine's ranks.
Collective NodeCommunicator::of_machine(const Collective& call, PartOfCall& part) {
  Collective own = call;
  if (call.between_two_ranks()) own.peer = call.peer % machine_->size();
  if (own.group.size == 0) own.group = {1, machine_->size()};
  const GroupOrder& order = this->order(call.leaves, call.group, call.of_group);
  const std::array<int, 4> key{call.leaves, call.group.stride, call.group.size, call.of_group};
  auto found = orders_.find(key);
  if (found == orders_.end()) found = orders_.emplace(key, order.renamed(own.group.first_of(machine_->rank()), own.group.stride)).first;
  part.order = &found->second;
  own.part = &part;
  return own;
}

void NodeCommunicator::begin(const Collective& call, Ticket ticket) {
  auto slot = std::find_if(flights_.begin(), flights_.end(), [](const Flight& flight) { return flight.ticket == 0; });
  if (slot == flights_.end()) slot = flights_.emplace(flights_.end());
  *slot = {.ticket = ticket, .on_machine = on_machine(call), .part = {.ticket = ticket}};
  guarded([&] {
    slot->inner = slot->on_machine ? machine_->start(of_machine(call, slot->part)) : ranks_->start(call);
    if (!slot->on_machine) machine_->advance();
  });
}

void NodeCommunicator::finish(Ticket ticket) {
  const auto flight = std::find_if(flights_.begin(), flights_.end(), [&](const Flight& each) { return each.ticket == ticket; });
  GALLEY_ASSERT(flight != flights_.end(), "collective ", ticket, " was waited for already");
  guarded([&] { flight->on_machine ? machine_->wait(flight->inner) : ranks_->wait(flight->inner); });
  flight->ticket = 0;
}

}  // namespace

std::optional<NodeLevels> levels_of(const RankGroup& group, int per_machine) {
  if (per_machine <= 0) return std::nullopt;
  if (group.stride >= per_machine) return NodeLevels{1, group.size};
  if (per_machine % group.stride != 0) return std::nullopt;
  const int most = per_machine / group.stride;
  if (group.size <= most) return most % group.size == 0 ? std::optional(NodeLevels{group.size, 1}) : std::nullopt;
  return group.size % most == 0 ? std::optional(NodeLevels{most, group.size / most}) : std::nullopt;
}

std::unique_ptr<Communicator> node_communicator(SharedPair machine, std::unique_ptr<PointToPoint> messages, const MessageOptions& options) {
  return std::make_unique<NodeCommunicator>(std::move(machine), std::move(messages), options);
}

}  // namespace galley
