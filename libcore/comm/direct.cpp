#include "libcore/comm/direct.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "libcore/base/error.h"
#include "libcore/base/parallel.h"

namespace galley {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kStageBytes = 128 << 10;  // of a step whose arrays are copied
constexpr int64_t kChannelBytes = 1 << 20;  // of all messages of a rank that are copied
constexpr int64_t kCopyGrain = 256 << 10;   // bytes per thread
constexpr int kSpins = 2000;                // pauses before a waiting rank sleeps, where every rank has a core
constexpr int64_t kSleepMs = 50;            // after which a sleeping rank looks for an abort and the time limit

int64_t channel_bytes(int ranks) { return std::max<int64_t>(kChannelBytes / ranks / 64 * 64, 4096); }

bool reduces_values(const Collective& call) {
  return call.kind == CollectiveKind::kAllReduce || call.kind == CollectiveKind::kReduceScatter;
}

int64_t stride_of(const Collective& call, int members) {
  return call.part != nullptr && call.part->segment_stride > 0 ? call.part->segment_stride : segment_stride(call.count, members);
}

Segment segment_in(const Collective& call, int members, int member) {
  const int64_t stride = stride_of(call, members);
  return {std::min(call.count, stride * member), std::min(call.count, stride * (member + 1))};
}

/// Elements from one partial sum of the input to the next.
int64_t partial_stride(const Collective& call) {
  return call.part != nullptr && call.part->partial_stride > 0 ? call.part->partial_stride : call.count;
}

Ticket shown_number(const Collective& call, Ticket ticket) { return call.part != nullptr ? call.part->ticket : ticket; }

/// Copies with the compute threads of the rank.
void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (to == from || bytes == 0) return;
  parallel_for(bytes, kCopyGrain,
               [&](int64_t begin, int64_t end) { std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin)); });
}

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

DirectCommunicator::DirectCommunicator(Board& board, int rank, const DirectOptions& options, bool threads)
    : Communicator(rank, board.ranks()),
      board_(board),
      options_(options),
      threads_(threads),
      spins_(options.spins && board.ranks() <= sysconf(_SC_NPROCESSORS_ONLN) ? kSpins : 0) {
  messages_.reserve(kMostPending);
}

int64_t DirectCommunicator::staging_bytes(int ranks) {
  return static_cast<int64_t>(BoardRank::kSlots) * 2 * kStageBytes + channel_bytes(ranks) * ranks;
}

/// The input of a step begins there, its output kStageBytes later.
Place64 DirectCommunicator::stage_of(uint64_t step) const {
  return {.region = 0, .base = step % BoardRank::kSlots * 2 * static_cast<uint64_t>(kStageBytes)};
}

/// Chooses the steps of a collective: one, or as many as the staging memory demands. The result is the same on every rank.
void DirectCommunicator::divide(Pending& p) const {
  const Collective& call = p.call;
  const int members = p.order->members();
  const int64_t stride = stride_of(call, members), element = dtype_size(call.dtype);
  p.staged_input = call.input != nullptr && call.count > 0 && place_of(call.input).region == kNone;
  p.staged_output = call.output != nullptr && call.count > 0 && place_of(call.output).region == kNone;
  const bool reduces = reduces_values(call);
  if (call.kind == CollectiveKind::kReduceScatter) p.staged_output = false;  // written by the rank itself
  if (call.kind == CollectiveKind::kAllGather) p.staged_input = false;       // read by the rank itself
  if (call.kind == CollectiveKind::kBroadcast) p.staged_input = false;
  if (!p.staged_input && !p.staged_output) {
    p.piece = stride;
    p.steps = 1;
    return;
  }
  const int64_t parts = reduces ? p.order->most_inputs() : 1;
  p.piece = std::max<int64_t>(kStageBytes / (parts * members * element) / 16 * 16, 16);
  GALLEY_ASSERT(p.piece * parts * members * element <= kStageBytes, "too many ranks for the staging memory: ", members);
  p.steps = std::max<int64_t>(1, (stride + p.piece - 1) / p.piece);
}

