#include "libcore/comm/rank_scope.h"

#include <algorithm>

#include "libcore/base/error.h"

namespace galley {
namespace {
thread_local RankScope* scope = nullptr;
}  // namespace

RankScope::RankScope(Communicator* communicator) : communicator_(communicator), active_(communicator != nullptr), outer_(scope) {
  scope = this;
}
RankScope::RankScope() : active_(true), outer_(scope) { scope = this; }
RankScope::~RankScope() { scope = outer_; }

RankScope* RankScope::current() { return scope != nullptr && scope->active_ ? scope : nullptr; }

void RankScope::start(const Collective& call) {
  const auto free = std::find_if(flights_.begin(), flights_.end(), [](const Flight& flight) { return flight.output == nullptr; });
  GALLEY_ASSERT(free != flights_.end(), "more than ", kMostFlights, " collectives at once");
  *free = {call.output, communicator_->start(call)};
}

void RankScope::wait(const void* output) {
  const auto found = std::find_if(flights_.begin(), flights_.end(), [&](const Flight& flight) { return flight.output == output; });
  GALLEY_ASSERT(found != flights_.end(), "a collective is waited for that was not started");
  const Ticket ticket = found->ticket;
  *found = {};
  communicator_->wait(ticket);
}

}  // namespace galley
