#pragma once
// Engine: compiles programs once, keeps them, and binds them to one set of parameters and one arena. Every tool runs programs through it.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/backends/backend.h"
#include "libcore/runtime/execution.h"

namespace galley {

/// What a program is for, and for which inputs. Programs of equal keys are one program.
struct ProgramKey {
  std::string mode;                          ///< "train", "accumulate", "evaluate", "predict", "calibrate" ...
  std::string variant;                       ///< What else the graph depends on: a stage of a training, captured modules; may be empty.
  std::map<std::string, TensorType> fields;  ///< Types of the fed fields by name.

  /// "evaluate input f32 [32,1,28,28], target i64 [32]"
  std::string str() const;
};

/// One compilation of an engine.
struct Compilation {
  std::string program;  ///< ProgramKey::str().
  std::string reason;   ///< What asked for it.
  double seconds = 0;   ///< Capture, passes and preparation of kernels.
};

/// Who chooses the memory formats of parameters, buffers and state.
enum class ParameterFormats : uint8_t {
  kLead,    ///< This program, by the kernels that it runs. It is the first of its engine.
  kFollow,  ///< The program that led, or whoever filled the store before `follow_store`. This program chooses only for names that are new.
};

/// Programs, parameters and scratch memory belong to one thread at a time: InternalError where two calls overlap. Only `bind` may be called
/// in several threads at once, for replicas: of a program whose parameters are declared, each with an arena of its own. Each execution runs
/// in one thread at a time, executions of one arena one after the other. Nobody fills the store while an execution runs.
class Engine {
 public:
  explicit Engine(std::shared_ptr<const Backend> backend);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Backend& backend() const { return *backend_; }
  /// Parameters, buffers and state of all programs.
  ParameterStore& store() { return store_; }
  const ParameterStore& store() const { return store_; }
  /// Scratch memory of all executions that `bind` makes without an arena of their own.
  const std::shared_ptr<Arena>& arena() const { return arena_; }

  /// The program of that key. If there is none yet, `capture` gives its graph, which is compiled; `reason` says what asked for it. The
  /// program's parameters are not declared. Throws what `capture` throws, Error where no kernel supports a node, and InternalError where
  /// the program leads but is not the first, or follows and nothing has given formats.
  std::shared_ptr<const Program> program(const ProgramKey& key, std::string_view reason, const std::function<Graph()>& capture,
                                         ParameterFormats formats = ParameterFormats::kFollow);
  /// Declares the program's parameters, buffers and state in the store, so that they can be filled before it is bound.
  void declare(const Program& program);
  /// Programs that follow take the formats of the arrays that the store holds now.
  void follow_store();
  /// Has a program led, or follow_store been called? If not, the next program must lead.
  bool has_formats() const { return has_formats_; }

  struct Binding {
    std::shared_ptr<Arena> arena = nullptr;         ///< Scratch of its own, for an execution that runs beside others.
    std::map<std::string, std::string> names = {};  ///< Other names in the store (evaluation on averaged weights).
    std::shared_ptr<Carried> carried = nullptr;     ///< The request that the execution serves; none: one of its own.
  };
  /// A request of this engine's device: what its executions carry from run to run.
  std::shared_ptr<Carried> carried() const { return std::make_shared<Carried>(backend_->device()); }
  /// The program on this engine's parameters, ready to run.
  std::unique_ptr<Execution> bind(std::shared_ptr<const Program> program, Binding binding);
  std::unique_ptr<Execution> bind(std::shared_ptr<const Program> program) { return bind(std::move(program), {}); }

  /// All compilations, in order.
  const std::vector<Compilation>& compilations() const { return compilations_; }

 private:
  class Use;

  std::shared_ptr<const Backend> backend_;
  ParameterStore store_;
  std::shared_ptr<Arena> arena_;
  std::map<std::string, std::shared_ptr<const Program>> programs_;
  std::map<std::string, MemoryFormat> formats_;  // of named parameters, buffers and state
  bool has_formats_ = false;
  std::vector<Compilation> compilations_;
  std::atomic<int> users_{0};  // calls that only read at present; -1: one that changes the engine
};

/// Logs a line for each compilation of any engine at LogLevel::kInfo (--verbose=compile). Once, at start.
void set_compile_log(bool on);

}  // namespace galley