/// The elements of a member's segment that a step covers.
Segment DirectCommunicator::piece_of(const Pending& p, uint64_t step, int member) const {
  const Segment all = segment_in(p.call, p.order->members(), member);
  const int64_t offset = static_cast<int64_t>(step - p.first) * p.piece;
  return {std::min(all.end, all.begin + offset), std::min(all.end, all.begin + offset + p.piece)};
}

void DirectCommunicator::begin(const Collective& call, Ticket ticket) {
  Pending& p = pending(ticket);
  GALLEY_ASSERT(p.ticket == 0, "more than ", kMostPending, " collectives at once");
  p = {.call = call, .ticket = ticket};
  p.order = &order_of(call);
  last_ = ticket;
  if (call.between_two_ranks()) {
    messages_.push_back(ticket);
  } else {
    divide(p);
    p.first = end_;
    end_ += static_cast<uint64_t>(p.steps);
  }
  throw_if_aborted();
  while (progress()) {
  }
}

DirectCommunicator::Lowest DirectCommunicator::lowest() const {
  Lowest low{~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}};
  for (int r = 0; r < size(); ++r) {
    const BoardRank& rank = board_.rank(r);
    low.posted = std::min(low.posted, rank.posted.load(std::memory_order_acquire));
    low.reduced = std::min(low.reduced, rank.reduced.load(std::memory_order_acquire));
    low.finished = std::min(low.finished, rank.finished.load(std::memory_order_acquire));
  }
  return low;
}

DirectCommunicator::Pending& DirectCommunicator::at(Cursor& cursor) {
  const auto ended = [&](Ticket ticket) {
    const Pending& p = pending(ticket);
    return p.ticket != ticket || p.call.between_two_ranks() || p.first + static_cast<uint64_t>(p.steps) <= cursor.step;
  };
  while (cursor.ticket == 0 || ended(cursor.ticket)) ++cursor.ticket;
  return pending(cursor.ticket);
}

/// Does what can be done without waiting. Returns whether anything was done. Does nothing once a rank has begun to abort.
bool DirectCommunicator::progress() {
  struct Visit {
    explicit Visit(std::atomic<uint32_t>& flag) : visiting(flag) { visiting.store(1); }
    ~Visit() { visiting.store(0, std::memory_order_release); }
    std::atomic<uint32_t>& visiting;
  };
  const Visit visit(board_.rank(rank()).visiting);
  if (board_.stopping()) return false;
  bool moved = progress_collectives();
  moved |= progress_messages();
  if (moved) board_.wake();
  return moved;
}

bool DirectCommunicator::advance() {
  throw_if_aborted();
  while (progress()) {
  }
  return finish_.step < end_ || !messages_.empty();
}

bool DirectCommunicator::progress_collectives() {
  bool moved = false;
  BoardRank& own = board_.rank(rank());
  Lowest low = lowest();
  for (; post_.step < end_ && post_.step < low.finished + BoardRank::kSlots; ++post_.step, moved = true) {
    post(at(post_), post_.step);
    own.posted.store(post_.step + 1, std::memory_order_release);
  }
  if (moved) low = lowest();
  for (; reduce_.step < low.posted && reduce_.step < post_.step; ++reduce_.step, moved = true) {
    reduce(at(reduce_), reduce_.step);
    own.reduced.store(reduce_.step + 1, std::memory_order_release);
  }
  if (moved) low = lowest();
  for (; finish_.step < low.reduced && finish_.step < reduce_.step; ++finish_.step, moved = true) {
    copy_out(at(finish_), finish_.step);
    own.finished.store(finish_.step + 1, std::memory_order_release);
  }
  return moved;
}

