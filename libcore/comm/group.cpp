#include "libcore/comm/group.h"

#include <algorithm>
#include <cstring>

#include "libcore/base/error.h"

namespace galley {
namespace {

int place_in(const std::vector<int>& members, int rank) {
  const auto found = std::find(members.begin(), members.end(), rank);
  GALLEY_ASSERT(found != members.end() && std::is_sorted(members.begin(), members.end()), "rank ", rank, " is not in the group");
  return static_cast<int>(found - members.begin());
}

bool sums(const Collective& call) { return call.kind == CollectiveKind::kAllReduce || call.kind == CollectiveKind::kReduceScatter; }

}  // namespace

GroupCommunicator::GroupCommunicator(Communicator& parent, std::vector<int> members)
    : Communicator(place_in(members, parent.rank()), static_cast<int>(members.size())), parent_(parent), members_(std::move(members)) {}

GroupCommunicator::Pending& GroupCommunicator::slot_of(Ticket ticket) {
  const auto found = std::find_if(pending_.begin(), pending_.end(), [&](const Pending& each) { return each.ticket == ticket; });
  if (found != pending_.end()) return *found;
  GALLEY_ASSERT(ticket == 0, "collective ", ticket, " is not started");
  return pending_.emplace_back();
}

void GroupCommunicator::send_part(Pending& pending, int to, const std::byte* data, int64_t count) {
  if (count == 0) return;
  const Collective& call = pending.call;
  pending.messages.push_back(parent_.start({.kind = CollectiveKind::kSend,
                                            .dtype = call.dtype,
                                            .name = call.name,
                                            .input = data,
                                            .count = count,
                                            .peer = members_[static_cast<size_t>(to)]}));
}

void GroupCommunicator::receive_part(Pending& pending, int from, std::byte* data, int64_t count) {
  if (count == 0) return;
  const Collective& call = pending.call;
  pending.messages.push_back(parent_.start({.kind = CollectiveKind::kReceive,
                                            .dtype = call.dtype,
                                            .name = call.name,
                                            .output = data,
                                            .count = count,
                                            .peer = members_[static_cast<size_t>(from)]}));
}

/// Some transports complete messages in the order in which they are started: of a pair, the lower rank sends first, and pairs are in the
/// same order everywhere, so that ranks do not wait for each other in a circle.
template <class Send, class Receive>
void GroupCommunicator::exchange(const RankGroup& group, const Send& send, const Receive& receive) {
  for (int index = 0; index < group.size; ++index) {
    const int peer = group.first_of(rank()) + index * group.stride;
    if (peer == rank()) continue;
    if (rank() < peer) send(peer);
    receive(peer);
    if (rank() > peer) send(peer);
  }
}

void GroupCommunicator::exchange_segments(Pending& pending) {
  auto* output = static_cast<std::byte*>(pending.call.output);
  const int64_t bytes = dtype_size(pending.call.dtype);
  const Segment own = segment(pending, rank());
  exchange(
      pending.group, [&](int peer) { send_part(pending, peer, output + own.begin * bytes, own.size()); },
      [&](int peer) {
        const Segment part = segment(pending, peer);
        receive_part(pending, peer, output + part.begin * bytes, part.size());
      });
}

/// Sends each rank its segment of the own partial sums, and receives those of the own segment.
void GroupCommunicator::start_sums(Pending& pending, const GroupOrder& order) {
  const Collective& call = pending.call;
  const int64_t bytes = dtype_size(call.dtype);
  const Segment own = segment(pending, rank());
  const auto* input = static_cast<const std::byte*>(call.input);
  pending.places.assign(static_cast<size_t>(order.members()), 0);
  int64_t sums = 0;
  for (int member = 0; member < order.members(); ++member) {
    pending.places[static_cast<size_t>(member)] = sums * own.size() * bytes;
    if (member != order.index()) sums += order.inputs(member);
  }
  pending.received.resize(static_cast<size_t>(sums * own.size() * bytes));
  exchange(
      pending.group,
      [&](int peer) {
        const Segment segment = this->segment(pending, peer);
        for (int sum = 0; sum < order.inputs(order.index()); ++sum)
          send_part(pending, peer, input + (sum * call.count + segment.begin) * bytes, segment.size());
      },
      [&](int peer) {
        const int member = pending.group.index_of(peer);
        for (int sum = 0; sum < order.inputs(member); ++sum)
          receive_part(pending, peer, pending.received.data() + pending.places[static_cast<size_t>(member)] + sum * own.size() * bytes,
                       own.size());
      });
}

void GroupCommunicator::begin(const Collective& call, Ticket ticket) {
  Pending& pending = slot_of(0);
  pending.call = call;
  pending.group = call.group.size == 0 ? RankGroup{1, size()} : call.group;
  pending.ticket = ticket;
  pending.messages.clear();
  const int64_t bytes = dtype_size(call.dtype);
  const Segment own = segment(pending, rank());
  const auto* input = static_cast<const std::byte*>(call.input);
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter: start_sums(pending, order_of(pending)); break;
    case CollectiveKind::kAllGather: {
      auto* place = static_cast<std::byte*>(call.output) + own.begin * bytes;
      if (place != input) std::memcpy(place, input, static_cast<size_t>(own.size() * bytes));
      exchange_segments(pending);
      break;
    }
    case CollectiveKind::kBroadcast:
      if (rank() != call.peer) {
        receive_part(pending, call.peer, static_cast<std::byte*>(call.output), call.count);
      } else {
        for (int peer = 0; peer < size(); ++peer) {
          if (peer != rank()) send_part(pending, peer, input, call.count);
        }
        if (call.output != call.input) std::memcpy(call.output, input, static_cast<size_t>(call.count * bytes));
      }
      break;
    case CollectiveKind::kBarrier:
      pending.received.resize(static_cast<size_t>(size() + 1) * static_cast<size_t>(bytes));
      exchange(
          pending.group, [&](int peer) { send_part(pending, peer, pending.received.data() + size() * bytes, 1); },
          [&](int peer) { receive_part(pending, peer, pending.received.data() + peer * bytes, 1); });
      break;
    case CollectiveKind::kSend: send_part(pending, call.peer, input, call.count); break;
    case CollectiveKind::kReceive: receive_part(pending, call.peer, static_cast<std::byte*>(call.output), call.count); break;
  }
}

