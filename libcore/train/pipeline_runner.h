#pragma once
// PipelineRunner: runs the stage of a rank for all micro-batches of a step, in the order of a schedule that was checked before, and sums
// the gradients of the stage in the order of a tree over the micro-batches.

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

class PipelineRunner {
 public:
  /// One part of the model on this rank (several if interleaved): its programs and messages. Peers of messages are parts.
  struct Part {
    std::shared_ptr<const Program> forward, backward;
    StageGraphs messages;  // without graphs
  };
  /// `actions`: of all stages. `parts`: of this rank, by chunk.
  PipelineRunner(Communicator& ranks, int64_t micro_batches, std::vector<StageActions> actions, std::vector<Part> parts);

  /// Allocates memory. `buckets`: of one parameter each; `owners`: their ranks. `losses`: outputs of the last part, on rank `loss_rank`.
  void bind(Engine& engine, const std::vector<GradientBucket>& buckets, std::vector<int> owners, std::vector<std::string> losses,
            int loss_rank);
  void run(std::span<const ReplicaInput> inputs, const std::function<void(Execution&, const ReplicaInput&)>& feed, NodeObserver* observer);
  /// Gives all ranks the sums of losses and gradients.
  void reduce();
  double loss(size_t index) const { return losses_sum_[index]; }
  Tensor sum(size_t bucket) const;
  double squares() const;
  int64_t slots() const;

 private:
  struct Summed {
    std::string name, output;
    int64_t elements = 0;
    int owner = 0;
    size_t chunk = 0;  // of the part whose backward pass computes it, on the owner
    std::shared_ptr<Storage> memory;
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
  int rank_of(int part) const { return part % ranks_.size(); }

  Communicator& ranks_;
  int64_t micro_batches_;
  std::vector<StageActions> actions_;
  std::vector<Part> parts_;
  ReductionTree tree_;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Execution>> forward_;  // by chunk and slot
  std::vector<std::unique_ptr<Execution>> backward_;                           // by chunk
  std::vector<StageMessage> incoming_;
  std::map<Key, Tensor> mailbox_;
  std::vector<Sent> sent_;
  std::vector<Summed> summed_;
  std::vector<std::string> loss_names_;
  int loss_rank_ = 0;
  std::vector<std::vector<double>> losses_;
  std::vector<double> losses_sum_;
  const std::function<void(Execution&, const ReplicaInput&)>* feed_ = nullptr;
};

}  // namespace galley
