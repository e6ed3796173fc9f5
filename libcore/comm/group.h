#pragma once
// GroupCommunicator: collectives between some of the ranks of a communicator, by its messages. Ranks of a mesh have one for each axis.

#include <cstddef>
#include <string>
#include <vector>

#include "libcore/comm/communicator.h"

namespace galley {

/// Each rank sends its parts directly to the others of the group, or of the part of it that Collective::group names. A rank may be in
/// several groups; all ranks start the collectives of their groups, and those of the communicator itself, in an order that is part of one
/// order for all.
class GroupCommunicator : public Communicator {
 public:
  /// `members`: the ranks of the group, in ascending order; the rank of `parent` is one of them. `parent` must outlive the object.
  GroupCommunicator(Communicator& parent, std::vector<int> members);
  std::string transport() const override { return parent_.transport(); }
  void abort(const std::string& message) override { parent_.abort(message); }
  void leave() override { parent_.leave(); }

 protected:
  void begin(const Collective& call, Ticket ticket) override;
  void finish(Ticket ticket) override;

 private:
  struct Pending {
    Collective call;
    RankGroup group;                  // of this communicator's ranks
    Ticket ticket = 0;                // 0: free
    std::vector<Ticket> messages;     // of the parent
    std::vector<std::byte> received;  // partial sums of the own segment, by member of the group
    std::vector<int64_t> places;      // of the members in `received`
  };
  Pending& slot_of(Ticket ticket);
  /// Starts a message to and one from each other rank of the group, in the order of the pairs of ranks.
  template <class Send, class Receive>
  void exchange(const RankGroup& group, const Send& send, const Receive& receive);
  void exchange_segments(Pending& pending);
  void start_sums(Pending& pending, const GroupOrder& order);
  void send_part(Pending& pending, int to, const std::byte* data, int64_t count);
  void receive_part(Pending& pending, int from, std::byte* data, int64_t count);
  void wait_for_messages(Pending& pending);
  const GroupOrder& order_of(const Pending& pending) { return order(pending.call.leaves, pending.group, pending.call.of_group); }
  static Segment segment(const Pending& pending, int rank) {
    return segment_of(pending.call.count, pending.group.size, pending.group.index_of(rank));
  }

  Communicator& parent_;
  std::vector<int> members_;
  std::vector<Pending> pending_;
  std::vector<const void*> parts_;
};

/// The groups of a mesh of data x tensor ranks, of which neighbors differ in `tensor`: the members of that which `rank` is in.
std::vector<int> tensor_group(int rank, int tensor);
std::vector<int> data_group(int rank, int ranks, int tensor);

}  // namespace galley
