#pragma once
// RankScope: the communicator of the rank that a thread belongs to, for the kernels of collectives, which run on that thread.

#include <array>
#include <cstddef>
#include <exception>

#include "libcore/comm/communicator.h"

namespace galley {

/// The axis of the mesh of ranks along which a collective runs.
enum class RankAxis : uint8_t {
  kSamples,  // those that read different samples
  kTensor,   // those that divide matrices and read the same samples (tensor parallelism)
};

/// While an object lives, collectives of programs that this thread runs go through the communicator. Without one, or with nullptr, a
/// program computes what one rank computes alone: a sum over ranks is its own part. Where an exception ends its life, the rank leaves those
/// of its communicators whose collectives run, so that no other rank touches arrays that are freed next.
class RankScope {
 public:
  explicit RankScope(Communicator* communicator, Communicator* tensor = nullptr);
  virtual ~RankScope();
  RankScope(const RankScope&) = delete;
  RankScope& operator=(const RankScope&) = delete;

  /// The scope of this thread, if it has a communicator for these ranks; else nullptr.
  static RankScope* current(RankAxis axis = RankAxis::kSamples);

  /// The ranks' devices; nullptr: they have none, or the scope does not pass collectives to a communicator.
  DeviceRanks* devices(RankAxis axis = RankAxis::kSamples) const {
    const Communicator* communicator = communicators_[static_cast<size_t>(axis)];
    return communicator != nullptr ? communicator->devices() : nullptr;
  }

  /// Starts the collective whose output is at `output`; `wait` finds it by that address.
  virtual void start(const Collective& call, RankAxis axis);
  void start(const Collective& call) { start(call, RankAxis::kSamples); }
  virtual void wait(const void* output);

 protected:
  struct Own {};
  /// For classes that do something else than to pass collectives to a communicator, but for those of ranks that divide matrices.
  RankScope(Own, Communicator* tensor);

 private:
  static constexpr size_t kMostFlights = 256;
  struct Flight {
    const void* output = nullptr;
    Communicator* communicator = nullptr;
    Ticket ticket = 0;
  };
  std::array<Communicator*, 2> communicators_{};  // by RankAxis
  std::array<bool, 2> active_;
  RankScope* outer_;
  int exceptions_ = std::uncaught_exceptions();
  std::array<Flight, kMostFlights> flights_{};
};

}  // namespace galley
