#include "libcore/train/pipeline_runner.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <set>

#include "libcore/comm/square_sum.h"

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

PipelineRunner::PipelineRunner(Communicator& ranks, const PipelineRanks& place, int64_t micro_batches, std::vector<StageActions> actions,
                               std::vector<Part> parts)
    : ranks_(ranks),
      place_(place),
      actions_(std::move(actions)),
      parts_(std::move(parts)),
      tree_(static_cast<int>(micro_batches), place.copies) {}

int64_t PipelineRunner::slots() const { return actions_[static_cast<size_t>(place_.stage)].slots; }

int64_t PipelineRunner::bytes(const std::vector<Sums>& sums) const {
  const auto of_program = [](const Program& program) { return program.scratch_bytes() + program.prepared_bytes(); };
  int64_t bytes = 0;
  std::set<std::pair<int64_t, int64_t>> slots;  // of chunks
  for (const PipelineAction& action : actions_[static_cast<size_t>(place_.stage)].actions) {
    if (action.kind == PipelineActionKind::kForward && slots.emplace(action.chunk, action.slot).second)
      bytes += of_program(*parts_[static_cast<size_t>(action.chunk)].forward);
  }
  for (const Part& part : parts_) bytes += of_program(*part.backward);
  int64_t arrays = std::ssize(tree_.partials(place_.copy));
  for (int leaves = 4; leaves <= own().end - own().begin; leaves *= 2) ++arrays;  // LeafSums
  for (const Sums& of : sums) bytes += arrays * of.elements * 4;
  return bytes;
}

bool PipelineRunner::has_losses(const Execution& execution) const {
  return execution.program().graph().find_output(loss_names_.front()) != kNoValue;
}

