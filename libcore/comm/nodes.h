#pragma once
// Ranks on several machines of equal numbers of consecutive ranks: shared memory within a machine, messages between machines.

#include <memory>
#include <optional>
#include <string>

#include "libcore/comm/messages.h"
#include "libcore/comm/shared.h"

namespace galley {

/// How the members of each group lie on machines.
struct NodeLevels {
  int inside = 1;   ///< Members on a machine, which are neighbors in the group.
  int between = 1;  ///< Machines of a group.
};
/// std::nullopt: groups differ, or a group has different numbers of members on its machines.
std::optional<NodeLevels> levels_of(const RankGroup& group, int per_machine);

/// The communicator of all ranks, from those of the rank's machine, and one by messages. Collectives of one machine's ranks are computed
/// by the threads that start and wait. Those of several machines run on the thread of the messages: ranks of a machine sum first, each a
/// share of the segments, then send their partial sums to the ranks of the same place on other machines. Bits are those of the other
/// transports. Groups without NodeLevels send messages only.
std::unique_ptr<Communicator> node_communicator(SharedPair machine, std::unique_ptr<PointToPoint> messages,
                                                const MessageOptions& options = {});

}  // namespace galley