/// Publishes the arrays of a step, copied if other ranks cannot reach them.
void DirectCommunicator::post(Pending& p, uint64_t step) {
  const Collective& call = p.call;
  const int members = p.order->members();
  const int64_t element = dtype_size(call.dtype), stride = stride_of(call, members);
  const auto offset = (step - p.first) * static_cast<uint64_t>(p.piece * element);  // of the step's piece in each segment
  BoardEntry& e = entry(rank(), step);
  e.describe(call);
  e.steps = p.steps;
  e.input = e.output = stage_of(step);  // a valid place, also of arrays without elements
  if (call.count == 0) return;
  const bool reduces = reduces_values(call);
  if (reduces && p.staged_input) {
    e.input.segment_stride = p.piece * element;
    e.input.part_stride = p.piece * element * members;
    std::byte* to = address_of(rank(), e.input);
    const auto* from = static_cast<const std::byte*>(call.input);
    const int parts = p.order->inputs(p.order->index());
    for (int part = 0; part < parts; ++part) {
      for (int m = 0; m < members; ++m) {
        const Segment piece = piece_of(p, step, m);
        copy_bytes(to + part * e.input.part_stride + m * e.input.segment_stride,
                   from + (part * partial_stride(call) + piece.begin) * element, piece.size() * element);
      }
    }
  } else if (reduces) {
    e.input = place_of(call.input);
    e.input.base += offset;
    e.input.segment_stride = stride * element;
    e.input.part_stride = partial_stride(call) * element;
  }
  if (p.staged_output) {
    e.output.base += static_cast<uint64_t>(kStageBytes);
    e.output.segment_stride = p.piece * element;
  } else if (call.output != nullptr && call.kind != CollectiveKind::kReduceScatter) {
    e.output = place_of(call.output);
    e.output.base += offset;
    e.output.segment_stride = stride * element;
  }
}

void DirectCommunicator::check_same(const Pending& p, uint64_t step) {
  const BoardEntry& own = entry(rank(), step);
  for (int r = 0; r < size(); ++r) {
    const BoardEntry& other = entry(r, step);
    if (other.same_as(own)) continue;
    const std::string message = cat("ranks started different collectives: rank ", shown(std::min(r, rank())), " ",
                                    entry(std::min(r, rank()), step).str(), ", rank ", shown(std::max(r, rank())), " ",
                                    entry(std::max(r, rank()), step).str(), ", as collective ", shown_number(p.call, p.ticket));
    abort_and_throw(message);
  }
}

/// Computes the rank's own segment of a step and writes it to the outputs of all ranks.
void DirectCommunicator::reduce(Pending& p, uint64_t step) {
  check_same(p, step);
  const Collective& call = p.call;
  const GroupOrder& group = *p.order;
  const int64_t element = dtype_size(call.dtype);
  const Segment piece = piece_of(p, step, group.index()), all = segment_in(call, group.members(), group.index());
  const int64_t offset = piece.begin - all.begin;  // in the segment
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter: {
      parts_.clear();
      for (int m = 0; m < group.members(); ++m) {
        const int r = group.rank_at(m);
        const Place64& input = entry(r, step).input;
        const std::byte* first = address_of(r, input) + group.index() * input.segment_stride;
        for (int part = 0; part < group.inputs(m); ++part) parts_.push_back(first + part * input.part_stride);
      }
      const DType to = call.part != nullptr && call.part->wide ? sum_dtype(call.dtype) : call.dtype;
      std::byte* own = call.kind == CollectiveKind::kReduceScatter
                           ? static_cast<std::byte*>(call.output) + offset * dtype_size(to)
                           : address_of(rank(), entry(rank(), step).output) + group.index() * entry(rank(), step).output.segment_stride;
      group.reduce(parts_, own, all.size(), piece.size(), call.dtype, to, call.op);
      if (call.kind == CollectiveKind::kAllReduce) deliver(p, step, own, piece);
      return;
    }
    case CollectiveKind::kAllGather: return deliver(p, step, static_cast<const std::byte*>(call.input) + offset * element, piece);
    case CollectiveKind::kBroadcast: {
      if (call.peer != rank()) return;
      for (int segment = 0; segment < size(); ++segment) {
        const Segment part = piece_of(p, step, segment);
        const std::byte* from = static_cast<const std::byte*>(call.input) + part.begin * element;
        for (int r = 0; r < size(); ++r) {
          const Place64& output = entry(r, step).output;
          copy_bytes(address_of(r, output) + segment * output.segment_stride, from, part.size() * element);
        }
      }
      return;
    }
    case CollectiveKind::kBarrier:
    case CollectiveKind::kSend:
    case CollectiveKind::kReceive: return;
  }
}