void GroupCommunicator::wait_for_messages(Pending& pending) {
  for (const Ticket message : pending.messages) parent_.wait(message);
  pending.messages.clear();
}

void GroupCommunicator::finish(Ticket ticket) {
  Pending& pending = slot_of(ticket);
  const Collective& call = pending.call;
  wait_for_messages(pending);
  if (sums(call)) {
    const int64_t bytes = dtype_size(call.dtype);
    const Segment own = segment(pending, rank());
    const GroupOrder& order = order_of(pending);
    parts_.clear();
    for (int member = 0; member < order.members(); ++member) {
      const std::byte* received = pending.received.data() + pending.places[static_cast<size_t>(member)];
      for (int sum = 0; sum < order.inputs(member); ++sum) {
        parts_.push_back(member == order.index() ? static_cast<const std::byte*>(call.input) + (sum * call.count + own.begin) * bytes
                                                 : received + sum * own.size() * bytes);
      }
    }
    auto* place = static_cast<std::byte*>(call.output) + (call.kind == CollectiveKind::kAllReduce ? own.begin * bytes : 0);
    if (own.size() > 0) order.reduce(parts_, place, own.size(), own.size(), call.dtype, call.op);
    if (call.kind == CollectiveKind::kAllReduce) {
      exchange_segments(pending);
      wait_for_messages(pending);
    }
  }
  pending.ticket = 0;
}

std::vector<int> tensor_group(int rank, int tensor) {
  std::vector<int> members;
  for (int r = 0; r < tensor; ++r) members.push_back(rank / tensor * tensor + r);
  return members;
}

std::vector<int> data_group(int rank, int ranks, int tensor) {
  std::vector<int> members;
  for (int r = rank % tensor; r < ranks; r += tensor) members.push_back(r);
  return members;
}

}  // namespace galley
