#pragma once
// PipelineRunner: runs the stage of a rank for its micro-batches of a step, in the order of a schedule that was checked before, and sums
// the gradients of the stage in the order of a tree over the micro-batches of all ranks that compute the stage.

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libcore/comm/leaf_sums.h"
#include "libcore/dist/pipeline_actions.h"
#include "libcore/passes/split_stages.h"
#include "libcore/train/replica_runner.h"

namespace galley {

/// The ranks of a pipeline: so many copies of each stage, which are neighbors.
struct PipelineRanks {
  int stages = 1, stage = 0;
  int copies = 1, copy = 0;
  int rank_of(int of_stage) const { return of_stage * copies + copy; }
};

/// Runs the micro-batches of a step through the parts of the model that this rank holds.
class PipelineRunner {
 public:
  /// One part of the model on this rank (several if interleaved): its programs and messages. Peers of messages are parts.
  struct Part {
    std::shared_ptr<const Program> forward, backward;
    StageGraphs messages;  // without graphs
  };
  /// The sums of a part: flat outputs of its backward pass, with their places in one array. Copies of a stage have the same; `elements`
  /// are those of the largest part with this chunk, so that all ranks start the same collective.
  struct Sums {
    struct Output {
      std::string name;
      int64_t at = 0, elements = 0;
    };
    std::vector<Output> outputs;
    int64_t elements = 0;
  };
  /// `micro_batches`: of all copies. `actions`: of all stages, for those of this copy. `parts`: of this rank, by chunk.
  PipelineRunner(Communicator& ranks, const PipelineRanks& place, int64_t micro_batches, std::vector<StageActions> actions,
                 std::vector<Part> parts);

  /// The micro-batches of this rank's copy of the pipeline.
  LeafRange own() const { return tree_.owned(place_.copy); }
  /// Memory of bind(): an estimate for the plan.
  int64_t bytes(const std::vector<Sums>& sums) const;
  /// Allocates memory. `sums`: by chunk. `losses`: outputs of the last part, on stage `loss_stage`.
  void bind(Engine& engine, std::vector<Sums> sums, std::vector<std::string> losses, int loss_stage);
  /// `inputs`: of the rank's micro-batches.
  void run(std::span<const ReplicaInput> inputs, const std::function<void(Execution&, const ReplicaInput&)>& feed, NodeObserver* observer);
  /// Sums over the copies of each stage, and gives all ranks the losses.
  void reduce(NodeObserver* observer);
  double loss(size_t index) const { return losses_sum_[index]; }
  /// The sum of an output of this stage.
  Tensor sum(const std::string& output) const;
  /// The sum of squares of these outputs of this rank, and of those of the other stages.
  double squares(const std::vector<std::string>& outputs) const;
  int64_t slots() const;

 private:
  struct Summed {
    Sums of;
    std::shared_ptr<std::byte> memory;
    std::unique_ptr<LeafSums> sums;
  };
  struct Sent {
    Ticket header, body;
    std::unique_ptr<int64_t[]> key;
    std::vector<std::byte> values;
  };
  using Key = std::pair<std::string, int64_t>;  // a value of a micro-batch

  void forward(const PipelineAction& action, const ReplicaInput& input, NodeObserver* observer);
  void backward(const PipelineAction& action, const ReplicaInput& input, NodeObserver* observer);
  void send(const StageMessage& message, int64_t micro_batch, const Tensor& values);
  /// Receives messages until that value of the micro-batch is there.
  void receive(const StageMessage& message, int64_t micro_batch);
  void report_message(const char* kind, const StageMessage& message, int64_t micro_batch, int64_t begin_ns) const;
  int rank_of(int part) const { return place_.rank_of(part % place_.stages); }
  bool has_losses(const Execution& execution) const;

  Communicator& ranks_;
  PipelineRanks place_;
  std::vector<StageActions> actions_;
  std::vector<Part> parts_;
  ReductionTree tree_;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Execution>> forward_;  // by chunk and slot
  std::vector<std::unique_ptr<Execution>> backward_;                           // by chunk
  std::vector<StageMessage> incoming_;
  std::map<Key, Tensor> mailbox_;
  std::vector<Sent> sent_;
  std::vector<Summed> summed_;  // by chunk
  std::vector<std::string> loss_names_;
  int loss_stage_ = 0;
  std::vector<std::vector<double>> losses_;
  std::vector<double> losses_sum_;
  const std::function<void(Execution&, const ReplicaInput&)>* feed_ = nullptr;
  NodeObserver* observer_ = nullptr;  // of messages
};

}  // namespace galley
