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
#include <span>
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

/// One thread of its own sends and receives, so that messages move while the rank computes. Collectives run one after the other; sends and
/// receives are started in between and complete when they do, so that two ranks may send to each other first.
class MessageCommunicator : public Communicator {
 public:
  /// The object must have this communicator as its only user.
  explicit MessageCommunicator(std::unique_ptr<PointToPoint> messages, const MessageOptions& options = {});
  ~MessageCommunicator() override;
  std::string transport() const override { return "messages (" + messages_->name() + ")"; }
  void abort(const std::string& message) override { messages_->abort(message); }
  void leave() override;
  int per_machine() const override { return options_.per_machine; }

  int64_t buffer_bytes(int64_t bytes) const override { return bytes; }

 protected:
  void begin(const Collective& call, Ticket ticket) override;
  void finish(Ticket ticket) override;

  struct Job {
    Collective call;
    Ticket ticket = 0;
    const GroupOrder* order = nullptr;
    bool started = false, done = false;
  };
  /// On the thread: performs a collective, no send or receive.
  virtual void run_one(const Job& job);
  /// On the thread: another rank or this one has failed.
  virtual void failed(const std::string&) {}
  /// Called while the rank waits; returns whether it wants to be called again soon.
  virtual bool idle() { return false; }

  static constexpr int kDataTag = 1;  ///< Of collectives.
  /// For run_one. Messages to a rank arrive in the order of the sends. They are started, and complete() waits for all.
  void send_all(int to, const std::byte* data, int64_t bytes, int tag = kDataTag);
  void receive_all(int from, std::byte* data, int64_t bytes, int tag = kDataTag);
  void complete();
  /// Tests the sends and receives of the rank. Returns whether some are not complete. For waits of run_one.
  bool test_flights();
  void broadcast_to(std::span<const int> ranks, const Collective& call);
  /// A barrier of the ranks `first`, `first + stride` and so on.
  void meet(int first, int stride, int count);
  /// Ends the thread. Derived classes call it when they end.
  void stop();

  std::vector<std::byte> received_;  // partial sums of other ranks, of the own segment
  std::vector<const void*> parts_;

 private:
  void work();
  void start_message(Job& job);
  void check_neighbor(const Job& job);
  void reduce(const Job& job);
  void gather(const Job& job, const std::byte* own);

  std::unique_ptr<PointToPoint> messages_;
  MessageOptions options_;
  struct Flight {
    Job* job;
    std::vector<int> open;
  };
  std::vector<int> open_;  // messages that have not left or arrived, of a collective
  std::vector<Flight> flights_;

  std::mutex mutex_;
  std::condition_variable arrived_, finished_;
  std::deque<Job> jobs_;
  std::exception_ptr error_;
  bool stop_ = false;
  std::atomic<bool> leaving_{false};
  std::thread thread_;
};

}  // namespace galley
