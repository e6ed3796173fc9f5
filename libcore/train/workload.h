#pragma once
// Workload: repeatable work of a recipe on random batches: a forward pass of inference, an update, or a step of text generation.
// galley-benchmark, galley-profile and the layout check time it. It reads no data.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "libcore/infer/session.h"
#include "libcore/runtime/execution.h"
#include "libcore/runtime/machine.h"

namespace galley {

struct Batch;
struct QuantizationPlan;

/// A kind of work. Decoding computes the next token of sequences whose earlier tokens are in the cache; prefill reads whole sequences into
/// the cache and computes the token after each.
enum class WorkKind { kForward, kTrainStep, kDecode, kPrefill };

/// Compiled work that can be repeated.
class Workload {
 public:
  /// Compiles and allocates memory. `batch`: samples per run. Updates use micro-batches of the recipe's train.batch.micro if that divides
  /// `batch`. `tokens`: the length of the sequences of decoding and prefill, unused otherwise. The session must outlive the workload.
  /// Throws the errors that training and prediction would throw, and Error (kRecipe) for decoding and prefill of a model without a cache,
  /// or of more tokens than it takes.
  Workload(const Session& session, WorkKind kind, int64_t batch, int64_t tokens = 0);
  ~Workload();
  /// The program that such a workload would run (for an update: the last one), without allocating its memory.
  static std::shared_ptr<const Program> compiled(const Session& session, WorkKind kind, int64_t batch);

  /// Runs the work once.
  void run(NodeObserver* observer = nullptr) { run_(observer); }
  /// The program (for an update: the last one).
  const Program& program() const { return *program_; }
  int64_t samples() const { return samples_; }
  /// Floating-point operations of one run, two per multiply-add.
  double flops() const { return flops_; }
  /// Floating-point operations as executed: fewer for Winograd convolutions.
  const Arithmetic& executed() const { return executed_; }
  /// Bytes moved in one run, if each operator reads or writes each operand once.
  double bytes() const { return bytes_; }
  /// Bytes of parameters, state, scratch, packed weights and the batch.
  int64_t planned_bytes() const { return planned_bytes(*program_); }
  static int64_t planned_bytes(const Program& program);
  /// Bytes of scratch memory that are allocated; 0 for generation.
  int64_t arena_bytes() const { return arena_ != nullptr ? arena_->bytes() : 0; }

 private:
  struct Forward;
  struct Update;
  struct Generation;
  void make_forward(const Session& session, int64_t batch);
  void make_update(const Session& session, int64_t batch);
  void make_generation(const Session& session, WorkKind kind, int64_t batch, int64_t tokens);
  void add_cost(const Program& program, double times);

  std::shared_ptr<const Program> program_;
  std::shared_ptr<void> parts_;  // objects that run_ uses
  std::shared_ptr<const Arena> arena_;
  std::function<void(NodeObserver*)> run_;
  int64_t samples_ = 0;
  double flops_ = 0, bytes_ = 0;
  Arithmetic executed_;
};

}  // namespace galley
