#include "libcore/comm/replica_group.h"

#include <algorithm>
#include <cstring>

#include "libcore/base/error.h"

namespace galley {

ReplicaGroup::ReplicaGroup(Communicator* ranks, const ReductionTree& tree, int members, int running)
    : ranks_(ranks), tree_(tree), running_(running), calls_(static_cast<size_t>(members)) {}

ReplicaGroup::Member::Member(ReplicaGroup& group, int index, Communicator* tensor)
    : RankScope(Own(), tensor), group_(group), index_(index) {
  GALLEY_ASSERT(tensor == nullptr || group.calls_.size() == 1, "several replicas at a time divide no matrices");
  group_.running_.acquire();
}
ReplicaGroup::Member::~Member() { group_.running_.release(); }

void ReplicaGroup::Member::start(const Collective& call, RankAxis axis) {
  if (axis == RankAxis::kTensor) return RankScope::start(call, axis);
  started_.push_back(call);
}

void ReplicaGroup::Member::wait(const void* output) {
  const auto found = std::find_if(started_.begin(), started_.end(), [&](const Collective& call) { return call.output == output; });
  if (found == started_.end()) return RankScope::wait(output);
  const Collective call = *found;
  started_.erase(found);
  group_.meet(index_, call);
}

void ReplicaGroup::fail() {
  const std::lock_guard lock(mutex_);
  failed_ = true;
  met_.notify_all();
}

void ReplicaGroup::meet(int member, const Collective& call) {
  const auto check = [this] {
    if (failed_) throw Error(ErrorCode::kWorker, "another replica failed");
  };
  std::unique_lock lock(mutex_);
  check();
  calls_[static_cast<size_t>(member)] = call;
  if (++arrived_ == calls_.size()) {
    arrived_ = 0;
    perform();
    ++meetings_;
    met_.notify_all();
    return;
  }
  const uint64_t meeting = meetings_;
  running_.release();
  met_.wait(lock, [&] { return meetings_ != meeting || failed_; });
  const bool complete = meetings_ != meeting;
  lock.unlock();
  running_.acquire();
  if (!complete) throw Error(ErrorCode::kWorker, "another replica failed");
}

void ReplicaGroup::perform() {
  const Collective& first = calls_.front();
  for (const Collective& call : calls_) {
    GALLEY_ASSERT(call.kind == first.kind && call.name == first.name && call.count == first.count && call.dtype == first.dtype,
                  "replicas wait for different collectives: ", first.name, " and ", call.name);
  }
  switch (first.kind) {
    case CollectiveKind::kAllReduce: return sum(first);
    case CollectiveKind::kAllGather: return gather(first);
    default: break;
  }
  GALLEY_ASSERT(false, collective_name(first.kind), " ", first.name, " is not for replicas");
}

void ReplicaGroup::sum(const Collective& call) {
  const int rank = ranks_ != nullptr ? ranks_->rank() : 0;
  const LeafRange own = tree_.owned(rank);
  GALLEY_ASSERT(static_cast<size_t>(own.end - own.begin) == calls_.size(), calls_.size(), " of ", own.end - own.begin, " replicas");
  const auto bytes = static_cast<size_t>(call.count * dtype_size(call.dtype));
  const std::span<const LeafRange> parts = tree_.partials(rank);
  partials_.resize(bytes * parts.size());
  std::byte* to = partials_.data();
  std::vector<const void*> leaves;
  for (const LeafRange& part : parts) {
    leaves.clear();
    for (int leaf = part.begin; leaf < part.end; ++leaf) leaves.push_back(calls_[static_cast<size_t>(leaf - own.begin)].input);
    ReductionTree(part.end - part.begin, part.end - part.begin).reduce(leaves, to, call.count, call.dtype, call.op);
    to += bytes;
  }
  if (ranks_ != nullptr) {
    Collective all = call;
    all.input = all.output = partials_.data();
    all.leaves = tree_.leaves();
    ranks_->run(all);
  }
  for (const Collective& each : calls_) std::memcpy(each.output, partials_.data(), bytes);
}

void ReplicaGroup::gather(const Collective& call) {
  GALLEY_ASSERT(ranks_ != nullptr);
  ranks_->run(call);
  for (size_t i = 1; i < calls_.size(); ++i)
    std::memcpy(calls_[i].output, call.output, static_cast<size_t>(call.count * dtype_size(call.dtype)));
}

}  // namespace galley
