#include "libcore/data/loader.h"

#include <algorithm>

#include "libcore/base/log.h"
#include "libcore/base/under_key.h"
#include "libcore/data/loader_state.h"

namespace galley {
namespace {

/// After this many damaged samples in a row, the data as a whole is taken to be unusable.
constexpr int64_t kMaxBadInARow = 100;

/// Counts findings in the order of rows. Calls first_of_kind(message) for the first finding of each cause.
template <class Finding, class FirstOfKind>
int64_t count_findings(std::vector<Finding>& findings, std::map<std::string, SkipReport::Cause>& causes, const FirstOfKind& first_of_kind) {
  std::sort(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) { return a.row < b.row; });
  for (const Finding& finding : findings) {
    SkipReport::Cause& cause = causes[finding.cause];
    if (cause.count++ > 0) continue;
    cause.first = finding.message;
    first_of_kind(finding.message);
  }
  return static_cast<int64_t>(findings.size());
}

}  // namespace

DataLoader::State::State(std::shared_ptr<const Source> source, Pipeline pipeline, const std::vector<Component>& batch_transforms,
                         LoaderOptions options)
    : source_(std::move(source)), pipeline_(std::move(pipeline)), options_(std::move(options)), order_(source_->size(), options_.order) {
  GALLEY_ASSERT(options_.held >= 1 && options_.ranks >= 1 && options_.rank < options_.ranks && options_.ranks <= options_.order.batch);
  GALLEY_CHECK(!options_.format.is_blocked(), "batches cannot have the blocked format ", options_.format);
  for (const Component& component : batch_transforms) {
    batch_transforms_.push_back(component.params->clone());
    const auto* transform = dynamic_cast<const BatchTransform*>(batch_transforms_.back().get());
    GALLEY_ASSERT(transform != nullptr, "not a batch transform: ", component.type);
    under_key(cat("batch_transforms.", batch_transforms_.size() - 1), [&] { transform->check(); });
  }
  find_types();
  if (options_.classes > 0 && source_->label(0) >= 0) check_labels(*source_, options_.classes);
  if (options_.passes > 0) end_ = options_.passes * order_.epoch_samples();
  if (options_.max_samples > 0) end_ = std::min(end_.value_or(options_.max_samples), options_.max_samples);
  begun_ = delivered_ = options_.start;
  make_buffers();
  for (const FieldType& type : types_) {
    if (!options_.fit || !sizes_.empty() || !DataLoader::is_sized(type)) continue;
    for (size_t i = 0; i < type.lengths.size(); i += 2) sizes_.push_back({type.lengths[i], type.lengths[i + 1]});
  }
  if (options_.cut) group_samples();
  for (Slot& slot : slots_) free_.push_back(&slot);
  for (int64_t i = 0; i < options_.workers; ++i) threads_.emplace_back([this] { work(); });
}

DataLoader::State::~State() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_arrived_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

/// Reads the sample at a position and applies the pipeline. If it is damaged and may be skipped, tries the next samples of the slice.
Sample DataLoader::State::read_prepared(int64_t position, Findings& findings, int64_t row, int64_t& index) const {
  for (int64_t tries = 0;; ++tries) {
    const SampleOrder::Place place = order_.instead_of(position, tries);
    index = place.index;
    try {
      Sample sample = source_->read(place.index);
      const OtherSamples others{order_.size(), [&](int64_t number, int64_t& other) {
                                  other = order_.instead_of(position, number).index;
                                  return source_->read(other);
                                }};
      pipeline_.apply(sample, {options_.order.seed, place.epoch, place.index}, &others);
      if (!sample.irregularity.kind.empty()) findings.irregular.push_back({row, sample.irregularity.kind, sample.irregularity.message});
      return sample;
    } catch (Error& error) {
      const auto* bad = dynamic_cast<const BadSample*>(&error);
      if (bad == nullptr) error.context(cat(" in ", source_->sample_name(place.index)));
      if (error.code() == ErrorCode::kInput && error.place().file.empty()) error.at({.file = source_->sample_name(place.index)});
      if (options_.on_error != OnErrorRule::kSkip || error.code() != ErrorCode::kInput) throw;
      if (tries == 0) findings.skipped.push_back({row, bad == nullptr ? "other" : bad->cause(), error.message()});
      if (tries + 1 >= std::min(kMaxBadInARow, order_.size()))
        fail(ErrorCode::kInput, "all of ", tries + 1, " samples in a row are damaged; the last one: ", error.message());
    }
  }
}

