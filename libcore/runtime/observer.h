#pragma once
// Observers: called before and after each step of an execution, for timing, statistics and checks.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libcore/runtime/program.h"
#include "libcore/tensor/tensor.h"

namespace galley {

/// The outputs of an enqueued node. Valid only during the observer's call.
class NodeOutputs {
 public:
  NodeOutputs(const Program& program, const Step& step, std::span<void* const> addresses, Stream& stream);
  size_t size() const { return addresses_.size(); }
  /// Output i in host memory, in the format of its type: the memory itself on the host's device, else a copy, for which the call waits.
  /// nullptr if the output has no memory.
  const void* host(size_t i) const;
  /// The stream in which the node runs.
  Stream& stream() const { return stream_; }

 private:
  const Graph& graph_;
  const Node& node_;
  std::span<void* const> addresses_;
  Stream& stream_;
  mutable std::vector<std::shared_ptr<Storage>> copies_;
};

/// Base of observers. The host waits for an observed node only if the observer reads its outputs.
class NodeObserver {
 public:
  virtual ~NodeObserver() = default;
  /// Called before the node is enqueued on the stream.
  virtual void before(const Program&, const Step&, Stream&) {}
  /// Called after the node was enqueued. On the host's stream it has already run.
  virtual void after(const Program& program, const Step& step, const NodeOutputs& outputs) = 0;
  /// Called after all nodes of a run were enqueued.
  virtual void after_run(const Program&) {}
  /// Called by the code that loads data for the next run, with begin and end of its waiting time, in nanoseconds of the steady clock.
  virtual void fetched(int64_t begin_ns, int64_t end_ns) { static_cast<void>(begin_ns), static_cast<void>(end_ns); }
  /// Called by the code that runs collectives or messages between programs: "all_reduce grads.bucket3".
  virtual void communicated(const std::string& what, int64_t begin_ns, int64_t end_ns) {
    static_cast<void>(what), static_cast<void>(begin_ns), static_cast<void>(end_ns);
  }
};

/// The steady clock in nanoseconds, and what began then and ends now: NodeObserver::communicated, if there is an observer.
int64_t communication_ns();
void report_communication(NodeObserver* observer, const std::string& what, int64_t begin_ns);

/// Measures nodes with two events of the stream each. Events are reused, so that marking a run allocates nothing if an earlier run had as
/// many nodes.
class NodeMarks {
 public:
  /// Marks the beginning of the next node. Call it before the node is enqueued.
  void begin(Stream& stream);
  /// Marks the end of the node.
  void end(Stream& stream);
  /// The number of nodes marked since the last `clear`.
  size_t size() const { return marked_; }
  /// Beginning and end of node i in nanoseconds of the steady clock (Event::time_ns). Waits for the node.
  std::pair<int64_t, int64_t> times(size_t i) const;
  void clear() { marked_ = 0; }

 private:
  struct Mark {
    std::unique_ptr<Event> begin, end;
  };
  Device* device_ = nullptr;  // of the events
  std::vector<Mark> marks_;
  size_t marked_ = 0;
};

}  // namespace galley
