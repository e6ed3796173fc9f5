#pragma once
// Position: where a rank is, in memory that its supervising parent and its heartbeat read at any time, also after the rank was killed.

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace galley {

/// Written by the thread that starts collectives, read by others. It contains no pointers, so that it may be in shared memory.
struct Position {
  static constexpr size_t kText = 96;

  std::atomic<int64_t> step{0};
  std::atomic<uint64_t> started{0};   ///< Number of the last collective that was started.
  std::atomic<uint64_t> waiting{0};   ///< Number of the collective that the rank waits for; 0: it computes.
  std::atomic<uint64_t> finished{0};  ///< Number of waits that have ended.
  std::atomic<uint64_t> polls{0};     ///< Grows while the rank waits in a collective or does a LongTask: its thread is there.
  std::atomic<uint32_t> patient{0};   ///< Above 0 while the rank does something that may take long (LongTask).

  /// Sets what is shown for the last collective: "all_reduce grads.bucket3". Longer texts are cut.
  void set_text(std::string_view kind, std::string_view name);
  std::string text() const;
  /// "in step 20, collective 21 (all_reduce grads.bucket3)", or "before step 1" if nothing was started.
  std::string str() const;

 private:
  std::atomic<uint32_t> version_{0};  // odd while the text is written
  std::atomic<char> text_[kText]{};
};

/// "in step 20, collective 21 (all_reduce grads.bucket3)"
std::string position_text(int64_t step, uint64_t collective, std::string_view text);

/// While an object lives, the other ranks may wait for this one longer than the heartbeat allows, ten minutes from one change of its
/// position to the next: it evaluates or writes a checkpoint.
class LongTask {
 public:
  explicit LongTask(Position* position) : position_(position) {
    if (position_ != nullptr) ++position_->patient;
  }
  ~LongTask() {
    if (position_ != nullptr) --position_->patient;
  }
  LongTask(const LongTask&) = delete;
  LongTask& operator=(const LongTask&) = delete;

 private:
  Position* position_;
};

}  // namespace galley
