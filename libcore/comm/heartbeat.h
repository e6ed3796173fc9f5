#pragma once
// Heartbeat: finds ranks that are stopped, loop, or wait for each other. Each rank tells rank 0 where it is, several times a second; rank 0
// tells rank 1, which watches rank 0.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "libcore/comm/messages.h"
#include "libcore/comm/position.h"

namespace galley {

/// Where a rank is, as a message.
struct Beat {
  int64_t step = 0;
  uint64_t started = 0, waiting = 0, finished = 0, polls = 0;
  uint32_t patient = 0;  ///< The rank does something that may take long.
  uint32_t last = 0;     ///< The rank ends.
  std::array<char, Position::kText> text{};

  static Beat of(const Position& position);
  /// "in step 20, collective 21 (all_reduce grads.bucket3)"
  std::string str() const;
};

/// Judges the beats of ranks. Times are seconds from any start.
class RankWatch {
 public:
  /// `limit_s`: how long a rank may be silent or lag the others; at least the time of five of its steps.
  RankWatch(int ranks, double limit_s, double now_s);
  void heard(int rank, const Beat& beat, double now_s);
  /// The rank at fault and where it is, or "" if all is well. While a rank is silent, no other one is blamed: it may be the one that is
  /// stopped.
  std::string fault(double now_s) const;
  /// The rank that has been silent for longest, if that is too long; or "".
  std::string silent(double now_s) const;
  /// The watching rank itself was stopped for so long, and heard nothing: that time does not count.
  void skip(double seconds);
  /// Whether every rank has said that it ends.
  bool ended() const;
  /// A rank that is not heard here.
  void ignore(int rank) { ranks_[static_cast<size_t>(rank)].ignored = true; }

 private:
  struct Rank {
    Beat beat;
    double heard_s = 0;   // last beat
    double moved_s = 0;   // last change of its position
    double polled_s = 0;  // last time that its thread was seen in a collective, or that it moved
    double step_s = 0;    // last start of a step
    double step_took = 0;
    bool ignored = false;
  };
  double limit() const;
  const Rank* quietest() const;
  double limit_of(const Rank& rank) const;
  std::string abandoned(double now_s) const;
  std::string endless(double now_s) const;
  std::string behind(const Rank& waits, double now_s) const;
  std::string stuck(const Rank& waits, double now_s) const;
  double limit_s_;
  std::vector<Rank> ranks_;
};

struct HeartbeatOptions {
  double limit_s = 5;
  int64_t interval_ms = 200;
};

/// A thread that sends and watches beats until it is destroyed, which all ranks do at their end.
class Heartbeat {
 public:
  /// `alarm` is called, once, by the thread of the rank that has found a fault.
  Heartbeat(std::unique_ptr<PointToPoint> messages, const Position& position, std::function<void(const std::string& fault)> alarm,
            const HeartbeatOptions& options = {});
  /// Tells the watching rank that this rank ends, and waits until all have said so.
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

 private:
  void work();
  std::vector<int> watched() const;

  std::unique_ptr<PointToPoint> messages_;
  const Position& position_;
  std::function<void(const std::string&)> alarm_;
  HeartbeatOptions options_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace galley
