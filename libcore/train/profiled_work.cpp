#include "libcore/train/profiled_work.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "libcore/base/log.h"
#include "libcore/base/parallel.h"
#include "libcore/base/processor.h"
#include "libcore/base/resident_memory.h"
#include "libcore/data/loader.h"
#include "libcore/data/source.h"
#include "libcore/infer/inference.h"
#include "libcore/infer/random_batch.h"
#include "libcore/runtime/compile.h"
#include "libcore/train/step.h"

namespace galley {
namespace {

double seconds_since(int64_t begin_ns) { return static_cast<double>(steady_ns() - begin_ns) * 1e-9; }

/// Memory that this process may use: the smaller one of the machine's memory and the limit of its control group.
int64_t usable_memory() {
  int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGE_SIZE));
  std::ifstream limit("/sys/fs/cgroup/memory.max");
  int64_t group = 0;
  if (limit >> group && group > 0) bytes = std::min(bytes, group);
  return bytes;
}

bool has_source(const Recipe& recipe, const std::string& split) {
  const Split* found = recipe.data.find(split);
  return found != nullptr && (found->source || !found->from.empty());
}

}  // namespace

ProfiledWork::ProfiledWork(const Recipe& recipe) : recipe_(recipe), session_(recipe), engine_(session_.backend()) {
  choose_kind();
  open_data();
  if (kind_ == WorkKind::kTrainStep) {
    make_update();
  } else {
    make_forward();
  }
}

ProfiledWork::~ProfiledWork() = default;

void ProfiledWork::choose_kind() {
  const ProfileSection& section = recipe_.profile;
  const bool trains = recipe_.train.batch && recipe_.train.optimizer.algorithm;
  if (section.what == ProfileKind::kTrainStep || (section.what == ProfileKind::kAuto && trains)) kind_ = WorkKind::kTrainStep;
  if (section.batch.count && *section.batch.count < 1)
    throw Error(ErrorCode::kRecipe, "profile.batch is 0; it must be auto or at least 1").key("profile.batch");
  if (kind_ == WorkKind::kTrainStep) {
    BatchSection batch;
    if (recipe_.train.batch) {
      batch.global = recipe_.train.batch->global;
      batch.micro = recipe_.train.batch->micro;
    } else if (!section.batch.count) {
      throw Error(ErrorCode::kRecipe, "the key train.batch is missing")
          .key("train.batch")
          .suggest("write e.g. batch: 128, or profile.what=forward");
    }
    if (section.batch.count) batch.global = *section.batch.count;
    if (batch.micro.count && *batch.micro.count > batch.global) batch.micro = AutoCount();
    plan_ = plan_batch(batch);
    return;
  }
  int64_t size = recipe_.train.batch ? plan_batch(*recipe_.train.batch).micro : 1;
  if (recipe_.data.val && recipe_.data.val->batch.count && *recipe_.data.val->batch.count > 0) size = *recipe_.data.val->batch.count;
  size = section.batch.value_or(size);
  plan_ = {.global = size, .micro = size, .accumulation = 1};
}

void ProfiledWork::open_data() {
  const std::string split = kind_ == WorkKind::kForward && has_source(recipe_, "val") ? "val" : "train";
  length_ = {.total_steps = int64_t{1} << 30, .steps_per_epoch = 1 << 20, .samples_per_step = static_cast<double>(plan_.global)};
  if (recipe_.profile.synthetic || !has_source(recipe_, split)) {
    if (!recipe_.profile.synthetic) log(LogLevel::kInfo, cat("the recipe has no data.", split, "; random batches are used"));
    types_ = session_.usual_types(plan_.micro, kind_ == WorkKind::kTrainStep);
    length_.tokens_per_step = static_cast<double>(plan_.global * session_.tokens_of(types_));
    random_ = std::make_unique<Batch>(random_batch(session_, types_));
    return;
  }
  loader_split_ = split;
  const Split& described = *recipe_.data.find(split);
  workers_ = session_.loader_workers(split);
  prefetch_ = workers_ > 0 ? std::max<int64_t>(1, described.prefetch) : 0;
  restart_data();
  types_ = session_.batch_types(*loader_);
  length_.tokens_per_step = static_cast<double>(plan_.global * session_.tokens_of(types_));
  if (const int64_t samples = loader_->epoch_samples(); samples > 0)
    length_.steps_per_epoch = std::max(1.0, static_cast<double>(samples) / static_cast<double>(plan_.global));
}

