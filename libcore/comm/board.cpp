#include "libcore/comm/board.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <ctime>
#include <new>

#include "libcore/base/error.h"

namespace galley {
namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free, "processes share them");

/// Not FUTEX_PRIVATE: other processes may wait.
long futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* time) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, time, nullptr, 0);
}

}  // namespace

void BoardEntry::describe(const Collective& call) {
  count = call.count;
  peer = call.peer;
  leaves = call.leaves;
  group = call.group;
  of_group = call.of_group;
  kind = call.kind;
  dtype = call.dtype;
  op = call.op;
  const size_t length = std::min(call.name.size(), name.size() - 1);
  std::memcpy(name.data(), call.name.data(), length);
  std::memset(name.data() + length, 0, name.size() - length);
}

bool BoardEntry::same_as(const BoardEntry& other) const {
  return count == other.count && steps == other.steps && peer == other.peer && leaves == other.leaves && group == other.group &&
         of_group == other.of_group && kind == other.kind && dtype == other.dtype && op == other.op && name == other.name;
}

std::string BoardEntry::str() const {
  return cat(collective_name(kind), name[0] != '\0' ? " " : "", name.data(),
             kind == CollectiveKind::kBarrier ? "" : cat(" of ", count, " ", dtype));
}

int64_t Board::bytes(int ranks) {
  return static_cast<int64_t>(sizeof(Board)) + ranks * static_cast<int64_t>(sizeof(BoardRank)) +
         static_cast<int64_t>(ranks) * ranks * static_cast<int64_t>(sizeof(BoardChannel));
}

Board* Board::create(void* memory, int ranks) {
  auto* board = new (memory) Board(ranks);
  for (int r = 0; r < ranks; ++r) new (&board->rank(r)) BoardRank;
  for (int from = 0; from < ranks; ++from) {
    for (int to = 0; to < ranks; ++to) new (&board->channel(from, to)) BoardChannel;
  }
  return board;
}

BoardRank& Board::rank(int r) { return reinterpret_cast<BoardRank*>(after_head())[r]; }

BoardChannel& Board::channel(int from, int to) {
  auto* channels = reinterpret_cast<BoardChannel*>(after_head() + static_cast<size_t>(ranks_) * sizeof(BoardRank));
  return channels[from * ranks_ + to];
}

void Board::wake() {
  pulse_.fetch_add(1);
  if (sleepers_.load() > 0) futex(pulse_, FUTEX_WAKE, INT_MAX, nullptr);
}

void Board::sleep(uint32_t pulse, int64_t milliseconds) {
  const timespec time{milliseconds / 1000, milliseconds % 1000 * 1000000};
  sleepers_.fetch_add(1);
  if (pulse_.load() == pulse) futex(pulse_, FUTEX_WAIT, pulse, &time);
  sleepers_.fetch_sub(1);
}

void Board::abort(const std::string& message) {
  uint32_t running = kRunning;
  if (!aborted_.compare_exchange_strong(running, kAborting)) return;
  const size_t length = std::min(message.size(), message_.size() - 1);
  std::memcpy(message_.data(), message.data(), length);
  message_[length] = '\0';
  aborted_.store(kAborted, std::memory_order_release);
  wake();
}

}  // namespace galley
