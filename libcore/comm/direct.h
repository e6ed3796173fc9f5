#pragma once
// DirectCommunicator: collectives between ranks that reach each other's memory. Each rank reads its segment of all partial sums, adds them
// in the order of the tree, and writes the result to all ranks: two waits, no messages. The work is done by the threads that start and
// wait.

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "libcore/comm/board.h"
#include "libcore/comm/communicator.h"

namespace galley {

struct DirectOptions {
  /// A wait that takes longer throws Error (kWorker) and names a rank that is behind; 0: no limit.
  double timeout_s = 0;
  int first_rank = 0;  ///< The number of rank 0 among all ranks, for messages.
  bool spins = true;   ///< A waiting rank keeps its core for a moment; false: other threads of the rank compute.
};

/// What a thread that waits has to do meanwhile: called again and again; returns whether soon again.
using WhileWaiting = std::function<bool()>;

/// Base of the communicators of threads and of processes with shared memory. Where ranks are threads, a rank that fails frees arrays that
/// others may be reading: it first waits until they have seen that it stops.
class DirectCommunicator : public Communicator {
 public:
  void abort(const std::string& message) override;
  void leave() override;

  /// Does what can be done without waiting, for other ranks that wait. Returns whether collectives of this rank are not complete.
  bool advance();
  void call_while_waiting(WhileWaiting work) { while_waiting_ = std::move(work); }
  /// Ends the waits of this rank, now and later: they throw Error (kWorker). Any thread may call it.
  void stop_waiting() { stopped_.store(true); }

 protected:
  /// Arrays whose place is not shared are copied through the rank's part of `staging` (region 0), which has staging_bytes(ranks) bytes.
  /// `threads`: ranks are threads of one process.
  DirectCommunicator(Board& board, int rank, const DirectOptions& options, bool threads);

  static int64_t staging_bytes(int ranks);
  /// The place of memory that other ranks can reach, if it is (region kNone: it is not).
  static constexpr int32_t kNone = -2;
  virtual Place64 place_of(const void* address) const = 0;
  /// The address, in this process, of a place in the memory of a rank.
  virtual std::byte* address_of(int rank, const Place64& place) const = 0;

  void begin(const Collective& call, Ticket ticket) override;
  void finish(Ticket ticket) override;

 private:
  static constexpr size_t kMostPending = 256;
  struct Pending {
    Collective call;
    Ticket ticket = 0;  // 0: free
    const GroupOrder* order = nullptr;
    uint64_t first = 0;  // its first step
    int64_t steps = 0;   // messages: pieces, known with the first
    int64_t piece = 0;   // elements of each segment in one step; messages: bytes done
    bool staged_input = false, staged_output = false;
  };
  /// The next step of a phase, and the collective that it belongs to.
  struct Cursor {
    uint64_t step = 0;
    Ticket ticket = 0;
  };
  struct Lowest {
    uint64_t posted, reduced, finished;
  };

  Pending& pending(Ticket ticket) { return pending_[ticket % kMostPending]; }
  void divide(Pending& p) const;
  Lowest lowest() const;
  /// Moves the cursor to the collective of its step.
  Pending& at(Cursor& cursor);
  bool progress();
  bool progress_collectives();
  bool progress_messages();
  bool send_piece(Pending& p);
  bool receive_piece(Pending& p);
  bool done(const Pending& p) const;
  void post(Pending& p, uint64_t step);
  void reduce(Pending& p, uint64_t step);
  void deliver(const Pending& p, uint64_t step, const std::byte* own, Segment piece);
  void copy_out(Pending& p, uint64_t step);
  void check_same(const Pending& p, uint64_t step);
  Segment piece_of(const Pending& p, uint64_t step, int member) const;
  Place64 stage_of(uint64_t step) const;
  void throw_if_aborted();
  /// Where ranks are threads: returns when no other rank reads or writes arrays of this one any more. Call it after the board's abort.
  void wait_for_visitors();
  /// Stops all ranks. Always throws, also while another rank is stopping them, so that no rank goes on with arrays of ranks that stopped.
  [[noreturn]] void abort_and_throw(const std::string& message);
  [[noreturn]] void throw_timeout(const Pending& p);
  int shown(int rank) const { return options_.first_rank + rank; }
  BoardEntry& entry(int rank, uint64_t step) { return board_.rank(rank).entries[step % BoardRank::kSlots]; }

  Board& board_;
  DirectOptions options_;
  bool threads_;
  int spins_;
  std::atomic<bool> stopped_{false};
  WhileWaiting while_waiting_;
  std::array<Pending, kMostPending> pending_;
  std::vector<Ticket> messages_;  // not complete, in order
  std::vector<const void*> parts_;
  uint64_t end_ = 0;  // after the last step of the started collectives
  Ticket last_ = 0;   // the last started collective or message
  Cursor post_, reduce_, finish_;
};

}  // namespace galley