/// A sample that determines the sizes of the buffers, and its index. It is read again for its batch, so its findings are not counted.
Sample DataLoader::State::first_sample(int64_t& index) const {
  Findings findings;
  for (int64_t position = end_ && options_.start >= *end_ ? 0 : options_.start, tries = 1;; ++position, ++tries) {
    try {
      return read_prepared(position, findings, 0, index);
    } catch (const Error& error) {
      if (options_.on_error != OnErrorRule::kReport || error.code() != ErrorCode::kInput || tries >= order_.size()) throw;
    }
  }
}

namespace {}  // namespace

/// Assigns the next batch to a free slot; false at the end.
bool DataLoader::State::begin_batch(Slot& slot) {
  if (end_ && begun_ >= *end_) return false;
  Batch& batch = slot.batch;
  if (!lengths_.empty() || !sizes_.empty()) batch.fields = slot.full;
  int64_t all = order_.batch_samples(begun_);
  if (end_) all = std::min(all, *end_ - begun_);
  // Equal parts of a shorter batch are equal too; of others, the first ones are full.
  const bool equal = options_.order.batch % options_.ranks == 0;
  const auto begin_of = [&](int64_t rank) { return equal ? all * rank / options_.ranks : std::min(all, part_begin(rank)); };
  const int64_t begin = begin_of(options_.rank), end = begin_of(options_.rank + 1);
  slot.share = static_cast<double>(end - begin) / static_cast<double>(all);
  // A part without samples has one of another part, so that its loss is a number; its share is 0.
  batch.first = begun_ + std::min(begin, all - 1);
  batch.valid = std::max<int64_t>(end - begin, 1);
  batch.epoch = order_.at(batch.first).epoch;
  batch.indices.assign(static_cast<size_t>(batch.valid), 0);
  begun_ += all;
  slot.next = begun_;
  slot.handed_out = 0;
  slot.missing = batch.valid;
  slot.ready = false;
  slot.findings = {};
  for (const FieldType& type : types_) {
    if (type.layout == FieldLayout::kJagged) slot.jagged[type.name].assign(static_cast<size_t>(part_rows()), Tensor());
    if (type.layout == FieldLayout::kDense && DataLoader::is_sized(type))
      slot.sized[type.name].assign(static_cast<size_t>(part_rows()), Tensor());
  }
  slot.error = nullptr;
  return true;
}

namespace {}  // namespace

/// With OnErrorRule::kReport, a sample that cannot be read leaves zeros in its row, and its message in `findings`.
void DataLoader::State::fill_or_report(Slot& slot, int64_t row, Findings& findings) const {
  try {
    fill_row(slot, row, findings);
  } catch (const Error& error) {
    if (options_.on_error != OnErrorRule::kReport || error.code() != ErrorCode::kInput) throw;
    findings.unreadable[row] = error.message();
    slot.batch.indices[static_cast<size_t>(row)] = order_.at(slot.batch.first + row).index;
    for (const FieldType& type : types_) clear_row(slot, type, row);
  }
}

/// Reads rows begin .. end-1. Keeps the error of the lowest bad row for the caller of next().
void DataLoader::State::fill_rows(Slot& slot, int64_t begin, int64_t end) {
  Findings findings;
  std::exception_ptr error;
  int64_t row = begin;
  try {
    for (; row < end; ++row) fill_or_report(slot, row, findings);
  } catch (const std::exception&) {
    error = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  slot.findings.add(findings);
  if (error != nullptr && (slot.error == nullptr || row < slot.error_row)) {
    slot.error = error;
    slot.error_row = row;
  }
}

/// Joins jagged rows, clears the rows after the valid ones, and applies a batch transform.
void DataLoader::State::finish_batch(Slot& slot) const {
  Batch& batch = slot.batch;
  if (slot.error != nullptr) return;
  place_images(slot);
  for (const FieldType& type : types_) {
    if (type.layout == FieldLayout::kJagged) {
      join_jagged(slot, type);
    } else if (!DataLoader::is_sized(type)) {
      clear_padding(batch, type);
    }
  }
  if (!lengths_.empty()) cut(slot);
  if (batch_transforms_.empty()) return;
  RandomStream random(options_.order.seed, "batch", static_cast<uint64_t>(batch.first));
  const size_t chosen = batch_transforms_.size() == 1 ? 0 : random.below(batch_transforms_.size());
  MixedBatch mixed{.input = batch.fields.at("input"), .probabilities = batch.fields.at("label"), .rows = batch.valid};
  try {
    dynamic_cast<const BatchTransform&>(*batch_transforms_[chosen]).apply(mixed, random);
  } catch (const std::exception&) {
    slot.error = std::current_exception();
  }
}

/// The loop of a worker: takes a chunk of rows of the oldest incomplete batch, or begins a new batch if a slot is free.
void DataLoader::State::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    Slot* slot = nullptr;
    for (Slot* candidate : pending_) {
      if (candidate->handed_out < candidate->batch.valid) {
        slot = candidate;
        break;
      }
    }
    if (stop_) return;
    if (slot == nullptr && !free_.empty() && begin_batch(*free_.front())) {
      slot = free_.front();
      free_.pop_front();
      pending_.push_back(slot);
      work_arrived_.notify_all();
    }
    if (slot == nullptr) {
      work_arrived_.wait(lock);
      continue;
    }
    // Small enough to spread a batch over the workers, large enough to avoid contention on the mutex.
    const int64_t chunk = std::clamp<int64_t>(slot->batch.valid / (4 * options_.workers), 1, 64);
    const int64_t begin = slot->handed_out, end = std::min(begin + chunk, slot->batch.valid);
    slot->handed_out = end;
    lock.unlock();
    fill_rows(*slot, begin, end);
    lock.lock();
    slot->missing -= end - begin;
    if (slot->missing == 0) {
      lock.unlock();
      finish_batch(*slot);
      lock.lock();
      slot->ready = true;
      batch_ready_.notify_all();
    }
  }
}

