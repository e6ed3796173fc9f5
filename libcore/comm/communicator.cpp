#include "libcore/comm/communicator.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>

#include "libcore/base/error.h"

namespace galley {

std::string_view collective_name(CollectiveKind kind) {
  constexpr std::array<std::string_view, kCollectiveKinds> kNames{"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                                                  "barrier",    "send",           "receive"};
  return kNames[static_cast<size_t>(kind)];
}

int64_t segment_stride(int64_t count, int ranks) {
  const int64_t unit = int64_t{16} * ranks;
  return (count + unit - 1) / unit * 16;
}

Segment segment_of(int64_t count, int ranks, int rank) {
  const int64_t stride = segment_stride(count, ranks);
  return {std::min(count, stride * rank), std::min(count, stride * (rank + 1))};
}

std::string collective_text(Ticket ticket, const Collective& call) {
  return cat("collective ", ticket, " (", collective_name(call.kind), call.name.empty() ? "" : " ", call.name, ")");
}

GroupOrder::GroupOrder(int leaves, bool alone, RankGroup group, int rank, int ranks)
    : group_(group), index_(group.index_of(rank)), first_(group.first_of(rank)) {
  GALLEY_ASSERT(group.stride >= 1 && group.size >= 1 && ranks % (group.stride * group.size) == 0, "groups of ", group.size, " ranks, ",
                group.stride, " apart, of ", ranks, " ranks");
  alone = alone || leaves == 0;
  if (leaves == 0) leaves = group.size;
  const int blocks = alone ? group.size : ranks / group.stride;  // owners of the tree's leaves
  const int first = alone ? 0 : first_ / group.stride;           // block of the group
  const ReductionTree all(leaves, blocks), groups(leaves, blocks / group.size);
  for (int i = 0; i < group.size; ++i) inputs_.push_back(static_cast<int>(all.partials(first + i).size()));
  for (const LeafRange& part : groups.partials(first / group.size)) trees_.emplace_back(leaves, blocks, part);
}

int GroupOrder::most_inputs() const { return *std::max_element(inputs_.begin(), inputs_.end()); }
int GroupOrder::all_inputs() const { return std::accumulate(inputs_.begin(), inputs_.end(), 0); }

void GroupOrder::reduce(std::span<const void* const> parts, void* result, int64_t stride, int64_t count, DType from, DType type_of_result,
                        ReduceOp op) const {
  GALLEY_ASSERT(static_cast<int>(parts.size()) == all_inputs());
  auto* to = static_cast<std::byte*>(result);
  for (const ReductionTree& tree : trees_) {
    const auto used = static_cast<size_t>(tree.first_partial(tree.ranks()));
    tree.reduce(parts.first(used), to, count, from, type_of_result, op);
    parts = parts.subspan(used);
    to += stride * dtype_size(type_of_result);
  }
}

GroupOrder GroupOrder::renamed(int first, int stride) const {
  GroupOrder order = *this;
  order.first_ = first;
  order.group_.stride = stride;
  return order;
}

Communicator::Communicator(int rank, int size) : rank_(rank), size_(size) {
  GALLEY_ASSERT(rank >= 0 && rank < size, "rank ", rank, " of ", size);
  order();
}

const GroupOrder& Communicator::order(int leaves, RankGroup group, bool of_group) {
  if (group.size == 0) group = {1, size_};
  const std::array<int, 4> key{leaves, group.stride, group.size, of_group};
  const auto found = orders_.find(key);
  return found != orders_.end() ? found->second : orders_.emplace(key, GroupOrder(leaves, of_group, group, rank_, size_)).first->second;
}

int64_t Communicator::bytes_sent(const Collective& call) {
  const GroupOrder& group = order_of(call);
  const int members = group.members();
  const int64_t size = dtype_size(call.dtype), own = segment_of(call.count, members, group.index()).size();
  const int64_t scattered = group.inputs(group.index()) * (call.count - own) * size;
  const int64_t gathered = own * size * (members - 1);
  switch (call.kind) {
    case CollectiveKind::kAllReduce: return scattered + gathered;
    case CollectiveKind::kReduceScatter: return scattered;
    case CollectiveKind::kAllGather: return gathered;
    case CollectiveKind::kBroadcast: return call.peer == rank_ ? call.count * size * (size_ - 1) : 0;
    case CollectiveKind::kSend: return call.count * size;
    case CollectiveKind::kBarrier:
    case CollectiveKind::kReceive: break;
  }
  return 0;
}

Traffic Communicator::traffic() const {
  Traffic all;
  for (const Traffic& each : traffic_) {
    all.calls += each.calls;
    all.bytes += each.bytes;
  }
  return all;
}

Ticket Communicator::start(const Collective& call) {
  const bool messages = call.kind == CollectiveKind::kSend || call.kind == CollectiveKind::kReceive;
  GALLEY_ASSERT(call.count >= 0 && call.peer >= 0 && call.peer < size_ && !(messages && call.peer == rank_), call.name);
  GALLEY_ASSERT((call.kind != CollectiveKind::kAllReduce && call.kind != CollectiveKind::kReduceScatter) || is_reducible(call.dtype),
                call.name, ": elements of type ", call.dtype, " cannot be reduced");
  GALLEY_ASSERT(call.kind != CollectiveKind::kAllReduce || order_of(call).outputs() == 1, call.name,
                ": the sum of a group has several parts");
  Traffic& traffic = traffic_[static_cast<size_t>(call.kind)];
  ++traffic.calls;
  traffic.bytes += bytes_sent(call);
  const Ticket ticket = ++started_;
  if (position_ != nullptr) {
    position_->set_text(collective_name(call.kind), call.name);
    position_->started.store(ticket, std::memory_order_release);
  }
  begin(call, ticket);
  return ticket;
}

void Communicator::wait(Ticket ticket) {
  GALLEY_ASSERT(ticket >= 1 && ticket <= started_);
  if (position_ != nullptr) position_->waiting.store(ticket, std::memory_order_release);
  finish(ticket);
  if (position_ != nullptr) {
    position_->waiting.store(0, std::memory_order_release);
    position_->finished.fetch_add(1, std::memory_order_release);
  }
}

void Communicator::set_step(int64_t step) {
  step_ = step;
  if (position_ != nullptr) position_->step.store(step, std::memory_order_release);
}

std::shared_ptr<std::byte> Communicator::allocate_common(int64_t) { return nullptr; }

std::shared_ptr<std::byte> Communicator::allocate(int64_t bytes) {
  constexpr std::align_val_t kAlignment{64};
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  auto* memory = static_cast<std::byte*>(::operator new(size, kAlignment));
  std::memset(memory, 0, size);
  return {memory, [](std::byte* address) { ::operator delete(address, kAlignment); }};
}

void Communicator::all_reduce(std::string_view name, const void* input, void* output, int64_t count, DType dtype, ReduceOp op) {
  run({.kind = CollectiveKind::kAllReduce, .dtype = dtype, .op = op, .name = name, .input = input, .output = output, .count = count});
}

void Communicator::reduce_scatter(std::string_view name, const void* input, void* segment, int64_t count, DType dtype) {
  run({.kind = CollectiveKind::kReduceScatter, .dtype = dtype, .name = name, .input = input, .output = segment, .count = count});
}

void Communicator::all_gather(std::string_view name, const void* segment, void* output, int64_t count, DType dtype, RankGroup group) {
  run({.kind = CollectiveKind::kAllGather,
       .dtype = dtype,
       .name = name,
       .input = segment,
       .output = output,
       .count = count,
       .group = group});
}

void Communicator::broadcast(std::string_view name, void* array, int64_t count, DType dtype, int root) {
  run({.kind = CollectiveKind::kBroadcast, .dtype = dtype, .name = name, .input = array, .output = array, .count = count, .peer = root});
}

void Communicator::barrier(std::string_view name) { run({.kind = CollectiveKind::kBarrier, .name = name}); }

void Communicator::send(std::string_view name, const void* array, int64_t count, DType dtype, int to) {
  run({.kind = CollectiveKind::kSend, .dtype = dtype, .name = name, .input = array, .count = count, .peer = to});
}

void Communicator::receive(std::string_view name, void* array, int64_t count, DType dtype, int from) {
  run({.kind = CollectiveKind::kReceive, .dtype = dtype, .name = name, .output = array, .count = count, .peer = from});
}

}  // namespace galley
