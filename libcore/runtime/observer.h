#pragma once
// Observers: called around each step of an execution for timing, statistics and checks.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "libcore/runtime/program.h"
#include "libcore/tensor/tensor.h"

namespace galley {

/// The outputs of a node that has just run. Lives as long as the observer's call.
class NodeOutputs {
 public:
  NodeOutputs(const Program& program, const Step& step, std::span<void* const> addresses, Stream& stream);
  size_t size() const { return addresses_.size(); }
  /// Output i in host memory, in the format of its type: the memory itself on the host's device, else a copy, for which it waits. nullptr for an
  /// output that has no memory.
  const void* host(size_t i) const;

 private:
  const Graph& graph_;
  const Node& node_;
  std::span<void* const> addresses_;
  Stream& stream_;
  mutable std::vector<std::shared_ptr<Storage>> copies_;
};

/// On a device that is not the host's, an observed node has run before `after` is called: an observed run is slower.
class NodeObserver {
 public:
  virtual ~NodeObserver() = default;
  virtual void before(const Program& program, const Step& step) { static_cast<void>(program), static_cast<void>(step); }
  virtual void after(const Program& program, const Step& step, const NodeOutputs& outputs) = 0;
  /// Told by whoever fetches the data of the next run: from when to when it waited, in nanoseconds of the steady clock.
  virtual void fetched(int64_t begin_ns, int64_t end_ns) { static_cast<void>(begin_ns), static_cast<void>(end_ns); }
};

}  // namespace galley
