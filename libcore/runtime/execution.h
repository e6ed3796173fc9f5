#pragma once
// Execution: a Program bound to parameters and memory, run again and again. An Arena may be shared by executions that run one after the
// other (train step, evaluation): it is as large as the largest needs.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/runtime/parameter_store.h"
#include "libcore/runtime/program.h"
#include "libcore/tensor/tensor.h"

namespace galley {

/// Scratch memory: mapped, with huge pages advised, touched in parallel before the first step.
class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Makes room for at least `bytes`; contents are lost where it grows. Throws Error (kResource) where memory is out.
  void reserve(int64_t bytes);
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  /// Changes whenever the address does.
  uint64_t generation() const { return generation_; }

 private:
  void* mapping_ = nullptr;  // what data_ lies in
  std::byte* data_ = nullptr;
  int64_t mapped_ = 0, bytes_ = 0;
  uint64_t generation_ = 0;
};

/// Called around each step: timing, memory, checks. `outputs` are addresses of the node's outputs.
class NodeObserver {
 public:
  virtual ~NodeObserver() = default;
  virtual void before(const Program& program, const Step& step) { static_cast<void>(program), static_cast<void>(step); }
  virtual void after(const Program& program, const Step& step, std::span<void* const> outputs) = 0;
  /// Told by whoever fetches the data of the next run: from when to when it waited, in nanoseconds of the steady clock.
  virtual void fetched(int64_t begin_ns, int64_t end_ns) { static_cast<void>(begin_ns), static_cast<void>(end_ns); }
};

struct RunOptions {
  NodeObserver* observer = nullptr;
  /// Asked once, before the first step that updates parameters or state (all outputs of the forward pass can be read then); false ends
  /// the run there, with nothing changed.
  std::function<bool()> before_updates;
  /// Runs everything but the updates: a replay.
  bool skip_updates = false;
};

struct NonFinite;

class Execution {
 public:
  /// Declares the program's parameters in the store where they are missing. `binding` gives some of the program's names another name
  /// in the store (evaluation on averaged weights). `arena`: shared scratch; none: one of its own.
  Execution(std::shared_ptr<const Program> program, ParameterStore& store, std::shared_ptr<Arena> arena = nullptr,
            std::map<std::string, std::string> binding = {});

  const Program& program() const { return *program_; }
  /// Gives an input its values until it is given others. The array is kept, not copied, where its format is the program's.
  void feed(std::string_view name, const Tensor& values);
  /// A scalar input (shape []), in its dtype.
  void feed(std::string_view name, double value);
  /// Does the program read an input of that name?
  bool takes(std::string_view name) const;

  /// One run; `prepare` first where parameters that it reads have changed. Returns false where before_updates ended it.
  bool run(const RunOptions& options = {});
  /// A contiguous copy of a declared output, valid after (or, for the forward pass, during) a run.
  Tensor output(std::string_view name) const;
  /// A floating or integer output of one element.
  double scalar(std::string_view name) const;
  /// The first finding of `check` over all fed inputs ("input") and all stored arrays that the program reads (by role).
  std::optional<NonFinite> check_arrays(
      const std::function<std::optional<NonFinite>(const std::string& name, std::string_view kind, const Tensor&)>& check) const;

 private:
  struct Call {
    std::vector<const void*> inputs;
    std::vector<void*> outputs;
    void* scratch = nullptr;
  };
  void bind();
  void* address(ValueId id);
  uint64_t prepared_versions() const;
  void execute(size_t step, NodeObserver* observer);
  void execute_guarded(size_t step, NodeObserver* observer);

  std::shared_ptr<const Program> program_;
  ParameterStore& store_;
  std::shared_ptr<Arena> arena_;
  std::map<std::string, std::string> binding_;
  std::map<ValueId, Tensor> feeds_;
  std::map<ValueId, std::string> store_names_;  // parameters, buffers, state
  std::vector<std::string> prepare_reads_, updated_;
  std::shared_ptr<Storage> prepared_;
  std::vector<Call> calls_;
  uint64_t bound_generation_ = 0;
  bool feeds_changed_ = true;
  std::optional<uint64_t> prepared_at_;
};

/// The first non-finite value of a replay of the run with the present feeds and parameters, updates left out.
struct NonFinite {
  std::string path, op, tensor;  // module, operator, name of the operator's output
  std::string text() const;      // "layer1.0.bn1: output y of batch_norm has 3 NaN and 0 infinite of 4096 values (first at [0,2,1,1])"
  int64_t nan_count = 0, inf_count = 0, elements = 0;
  Shape first_at;
};
std::optional<NonFinite> find_non_finite(Execution& execution);

/// Collects the time of each operator and module.
class NodeTimer : public NodeObserver {
 public:
  struct Row {
    std::string op, path, backend;
    Phase phase;
    int64_t calls = 0;
    double seconds = 0;
    Cost cost;  // of one call (by_op: of all nodes, one call each)
  };
  void before(const Program& program, const Step& step) override;
  void after(const Program& program, const Step& step, std::span<void* const> outputs) override;
  /// One row a step, in order of the program.
  const std::vector<Row>& rows() const { return rows_; }
  /// Rows summed by operator and phase, slowest first (path is empty).
  std::vector<Row> by_op() const;

 private:
  std::vector<Row> rows_;
  std::map<int, size_t> row_of_node_;
  double started_ = 0;
};

}  // namespace galley
