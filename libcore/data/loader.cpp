#include "libcore/data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "libcore/base/log.h"
#include "libcore/base/under_key.h"
#include "libcore/data/box_transforms.h"
#include "libcore/data/objects.h"

namespace galley {
namespace {

/// After this many damaged samples in a row, the data as a whole is taken to be unusable.
constexpr int64_t kMaxBadInARow = 100;

/// An event of a sample, counted by its cause.
struct Finding {
  int64_t row = 0;
  std::string cause, message;
};

/// Findings of the rows of one batch.
struct Findings {
  std::vector<Finding> skipped;    // damaged samples that were replaced
  std::vector<Finding> irregular;  // files that deviate from their format but were read
  std::map<int64_t, std::string> unreadable;

  void add(const Findings& others) {
    skipped.insert(skipped.end(), others.skipped.begin(), others.skipped.end());
    irregular.insert(irregular.end(), others.irregular.begin(), others.irregular.end());
    unreadable.insert(others.unreadable.begin(), others.unreadable.end());
  }
};

/// Counts findings in the order of rows. Calls first_of_kind(message) for the first finding of each cause.
template <class FirstOfKind>
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

/// A batch in preparation. Workers take rows in chunks; `missing` counts the rows that are not written yet.
struct Slot {
  Batch batch;
  std::map<std::string, Tensor> full;  // the fields of a batch that is not cut
  int64_t handed_out = 0;
  int64_t missing = 0;
  bool ready = false;
  int64_t next = 0;  // position after the batch, with the parts of other ranks
  double share = 1;
  Findings findings;
  std::map<std::string, std::vector<Tensor>> jagged;  // per jagged field: its rows, until all of them are read
  std::map<std::string, std::vector<Tensor>> sized;   // the same of images of different size, which are dense
  std::exception_ptr error;
  int64_t error_row = 0;
};

}  // namespace

class DataLoader::State {
 public:
  State(std::shared_ptr<const Source> source, Pipeline pipeline, const std::vector<Component>& batch_transforms, LoaderOptions options);
  ~State();

  const Batch* next();
  int64_t position() const { return delivered_; }
  int64_t epoch_samples() const { return order_.epoch_samples(); }
  int64_t total_samples() const { return end_.value_or(0); }
  const Source& source() const { return *source_; }
  std::optional<PixelGrid> grid(int64_t height, int64_t width, int64_t index) const {
    return pipeline_.grid(height, width, {options_.order.seed, 0, index});
  }
  const std::vector<FieldType>& types() const { return types_; }
  const std::map<std::string, Tensor>& layout() const { return slots_.front().full; }
  const std::vector<int64_t>& lengths() const { return lengths_; }
  const std::vector<std::array<int64_t, 2>>& sizes() const { return sizes_; }
  int64_t buffer_bytes() const;
  double share() const { return share_; }
  const SkipReport& skips() const { return skips_; }
  const IrregularReport& irregular() const { return irregular_; }

 private:
  Sample read_prepared(int64_t position, Findings& findings, int64_t row, int64_t& index) const;
  Sample first_sample(int64_t& index) const;
  void find_types();
  MemoryFormat format_of(const FieldType& type, int rank) const;
  void make_buffers();
  void group_samples();
  void cut(Slot& slot) const;
  size_t smallest(int64_t rows, int64_t columns) const;
  std::array<int64_t, 2> canvas_of(const Slot& slot) const;
  void place_images(Slot& slot) const;
  /// Where a rank's part of a full batch begins.
  int64_t part_begin(int64_t rank) const { return options_.order.batch * rank / options_.ranks; }
  int64_t part_rows() const { return part_begin(options_.rank + 1) - part_begin(options_.rank); }
  bool begin_batch(Slot& slot);
  void check_value(const FieldType& type, const FieldValue& value, int64_t index) const;
  void fill_field(Slot& slot, const FieldType& type, const Sample& sample, int64_t row, int64_t index) const;
  void join_jagged(Slot& slot, const FieldType& type) const;
  void clear_padding(Batch& batch, const FieldType& type) const;
  void fill_row(Slot& slot, int64_t row, Findings& findings) const;
  void clear_row(Slot& slot, const FieldType& type, int64_t row) const;
  void fill_or_report(Slot& slot, int64_t row, Findings& findings) const;
  void fill_rows(Slot& slot, int64_t begin, int64_t end);
  void finish_batch(Slot& slot) const;
  void deliver(Slot& slot);
  void work();