/// Writes the rank's own piece to the outputs of all ranks, beginning with the next one so that ranks write to different memories.
void DirectCommunicator::deliver(const Pending& p, uint64_t step, const std::byte* own, Segment piece) {
  const GroupOrder& group = *p.order;
  const std::byte* written = nullptr;
  for (int i = 1; i <= group.members(); ++i) {
    const int r = group.rank_at((group.index() + i) % group.members());
    const Place64& output = entry(r, step).output;
    std::byte* to = address_of(r, output) + group.index() * output.segment_stride;
    if (to != written) copy_bytes(to, own, piece.size() * dtype_size(p.call.dtype));
    written = to;  // ranks may have one output in common
  }
}

/// Copies a staged output to where it was asked for.
void DirectCommunicator::copy_out(Pending& p, uint64_t step) {
  if (!p.staged_output) return;
  const int64_t element = dtype_size(p.call.dtype);
  const Place64& output = entry(rank(), step).output;
  const std::byte* from = address_of(rank(), output);
  for (int m = 0; m < p.order->members(); ++m) {
    const Segment piece = piece_of(p, step, m);
    copy_bytes(static_cast<std::byte*>(p.call.output) + piece.begin * element, from + m * output.segment_stride, piece.size() * element);
  }
}

bool DirectCommunicator::send_piece(Pending& p) {
  BoardChannel& channel = board_.channel(rank(), p.call.peer);
  const int64_t total = p.call.count * dtype_size(p.call.dtype);
  if (channel.sent.load(std::memory_order_relaxed) != channel.taken.load(std::memory_order_acquire)) return false;
  if (p.steps > 0 && p.piece == total) {  // the last piece was taken
    p.first = 1;
    return true;
  }
  const std::byte* from = static_cast<const std::byte*>(p.call.input) + p.piece;
  channel.place = total > 0 ? place_of(from) : Place64{};
  channel.bytes = total - p.piece;
  channel.total_bytes = total;
  if (channel.place.region == kNone) {
    const int64_t room = channel_bytes(size());
    channel.place = {.region = 0,
                     .base = static_cast<uint64_t>(static_cast<int64_t>(BoardRank::kSlots) * 2 * kStageBytes + room * p.call.peer)};
    channel.bytes = std::min(channel.bytes, room);
    copy_bytes(address_of(rank(), channel.place), from, channel.bytes);
  }
  p.piece += channel.bytes;
  ++p.steps;
  channel.sent.fetch_add(1, std::memory_order_release);
  return true;
}

bool DirectCommunicator::receive_piece(Pending& p) {
  BoardChannel& channel = board_.channel(p.call.peer, rank());
  const int64_t total = p.call.count * dtype_size(p.call.dtype);
  if (channel.taken.load(std::memory_order_relaxed) == channel.sent.load(std::memory_order_acquire)) return false;
  if (channel.total_bytes != total) {
    abort_and_throw(cat("rank ", shown(p.call.peer), " sent ", channel.total_bytes, " bytes, but rank ", shown(rank()), " expects ", total,
                        ", as ", collective_text(shown_number(p.call, p.ticket), p.call)));
  }
  if (channel.bytes > 0)
    copy_bytes(static_cast<std::byte*>(p.call.output) + p.piece, address_of(p.call.peer, channel.place), channel.bytes);
  p.piece += channel.bytes;
  if (p.piece == total) p.first = 1;
  channel.taken.fetch_add(1, std::memory_order_release);
  return true;
}

