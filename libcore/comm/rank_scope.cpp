#include "libcore/comm/rank_scope.h"

#include <algorithm>

#include "libcore/base/error.h"

namespace galley {
namespace {
thread_local RankScope* scope = nullptr;
}  // namespace

RankScope::RankScope(Communicator* communicator, Communicator* tensor)
    : communicators_{communicator, tensor}, active_{communicator != nullptr, tensor != nullptr}, outer_(scope) {
  scope = this;
}
RankScope::RankScope(Own, Communicator* tensor) : communicators_{nullptr, tensor}, active_{true, tensor != nullptr}, outer_(scope) {
  scope = this;
}

RankScope::~RankScope() {
  scope = outer_;
  if (std::uncaught_exceptions() == exceptions_) return;
  for (const Flight& flight : flights_) {
    if (flight.output != nullptr) flight.communicator->leave();
  }
}

RankScope* RankScope::current(RankAxis axis) { return scope != nullptr && scope->active_[static_cast<size_t>(axis)] ? scope : nullptr; }

void RankScope::start(const Collective& call, RankAxis axis) {
  const auto free = std::find_if(flights_.begin(), flights_.end(), [](const Flight& flight) { return flight.output == nullptr; });
  GALLEY_ASSERT(free != flights_.end(), "more than ", kMostFlights, " collectives at once");
  Communicator* communicator = communicators_[static_cast<size_t>(axis)];
  *free = {call.output, communicator, communicator->start(call)};
}

void RankScope::wait(const void* output) {
  const auto found = std::find_if(flights_.begin(), flights_.end(), [&](const Flight& flight) { return flight.output == output; });
  GALLEY_ASSERT(found != flights_.end(), "a collective is waited for that was not started");
  const Flight flight = *found;
  *found = {};
  flight.communicator->wait(flight.ticket);
}

}  // namespace galley