void ProfiledWork::restart_data() {
  if (loader_split_.empty()) return;
  loader_.reset();
  loader_ = session_.loader(loader_split_, plan_.micro, 0, 0, 0, {.bytes = true});
}

const Batch& ProfiledWork::next() {
  if (random_) return *random_;
  const Batch* batch = loader_->next();
  GALLEY_ASSERT(batch != nullptr, "the loader ended, although it should repeat the data");
  return *batch;
}

void ProfiledWork::make_update() {
  update_ = std::make_unique<TrainStep>(session_, engine_, types_, plan_, length_);
  update_->initialize();
  update_->bind();
  fusions_declined_ = update_->fusions_declined();
}

void ProfiledWork::make_forward() {
  InferenceModel model = inference_model(session_, types_, loaded_plan(recipe_));
  fusions_declined_ = model.fusion.declined;
  if (model.plan) {
    for (const LayerPlan& layer : model.plan->layers) {
      if (!layer.float_reason.empty()) float_reasons_[layer.name] = layer.float_reason;
    }
  }
  const auto program = compile_inference(engine_, types_, model, "profiled forward pass");
  engine_.declare(*program);
  session_.initialize(model.parameters, engine_.store());
  forward_ = engine_.bind(program);
}

void ProfiledWork::run(NodeObserver* observer) {
  ++steps_;
  if (update_) {
    update_->run(steps_, [this]() -> const Batch& { return next(); }, observer);
    return;
  }
  const int64_t asked = steady_ns();
  const Batch& batch = next();
  if (observer != nullptr) observer->fetched(asked, steady_ns());
  feed_fields(*forward_, batch);
  forward_->run({.observer = observer});
  forward_->wait();
}

ProfileFacts ProfiledWork::facts() const {
  const Program& program = update_ ? update_->program() : forward_->program();
  ProfileFacts facts;
  facts.training = update_ != nullptr;
  facts.loads_data = !loader_split_.empty();
  facts.workers = workers_;
  facts.prefetch = prefetch_;
  facts.data_key = "data." + loader_split_;
  facts.threads = session_.threads();
  facts.cores = available_cores();
  facts.contiguous_forced = session_.layout() == LayoutMode::kContiguous;
  for (const Node& node : program.graph().nodes()) {
    facts.has_convolutions |= node.op->work == WorkClass::kProduct && node.op->layout.prefers_channels_last;
  }
  facts.recompute = update_ && recipe_.train.recompute.has_value();
  facts.batch = plan_.global;
  facts.accumulation = plan_.accumulation;
  facts.batch_key = update_ ? "train.batch.global" : loader_split_ == "val" ? "data.val.batch" : "profile.batch";
  facts.memory_bytes = usable_memory();
  facts.fusions_declined = fusions_declined_;
  facts.reorders = program.report().layout.reorders;
  facts.integers = integer_facts(program, float_reasons_);
  facts.fast_low_precision = has_fast_bf16() && !facts.integers.any && recipe_.precision.compute == PrecisionName::kF32;
  facts.integers.overrides = recipe_.quantize.overrides.size() > 0;
  return facts;
}

std::vector<ProfiledProgram> ProfiledWork::compilations() const {
  // In the order of compilation.
  const auto made = [&](size_t index, const char* name, const Program& program, std::string reason, int64_t runs) {
    return ProfiledProgram{name, std::move(reason), engine_.compilations()[index].seconds, static_cast<int64_t>(program.steps().size()),
                           runs};
  };
  const std::string batches = cat("batches of ", types_.input().shape);
  if (!update_) return {made(0, "forward", forward_->program(), batches, steps_)};
  std::vector<ProfiledProgram> list{made(0, "update", update_->program(), batches, steps_)};
  if (const Program* accumulate = update_->accumulate_program()) {
    list.push_back(made(1, "accumulate", *accumulate, cat("an update has ", plan_.accumulation, " passes of ", plan_.micro),
                        steps_ * (plan_.accumulation - 1)));
  }
  return list;
}

