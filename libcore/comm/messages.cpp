#include "libcore/comm/messages.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "libcore/base/error.h"
#include "libcore/base/parallel.h"
#include "libcore/comm/board.h"

namespace galley {
namespace {

constexpr std::chrono::milliseconds kPollTime{100};
constexpr std::chrono::microseconds kIdleTime{200};

constexpr int64_t kMessageBytes = 1 << 20;     // a longer array is sent in pieces
constexpr int kCheckTag = 2, kMessageTag = 3;  // of checks, and of sends and receives
constexpr int kTestsBeforeSleep = 200;
constexpr std::chrono::microseconds kSleep{50};

const std::byte* bytes_at(const void* base, int64_t offset) { return static_cast<const std::byte*>(base) + offset; }
std::byte* bytes_at(void* base, int64_t offset) { return static_cast<std::byte*>(base) + offset; }

}  // namespace

MessageCommunicator::MessageCommunicator(std::unique_ptr<PointToPoint> messages, const MessageOptions& options)
    : Communicator(messages->rank(), messages->size()), messages_(std::move(messages)), options_(options), thread_([this] { work(); }) {}

MessageCommunicator::~MessageCommunicator() { stop(); }

void MessageCommunicator::leave() {
  leaving_ = true;
  stop();
}

/// Returns when the thread has ended.
void MessageCommunicator::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  arrived_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void MessageCommunicator::begin(const Collective& call, Ticket ticket) {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  jobs_.push_back({.call = call, .ticket = ticket, .order = &order(call.leaves, call.group, call.of_group)});
  arrived_.notify_all();
}

void MessageCommunicator::finish(Ticket ticket) {
  std::unique_lock lock(mutex_);
  const auto job = std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& each) { return each.ticket == ticket; });
  GALLEY_ASSERT(job != jobs_.end(), "collective ", ticket, " was waited for already");
  // Elements of a deque keep their addresses when others are added or removed at its ends.
  Job& own = *job;
  std::chrono::microseconds time{0};
  while (!finished_.wait_for(lock, time, [&] { return own.done || error_; })) {
    lock.unlock();
    time = idle() ? kIdleTime : kPollTime;
    poll();
    lock.lock();
  }
  if (error_) std::rethrow_exception(error_);
  own.ticket = 0;
  while (!jobs_.empty() && jobs_.front().ticket == 0) jobs_.pop_front();
}

void MessageCommunicator::work() {
  const ThreadShare share(1);
  std::unique_lock lock(mutex_);
  const auto next = [&] { return std::find_if(jobs_.begin(), jobs_.end(), [](const Job& job) { return !job.started; }); };
  const auto wanted = [&] { return stop_ || next() != jobs_.end(); };
  for (int tests = 0;; ++tests) {
    if (flights_.empty()) arrived_.wait(lock, wanted);
    if (!flights_.empty() && tests > kTestsBeforeSleep) arrived_.wait_for(lock, kSleep, wanted);
    if (stop_) return;
    Job* job = next() != jobs_.end() ? &*next() : nullptr;
    if (job != nullptr) {
      job->started = true;
      tests = 0;
    }
    lock.unlock();
    const bool message = job != nullptr && job->call.between_two_ranks();
    std::exception_ptr error;
    try {
      if (job != nullptr && !message && options_.check) check_neighbor(*job);
      if (message) start_message(*job);
      if (job != nullptr && !message) run_one(*job);
      test_flights();
    } catch (const std::exception& exception) {
      error = std::current_exception();
      failed(exception.what());
    }
    lock.lock();
    if (job != nullptr && !message) job->done = true;
    error_ = error;
    if (error_ || (job != nullptr && !message)) finished_.notify_all();
    if (error_) return;
  }
}

void MessageCommunicator::start_message(Job& job) {
  const Collective& call = job.call;
  const int64_t bytes = call.count * dtype_size(call.dtype);
  if (call.kind == CollectiveKind::kSend) {
    send_all(call.peer, bytes_at(call.input, 0), bytes, kMessageTag);
  } else {
    receive_all(call.peer, bytes_at(call.output, 0), bytes, kMessageTag);
  }
  flights_.push_back({&job, std::move(open_)});
  open_.clear();
}

bool MessageCommunicator::test_flights() {
  const auto test = [&](int number) { return messages_->test(number); };
  for (Flight& flight : flights_) {
    std::erase_if(flight.open, test);
    if (!flight.open.empty()) continue;
    const std::lock_guard lock(mutex_);
    flight.job->done = true;
    finished_.notify_all();
  }
  std::erase_if(flights_, [](const Flight& flight) { return flight.open.empty(); });
  return !flights_.empty();
}

void MessageCommunicator::send_all(int to, const std::byte* data, int64_t bytes, int tag) {
  for (int64_t at = 0; at < bytes; at += kMessageBytes)
    open_.push_back(messages_->send(to, tag, data + at, std::min(bytes - at, kMessageBytes)));
}

void MessageCommunicator::receive_all(int from, std::byte* data, int64_t bytes, int tag) {
  for (int64_t at = 0; at < bytes; at += kMessageBytes)
    open_.push_back(messages_->receive(from, tag, data + at, std::min(bytes - at, kMessageBytes)));
}