void PipelineRunner::bind(Engine& engine, std::vector<Sums> sums, std::vector<std::string> losses, int loss_stage) {
  loss_names_ = std::move(losses);
  loss_stage_ = loss_stage;
  losses_.assign(static_cast<size_t>(own().end - own().begin), std::vector<double>(loss_names_.size()));
  losses_sum_.assign(loss_names_.size(), 0);
  for (const Part& part : parts_) {
    engine.declare(*part.forward);
    engine.declare(*part.backward);
  }
  for (Sums& of : sums) {
    Summed& summed = summed_.emplace_back();
    summed.of = std::move(of);
    const int64_t bytes = std::ssize(tree_.partials(place_.copy)) * summed.of.elements * 4;
    if (place_.copies > 1) {
      summed.memory = ranks_.allocate(bytes);
    } else {
      const std::shared_ptr<Storage> storage = Storage::allocate(bytes);
      summed.memory = {storage, storage->data()};
    }
    summed.sums = std::make_unique<LeafSums>(tree_, place_.copy, summed.of.elements, reinterpret_cast<float*>(summed.memory.get()));
  }
  for (const PipelineAction& action : actions_[static_cast<size_t>(place_.stage)].actions) {
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
  const int64_t begin = communication_ns();
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
  if (sent_.size() >= kMostSent) {
    ranks_.wait(sent_.front().header);
    ranks_.wait(sent_.front().body);
    sent_.erase(sent_.begin());
  }
  report_message("send ", message, micro_batch, begin);
}

/// Of messages that are sent, the time that the rank takes for them; of those that it receives, its waiting.
void PipelineRunner::report_message(const char* kind, const StageMessage& message, int64_t micro_batch, int64_t begin_ns) const {
  if (observer_ != nullptr) report_communication(observer_, cat(kind, message.name, " of micro-batch ", micro_batch), begin_ns);
}

void PipelineRunner::receive(const StageMessage& message, int64_t micro_batch) {
  while (mailbox_.count({message.name, micro_batch}) == 0) {
    const int from = rank_of(message.peer);
    GALLEY_ASSERT(from != ranks_.rank(), message.name, " of micro-batch ", micro_batch, " is missing");
    std::array<int64_t, 2> key{};
    const int64_t begin = communication_ns();
    ranks_.receive("stage", key.data(), 2, DType::kI64, from);
    const auto found =
        std::find_if(incoming_.begin(), incoming_.end(), [&](const StageMessage& each) { return number_of(each.name) == key[0]; });
    GALLEY_ASSERT(found != incoming_.end(), "a message of an unknown value ", key[0]);
    Tensor values(found->type.dtype, found->type.shape);
    ranks_.receive("stage", values.data(), values.bytes(), DType::kI8, from);
    mailbox_[{found->name, key[1]}] = values;
    report_message("receive ", *found, key[1], begin);
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
  for (const StageMessage& message : part.messages.send_forward) send(message, action.micro_batch, execution.host_output(message.name));
  if (!has_losses(execution)) return;
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
    received != mailbox_.end() ? execution.feed(name, received->second) : execution.feed_from(name, made, name);
  }
  execution.run({.observer = observer});
  for (const StageMessage& message : part.messages.send_backward) {
    const bool here = graph.find_output(message.name) != kNoValue;
    send(message, action.micro_batch, (here ? execution : made).host_output(message.name));
  }
  Summed& summed = summed_[static_cast<size_t>(action.chunk)];
  std::vector<LeafSums::Part> sums;
  std::vector<Tensor> arrays;
  for (const Sums::Output& each : summed.of.outputs) {
    arrays.push_back(execution.host_output(each.name));
    sums.push_back({.at = each.at, .values = {arrays.back().data_as<float>(), static_cast<size_t>(arrays.back().elements())}});
  }
  summed.sums->add(sums);
  for (const auto* list : {&part.messages.receive_forward, &part.messages.receive_backward}) {
    for (const StageMessage& message : *list) mailbox_.erase({message.name, action.micro_batch});
  }
}

void PipelineRunner::run(std::span<const ReplicaInput> inputs, const std::function<void(Execution&, const ReplicaInput&)>& feed,
                         NodeObserver* observer) {
  feed_ = &feed;
  observer_ = observer;
  for (Summed& summed : summed_) summed.sums->clear();
  const RankScope alone(nullptr);
  for (const PipelineAction& action : actions_[static_cast<size_t>(place_.stage)].actions) {
    if (action.kind != PipelineActionKind::kForward && action.kind != PipelineActionKind::kBackward) continue;
    const ReplicaInput& input = inputs[static_cast<size_t>(action.micro_batch)];
    NodeObserver* watches = action.micro_batch == 0 ? observer : nullptr;
    action.kind == PipelineActionKind::kForward ? forward(action, input, watches) : backward(action, input, watches);
  }
  const int64_t begin = communication_ns();
  for (Sent& sent : sent_) {
    ranks_.wait(sent.header);
    ranks_.wait(sent.body);
  }
  if (!sent_.empty()) report_communication(observer_, "wait for receivers", begin);
  sent_.clear();
  GALLEY_ASSERT(mailbox_.empty());
}

void PipelineRunner::reduce(NodeObserver* observer) {
  // The order of sum_leaves, among the copies of the stage with the losses; the other stages add zeros of their own.
  const RankGroup copies{1, place_.copies};
  const LeafRange own = this->own();
  std::vector<double> sums(losses_sum_.size() * tree_.partials(place_.copy).size());
  double* to = sums.data();
  for (const LeafRange& part : tree_.partials(place_.copy)) {
    std::vector<const void*> leaves;
    for (int leaf = part.begin; leaf < part.end; ++leaf) leaves.push_back(losses_[static_cast<size_t>(leaf - own.begin)].data());
    ReductionTree(part.end - part.begin, part.end - part.begin).reduce(leaves, to, std::ssize(losses_sum_), DType::kF64, ReduceOp::kSum);
    to += losses_sum_.size();
  }
  const auto sum = [&](std::string_view name, DType dtype, void* array, int64_t count) {
    if (place_.copies == 1) return;
    const int64_t begin = communication_ns();
    ranks_.run({.kind = CollectiveKind::kAllReduce,
                .dtype = dtype,
                .name = name,
                .input = array,
                .output = array,
                .count = count,
                .leaves = tree_.leaves(),
                .of_group = true,
                .group = copies});
    report_communication(observer, cat("all_reduce ", name), begin);
  };
  sum("loss", DType::kF64, sums.data(), std::ssize(losses_sum_));
  std::copy_n(sums.begin(), losses_sum_.size(), losses_sum_.begin());
  const int64_t begin = communication_ns();
  ranks_.broadcast("loss", losses_sum_.data(), std::ssize(losses_sum_), DType::kF64, loss_stage_ * place_.copies);
  report_communication(observer, "broadcast loss", begin);
  for (Summed& summed : summed_) sum("grads.stage", DType::kF32, summed.memory.get(), summed.of.elements);
}

Tensor PipelineRunner::sum(const std::string& output) const {
  for (const Summed& summed : summed_) {
    for (const Sums::Output& each : summed.of.outputs) {
      if (each.name != output) continue;
      const auto* values = reinterpret_cast<const float*>(summed.memory.get()) + each.at;
      return {DType::kF32, Shape{each.elements}, {}, Storage::borrow(values, each.elements * 4, summed.memory)};
    }
  }
  GALLEY_ASSERT(false, output, " is not computed by this stage");
}

double PipelineRunner::squares(const std::vector<std::string>& outputs) const {
  SquareSum all;
  for (const std::string& output : outputs) {
    const Tensor values = sum(output);
    all.add({values.data_as<float>(), static_cast<size_t>(values.elements())});
  }
  if (place_.stages > 1) all.add_others(ranks_, {place_.copies, place_.stages});
  return all.value();
}

}  // namespace galley