  std::shared_ptr<const Source> source_;
  Pipeline pipeline_;
  std::vector<std::unique_ptr<Options>> batch_transforms_;
  std::vector<FieldType> types_;               // fields of a batch
  std::vector<int64_t> lengths_;               // of batches that are cut
  std::vector<std::array<int64_t, 2>> sizes_;  // of the canvases of batches
  LoaderOptions options_;
  SampleOrder order_;
  std::optional<int64_t> end_;  // position after the last sample
  std::vector<Slot> slots_;
  SkipReport skips_;
  IrregularReport irregular_;
  int64_t delivered_ = 0;    // position of the next batch to deliver
  double share_ = 1;         // of the batch that was delivered last
  Slot* current_ = nullptr;  // the batch that the caller holds

  // Shared with the workers; guarded by mutex_.
  mutable std::mutex mutex_;
  std::condition_variable work_arrived_, batch_ready_;
  std::deque<Slot*> free_, pending_;  // pending_ is in the order of delivery
  int64_t begun_ = 0;                 // position of the next batch to begin
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

DataLoader::State::State(std::shared_ptr<const Source> source, Pipeline pipeline, const std::vector<Component>& batch_transforms,
                         LoaderOptions options)
    : source_(std::move(source)), pipeline_(std::move(pipeline)), options_(std::move(options)), order_(source_->size(), options_.order) {
  GALLEY_ASSERT(options_.ranks >= 1 && options_.rank < options_.ranks && options_.ranks <= options_.order.batch);
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

/// Maps the declared fields through the pipeline and the batch transforms. All batch transforms change the fields in the same way.
void DataLoader::State::find_types() {
  types_ = pipeline_.fields(source_->fields());
  const std::vector<FieldType> samples = types_;
  for (size_t i = 0; i < batch_transforms_.size(); ++i) {
    const auto& transform = dynamic_cast<const BatchTransform&>(*batch_transforms_[i]);
    types_ = under_key(cat("batch_transforms.", i), [&] { return transform.fields(samples, options_.classes); });
  }
}

/// The memory format of a field's tensor: that of the options for images [N,C,H,W] and clips [N,C,T,H,W].
MemoryFormat DataLoader::State::format_of(const FieldType& type, int rank) const {
  if (type.kind != FieldKind::kImage || rank < 4) return {};
  return options_.format.is_channels_last() ? MemoryFormat::channels_last_for_rank(rank) : options_.format;
}

void DataLoader::State::make_buffers() {
  int64_t index = 0;
  const Sample sample = first_sample(index);
  for (FieldType& type : types_) {
    const FieldValue* value = sample.find(type.name);
    GALLEY_ASSERT(value != nullptr, source_->describe(), " declares ", type, " but does not set it");
    const Shape shape = Pipeline::shape_of(*value);
    GALLEY_ASSERT(type.layout == FieldLayout::kJagged || shape.rank() == static_cast<int>(type.sample.size()) ||
                      std::holds_alternative<int64_t>(*value),
                  source_->describe(), " declares ", type, " but returns ", shape);
    for (int axis = 0; axis < shape.rank() && type.open(); ++axis) {
      int64_t& size = type.sample[static_cast<size_t>(axis)];
      if (size == kOpenSize) size = shape[axis];
    }
    check_value(type, *value, index);
  }
  slots_.resize(static_cast<size_t>(options_.workers == 0 ? 1 : std::max<int64_t>(1, options_.prefetch) + 1));
  for (Slot& slot : slots_) {
    slot.batch.types = types_;
    for (const FieldType& type : types_) {
      for (const FieldTensor& tensor : tensors_of(type, part_rows())) {
        slot.batch.fields.emplace(tensor.name, Tensor(tensor.dtype, tensor.shape, format_of(type, tensor.shape.rank())));
      }
    }
    slot.full = slot.batch.fields;
  }
}

/// The order in which samples of similar length come together.
void DataLoader::State::group_samples() {
  if (const auto* objects = dynamic_cast<const ObjectSource*>(source_.get()); objects != nullptr && sizes_.size() > 1) {
    auto groups = std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(source_->size()));
    for (int64_t i = 0; i < source_->size(); ++i) {
      const ObjectImage& image = objects->image(i);
      const std::optional<PixelGrid> grid = this->grid(image.height, image.width, i);  // in the first epoch
      if (grid) (*groups)[static_cast<size_t>(i)] = static_cast<uint8_t>(smallest(grid->height, grid->width));
    }
    options_.order.groups = std::move(groups);
    order_ = SampleOrder(source_->size(), options_.order);
    return;
  }
  for (const FieldType& type : types_) {
    if (type.layout == FieldLayout::kPadded && !type.lengths.empty()) lengths_ = type.lengths;
  }
  if (lengths_.size() < 2 || source_->length(0) < 0) return;
  auto groups = std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(source_->size()));
  for (int64_t i = 0; i < source_->size(); ++i) {
    const auto found = std::lower_bound(lengths_.begin(), lengths_.end() - 1, source_->length(i));
    (*groups)[static_cast<size_t>(i)] = static_cast<uint8_t>(found - lengths_.begin());
  }
  options_.order.groups = std::move(groups);
  order_ = SampleOrder(source_->size(), options_.order);
}

/// The number of the smallest canvas that holds so many rows and columns.
size_t DataLoader::State::smallest(int64_t rows, int64_t columns) const {
  size_t i = 0;
  while (i + 1 < sizes_.size() && (sizes_[i][0] < rows || sizes_[i][1] < columns)) ++i;
  return i;
}

/// The canvas of a batch.
std::array<int64_t, 2> DataLoader::State::canvas_of(const Slot& slot) const {
  int64_t rows = 0, columns = 0;
  for (const auto& [name, images] : slot.sized) {
    for (const Tensor& image : images) {
      if (image.shape().rank() < 2) continue;  // of a sample that could not be read
      rows = std::max(rows, image.shape()[-2]);
      columns = std::max(columns, image.shape()[-1]);
    }
  }
  return sizes_[smallest(rows, columns)];
}

namespace {

/// Copies planes [planes, rows, columns] of pixels of `bytes` to the top left of larger ones.
void place_planes(const std::byte* from, std::byte* to, int64_t planes, std::array<int64_t, 2> own, std::array<int64_t, 2> canvas,
                  int64_t bytes) {
  for (int64_t line = 0; line < planes * own[0]; ++line) {
    const int64_t at = line / own[0] * canvas[0] + line % own[0];
    std::memcpy(to + at * canvas[1] * bytes, from + line * own[1] * bytes, static_cast<size_t>(own[1] * bytes));
  }
}

/// A tensor of that shape in the memory of one that is at least as large.
Tensor reshaped(const Tensor& whole, const Shape& shape) { return Tensor(whole.dtype(), shape, whole.format(), whole.storage()); }

}  // namespace

/// Writes the images of different size, and their masks, to the canvas of the batch.
void DataLoader::State::place_images(Slot& slot) const {
  Batch& batch = slot.batch;
  for (const FieldType& type : types_) {
    if (!DataLoader::is_sized(type) || type.layout == FieldLayout::kJagged) continue;
    const std::array<int64_t, 2> canvas = sizes_.empty() ? std::array{type.lengths.end()[-2], type.lengths.end()[-1]} : canvas_of(slot);
    Tensor& tensor = batch.fields.at(type.name);
    Shape shape = tensor.shape();
    shape[-2] = canvas[0];
    shape[-1] = canvas[1];
    tensor = reshaped(tensor, shape);
    const int64_t row_bytes = tensor.bytes() / part_rows();
    const bool channels = tensor.format().is_channels_last();
    auto* to = static_cast<std::byte*>(tensor.data());
    for (int64_t row = 0; row < part_rows(); ++row, to += row_bytes) {
      const bool classes = type.kind == FieldKind::kMask && type.dtype == DType::kI64;
      if (classes) {
        std::fill_n(reinterpret_cast<int64_t*>(to), row_bytes / 8, options_.pad_label);
      } else {
        std::memset(to, 0, static_cast<size_t>(row_bytes));
      }
      const Tensor& image = slot.sized.at(type.name)[static_cast<size_t>(row)];
      if (row >= batch.valid || image.shape().rank() < 2) continue;
      const int64_t planes = image.shape().elements() / (image.shape()[-2] * image.shape()[-1]);
      place_planes(static_cast<const std::byte*>(image.data()), to, channels ? 1 : planes, {image.shape()[-2], image.shape()[-1]}, canvas,
                   dtype_size(image.dtype()) * (channels ? planes : 1));
    }
  }
}

/// Moves the rows of padded fields together, so that they end at the shortest length that holds all of them.
void DataLoader::State::cut(Slot& slot) const {
  Batch& batch = slot.batch;
  int64_t longest = 0;
  for (const FieldType& type : types_) {
    if (type.layout != FieldLayout::kPadded) continue;
    const int64_t* length = batch.fields.at(type.name + ".length").data_as<int64_t>();
    longest = std::max(longest, *std::max_element(length, length + batch.valid));
  }
  const int64_t wanted = *std::lower_bound(lengths_.begin(), lengths_.end() - 1, longest);
  for (const FieldType& type : types_) {
    if (type.layout != FieldLayout::kPadded || type.sample[0] == wanted) continue;
    Tensor& tensor = batch.fields.at(type.name);
    Shape shape = tensor.shape();
    const int64_t rows = shape[0], before = tensor.bytes() / rows, after = before / shape[1] * wanted;
    auto* data = static_cast<std::byte*>(tensor.data());
    for (int64_t row = 1; row < rows; ++row) std::memmove(data + row * after, data + row * before, static_cast<size_t>(after));
    shape[1] = wanted;
    tensor = Tensor(tensor.dtype(), shape, tensor.format(), tensor.storage());
  }
}

int64_t DataLoader::State::buffer_bytes() const {
  int64_t bytes = 0;
  for (const Slot& slot : slots_)
    for (const auto& [name, tensor] : slot.full) bytes += tensor.bytes();
  // Images before they are put on the canvas of their batch.
  for (const FieldType& type : types_) {
    if (DataLoader::is_sized(type) && type.layout == FieldLayout::kDense)
      bytes += std::ssize(slots_) * slots_.front().full.at(type.name).bytes();
  }
  return bytes;
}

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

/// Throws Error (kInput) if a sample's value does not match the field type of the batch.
void DataLoader::State::check_value(const FieldType& type, const FieldValue& value, int64_t index) const {
  const auto* number = std::get_if<int64_t>(&value);
  if (number != nullptr && type.dtype == DType::kF32) {
    GALLEY_CHECK_FILE(*number >= 0 && *number < options_.classes, source_->sample_name(index), "label ", *number, ", but the model has ",
                      options_.classes, " classes");
    return;
  }
  const Shape shape = Pipeline::shape_of(value);
  const DType dtype = Pipeline::dtype_of(value);
  const bool dense = type.layout == FieldLayout::kDense, jagged = type.layout == FieldLayout::kJagged;
  const std::span<const int64_t> fixed = dense ? shape.sizes() : shape.sizes().subspan(std::min<size_t>(1, shape.sizes().size()));
  const std::span<const int64_t> expected = std::span(type.sample).subspan(dense || jagged ? 0 : 1);
  const bool sized = DataLoader::is_sized(type) && fixed.size() == expected.size();
  const auto same = [&](int64_t own, int64_t most) { return own == most || (sized && own < most); };
  const bool fits = dtype == type.dtype && std::equal(fixed.begin(), fixed.end(), expected.begin(), expected.end(), same);
  const auto field = [&] { return type.name == "input" ? std::string() : cat("`", type.name, "` "); };
  GALLEY_CHECK_FILE(fits && (dense || shape.rank() > 0), source_->sample_name(index), field(), dtype, " ", shape,
                    " after the pipeline, but the batch has ", type,
                    "; add resize or a crop to the pipeline, so that all samples have the same size");
  if (dense) return;
  const int64_t most = jagged ? type.capacity : type.sample[0];
  GALLEY_CHECK_FILE(shape[0] <= most, source_->sample_name(index), field(), "has ", shape[0], " elements; the source declares at most ",
                    most);
}

namespace {

/// The elements of a jagged field.
Tensor jagged_rows(const FieldValue& value) {
  if (const auto* boxes = std::get_if<Boxes>(&value)) return boxes->corners;
  if (const auto* keypoints = std::get_if<Keypoints>(&value)) return keypoints->points;
  const auto* objects = std::get_if<ObjectMasks>(&value);
  if (objects == nullptr) return std::get<Tensor>(value);
  Tensor rows(DType::kU8, {std::ssize(objects->masks), objects->height, objects->width});
  auto* to = rows.data_as<uint8_t>();
  for (const Image& mask : objects->masks) to = std::copy_n(mask.as<uint8_t>(), mask.values(), to);
  return rows;
}

}  // namespace

/// Writes one field of a sample into its row.
void DataLoader::State::fill_field(Slot& slot, const FieldType& type, const Sample& sample, int64_t row, int64_t index) const {
  const FieldValue* value = sample.find(type.name);
  GALLEY_CHECK_FILE(value != nullptr, source_->sample_name(index), "field `", type.name, "` is missing, but the first sample has it");
  check_value(type, *value, index);
  if (type.layout == FieldLayout::kJagged) {
    slot.jagged.at(type.name)[static_cast<size_t>(row)] = jagged_rows(*value).to(type.dtype);
    return;
  }
  Tensor& tensor = slot.batch.fields.at(type.name);
  if (DataLoader::is_sized(type)) {
    Tensor& image = slot.sized.at(type.name)[static_cast<size_t>(row)];
    image = Tensor(type.dtype, Pipeline::shape_of(*value));
    return pipeline_.write(sample, type.name, tensor.format().is_channels_last(), options_.pad_label, image.data());
  }
  const auto row_bytes = static_cast<size_t>(tensor.bytes() / part_rows());
  std::byte* to = static_cast<std::byte*>(tensor.data()) + static_cast<size_t>(row) * row_bytes;
  const auto* number = std::get_if<int64_t>(value);
  if (number != nullptr && type.dtype == DType::kF32) {
    std::memset(to, 0, row_bytes);
    reinterpret_cast<float*>(to)[*number] = 1.0f;
    return;
  }
  if (type.layout == FieldLayout::kPadded) {
    const auto& array = std::get<Tensor>(*value);
    const auto used = static_cast<size_t>(array.elements() * dtype_size(type.dtype));
    if (type.kind == FieldKind::kClass && type.dtype == DType::kI64) {
      std::fill(reinterpret_cast<int64_t*>(to + used), reinterpret_cast<int64_t*>(to + row_bytes), options_.pad_label);
    } else {
      std::memset(to + used, 0, row_bytes - used);
    }
    slot.batch.fields.at(type.name + ".length").data_as<int64_t>()[row] = array.shape()[0];
  }
  pipeline_.write(sample, type.name, tensor.format().is_channels_last(), options_.pad_label, to);
}

void DataLoader::State::fill_row(Slot& slot, int64_t row, Findings& findings) const {
  int64_t index = 0;
  const Sample sample = read_prepared(slot.batch.first + row, findings, row, index);
  slot.batch.indices[static_cast<size_t>(row)] = index;
  for (const FieldType& type : types_) fill_field(slot, type, sample, row, index);
}

/// Sets a row to zeros, or to no elements for a jagged field.
void DataLoader::State::clear_row(Slot& slot, const FieldType& type, int64_t row) const {
  if (type.layout == FieldLayout::kJagged) {
    slot.jagged.at(type.name)[static_cast<size_t>(row)] = Tensor(type.dtype, Shape{0});
    return;
  }
  if (DataLoader::is_sized(type)) {
    slot.sized.at(type.name)[static_cast<size_t>(row)] = Tensor(type.dtype, Shape{0});
    return;
  }
  for (const FieldTensor& part : tensors_of(type, part_rows())) {
    Tensor& tensor = slot.batch.fields.at(part.name);
    const auto row_bytes = static_cast<size_t>(tensor.bytes() / part_rows());
    std::memset(static_cast<std::byte*>(tensor.data()) + static_cast<size_t>(row) * row_bytes, 0, row_bytes);
  }
}

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

/// Concatenates the rows of a jagged field. Rows after the valid ones are empty.
void DataLoader::State::join_jagged(Slot& slot, const FieldType& type) const {
  Tensor& values = slot.batch.fields.at(type.name + ".values");
  int64_t* offsets = slot.batch.fields.at(type.name + ".offsets").data_as<int64_t>();
  auto* to = static_cast<std::byte*>(values.data());
  const std::vector<Tensor>& rows = slot.jagged.at(type.name);
  const bool sized = DataLoader::is_sized(type);
  std::array<int64_t, 2> canvas{};
  if (sized) {
    canvas = sizes_.empty() ? std::array{type.lengths.end()[-2], type.lengths.end()[-1]} : canvas_of(slot);
    values = reshaped(values, {values.shape()[0], canvas[0], canvas[1]});
    std::memset(values.data(), 0, static_cast<size_t>(values.bytes()));
  }
  const int64_t area = canvas[0] * canvas[1] * dtype_size(type.dtype);
  for (int64_t row = 0; row < part_rows(); ++row) {
    const bool valid = row < slot.batch.valid;
    const Tensor& from = rows[static_cast<size_t>(row)];
    if (sized && valid && from.shape().rank() == 3) {
      place_planes(static_cast<const std::byte*>(from.data()), to, from.shape()[0], {from.shape()[1], from.shape()[2]}, canvas,
                   dtype_size(type.dtype));
      for (int64_t i = 0; i < from.shape()[0]; ++i)
        extend_mask(reinterpret_cast<uint8_t*>(to) + i * area, canvas[0], canvas[1], from.shape()[1], from.shape()[2]);
      to += from.shape()[0] * area;
    } else if (valid) {
      to = std::copy_n(static_cast<const std::byte*>(from.data()), from.bytes(), to);
    }
    offsets[row + 1] = offsets[row] + (valid ? from.shape()[0] : 0);
  }
  std::fill(to, static_cast<std::byte*>(values.data()) + values.bytes(), std::byte{0});
}

/// Clears the rows after the valid ones.
void DataLoader::State::clear_padding(Batch& batch, const FieldType& type) const {
  const int64_t empty = part_rows() - batch.valid;
  for (const FieldTensor& part : tensors_of(type, part_rows())) {
    Tensor& tensor = batch.fields.at(part.name);
    const int64_t row_bytes = tensor.bytes() / part_rows();
    std::memset(static_cast<std::byte*>(tensor.data()) + batch.valid * row_bytes, 0, static_cast<size_t>(empty * row_bytes));
  }
  const bool classes = type.kind == FieldKind::kClass || type.kind == FieldKind::kMask;
  if (!classes || type.dtype != DType::kI64) return;
  Tensor& tensor = batch.fields.at(type.name);
  const int64_t row = tensor.elements() / part_rows();
  std::fill_n(tensor.data_as<int64_t>() + batch.valid * row, empty * row, options_.pad_label);
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
    Slot& slot = slots_.front();
    if (!begin_batch(slot)) return nullptr;
    fill_rows(slot, 0, slot.batch.valid);
    finish_batch(slot);
    deliver(slot);
    return &slot.batch;
  }
  std::unique_lock lock(mutex_);
  if (current_ != nullptr) {
    free_.push_back(current_);
    current_ = nullptr;
    work_arrived_.notify_all();
  }
  if (end_ && delivered_ >= *end_) return nullptr;
  batch_ready_.wait(lock, [&] { return !pending_.empty() && pending_.front()->ready; });
  current_ = pending_.front();
  pending_.pop_front();
  lock.unlock();
  deliver(*current_);
  return &current_->batch;
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
int64_t DataLoader::buffer_bytes() const { return state_->buffer_bytes(); }
double DataLoader::share() const { return state_->share(); }
const SkipReport& DataLoader::skips() const { return state_->skips(); }
const IrregularReport& DataLoader::irregular() const { return state_->irregular(); }

}  // namespace galley
