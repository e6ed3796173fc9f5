#include "libcore/train/replica_runner.h"

#include <algorithm>

#include "libcore/base/parallel.h"
#include "libcore/comm/square_sum.h"
#include "libcore/passes/replicate.h"

namespace galley {

ThreadTeam::ThreadTeam(int size) {
  for (int index = 1; index < size; ++index) threads_.emplace_back([this, index] { work(index); });
}

ThreadTeam::~ThreadTeam() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  begins_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadTeam::call(int index) {
  try {
    (*body_)(index);
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
    (*failed_)();
  }
}

void ThreadTeam::work(int index) {
  const ThreadShare share(1);
  uint64_t seen = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      begins_.wait(lock, [&] { return stop_ || runs_ != seen; });
      if (stop_) return;
      seen = runs_;
    }
    call(index);
    const std::lock_guard lock(mutex_);
    if (--running_ == 0) ends_.notify_all();
  }
}

void ThreadTeam::run(const std::function<void(int)>& body, const std::function<void()>& failed) {
  {
    const std::lock_guard lock(mutex_);
    body_ = &body;
    failed_ = &failed;
    error_ = nullptr;
    running_ = static_cast<int>(threads_.size());
    ++runs_;
  }
  begins_.notify_all();
  {
    const ThreadShare share(1);
    call(0);
  }
  std::unique_lock lock(mutex_);
  ends_.wait(lock, [this] { return running_ == 0; });
  if (error_) std::rethrow_exception(error_);
}

/// One run of all replicas.
struct ReplicaRunner::Step {
  std::span<const ReplicaInput> inputs;
  const std::function<void(Execution&, const ReplicaInput&)>& feed;
  NodeObserver* observer;
  std::atomic<int> next{0};  // to be computed
  std::mutex mutex;
  std::condition_variable turns;
  int added = 0;                    // replicas whose results are added
  std::vector<Execution*> waiting;  // by replica, where each has an execution of its own
  bool failed = false;
};

ReplicaRunner::ReplicaRunner(const Options& options)
    : options_(options),
      rank_(options.ranks != nullptr ? options.ranks->rank() : 0),
      ranks_(options.ranks != nullptr ? options.ranks->size() : 1),
      tree_(options.choice.count, ranks_) {
  const int most = (options.choice.count + ranks_ - 1) / ranks_;  // replicas of a rank
  const bool one = options.tensor != nullptr || !options.host;    // collectives have one order, and a device one stream
  const int threads = one ? 1 : std::max(1, options.choice.threads);
  slots_ = options.sums ? count() : std::min(threads, options.gathers ? most : count());
  rounds_ = options.sums ? 1 : (most + slots_ - 1) / slots_;
}

int64_t ReplicaRunner::bytes(const Program& program, const std::vector<GradientBucket>& buckets, const Options& options) {
  const ReplicaRunner runner(options);
  int64_t sums = 0;
  for (const GradientBucket& bucket : buckets) sums += bucket.layout.padded(options.shards.ranks) * 4;
  if (!options.host) return program.scratch_bytes() + program.prepared_bytes() + sums;  // the copy that the update reads
  int64_t arrays = std::ssize(runner.tree_.partials(runner.rank_));
  for (int leaves = 4; leaves <= runner.count(); leaves *= 2) ++arrays;  // LeafSums
  return runner.slots_ * (program.scratch_bytes() + program.prepared_bytes()) + arrays * sums;
}

void ReplicaRunner::add_summed(const std::string& name, std::vector<std::pair<std::string, int64_t>> outputs, int64_t elements,
                               bool scattered) {
  Summed& summed = summed_.emplace_back();
  summed.name = name;
  summed.outputs = std::move(outputs);
  summed.elements = elements;
  summed.scattered = scattered;
  const int64_t bytes = std::ssize(tree_.partials(rank_)) * elements * 4;
  if (options_.ranks != nullptr) {
    summed.memory = options_.ranks->allocate(bytes);
    if (scattered && options_.shards.copies > 1) {
      const int sums = options_.ranks->order(tree_.leaves(), {1, options_.shards.ranks}).outputs();
      summed.group = options_.ranks->allocate(sums * elements / options_.shards.ranks * 4);
    }
  } else {
    const std::shared_ptr<Storage> storage = Storage::allocate(bytes);
    summed.memory = {storage, storage->data()};
  }
  summed.sums = std::make_unique<LeafSums>(tree_, rank_, elements, reinterpret_cast<float*>(summed.memory.get()));
}