int64_t ProfiledWork::memory_bytes() const {
  const int64_t own = engine_.backend().device().memory().peak_bytes();
  return own > 0 ? own : resident_bytes();
}

ProfileSchedule schedule_of(const Recipe& recipe) {
  const ScheduleSection& section = recipe.profile.schedule;
  return {
      .skip_first = section.skip_first, .wait = section.wait, .warmup = section.warmup, .active = section.active, .repeat = section.repeat};
}

bool record(ProfiledWork& work, const ProfileSchedule& schedule, Recorder& recorder, const std::function<void(int64_t, int64_t)>& progress,
            const std::function<bool()>& stop) {
  Recorder warmup;
  for (int64_t k = 0; k < schedule.steps(); ++k) {
    if (stop && stop()) return false;
    const ProfileSchedule::Action action = schedule.at(k);
    if (action == ProfileSchedule::Action::kOff) {
      work.run();
    } else {
      Recorder& into = action == ProfileSchedule::Action::kRecord ? recorder : warmup;
      into.begin_step(k + 1);
      work.run(&into);
      into.end_step(work.memory_bytes());
    }
    if (progress && action != ProfileSchedule::Action::kRecord) progress(k + 1, schedule.steps());
  }
  return true;
}

RoundComparison recording_overhead(ProfiledWork& work, double max_time_s, const std::function<bool()>& stop) {
  constexpr size_t kLeast = 6;
  // Use one recorder for all rounds, as a profile does: it allocates memory in the first steps and keeps it.
  Recorder recorder;
  int64_t step = 0;
  const auto time = [&](bool recorded) {
    const int64_t began = steady_ns();
    if (recorded) {
      recorder.clear();
      recorder.begin_step(++step);
      work.run(&recorder);
      recorder.end_step(work.memory_bytes());
    } else {
      work.run();
    }
    return seconds_since(began);
  };
  time(false), time(true);
  std::vector<double> off, on, again;
  const int64_t began = steady_ns();
  while (!(stop && stop()) && (off.size() < kLeast || seconds_since(began) < max_time_s)) {
    off.push_back(time(false));
    on.push_back(time(true));
    again.push_back(time(false));
  }
  return off.empty() ? RoundComparison() : compare_rounds(off, on, again, 0.01);
}

RoundComparison compare_work(const Recipe& base, const Recipe& changed, double max_time_s, const std::function<bool()>& stop) {
  constexpr int64_t kSteps = 3;
  constexpr size_t kLeast = 3, kMost = 40;
  const int threads_before = compute_threads();
  struct Side {
    const Recipe& recipe;
    std::unique_ptr<ProfiledWork> work;
    int threads = 1;
  } sides[2] = {{base, nullptr, 1}, {changed, nullptr, 1}};
  for (Side& side : sides) {
    side.threads = static_cast<int>(side.recipe.threads.value_or(available_cores()));
    set_compute_threads(side.threads);
    side.work = std::make_unique<ProfiledWork>(side.recipe);
  }
  // Batches that a loader prefetched while the other side ran would make it look faster. So both start with an empty queue, and the first
  // steps are not timed.
  const auto time = [](Side& side) {
    set_compute_threads(side.threads);
    side.work->restart_data();
    for (int64_t k = 0; k <= side.work->prefetch(); ++k) side.work->run();
    const int64_t began = steady_ns();
    for (int64_t k = 0; k < kSteps; ++k) side.work->run();
    return seconds_since(began) / static_cast<double>(kSteps * side.work->batch());
  };
  time(sides[0]), time(sides[1]);
  std::vector<double> first, second, again;
  const int64_t began = steady_ns();
  while (first.size() < kMost && (first.size() < kLeast || (seconds_since(began) < max_time_s && !(stop && stop())))) {
    first.push_back(time(sides[0]));
    second.push_back(time(sides[1]));
    again.push_back(time(sides[0]));
  }
  set_compute_threads(threads_before);
  return compare_rounds(first, second, again, 0.01);
}

}  // namespace galley
