#pragma once
// Execution: a Program bound to parameters and memory. It can run any number of times on the program's device.

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
#include "libcore/runtime/index_limits.h"
#include "libcore/runtime/input_slots.h"
#include "libcore/runtime/observer.h"
#include "libcore/runtime/parameter_store.h"
#include "libcore/runtime/program.h"
#include "libcore/runtime/scalar_block.h"
#include "libcore/tensor/tensor.h"

namespace galley {

/// Options of one run.
struct RunOptions {
  NodeObserver* observer = nullptr;  ///< Called around each step; null: none.
  /// Skips updates of parameters and state: a replay.
  bool skip_updates = false;
};

struct NonFinite;

class Execution {
 public:
  /// Declares parameters of the program that are missing in the store. `binding` maps some of the program's names to other names in the
  /// store (evaluation on averaged weights). `arena`: shared scratch memory; null: a new one. `carried`: the request, which other
  /// executions may share; null: a new one.
  Execution(std::shared_ptr<const Program> program, ParameterStore& store, std::shared_ptr<Arena> arena = nullptr,
            std::map<std::string, std::string> binding = {}, std::shared_ptr<Carried> carried = nullptr);

  const Program& program() const { return *program_; }
  /// Sets the request for the following runs. Throws the errors of Carried::declare, and then keeps the current request.
  void carry(std::shared_ptr<Carried> carried);
  const std::shared_ptr<Carried>& carried() const { return carried_; }
  /// Sets an input for all following runs. On the host's device, an array in the program's format is used without a copy, so it must not
  /// change until the run. Arrays of rank 0 or 1 with at most 64 bytes, and all arrays for other devices, are copied before `feed` returns.
  void feed(std::string_view name, const Tensor& values);
  /// Sets an input to an output of the last run of another execution on the same device, which must have its type. On the host's device the
  /// array is used without a copy, as by `feed`; on others it is copied on the device, unless the formats differ.
  void feed_from(std::string_view name, const Execution& from, std::string_view output);
  /// Sets an input of one element for all following runs; the value is converted to the input's dtype. The next run copies all scalars to
  /// the device together.
  void set(std::string_view name, double value);
  /// Sets an i64 input of at most 64 bytes: random keys.
  void set(std::string_view name, std::span<const int64_t> values);
  /// Whether the program has a fed input of that name.
  bool takes(std::string_view name) const;
  /// Whether the outputs of a run stay as they are when the next arrays are fed: none is the memory of a fed input.
  bool keeps_outputs() const;

  /// Enqueues one run on the device's stream. Runs `prepare` first if parameters that it reads have changed. The second and later runs
  /// allocate nothing. On the host's device the run is finished on return.
  void run(const RunOptions& options = {});
  /// Waits for all runs so far. Throws their first error.
  void wait() { stream_.synchronize(); }
  /// Results of `prepare` (MemoryPlan::prepared_bytes), which a later start may adopt: empty before the first run, or where there are none.
  std::span<const std::byte> prepared() const;
  /// Takes the results of `prepare` of an equal program with the parameters as they are now, which may be in a mapped file.
  void adopt_prepared(std::shared_ptr<Storage> values);
  /// A contiguous copy of an output of the last run, in host memory. Waits for the run.
  Tensor output(std::string_view name) const;
  /// An output of the last run in the arena of a host device, in the program's format: valid until the arena is used again.
  Tensor view(std::string_view name) const;
  /// An output of the last run in the host's memory: on the host's device as view(), on others as output().
  Tensor host_output(std::string_view name) const;
  /// Keeps the one-element outputs of the last `runs` runs; the default is 1. Discards the outputs so far.
  void keep_results(int64_t runs);
  /// A one-element output of the last run, or of the run `before_last` runs earlier. Waits for all runs so far.
  double scalar(std::string_view name, int64_t before_last = 0) const;
  /// Calls `check` for every fed input (kind "input") and every stored array that the program reads (its role). Returns the first finding.
  std::optional<NonFinite> check_arrays(
      const std::function<std::optional<NonFinite>(const std::string& name, std::string_view kind, const Tensor&)>& check) const;

 private:
  /// The addresses of the inputs and outputs of a step.
  struct Operands {
    std::vector<const void*> inputs;
    std::vector<void*> outputs;
  };
  /// A fed array.
  struct Feed {
    Tensor values;                                   // in the program's format, on its device
    Tensor converted;                                // on the host's device, if the caller's array has another format
    std::unique_ptr<InputSlots> slots;               // on other devices
    std::vector<std::pair<size_t, size_t>> readers;  // steps that read it, with the position of the input
  };
  /// The position of a one-element output in the results on the host.
  struct Result {
    DType dtype = DType::kF32;
    int64_t offset = 0;
  };
  void declare_inputs();
  void find_prepare_reads();
  void find_results();
  const Tensor& in_program_format(Feed& feed, const TensorType& type, const Tensor& values);
  void send(Feed& feed, const TensorType& type, const Tensor& values);
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
  std::unique_ptr<Stream> copies_;  // of fed arrays to the device
  std::map<ValueId, Feed> feeds_;
  IndexLimits limits_;
  ScalarBlock scalars_;
  std::map<ValueId, std::string> store_names_;  // parameters, buffers, state
  std::vector<std::string> prepare_reads_, updated_;
  std::shared_ptr<Storage> prepared_;
  std::shared_ptr<Storage> results_, host_results_;  // one-element outputs: on the device, and the host's copy
  int64_t result_bytes_ = 0, kept_runs_ = 1;         // bytes of one run; number of runs whose results the host keeps, in turn
  int64_t fetched_runs_ = 0;
  std::map<ValueId, Result> result_of_;
  std::vector<Operands> operands_;            // by step
  std::vector<BoundCall> calls_;              // by step, bound to the operands
  std::unique_ptr<Runner> runner_;            // of the steps after `prepare`
  std::optional<uint64_t> bound_generation_;  // of the arena
  uint64_t bound_moves_ = 0;                  // of arrays in the store
  bool all_fed_ = false;
  std::optional<uint64_t> prepared_at_;
};

/// The first non-finite value in a replay of the run with the current inputs and parameters, without updates.
struct NonFinite {
  std::string path, op, tensor;  // module, operator, name of the output
  std::string text() const;      // "layer1.0.bn1: output y of batch_norm has 3 NaN and 0 infinite of 4096 values (first at [0,2,1,1])"
  int64_t nan_count = 0, inf_count = 0, elements = 0;
  Shape first_at;
};
/// Replays the run and returns the first non-finite input, parameter or output; nullopt if all values are finite.
std::optional<NonFinite> find_non_finite(Execution& execution);

/// Measures the time of each operator and module with events of the stream. An observed run is finished on return.
class NodeTimer : public NodeObserver {
 public:
  struct Row {
    std::string op, path, backend;
    Phase phase;
    int64_t calls = 0;
    double seconds = 0;
    Cost cost;  // of one call (by_op: sum of all nodes, one call each)
  };
  void before(const Program& program, const Step& step, Stream& stream) override;
  void after(const Program& program, const Step& step, const NodeOutputs& outputs) override;
  void after_run(const Program& program) override;
  /// One row per step, in the program's order.
  const std::vector<Row>& rows() const { return rows_; }
  /// Rows summed by operator and phase, slowest first (`path` is empty).
  std::vector<Row> by_op() const;

 private:
  Row& row_of(const Program& program, const Step& step);

  std::vector<Row> rows_;
  std::map<int, size_t> row_of_node_;
  NodeMarks marks_;                  // of the current run
  std::vector<const Step*> marked_;  // their steps
};

}  // namespace galley
