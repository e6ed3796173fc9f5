#pragma once
// ReplicaGroup: collectives of programs that several logical replicas of one rank run at the same time, each in a thread.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <semaphore>
#include <vector>

#include "libcore/comm/rank_scope.h"

namespace galley {

/// All members run programs with the same collectives. A member waits in the wait of a collective until all members have come there; then
/// one of them performs it for all, and for the rank among the other ranks. Sums are those over all replicas of all ranks, in the order of
/// their tree; what is gathered is copied to each member.
class ReplicaGroup {
 public:
  /// `ranks`: nullptr: one rank. `running`: so many members compute at a time; those that wait are not counted. Sums need all of the
  /// rank's replicas as members. The tree must outlive the group.
  ReplicaGroup(Communicator* ranks, const ReductionTree& tree, int members, int running);

  /// While an object lives, collectives of programs that the thread runs are those of a member.
  class Member : public RankScope {
   public:
    /// `tensor`: the ranks that divide matrices, whose collectives are those of this member alone; nullptr: none.
    Member(ReplicaGroup& group, int index, Communicator* tensor = nullptr);
    ~Member() override;
    using RankScope::start;
    void start(const Collective& call, RankAxis axis) override;
    void wait(const void* output) override;

   private:
    ReplicaGroup& group_;
    int index_;
    std::vector<Collective> started_;
  };

  /// Ends the waiting of the other members, which throw Error (kWorker): a member has failed.
  void fail();

 private:
  void meet(int member, const Collective& call);
  void perform();
  void sum(const Collective& call);
  void gather(const Collective& call);

  Communicator* ranks_;
  const ReductionTree& tree_;
  std::counting_semaphore<> running_;
  std::mutex mutex_;
  std::condition_variable met_;
  std::vector<Collective> calls_;  // of the members
  size_t arrived_ = 0;
  uint64_t meetings_ = 0;
  bool failed_ = false;
  std::vector<std::byte> partials_;
};

}  // namespace galley
