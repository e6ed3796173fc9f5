#include "libcore/backends/cuda/step_graph.h"

#include <cstdlib>
#include <exception>
#include <string>

#include "libcore/backends/cuda/device.h"
#include "libcore/backends/cuda/joined_updates.h"
#include "libcore/base/error.h"
#include "libcore/base/log.h"

namespace galley {
namespace {

using cuda::check;
using cuda::driver;

constexpr int kEagerRuns = 2;

/// A recorded sequence that a stream can replay.
class Recording {
 public:
  explicit Recording(cuda::GraphHandle graph) {
    check(driver().cuGraphInstantiateWithFlags(&replay_, graph, 0), "preparing the graph of a step");
  }
  ~Recording() { driver().cuGraphExecDestroy(replay_); }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  void replay(cuda::StreamHandle stream) const { check(driver().cuGraphLaunch(replay_, stream), "starting the graph of a step"); }

 private:
  cuda::GraphExecHandle replay_ = nullptr;
};

class StepGraph : public Runner {
 public:
  StepGraph(CudaDevice& device, const BoundProgram& program) : joined_(device, program.calls), calls_(joined_.calls()) {}

  void run(Stream& stream) override {
    static_cast<const CudaDevice&>(stream.device()).make_current();
    if (recording_ == nullptr && runs_ >= kEagerRuns && possible_ && !calls_.empty()) record(stream);
    if (recording_ != nullptr) return recording_->replay(cuda_stream(stream));
    ++runs_;
    for (const BoundCall& call : calls_) call.run(stream);
  }

 private:
  void record(Stream& stream) {
    const cuda::StreamHandle handle = cuda_stream(stream);
    possible_ = false;  // unless it succeeds
    std::string problem;
    std::exception_ptr failed;
    try {
      check(driver().cuStreamBeginCapture(handle, cuda::kCaptureOfThread), "recording a step");
      for (const BoundCall& call : calls_) call.run(stream);
    } catch (const Error& error) {
      problem = error.message();
      failed = std::current_exception();
    }
    cuda::GraphHandle graph = nullptr;
    const cuda::Result ended = driver().cuStreamEndCapture(handle, &graph);
    if (failed && ended == cuda::kSuccess) {  // a call that cannot be recorded would have ended the capture
      driver().cuGraphDestroy(graph);
      std::rethrow_exception(failed);
    }
    try {
      if (problem.empty()) {
        check(ended, "recording a step");
        recording_ = std::make_unique<Recording>(graph);
      }
    } catch (const Error& error) {
      problem = error.message();
    }
    if (ended == cuda::kSuccess) driver().cuGraphDestroy(graph);
    if (!problem.empty()) log(LogLevel::kWarning, "the step is not replayed as one graph, since it cannot be recorded: " + problem);
  }

  JoinedCalls joined_;
  std::span<const BoundCall> calls_;
  int runs_ = 0;
  bool possible_ = true;
  std::unique_ptr<Recording> recording_;
};

/// For finding errors.
class Waiting : public Runner {
 public:
  explicit Waiting(const BoundProgram& program) : calls_(program.calls) {}
  void run(Stream& stream) override {
    for (const BoundCall& call : calls_) {
      call.run(stream);
      try {
        stream.synchronize();
      } catch (Error& error) {
        error.context(cat(" at ", call.node->path, " (", call.node->op->name, ")"));
        throw;
      }
    }
  }

 private:
  std::span<const BoundCall> calls_;
};

}  // namespace

std::unique_ptr<Runner> step_graph(CudaDevice& device, const BoundProgram& program) {
  const char* eager = std::getenv("GALLEY_CUDA_EAGER");
  if (eager != nullptr && std::string(eager) == "1") return std::make_unique<Waiting>(program);
  return std::make_unique<StepGraph>(device, program);
}

}  // namespace galley
