#pragma once
// DelayedCommunicator: for tests. Behaves as if each collective took at least a given time from its start on, without using the processor,
// as a network would. A step whose starts and waits are well placed takes the longer of computing and communicating, not their sum.

#include <chrono>
#include <functional>
#include <map>
#include <memory>

#include "libcore/comm/communicator.h"

namespace galley {

class DelayedCommunicator : public Communicator {
 public:
  /// `delay` says how long a collective takes at least.
  DelayedCommunicator(std::unique_ptr<Communicator> inner, std::function<std::chrono::microseconds(const Collective&)> delay);
  std::string transport() const override { return inner_->transport() + ", delayed"; }
  std::shared_ptr<std::byte> allocate(int64_t bytes) override { return inner_->allocate(bytes); }
  void abort(const std::string& message) override { inner_->abort(message); }
  void leave() override { inner_->leave(); }
  int per_machine() const override { return inner_->per_machine(); }

 protected:
  void begin(const Collective& call, Ticket ticket) override;
  void finish(Ticket ticket) override;

 private:
  struct Flight {
    Ticket inner = 0;
    std::chrono::steady_clock::time_point arrives;
  };
  std::unique_ptr<Communicator> inner_;
  std::function<std::chrono::microseconds(const Collective&)> delay_;
  std::map<Ticket, Flight> flights_;
};

}  // namespace galley
