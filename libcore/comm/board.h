#pragma once
// Board: the memory through which ranks on one machine agree: which collectives they have started, where the arrays are, how far each rank
// is. It contains no pointers, so that it may be in memory that processes share.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "libcore/comm/communicator.h"

namespace galley {

/// The place of an array in the memory of a rank.
struct Place64 {
  static constexpr int32_t kAddress = -1;  // `base` is an address: ranks are threads
  int32_t region = kAddress;               // else the number of a shared region, and `base` an offset in the rank's part of it
  uint64_t base = 0;
  int64_t part_stride = 0;     // bytes from one partial sum to the next
  int64_t segment_stride = 0;  // bytes from the piece of one rank's segment to that of the next rank
};

/// A step of a collective, as one rank started it. Long arrays that have to be copied take several steps.
struct BoardEntry {
  Place64 input, output;
  int64_t count = 0, steps = 0;
  int32_t peer = 0, leaves = 0;
  RankGroup group;
  bool of_group = false;
  CollectiveKind kind = CollectiveKind::kBarrier;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  std::array<char, 45> name{};

  void describe(const Collective& call);
  bool same_as(const BoardEntry& other) const;
  /// "all_reduce grads.bucket3 of 1000 f32"
  std::string str() const;
};

/// The state of one rank. Counters only grow. A step s is posted when the rank's entry is written; reduced when the rank has computed and
/// delivered its segment; finished when its entry may be overwritten.
struct alignas(64) BoardRank {
  static constexpr uint64_t kSlots = 8;  // steps that a rank may be ahead of the slowest
  std::atomic<uint64_t> posted{0};
  std::atomic<uint64_t> reduced{0};
  std::atomic<uint64_t> finished{0};
  std::atomic<uint32_t> visiting{0};  // 1 while the rank may read and write arrays of other ranks
  std::array<BoardEntry, kSlots> entries;
};

/// Messages from one rank to another, one piece at a time.
struct alignas(64) BoardChannel {
  std::atomic<uint64_t> sent{0}, taken{0};  // pieces
  Place64 place;
  int64_t bytes = 0;        // of this piece
  int64_t total_bytes = 0;  // of the message
};

/// The head, followed by `ranks` BoardRanks and ranks * ranks BoardChannels.
class alignas(64) Board {
 public:
  static int64_t bytes(int ranks);
  /// Makes a board in zeroed memory of that size, aligned to 64 bytes.
  static Board* create(void* memory, int ranks);
  /// The board that another process made in this memory.
  static Board* open(void* memory) { return static_cast<Board*>(memory); }

  int ranks() const { return ranks_; }
  BoardRank& rank(int r);
  BoardChannel& channel(int from, int to);

  /// Sleeping: read `pulse` before looking for work; `sleep` returns when a later `wake` has changed it, or after the time.
  uint32_t pulse() const { return pulse_.load(); }
  void wake();
  void sleep(uint32_t pulse, int64_t milliseconds);

  /// The first abort's message is kept.
  void abort(const std::string& message);
  /// Whether a rank has begun to abort; its message may not be complete. Ordered with `visiting`: a rank either sees here that others
  /// stop, or they see that it visits them.
  bool stopping() const { return aborted_.load() != kRunning; }
  bool aborted() const { return aborted_.load(std::memory_order_acquire) == kAborted; }
  std::string abort_message() const { return message_.data(); }

 private:
  enum : uint32_t { kRunning = 0, kAborting = 1, kAborted = 2 };
  explicit Board(int ranks) : ranks_(ranks) {}
  std::byte* after_head() { return reinterpret_cast<std::byte*>(this + 1); }

  int32_t ranks_;
  std::atomic<uint32_t> pulse_{0}, sleepers_{0}, aborted_{kRunning};
  std::array<char, 1024> message_{};
};

}  // namespace galley
