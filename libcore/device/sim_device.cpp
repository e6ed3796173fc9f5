#include "libcore/device/sim_device.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <set>
#include <thread>

#include "libcore/base/error.h"
#include "libcore/device/sim_heap.h"

namespace galley {
namespace {

class SimDevice;

/// State of an event, shared with the marks in streams, which may outlive the event.
struct EventState {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, reached = 0;  // sequence numbers of records
  int64_t time_ns = 0;

  void reach(uint64_t number) {
    const std::lock_guard lock(mutex);
    reached = std::max(reached, number);
    time_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
    changed.notify_all();
  }
  void await(uint64_t number) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return reached >= number; });
  }
  uint64_t last_record() {
    const std::lock_guard lock(mutex);
    return recorded;
  }
};

class SimEvent : public Event {
 public:
  bool done() const override {
    const std::lock_guard lock(state->mutex);
    return state->reached >= state->recorded;
  }
  void synchronize() override { state->await(state->last_record()); }
  int64_t time_ns() override {
    synchronize();
    const std::lock_guard lock(state->mutex);
    return state->time_ns;
  }

  std::shared_ptr<EventState> state = std::make_shared<EventState>();
};

/// A thread that runs enqueued work in order.
class SimStream : public Stream {
 public:
  explicit SimStream(SimDevice& device);
  ~SimStream() override;
  SimStream(const SimStream&) = delete;
  SimStream& operator=(const SimStream&) = delete;

  Device& device() const override;
  void copy(void* to, const void* from, int64_t bytes) override;
  void fill(void* to, uint8_t value, int64_t bytes) override {
    enqueue([=] {
      if (bytes > 0) std::memset(to, value, static_cast<size_t>(bytes));
    });
  }
  void record(Event& event) override;
  void wait(const Event& event) override;
  void synchronize() override;

  void enqueue(std::function<void()> work) { push({std::move(work), Kind::kWork}); }
  /// Waits until all work has run, without clearing its errors.
  void drain();

 private:
  enum class Kind { kWork, kMark, kWait };  // marks are reached even after an error; memory stays protected during waits
  struct Task {
    std::function<void()> run;
    Kind kind;
  };
  void push(Task task);
  void loop();
  void run(const Task& task);

  SimDevice& device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;  // the first one is running
  bool ends_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

class SimDevice : public Device {
 public:
  SimDevice() : heap_([this] { drain(); }), host_memory_([this] { drain(); }) {}
  std::string_view name() const override { return "sim"; }
  SimHeap& memory() override { return heap_; }
  SimHostMemory& host_memory() override { return host_memory_; }
  Stream& stream() override {
    const std::lock_guard lock(first_mutex_);
    if (first_ == nullptr) first_ = make_stream();
    return *first_;
  }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<SimStream>(*this); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<SimEvent>(); }

  void add(SimStream& stream) {
    const std::lock_guard lock(mutex_);
    streams_.insert(&stream);
  }
  void remove(SimStream& stream) {
    const std::lock_guard lock(mutex_);
    streams_.erase(&stream);
  }
  void drain() {
    const std::lock_guard lock(mutex_);
    for (SimStream* stream : streams_) stream->drain();
  }

 private:
  SimHeap heap_;
  SimHostMemory host_memory_;
  std::mutex mutex_, first_mutex_;
  std::set<SimStream*> streams_;
  std::unique_ptr<Stream> first_;
};

SimStream::SimStream(SimDevice& device) : device_(device), thread_([this] { loop(); }) { device_.add(*this); }

SimStream::~SimStream() {
  device_.remove(*this);
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

Device& SimStream::device() const { return device_; }

void SimStream::push(Task task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  changed_.notify_all();
}

void SimStream::run(const Task& task) {
  if (task.kind == Kind::kWork && error_ != nullptr) return;
  try {
    task.run();
  } catch (const std::exception&) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
  }
}

void SimStream::loop() {
  bool open = false;
  const auto set_open = [&](bool value) {
    if (value != open) value ? device_.memory().open() : device_.memory().close();
    open = value;
  };
  std::unique_lock lock(mutex_);
  while (true) {
    if (tasks_.empty()) {
      lock.unlock();
      set_open(false);
      lock.lock();
      changed_.wait(lock, [&] { return ends_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
    }
    const Task& task = tasks_.front();  // stays valid: push_back of a deque does not move elements
    lock.unlock();
    if (task.kind != Kind::kMark) set_open(task.kind == Kind::kWork);
    run(task);
    lock.lock();
    // Protect the memory when the last task ends, so that a caller that waits for it cannot read it by accident.
    if (tasks_.size() == 1) {
      lock.unlock();
      set_open(false);
      lock.lock();
    }
    tasks_.pop_front();
    changed_.notify_all();
  }
}

void SimStream::copy(void* to, const void* from, int64_t bytes) {
  const auto known = [&](const void* address) { return device_.memory().holds(address) || device_.host_memory().holds(address); };
  const bool waits = !known(to) || !known(from);
  enqueue([=] {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  });
  if (waits) drain();
}

void SimStream::record(Event& event) {
  auto* mark = dynamic_cast<SimEvent*>(&event);
  GALLEY_ASSERT(mark != nullptr, "the event belongs to another device");
  uint64_t number = 0;
  {
    const std::lock_guard lock(mark->state->mutex);
    number = ++mark->state->recorded;
  }
  push({[state = mark->state, number] { state->reach(number); }, Kind::kMark});
}

void SimStream::wait(const Event& event) {
  const auto* mark = dynamic_cast<const SimEvent*>(&event);
  GALLEY_ASSERT(mark != nullptr, "the event belongs to another device");
  push({[state = mark->state, number = mark->state->last_record()] { state->await(number); }, Kind::kWait});
}

void SimStream::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return tasks_.empty(); });
}

void SimStream::synchronize() {
  std::exception_ptr error;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tasks_.empty(); });
    std::swap(error, error_);
  }
  if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace

Device& sim_device() {
  static SimDevice& device = *new SimDevice;  // never destroyed, because static objects may hold arrays on it
  return device;
}

void sim_enqueue(Stream& stream, std::function<void()> work) {
  auto* sim = dynamic_cast<SimStream*>(&stream);
  GALLEY_ASSERT(sim != nullptr, "the stream belongs to device ", stream.device().name(), ", not sim");
  sim->enqueue(std::move(work));
}

}  // namespace galley
