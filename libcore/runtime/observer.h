#pragma once
// Observers: called around each step of an execution for timing, statistics and checks.

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "libcore/runtime/program.h"
#include "libcore/tensor/tensor.h"

namespace galley {

/// The outputs of a node that has been enqueued. Valid during the call of the observer.
class NodeOutputs {
 public:
  NodeOutputs(const Program& program, const Step& step, std::span<void* const> addresses, Stream& stream);
  size_t size() const { return addresses_.size(); }
  /// Output i in host memory, in the format of its type: on the host's device the memory itself, else a copy, for which it waits. nullptr
  /// if the output has no memory.
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

/// The host waits for an observed node only if the observer reads its outputs.
class NodeObserver {
 public:
  virtual ~NodeObserver() = default;
  /// Called before the node is enqueued on the stream.
  virtual void before(const Program&, const Step&, Stream&) {}
  /// Called after the node was enqueued; on the host's stream it has run.
  virtual void after(const Program& program, const Step& step, const NodeOutputs& outputs) = 0;
  /// Called after all nodes of a run were enqueued.
  virtual void after_run(const Program&) {}
  /// Called by the code that loads the data of the next run: begin and end of its wait, in nanoseconds of the steady clock.
  virtual void fetched(int64_t begin_ns, int64_t end_ns) { static_cast<void>(begin_ns), static_cast<void>(end_ns); }
};

/// Times of nodes, by two events of the stream for each. Events are created once and recorded again: marking a run allocates nothing if an
/// earlier run had as many nodes.
class NodeMarks {
 public:
  /// Marks the begin of the next node. Call it before the node is enqueued.
  void begin(Stream& stream);
  /// Marks its end.
  void end(Stream& stream);
  /// The number of nodes marked since the last `clear`.
  size_t size() const { return marked_; }
  /// Begin and end of node i in nanoseconds of the steady clock (Event::time_ns). Waits for the node.
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
