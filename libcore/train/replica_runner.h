#pragma once
// ReplicaRunner: runs the logical replicas of a rank (deterministic), each on one thread or on the stream of a device, and adds what they
// compute in the order of the tree over the replicas of all ranks.

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "libcore/comm/leaf_sums.h"
#include "libcore/comm/replica_group.h"
#include "libcore/infer/session.h"
#include "libcore/passes/shard.h"
#include "libcore/runtime/engine.h"

namespace galley {

/// What deterministic asks for.
struct ReplicaChoice {
  int count = 0;    ///< Logical replicas of all ranks; 0: none.
  int threads = 1;  ///< Of this rank, each of which computes one replica at a time.
};

/// A part of a batch, as one replica computes it.
struct ReplicaInput {
  const Batch* batch = nullptr;
  double weight = 0;  ///< Of its loss in that of the whole batch.
  double share = 0;   ///< Its samples, divided by those of all replicas.
};

/// Runs `body(index)` for each index below `size`, each on a thread of its own, index 0 on that of the caller. Threads live as long as the
/// team.
class ThreadTeam {
 public:
  explicit ThreadTeam(int size);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }
  /// Rethrows the first exception of a body, after all bodies have ended; `failed` is called when it is thrown.
  void run(const std::function<void(int)>& body, const std::function<void()>& failed);

 private:
  void work(int index);
  void call(int index);

  std::mutex mutex_;
  std::condition_variable begins_, ends_;
  const std::function<void(int)>* body_ = nullptr;
  const std::function<void()>* failed_ = nullptr;
  std::exception_ptr error_;
  uint64_t runs_ = 0;
  int running_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

/// Runs the replicas of a rank, one on each thread, and adds what they give.
class ReplicaRunner {
 public:
  struct Options {
    Communicator* ranks = nullptr;  ///< nullptr: one rank.
    ShardGroups shards;             ///< Of scattered sums.
    ReplicaChoice choice;
    bool sums = false;               ///< Programs sum over replicas (batch norm), so all replicas of the rank run at the same time.
    bool gathers = false;            ///< Programs gather parameters.
    Communicator* tensor = nullptr;  ///< The ranks that divide matrices, and compute the same replicas at the same time; nullptr: none.
    bool host = true;  ///< Programs run on the host's device. On others, replicas run one after the other, and sums are added on the host.
    NodeObserver* others = nullptr;  ///< Of the replicas that the observer of a run does not watch; several threads call it.
  };
  explicit ReplicaRunner(const Options& options);

  /// This rank's replicas.
  LeafRange own() const { return tree_.owned(rank_); }
  int count() const { return own().end - own().begin; }
  /// Replicas that are in memory at the same time.
  int slots() const { return slots_; }
  const ReductionTree& tree() const { return tree_; }

  /// A program of a replica, for batches of these types.
  struct Form {
    BatchTypes types;
    std::shared_ptr<const Program> program;
  };
  /// Allocates memory for programs and sums. `buckets`: of outputs of the programs (replica_gradients); `scattered`: a rank needs its range
  /// of their sums only. `statistics`: elements of the output kStatistics. `losses`: outputs that are summed too, "loss" first.
  void bind(Engine& engine, const std::vector<Form>& forms, const std::vector<GradientBucket>& buckets, bool scattered, int64_t statistics,
            std::vector<std::string> losses);
  /// Memory of bind() beyond one execution of the first form's program: an estimate for the plan.
  static int64_t bytes(const Program& program, const std::vector<GradientBucket>& buckets, const Options& options);

  /// Computes all replicas of this rank; `feed` sets the inputs of an execution.
  void run(std::span<const ReplicaInput> inputs, const std::function<void(Execution&, const ReplicaInput&)>& feed, NodeObserver* observer);
  /// Adds the results of all ranks, with hybrid first those of the ranks that divide arrays. After it: the sums of the losses, of a bucket
  /// (of all of it, or of this rank's range), of the statistics.
  void reduce(NodeObserver* observer);
  double loss(size_t index) const { return losses_sum_[index]; }
  Tensor sum(size_t bucket) const;
  Tensor statistics() const;
  /// The sum of squares of all buckets, over ranks.
  double squares() const;

  /// The loss of a replica of this rank in the last run.
  double loss_of(int index) const { return losses_[static_cast<size_t>(index)][0]; }
  /// An execution for these shapes, to run one replica again.
  Execution& execution_for(const Batch& batch, int slot = 0) const;

 private:
  /// A flat array of the programs, and the partial sums of this rank.
  struct Summed {
    std::string name;
    std::vector<std::pair<std::string, int64_t>> outputs;  // with their places in the array
    int64_t elements = 0;
    bool scattered = false;
    bool divided = false;  // of matrices that ranks divide
    std::shared_ptr<std::byte> memory;
    std::shared_ptr<std::byte> group;  // hybrid: the partial sums of a group of ranks, of this rank's range
    std::unique_ptr<LeafSums> sums;
  };
  struct Slot {
    std::shared_ptr<Arena> arena;
    std::vector<std::unique_ptr<Execution>> executions;  // by form
  };
  struct Step;
  void add_summed(const std::string& name, std::vector<std::pair<std::string, int64_t>> outputs, int64_t elements, bool scattered);
  void run_alone(Step& step, int slot);
  void run_on_device(Step& step);
  void run_in_group(Step& step, ReplicaGroup& group, int slot);
  void compute(Step& step, int slot, int replica, bool counts);
  void finished(Step& step, int replica, Execution& execution);
  void add(int replica, const Execution& execution);
  Tensor tensor_of(const Summed& summed) const;

  Options options_;
  int rank_, ranks_;
  ReductionTree tree_;
  int slots_ = 1, rounds_ = 1;
  std::vector<Form> forms_;
  std::vector<Slot> slot_;
  std::vector<Summed> summed_;  // buckets, then statistics
  size_t buckets_ = 0;
  std::vector<std::string> loss_names_;
  std::vector<std::vector<double>> losses_;  // of this rank's replicas
  std::vector<double> losses_sum_;
  std::unique_ptr<ThreadTeam> team_;
};

}  // namespace galley
