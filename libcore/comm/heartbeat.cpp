#include "libcore/comm/heartbeat.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "libcore/base/error.h"

namespace galley {
namespace {

constexpr int kBeatTag = 3;
constexpr double kSteps = 5;       // that a rank may be behind
constexpr double kPatientS = 600;  // of a LongTask
constexpr double kQuiet = 0.2;     // share of the limit after which a silent rank may be stopped

double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::string seconds_text(double seconds) {
  const auto tenths = static_cast<int64_t>(seconds * 10);
  return cat(tenths / 10, ".", tenths % 10, " s");
}

}  // namespace

Beat Beat::of(const Position& position) {
  Beat beat{.step = position.step,
            .started = position.started,
            .waiting = position.waiting,
            .finished = position.finished,
            .polls = position.polls,
            .patient = position.patient};
  const std::string text = position.text();
  std::memcpy(beat.text.data(), text.data(), std::min(text.size(), beat.text.size() - 1));
  return beat;
}

std::string Beat::str() const { return position_text(step, started, text.data()); }

RankWatch::RankWatch(int ranks, double limit_s, double now_s) : limit_s_(limit_s), ranks_(static_cast<size_t>(ranks)) {
  for (Rank& rank : ranks_) rank.heard_s = rank.moved_s = rank.polled_s = rank.step_s = now_s;
}

void RankWatch::heard(int r, const Beat& beat, double now_s) {
  Rank& rank = ranks_[static_cast<size_t>(r)];
  if (beat.step != rank.beat.step) {
    if (rank.beat.step > 0 && beat.step > rank.beat.step)
      rank.step_took = (now_s - rank.step_s) / static_cast<double>(beat.step - rank.beat.step);
    rank.step_s = now_s;
  }
  const bool moved = beat.step != rank.beat.step || beat.started != rank.beat.started || beat.finished != rank.beat.finished ||
                     beat.patient != rank.beat.patient;
  const bool polled = beat.polls != rank.beat.polls;
  if (moved || (polled && beat.patient > 0 && beat.waiting == 0)) rank.moved_s = now_s;
  if (moved || polled) rank.polled_s = now_s;
  rank.beat = beat;
  rank.heard_s = now_s;
}

double RankWatch::limit() const {
  double limit = limit_s_;
  for (const Rank& rank : ranks_) limit = std::max(limit, kSteps * rank.step_took);
  return limit;
}

double RankWatch::limit_of(const Rank& rank) const { return rank.beat.patient > 0 ? std::max(limit(), kPatientS) : limit(); }

void RankWatch::skip(double seconds) {
  for (Rank& rank : ranks_) {
    for (double* time : {&rank.heard_s, &rank.moved_s, &rank.polled_s, &rank.step_s}) *time += seconds;
  }
}

const RankWatch::Rank* RankWatch::quietest() const {
  const Rank* found = nullptr;
  for (const Rank& rank : ranks_) {
    if (rank.ignored || rank.beat.last != 0) continue;
    if (found == nullptr || rank.heard_s < found->heard_s) found = &rank;
  }
  return found;
}

std::string RankWatch::silent(double now_s) const {
  const Rank* rank = quietest();
  if (rank == nullptr || now_s - rank->heard_s <= limit()) return "";
  return cat("rank ", rank - ranks_.data(), " does not answer for ", seconds_text(now_s - rank->heard_s), "; it was ", rank->beat.str());
}

std::string RankWatch::fault(double now_s) const {
  if (const std::string found = silent(now_s); !found.empty()) return found;
  if (const Rank* rank = quietest(); rank != nullptr && now_s - rank->heard_s > kQuiet * limit_s_) return "";
  if (const std::string found = abandoned(now_s); !found.empty()) return found;
  if (const std::string found = endless(now_s); !found.empty()) return found;
  const auto waits =
      std::max_element(ranks_.begin(), ranks_.end(), [](const Rank& a, const Rank& b) { return a.beat.waiting < b.beat.waiting; });
  if (waits->beat.waiting == 0 || waits->beat.step == 0 || now_s - waits->moved_s <= limit_of(*waits)) return "";
  const std::string found = behind(*waits, now_s);
  return found.empty() ? stuck(*waits, now_s) : found;
}

/// A rank that has ended without a collective for which another one waits, also before step 1: it will not come.
std::string RankWatch::abandoned(double now_s) const {
  for (const Rank& waits : ranks_) {
    if (waits.ignored || waits.beat.last != 0 || waits.beat.waiting == 0 || now_s - waits.moved_s <= limit()) continue;
    for (const Rank& rank : ranks_) {
      if (rank.ignored || rank.beat.last == 0 || rank.beat.started >= waits.beat.waiting) continue;
      return cat("rank ", &rank - ranks_.data(), " has ended, ", rank.beat.str(), ", while rank ", &waits - ranks_.data(), " waits ",
                 waits.beat.str(), " for it");
    }
  }
  return "";
}

/// A rank for whose end all others wait.
std::string RankWatch::endless(double now_s) const {
  const Rank* found = nullptr;
  for (const Rank& rank : ranks_) {
    if (rank.ignored || rank.beat.last != 0) continue;
    if (found != nullptr) return "";
    found = &rank;
  }
  const bool others = std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.beat.last != 0; });
  if (found == nullptr || !others || now_s - found->moved_s <= kPatientS) return "";
  return cat("rank ", found - ranks_.data(), " is alive but does not end, ", seconds_text(now_s - found->moved_s),
             " after its last collective; it is ", found->beat.str());
}