void ReplicaRunner::bind(Engine& engine, const std::vector<Form>& forms, const std::vector<GradientBucket>& buckets, bool scattered,
                         int64_t statistics, std::vector<std::string> losses) {
  forms_ = forms;
  loss_names_ = std::move(losses);
  losses_.assign(static_cast<size_t>(count()), std::vector<double>(loss_names_.size()));
  losses_sum_.assign(loss_names_.size(), 0);
  for (const GradientBucket& bucket : buckets) {
    std::vector<std::pair<std::string, int64_t>> outputs;
    for (size_t m = 0; m < bucket.parameters.size(); ++m) outputs.emplace_back(gradient_output(bucket, m), bucket.layout.offsets[m]);
    add_summed(bucket.name, std::move(outputs), bucket.layout.padded(options_.shards.ranks), scattered);
    summed_.back().divided = bucket.divided;
  }
  buckets_ = buckets.size();
  if (statistics > 0) add_summed(std::string(kStatistics), {{std::string(kStatistics), 0}}, statistics, false);
  for (const Form& form : forms_) engine.declare(*form.program);
  for (int s = 0; s < slots_; ++s) {
    Slot& slot = slot_.emplace_back();
    slot.arena = std::make_shared<Arena>();
    for (const Form& form : forms_) slot.executions.push_back(engine.bind(form.program, {.arena = slot.arena}));
  }
  team_ = std::make_unique<ThreadTeam>(slots_);
}

Execution& ReplicaRunner::execution_for(const Batch& batch, int slot) const {
  for (size_t f = 0; f < forms_.size(); ++f) {
    const auto& fields = forms_[f].types.fields;
    const bool same =
        std::all_of(fields.begin(), fields.end(), [&](const auto& field) { return batch.at(field.first).shape() == field.second.shape; });
    if (same) return *slot_[static_cast<size_t>(slot)].executions[f];
  }
  GALLEY_ASSERT(false, "no program of a replica has the shapes of the batch at ", batch.first);
}

void ReplicaRunner::add(int replica, const Execution& execution) {
  for (Summed& summed : summed_) {
    std::vector<Tensor> arrays;
    std::vector<LeafSums::Part> parts;
    for (const auto& [output, at] : summed.outputs) {
      arrays.push_back(execution.host_output(output));
      parts.push_back({at, {arrays.back().data_as<float>(), static_cast<size_t>(arrays.back().elements())}});
    }
    summed.sums->add(parts);
  }
  for (size_t i = 0; i < loss_names_.size(); ++i) losses_[static_cast<size_t>(replica)][i] = execution.scalar(loss_names_[i]);
}

/// Adds results in the order of the replicas. Slots that are used again wait for their turn; where each replica has its own, as some wait
/// for others in their programs, whoever comes adds what is complete.
void ReplicaRunner::finished(Step& step, int replica, Execution& execution) {
  std::unique_lock lock(step.mutex);
  if (options_.sums) {
    step.waiting[static_cast<size_t>(replica)] = &execution;
    while (step.added < count() && step.waiting[static_cast<size_t>(step.added)] != nullptr) {
      add(step.added, *step.waiting[static_cast<size_t>(step.added)]);
      ++step.added;
    }
    return;
  }
  step.turns.wait(lock, [&] { return step.added == replica || step.failed; });
  if (step.failed) throw Error(ErrorCode::kWorker, "another replica failed");
  add(replica, execution);
  ++step.added;
  step.turns.notify_all();
}

/// `counts`: false: the result is not used.
void ReplicaRunner::compute(Step& step, int slot, int replica, bool counts) {
  const ReplicaInput& input = step.inputs[static_cast<size_t>(replica)];
  Execution& execution = execution_for(*input.batch, slot);
  step.feed(execution, input);
  execution.run({.observer = replica == 0 && counts && step.observer != nullptr ? step.observer : options_.others});
  if (counts) finished(step, replica, execution);
}

void ReplicaRunner::run_alone(Step& step, int slot) {
  const RankScope alone(nullptr, options_.tensor);
  for (int replica = step.next++; replica < count(); replica = step.next++) compute(step, slot, replica, true);
}

void ReplicaRunner::run_on_device(Step& step) {
  const RankScope scope(options_.gathers ? options_.ranks : nullptr, options_.tensor);
  const int runs = options_.gathers ? rounds_ : count();
  for (int replica = 0; replica < runs; ++replica) compute(step, 0, std::min(replica, count() - 1), replica < count());
}

void ReplicaRunner::run_in_group(Step& step, ReplicaGroup& group, int slot) {
  ReplicaGroup::Member member(group, slot, options_.tensor);
  for (int round = 0; round < rounds_; ++round) {
    const int replica = round * slots_ + slot;
    compute(step, slot, std::min(replica, count() - 1), replica < count());
  }
}

