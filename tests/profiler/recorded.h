#pragma once
// A small training program, run under a recorder.

#include <memory>

#include "libcore/base/parallel.h"
#include "libcore/profiler/recorder.h"
#include "libcore/runtime/compile.h"
#include "tests/support/graphs.h"

namespace galley::test {

struct RecordedRun {
  std::shared_ptr<const Program> program;
  ParameterStore store;
  std::unique_ptr<Execution> execution;
  Recorder recorder;

  void step(int64_t number, int64_t resident = 0) {
    recorder.begin_step(number);
    execution->run({.observer = &recorder});
    recorder.end_step(resident);
  }
};

/// Compiles the graph and fills all inputs. Uses one thread, because such a small step would wait for the threads of other programs.
inline void prepare(RecordedRun& run, const Graph& graph, const CompileOptions& options = {}) {
  const std::map<std::string, RefArray> feeds = feeds_for(graph);
  set_compute_threads(1);
  run.program = compile(graph, options);
  run.execution = std::make_unique<Execution>(run.program, run.store);
  for (ValueId id : graph.inputs()) {
    const ValueInfo& info = graph.value(id);
    const Tensor values = to_tensor(info.type, feeds.at(info.name));
    if (info.role != ValueRole::kInput && run.store.has(info.name)) run.store.set(info.name, values);
    if (info.role == ValueRole::kInput && run.execution->takes(info.name)) run.execution->feed(info.name, values);
  }
}

/// The tiny net with its backward pass and updates.
inline void prepare_training(RecordedRun& run, int64_t batch = 3, const CompileOptions& options = {}) {
  TinyNet net;
  build_tiny_net(net, true, batch);
  add_training(net);
  prepare(run, net.graph, options);
}

}  // namespace galley::test