/// The rank that is furthest behind one for which others wait.
std::string RankWatch::behind(const Rank& waits, double now_s) const {
  const auto last = std::min_element(ranks_.begin(), ranks_.end(), [](const Rank& a, const Rank& b) {
    return (a.ignored ? ~uint64_t{0} : a.beat.started) < (b.ignored ? ~uint64_t{0} : b.beat.started);
  });
  if (last->ignored || last->beat.started >= waits.beat.waiting || now_s - last->moved_s <= limit_of(*last)) return "";
  return cat("rank ", last - ranks_.begin(), " is alive but has not reached collective ", waits.beat.waiting, " (", waits.beat.text.data(),
             ") for ", seconds_text(now_s - last->moved_s), "; it is ", last->beat.str());
}

/// A rank that has started what others wait for, and whose thread neither waits nor gets on: a collective needs the work of all.
std::string RankWatch::stuck(const Rank& waits, double now_s) const {
  const Rank* found = nullptr;
  for (const Rank& rank : ranks_) {
    const bool stands = now_s - rank.moved_s > limit_of(rank) && (rank.beat.waiting == 0 || now_s - rank.polled_s > limit_of(rank));
    if (rank.ignored || rank.beat.last != 0 || !stands) continue;
    if (found == nullptr || rank.beat.finished < found->beat.finished) found = &rank;
  }
  if (found == nullptr) return "";
  return cat("rank ", found - ranks_.data(), " is alive but has not moved for ", seconds_text(now_s - found->moved_s),
             ", while others wait for collective ", waits.beat.waiting, "; it is ", found->beat.str());
}

bool RankWatch::ended() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.ignored || rank.beat.last != 0; });
}

Heartbeat::Heartbeat(std::unique_ptr<PointToPoint> messages, const Position& position, std::function<void(const std::string&)> alarm,
                     const HeartbeatOptions& options)
    : messages_(std::move(messages)), position_(position), alarm_(std::move(alarm)), options_(options), thread_([this] { work(); }) {}

Heartbeat::~Heartbeat() {
  stop_ = true;
  thread_.join();
}

/// The ranks whose beats arrive here.
std::vector<int> Heartbeat::watched() const {
  std::vector<int> ranks;
  if (messages_->rank() == 1) ranks.push_back(0);
  if (messages_->rank() == 0) {
    for (int r = 1; r < messages_->size(); ++r) ranks.push_back(r);
  }
  return ranks;
}

void Heartbeat::work() {
  const int self = messages_->rank(), size = messages_->size();
  if (size == 1) return;
  const std::vector<int> from = watched();
  RankWatch watch(size, options_.limit_s, seconds_now());
  for (int r = 0; r < size; ++r) {
    // Rank 0 knows its own position, and judges it like the others'.
    const bool known = std::find(from.begin(), from.end(), r) != from.end() || (self == 0 && r == 0);
    if (!known) watch.ignore(r);
  }
  std::vector<Beat> arrived(static_cast<size_t>(size));
  std::vector<int> receives(static_cast<size_t>(size), -1);
  const auto listen = [&](int r) {
    receives[static_cast<size_t>(r)] = messages_->receive(r, kBeatTag, &arrived[static_cast<size_t>(r)], sizeof(Beat));
  };
  for (const int r : from) listen(r);
  Beat own;
  int sent = -1;
  bool told = false, alarmed = false;
  const double pause = static_cast<double>(std::min<int64_t>(options_.interval_ms, 50)) / 1000;
  double before = seconds_now();
  for (;;) {
    const double now = seconds_now();
    // This process was stopped (SIGSTOP), or had no core.
    if (now - before > pause + kQuiet * options_.limit_s) watch.skip(now - before - pause);
    before = now;
    if (sent >= 0 && messages_->test(sent)) sent = -1;
    if (sent < 0 && !told) {
      told = stop_;
      own = Beat::of(position_);
      own.last = told;
      sent = messages_->send(self == 0 ? 1 : 0, kBeatTag, &own, sizeof own);
    }
    if (self == 0) {  // whether or not rank 1 takes the messages
      Beat beat = Beat::of(position_);
      beat.last = told;
      watch.heard(0, beat, now);
    }
    for (const int r : from) {
      // All that have arrived: the last one counts.
      while (receives[static_cast<size_t>(r)] >= 0 && messages_->test(receives[static_cast<size_t>(r)])) {
        const Beat& beat = arrived[static_cast<size_t>(r)];
        watch.heard(r, beat, now);
        receives[static_cast<size_t>(r)] = -1;
        if (beat.last == 0) listen(r);
      }
    }
    if (told && sent < 0 && watch.ended()) return;
    // Rank 1 knows of rank 0 only whether it answers: what it waits for is the others' matter.
    const std::string fault = alarmed ? "" : self == 0 ? watch.fault(now) : watch.silent(now);
    if (!fault.empty()) {
      alarmed = true;
      alarm_(fault);
    }
    // The end is answered quickly.
    std::this_thread::sleep_for(std::chrono::milliseconds(stop_ ? 1 : std::min<int64_t>(options_.interval_ms, 50)));
  }
}

}  // namespace galley
