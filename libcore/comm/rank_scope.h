#pragma once
// RankScope: the communicator of the rank that a thread belongs to, for the kernels of collectives, which run on that thread.

#include <array>
#include <cstddef>

#include "libcore/comm/communicator.h"

namespace galley {

/// While an object lives, collectives of programs that this thread runs go through the communicator. Without one, or with nullptr, a
/// program computes what one rank computes alone: a sum over ranks is its own part.
class RankScope {
 public:
  explicit RankScope(Communicator* communicator);
  ~RankScope();
  RankScope(const RankScope&) = delete;
  RankScope& operator=(const RankScope&) = delete;

  /// The scope of this thread, or nullptr.
  static RankScope* current();

  /// Starts the collective whose output is at `output`; `wait` finds it by that address.
  void start(const Collective& call);
  void wait(const void* output);

 private:
  static constexpr size_t kMostFlights = 256;
  struct Flight {
    const void* output = nullptr;
    Ticket ticket = 0;
  };
  Communicator* communicator_;
  RankScope* outer_;
  std::array<Flight, kMostFlights> flights_{};
};

}  // namespace galley
