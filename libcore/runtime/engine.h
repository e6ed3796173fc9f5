#pragma once
// Engine: compiles programs, caches them, and binds them to one set of parameters and one arena. Every tool runs programs through it.

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

/// Identifies a program by its purpose and the types of its inputs. Equal keys mean the same program.
struct ProgramKey {
  std::string mode;     ///< "train", "accumulate", "evaluate", "predict", "calibrate" ...
  std::string variant;  ///< Other facts that determine the graph, e.g. a stage of training or captured modules; may be empty.
  std::map<std::string, TensorType> fields;  ///< Types of the input fields by name.

  /// Text for logs: "evaluate input f32 [32,1,28,28], target i64 [32]".
  std::string str() const;
};

/// One compilation of an engine.
struct Compilation {
  std::string program;  ///< ProgramKey::str().
  std::string reason;   ///< Why it was needed.
  double seconds = 0;   ///< Time for capture, passes and preparation of kernels.
};

/// Which program chooses the memory formats of parameters, buffers and state.
enum class ParameterFormats : uint8_t {
  kLead,    ///< This program, depending on its kernels. It must be the first program of its engine.
  kFollow,  ///< An earlier program, or the store when `follow_store` was called. This program chooses formats only for other names.
};

/// Compiles, caches and binds programs.
/// Threads: one thread at a time may call an engine; overlapping calls throw InternalError. Exception: several threads may call `bind` at
/// the same time (replicas) if the parameters of the program are declared and each call passes its own arena. An execution runs in one
/// thread at a time, and executions that share an arena run one after the other. The store must not be written while an execution runs.
class Engine {
 public:
  explicit Engine(std::shared_ptr<const Backend> backend);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Backend& backend() const { return *backend_; }
  /// The most memory in use at once: what was allocated of a device's own memory, else the resident memory of this process.
  int64_t peak_bytes() const;
  /// Parameters, buffers and state of all programs.
  ParameterStore& store() { return store_; }
  const ParameterStore& store() const { return store_; }
  /// Scratch memory of all executions that `bind` creates without their own arena.
  const std::shared_ptr<Arena>& arena() const { return arena_; }

  /// The program with this key. If it does not exist yet, compiles the graph that `capture` returns and records `reason`. Does not declare
  /// the program's parameters. Throws the errors of `capture` and `compile`, and InternalError if the program leads but is not the first,
  /// or follows but there are no formats yet. `backend`: another one of the same device, for another number of threads; null: the engine's.
  std::shared_ptr<const Program> program(const ProgramKey& key, std::string_view reason, const std::function<Graph()>& capture,
                                         ParameterFormats formats = ParameterFormats::kFollow,
                                         std::shared_ptr<const Backend> backend = nullptr);
  /// Declares the program's parameters, buffers and state in the store, so that they can be set before it is bound.
  void declare(const Program& program);
  /// Makes later programs use the formats of the arrays that are in the store now.
  void follow_store();
  /// Whether a program has led or `follow_store` was called. If not, the next program must lead.
  bool has_formats() const { return has_formats_; }

  struct BindOptions {
    std::shared_ptr<Arena> arena = nullptr;  ///< Scratch memory for an execution that runs in parallel with others; null: the engine's.
    std::map<std::string, std::string> names = {};  ///< Maps the program's names to names in the store (evaluation on averaged weights).
    std::shared_ptr<Carried> carried = nullptr;     ///< The request of the execution; null: a new one.
  };
  /// Creates the carried values of a new request on this engine's device.
  std::shared_ptr<Carried> carried() const { return std::make_shared<Carried>(backend_->device()); }
  /// Binds the program to this engine's parameters, ready to run.
  std::unique_ptr<Execution> bind(std::shared_ptr<const Program> program, BindOptions options);
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
  std::atomic<int> users_{0};  // calls in progress that only read; -1: one call that changes the engine
};

/// Logs a line for each compilation of any engine at LogLevel::kInfo (--verbose=compile). Call it once, at program start.
void set_compile_log(bool on);

}  // namespace galley
