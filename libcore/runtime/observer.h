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

/// The outputs of a node that has been enqueued. Lives as long as the observer's call.
class NodeOutputs {
 public:
  NodeOutputs(const Program& program, const Step& step, std::span<void* const> addresses, Stream& stream);
  size_t size() const { return addresses_.size(); }
  /// Output i in host memory, in the format of its type: the memory itself on the host's device, else a copy, for which it waits. nullptr
  /// for an output that has no memory.
  const void* host(size_t i) const;
  /// The stream that the node runs in.
  Stream& stream() const { return stream_; }

 private:
  const Graph& graph_;
  const Node& node_;
  std::span<void* const> addresses_;
  Stream& stream_;
  mutable std::vector<std::shared_ptr<Storage>> copies_;
};

/// The host waits for an observed node only where the observer asks for its outputs.
class NodeObserver {
 public:
  virtual ~NodeObserver() = default;
  /// The node is enqueued on the stream next.
  virtual void before(const Program&, const Step&, Stream&) {}
  /// The node has been enqueued; on the host's stream it has run.
  virtual void after(const Program& program, const Step& step, const NodeOutputs& outputs) = 0;
  /// All nodes of a run have been enqueued.
  virtual void after_run(const Program&) {}
  /// Told by whoever fetches the data of the next run: from when to when it waited, in nanoseconds of the steady clock.
  virtual void fetched(int64_t begin_ns, int64_t end_ns) { static_cast<void>(begin_ns), static_cast<void>(end_ns); }
};

/// When nodes ran: two events of the stream around each. Events are made once and recorded again, so that marking allocates nothing once
/// a run of that length has been marked.
class NodeMarks {
 public:
  /// Marks the begin of the next node, before it is enqueued.
  void begin(Stream& stream);
  /// Marks its end.
  void end(Stream& stream);
  /// Nodes that were marked since the last clear.
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
