#include "libcore/comm/delayed.h"

#include <thread>

namespace galley {

DelayedCommunicator::DelayedCommunicator(std::unique_ptr<Communicator> inner,
                                         std::function<std::chrono::microseconds(const Collective&)> delay)
    : Communicator(inner->rank(), inner->size()), inner_(std::move(inner)), delay_(std::move(delay)) {}

void DelayedCommunicator::begin(const Collective& call, Ticket ticket) {
  const auto arrives = std::chrono::steady_clock::now() + delay_(call);
  flights_[ticket] = {inner_->start(call), arrives};
}

void DelayedCommunicator::finish(Ticket ticket) {
  const auto flight = flights_.find(ticket);
  inner_->wait(flight->second.inner);
  std::this_thread::sleep_until(flight->second.arrives);
  flights_.erase(flight);
}

}  // namespace galley