/// Waits for all open messages. Testing moves them.
void MessageCommunicator::complete() {
  for (int tests = 0; !open_.empty(); ++tests) {
    const size_t before = open_.size();
    std::erase_if(open_, [&](int number) { return messages_->test(number); });
    test_flights();
    if (open_.size() < before) tests = 0;
    if (leaving_) fail(ErrorCode::kWorker, cat("rank ", rank(), " failed"));
    if (tests > kTestsBeforeSleep) std::this_thread::sleep_for(kSleep);
  }
}

void MessageCommunicator::run_one(const Job& job) {
  const Collective& call = job.call;
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter: return reduce(job);
    case CollectiveKind::kAllGather: return gather(job, bytes_at(call.input, 0));
    case CollectiveKind::kBroadcast: {
      std::vector<int> others;
      for (int i = 1; i < size(); ++i) others.push_back((call.peer + i) % size());
      return broadcast_to(others, call);
    }
    case CollectiveKind::kBarrier: return meet(0, 1, size());
    case CollectiveKind::kSend:
    case CollectiveKind::kReceive: break;
  }
  GALLEY_ASSERT(false, call.name);
}

/// Tells the next rank what this rank runs, and compares with what the rank before it runs.
void MessageCommunicator::check_neighbor(const Job& job) {
  BoardEntry own, other;
  own.describe(job.call);
  open_.push_back(messages_->receive((rank() + size() - 1) % size(), kCheckTag, &other, sizeof other));
  open_.push_back(messages_->send((rank() + 1) % size(), kCheckTag, &own, sizeof own));
  complete();
  if (other.same_as(own)) return;
  const int before = (rank() + size() - 1) % size();
  const std::string message = cat("ranks started different collectives: rank ", before, " ", other.str(), ", rank ", rank(), " ", own.str(),
                                  ", as collective ", job.ticket);
  messages_->abort(message);
  fail(ErrorCode::kWorker, message);
}

void MessageCommunicator::reduce(const Job& job) {
  const Collective& call = job.call;
  const GroupOrder& group = *job.order;
  const int64_t element = dtype_size(call.dtype);
  const Segment own = segment_of(call.count, group.members(), group.index());
  const int64_t bytes = own.size() * element;
  received_.resize(std::max(received_.size(), static_cast<size_t>(bytes * group.all_inputs())));
  parts_.clear();
  for (int m = 0; m < group.members(); ++m) {
    for (int part = 0; part < group.inputs(m); ++part) {
      std::byte* slot = received_.data() + bytes * static_cast<int64_t>(parts_.size());
      if (m == group.index()) {
        parts_.push_back(bytes_at(call.input, (part * call.count + own.begin) * element));
      } else {
        parts_.push_back(slot);
        receive_all(group.rank_at(m), slot, bytes);
      }
    }
  }
  for (int i = 1; i < group.members(); ++i) {
    const int m = (group.index() + i) % group.members();
    const Segment theirs = segment_of(call.count, group.members(), m);
    for (int part = 0; part < group.inputs(group.index()); ++part)
      send_all(group.rank_at(m), bytes_at(call.input, (part * call.count + theirs.begin) * element), theirs.size() * element);
  }
  complete();
  const bool all = call.kind == CollectiveKind::kAllReduce;
  std::byte* result = bytes_at(call.output, all ? own.begin * element : 0);
  group.reduce(parts_, result, own.size(), own.size(), call.dtype, call.op);
  if (all) gather(job, result);
}

/// Sends the rank's own segment to all members, and receives theirs into the output.
void MessageCommunicator::gather(const Job& job, const std::byte* own) {
  const Collective& call = job.call;
  const GroupOrder& group = *job.order;
  const int64_t element = dtype_size(call.dtype);
  const Segment mine = segment_of(call.count, group.members(), group.index());
  for (int i = 1; i < group.members(); ++i) {
    const int m = (group.index() + group.members() - i) % group.members();
    const Segment theirs = segment_of(call.count, group.members(), m);
    receive_all(group.rank_at(m), bytes_at(call.output, theirs.begin * element), theirs.size() * element);
  }
  for (int i = 1; i < group.members(); ++i) send_all(group.rank_at((group.index() + i) % group.members()), own, mine.size() * element);
  std::byte* to = bytes_at(call.output, mine.begin * element);
  if (to != own && mine.size() > 0) std::memcpy(to, own, static_cast<size_t>(mine.size() * element));
  complete();
}

/// Sends the root's array to these ranks. Others have nothing to do.
void MessageCommunicator::broadcast_to(std::span<const int> ranks, const Collective& call) {
  const int64_t bytes = call.count * dtype_size(call.dtype);
  if (call.peer != rank()) {
    if (std::find(ranks.begin(), ranks.end(), rank()) != ranks.end()) receive_all(call.peer, bytes_at(call.output, 0), bytes);
  } else {
    for (const int to : ranks) send_all(to, bytes_at(call.input, 0), bytes);
    if (call.output != nullptr && call.output != call.input && bytes > 0) std::memcpy(call.output, call.input, static_cast<size_t>(bytes));
  }
  complete();
}

/// In round k each rank hears from the one 2^k before it (dissemination).
void MessageCommunicator::meet(int first, int stride, int count) {
  std::array<std::byte, 2> letters{};
  const int own = (rank() - first) / stride;
  for (int distance = 1; distance < count; distance *= 2) {
    receive_all(first + (own + count - distance) % count * stride, &letters[0], 1);
    send_all(first + (own + distance) % count * stride, &letters[1], 1);
    complete();
  }
}

}  // namespace galley
