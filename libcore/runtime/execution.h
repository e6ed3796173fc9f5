#pragma once
// Execution: a Program bound to parameters and memory. Runs it any number of times on the program's device.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/runtime/arena.h"
#include "libcore/runtime/carried.h"
#include "libcore/runtime/observer.h"
#include "libcore/runtime/parameter_store.h"
#include "libcore/runtime/program.h"
#include "libcore/runtime/scalar_block.h"
#include "libcore/tensor/tensor.h"

namespace galley {

struct RunOptions {
  NodeObserver* observer = nullptr;
  /// Runs everything except updates of parameters and state: a replay.
  bool skip_updates = false;
};

struct NonFinite;

class Execution {
 public:
  /// Declares parameters of the program that are missing in the store. `binding`: other names in the store for some of the program's
  /// names (evaluation on averaged weights). `arena`: shared scratch memory; null: a new one. `carried`: the request, which other
  /// executions may share; null: a new one.
  Execution(std::shared_ptr<const Program> program, ParameterStore& store, std::shared_ptr<Arena> arena = nullptr,
            std::map<std::string, std::string> binding = {}, std::shared_ptr<Carried> carried = nullptr);

  const Program& program() const { return *program_; }
  /// Sets the request of the following runs. Throws as Carried::declare, and keeps the present request then.
  void carry(std::shared_ptr<Carried> carried);
  const std::shared_ptr<Carried>& carried() const { return carried_; }
  /// Sets an input for all following runs. On the host's device an array in the program's format is used without a copy: it must stay
  /// unchanged until the run. Arrays of rank 0 or 1 with at most 64 bytes, and all arrays for other devices, are copied before `feed`
  /// returns.
  void feed(std::string_view name, const Tensor& values);
  /// Sets an input of one element for all following runs; the value is converted to its dtype. The next run copies all scalars to the
  /// device at once.
  void set(std::string_view name, double value);
  /// The same for an i64 input of at most 64 bytes: random keys.
  void set(std::string_view name, std::span<const int64_t> values);
  /// Does the program have a fed input of that name?
  bool takes(std::string_view name) const;

  /// Enqueues one run on the device's stream, after `prepare` if parameters that `prepare` reads have changed. Allocates nothing from the
  /// second run on. On the host's device the run is finished on return.
  void run(const RunOptions& options = {});
  /// Waits for the runs so far. Throws their first error.
  void wait() { stream_.synchronize(); }
  /// A contiguous copy of an output of the last run, in host memory. Waits for the run.
  Tensor output(std::string_view name) const;
  /// Keeps outputs of one element of that many last runs; the default is 1. Discards those of the runs so far.
  void keep_results(int64_t runs);
  /// An output of one element, of the last run or of the run `before_last` runs before it. Waits for the runs so far.
  double scalar(std::string_view name, int64_t before_last = 0) const;
  /// Calls `check` for every fed input (kind "input") and every stored array that the program reads (its role); returns the first finding.
  std::optional<NonFinite> check_arrays(
      const std::function<std::optional<NonFinite>(const std::string& name, std::string_view kind, const Tensor&)>& check) const;

 private:
  /// The addresses of a step's inputs and outputs.
  struct Operands {
    std::vector<const void*> inputs;
    std::vector<void*> outputs;
  };
  /// An input that is fed as an array.
  struct Feed {
    Tensor values;                                   // in the program's format, on its device
    Tensor converted;                                // on the host, if the caller's array has another format
    std::unique_ptr<Event> copied;                   // `converted` has reached the device
    std::vector<std::pair<size_t, size_t>> readers;  // steps that read it, with the position of the input
  };
  /// An output of one element: its place on the host after a run.
  struct Result {
    DType dtype = DType::kF32;
    int64_t offset = 0;
  };
  void declare_inputs();
  void find_prepare_reads();
  void find_results();
  const Tensor& in_program_format(Feed& feed, const TensorType& type, const Tensor& values);
  void check_fed() const;
  void bind();
  void* address(ValueId id) const;
  uint64_t prepared_versions() const;
  void execute(size_t step, NodeObserver* observer);
  void execute_guarded(size_t step, NodeObserver* observer);
  void fetch_results();

  std::shared_ptr<const Program> program_;
  ParameterStore& store_;
  std::shared_ptr<Arena> arena_;
  std::shared_ptr<Carried> carried_;
  Device& device_;
  Stream& stream_;
  std::map<std::string, std::string> binding_;
  std::map<ValueId, Feed> feeds_;
  ScalarBlock scalars_;
  std::map<ValueId, std::string> store_names_;  // parameters, buffers, state
  std::vector<std::string> prepare_reads_, updated_;
  std::shared_ptr<Storage> prepared_;
  std::shared_ptr<Storage> results_, host_results_;  // outputs of one element: on the device, and what the host reads
  int64_t result_bytes_ = 0, kept_runs_ = 1;         // of one run; runs whose results the host keeps, in turns
  int64_t fetched_runs_ = 0;
  std::map<ValueId, Result> result_of_;
  std::vector<Operands> operands_;            // by step
  std::vector<BoundCall> calls_;              // by step, on the operands
  std::unique_ptr<Runner> runner_;            // of the steps after `prepare`
  std::optional<uint64_t> bound_generation_;  // of the arena
  bool all_fed_ = false;
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

/// Collects the time of each operator and module, by events of the stream; a run that it observes has run when it returns.
class NodeTimer : public NodeObserver {
 public:
  struct Row {
    std::string op, path, backend;
    Phase phase;
    int64_t calls = 0;
    double seconds = 0;
    Cost cost;  // of one call (by_op: of all nodes, one call each)
  };
  void before(const Program& program, const Step& step, Stream& stream) override;
  void after(const Program& program, const Step& step, const NodeOutputs& outputs) override;
  void after_run(const Program& program) override;
  /// One row a step, in order of the program.
  const std::vector<Row>& rows() const { return rows_; }
  /// Rows summed by operator and phase, slowest first (path is empty).
  std::vector<Row> by_op() const;

 private:
  Row& row_of(const Program& program, const Step& step);

  std::vector<Row> rows_;
  std::map<int, size_t> row_of_node_;
  NodeMarks marks_;                  // of the run
  std::vector<const Step*> marked_;  // their steps
};

}  // namespace galley
