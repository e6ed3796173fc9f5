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
  virtual ~RankScope();
  RankScope(const RankScope&) = delete;
  RankScope& operator=(const RankScope&) = delete;

  /// The scope of this thread, or nullptr.
  static RankScope* current();

  /// Starts the collective whose output is at `output`; `wait` finds it by that address.
  virtual void start(const Collective& call);
  virtual void wait(const void* output);

 protected:
  /// For classes that do something else than to pass collectives to a communicator.
  RankScope();

 private:
  static constexpr size_t kMostFlights = 256;
  struct Flight {
    const void* output = nullptr;
    Ticket ticket = 0;
  };
  Communicator* communicator_ = nullptr;
  bool active_;
  RankScope* outer_;
  std::array<Flight, kMostFlights> flights_{};
};

}  // namespace galley