const Batch* DataLoader::State::next() {
  if (options_.workers == 0) {
    Slot& slot = *free_.front();
    if (!begin_batch(slot)) return nullptr;
    free_.pop_front();  // in turn
    free_.push_back(&slot);
    fill_rows(slot, 0, slot.batch.valid);
    finish_batch(slot);
    deliver(slot);
    return &slot.batch;
  }
  std::unique_lock lock(mutex_);
  if (std::ssize(held_) >= options_.held) {
    free_.push_back(held_.front());
    held_.pop_front();
    work_arrived_.notify_all();
  }
  if (end_ && delivered_ >= *end_) return nullptr;
  batch_ready_.wait(lock, [&] { return !pending_.empty() && pending_.front()->ready; });
  Slot& slot = *held_.emplace_back(pending_.front());
  pending_.pop_front();
  lock.unlock();
  deliver(slot);
  return &slot.batch;
}

/// Counts the findings of a batch that goes to the caller. Throws the batch's error.
void DataLoader::State::deliver(Slot& slot) {
  delivered_ = slot.next;
  share_ = slot.share;
  if (slot.error != nullptr) std::rethrow_exception(slot.error);
  slot.batch.unreadable = std::move(slot.findings.unreadable);
  slot.batch.irregular.clear();
  for (const Finding& finding : slot.findings.irregular) slot.batch.irregular[finding.row] = finding.message;
  skips_.skipped += count_findings(slot.findings.skipped, skips_.causes, [](const std::string& message) {
    log(LogLevel::kWarning, cat("skipped: ", message, " (further cases of this kind are only counted)"));
  });
  irregular_.samples += count_findings(slot.findings.irregular, irregular_.kinds, [](const std::string& message) {
    log(LogLevel::kInfo, cat(message, " (further cases of this kind are only counted)"));
  });
}

DataLoader::DataLoader(std::shared_ptr<const Source> source, Pipeline pipeline, const std::vector<Component>& batch_transforms,
                       LoaderOptions options)
    : state_(std::make_unique<State>(std::move(source), std::move(pipeline), batch_transforms, std::move(options))) {}
DataLoader::~DataLoader() = default;

const Batch* DataLoader::next() { return state_->next(); }
int64_t DataLoader::position() const { return state_->position(); }
int64_t DataLoader::epoch_samples() const { return state_->epoch_samples(); }
int64_t DataLoader::total_samples() const { return state_->total_samples(); }
const Source& DataLoader::source() const { return state_->source(); }
std::optional<PixelGrid> DataLoader::grid(int64_t height, int64_t width, int64_t index) const { return state_->grid(height, width, index); }
const std::vector<FieldType>& DataLoader::types() const { return state_->types(); }
const std::map<std::string, Tensor>& DataLoader::layout() const { return state_->layout(); }
const std::vector<int64_t>& DataLoader::lengths() const { return state_->lengths(); }
const std::vector<std::array<int64_t, 2>>& DataLoader::sizes() const { return state_->sizes(); }
bool DataLoader::is_sized(const FieldType& type) {
  return !type.lengths.empty() && (type.kind == FieldKind::kImage || type.kind == FieldKind::kMask);
}
const PixelConversions& DataLoader::pixels() const { return state_->pixels(); }
const std::string& DataLoader::float_reason() const { return state_->float_reason(); }
int64_t DataLoader::buffer_bytes() const { return state_->buffer_bytes(); }
double DataLoader::share() const { return state_->share(); }
const SkipReport& DataLoader::skips() const { return state_->skips(); }
const IrregularReport& DataLoader::irregular() const { return state_->irregular(); }

}  // namespace galley
