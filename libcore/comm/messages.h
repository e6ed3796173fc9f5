#pragma once
// Collectives by messages: each rank sends its partial sums of a segment to the rank that owns the segment, which adds them in the order of
// the tree and sends the result to all. For ranks on several machines.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "libcore/comm/communicator.h"

namespace galley {

/// Messages between two ranks, in order for equal ranks and tags. One thread at a time uses it.
class PointToPoint {
 public:
  virtual ~PointToPoint() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// What carries the messages: "MPI".
  virtual std::string name() const = 0;
  /// Start a message of at most 2^30 bytes. The memory must live until `test` has returned true. Return a number for `test`.
  virtual int send(int to, int tag, const void* data, int64_t bytes) = 0;
  virtual int receive(int from, int tag, void* data, int64_t bytes) = 0;
  /// Whether the message has left, or arrived; then its number is free again. Throws Error (kWorker) if another rank has failed.
  virtual bool test(int number) = 0;
  /// Ends all ranks; does not return where the transport ends processes.
  virtual void abort(const std::string& message) = 0;
};

struct MessageOptions {
  /// Collectives exchange what they are with the neighboring rank, so that ranks that differ are found.
  bool check = false;
  int per_machine = 0;  ///< Communicator::per_machine; 0 also if they are not known.
};

/// One thread of its own sends and receives, so that messages move while the rank computes.
class MessageCommunicator : public Communicator {
 public:
  /// The object must have this communicator as its only user.
  explicit MessageCommunicator(std::unique_ptr<PointToPoint> messages, const MessageOptions& options = {});
  ~MessageCommunicator() override;
  std::string transport() const override { return "messages (" + messages_->name() + ")"; }
  void abort(const std::string& message) override { messages_->abort(message); }
  void leave() override;
  int per_machine() const override { return options_.per_machine; }

 protected:
  void begin(const Collective& call, Ticket ticket) override;
  void finish(Ticket ticket) override;

 private:
  struct Job {
    Collective call;
    Ticket ticket = 0;
    const GroupOrder* order = nullptr;
    bool done = false;
  };
  void work();
  void run_one(const Job& job);
  void check_neighbor(const Job& job);
  void reduce(const Job& job);
  void gather(const Job& job, const std::byte* own);
  void broadcast_array(const Collective& call);
  void meet();
  void send_all(int to, const std::byte* data, int64_t bytes);
  void receive_all(int from, std::byte* data, int64_t bytes);
  void complete();
  void stop();

  std::unique_ptr<PointToPoint> messages_;
  MessageOptions options_;
  std::vector<int> open_;            // messages that have not left or arrived
  std::vector<std::byte> received_;  // partial sums of other ranks, of the own segment
  std::vector<const void*> parts_;

  std::mutex mutex_;
  std::condition_variable arrived_, finished_;
  std::deque<Job> jobs_;
  std::exception_ptr error_;
  bool stop_ = false;
  std::atomic<bool> leaving_{false};
  std::thread thread_;
};

}  // namespace galley
