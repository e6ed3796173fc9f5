#include "libcore/train/pipeline_runner.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "libcore/comm/square_sum.h"
#include "libcore/passes/replicate.h"

namespace galley {
namespace {

/// Values are numbered by the graph that was split, so that both ends of a message agree: "value123".
int64_t number_of(const std::string& name) {
  int64_t number = -1;
  const size_t digits = name.find_first_of("0123456789");
  GALLEY_ASSERT(name.starts_with("value") && digits == 5, name);
  std::from_chars(name.data() + digits, name.data() + name.size(), number);
  return number;
}

}  // namespace

PipelineRunner::PipelineRunner(Communicator& ranks, int64_t micro_batches, std::vector<StageActions> actions, std::vector<Part> parts)
    : ranks_(ranks),
      micro_batches_(micro_batches),
      actions_(std::move(actions)),
      parts_(std::move(parts)),
      tree_(static_cast<int>(micro_batches), 1) {}

int64_t PipelineRunner::slots() const { return actions_[static_cast<size_t>(ranks_.rank())].slots; }

void PipelineRunner::bind(Engine& engine, const std::vector<GradientBucket>& buckets, std::vector<int> owners,
                          std::vector<std::string> losses, int loss_rank) {
  loss_names_ = std::move(losses);
  loss_rank_ = loss_rank;
  losses_.assign(static_cast<size_t>(micro_batches_), std::vector<double>(loss_names_.size()));
  losses_sum_.assign(loss_names_.size(), 0);
  for (const Part& part : parts_) {
    engine.declare(*part.forward);
    engine.declare(*part.backward);
  }
  for (size_t b = 0; b < buckets.size(); ++b) {
    Summed& summed = summed_.emplace_back();
    summed.name = buckets[b].name;
    summed.output = gradient_output(buckets[b], 0);
    summed.elements = buckets[b].layout.padded(1);
    summed.owner = owners[b];
    summed.memory = Storage::allocate(summed.elements * 4);
    if (summed.owner != ranks_.rank()) continue;
    summed.sums = std::make_unique<LeafSums>(tree_, 0, summed.elements, reinterpret_cast<float*>(summed.memory->data()));
    while (parts_[summed.chunk].backward->graph().find_output(summed.output) == kNoValue) ++summed.chunk;
  }
  for (const PipelineAction& action : actions_[static_cast<size_t>(ranks_.rank())].actions) {
    if (action.kind != PipelineActionKind::kForward) continue;
    std::unique_ptr<Execution>& execution = forward_[{action.chunk, action.slot}];
    if (execution) continue;
    execution = engine.bind(parts_[static_cast<size_t>(action.chunk)].forward, {.arena = std::make_shared<Arena>()});
  }
  for (const Part& part : parts_) {
    backward_.push_back(engine.bind(part.backward, {.arena = std::make_shared<Arena>()}));
    for (const auto* list : {&part.messages.receive_forward, &part.messages.receive_backward})
      incoming_.insert(incoming_.end(), list->begin(), list->end());
  }
}

void PipelineRunner::send(const StageMessage& message, int64_t micro_batch, const Tensor& values) {
  const int to = rank_of(message.peer);
  const Tensor plain = values.to(MemoryFormat::contiguous());
  if (to == ranks_.rank()) {  // to another part of the same rank
    Tensor copy(plain.dtype(), plain.shape());
    std::memcpy(copy.data(), plain.data(), static_cast<size_t>(plain.bytes()));
    mailbox_[{message.name, micro_batch}] = copy;
    return;
  }
  Sent sent;
  sent.key = std::make_unique<int64_t[]>(2);
  sent.key[0] = number_of(message.name);
  sent.key[1] = micro_batch;
  const auto* from = static_cast<const std::byte*>(plain.data());
  sent.values.assign(from, from + plain.bytes());
  sent.header =
      ranks_.start({.kind = CollectiveKind::kSend, .dtype = DType::kI64, .name = "stage", .input = sent.key.get(), .count = 2, .peer = to});
  sent.body = ranks_.start({.kind = CollectiveKind::kSend,
                            .dtype = DType::kI8,
                            .name = "stage",
                            .input = sent.values.data(),
                            .count = std::ssize(sent.values),
                            .peer = to});
  sent_.push_back(std::move(sent));
  constexpr size_t kMostSent = 60;
  if (sent_.size() < kMostSent) return;
  ranks_.wait(sent_.front().header);
  ranks_.wait(sent_.front().body);
  sent_.erase(sent_.begin());
}

void PipelineRunner::receive(const StageMessage& message, int64_t micro_batch) {
  while (mailbox_.count({message.name, micro_batch}) == 0) {
    const int from = rank_of(message.peer);
    GALLEY_ASSERT(from != ranks_.rank(), message.name, " of micro-batch ", micro_batch, " is missing");
    std::array<int64_t, 2> key{};
    ranks_.receive("stage", key.data(), 2, DType::kI64, from);
    const auto found =
        std::find_if(incoming_.begin(), incoming_.end(), [&](const StageMessage& each) { return number_of(each.name) == key[0]; });
    GALLEY_ASSERT(found != incoming_.end(), "a message of an unknown value ", key[0]);
    Tensor values(found->type.dtype, found->type.shape);
    ranks_.receive("stage", values.data(), values.bytes(), DType::kI8, from);
    mailbox_[{found->name, key[1]}] = values;
  }
}

void PipelineRunner::forward(const PipelineAction& action, const ReplicaInput& input, NodeObserver* observer) {
  const Part& part = parts_[static_cast<size_t>(action.chunk)];
  Execution& execution = *forward_.at({action.chunk, action.slot});
  (*feed_)(execution, input);
  for (const StageMessage& message : part.messages.receive_forward) {
    receive(message, action.micro_batch);
    if (execution.takes(message.name)) execution.feed(message.name, mailbox_.at({message.name, action.micro_batch}));
  }
  execution.run({.observer = observer});
  for (const StageMessage& message : part.messages.send_forward) send(message, action.micro_batch, execution.view(message.name));
  if (ranks_.rank() != loss_rank_ || execution.program().graph().find_output(loss_names_[0]) == kNoValue) return;
  for (size_t i = 0; i < loss_names_.size(); ++i) losses_[static_cast<size_t>(action.micro_batch)][i] = execution.scalar(loss_names_[i]);
}

void PipelineRunner::backward(const PipelineAction& action, const ReplicaInput& input, NodeObserver* observer) {
  const Part& part = parts_[static_cast<size_t>(action.chunk)];
  const Execution& made = *forward_.at({action.chunk, action.slot});
  Execution& execution = *backward_[static_cast<size_t>(action.chunk)];
  (*feed_)(execution, input);
  for (const StageMessage& message : part.messages.receive_backward) receive(message, action.micro_batch);
  const Graph& graph = execution.program().graph();
  for (const ValueId id : graph.inputs()) {
    const std::string& name = graph.value(id).name;
    if (graph.value(id).role != ValueRole::kInput || !name.starts_with("value")) continue;
    const auto received = mailbox_.find({name, action.micro_batch});
    execution.feed(name, received != mailbox_.end() ? received->second : made.view(name));
  }
  execution.run({.observer = observer});
  for (const StageMessage& message : part.messages.send_backward) {
    const bool here = graph.find_output(message.name) != kNoValue;
    send(message, action.micro_batch, here ? execution.view(message.name) : made.view(message.name));
  }
  for (Summed& summed : summed_) {
    if (summed.sums == nullptr || summed.chunk != static_cast<size_t>(action.chunk)) continue;
    const LeafSums::Part values{.at = 0, .values = execution.flat_output(summed.output)};
    summed.sums->add(std::span(&values, 1));
  }
  for (const auto* list : {&part.messages.receive_forward, &part.messages.receive_backward}) {
    for (const StageMessage& message : *list) mailbox_.erase({message.name, action.micro_batch});
  }
}

void PipelineRunner::run(std::span<const ReplicaInput> inputs, const std::function<void(Execution&, const ReplicaInput&)>& feed,
                         NodeObserver* observer) {
  feed_ = &feed;
  for (Summed& summed : summed_) {
    if (summed.sums) summed.sums->clear();
  }
  const RankScope alone(nullptr);
  for (const PipelineAction& action : actions_[static_cast<size_t>(ranks_.rank())].actions) {
    if (action.kind != PipelineActionKind::kForward && action.kind != PipelineActionKind::kBackward) continue;
    const ReplicaInput& input = inputs[static_cast<size_t>(action.micro_batch)];
    NodeObserver* watches = action.micro_batch == 0 ? observer : nullptr;
    action.kind == PipelineActionKind::kForward ? forward(action, input, watches) : backward(action, input, watches);
  }
  for (Sent& sent : sent_) {
    ranks_.wait(sent.header);
    ranks_.wait(sent.body);
  }
  sent_.clear();
  GALLEY_ASSERT(mailbox_.empty());
}

void PipelineRunner::reduce() {
  std::vector<const double*> leaves;
  for (const std::vector<double>& own : losses_) leaves.push_back(own.data());
  sum_leaves(nullptr, "loss", tree_, leaves, losses_sum_);
  ranks_.broadcast("loss", losses_sum_.data(), std::ssize(losses_sum_), DType::kF64, loss_rank_);
  for (Summed& summed : summed_) ranks_.broadcast(summed.name, summed.memory->data(), summed.elements, DType::kF32, summed.owner);
}

Tensor PipelineRunner::sum(size_t bucket) const {
  const Summed& summed = summed_[bucket];
  return {DType::kF32, Shape{summed.elements}, {}, summed.memory};
}

double PipelineRunner::squares() const {
  SquareSum all;
  for (const Summed& summed : summed_)
    all.add({reinterpret_cast<const float*>(summed.memory->data()), static_cast<size_t>(summed.elements)});
  return all.value();
}

}  // namespace galley