/// Messages between the same ranks are taken in order; `first` is 1 when a message is complete.
bool DirectCommunicator::progress_messages() {
  bool moved = false;
  for (size_t i = 0; i < messages_.size(); ++i) {
    Pending& p = pending(messages_[i]);
    const bool behind = std::any_of(messages_.begin(), messages_.begin() + static_cast<std::ptrdiff_t>(i), [&](Ticket earlier) {
      const Collective& other = pending(earlier).call;
      return other.kind == p.call.kind && other.peer == p.call.peer;
    });
    if (behind) continue;
    moved |= p.call.kind == CollectiveKind::kSend ? send_piece(p) : receive_piece(p);
  }
  std::erase_if(messages_, [&](Ticket ticket) { return pending(ticket).first == 1; });
  return moved;
}

bool DirectCommunicator::done(const Pending& p) const {
  return p.call.between_two_ranks() ? p.first == 1 : finish_.step >= p.first + static_cast<uint64_t>(p.steps);
}

void DirectCommunicator::throw_if_aborted() {
  if (stopped_) throw Error(ErrorCode::kWorker, cat("rank ", shown(rank()), " failed"));
  if (!board_.aborted()) return;
  wait_for_visitors();
  throw Error(ErrorCode::kWorker, board_.abort_message());
}

void DirectCommunicator::wait_for_visitors() {
  if (!threads_) return;
  for (int r = 0; r < size(); ++r) {
    while (r != rank() && board_.rank(r).visiting.load() != 0) std::this_thread::yield();
  }
}

void DirectCommunicator::abort(const std::string& message) {
  board_.abort(message);
  wait_for_visitors();
}

void DirectCommunicator::leave() {
  if (threads_) abort(cat("rank ", shown(rank()), " failed"));
}

void DirectCommunicator::abort_and_throw(const std::string& message) {
  board_.rank(rank()).visiting.store(0);  // two ranks that do this would wait for each other
  board_.abort(message);
  wait_for_visitors();
  throw_if_aborted();
  throw Error(ErrorCode::kWorker, message);  // another rank is still writing its own message
}

void DirectCommunicator::throw_timeout(const Pending& p) {
  std::string behind;
  for (int r = 0; r < size() && behind.empty(); ++r) {
    const bool late = p.call.between_two_ranks() ? r == p.call.peer : board_.rank(r).posted.load() <= finish_.step;
    if (late && r != rank()) behind = cat("rank ", shown(r), " has not reached ");
  }
  if (behind.empty()) behind = "a rank is stuck in ";
  abort_and_throw(cat(behind, collective_text(shown_number(p.call, p.ticket), p.call), step() > 0 ? cat(" of step ", step()) : "",
                      " within ", options_.timeout_s, " s"));
}

void DirectCommunicator::finish(Ticket ticket) {
  Pending& p = pending(ticket);
  GALLEY_ASSERT(p.ticket == ticket, "collective ", ticket, " was waited for already");
  int spins = 0;
  Clock::time_point began;
  for (;;) {
    const uint32_t pulse = board_.pulse();
    const bool moved = progress();
    if (done(p)) break;
    poll();
    throw_if_aborted();
    if (moved) {
      spins = 0;
      continue;
    }
    if (spins++ < spins_) {
      pause();
      continue;
    }
    if (began == Clock::time_point()) began = Clock::now();
    if (options_.timeout_s > 0 && std::chrono::duration<double>(Clock::now() - began).count() > options_.timeout_s) throw_timeout(p);
    board_.sleep(pulse, while_waiting_ && while_waiting_() ? 1 : kSleepMs);
  }
  p.ticket = 0;
}

}  // namespace galley