void ReplicaRunner::run(std::span<const ReplicaInput> inputs, const std::function<void(Execution&, const ReplicaInput&)>& feed,
                        NodeObserver* observer) {
  GALLEY_ASSERT(static_cast<int>(inputs.size()) == count());
  for (Summed& summed : summed_) summed.sums->clear();
  Step step{.inputs = inputs, .feed = feed, .observer = observer};
  step.waiting.resize(inputs.size());
  if (!options_.host) return run_on_device(step);
  std::unique_ptr<ReplicaGroup> group;
  if (options_.sums || options_.gathers)
    group = std::make_unique<ReplicaGroup>(options_.ranks, tree_, slots_, std::max(1, options_.choice.threads));
  team_->run([&](int slot) { group ? run_in_group(step, *group, slot) : run_alone(step, slot); },
             [&] {
               if (group) group->fail();
               const std::lock_guard lock(step.mutex);
               step.failed = true;
               step.turns.notify_all();
             });
}

void ReplicaRunner::reduce(NodeObserver* observer) {
  std::vector<const double*> leaves;
  for (const std::vector<double>& own : losses_) leaves.push_back(own.data());
  const int64_t first = communication_ns();
  sum_leaves(options_.ranks, "loss", tree_, leaves, losses_sum_);
  if (options_.ranks == nullptr) return;
  report_communication(observer, "all_reduce loss", first);
  const ShardGroups& shards = options_.shards;
  std::vector<Ticket> tickets;
  std::vector<int64_t> begins;
  for (const Summed& summed : summed_) {
    auto* array = reinterpret_cast<float*>(summed.memory.get());
    void* range = array + summed.elements / shards.ranks * shards.rank;
    begins.push_back(communication_ns());
    tickets.push_back(options_.ranks->start({.kind = summed.scattered ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce,
                                             .name = summed.name,
                                             .input = array,
                                             .output = summed.group       ? summed.group.get()
                                                       : summed.scattered ? range
                                                                          : array,
                                             .count = summed.elements,
                                             .leaves = tree_.leaves(),
                                             .group = {1, summed.scattered ? shards.ranks : ranks_}}));
  }
  for (size_t i = 0; i < tickets.size(); ++i) {
    options_.ranks->wait(tickets[i]);
    report_communication(observer, cat(summed_[i].scattered ? "reduce_scatter " : "all_reduce ", summed_[i].name), begins[i]);
  }
  for (const Summed& summed : summed_) {
    if (!summed.group) continue;
    const int64_t begin = communication_ns();
    const int64_t elements = summed.elements / shards.ranks;
    options_.ranks->run({.kind = CollectiveKind::kAllReduce,
                         .name = summed.name,
                         .input = summed.group.get(),
                         .output = summed.group.get(),
                         .count = elements,
                         .leaves = tree_.leaves(),
                         .group = {shards.ranks, shards.copies}});
    report_communication(observer, cat("all_reduce ", summed.name, " between groups"), begin);
  }
}

Tensor ReplicaRunner::tensor_of(const Summed& summed) const {
  const int64_t elements = summed.scattered ? summed.elements / options_.shards.ranks : summed.elements;
  const std::shared_ptr<std::byte>& memory = summed.group ? summed.group : summed.memory;
  const bool range = summed.scattered && !summed.group;
  const auto* values = reinterpret_cast<const float*>(memory.get()) + (range ? elements * options_.shards.rank : 0);
  return {DType::kF32, Shape{elements}, {}, Storage::borrow(values, elements * 4, memory)};
}

Tensor ReplicaRunner::sum(size_t bucket) const { return tensor_of(summed_[bucket]); }
Tensor ReplicaRunner::statistics() const { return tensor_of(summed_.back()); }

double ReplicaRunner::squares() const {
  SquareSum sum, of_parts;  // of_parts: of matrices that ranks divide
  bool ranges = false, parts = false;
  for (size_t b = 0; b < buckets_; ++b) {
    const Tensor values = tensor_of(summed_[b]);
    (summed_[b].divided ? of_parts : sum).add({values.data_as<float>(), static_cast<size_t>(values.elements())});
    ranges = ranges || summed_[b].scattered;
    parts = parts || summed_[b].divided;
  }
  if (parts) {
    of_parts.add_others(*options_.tensor);
    sum.add(of_parts);
  }
  if (ranges) sum.add_others(*options_.ranks, {1, options_.shards.ranks});
  return sum.value();
}

}  // namespace galley
